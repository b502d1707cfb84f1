"""A schema that is newer than ours by one step, for the crash in the middle of a migration."""

from __future__ import annotations

from agentos.store.sqlfiles import Migration, migrations


def newer_schema() -> tuple[Migration, ...]:
    """What we know, and one step more."""
    return _with_one_more(migrations(), "CREATE TABLE newer (x);")


def newer_postgres_schema() -> tuple[Migration, ...]:
    return _with_one_more(migrations("postgres/migrations"), "CREATE TABLE newer (x integer);")


def _with_one_more(known: tuple[Migration, ...], sql: str) -> tuple[Migration, ...]:
    return (*known, known[0]._replace(number=len(known) + 1, sql=sql))
