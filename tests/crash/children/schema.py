"""A schema that is newer than ours by one step, for the crash in the middle of a migration."""

from __future__ import annotations

from agentos.store.sqlfiles import Migration, migrations


def newer_schema() -> tuple[Migration, ...]:
    """What we know, and one step more."""
    known = migrations()
    return (*known, known[0]._replace(number=len(known) + 1, sql="CREATE TABLE newer (x);"))
