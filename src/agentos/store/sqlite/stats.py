"""What a database file holds, and whether it is whole. Opens read-only, changes nothing."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from agentos.ids import WorkflowId
from agentos.store.sqlfiles import migrations, queries
from agentos.store.sqlite.database import connect_readonly, open_store
from agentos.store.sqlite.driver import BUSY_S, insist
from agentos.store.sqlite.leases import Clock, StoredLease, live_holder
from agentos.store.sqlite.migrations import backup_path, schema_version
from agentos.store.stats import DatabaseSize, DatabaseStats, HeldLease, PendingMigrations, RunSize

_Q = queries("stats.sql")
T = TypeVar("T")


def size_up(path: Path) -> DatabaseSize:
    """The database at a glance."""
    open_store(path, create=False, readonly=True).close()  # refuses what is not ours

    def read(connection: sqlite3.Connection) -> DatabaseSize:
        [runs] = connection.execute(_Q["count"]).fetchone()
        return DatabaseSize(
            bytes=_size(path) + _size(Path(f"{path}-wal")),
            schema=schema_version(connection),
            known_schema=len(migrations()),
            runs=runs,
        )

    return _query(path, read)


def measure(path: Path, *, keep: int) -> DatabaseStats:
    """The database in numbers. Reads every page once."""
    with closing(open_store(path, create=False, readonly=True)) as store:
        statuses = {record.workflow_id: str(record.status) for record in store.list_runs()}

    def read(connection: sqlite3.Connection) -> DatabaseStats:
        page: int = connection.execute("PRAGMA page_size").fetchone()[0]
        free: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
        blobs, blob_bytes = connection.execute(_Q["blobs"]).fetchone()
        return DatabaseStats(
            file_bytes=_size(path),
            log_bytes=_size(Path(f"{path}-wal")),
            schema=schema_version(connection),
            known_schema=len(migrations()),
            free_bytes=page * free,
            blobs=blobs,
            blob_bytes=blob_bytes,
            tables=_tables(connection),
            runs=tuple(
                RunSize(
                    workflow_id=id_,
                    name=name,
                    status=statuses.get(WorkflowId(id_), "new"),
                    events=events,
                    checkpoints=cuts,
                    prunable=connection.execute(_Q["prunable"], (no, keep)).fetchone()[0] if keep else 0,
                    bytes=size,
                )
                for no, id_, name, events, cuts, size in connection.execute(_Q["runs"]).fetchall()
            ),
        )

    return _query(path, read)


def damage(path: Path, *, thorough: bool = False) -> list[str]:
    """What SQLite finds wrong with the file itself; nothing where it is whole."""
    pragma = "PRAGMA integrity_check(20)" if thorough else "PRAGMA quick_check(20)"
    found = _query(path, lambda connection: [str(row[0]) for row in connection.execute(pragma)])
    return [] if found == ["ok"] else found


def pending_migrations(path: Path) -> PendingMigrations:
    """The steps between the database and the schema this AgentOS writes."""
    found, known = _query(path, schema_version), migrations()
    return PendingMigrations(
        found=found,
        known=len(known),
        steps=tuple(step.name for step in known if step.number > found),
        backup=str(backup_path(path, found)),
    )


def held_leases(path: Path) -> list[HeldLease]:
    """Every lease that somebody took and nobody let go."""

    def read(connection: sqlite3.Connection) -> list[HeldLease]:
        clock, found = Clock(), []
        for workflow_id, *columns in connection.execute(queries()["held_leases"]).fetchall():
            lease = StoredLease(*columns)
            holder = lease.decode_holder()
            if holder is not None:
                live = live_holder(clock, lease) is not None
                found.append(HeldLease(workflow_id=workflow_id, holder=holder, live=live))
        return found

    return _query(path, read)


def _query(path: Path, question: Callable[[sqlite3.Connection], T]) -> T:
    with closing(connect_readonly(path)) as connection:
        return insist(lambda: question(connection), path, BUSY_S)


def _tables(connection: sqlite3.Connection) -> dict[str, int]:
    try:
        return dict(connection.execute(_Q["tables"]).fetchall())
    except sqlite3.OperationalError:  # built without the dbstat table
        return {}


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
