"""Reading what a run wrote, with every digest checked, from any store: rows to the records of the port, and whole
runs out of one store into another. Each call belongs inside one transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from agentos import typed
from agentos.exceptions import AgentosError, CheckpointCorruptedError, NotFoundError, RunNotFoundError, RunRefusedError
from agentos.ids import CheckpointId, WorkflowId
from agentos.machine.events import Checkpointed, Event
from agentos.store import codec
from agentos.store.codec import CODES, from_microseconds
from agentos.store.port import (
    ENDED,
    HERE,
    INCOMPLETE,
    UNDER_WAY,
    CheckpointRecord,
    Holder,
    NewRun,
    PostedCommand,
    RunCopy,
    RunMark,
    RunQuestions,
    RunRecord,
    RunStatus,
    Scope,
)
from agentos.store.run_lists import questions_from
from agentos.store.run_queue import waiting_columns, waiting_from
from agentos.values import decode_value

R = TypeVar("R", RunRecord, CheckpointRecord)
T = TypeVar("T")

_UNDRIVEN: tuple[RunStatus, ...] = ("pending", "running")
QUEUED = "queued"
"""How a run is stored that was submitted, until its first event."""
_TOLD_BY_LEASE: frozenset[RunStatus] = frozenset((*_UNDRIVEN, "interrupted"))
_LAST = 2**63 - 1
"""Later than any run began."""
_decode_cut = typed.decoder(Checkpointed).decode
_decode_labels = msgspec.json.Decoder(tuple[str, ...]).decode


def run_record(
    stands: Sequence[Any], origin: Sequence[Any], *, holder: Holder | None, lease_until: int, scope: Scope = HERE
) -> RunRecord:
    """A run from the columns before its lease and after it; `holder` drives it now, if anybody does."""
    id_, name, kind, status, layer, layers, epoch, sequence, revision = stands
    created_at, updated_at, source, root, host, fingerprint, parent_id, stored = origin
    try:
        labels = () if stored == "[]" else _decode_labels(stored)  # as of nearly all
    except msgspec.DecodeError as error:
        raise CheckpointCorruptedError(f"run {id_}", f"its labels cannot be read: {error}") from error
    return RunRecord(
        workflow_id=WorkflowId(id_),
        name=name,
        kind=kind,
        status=shown_status(status, is_driven=holder is not None),
        layer=layer,
        layers=layers,
        created_at=from_microseconds(created_at),
        updated_at=from_microseconds(updated_at),
        sequence=sequence,
        epoch=epoch,
        source=source,
        root=root,
        host=host,
        fingerprint=fingerprint,
        parent_id=parent_id,
        plan_revision=revision,
        holder=holder,
        lease_until=from_microseconds(lease_until) if lease_until else None,
        scope=scope,
        labels=labels,
    )


def shown_status(stored: str, *, is_driven: bool) -> RunStatus:
    """The status that lists show: a run that should be going and has no driver was interrupted."""
    if stored == QUEUED:
        return "pending"
    return "interrupted" if not is_driven and stored in _UNDRIVEN else stored  # type: ignore[return-value]


def origin_columns(run: NewRun | RunRecord) -> tuple[str | None, ...]:
    """Where a run comes from, as both stores keep it; labels are a list in JSON."""
    return (run.source, run.root, run.host, run.fingerprint, run.parent_id, encoded_labels(run.labels))


def stored_statuses(asked: Collection[RunStatus]) -> list[str]:
    """Where to look for runs in one of these statuses: an interrupted one is stored as it was when its driver died."""
    submitted = (QUEUED,) if "pending" in asked else ()
    return sorted({*asked, *(_UNDRIVEN if "interrupted" in asked else ()), *submitted})


def must_be_told_apart(asked: Collection[RunStatus]) -> bool:
    """Whether runs are stored under these statuses that are in another one: only their leases tell."""
    return 0 < len(_TOLD_BY_LEASE.intersection(asked)) < len(_TOLD_BY_LEASE)


class Picks(NamedTuple):
    """Which runs a list is about beside their statuses, as both stores ask for them."""

    labels: tuple[str, ...]
    name: str | None
    text: str | None
    at: int
    """In microseconds: what began then or earlier."""
    behind: str
    """Of those that began right then, only what stands behind the run of this id."""
    scope: Scope
    """Of that run."""


def picks(labels: Collection[str], name: str | None, text: str, before: RunMark | None) -> Picks | None:
    """None where no run can be meant: bytes from outside that are no text name none."""
    askable = tuple(label for label in labels if "\0" not in label and label.isprintable())
    if (labels and not askable) or (name is not None and not is_text(name)) or (text and not is_text(text)):
        return None
    if before is None:
        return Picks(askable, name, text or None, _LAST, "", HERE)
    behind = before.workflow_id if is_text(before.workflow_id) else ""
    return Picks(askable, name, text or None, codec.to_microseconds(before.created_at), behind, before.scope)


def listed_as(run: RunRecord) -> tuple[int, int, int]:
    """What of a run changes with whatever is written to it: sequence, when it was made, when it was last written to."""
    return run.sequence, codec.to_microseconds(run.created_at), codec.to_microseconds(run.updated_at)


PRUNED_AT_ONCE = 500
"""Runs whose checkpoints are pruned in one transaction: others do not wait for long."""


def batches(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """The items in order, so many at a time."""
    return (items[start : start + most] for start in range(0, len(items), most))


def keeps_too_few(keep: int) -> AgentosError:
    return AgentosError(f"cannot keep {keep} checkpoints", next_step="Keep at least 1: the run resumes from it.")


def encoded_labels(labels: tuple[str, ...]) -> str:
    """As both stores keep them: a list in JSON."""
    return msgspec.json.encode(labels).decode()


def checkpoint_record(row: Sequence[Any]) -> CheckpointRecord:
    """A row of `find_checkpoints` or `list_checkpoints`, held against the event that made it."""
    id_, workflow_id, layer, sequence, at, snapshot, abandoned, digest = row[:8]
    event_at, code, body, event_digest = row[8:12]
    shared = row[12:]
    what = f"checkpoint {id_} of run {workflow_id}"
    if code != CODES[Checkpointed]:
        raise CheckpointCorruptedError(what, "no checkpoint event stands at its sequence")
    if digest != event_digest:
        raise CheckpointCorruptedError(what, "its digest is not that of its sequence")
    try:
        cut = _decode_cut(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointCorruptedError(what, f"its event cannot be read: {error}") from error
    if (id_, layer, at, snapshot) != (cut.checkpoint_id, cut.layer, event_at, cut.snapshot):
        raise CheckpointCorruptedError(what, "it differs from the event that made it")
    return CheckpointRecord(
        id=CheckpointId(id_),
        workflow_id=WorkflowId(workflow_id),
        layer=layer,
        sequence=sequence,
        timestamp=from_microseconds(at),
        snapshot=snapshot,
        abandoned=bool(abandoned),
        digest=digest.hex(),
        scope=Scope(repository=shared[0], worktree=shared[1]) if shared else HERE,
    )


def posted_command(row: Sequence[Any]) -> PostedCommand:
    """A row of `read_inbox`."""
    id_, at, author, attempt_id, body = row[:5]
    return PostedCommand(
        id=id_,
        author=author,
        attempt_id=attempt_id,
        posted_at=from_microseconds(at),
        command=decode_value(body),
    )


def is_text(given: str) -> bool:
    """Whether anything stored can begin so: bytes from the command line that are no text name nothing."""
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return bool(given) and "\0" not in given


def only_one(what: str, given: str, rows: Sequence[Sequence[Any]], record: Callable[[Sequence[Any]], R]) -> R:
    """The one that has this id, or alone begins with it. RunRefusedError where there are several, in any scopes."""
    meant = [row for row in rows if row[0] == given] or rows
    if len(meant) == 1:
        return record(meant[0])
    found = [record(row) for row in meant]
    more = len(meant) > 3
    if len({one.scope for one in found}) == 1:
        listed = ", ".join(row[0] for row in meant[:3]) + (", …" if more else "")
        raise RunRefusedError(f"several {what} begin with {given!r}: {listed}", next_step="Give more of the id.")
    # In a shared database the same id may well be another run.
    listed = "".join(f"\n  {_describe(one)}" for one in found[:3]) + ("\n  …" if more else "")
    raise RunRefusedError(
        f"several worktrees have {what} that begin with {given!r}:{listed}",
        next_step="Say which is meant: --repo PATH, a clone or worktree of it on this host. Or give more of the id.",
    )


def _describe(record: RunRecord | CheckpointRecord) -> str:
    worktree = f", its worktree {record.scope.worktree}" if record.scope.worktree else ""
    of = f"of {record.scope.repository}{worktree}"
    if isinstance(record, CheckpointRecord):
        return f"{record.id} of run {record.workflow_id}, {of}"
    where = f", of {record.root}" if record.root else ""
    return f"{record.workflow_id} {of}{where}{f' on {record.host}' if record.host else ''}"


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


class RunReader(ABC):
    """The verbs of the port that look at runs, the same for every store, which says how its queries are asked."""

    @abstractmethod
    def look(self, question: Callable[[Queries], T]) -> T:
        """The answer to a question of single queries."""

    @abstractmethod
    def look_at_once(self, question: Callable[[Queries], T]) -> T:
        """The answer to a question of several queries, which all see the same moment of the database."""

    @abstractmethod
    def record_from(self, row: Sequence[Any]) -> RunRecord:
        """A row of `find_runs`."""

    def with_waiting(self, records: list[RunRecord]) -> list[RunRecord]:
        """The same; those that were submitted and have not begun say how."""
        if not any(one.status == "pending" for one in records):
            return records
        return self.look(lambda queries: _with_waiting(queries, records))

    def read_plan(self, workflow_id: WorkflowId, revision: int | None = None) -> bytes:
        return self.look_at_once(lambda queries: JournalReader(queries).plan(workflow_id, revision))

    def verify(self, workflow_id: WorkflowId) -> None:
        self.look_at_once(lambda queries: JournalReader(queries).verify(workflow_id))

    def newest_sound_checkpoint(self, workflow_id: WorkflowId) -> CheckpointRecord | None:
        return self.look_at_once(lambda queries: JournalReader(queries).newest_sound_checkpoint(workflow_id))

    def read_copy(self, workflow_id: WorkflowId) -> RunCopy:
        def read(queries: Queries) -> RunCopy:
            JournalReader(queries).verify(workflow_id)
            [row, *_] = queries.rows("find_runs", workflow_id, 4)
            [record] = _with_waiting(queries, [self.record_from(row)])
            return read_copy(queries, record)

        return self.look_at_once(read)

    def open_questions(self) -> list[RunQuestions]:
        if not self.has_lists():  # to be looked at, and not migrated yet
            runs = self.list_runs(statuses=UNDER_WAY)
            return [RunQuestions(run=run, asked=None) for run in runs if run.kind == "workflow"]
        rows = self.look(lambda queries: list(queries.rows("open_questions")))
        return questions_from(rows, len(rows[0]) - 8 if rows else 0, self.record_from)

    @abstractmethod
    def has_lists(self) -> bool:
        """Whether the schema is one that has what lists show."""

    @abstractmethod
    def list_runs(self, *, statuses: Collection[RunStatus] = ()) -> list[RunRecord]:
        """As of the port."""

    def find_run(self, workflow_id: str) -> RunRecord:
        rows = self._beginning_with("find_runs", workflow_id)
        if not rows:
            raise RunNotFoundError(workflow_id)
        return self.with_waiting([only_one("runs", workflow_id, rows, self.record_from)])[0]

    def find_checkpoint(self, checkpoint_id: str) -> CheckpointRecord | None:
        rows = self._beginning_with("find_checkpoints", checkpoint_id)
        return only_one("checkpoints", checkpoint_id, rows, checkpoint_record) if rows else None

    def list_checkpoints(self, workflow_id: WorkflowId) -> list[CheckpointRecord]:
        return self.look(lambda queries: JournalReader(queries).checkpoints(workflow_id))

    def _beginning_with(self, query: str, prefix: str) -> list[tuple[Any, ...]]:
        return self.look(lambda queries: list(queries.rows(query, prefix, 4))) if is_text(prefix) else []


def _with_waiting(queries: Queries, records: list[RunRecord]) -> list[RunRecord]:
    asked = [one.workflow_id for one in records if one.status == "pending"]
    rows = list(queries.rows("read_waiting", msgspec.json.encode(asked).decode())) if asked else []
    found = {row[:3]: waiting_from(row[3:]) for row in rows}
    return [
        msgspec.structs.replace(one, waiting=found.get((one.workflow_id, one.scope.repository, one.scope.worktree)))
        if one.status == "pending"
        else one
        for one in records
    ]


_OTHER_ID = "Import it under another id (--id NEW), or delete the one that is here."


def read_copy(queries: Queries, record: RunRecord) -> RunCopy:
    """The run of this record. The caller has verified it."""
    journal = JournalReader(queries)
    head = journal.head(record.workflow_id)
    [(token,)] = queries.rows("read_token", record.workflow_id)
    return RunCopy(
        run=record,
        token=token,
        plans=tuple(journal.plan(record.workflow_id, number + 1) for number in range(record.plan_revision)),
        rows=tuple(codec.EventRow(*row) for row in queries.rows("read_events", head.no, 0, head.sequence)),
        blobs=dict(queries.rows("read_blobs", head.no)),
        checkpoints=tuple(journal.checkpoints(record.workflow_id)),
    )


def insert_copy(queries: Queries, copy: RunCopy) -> int:
    """Every row of the copy; the run's number. The caller verifies what is then there, and rolls back if it must."""
    run = copy.run
    for expected, row in enumerate(copy.rows, 1):  # a number too high would be a row of another run
        if row.seq != expected:
            raise codec.damage_error(run.workflow_id, expected, "the row is missing")
    # `interrupted` is what lists make of a run that should be going and is not.
    status = "running" if run.status == "interrupted" else QUEUED if run.waiting is not None else run.status
    digest = copy.rows[-1].digest if copy.rows else codec.first_digest(run.workflow_id)
    stands = (status, run.layer, run.layers, run.epoch, len(copy.rows), digest, len(copy.plans), copy.token)
    times = (codec.to_microseconds(run.created_at), codec.to_microseconds(run.updated_at))
    named: tuple[Any, ...] = (run.workflow_id, run.name, run.kind)
    origin = origin_columns(run)
    inserted = list(queries.rows("insert_copied_run", *named, *stands, *times, *origin, *waiting_columns(run.waiting)))
    if not inserted:
        raise RunRefusedError(f"run {run.workflow_id!r} exists already", next_step=_OTHER_ID)
    no: int = inserted[0][0]
    for revision, body in enumerate(copy.plans, 1):
        queries.each("insert_plan", [(no, revision, body, codec.plan_digest(run.workflow_id, revision, body))])
    # Only those that rows name, and so are verified: a false one would later be taken for the true one by other runs.
    named_blobs = {row.blob for row in copy.rows}
    blobs = [(no, digest, len(body), body) for digest, body in copy.blobs.items() if digest in named_blobs]
    queries.each("insert_blob", blobs)
    queries.each("insert_event", [(no, *row) for row in copy.rows])
    for cut in copy.checkpoints:
        named = (cut.id, no, cut.sequence, cut.layer, codec.to_microseconds(cut.timestamp))
        values = (*named, bytes.fromhex(cut.digest), cut.snapshot, cut.abandoned)
        if not list(queries.rows("insert_copied_checkpoint", *values)):
            raise RunRefusedError(f"checkpoint {cut.id} exists already", next_step=_OTHER_ID)
    queries.each("insert_label", [(label, times[0], no) for label in run.labels])
    if run.kind == "workflow":
        queries.each("insert_task_left", [(no, status) for status in INCOMPLETE if run.status in ENDED])
        queries.each("insert_question", [] if run.status in ENDED else [(no, 0)])
    return no
