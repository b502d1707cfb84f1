"""The PostgreSQL store: the verbs of the port on the connections of a pool. `open_store` (database.py) makes one.

A batch of events is one statement: fencing, the head of the journal and all rows together. No transaction is open
while this process does anything else, so that one which is stopped in the middle holds no lock that others wait for.
Every verb may be repeated after a lost connection: where it could not be told whether the first try arrived, the second
one finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

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
from agentos.store.journal_reader import JournalHead, JournalReader, RunReader
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
from agentos.values import encode_value

T = TypeVar("T")


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
            rows = session.rows(
                "insert_run", *named, *plan, *lease, at, *journal_reader.origin_columns(run), self._schema
            )
            if not rows:
                leases.refuse_other_schema(session, self._schema)
                if len(tries) > 1:  # an earlier one may have arrived, though its answer did not
                    rows = session.rows("find_made", run.workflow_id, lease[0], at, run.fingerprint)
        if not rows:
            raise RunRefusedError(
                f"run {run.workflow_id!r} exists already", next_step="Resume it, or choose another id."
            )
        return JournalHead(rows[0][0], 0, digest)

    def take_lease(self, workflow_id: WorkflowId, holder: Holder, lease_s: float) -> Lease:
        crashpoints.reach("lease.before")
        lease, head = self._take(workflow_id, holder, lease_s, [])
        self._know(workflow_id, head)
        crashpoints.reach("lease.after")
        return lease

    @verb
    def _take(
        self, workflow_id: WorkflowId, holder: Holder, lease_s: float, seen: leases.Seen
    ) -> tuple[Lease, JournalHead]:
        with autocommit_session(self._pool, self.scopes) as session:
            return leases.take(session, workflow_id, holder, lease_s, self._schema, seen)

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
        self, *, statuses: Collection[RunStatus] = (), labels: Collection[str] = (), limit: int | None = None
    ) -> list[RunRecord]:
        asked = list(journal_reader.askable_labels(labels))
        if labels and not asked:
            return []
        wanted = limit
        while True:
            with autocommit_session(self._pool, self.scopes) as session:
                if statuses:
                    rows = session.rows("list_runs_in", wanted, journal_reader.stored_statuses(statuses), asked or None)
                else:
                    rows = session.rows("list_runs", wanted, asked or None)
            found = [record for row in rows if (record := self.record_from(row)).status in statuses or not statuses]
            enough = wanted is None or len(rows) < wanted or len(found) >= (limit or 0)
            if enough or not journal_reader.must_be_told_apart(statuses):
                return found[:limit]
            wanted = 4 * (wanted or 1)  # of some, the lease says that they are in another status

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
        return any(news)

    # --- housekeeping ---------------------------------------------------------------------------------------------

    @brief_verb
    def prune(self, workflow_id: WorkflowId, keep: int) -> int:
        if keep < 1:
            raise AgentosError(f"cannot keep {keep} checkpoints", next_step="Keep at least 1: the run resumes from it.")
        with autocommit_session(self._pool, self.scopes) as session:
            head = self._heads.get(workflow_id) or JournalReader(session).head(workflow_id)
            crashpoints.reach("prune.inside")
            return session.execute("prune_checkpoints", head.no, keep)

    @verb
    def delete_run(self, lease: Lease) -> None:
        with write_transaction(self._pool, self.scopes) as session:
            rows = session.rows("fence_delete", lease.workflow_id, lease.token)
            if not rows:
                raise LeaseLostError(lease.workflow_id)
            # After the lock is ours: a statement sees only what was there when it began.
            for name in ("blobs", "events", "plans", "checkpoints", "inbox", "followers", "run"):
                session.execute(f"delete_{name}", rows[0][0])
        self._heads.pop(lease.workflow_id, None)
        self._watch.forget(rows[0][0])

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
