"""A database in numbers, the same for every store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple, Protocol

import msgspec

from agentos.store.codec import from_microseconds
from agentos.store.journal_reader import QUEUED, shown_status
from agentos.store.port import Holder, Scope


class RunSize(msgspec.Struct, frozen=True, kw_only=True):
    """What one run takes."""

    workflow_id: str
    name: str
    """Its workflow."""
    status: str
    events: int
    checkpoints: int
    prunable: int
    """Checkpoints that `agentos prune` would delete."""
    bytes: int
    """Events, plans and large outputs; an output that runs share counts for each."""


class DatabaseSize(msgspec.Struct, frozen=True, kw_only=True):
    """A database at a glance: what can be told without reading its runs."""

    bytes: int
    """Of the file with its log, or of our tables with their indexes."""
    schema: int
    known_schema: int
    """The schema this AgentOS writes: a lower `schema` is migrated by the next command that writes."""
    runs: int
    """How many are kept; on a server, of the worktree."""
    events: int
    """In all of it; on a server, of every worktree."""
    pooled: bool = False
    """Whether a pooler stands before the server."""


class DatabaseStats(msgspec.Struct, frozen=True, kw_only=True):
    """A database in numbers."""

    file_bytes: int
    """Of the file, or of our tables with their indexes."""
    log_bytes: int
    """The write-ahead log, which is folded into the file by and by; a server's is not ours to count."""
    schema: int
    known_schema: int
    """The schema this AgentOS writes: a lower `schema` is migrated by the next command that writes."""
    free_bytes: int
    """Pages inside the file that hold nothing; given back when runs are deleted."""
    blobs: int
    blob_bytes: int
    tables: dict[str, int]
    """Bytes of each table with its indexes; empty where this SQLite cannot tell."""
    runs: tuple[RunSize, ...]
    """Largest first."""


class PendingMigrations(msgspec.Struct, frozen=True, kw_only=True):
    """What a writing open would do to the schema."""

    found: int
    known: int
    steps: tuple[str, ...]
    backup: str
    """Where the copy is put that is made before the first step; empty on a server: its steps are one transaction."""


class HeldLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that was not let go; `live` while its holder drives the run."""

    workflow_id: str
    holder: Holder
    live: bool


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to do, as counts: told without reading a journal, for who asks often."""

    runs: dict[str, int]
    """How many are in each status, as lists show it."""
    due: dict[str, int]
    """By queue, how many a worker may take now. The empty name is that of no queue."""
    oldest_due: datetime | None = None
    """When the oldest of those began."""
    leases: int = 0
    """How many runs are driven."""
    overdue_s: float = 0.0
    """For how long the lease has been over that nobody took up for longest. 0 where there is none."""


class HeldRun(NamedTuple):
    """A run whose lease was not let go."""

    status: str
    is_workflow: bool
    queue: str
    created_at: int
    live: bool
    overdue_s: float


def make_workload(
    statuses: Iterable[tuple[str, int]],
    undriven: Iterable[tuple[str, bool, str, int, int]],
    held: Iterable[HeldRun],
) -> Workload:
    """Counts of stored statuses made those that lists show; `undriven`: status, kind, queue, how many, the oldest."""
    runs: Counter[str] = Counter()
    for status, number in statuses:
        runs[shown_status(status, is_driven=True)] += number
    rows = list(held)
    loose = [*undriven, *((one.status, one.is_workflow, one.queue, 1, one.created_at) for one in rows if not one.live)]
    due, begun = Counter({"": 0}), []
    for status, is_workflow, queue, number, oldest in loose:
        shown = shown_status(status, is_driven=False)
        runs[shown_status(status, is_driven=True)] -= number
        runs[shown] += number
        if (shown == "interrupted" and is_workflow) or status == QUEUED:
            due[queue] += number
            begun.append(oldest)
    return Workload(
        runs={status: number for status, number in runs.items() if number > 0},
        due=dict(due),
        oldest_due=from_microseconds(min(begun)) if begun else None,
        leases=sum(one.live for one in rows),
        overdue_s=max([0.0, *(one.overdue_s for one in rows if not one.live)]),
    )


class Statistics(Protocol):
    """The module `stats` of a store: questions about a database. They only read; `scope` says whose runs are meant."""

    def size_up(self, database: str, scope: Scope | None) -> DatabaseSize:
        """The database at a glance."""

    def measure(self, database: str, scope: Scope | None, *, keep: int) -> DatabaseStats:
        """The database in numbers."""

    def workload(self, database: str, scope: Scope | None) -> Workload:
        """What there is to do: one query of an index, and the runs that are under way."""

    def pending_migrations(self, database: str) -> PendingMigrations:
        """The steps between the database and the schema this AgentOS writes."""

    def held_leases(self, database: str, scope: Scope | None) -> list[HeldLease]:
        """Every lease that somebody took and nobody let go."""

    def damage(self, database: str, *, thorough: bool = False) -> list[str]:
        """What is wrong with its files; nothing where they are whole, or a server looks after them."""
