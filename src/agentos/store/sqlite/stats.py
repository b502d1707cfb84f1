"""What a database file holds, and whether it is whole. Opens read-only, changes nothing. As `store.stats` says."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from agentos.ids import WorkflowId
from agentos.store.holder import decode_holder
from agentos.store.port import PATIENCE_S, Scope
from agentos.store.sqlfiles import migrations, queries
from agentos.store.sqlite.database import connect_readonly, open_store
from agentos.store.sqlite.driver import insist
from agentos.store.sqlite.leases import Clock, StoredLease, live_holder
from agentos.store.sqlite.live import file_size
from agentos.store.sqlite.migrations import backup_path, schema_version
from agentos.store.stats import (
    DatabaseSize,
    DatabaseStats,
    HeldLease,
    HeldRun,
    PendingMigrations,
    RunSize,
    Workload,
    make_workload,
)

_Q = queries("stats.sql")
T = TypeVar("T")


def size_up(database: str, scope: Scope | None) -> DatabaseSize:
    open_store(database, create=False, readonly=True).close()  # refuses what is not ours

    def read(connection: sqlite3.Connection) -> DatabaseSize:
        runs, events = connection.execute(_Q["count"]).fetchone()
        return DatabaseSize(
            bytes=file_size(database) + file_size(f"{database}-wal"),
            schema=schema_version(connection),
            known_schema=len(migrations()),
            runs=runs,
            events=events,
        )

    return _query(database, read)


def measure(database: str, scope: Scope | None, *, keep: int) -> DatabaseStats:
    """Reads every page once."""
    with closing(open_store(database, create=False, readonly=True)) as store:
        statuses = {record.workflow_id: str(record.status) for record in store.list_runs()}

    def read(connection: sqlite3.Connection) -> DatabaseStats:
        page: int = connection.execute("PRAGMA page_size").fetchone()[0]
        free: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
        blobs, blob_bytes = connection.execute(_Q["blobs"]).fetchone()
        try:
            tables = dict(connection.execute(_Q["tables"]).fetchall())
        except sqlite3.OperationalError:  # built without the dbstat table
            tables = {}
        return DatabaseStats(
            file_bytes=file_size(database),
            log_bytes=file_size(f"{database}-wal"),
            schema=schema_version(connection),
            known_schema=len(migrations()),
            free_bytes=page * free,
            blobs=blobs,
            blob_bytes=blob_bytes,
            tables=tables,
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

    return _query(database, read)


def workload(database: str, scope: Scope | None) -> Workload:
    def read(connection: sqlite3.Connection) -> Workload:
        clock = Clock()
        held = [
            HeldRun(
                status=status,
                is_workflow=bool(is_workflow),
                queue=queue,
                created_at=created_at,
                live=live_holder(clock, StoredLease(*lease)) is not None,
                overdue_s=clock.wall() - lease[-1] / 1_000_000,
            )
            for status, is_workflow, queue, created_at, *lease in connection.execute(_Q["held"])
        ]
        undriven = connection.execute(_Q["undriven"], (int(clock.wall() * 1_000_000),))
        return make_workload(connection.execute(_Q["statuses"]), undriven, held)

    return _query(database, read)


def damage(database: str, *, thorough: bool = False) -> list[str]:
    pragma = "PRAGMA integrity_check(20)" if thorough else "PRAGMA quick_check(20)"
    found = _query(database, lambda connection: [str(row[0]) for row in connection.execute(pragma)])
    return [] if found == ["ok"] else found


def pending_migrations(database: str) -> PendingMigrations:
    found, known = _query(database, schema_version), migrations()
    return PendingMigrations(
        found=found,
        known=len(known),
        steps=tuple(step.name for step in known if step.number > found),
        backup=str(backup_path(Path(database), found)),
    )


def held_leases(database: str, scope: Scope | None) -> list[HeldLease]:
    def read(connection: sqlite3.Connection) -> list[HeldLease]:
        clock, rows = Clock(), connection.execute(queries()["held_leases"]).fetchall()
        return [
            HeldLease(
                workflow_id=workflow_id,
                holder=decode_holder(holder),
                live=live_holder(clock, StoredLease(holder, *more)) is not None,
            )
            for workflow_id, holder, *more in rows
        ]

    return _query(database, read)


def _query(database: str, question: Callable[[sqlite3.Connection], T]) -> T:
    path = Path(database)
    with closing(connect_readonly(path)) as connection:
        return insist(lambda: question(connection), path, PATIENCE_S)
