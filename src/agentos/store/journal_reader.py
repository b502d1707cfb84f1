"""Reading what a run wrote, with every digest checked, from any store. Each call belongs inside one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from agentos.exceptions import CheckpointCorruptedError, NotFoundError, RunNotFoundError
from agentos.ids import WorkflowId
from agentos.machine.events import Event
from agentos.store import codec
from agentos.store.port import CheckpointRecord
from agentos.store.records import checkpoint_record


class JournalHead(NamedTuple):
    """Where the journal of a run stands: its number, the last sequence, the running digest there."""

    no: int
    sequence: int
    digest: bytes


class Queries(Protocol):
    """The named queries of a store. Names, arguments and columns are the same on every store, the SQL is its own."""

    def rows(self, name: str, *arguments: Any) -> Iterable[tuple[Any, ...]]:
        """Run one query."""

    def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        """Run one statement for each tuple of arguments."""


class JournalReader:
    """The journals, plans and checkpoints of one database."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def find_head(self, workflow_id: WorkflowId) -> JournalHead | None:
        row = self._one("find_head", workflow_id)
        return None if row is None else JournalHead(*row)

    def head(self, workflow_id: WorkflowId) -> JournalHead:
        head = self.find_head(workflow_id)
        if head is None:
            raise RunNotFoundError(workflow_id)
        return head

    def events(self, workflow_id: WorkflowId, after: int, upto: int | None, *, whole: bool = True) -> list[Event]:
        head = self.head(workflow_id)
        last = head.sequence if upto is None else min(upto, head.sequence)
        if after >= last:
            return []
        if after <= 0:
            previous = codec.first_digest(workflow_id)
        elif (found := self._one("read_digest", head.no, after)) is not None:
            previous = found[0]
        else:
            raise codec.damage_error(workflow_id, after, "the row is missing")
        rows: Any = self._queries.rows("read_events", head.no, after, last)
        blobs, starts = self._blobs(head.no), None if whole else self._blob_starts(head.no)
        events, digest = codec.decode_rows(
            workflow_id, rows, after=after, previous=previous, blobs=blobs, starts=starts
        )
        if not events or events[-1].seq != last:
            raise codec.damage_error(workflow_id, (events[-1].seq if events else after) + 1, "the row is missing")
        if last == head.sequence and digest != head.digest:
            raise codec.damage_error(workflow_id, last, "the digest differs from the one its run names")
        return events

    def _blobs(self, no: int) -> codec.Blobs:
        def body(digest: bytes) -> bytes | None:
            row = self._one("read_blob", no, digest)
            return None if row is None else row[0]

        return body

    def _blob_starts(self, no: int) -> codec.Blobs:
        def start(digest: bytes) -> bytes | None:
            row = self._one("read_blob_start", no, digest, codec.EXCERPT)
            return None if row is None else row[0]

        return start

    def _one(self, name: str, *arguments: Any) -> tuple[Any, ...] | None:
        return next(iter(self._queries.rows(name, *arguments)), None)

    def revision(self, workflow_id: WorkflowId) -> tuple[int, int]:
        """Number of the run, and of its newest plan."""
        found = self._one("find_revision", workflow_id)
        if found is None:
            raise RunNotFoundError(workflow_id)
        return found[0], found[1]

    def plan(self, workflow_id: WorkflowId, revision: int | None) -> bytes:
        no, newest = self.revision(workflow_id)
        wanted = newest if revision is None else revision
        if newest == 0 and revision is None:
            return b""  # a run of kind `states` has none
        what = f"plan revision {wanted} of run {workflow_id}"
        if not 1 <= wanted <= newest:
            raise NotFoundError(f"there is no {what}", next_step=f"Its newest revision is {newest}.")
        row = self._one("read_plan", no, wanted)
        if row is None:
            raise CheckpointCorruptedError(what, "the row is missing")
        body: bytes = row[0]
        if codec.plan_digest(workflow_id, wanted, body) != row[1]:
            raise CheckpointCorruptedError(what, "the digest does not match what is stored")
        return body

    def checkpoints(self, workflow_id: WorkflowId) -> list[CheckpointRecord]:
        return [checkpoint_record(row) for row in self._queries.rows("list_checkpoints", workflow_id)]

    def newest_sound_checkpoint(self, workflow_id: WorkflowId) -> CheckpointRecord | None:
        head = self.head(workflow_id)
        rows: Any = self._queries.rows("read_events", head.no, 0, head.sequence)
        sound = codec.sound_upto(workflow_id, rows, self._blobs(head.no))
        for row in reversed(list(self._queries.rows("list_checkpoints", workflow_id))):
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
        for revision in range(1, self.revision(workflow_id)[1] + 1):
            self.plan(workflow_id, revision)
