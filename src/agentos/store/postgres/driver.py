"""The one place that touches the manners of the driver: lost connections, waiting for the server, and why there
is no connection, read from what was said."""

from __future__ import annotations

import functools
import random
import re
import time
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

import psycopg

from agentos.exceptions import (
    AgentosError,
    CheckpointCorruptedError,
    StoreUnavailableError,
    ValueEncodingError,
    WorkflowConfigurationError,
)

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


BRIEFLY_S = 5.0
"""Instead of PATIENCE_S, for what is asked again anyway or may be left out: a run that has to stop must not hang."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0

_PASSING = ("08", "26000", "40", "42P05", "57P", "25P03", "25P04", "53300", "55P03")
"""Beginnings of codes that say nothing about what was asked: connection lost, deadlock, shutdown, server too busy. A
prepared statement that is not there, or is already, tells of a session that is not ours alone: the next try does
without."""
_MISSING = ("3F000", "42P01", "42703", "42883")
"""A schema, table, column or function that we made is not there any more: our statements name them in full."""
_DAMAGED = ("XX001", "XX002")
"""What PostgreSQL itself calls damaged: data, or an index."""

P = ParamSpec("P")
T = TypeVar("T")


class UsesPostgres(Protocol):
    """What has verbs that talk to PostgreSQL."""

    shown: str
    patience_s: float


S = TypeVar("S", bound=UsesPostgres)


def verb(method: Callable[Concatenate[S, P], T], /) -> Callable[Concatenate[S, P], T]:
    """Makes a method, which must be safe to repeat, outlive lost connections, and raise our errors only."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return insist(lambda: method(self, *args, **kwargs), self.shown, self.patience_s, reached=True)

    return call


def brief_verb(method: Callable[Concatenate[S, P], T], /) -> Callable[Concatenate[S, P], T]:
    """As `verb`, and gives up sooner."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        patience_s = min(self.patience_s, BRIEFLY_S)
        return insist(lambda: method(self, *args, **kwargs), self.shown, patience_s, reached=True)

    return call


def insist(act: Callable[[], T], shown: str, patience_s: float, *, reached: bool = False) -> T:
    """Do it, again after growing pauses while the server cannot be reached, for `patience_s` at most.

    `reached`: this server answered before. Its name may then be unknown for a moment, while it moves.
    """
    deadline = time.monotonic() + patience_s
    pause = FIRST_PAUSE_S
    while True:
        try:
            return act()
        except (psycopg.Error, UnicodeError) as error:
            if not is_passing(error, reached=reached) or time.monotonic() + pause >= deadline:
                raise translate_error(error, shown) from error
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (only to break step with the others)
        pause = min(pause * 2, LONGEST_PAUSE_S)


def is_passing(error: Exception, *, reached: bool = False) -> bool:
    """Whether the same may succeed in a moment."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is not None and not error.sqlstate.startswith("08"):
        return error.sqlstate.startswith(_PASSING)
    if not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return False
    refusal, _ = find_refusal(str(error))
    return refusal is None or not refusal.is_final(reached=reached)


def statement_pooling(shown: str) -> WorkflowConfigurationError:
    return WorkflowConfigurationError(f"the database {shown} {STATEMENTS.why}", next_step=STATEMENTS.next_step)


def translate_error(error: Exception, shown: str) -> AgentosError:
    """The error of ours that says what the driver's means, and what to do."""
    if isinstance(error, UnicodeError) or (isinstance(error, psycopg.DataError) and "NUL" in str(error)):
        return ValueEncodingError("$", f"an id or name holds what PostgreSQL takes for no text: {error}")
    code = (error.sqlstate or "") if isinstance(error, psycopg.Error) else ""
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    of_connection = not code and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    if of_connection or code.startswith(("08", "28", "3D")):
        return _connection_error(code, str(error), shown)
    if code == "42501":
        return WorkflowConfigurationError(
            f"the user of {shown} may not do this: {said}",
            next_step="Grant it the schema (docs: postgres.md has the statements). Nothing was written.",
        )
    if code in _MISSING or code in _DAMAGED:
        step = "Nothing was changed. Put the schema back from a backup, or name another one (?schema=name)."
        return CheckpointCorruptedError(f"database {shown}", said, next_step=step)
    for beginning, (why, next_step) in _UNAVAILABLE.items():
        if code.startswith(beginning):
            return StoreUnavailableError(f"the database {shown} {why}: {said}", next_step=next_step)
    # Neither the connection nor the data: a statement of ours that is wrong, or that somebody's trigger refuses.
    return AgentosError(
        f"the database {shown} refused a statement of AgentOS ({code or type(error).__name__}): {said}",
        next_step="Nothing was written by it. If the schema has no trigger or rule of your own, "
        "this is a bug in AgentOS: please report the text above.",
    )


def _connection_error(code: str, text: str, shown: str) -> AgentosError:
    """A pooler may tell with a code, at the first statement, what a server says while connecting."""
    refusal, said = find_refusal(text)
    if refusal is not None:
        kind = WorkflowConfigurationError if refusal.final else StoreUnavailableError
        return kind(f"the database {shown} {refusal.why}: {said}", next_step=refusal.next_step)
    if code.startswith(("28", "3D")):
        return WorkflowConfigurationError(
            f"the database {shown} cannot be used: {said}",
            next_step="Check the URL: user, password, host, database; and pg_hba.conf on the server.",
        )
    return StoreUnavailableError(
        f"the database {shown} cannot be reached: {said}",
        next_step="See whether the server runs and can be reached from here. Nothing stored was lost.",
    )


_UNAVAILABLE = {
    "25006": ("can only be read (a standby?)", "Name the primary server. Nothing was written."),
    "25P": ("ended a transaction of ours that took too long", "Try again: nothing of it was written."),
    "26000": ("handed us the session of another client", POOLER),
    "40": ("was busy with other transactions", "Try again in a moment. Nothing was written."),
    "42P05": ("handed us the session of another client", POOLER),
    "53100": ("has no room left", "Free some space on the server and try again. Nothing stored was lost."),
    "53200": ("has no memory left", "Try again when the server has less to do. Nothing stored was lost."),
    "53300": (FULL.why, FULL.next_step),
    "53": ("is at one of its limits", "See the server's log, and try again. Nothing stored was lost."),
    "55P03": ("has a table that another session has locked", "See who locks it (pg_locks), and try again."),
    "57014": ("stopped a statement that took too long", "Raise statement_timeout for this user, and try again."),
    "57P": ("is shutting down, or cut this connection", "Try again when it is back. Nothing stored was lost."),
    "58": ("could not read or write its files", "See the server's log and its disk."),
    "XX000": ("met an error of its own", "See the server's log, and try again."),
}
"""By the beginning of a code, the longer ones first: what happened, and what to do."""
