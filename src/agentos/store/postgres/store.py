"""The PostgreSQL store: the verbs of the port on the connections of a pool. `open_store` (database.py) makes one.

A batch of events is one statement: fencing, the head of the journal and all rows together. No transaction is open
while this process does anything else, so that one which is stopped in the middle holds no lock that others wait for.
Every verb may be repeated after a lost connection: where it could not be told whether the first try arrived, the second
one finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import psycopg

from agentos import crashpoints
from agentos.exceptions import (
    AgentosError,
    LeaseLostError,
    RunRefusedError,
    StoreUnavailableError,
)
from agentos.ids import WorkflowId
from agentos.machine.events import Event
from agentos.store import codec, journal_reader
from agentos.store.holder import encode_holder
from agentos.store.journal_reader import (
    PRUNED_AT_ONCE,
    JournalHead,
    JournalReader,
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
    RunLimit,
    RunMark,
    RunRecord,
    RunStatus,
    ScheduleRecord,
    Scope,
    TakenRun,
    Waiting,
)
from agentos.store.postgres import journal_writer, leases
from agentos.store.postgres.driver import brief_verb, verb
from agentos.store.postgres.journal_writer import JournalWriter, PostgresLine, ShortBatch
from agentos.store.postgres.notices import FOLLOW_S, Watch
from agentos.store.postgres.pool import (
    Pool,
    QuerySession,
    autocommit_session,
    read_transaction,
    release_pool,
    write_transaction,
)
from agentos.store.run_lists import LISTS_SINCE, UNWRITTEN, has_fewer_under_way
from agentos.store.run_queue import Candidate, waiting_from
from agentos.store.schedule_rows import plan_of_schedule, schedule_columns, schedule_record
from agentos.values import encode_value

if TYPE_CHECKING:
    from agentos.store.graph_threads import GraphTables

T = TypeVar("T")
_PARTS = ("blobs", "events", "plans", "checkpoints", "inbox", "followers", "labels", "questions", "tasks_left", "runs")
"""What there is of a run, in the order in which it is deleted."""


class PostgresStore(RunReader):
    """Any thread may use it, one at a time. Cheap to open: its connections are the process's, see pool.py."""

    def __init__(
        self,
        pool: Pool,
        *,
        durability: Durability,
        schema_version: int,
        blob_limit: int,
        patience_s: float,
        scope: Scope | None,
    ) -> None:
        self.shown = pool.address.shown
        self.patience_s = patience_s
        self.durability: Durability = durability
        self._pool = pool
        self._schema = str(schema_version)
        self._scope = scope
        self._scopes: list[int] = []
        self._heads: dict[WorkflowId, JournalHead] = {}
        self._watch = Watch(pool)
        self._writer = JournalWriter(pool, self.scopes, blob_limit=blob_limit, patience_s=patience_s)
        self._open = True

    @verb
    def look(self, question: Callable[[QuerySession], T]) -> T:
        with autocommit_session(self._pool, self.scopes) as session:
            return question(session)

    @verb
    def look_at_once(self, question: Callable[[QuerySession], T]) -> T:
        with read_transaction(self._pool, self.scopes) as session:
            return question(session)

    @verb
    def ask(self, question: Callable[[QuerySession], T]) -> T:
        """Anything else, as the database is at one moment. It must only read, and may take long."""
        with read_transaction(self._pool, self.scopes, long=True) as session:
            return question(session)

    def scopes(self, session: QuerySession) -> list[int]:
        """The numbers of our scope, or of all. A worktree that has no run yet is looked for again each time."""
        if self._scope is None:
            return [no for (no,) in session.rows("all_scopes")]
        if not self._scopes:
            self._scopes = [no for (no,) in session.rows("find_scope", self._scope.repository, self._scope.worktree)]
        return self._scopes

    def _own_scope(self, session: QuerySession) -> int:
        if self._scope is None:
            raise AgentosError("a view of all repositories cannot begin a run", next_step="Work in one of them.")
        if not self.scopes(session):
            session.execute("insert_scope", self._scope.repository, self._scope.worktree)
        return self.scopes(session)[0]

    # --- runs and leases ------------------------------------------------------------------------------------------

    def create_run(self, run: NewRun, holder: Holder, lease_s: float) -> Lease:
        crashpoints.reach("lease.before")
        self._know(run.workflow_id, self._create(run, holder, lease_s, []))
        self._writer.listed[run.workflow_id] = UNWRITTEN
        crashpoints.reach("lease.after")
        return Lease(workflow_id=run.workflow_id, token=1, lease_s=lease_s)

    @verb
    def _create(self, run: NewRun, holder: Holder, lease_s: float, tries: list[int]) -> JournalHead:
        digest = codec.first_digest(run.workflow_id)
        plan = (run.plan, codec.plan_digest(run.workflow_id, 1, run.plan)) if run.plan else (None, None)
        at = codec.to_microseconds(run.created_at)
        lease = (encode_holder(holder), lease_s)
        with autocommit_session(self._pool, self.scopes) as session:
            named = (self._own_scope(session), run.workflow_id, run.name, run.kind, digest)
            crashpoints.reach("create.inside")  # a statement has no inside: it arrives whole, or not at all
            tries.append(1)
            rows = self._insert_run(session, run, (*named, *plan, *lease, at, *journal_reader.origin_columns(run)))
            if not rows:
                leases.refuse_other_schema(session, self._schema)
                if len(tries) > 1:  # an earlier one may have arrived, though its answer did not
                    rows = session.rows("find_made", run.workflow_id, lease[0], at, run.fingerprint)
        if not rows:
            raise RunRefusedError(
                f"run {run.workflow_id!r} exists already", next_step="Resume it, or choose another id."
            )
        return JournalHead(rows[0][0], 0, digest)

    def _insert_run(self, session: QuerySession, run: NewRun, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        if run.limit is None:
            return session.rows("insert_run", *values, None, None, None, self._schema)
        key, limit = self._limit_key(run.limit), run.limit.limit
        while True:
            slot = leases.held_slots(session, key, frees=True).must_claim(key, limit)
            with suppress(psycopg.errors.UniqueViolation):  # another run got this slot at the same time
                return session.rows("insert_run", *values, key, limit, slot, self._schema)

    def _limit_key(self, limit: RunLimit) -> str:
        """Limits count in the repository, whichever worktree the runs are of."""
        return f"{self._scope.repository if self._scope is not None else ''}\n{limit.key}"

    def submit_run(self, run: NewRun, waiting: Waiting, *, refuse_full: bool = False) -> None:
        crashpoints.reach("submit.before")
        self._submit(run, waiting, refuse_full, [])
        crashpoints.reach("submit.after")

    @verb
    def _submit(self, run: NewRun, waiting: Waiting, refuse_full: bool, tries: list[int]) -> None:
        with autocommit_session(self._pool, self.scopes) as session:
            if run.limit is not None and refuse_full and not tries:
                key = self._limit_key(run.limit)
                queued = [id_ for (id_,) in session.rows("queued_of_limit", key)]
                leases.held_slots(session, key, frees=False).refuse_full(key, run.limit.limit, queued)
            scope = self._own_scope(session)
            crashpoints.reach("submit.inside")  # a statement has no inside: it arrives whole, or not at all
            tries.append(1)
            rows = self._insert_submitted(session, scope, run, waiting)
            if not rows:
                leases.refuse_other_schema(session, self._schema)
                if len(tries) > 1:  # an earlier one may have arrived, though its answer did not
                    at = codec.to_microseconds(run.created_at)
                    rows = session.rows("find_submitted", run.workflow_id, at, run.fingerprint)
        if not rows:
            raise RunRefusedError(
                f"run {run.workflow_id!r} exists already", next_step="Resume it, or choose another id."
            )

    def _insert_submitted(
        self, session: QuerySession, scope: int, run: NewRun, waiting: Waiting
    ) -> list[tuple[Any, ...]]:
        """No row where the id exists, or the schema is another one."""
        plan = (run.plan, codec.plan_digest(run.workflow_id, 1, run.plan)) if run.plan else (None, None)
        at = codec.to_microseconds(run.created_at)
        ready_at = codec.to_microseconds(waiting.ready_at) if waiting.ready_at is not None else None
        limit = (self._limit_key(run.limit), run.limit.limit) if run.limit is not None else (None, None)
        how = (*limit, waiting.queue, waiting.priority, ready_at, waiting.delay_s, waiting.submitted_from)
        named = (scope, run.workflow_id, run.name, run.kind, codec.first_digest(run.workflow_id))
        return session.rows("submit_run", *named, *plan, at, *journal_reader.origin_columns(run), *how, self._schema)

    def take_lease(self, workflow_id: WorkflowId, holder: Holder, lease_s: float, *, drives: bool = True) -> Lease:
        crashpoints.reach("lease.before")
        lease, head = self._take(workflow_id, holder, lease_s, [], drives)
        self._know(workflow_id, head)
        self._writer.listed.pop(workflow_id, None)
        crashpoints.reach("lease.after")
        return lease

    @verb
    def _take(
        self, workflow_id: WorkflowId, holder: Holder, lease_s: float, seen: leases.Seen, drives: bool
    ) -> tuple[Lease, JournalHead]:
        with autocommit_session(self._pool, self.scopes) as session:
            return leases.take(session, workflow_id, holder, lease_s, self._schema, seen, drives=drives)

    def take_runs(self, wanted: RunFilter, holder: Holder, lease_s: float, most: int) -> list[TakenRun]:
        crashpoints.reach("take.before")
        taken = self._take_next(wanted, holder, lease_s, most)
        for one, lease in taken:
            self._know(lease.workflow_id, JournalHead(one.no, one.row[7], one.digest))
            self._writer.listed.pop(lease.workflow_id, None)
        if taken:
            crashpoints.reach("take.after")
        return [self._taken_run(one, lease) for one, lease in taken]

    @verb
    def _take_next(self, wanted: RunFilter, holder: Holder, lease_s: float, most: int) -> list[tuple[Candidate, Lease]]:
        # A batch that arrived though its answer did not is lost to us: others take those runs once our leases are over.
        while True:
            with autocommit_session(self._pool, self.scopes) as session:
                slots, dead = leases.held_slots(session, None, frees=True), leases.dead_holders(session)
            try:
                with write_transaction(self._pool, self.scopes) as session:
                    taken = leases.take_next(session, wanted, holder, lease_s, self._schema, most, slots, dead)
                    if taken:
                        crashpoints.reach("take.inside")
                return taken
            except psycopg.errors.UniqueViolation:  # another worker got one of the slots at the same time
                continue

    def _taken_run(self, one: Candidate, lease: Lease) -> TakenRun:
        record = self.record_from(one.row)
        if one.row[3] == journal_reader.QUEUED:
            record = msgspec.structs.replace(record, waiting=waiting_from(one.queued))
        return TakenRun(record=record, lease=lease, submitted_from=one.queued[5] or "", before=one.before)

    @verb
    def return_lease(self, taken: TakenRun) -> None:
        with autocommit_session(self._pool, self.scopes) as session:
            session.execute("return_lease", taken.lease.workflow_id, taken.lease.token, *taken.before)
        self._heads.pop(taken.lease.workflow_id, None)
        self._writer.listed.pop(taken.lease.workflow_id, None)

    @brief_verb
    def renew_lease(self, lease: Lease) -> None:
        with autocommit_session(self._pool, self.scopes) as session:
            if not session.rows("renew_lease", lease.workflow_id, lease.token, lease.lease_s):
                raise LeaseLostError(lease.workflow_id)

    @brief_verb
    def release_lease(self, lease: Lease) -> None:
        with autocommit_session(self._pool, self.scopes) as session:
            session.execute("release_lease", lease.workflow_id, lease.token)
        self._heads.pop(lease.workflow_id, None)
        self._writer.listed.pop(lease.workflow_id, None)

    @verb
    def move_run(self, lease: Lease, root: str, host: str, scope: Scope) -> None:
        with autocommit_session(self._pool, self.scopes) as session:
            head = self._heads.get(lease.workflow_id) or JournalReader(session).head(lease.workflow_id)
            session.execute("insert_scope", scope.repository, scope.worktree)
            [(there,)] = session.rows("find_scope", scope.repository, scope.worktree)
            if not session.rows("move_run", head.no, lease.token, there, root, host):
                found = session.rows("written_head", head.no)
                if not found or found[0][0] != lease.token:
                    raise LeaseLostError(lease.workflow_id)
                raise RunRefusedError(
                    f"{root} has a run {lease.workflow_id!r} of its own",
                    next_step="Export the one that is meant, and import it there under another id (--id NEW).",
                )
        self._scope, self._scopes = scope, [there]

    def set_source(self, lease: Lease, source: str) -> None:
        with autocommit_session(self._pool, self.scopes) as session:
            head = self._heads.get(lease.workflow_id) or JournalReader(session).head(lease.workflow_id)
            if not session.rows("set_source", head.no, lease.token, source):
                raise LeaseLostError(lease.workflow_id)

    def _know(self, workflow_id: WorkflowId, head: JournalHead) -> None:
        self._heads[workflow_id] = head
        self._watch.saw_events(head.no, head.sequence)

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
        head = self._writer.append(
            lease, events, progress, plan, tuple(consumed), known=self._heads.get(lease.workflow_id)
        )
        if head is None:
            self._heads.pop(lease.workflow_id, None)
            raise LeaseLostError(lease.workflow_id)
        self._wrote(lease.workflow_id, head)

    def open_line(self) -> PostgresLine | None:
        connection = self._pool.take_free()
        return None if connection is None else PostgresLine(self._pool, connection, self._short_batch, self._wrote)

    def _short_batch(self, lease: Lease, events: Sequence[Event], progress: Progress) -> ShortBatch | None:
        return self._writer.short_batch(lease, events, progress, self._heads.get(lease.workflow_id))

    def _wrote(self, workflow_id: WorkflowId, head: JournalHead) -> None:
        self._know(workflow_id, head)
        crashpoints.reach("commit.after")

    @verb
    def read_events(
        self, workflow_id: WorkflowId, *, after: int = 0, upto: int | None = None, whole: bool = True
    ) -> list[Event]:
        with read_transaction(self._pool, self.scopes) as session:
            journal = JournalReader(session)
            head = journal.head(workflow_id)
            events = journal.events(workflow_id, after, upto, whole=whole)
        if upto is None:
            self._watch.saw_events(head.no, head.sequence)
            self._watch.follow(head.no)
        return events

    @verb
    def insert_copy(self, copy: RunCopy) -> None:
        with autocommit_session(self._pool, self.scopes) as session:
            self._own_scope(session)
        with write_transaction(self._pool, self.scopes, unseen=True) as session:
            leases.refuse_other_schema(session, self._schema)
            no = journal_reader.insert_copy(session, copy)
            texts = [(no, row.seq, plain) for row in copy.rows if (plain := journal_writer.plain(row.body)) is not None]
            session.each("set_plain", texts)
            JournalReader(session).verify(copy.run.workflow_id)

    # --- what is there --------------------------------------------------------------------------------------------

    def record_from(self, row: Sequence[Any]) -> RunRecord:
        holder, current, until = row[9:12]
        scope = Scope(repository=row[20], worktree=row[21])
        driving = leases.live_holder(holder, current)
        return journal_reader.run_record(
            row[:9], row[12:20], holder=driving, lease_until=until if holder else 0, scope=scope
        )

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
        asked = (list(picked.labels) or None, *picked[1:5], picked.scope.repository, picked.scope.worktree)
        wanted = limit
        while True:
            with autocommit_session(self._pool, self.scopes) as session:
                if picked.labels and not has_fewer_under_way(statuses) and self._is_listed(session):
                    stored = journal_reader.stored_statuses(statuses) or None
                    rows = session.rows("list_labelled", wanted, *asked, stored)
                elif statuses:
                    rows = session.rows("list_runs_in", wanted, *asked, journal_reader.stored_statuses(statuses))
                else:
                    rows = session.rows("list_runs", wanted, *asked)
            found = [record for row in rows if (record := self.record_from(row)).status in statuses or not statuses]
            enough = wanted is None or len(rows) < wanted or len(found) >= (limit or 0)
            if enough or not journal_reader.must_be_told_apart(statuses):
                return self.with_waiting(found[:limit])
            wanted = 4 * (wanted or 1)  # of some, the lease says that they are in another status

    @verb
    def has_lists(self) -> bool:
        with autocommit_session(self._pool, self.scopes) as session:
            return self._is_listed(session)

    def _is_listed(self, session: QuerySession) -> bool:
        return int(session.rows("read_version")[0][0]) >= LISTS_SINCE

    # --- the inbox, and news --------------------------------------------------------------------------------------

    @verb
    def post_command(self, workflow_id: WorkflowId, command: PostedCommand) -> None:
        body = encode_value(command.command).decode()
        posted = (command.id, codec.to_microseconds(command.posted_at), command.author, command.attempt_id, body)
        with autocommit_session(self._pool, self.scopes) as session:
            no = JournalReader(session).head(workflow_id).no
            session.rows("insert_command", no, *posted, self._pool.address.schema)

    @brief_verb
    def read_inbox(self, workflow_id: WorkflowId) -> list[PostedCommand]:
        with autocommit_session(self._pool, self.scopes) as session:
            head = self._heads.get(workflow_id) or JournalReader(session).find_head(workflow_id)
            rows = session.rows("read_inbox", head.no) if head is not None else []
        if head is not None:
            self._watch.saw_commands(head.no, rows[-1][-1] if rows else 0)
        return [journal_reader.posted_command(row) for row in rows]

    def has_changed(self) -> bool:
        try:
            return self._news()
        except StoreUnavailableError:  # asked again in a moment
            return False

    @brief_verb
    def _news(self) -> bool:
        followed, wanted = self._watch.to_follow(), self._watch.to_look_at()
        if not followed and not wanted:
            return False
        with autocommit_session(self._pool, self.scopes) as session:
            if followed:
                # Who may only read looks by the clock.
                with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction):
                    session.execute("follow", followed, FOLLOW_S)
            found = session.rows("read_marks", wanted) if wanted else []
        news = [self._watch.compare(*row) for row in found]  # each of them, so that each is seen
        for no in (deleted := set(wanted).difference(row[0] for row in found)):
            self._watch.forget(no)
        return any(news) or bool(deleted)

    # --- schedules ------------------------------------------------------------------------------------------------

    @verb
    def now(self) -> datetime:
        with autocommit_session(self._pool, self.scopes) as session:
            return codec.from_microseconds(session.rows("read_clock")[0][0])

    @verb
    def read_schedules(self) -> list[ScheduleRecord]:
        repository = self._scope.repository if self._scope is not None else None
        with autocommit_session(self._pool, self.scopes) as session:
            if session.rows("has_schedules", self._pool.address.schema)[0][0] == 0:
                return []
            return [schedule_record(row) for row in session.rows("list_schedules", repository)]

    @verb
    def read_schedule_plan(self, name: str) -> bytes:
        repository = self._scope.repository if self._scope is not None else ""
        with autocommit_session(self._pool, self.scopes) as session:
            return plan_of_schedule(name, session.rows("read_schedule_plan", repository, name))

    @verb
    def write_schedule(
        self, schedule: ScheduleRecord, *, plan: bytes | None = None, fire: NewRun | None = None
    ) -> bool:
        owner = (schedule.scope.repository, schedule.scope.worktree)
        values = (*owner, schedule.name, *schedule_columns(schedule), plan)
        crashpoints.reach("schedule.before")
        with autocommit_session(self._pool, self.scopes) as session:
            scope = self._own_scope(session)
        with write_transaction(self._pool, self.scopes) as session:
            leases.refuse_other_schema(session, self._schema)
            if schedule.version == 0:
                written = session.execute("insert_schedule", *values)
            else:
                written = session.execute("change_schedule", *values, schedule.version)
            if written != 1:
                return False
            crashpoints.reach("schedule.inside")
            if fire is not None:
                self._insert_submitted(session, scope, fire, schedule.waiting)
        crashpoints.reach("schedule.after")
        return True

    # --- housekeeping ---------------------------------------------------------------------------------------------

    @brief_verb
    def prune(self, workflow_id: WorkflowId, keep: int) -> int:
        if keep < 1:
            raise keeps_too_few(keep)
        with autocommit_session(self._pool, self.scopes) as session:
            head = self._heads.get(workflow_id) or JournalReader(session).head(workflow_id)
            crashpoints.reach("prune.inside")
            return session.execute("prune_checkpoints", head.no, keep)

    def prune_runs(self, workflow_ids: Sequence[WorkflowId], keep: int) -> list[PrunedRun]:
        if keep < 1:
            raise keeps_too_few(keep)
        return [one for some in batches(workflow_ids, PRUNED_AT_ONCE) for one in self._prune_some(some, keep)]

    @verb
    def _prune_some(self, workflow_ids: Sequence[WorkflowId], keep: int) -> list[PrunedRun]:
        with autocommit_session(self._pool, self.scopes) as session:
            crashpoints.reach("prune.inside")
            rows = session.rows("prune_runs", list(workflow_ids), keep)
        return [PrunedRun(workflow_id=WorkflowId(id_), deleted=gone, kept=count - gone) for id_, count, gone in rows]

    def delete_runs(self, runs: Sequence[RunRecord]) -> list[WorkflowId]:
        deleted = self._delete(runs)
        for workflow_id, no in deleted.items():
            self._heads.pop(workflow_id, None)
            self._watch.forget(no)
        return [*deleted]

    @verb
    def _delete(self, runs: Sequence[RunRecord]) -> dict[WorkflowId, int]:
        """The numbers of those that are gone; 0 where one was gone before."""
        with write_transaction(self._pool, self.scopes) as session:
            leases.refuse_other_schema(session, self._schema)
            asked = {run.workflow_id: run for run in runs}
            there = {id_ for (id_,) in session.rows("known_ids", list(asked))}
            gone = {workflow_id: 0 for workflow_id in asked if workflow_id not in there}
            # Whoever writes to one at this moment has its row locked, and keeps it.
            for id_, no, *stands, holder, current in session.rows("lock_runs", sorted(there)):
                if tuple(stands) == listed_as(asked[id_]) and leases.live_holder(holder, current) is None:
                    gone[id_] = no
            # After the locks are ours: a statement sees only what was there when it began.
            numbers = [no for no in gone.values() if no]
            for name in _PARTS:
                session.execute(f"delete_{name}", numbers)
            crashpoints.reach("delete.inside")
        return gone

    def graph_tables(self) -> GraphTables:
        from agentos.store.postgres.graph_threads import PostgresGraphTables  # of those who use LangGraph

        return PostgresGraphTables(self, self._pool, self._own_scope)

    @verb
    def size(self) -> int:
        with autocommit_session(self._pool, self.scopes) as session:
            size: int = session.rows("size", self._pool.address.schema)[0][0]
            return size

    def close(self) -> None:
        if self._open:
            self._open = False
            self._watch.close()
            release_pool(self._pool)
