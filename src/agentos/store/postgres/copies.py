"""How a schema is copied and put back: by PostgreSQL's own tools, named here with all that they need but a password."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path

from agentos.store.postgres.address import read_address

_SECRET = ("password", "sslpassword")
_KEPT = 30
"""So many characters of a schema's name go into the name it is kept under: PostgreSQL has room for 63 bytes."""


def backup_command(url: str, file: Path) -> str:
    """Writes the schema of this URL into `file`, for the user alone, while runs go on."""
    schema = shlex.quote(_identifier(read_address(url).schema))
    at = f"--dbname={_connection(url)}"
    return f"(umask 077; pg_dump {at} --schema={schema} --format=custom --file={_quoted_file(file)})"


def restore_command(url: str, file: Path) -> str:
    """Puts it back. The schema that is there keeps another name."""
    schema = read_address(url).schema
    kept = f"{schema[:_KEPT]}_replaced_{datetime.now(UTC):%Y%m%d%H%M%S}"
    rename = shlex.quote(f"ALTER SCHEMA {_identifier(schema)} RENAME TO {_identifier(kept)}")
    at = f"--dbname={_connection(url)}"
    return (
        f"psql {at} --command={rename} && "
        f"pg_restore {at} --exit-on-error --single-transaction --no-owner {_quoted_file(file)}"
    )


def _identifier(name: str) -> str:
    quoted = name.replace('"', '""')
    return f'"{quoted}"'


def _connection(url: str) -> str:
    """Where the server is, as its tools take it: without our own parameters, and without a password."""
    from psycopg.conninfo import make_conninfo

    given = {name: value for name, value in read_address(url).given.items() if name not in _SECRET}
    return shlex.quote(make_conninfo("", **given))


def _quoted_file(file: Path) -> str:
    return shlex.quote(str(file.absolute()))
