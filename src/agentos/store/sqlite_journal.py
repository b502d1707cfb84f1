"""Reading what a run wrote, with every digest checked. Each call belongs inside one transaction of the caller's."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from agentos.exceptions import CheckpointCorruptedError, NotFoundError, RunNotFoundError
from agentos.ids import WorkflowId
from agentos.run.events import Event
from agentos.store import codec
from agentos.store.port import CheckpointRecord
from agentos.store.sqlfiles import queries
from agentos.store.sqlite_records import checkpoint_record

_Q = queries()


class Head(NamedTuple):
    """Where the journal of a run stands: its number, the last sequence, the running digest there."""

    no: int
    sequence: int
    digest: bytes


class SqliteJournal:
    """The journals, plans and checkpoints of one database, for reading."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def find_head(self, workflow_id: WorkflowId) -> Head | None:
        row = self._connection.execute(_Q["find_head"], (workflow_id,)).fetchone()
        return None if row is None else Head(*row)

    def head(self, workflow_id: WorkflowId) -> Head:
        head = self.find_head(workflow_id)
        if head is None:
            raise RunNotFoundError(workflow_id)
        return head

    def events(self, workflow_id: WorkflowId, after: int, upto: int | None) -> list[Event]:
        head = self.head(workflow_id)
        last = head.sequence if upto is None else min(upto, head.sequence)
        if after >= last:
            return []
        previous = self._digest_at(workflow_id, head, after)
        rows = self._connection.execute(_Q["read_events"], (head.no, after, last))
        events, digest = codec.decode_rows(workflow_id, rows, after=after, previous=previous, blobs=self._blob)
        if not events or events[-1].seq != last:
            raise codec.damaged(workflow_id, (events[-1].seq if events else after) + 1, "the row is missing")
        if last == head.sequence and digest != head.digest:
            raise codec.damaged(workflow_id, last, "the digest differs from the one its run names")
        return events

    def _digest_at(self, workflow_id: WorkflowId, head: Head, seq: int) -> bytes:
        if seq <= 0:
            return codec.first_digest(workflow_id)
        row = self._connection.execute(_Q["read_digest"], (head.no, seq)).fetchone()
        if row is None:
            raise codec.damaged(workflow_id, seq, "the row is missing")
        digest: bytes = row[0]
        return digest

    def _blob(self, digest: bytes) -> bytes | None:
        row = self._connection.execute(_Q["read_blob"], (digest,)).fetchone()
        return None if row is None else row[0]

    def plan(self, workflow_id: WorkflowId, revision: int | None) -> bytes:
        found = self._connection.execute(_Q["find_revision"], (workflow_id,)).fetchone()
        if found is None:
            raise RunNotFoundError(workflow_id)
        no, newest = found
        wanted = newest if revision is None else revision
        if newest == 0 and revision is None:
            return b""  # a run of kind `states` has none
        what = f"plan revision {wanted} of run {workflow_id}"
        if not 1 <= wanted <= newest:
            raise NotFoundError(f"there is no {what}", next_step=f"Its newest revision is {newest}.")
        row = self._connection.execute(_Q["read_plan"], (no, wanted)).fetchone()
        if row is None:
            raise CheckpointCorruptedError(what, "the row is missing")
        body: bytes = row[0]
        if codec.plan_digest(workflow_id, wanted, body) != row[1]:
            raise CheckpointCorruptedError(what, "the digest does not match what is stored")
        return body

    def checkpoints(self, workflow_id: WorkflowId) -> list[CheckpointRecord]:
        rows = self._connection.execute(_Q["list_checkpoints"], (workflow_id,))
        return [checkpoint_record(row) for row in rows]

    def newest_sound_checkpoint(self, workflow_id: WorkflowId) -> CheckpointRecord | None:
        head = self.head(workflow_id)
        rows = self._connection.execute(_Q["read_events"], (head.no, 0, head.sequence))
        sound = codec.sound_upto(workflow_id, rows, self._blob)
        for row in reversed(self._connection.execute(_Q["list_checkpoints"], (workflow_id,)).fetchall()):
            try:
                record = checkpoint_record(row)
            except CheckpointCorruptedError:
                continue
            if record.sequence <= sound and not record.abandoned:
                return record
        return None

    def verify(self, workflow_id: WorkflowId) -> None:
        self.events(workflow_id, 0, None)
        self.checkpoints(workflow_id)
        newest = self._connection.execute(_Q["find_revision"], (workflow_id,)).fetchone()[1]
        for revision in range(1, newest + 1):
            self.plan(workflow_id, revision)
