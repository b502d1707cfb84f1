"""What a schema holds. Opens read-only, changes nothing. As `store.stats` says."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from agentos.store.holder import decode_holder
from agentos.store.port import Scope
from agentos.store.postgres import leases, migrations
from agentos.store.postgres.address import read_address
from agentos.store.postgres.database import open_store
from agentos.store.postgres.pool import QuerySession
from agentos.store.sqlfiles import queries
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

_Q = queries("postgres/stats.sql")


def size_up(url: str, scope: Scope | None) -> DatabaseSize:
    address = read_address(url)
    with closing(open_store(url, create=False, readonly=True, scope=scope)) as store:

        def read(session: QuerySession) -> DatabaseSize:
            runs, events = _ask(session, "count", store.scopes(session))[0]
            return DatabaseSize(
                bytes=sum(size for _, size in _ask(session, "tables", address.schema)),
                schema=migrations.found_version(session, address),
                known_schema=len(migrations.known_migrations()),
                runs=runs,
                events=events,
                pooled=not session.connection.is_session,
            )

        return store.ask(read)


def measure(url: str, scope: Scope | None, *, keep: int) -> DatabaseStats:
    schema = read_address(url).schema
    with closing(open_store(url, create=False, readonly=True, scope=scope)) as store:
        statuses = {record.workflow_id: str(record.status) for record in store.list_runs()}

        def read(session: QuerySession) -> DatabaseStats:
            scopes = store.scopes(session)
            tables = {name: size for name, size in _ask(session, "tables", schema)}  # noqa: C416 (typed)
            [(blobs, blob_bytes)] = _ask(session, "blobs")
            rows = _ask(session, "runs", keep, list(statuses), scopes)
            return DatabaseStats(
                file_bytes=sum(tables.values()),
                log_bytes=0,
                schema=migrations.found_version(session, read_address(url)),
                known_schema=len(migrations.known_migrations()),
                free_bytes=0,
                blobs=blobs,
                blob_bytes=blob_bytes,
                tables=tables,
                runs=tuple(
                    RunSize(
                        workflow_id=id_,
                        name=name,
                        status=statuses[id_],
                        events=events,
                        checkpoints=cuts,
                        prunable=prunable,
                        bytes=size,
                    )
                    for id_, name, events, cuts, size, prunable in rows
                ),
            )

        return store.ask(read)


def workload(url: str, scope: Scope | None) -> Workload:
    with closing(open_store(url, create=False, readonly=True, scope=scope)) as store:

        def read(session: QuerySession) -> Workload:
            scopes = store.scopes(session)
            held = [
                HeldRun(
                    status=status,
                    is_workflow=is_workflow,
                    queue=queue,
                    created_at=created_at,
                    live=leases.live_holder(holder, current) is not None,
                    overdue_s=overdue_s,
                )
                for status, is_workflow, queue, created_at, holder, current, overdue_s in _ask(session, "held", scopes)
            ]
            statuses: list[Any] = _ask(session, "statuses", scopes)
            undriven: list[Any] = _ask(session, "undriven", scopes)
            return make_workload(statuses, undriven, held)

        return store.ask(read)


def _ask(session: QuerySession, name: str, *arguments: Any) -> list[tuple[Any, ...]]:
    return session.connection.execute(session.statements.complete(_Q[name]), arguments).fetchall()


def pending_migrations(url: str) -> PendingMigrations:
    address, known = read_address(url), migrations.known_migrations()
    with closing(open_store(url, create=False, readonly=True, scope=None)) as store:
        found = store.ask(lambda session: migrations.found_version(session, address))
    steps = tuple(step.name for step in known if step.number > found)
    return PendingMigrations(found=found, known=len(known), steps=steps, backup="")


def held_leases(url: str, scope: Scope | None) -> list[HeldLease]:
    with closing(open_store(url, create=False, readonly=True, scope=scope)) as store:
        rows = store.ask(lambda session: session.rows("held_leases", store.scopes(session)))
    return [
        HeldLease(
            workflow_id=workflow_id,
            holder=decode_holder(stored),
            live=leases.live_holder(stored, current) is not None,
        )
        for workflow_id, stored, current in rows
    ]


def damage(url: str, *, thorough: bool = False) -> list[str]:
    return []  # a server looks after its own files
