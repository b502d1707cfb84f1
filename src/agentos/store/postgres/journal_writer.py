"""Appending to a journal: a batch of events, with all it brings along, as one statement; from an event loop
through a line that waits for nothing but a socket."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg.pq import DiagnosticField, ExecStatus

from agentos import crashpoints
from agentos.exceptions import CheckpointCutError
from agentos.ids import WorkflowId
from agentos.machine.events import Checkpointed, Event, RolledBack, TaskComplete
from agentos.store import codec
from agentos.store.codec import EventRow
from agentos.store.journal_reader import JournalHead, JournalReader
from agentos.store.port import Lease, Progress
from agentos.store.postgres.driver import verb
from agentos.store.postgres.pool import Connection, Pool, Scopes, autocommit_session
from agentos.store.run_lists import UNLISTED, Listed
from agentos.values import tagged_text

_NO_SESSION = (b"26000", b"42P05")
"""The prepared statement is not there, or was before it was made: a pooler that passed for the server."""


class ShortBatch(NamedTuple):
    """A batch that is one short statement."""

    workflow_id: WorkflowId
    arguments: tuple[int | str | bytes, ...]
    after: JournalHead


class PostgresLine:
    """Appends on one connection, which is its own until it is closed."""

    def __init__(
        self,
        pool: Pool,
        connection: Connection,
        batch_of: Callable[[Lease, Sequence[Event], Progress], ShortBatch | None],
        written: Callable[[WorkflowId, JournalHead], None],
    ) -> None:
        self.patience_s = pool.silence_s / 4  # to give up here loses nothing: the other way waits once more
        self._pool = pool
        self._connection = connection
        self._pgconn = connection.pgconn
        self._socket = connection.pgconn.socket  # still asked for when the connection is lost
        self._statement = pool.statements["append"].encode()
        # The same name means the same text, also where sessions should turn out to be shared.
        self._name = b"agentos_append_" + blake2b(self._statement, digest_size=8).hexdigest().encode()
        self._batch_of = batch_of
        self._written = written
        self._batch: ShortBatch | None = None
        """What is on its way, or answered and not yet finished."""
        self._answers: list[tuple[int, int]] = []
        """Status and number of rows of each result so far."""
        self._complete = False
        self._broken = False

    def fileno(self) -> int:
        return self._socket

    def send(self, lease: Lease, events: Sequence[Event], progress: Progress) -> bool:
        batch = None if self._broken else self._batch_of(lease, events, progress)
        if batch is None:
            return False
        crashpoints.reach("commit.before")
        crashpoints.reach("commit.inside")  # a statement has no inside: it arrives whole, or not at all
        self._batch = batch
        self._answers.clear()
        try:
            if self._is_settled():
                self._send(batch)
            else:
                self._pgconn.send_prepare(self._name, self._statement)
                self._push()
        except psycopg.Error:
            self._broken = True
        return not self._broken

    def is_answered(self) -> bool:
        if not self._broken:
            try:
                self._complete = self._complete or self._take_in()
            except psycopg.Error:
                self._broken = True
        return self._complete or self._broken

    def finish(self) -> bool:
        batch, self._batch = self._batch, None
        complete, self._complete = self._complete, False
        if batch is None or not complete or self._answers != [(ExecStatus.TUPLES_OK, 1)]:
            return False
        self._written(batch.workflow_id, batch.after)
        return True

    def close(self) -> None:
        if self._broken or self._batch is not None:
            self._connection.close()  # whatever was asked may still be done: only another connection can tell
        self._pool.take_back(self._connection)

    def _is_settled(self) -> bool:
        """Whether the statement is prepared, or never will be."""
        return self._connection.prepared or not self._connection.is_session

    def _send(self, batch: ShortBatch) -> None:
        arguments = [_as_text(value) for value in batch.arguments]
        if self._connection.prepared:
            self._pgconn.send_query_prepared(self._name, arguments)
        else:
            self._pgconn.send_query_params(self._statement, arguments)
        self._push()

    def _push(self) -> None:
        if self._pgconn.flush():  # what is short fits into any buffer that is empty; the other way waits for room
            raise psycopg.OperationalError("the server does not read what it is sent")

    def _take_in(self) -> bool:
        """Whether all is said, the commit too: what fails in it comes as one more result."""
        self._pgconn.consume_input()
        if self._batch is None:
            return False
        while not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            if result is not None:
                self._answers.append((result.status, result.ntuples))
                failed = result.status == ExecStatus.FATAL_ERROR
                if failed and result.error_field(DiagnosticField.SQLSTATE) in _NO_SESSION:
                    self._connection.is_session = self._connection.prepared = False
            elif self._is_settled() or self._answers != [(ExecStatus.COMMAND_OK, 0)]:
                return True
            else:
                self._connection.prepared = True
                self._answers.clear()
                self._send(self._batch)
                return False
        return False


def _as_text(value: int | str | bytes) -> bytes:
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    return str(value).encode()


SHORT = 1 << 13
"""Bytes of a batch that are taken by the buffers of a socket at once, whatever else is under way."""
FEW = 128
"""Events of such a batch: thousands of them are not encoded in the event loop to find out how long they are."""


class JournalWriter:
    """Writes for whoever holds the lease, and for nobody else."""

    def __init__(self, pool: Pool, scopes: Scopes, *, blob_limit: int, patience_s: float) -> None:
        self.shown = pool.address.shown
        self.patience_s = patience_s
        self._pool = pool
        self._scopes = scopes
        self._blob_limit = blob_limit
        self.listed: dict[WorkflowId, Listed] = {}
        """What lists show of the runs that this store writes to, where that is known."""

    def append(
        self,
        lease: Lease,
        events: Sequence[Event],
        progress: Progress,
        plan: bytes | None,
        consumed: tuple[str, ...],
        *,
        known: JournalHead | None,
    ) -> JournalHead | None:
        """Where the journal stands then; None, and nothing written, where the lease or the place is not ours any more.

        `known` is where it stood when we last looked.
        """
        head = self._head_before(lease.workflow_id, events, known)
        if head is None:
            return None
        rows, blobs = codec.encode_events(events, head.digest, blob_limit=self._blob_limit)
        after = JournalHead(head.no, rows[-1].seq, rows[-1].digest) if rows else head
        arguments = self._arguments(lease, events, rows, progress, (head, after))
        more: tuple[Any, ...] = ()
        revision = None
        listed = self.listed.pop(lease.workflow_id, UNLISTED)
        news = listed.news(progress)
        goes_back = any(type(event) is RolledBack for event in events)
        if news != UNLISTED or plan is not None or consumed or blobs or goes_back:
            newest: tuple[Any, ...] = (None, None, None)
            if plan is not None:
                revision = self._plan_revision(head.no) + 1
                newest = (revision, plan, codec.plan_digest(lease.workflow_id, revision, plan))
            large = ([*blobs], [body.decode() for body in blobs.values()])
            stretches = _left_behind(events)
            afters, befores = [after for after, _ in stretches], [before for _, before in stretches]
            lists = (None if one is None else list(one) for one in news)
            more = (*large, afters, befores, list(consumed), *newest, *lists)
        crashpoints.reach("commit.inside")  # a statement has no inside: it arrives whole, or not at all
        written = self._wrote("append_all" if more else "append", (*arguments, *more))
        if not written and not self._stands(lease, after, None if rows else revision or 0):
            return None
        self.listed[lease.workflow_id] = listed.merge(news)
        return after

    def short_batch(
        self, lease: Lease, events: Sequence[Event], progress: Progress, known: JournalHead | None
    ) -> ShortBatch | None:
        """The batch for a line; None where it takes more than that."""
        limit = min(SHORT, self._blob_limit)
        if known is None or not _is_short(events, limit) or events[0].seq != known.sequence + 1:
            return None
        if self.listed.get(lease.workflow_id, UNLISTED).news(progress) != UNLISTED:
            return None
        rows, _ = codec.encode_events(events, known.digest, blob_limit=self._blob_limit)
        if sum(len(row.body) for row in rows) > SHORT:
            return None
        after = JournalHead(known.no, rows[-1].seq, rows[-1].digest)
        return ShortBatch(lease.workflow_id, self._arguments(lease, events, rows, progress, (known, after)), after)

    def _arguments(
        self,
        lease: Lease,
        events: Sequence[Event],
        rows: Sequence[EventRow],
        progress: Progress,
        heads: tuple[JournalHead, JournalHead],
    ) -> tuple[Any, ...]:
        """Of the statement `append`, which brings the journal from the first of two heads to the second."""
        head, after = heads
        at = rows[-1].at if rows else int(time.time() * 1_000_000)
        state = (progress.status, progress.layer, progress.layers, progress.epoch, at)
        named = (head.no, lease.token, head.sequence, after.sequence, after.digest, *state)
        return (*named, event_rows(rows), cut_rows(events, rows), self._pool.address.schema)

    @verb
    def _head_before(
        self, workflow_id: WorkflowId, events: Sequence[Event], known: JournalHead | None
    ) -> JournalHead | None:
        if known is not None and (not events or events[0].seq == known.sequence + 1):
            return known
        with autocommit_session(self._pool, self._scopes) as session:
            head = JournalReader(session).find_head(workflow_id)
        return None if head is None or (events and events[0].seq != head.sequence + 1) else head

    @verb
    def _plan_revision(self, no: int) -> int:
        with autocommit_session(self._pool, self._scopes) as session:
            rows = session.rows("find_plan", no)
        return rows[0][0] if rows else 0  # of a run that is gone; the fence tells

    @verb
    def _wrote(self, statement: str, arguments: tuple[Any, ...]) -> bool:
        try:
            with autocommit_session(self._pool, self._scopes) as session:
                return bool(session.rows(statement, *arguments))
        except psycopg.IntegrityError as error:
            if error.diag.table_name != "checkpoint":
                raise
            raise CheckpointCutError(
                f"a checkpoint cannot be written: {error.diag.message_primary}",
                next_step="The run goes on without it, unless checkpoints are strict.",
            ) from error

    @verb
    def _stands(self, lease: Lease, after: JournalHead, revision: int | None) -> bool:
        """Whether this very batch stands at the head: its digest proves it, of one without events its plan."""
        with autocommit_session(self._pool, self._scopes) as session:
            rows = session.rows("written_head", after.no)
        if not rows or rows[0][:3] != (lease.token, after.sequence, after.digest):
            return False
        return revision is None or rows[0][3] == revision


def _is_short(events: Sequence[Event], limit: int) -> bool:
    """Whether there are a few events, and they are rows and cuts alone: no rollback, and no output that is large."""
    if len(events) > FEW:
        return False
    for event in events:
        kind = type(event)
        if kind is RolledBack or (kind in codec.LARGE and len(getattr(event, codec.LARGE[kind])) > limit):
            return False
        if isinstance(event, TaskComplete) and len(event.messages) + len(event.context) > limit:
            return False
    return bool(events)


# --- the arguments of that statement ----------------------------------------------------------------------------------
# Rows travel as one JSON text: the driver makes an array of each column in Python, which takes longer than the server
# does to write them. Bytes are base64 there.

_NUL = b"\\u0000"
_encode = msgspec.json.Encoder().encode


class _EventRow(msgspec.Struct, omit_defaults=True):
    seq: int
    at: int
    type: int
    version: int
    body: str
    digest: bytes
    plain: str | None = None
    blob: bytes | None = None


class _CutRow(msgspec.Struct):
    id: str
    sequence: int
    layer: int
    at: int
    digest: bytes
    snapshot: str
    abandoned: bool


def event_rows(rows: Sequence[EventRow]) -> str:
    """The rows of `event`, but for the run they belong to."""
    return _encode(
        [
            _EventRow(row.seq, row.at, row.type, row.version, row.body.decode(), row.digest, plain(row.body), row.blob)
            for row in rows
        ]
    ).decode()


def plain(body: bytes) -> str | None:
    """The body without NUL, which JSONB cannot hold: text with it is tagged as in results. None where there is none."""
    if _NUL not in body:
        return None
    return _encode(_without_nul(msgspec.json.decode(body))).decode()


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return tagged_text(value)
    if isinstance(value, dict):
        return {key.replace("\0", "\\u0000"): _without_nul(item) for key, item in value.items()}
    return [_without_nul(item) for item in value] if isinstance(value, list) else value


def cut_rows(events: Sequence[Event], rows: Sequence[EventRow]) -> str:
    """The rows of `checkpoint`, but for the run they belong to.

    A statement does not see what it writes itself: a cut that a later rollback of the same batch leaves behind is
    written as such.
    """
    stretches = _left_behind(events)
    return _encode(
        [
            _CutRow(
                id=event.checkpoint_id,
                sequence=row.seq,
                layer=event.layer,
                at=row.at,
                digest=row.digest,
                snapshot=event.snapshot,
                abandoned=any(after < row.seq < before for after, before in stretches),
            )
            for event, row in zip(events, rows, strict=True)
            if type(event) is Checkpointed
        ]
    ).decode()


def _left_behind(events: Sequence[Event]) -> list[tuple[int, int]]:
    """The sequences that each rollback of a batch leaves behind: those between two."""
    return [(event.to_seq, event.seq) for event in events if type(event) is RolledBack]
