"""A database in numbers, the same for every store."""

from __future__ import annotations

from typing import Protocol

import msgspec

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


class Statistics(Protocol):
    """The module `stats` of a store: questions about a database. They only read; `scope` says whose runs are meant."""

    def size_up(self, database: str, scope: Scope | None) -> DatabaseSize:
        """The database at a glance."""

    def measure(self, database: str, scope: Scope | None, *, keep: int) -> DatabaseStats:
        """The database in numbers."""

    def pending_migrations(self, database: str) -> PendingMigrations:
        """The steps between the database and the schema this AgentOS writes."""

    def held_leases(self, database: str, scope: Scope | None) -> list[HeldLease]:
        """Every lease that somebody took and nobody let go."""

    def damage(self, database: str, *, thorough: bool = False) -> list[str]:
        """What is wrong with its files; nothing where they are whole, or a server looks after them."""
