"""The SQLite store: the verbs of the port on one connection. `open_store` (database.py) makes one."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from heapq import merge
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

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
from agentos.store.journal_reader import (
    PRUNED_AT_ONCE,
    JournalHead,
    JournalReader,
    Queries,
    RunReader,
    batches,
    keeps_too_few,
    listed_as,
)
from agentos.store.port import (
    Durability,
    Holder,
    Lease,
    NewRun,
    PostedCommand,
    Progress,
    PrunedRun,
    RunCopy,
    RunFilter,
    RunMark,
    RunRecord,
    RunStatus,
    ScheduleRecord,
    Scope,
    TakenRun,
    Waiting,
)
from agentos.store.run_lists import LISTS_SINCE, UNLISTED, UNWRITTEN, Listed, has_fewer_under_way
from agentos.store.run_queue import Candidate, waiting_from
from agentos.store.schedule_rows import plan_of_schedule, schedule_columns, schedule_record
from agentos.store.sqlfiles import queries
from agentos.store.sqlite import leases
from agentos.store.sqlite.driver import BUSY_TIMEOUT_S, verb
from agentos.store.sqlite.leases import Clock, StoredLease
from agentos.store.sqlite.live import LiveConnection, Reading, Writing, file_size
from agentos.values import encode_value

if TYPE_CHECKING:
    from agentos.store.graph_threads import GraphTables

T = TypeVar("T")
_Q = queries()
_PARTS = ("blobs", "events", "plans", "checkpoints", "inbox", "label", "question", "task_left", "run")
"""What there is of a run, in the order in which it is deleted."""
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
        self._listed: dict[WorkflowId, Listed] = {}
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
            values = (*named, *lease, at, at, *journal_reader.origin_columns(run), *self._claim_slot(run))
            inserted = self._connection.execute(_Q["insert_run"], values)
            if inserted.rowcount == 1 and inserted.lastrowid is not None:
                no: int = inserted.lastrowid
                if run.plan:
                    self._insert_plan(no, run.workflow_id, 1, run.plan)
                self._connection.executemany(_Q["insert_label"], [(label, at, no) for label in run.labels])
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
        self._listed[run.workflow_id] = UNWRITTEN
        crashpoints.reach("lease.after")
        return Lease(workflow_id=run.workflow_id, token=1, lease_s=lease_s)

    def _claim_slot(self, run: NewRun) -> tuple[str | None, int | None, int | None]:
        """limit_key, run_limit and slot of a run that is driven from the start."""
        if run.limit is None:
            return None, None, None
        key, limit = run.limit.key, run.limit.limit
        slots = leases.held_slots(self._connection, self._clock, key, frees=True)
        return key, limit, slots.must_claim(key, limit)

    @verb
    def submit_run(self, run: NewRun, waiting: Waiting, *, refuse_full: bool = False) -> None:
        crashpoints.reach("submit.before")
        with self._writing:
            self._check_schema()
            if run.limit is not None and refuse_full:
                slots = leases.held_slots(self._connection, self._clock, run.limit.key, frees=False)
                queued = self._connection.execute(_Q["queued_of_limit"], (run.limit.key,)).fetchall()
                slots.refuse_full(run.limit.key, run.limit.limit, [id_ for (id_,) in queued])
            if not self._insert_submitted(run, waiting):
                raise RunRefusedError(
                    f"run {run.workflow_id!r} exists already", next_step="Resume it, or choose another id."
                )
            crashpoints.reach("submit.inside")
        crashpoints.reach("submit.after")

    def _insert_submitted(self, run: NewRun, waiting: Waiting) -> bool:
        """Inside a write transaction. False where the id exists."""
        named = (run.workflow_id, run.name, run.kind, codec.first_digest(run.workflow_id), 1 if run.plan else 0)
        at = codec.to_microseconds(run.created_at)
        ready_at = codec.to_microseconds(waiting.ready_at) if waiting.ready_at is not None else None
        if ready_at is None:
            ready_at = int((self._clock.wall() + waiting.delay_s) * 1_000_000)
        limit = (run.limit.key, run.limit.limit) if run.limit is not None else (None, None)
        how = (*limit, waiting.queue, waiting.priority, ready_at, waiting.submitted_from)
        values = (*named, at, at, *journal_reader.origin_columns(run), *how)
        inserted = self._connection.execute(_Q["submit_run"], values)
        no = inserted.lastrowid
        if inserted.rowcount != 1 or no is None:
            return False
        if run.plan:
            self._insert_plan(no, run.workflow_id, 1, run.plan)
        self._connection.executemany(_Q["insert_label"], [(label, at, no) for label in run.labels])
        return True

    @verb
    def take_lease(self, workflow_id: WorkflowId, holder: Holder, lease_s: float, *, drives: bool = True) -> Lease:
        crashpoints.reach("lease.before")
        with self._writing:
            self._check_schema()
            taken = leases.take(self._connection, self._clock, workflow_id, holder, lease_s, drives=drives)
        if taken is None:
            raise RunNotFoundError(workflow_id)
        lease, self._heads[workflow_id] = taken
        self._listed.pop(workflow_id, None)
        crashpoints.reach("lease.after")
        return lease

    @verb
    def take_runs(self, wanted: RunFilter, holder: Holder, lease_s: float, most: int) -> list[TakenRun]:
        crashpoints.reach("take.before")
        if not self._pick(wanted, most, frees=False):  # looking holds nobody up
            return []
        taken: list[tuple[Candidate, Lease]] = []
        with self._writing:
            self._check_schema()
            for picked in self._pick(wanted, most, frees=True):
                lease, head = leases.take_picked(self._connection, self._clock, picked, holder, lease_s)
                self._heads[lease.workflow_id] = head
                self._listed.pop(lease.workflow_id, None)
                taken.append((picked[0], lease))
            crashpoints.reach("take.inside")
        crashpoints.reach("take.after")
        return [self._taken_run(one, lease) for one, lease in taken]

    def _pick(self, wanted: RunFilter, most: int, *, frees: bool) -> list[tuple[Candidate, int | None]]:
        slots = leases.held_slots(self._connection, self._clock, None, frees=frees)
        return leases.pick(self._connection, self._clock, wanted, most, slots)

    def _taken_run(self, one: Candidate, lease: Lease) -> TakenRun:
        record = self.record_from(one.row)
        if one.row[3] == journal_reader.QUEUED:
            record = msgspec.structs.replace(record, waiting=waiting_from(one.queued))
        return TakenRun(record=record, lease=lease, submitted_from=one.queued[5] or "", before=one.before)

    @verb
    def return_lease(self, taken: TakenRun) -> None:
        with self._writing:
            held = (*taken.before, taken.lease.workflow_id, taken.lease.token)
            self._connection.execute(_Q["return_lease"], held)
        self._heads.pop(taken.lease.workflow_id, None)
        self._listed.pop(taken.lease.workflow_id, None)

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
        self._listed.pop(lease.workflow_id, None)
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
            listed = self._write_lists(head.no, workflow_id, progress)
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
        self._listed[workflow_id] = listed

    def _write_lists(self, no: int, workflow_id: WorkflowId, progress: Progress) -> Listed:
        """What lists show beside the row of the run, where that changes; what is known of it then."""
        before = self._listed.get(workflow_id, UNLISTED)
        news = before.news(progress)
        if news.asked is not None:
            self._connection.execute(_Q["delete_question"], (no,))
            self._connection.executemany(_Q["insert_question"], [(no, seq) for seq in news.asked])
        if news.left is not None:
            self._connection.execute(_Q["delete_task_left"], (no,))
            self._connection.executemany(_Q["insert_task_left"], [(no, status) for status in news.left])
        return before.merge(news)

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
        self._listed.clear()
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
        self,
        *,
        statuses: Collection[RunStatus] = (),
        labels: Collection[str] = (),
        name: str | None = None,
        text: str = "",
        before: RunMark | None = None,
        limit: int | None = None,
    ) -> list[RunRecord]:
        picked = journal_reader.picks(labels, name, text, before)
        if picked is None:
            return []
        asked = (journal_reader.encoded_labels(picked.labels), *picked[1:5])
        if picked.labels and not has_fewer_under_way(statuses) and self.has_lists():
            # A run may have several of the labels: then it comes as often, one right after the other.
            of_label = [self._connection.execute(_Q["list_labelled"], (one, *asked[1:])) for one in picked.labels]
            together = merge(*of_label, key=lambda row: (row[13], row[-1]), reverse=True)
            rows: Iterable[tuple[Any, ...]] = (next(same)[:-1] for _, same in groupby(together, lambda row: row[-1]))
        elif not statuses:
            rows = self._connection.execute(_Q["list_runs"], asked)
        else:
            # Rows as they are asked for, newest first: each stored status is in order, and so is what is made of them.
            stored = journal_reader.stored_statuses(statuses)
            each = [self._connection.execute(_Q["list_runs_in"], (*asked, status)) for status in stored]
            merged = merge(*each, key=lambda row: (row[13], row[-1]), reverse=True)
            rows = (row[:-1] for row in merged)
        found = map(self.record_from, rows)
        asked_for = (one for one in found if not statuses or one.status in statuses)
        return self.with_waiting(list(islice(asked_for, limit)))

    @verb
    def has_lists(self) -> bool:
        return bool(self._connection.execute("PRAGMA user_version").fetchone()[0] >= LISTS_SINCE)

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

    # --- schedules ------------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall(), UTC)

    @verb
    def read_schedules(self) -> list[ScheduleRecord]:
        if self._connection.execute(_Q["has_schedules"]).fetchone()[0] == 0:
            return []
        return [schedule_record(row) for row in self._connection.execute(_Q["list_schedules"])]

    @verb
    def read_schedule_plan(self, name: str) -> bytes:
        return plan_of_schedule(name, self._connection.execute(_Q["read_schedule_plan"], (name,)).fetchall())

    @verb
    def write_schedule(
        self, schedule: ScheduleRecord, *, plan: bytes | None = None, fire: NewRun | None = None
    ) -> bool:
        columns = schedule_columns(schedule)
        crashpoints.reach("schedule.before")
        with self._writing:
            self._check_schema()
            if schedule.version == 0:
                written = self._connection.execute(_Q["insert_schedule"], (*columns, plan, schedule.name))
            else:
                named = (schedule.name, schedule.version)
                written = self._connection.execute(_Q["change_schedule"], (*columns, plan, *named))
            if written.rowcount != 1:
                return False
            crashpoints.reach("schedule.inside")
            if fire is not None:
                self._insert_submitted(fire, schedule.waiting)
        crashpoints.reach("schedule.after")
        return True

    # --- housekeeping ---------------------------------------------------------------------------------------------

    @verb
    def prune(self, workflow_id: WorkflowId, keep: int) -> int:
        if keep < 1:
            raise keeps_too_few(keep)
        known = self._heads.get(workflow_id) if self._seen_moves == self.live.moves else None
        no = (known or self._journal.head(workflow_id)).no
        if self._connection.execute(_Q["count_checkpoints"], (no,)).fetchone()[0] <= keep:
            return 0
        with self._write_unhurried():
            deleted = self._connection.execute(_Q["prune_checkpoints"], (no, keep)).rowcount
            crashpoints.reach("prune.inside")
        return deleted

    def prune_runs(self, workflow_ids: Sequence[WorkflowId], keep: int) -> list[PrunedRun]:
        if keep < 1:
            raise keeps_too_few(keep)
        return [one for some in batches(workflow_ids, PRUNED_AT_ONCE) for one in self._prune_some(some, keep)]

    @verb
    def _prune_some(self, workflow_ids: Sequence[WorkflowId], keep: int) -> list[PrunedRun]:
        run, pruned = self._connection, list[PrunedRun]()
        with self._write_unhurried():
            for workflow_id in workflow_ids:
                for no, count in run.execute(_Q["count_checkpoints_of"], (workflow_id,)).fetchall():
                    deleted = run.execute(_Q["prune_checkpoints"], (no, keep)).rowcount if count > keep else 0
                    pruned.append(PrunedRun(workflow_id=workflow_id, deleted=deleted, kept=count - deleted))
            crashpoints.reach("prune.inside")
        return pruned

    @contextmanager
    def _write_unhurried(self) -> Iterator[None]:
        """A write that is not worth waiting for the disk: what a power failure brings back is pruned again."""
        self._connection.execute("PRAGMA synchronous = NORMAL")
        try:
            with self._writing:
                yield
        finally:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if self.durability == 'full' else 'NORMAL'}")

    def delete_runs(self, runs: Sequence[RunRecord]) -> list[WorkflowId]:
        gone = self._delete(runs)
        for workflow_id in gone:
            self._heads.pop(workflow_id, None)
        if gone:
            self.give_back()
        return gone

    @verb
    def _delete(self, runs: Sequence[RunRecord]) -> list[WorkflowId]:
        gone: list[WorkflowId] = []
        with self._writing:
            self._check_schema()
            for run in runs:
                stands = self._connection.execute(_Q["find_deletable"], (run.workflow_id,)).fetchone()
                if stands is None:
                    gone.append(run.workflow_id)
                elif stands[1:4] == listed_as(run) and not leases.live_holder(self._clock, StoredLease(*stands[4:])):
                    for name in _PARTS:
                        self._connection.execute(_Q[f"delete_{name}"], stands[:1])
                    gone.append(run.workflow_id)
            crashpoints.reach("delete.inside")
        return gone

    @verb
    def give_back(self) -> None:
        """The space of what was deleted, to the file system."""
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

    def graph_tables(self) -> GraphTables:
        from agentos.store.sqlite.graph_threads import SqliteGraphTables  # of those who use LangGraph

        return SqliteGraphTables(self)

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
