"""A line: appends from an event loop, where nothing waits for the server but a socket.

Through a thread and the driver's cursors the same takes twice as long for a small step: two changes of thread, and
layers of Python that a statement which is always the same has no use for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import psycopg
from psycopg.pq import DiagnosticField, ExecStatus

from agentos import crashpoints
from agentos.ids import WorkflowId
from agentos.machine.events import Event
from agentos.store.journal_reader import JournalHead
from agentos.store.port import Lease, Progress
from agentos.store.postgres.pool import Connection, Pool

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
