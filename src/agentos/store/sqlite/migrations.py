"""From nothing, or an older schema, to the current one: a transaction a step, after a copy, never under a live run."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from agentos import crashpoints
from agentos.exceptions import StoreUnavailableError
from agentos.machine.events import JOURNALED
from agentos.store.private_files import make_private, remove_database
from agentos.store.sqlfiles import Migration, queries, script, statements
from agentos.store.sqlite.driver import Transaction
from agentos.store.sqlite.leases import Clock, StoredLease, live_holder

APPLICATION_ID = 0x41674F53
"""`AgOS`: marks the file as ours."""
PAGE_BYTES = 8192

_Q = queries()
_STABLE_VIEWS = "views.sql"


def lay_out(connection: sqlite3.Connection, version: int) -> None:
    """The current schema in an empty file that nobody else knows of, in one transaction."""
    # Both must be said before the first page is written. Smaller pages would leave a quarter of their room empty
    # between results of 1 KB; the vacuum lets free pages be given back. Saying so is itself a write, so that it stands
    # in the transaction, first in it, which begins without a lock: taking one writes the first page.
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    with Transaction(connection, "BEGIN"):
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        for statement in statements(script("schema.sql") + script(_STABLE_VIEWS)):
            connection.execute(statement)
        name_types(connection)
        made = datetime.now(UTC).isoformat(timespec="seconds")
        connection.executemany(
            _Q["insert_fact"], [("made_at", made), ("made_with_schema", str(version)), ("id", os.urandom(8).hex())]
        )
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def name_types(connection: sqlite3.Connection) -> None:
    """Event types may be added without a change of schema: keep their names for those who read by hand."""
    if connection.execute(_Q["count_types"]).fetchone()[0] < len(JOURNALED):
        connection.executemany(_Q["insert_type"], [(code, kind.type) for code, kind in enumerate(JOURNALED, 1)])


def schema_version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def migrate(connection: sqlite3.Connection, path: Path, clock: Clock, steps: Sequence[Migration]) -> None:
    """Apply the steps the database has not seen. A kill leaves it at a whole version; the next open goes on."""
    with Transaction(connection):
        found = schema_version(connection)
        if found >= len(steps):
            return
        _refuse_live(connection, path, clock)
        _back_up(path, found)
    for step in steps[found:]:
        with Transaction(connection):
            if schema_version(connection) >= step.number:
                continue
            _refuse_live(connection, path, clock)
            # Views are made anew on top of each step, so that no step has to carry them along.
            for (view,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'view'").fetchall():
                connection.execute(f'DROP VIEW "{view}"')
            for statement in (*statements(step.sql), *statements(script(_STABLE_VIEWS))):
                connection.execute(statement)
            name_types(connection)
            connection.execute(f"PRAGMA user_version = {step.number}")
            crashpoints.reach("migrate.inside")


def _refuse_live(connection: sqlite3.Connection, path: Path, clock: Clock) -> None:
    for workflow_id, *columns in connection.execute(_Q["held_leases"]).fetchall():
        holder = live_holder(clock, StoredLease(*columns))
        if holder is not None:
            raise StoreUnavailableError(
                f"{path} has an older schema, and {holder} drives run {workflow_id} on it",
                next_step="Wait for it to end, or pause it, and try again. Nothing was changed.",
            )


def backup_path(path: Path, version: int) -> Path:
    return path.with_name(f"{path.name}.backup-v{version}")


def _back_up(path: Path, version: int) -> None:
    """A copy of what is committed, private, complete or absent. The caller holds the write lock."""
    final = backup_path(path, version)
    partial = make_private(final)
    source, target = sqlite3.connect(path), sqlite3.connect(partial)
    try:
        source.backup(target)
        target.close()
        os.replace(partial, final)
    finally:
        target.close()
        source.close()
        remove_database(partial)
