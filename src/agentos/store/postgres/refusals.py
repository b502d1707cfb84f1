"""Why there is no connection, read from what was said: while connecting, errors come as text alone, without a code.

What is said in another language than English is not known here: it is tried for as long as a server that is away.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_ATTEMPT = re.compile(r"^- host: (.*?), port: .*?, hostaddr: .*?: ", re.MULTILINE)
"""How the driver lists its attempts, where there were several: hosts, or addresses of one."""


class Refusal(NamedTuple):
    """One reason: `why` goes on after "the database …"."""

    why: str
    next_step: str
    said: str
    """A pattern that its texts are known by."""
    final: bool = True
    """Whether trying again cannot help: the place is wrong, or somebody has to change it."""

    def is_final(self, *, reached: bool) -> bool:
        return self.final and not (reached and self is UNKNOWN_HOST)


POOLER = "Try again; if it stays, have the pooler keep transactions together (PgBouncer: pool_mode = transaction)."
STATEMENTS = Refusal(
    "is behind a pooler that keeps only single statements together (statement mode)",
    "Set pool_mode = transaction (or session) for it in the pooler, or name the server itself. Nothing was written.",
    "statement pooling",
)
UNKNOWN_HOST = Refusal(
    "is on a host whose name is not known",
    "Check the name of the host in the URL, and the name server. Nothing was written.",
    "failed to resolve host|could not translate host name",
)
FULL = Refusal(
    "has no connection free",
    "Raise max_connections (or the limit of the role, the database or the pooler), or try again when others are done.",
    "too many clients|connection slots are reserved|too many connections|no more connections allowed"
    "|max clients reached|query_wait_timeout",
    final=False,
)
_NOT_ANSWERED = (
    Refusal(
        "does not answer",
        "See whether the host is right, and whether a firewall is in the way. Nothing stored was lost.",
        "timeout expired|timed out|No route to host|Network is unreachable",
        final=False,
    ),
    Refusal(
        "cannot be reached: nothing listens there",
        "See whether the server runs, and whether host and port (or the folder of its socket) are right. "
        "Nothing stored was lost.",
        "Connection refused|No such file or directory",
        final=False,
    ),
)

_REFUSALS = (
    STATEMENTS,
    Refusal(
        "is behind a pooler that does not take a setting of the URL",
        "Leave it out of the URL (and PGOPTIONS), or have the pooler take it (PgBouncer: ignore_startup_parameters).",
        "unsupported startup parameter",
    ),
    FULL,
    Refusal(
        "is starting, shutting down or recovering",
        "Try again when the server is ready. Nothing stored was lost.",
        "the database system is|not currently accepting connections|pgbouncer is shutting down",
        final=False,
    ),
    Refusal(
        "does not let this user in: the password is wrong, or there is none",
        "Check user and password (PGPASSWORD, ~/.pgpass, or in the URL with special characters as %XX).",
        "password authentication failed|no password supplied|wrong password|SASL authentication failed",
    ),
    Refusal(
        "has no user of this name that may log in",
        "Check the user in the URL (without one it is the name of your account); "
        "on the server: CREATE ROLE name LOGIN, or ALTER ROLE name LOGIN.",
        'role ".*" does not exist|is not permitted to log in|no such user|Tenant or user not found',
    ),
    Refusal(
        "does not exist on that server",
        "Check its name in the URL, or make it: createdb NAME.",
        'database ".*" does not exist|no such database',
    ),
    Refusal(
        "lets nobody in without a certificate of their own (TLS)",
        "Name yours in the URL: sslcert=…&sslkey=…",
        "valid client certificate|certificate authentication failed|alert certificate required",
    ),
    Refusal(
        "could not prove that it is the right server (TLS)",
        "Name the certificate that its own is signed with (sslrootcert=…), and the host as it is called there. "
        "Neither password nor data was sent.",
        "certificate verify failed|root certificate|does not match host name|could not get server's host name",
    ),
    Refusal(
        "does not offer TLS, and the URL (or PGSSLMODE) demands it",
        "Turn it on at the server (ssl = on), or, where the way there is safe, say sslmode=prefer.",
        "server does not support SSL",
    ),
    Refusal(
        "demands TLS, and the URL (or PGSSLMODE) has it turned off",
        "Say sslmode=require in the URL, or better verify-full.",
        "SSL required|SSL connection is required",
    ),
    Refusal(
        "and we do not agree on TLS",
        "Check what begins with ssl in the URL and with PGSSL in the environment, and the same on the server.",
        "wrong version number|unsupported protocol|no protocols available|alert (protocol version|handshake failure)"
        "|sslmode|sslrootcert|certificate file|private key file",
    ),
    Refusal(
        "does not let this user in from here (pg_hba.conf)",
        "Have a line for this user, database and address put into pg_hba.conf on the server; where it has one for TLS "
        "alone, say sslmode=require in the URL.",
        r"pg_hba\.conf",
    ),
    Refusal(
        "does not let this user in",
        "Check the user in the URL, and how pg_hba.conf on the server wants it to prove itself.",
        "authentication failed|authentication method|Permission denied",
    ),
    Refusal(
        "is a standby or can only be read, and the URL wants another kind (target_session_attrs)",
        "Name the primary server, too (@one,two/agentos?target_session_attrs=read-write), or wait for the failover.",
        "session is (not )?read-only|hot standby mode",
        final=False,
    ),
    Refusal(
        "is behind a pooler that cannot reach it",
        "See the pooler's log, and whether the server behind it runs. Nothing stored was lost.",
        "cannot connect to server|server login|server conn crashed",
        final=False,
    ),
    Refusal(
        "cannot be reached: the name of its host cannot be looked up right now",
        "See whether the network and the name server are there. Nothing stored was lost.",
        "Temporary failure in name resolution",
        final=False,
    ),
    UNKNOWN_HOST,
    Refusal(
        "is no PostgreSQL server: something else answers there",
        "Check host and port in the URL.",
        "invalid response to SSL negotiation|expected authentication request|unsupported frontend protocol",
    ),
    Refusal("cannot be used", "Check the URL, and variables that begin with PG.", "invalid |definition of service"),
    *_NOT_ANSWERED,
)


class Read(NamedTuple):
    refusal: Refusal | None
    line: str
    """What was said, of all that was, about this."""


def find_refusal(text: str) -> Read:
    """What a failure to connect was for. Where several hosts were tried, one that may come back counts; of several
    addresses of one host, one that answered."""
    parts = _ATTEMPT.split(text)
    hosts: dict[str, Read] = {}
    for host, said in zip(parts[1::2], parts[2::2], strict=True) if len(parts) > 1 else [("", text)]:
        read = _read(said)
        if host not in hosts or hosts[host].refusal in _NOT_ANSWERED:
            hosts[host] = read
    found = list(hosts.values())
    return next((read for read in found if read.refusal is None or not read.refusal.final), found[0])


def _read(text: str) -> Read:
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    for refusal in _REFUSALS:
        for line in lines:
            if re.search(refusal.said, line):
                return Read(refusal, line)
    return Read(None, lines[0])
