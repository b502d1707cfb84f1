"""A PostgreSQL URL taken apart: what the driver gets, which schema is ours, and how it may be printed."""

from __future__ import annotations

from urllib.parse import unquote

import msgspec

from agentos.exceptions import WorkflowConfigurationError
from agentos.store.backends import without_password

SCHEMA = "agentos"
"""Where our tables are, unless the URL says `?schema=name`."""
_MAX_BYTES = 63  # what PostgreSQL keeps of a name; it would cut a longer one without a word

_DEFAULTS = {
    "application_name": "agentos",
    "client_encoding": "UTF8",
    "connect_timeout": "5",
    # A server that vanished without a word is noticed within the length of a lease.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


class Address(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    """As it was given, password included: never printed."""
    conninfo: str
    schema: str
    given: dict[str, str]
    """What the URL says of it, as libpq calls it; the password, too."""

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return without_password(self.url)

    @property
    def search_path(self) -> str:
        """Our schema alone; temporary tables of others must not stand in for ours."""
        quoted = self.schema.replace('"', '""')
        return f'"{quoted}", pg_temp'


def read_address(url: str) -> Address:
    """WorkflowConfigurationError where the driver cannot read the URL, or the schema has an impossible name."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    scheme, _, rest = url.partition("://")
    base, mark, query = rest.partition("?")
    kept = [pair for pair in query.split("&") if pair and not pair.startswith("schema=")]
    named = [unquote(pair.removeprefix("schema=")) for pair in query.split("&") if pair.startswith("schema=")]
    bare = f"{scheme.lower()}://{base}{mark if kept else ''}{'&'.join(kept)}"
    try:
        host, _, database = base.partition("/")
        if host.count("@") > 1 or "@" in database:
            raise ValueError("an @ or / in the password, which the driver would take for the host or the database")
        given = conninfo_to_dict(bare)
        for port in str(given.get("port") or "").split(","):
            if port and not 0 < int(port) < 1 << 16:
                raise ValueError(port)
    except (psycopg.Error, ValueError) as error:
        # What the driver says may quote the URL, and with it the password.
        raise WorkflowConfigurationError(
            f"{without_password(url)} is not a PostgreSQL URL that can be read",
            next_step="Write postgresql://user@host:port/database?schema=agentos, special characters as %XX.",
        ) from error
    told = {key: str(value) for key, value in given.items() if value is not None}
    schema = _check_schema(named[-1] if named else SCHEMA, url)
    return Address(url=url, conninfo=make_conninfo("", **(_DEFAULTS | told)), schema=schema, given=told)


def _check_schema(schema: str, url: str) -> str:
    problem = ""
    if not schema:
        problem = "it is empty"
    elif "\0" in schema or any("\ud800" <= character <= "\udfff" for character in schema):
        problem = "it is no text"
    elif len(schema.encode()) > _MAX_BYTES:
        problem = f"it has more than {_MAX_BYTES} bytes"
    elif schema.startswith("pg_") or schema in ("information_schema", "$user"):
        problem = "PostgreSQL keeps such names for itself"
    if problem:
        raise WorkflowConfigurationError(
            f"no schema can be called {schema[:80]!r}, as {without_password(url)[:200]} has it: {problem}",
            next_step="Name another one with ?schema=name, or leave it out.",
        )
    return schema
