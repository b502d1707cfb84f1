"""SQL stands in files: named queries, the schema, and numbered migrations."""

from __future__ import annotations

import re
import sqlite3
from functools import cache
from pathlib import Path
from typing import NamedTuple

from agentos.exceptions import NewerSchemaError
from agentos.store.codec import NEWER

FOLDER = Path(__file__).with_name("sql")
_NAMED = re.compile(r"^-- (?P<name>[a-z_]+): .+\n", re.MULTILINE)


class Migration(NamedTuple):
    """Brings a database from version `number - 1` to `number`."""

    number: int
    name: str
    sql: str


def refuse_newer(database: object, found: int, known: int) -> None:
    """NewerSchemaError where another version of AgentOS made a schema that this one does not know."""
    if found > known:
        raise NewerSchemaError(
            f"{database} has schema {found}; this version of AgentOS knows {known}. It was not touched.",
            next_step=NEWER,
        )


@cache
def queries(file: str = "queries.sql") -> dict[str, str]:
    """Each query of a file by its name."""
    _, *parts = _NAMED.split((FOLDER / file).read_text(encoding="utf-8"))
    return {name: text.strip().rstrip(";") for name, text in zip(parts[::2], parts[1::2], strict=True)}


def script(file: str) -> str:
    return (FOLDER / file).read_text(encoding="utf-8")


def migrations(folder: str = "migrations") -> tuple[Migration, ...]:
    """In order, without a gap: 1, 2, 3, …"""
    files = sorted((FOLDER / folder).glob("*.sql"))
    return tuple(Migration(int(f.name[:4]), f.stem[5:], f.read_text(encoding="utf-8")) for f in files)


def statements(sql: str) -> list[str]:
    """A script cut into statements: `executescript` would commit in the middle of a transaction.

    Comments and indents stay behind: SQLite would keep them in every database.
    """
    found, pending = [], ""
    for line in map(str.strip, sql.splitlines()):
        if not line.startswith("--"):
            pending += line + "\n"
            if line.endswith(";") and sqlite3.complete_statement(pending):
                found.append(pending.strip())
                pending = ""
    return found
