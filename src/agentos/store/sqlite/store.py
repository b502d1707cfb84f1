"""The SQLite store: the verbs of the port on one connection. `open_store` (database.py) makes one."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

from agentos import crashpoints
from agentos.exceptions import (
    AgentosError,
    CheckpointCutError,
    DatabaseGoneError,
    LeaseLostError,
    NewerSchemaError,
    RunNotFoundError,
    RunRefusedError,
)
from agentos.ids import WorkflowId
from agentos.machine.events import Checkpointed, Event, RolledBack
from agentos.store import codec, journal_reader
from agentos.store.holder import encode_holder
from agentos.store.journal_reader import JournalHead, JournalReader, Queries, RunReader
from agentos.store.port import (
    Durability,
    Holder,
    Lease,
    NewRun,
    PostedCommand,
    Progress,
    RunCopy,
    RunRecord,
    RunStatus,
    Scope,
)
from agentos.store.sqlfiles import queries
from agentos.store.sqlite import leases
from agentos.store.sqlite.driver import BUSY_TIMEOUT_S, verb
from agentos.store.sqlite.leases import Clock, StoredLease
from agentos.store.sqlite.live import LiveConnection, Reading, Writing, file_size
from agentos.values import encode_value

T = TypeVar("T")
_Q = queries()
_ADVANCE, _SET_STATUS, _INSERT_EVENT = _Q["advance_run"], _Q["set_status"], _Q["insert_event"]


class SqliteStore(RunReader):
    """One connection. Any thread may use it, one at a time; a heartbeat thread opens a store of its own."""

    def __init__(
        self,
        live: LiveConnection,
        *,
        durability: Durability,
        schema_version: int,
        blob_limit: int,
        busy_s: float,
        clock: Clock,
    ) -> None:
        self.live = live
        self.path = live.path
        self.durability: Durability = durability
        self.busy_s = busy_s
        self._schema_version = schema_version
        self._blob_limit = blob_limit
        self._clock = clock
        self._writing = Writing(live)
        self._reading = Reading(live)
        self._queries = _SqliteQueries(live)
        self._journal = JournalReader(self._queries)
        self._heads: dict[WorkflowId, JournalHead] = {}
        self._seen_moves = 0
        self._data_version = self._read_data_version()

    @property
    def _connection(self) -> sqlite3.Connection:
        return self.live.get()

    # --- runs and leases ------------------------------------------------------------------------------------------

    @verb
    def create_run(self, run: NewRun, holder: Holder, lease_s: float) -> Lease:
        crashpoints.reach("lease.before")
        digest = codec.first_digest(run.workflow_id)
        lease = (encode_holder(holder), *leases.expiry(self._clock, lease_s))
        at = codec.to_microseconds(run.created_at)
        named = (run.workflow_id, run.name, run.kind, digest, 1 if run.plan else 0)
        with self._writing:
            self._check_schema()
            values = (*named, *lease, at, at, *journal_reader.origin_columns(run))
            inserted = self._connection.execute(_Q["insert_run"], values)
            if inserted.rowcount == 1 and inserted.lastrowid is not None:
                no: int = inserted.lastrowid
                if run.plan:
                    self._insert_plan(no, run.workflow_id, 1, run.plan)
            else:
                # It may have been made by this call before that had to be repeated, where that was kept.
                made = (run.workflow_id, lease[0], at)
                found = self._connection.execute(_Q["find_created"], made).fetchone() if self.live.moves else None
                if found is None:
                    raise RunRefusedError(
                        f"run {run.workflow_id!r} exists already", next_step="Resume it, or choose another id."
                    )
                no = found[0]
            crashpoints.reach("create.inside")
        self._heads[run.workflow_id] = JournalHead(no, 0, digest)
        crashpoints.reach("lease.after")
        return Lease(workflow_id=run.workflow_id, token=1, lease_s=lease_s)

    @verb
    def take_lease(self, workflow_id: WorkflowId, holder: Holder, lease_s: float) -> Lease:
        crashpoints.reach("lease.before")
        with self._writing:
            self._check_schema()
            taken = leases.take(self._connection, self._clock, workflow_id, holder, lease_s)
        if taken is None:
            raise RunNotFoundError(workflow_id)
        lease, self._heads[workflow_id] = taken
        crashpoints.reach("lease.after")
        return lease

    @verb
    def renew_lease(self, lease: Lease) -> None:
        until = leases.expiry(self._clock, lease.lease_s)
        with self._writing:
            renewed = self._connection.execute(_Q["renew_lease"], (*until, lease.workflow_id, lease.token))
        if renewed.rowcount != 1:
            raise self._lost_lease_error(lease.workflow_id)

    @verb
    def release_lease(self, lease: Lease) -> None:
        with self._writing:
            self._connection.execute(_Q["release_lease"], (lease.workflow_id, lease.token))
        self._heads.pop(lease.workflow_id, None)
        self.live.look_around()

    @verb
    def move_run(self, lease: Lease, root: str, host: str, scope: Scope) -> None:
        with self._writing:
            moved = self._connection.execute(_Q["move_run"], (root, host, lease.workflow_id, lease.token))
        if moved.rowcount != 1:
            raise LeaseLostError(lease.workflow_id)

    def set_source(self, lease: Lease, source: str) -> None:
        with self._writing:
            written = self._connection.execute(_Q["set_source"], (source, lease.workflow_id, lease.token))
        if written.rowcount != 1:
            raise LeaseLostError(lease.workflow_id)

    def _lost_lease_error(self, workflow_id: WorkflowId) -> AgentosError:
        """Why the run is not this store's to write any more."""
        if self.live.moves and self._journal.find_head(workflow_id) is None:
            return self._replaced_error(workflow_id)
        return LeaseLostError(workflow_id)

    def _replaced_error(self, workflow_id: WorkflowId) -> DatabaseGoneError:
        return DatabaseGoneError(
            f"the database {self.path} was replaced while run {workflow_id} was driven, and the one that is there now "
            "does not have what was written of it",
            next_step="Nothing was written over it. Put the database back from a copy, and resume the run there; or "
            "begin the run anew.",
        )

    def _check_schema(self) -> None:
        # A migration may have run since this store was opened; it waits for live leases, so none may begin now.
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version != self._schema_version:
            raise NewerSchemaError(
                f"{self.path} was migrated to schema {version} by another version of AgentOS", next_step=codec.NEWER
            )

    # --- the journal ----------------------------------------------------------------------------------------------

    def append(
        self,
        lease: Lease,
        events: Sequence[Event],
        progress: Progress,
        *,
        plan: bytes | None = None,
        consumed: Iterable[str] = (),
    ) -> None:
        crashpoints.reach("commit.before")
        self._append(lease, events, progress, plan, tuple(consumed))
        crashpoints.reach("commit.after")

    def open_line(self) -> None:
        return None  # a commit waits for the disk

    @verb
    def _append(
        self, lease: Lease, events: Sequence[Event], progress: Progress, plan: bytes | None, consumed: tuple[str, ...]
    ) -> None:
        workflow_id = lease.workflow_id
        head = self._head_before(workflow_id, events)
        rows, blobs = codec.encode_events(events, head.digest, blob_limit=self._blob_limit)
        at = rows[-1].at if rows else int(time.time() * 1_000_000)
        after = JournalHead(head.no, rows[-1].seq, rows[-1].digest) if rows else head
        if self._seen_moves != self.live.moves:
            head = self._find_again({**self._heads, workflow_id: head}, workflow_id, after)
            if rows and head[1:] == after[1:]:
                return  # what was put back has it already
            after = after._replace(no=head.no)
        state = (progress.layer, progress.layers, progress.epoch, at)
        run = self._connection
        with self._writing:
            fence = (head.no, lease.token, head.sequence)
            if run.execute(_ADVANCE, (after.sequence, after.digest, *state, *fence)).rowcount != 1:
                self._heads.pop(workflow_id, None)
                raise LeaseLostError(workflow_id)
            run.execute(_SET_STATUS, (head.no, progress.status))
            if blobs:
                run.executemany(
                    _Q["insert_blob"], [(head.no, digest, len(body), body) for digest, body in blobs.items()]
                )
            run.executemany(_INSERT_EVENT, [(head.no, *row) for row in rows])
            self._follow_up(head.no, events, rows)
            if plan is not None:
                [revision] = run.execute(_Q["next_plan"], (head.no,)).fetchone()
                self._insert_plan(head.no, workflow_id, revision, plan)
            if consumed:
                run.executemany(_Q["consume_command"], [(at, head.no, command) for command in consumed])
            crashpoints.reach("commit.inside")
        self._heads[workflow_id] = after

    def _find_again(
        self, known: dict[WorkflowId, JournalHead], workflow_id: WorkflowId, after: JournalHead
    ) -> JournalHead:
        """The head of a run in the file where the database is now, which must be that of the file where it was."""
        found: dict[WorkflowId, JournalHead] = {}
        for each, head in known.items():
            there = self._journal.find_head(each)
            if there is None or not (there[1:] == head[1:] or (each == workflow_id and there[1:] == after[1:])):
                raise self._replaced_error(each)
            found[each] = there
        self._heads, self._seen_moves = found, self.live.moves
        return found[workflow_id]

    def _head_before(self, workflow_id: WorkflowId, events: Sequence[Event]) -> JournalHead:
        head = self._heads.get(workflow_id)
        if head is None or (events and events[0].seq != head.sequence + 1):
            head = self._journal.find_head(workflow_id)
        if head is None or (events and events[0].seq != head.sequence + 1):
            raise self._lost_lease_error(workflow_id)
        return head

    def _follow_up(self, no: int, events: Sequence[Event], rows: Sequence[codec.EventRow]) -> None:
        """Checkpoint rows for the cuts among the events, and which of them a rollback leaves behind."""
        for event, row in zip(events, rows, strict=True):
            if isinstance(event, Checkpointed):
                cut = (event.checkpoint_id, no, row.seq, event.layer, row.at, row.digest, event.snapshot)
                try:
                    self._connection.execute(_Q["insert_checkpoint"], cut)
                except sqlite3.IntegrityError as error:
                    raise CheckpointCutError(
                        f"checkpoint of layer {event.layer + 1} cannot be written: {error}",
                        next_step="The run goes on without it, unless checkpoints are strict.",
                    ) from error
            elif isinstance(event, RolledBack):
                self._connection.execute(_Q["abandon_checkpoints"], (no, event.to_seq, row.seq))

    def _insert_plan(self, no: int, workflow_id: WorkflowId, revision: int, body: bytes) -> None:
        digest = codec.plan_digest(workflow_id, revision, body)
        self._connection.execute(_Q["insert_plan"], (no, revision, body, digest))

    @verb
    def read_events(
        self, workflow_id: WorkflowId, *, after: int = 0, upto: int | None = None, whole: bool = True
    ) -> list[Event]:
        with self._reading:
            return self._journal.events(workflow_id, after, upto, whole=whole)

    @verb
    def look(self, question: Callable[[Queries], T]) -> T:
        return question(self._queries)

    @verb
    def look_at_once(self, question: Callable[[Queries], T]) -> T:
        with self._reading:
            return question(self._queries)

    @verb
    def insert_copy(self, copy: RunCopy) -> None:
        with self._writing:
            self._check_schema()
            journal_reader.insert_copy(self._queries, copy)
            self._journal.verify(copy.run.workflow_id)

    # --- what is there --------------------------------------------------------------------------------------------

    def record_from(self, row: Sequence[Any]) -> RunRecord:
        lease = StoredLease(*row[9:13])
        holder = leases.live_holder(self._clock, lease)
        return journal_reader.run_record(row[:9], row[13:], holder=holder, lease_until=lease.until)

    @verb
    def list_runs(
        self, *, statuses: Collection[RunStatus] = (), labels: Collection[str] = (), limit: int | None = None
    ) -> list[RunRecord]:
        asked = journal_reader.askable_labels(labels)
        if labels and not asked:
            return []
        encoded = journal_reader.encoded_labels(asked)
        if not statuses:
            rows: Iterable[tuple[Any, ...]] = self._connection.execute(_Q["list_runs"], (encoded,))
        else:
            # Rows as they are asked for, newest first: each stored status is in order, and so is what is made of them.
            stored = journal_reader.stored_statuses(statuses)
            each = [self._connection.execute(_Q["list_runs_in"], (encoded, status)) for status in stored]
            merged = merge(*each, key=lambda row: (row[13], row[-1]), reverse=True)
            rows = (row[:-1] for row in merged)
        found = map(self.record_from, rows)
        return list(islice((one for one in found if not statuses or one.status in statuses), limit))

    # --- the inbox ------------------------------------------------------------------------------------------------

    @verb
    def post_command(self, workflow_id: WorkflowId, command: PostedCommand) -> None:
        body = encode_value(command.command)
        at = codec.to_microseconds(command.posted_at)
        with self._writing:
            self._journal.head(workflow_id)
            posted = (workflow_id, command.id, at, command.author, command.attempt_id, body)
            self._connection.execute(_Q["insert_command"], posted)

    @verb
    def read_inbox(self, workflow_id: WorkflowId) -> list[PostedCommand]:
        rows = self._connection.execute(_Q["read_inbox"], (workflow_id,)).fetchall()
        return [journal_reader.posted_command(row) for row in rows]

    # --- housekeeping ---------------------------------------------------------------------------------------------

    @verb
    def prune(self, workflow_id: WorkflowId, keep: int) -> int:
        if keep < 1:
            raise AgentosError(f"cannot keep {keep} checkpoints", next_step="Keep at least 1: the run resumes from it.")
        known = self._heads.get(workflow_id) if self._seen_moves == self.live.moves else None
        no = (known or self._journal.head(workflow_id)).no
        if self._connection.execute(_Q["count_checkpoints"], (no,)).fetchone()[0] <= keep:
            return 0
        # Not worth waiting for the disk: what a power failure brings back is pruned again.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        try:
            with self._writing:
                deleted = self._connection.execute(_Q["prune_checkpoints"], (no, keep)).rowcount
                crashpoints.reach("prune.inside")
        finally:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if self.durability == 'full' else 'NORMAL'}")
        return deleted

    def delete_run(self, lease: Lease) -> None:
        self._delete(lease)
        self._heads.pop(lease.workflow_id, None)
        self._give_back()

    @verb
    def _delete(self, lease: Lease) -> None:
        with self._writing:
            row = self._connection.execute(_Q["fence_delete"], (lease.workflow_id, lease.token)).fetchone()
            if row is None:
                raise LeaseLostError(lease.workflow_id)
            for name in ("blobs", "events", "plans", "checkpoints", "inbox", "run"):
                self._connection.execute(_Q[f"delete_{name}"], row)

    @verb
    def _give_back(self) -> None:
        # Not `execute`, which takes one step, and so gives back one page.
        locks = self.live.locks
        turn = locks.take_turn(BUSY_TIMEOUT_S)
        try:
            self._connection.executescript("PRAGMA incremental_vacuum")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self.live.files.accept_sizes()
        finally:
            locks.end_turn(turn)

    @verb
    def has_changed(self) -> bool:
        self.live.look_around()
        before, self._data_version = self._data_version, self._read_data_version()
        return before != self._data_version

    def _read_data_version(self) -> int:
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version

    def size(self) -> int:
        return sum(file_size(f"{self.path}{end}") for end in ("", "-wal", "-shm"))

    def close(self) -> None:
        self.live.close()


class _SqliteQueries:
    """The queries of queries.sql on one connection."""

    def __init__(self, live: LiveConnection) -> None:
        self._live = live

    def rows(self, name: str, *arguments: Any) -> Iterable[tuple[Any, ...]]:
        return self._live.get().execute(_Q[name], arguments)

    def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        self._live.get().executemany(_Q[name], arguments)
