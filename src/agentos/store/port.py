"""The port: what the engine asks of a store. SQLite and PostgreSQL answer it; one contract suite holds both.

All verbs are synchronous and are called from threads of the engine's choosing, one thread at a time for each store
object. Every verb that writes is one transaction: durable on return, or nothing happened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import msgspec

from agentos.dag.define.cron import Cron
from agentos.ids import CheckpointId, WorkflowId
from agentos.machine.events import DecisionRequired, Event
from agentos.machine.slots import ScheduleState
from agentos.machine.state import TaskStatus
from agentos.store.codec import EventRow
from agentos.version import VERSION

if TYPE_CHECKING:
    from agentos.store.graph_threads import GraphTables

RunStatus = Literal["pending", "running", "waiting", "paused", "interrupted", "complete", "failed", "aborted"]
STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)
UNDER_WAY: tuple[RunStatus, ...] = ("pending", "running", "waiting", "paused", "interrupted")
"""Of runs that may ask something, or be begun or gone on with as they are."""
UNFINISHED: tuple[RunStatus, ...] = (*UNDER_WAY, "failed")
"""Of runs that a resume can bring further."""
ENDED: tuple[RunStatus, ...] = ("complete", "failed", "aborted")
"""Of runs that nothing more becomes of by itself."""
INCOMPLETE: tuple[TaskStatus, ...] = (
    "pending",
    "running",
    "retrying",
    "waiting",
    "failed",
    "failed_safe",
    "skipped",
    "cancelled",
)
"""Every status of a task but `complete`."""
Durability = Literal["full", "process"]
"""`full`: what a verb wrote survives loss of power. `process`: a killed process only; the last writes may be gone after
the power failed, never a part of one."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds a lease, described so that another one can tell whether it still lives."""

    host: str
    boot: str
    """Changes with every boot of the host."""
    pidns: str
    """The pid namespace: the pid means something only inside it."""
    pid: int
    started: float
    """Start time of the process as the kernel tells it: a reused pid differs."""
    version: str = ""
    """Of its AgentOS; empty where that is too old to say."""

    def __str__(self) -> str:
        """For people: the version is told where it is not ours."""
        process = f"process {self.pid} on {self.host}"
        if self.version == VERSION:
            return process
        return f"{process} ({f'AgentOS {self.version}' if self.version else 'an older AgentOS'})"


LEASE_S = 15.0
"""How long a lease lasts unless settings say otherwise. Its holder renews it three times in that time."""
PATIENCE_S = 30.0
"""How long a verb tries again before it gives up with StoreUnavailableError: while other writers hold the lock, or the
server is gone (restarted, failed over, cut off)."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to drive a run. `token` grows with every change of hands and fences the writes of older holders."""

    workflow_id: WorkflowId
    token: int
    lease_s: float
    taken_from: Holder | None = None
    """Who held it before, where it was not let go in order."""
    taken_alive: bool = False
    """That holder's process still existed (stopped or stuck) when its lease had run out."""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Whose runs a shared database shows: those of one worktree of one repository. Ids are unique within it.

    A database file is not shared in this way: there all runs have the scope HERE.
    """

    repository: str = ""
    worktree: str = ""
    """Empty for the main one: every clone of the repository has one."""


HERE = Scope()


class RunLimit(msgspec.Struct, frozen=True, kw_only=True):
    """At most `limit` runs with this key are driven at once, in one repository; those of one key name one limit."""

    key: str
    limit: int


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """How a run was submitted that has not begun: who may take it, when, and what it was submitted from."""

    queue: str = ""
    """Only workers that name it take the run; empty: only those that name none."""
    priority: int = 0
    """Higher goes first; the older one among equals."""
    ready_at: datetime | None = None
    """Nobody takes it before. None, at the submit: in `delay_s` from then, by the clock of the database."""
    delay_s: float = 0.0
    limit: RunLimit | None = None
    submitted_from: str = ""
    """The commit and files it was submitted with, as JSON; empty where there is no repository."""


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """What is written down when a run is created."""

    workflow_id: WorkflowId
    name: str
    kind: Literal["workflow", "states"] = "workflow"
    """`states`: a run of a CheckpointManager used by itself."""
    source: str = ""
    """Where the workflow was defined: path relative to the root, and its name, as JSON."""
    root: str = ""
    """Identity of the worktree it belongs to."""
    host: str = ""
    """The name of the machine that has it; empty where that is not known."""
    plan: bytes = b""
    """The base plan, encoded. Empty for kind `states`."""
    fingerprint: str = ""
    """Of definition and parameters: a run of the same id with another one is refused."""
    parent_id: WorkflowId | None = None
    labels: tuple[str, ...] = ()
    """By which lists and workers pick runs."""
    limit: RunLimit | None = None
    created_at: datetime


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run as listed. `status` is never `running` for a run that nobody drives: then it is `interrupted`."""

    workflow_id: WorkflowId
    name: str
    kind: Literal["workflow", "states"]
    status: RunStatus
    layer: int
    layers: int
    created_at: datetime
    updated_at: datetime
    sequence: int
    epoch: int
    source: str
    root: str
    fingerprint: str
    parent_id: WorkflowId | None
    plan_revision: int
    holder: Holder | None
    """Who drives it now, if anybody."""
    lease_until: datetime | None = None
    """Until when the last lease was good that nobody let go; how long its holder gave a sign of life."""
    scope: Scope = HERE
    labels: tuple[str, ...] = ()
    host: str = ""
    waiting: Waiting | None = None
    """Of a run that was submitted and has not begun; its status is `pending`."""


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs a worker takes."""

    queues: tuple[str, ...] = ("",)
    """Of these alone; the empty one stands for runs of no queue."""
    workflows: tuple[str, ...] = ()
    """By name; empty: any."""
    labels: tuple[str, ...] = ()
    """With one of them; empty: any."""
    passed_over: Mapping[str, int] = {}
    """Not these, by id, as long as they stand at this sequence."""


class TakenRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose lease `take_runs` gave."""

    record: RunRecord
    """As it was before."""
    lease: Lease
    submitted_from: str = ""
    """As in `Waiting`; also of one that has begun."""
    before: tuple[Any, ...] = ()
    """The lease that was there, as its store keeps it."""


class RunMark(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a list of runs: right behind the run of this id, which began at this time.

    Where no run has the id, all that began at this time are still to come.
    """

    created_at: datetime
    workflow_id: str = ""
    scope: Scope = HERE
    """Of that run."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands after an append; what lists show without folding."""

    status: RunStatus
    layer: int
    layers: int
    epoch: int
    asked: tuple[int, ...] | None = None
    """The events that ask what has no answer; None: the same as before."""
    left: tuple[str, ...] | None = None
    """Of a run that has ended: in which statuses beside `complete` it has tasks; None: in any."""


class RunQuestions(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is under way, and what it waits to be told."""

    run: RunRecord
    asked: tuple[DecisionRequired, ...] | None
    """None: its journal has to be folded to know."""


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A kept checkpoint, without its state."""

    id: CheckpointId
    workflow_id: WorkflowId
    layer: int
    sequence: int
    timestamp: datetime
    snapshot: str
    abandoned: bool = False
    """Belongs to an epoch that was rolled back."""
    digest: str = ""
    """Running digest of the journal at its sequence, in hexadecimal."""
    scope: Scope = HERE
    """That of its run."""


class PrunedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose checkpoints were pruned."""

    workflow_id: WorkflowId
    deleted: int
    """Checkpoints that were deleted."""
    kept: int
    """Checkpoints that are left."""


class PostedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command in the durable inbox of a run."""

    id: str
    author: str
    attempt_id: str = ""
    """Set where the author's process carries an attempt of ours."""
    posted_at: datetime
    command: dict[str, Any]


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow that runs by itself, and how far it has come."""

    name: str
    version: int
    """Grows with every change. 0: it is not stored yet."""
    is_active: bool = True
    """False: it was removed. How far it came is kept: added again, no slot of it comes twice."""
    cron: Cron
    state: ScheduleState
    run: NewRun
    """What its runs begin as, without id and plan."""
    waiting: Waiting
    files: str
    """A digest of the workflow's file as it was when it was added."""
    changed_at: datetime
    """When it was added, changed or removed; firing is no change."""
    scope: Scope = HERE
    """The worktree that owns it."""


class RunCopy(msgspec.Struct, frozen=True, kw_only=True):
    """All that is stored of one run, row by row as the codec wrote it: the same for every store.

    Commands in its inbox stay behind: they were meant for the run where it is.
    """

    run: RunRecord
    token: int
    """The last lease's; leases taken on the copy go on from it."""
    plans: tuple[bytes, ...]
    """Every revision, the first one first."""
    rows: tuple[EventRow, ...]
    blobs: dict[bytes, bytes]
    """Large outputs that rows name, by digest."""
    checkpoints: tuple[CheckpointRecord, ...]


class Line(Protocol):
    """A way to append from an event loop without waiting for anything but a socket.

    While a batch is on its way another thread may `prune`, and the store is used for nothing else.
    """

    @property
    def patience_s(self) -> float:
        """A server that says nothing for longer than this hangs."""

    def fileno(self) -> int:
        """Readable when something has arrived. The same for the whole life of the line."""

    def send(self, lease: Lease, events: Sequence[Event], progress: Progress) -> bool:
        """Begin an `append`. False where the batch or the line is not for it: close the line, and `append` it."""

    def is_answered(self) -> bool:
        """Take in what has arrived. True once there is nothing to wait for: all is said, or the line is dead."""

    def finish(self) -> bool:
        """Whether all of the batch is durable. If not, nobody knows, and the line is to be closed: `append` it again.

        A batch that arrived though its answer did not is not written twice.
        """

    def close(self) -> None:
        """At any time, and once."""


class StorePort(Protocol):
    """About a dozen verbs. Errors: the tree of `agentos.exceptions`, never a driver's own."""

    def create_run(self, run: NewRun, holder: Holder, lease_s: float) -> Lease:
        """Write the run, its plan (revision 1) and its first lease. RunRefusedError if the id exists.

        QueueFullError, and nothing written, where its limit is reached.
        """

    def submit_run(self, run: NewRun, waiting: Waiting, *, refuse_full: bool = False) -> None:
        """Write the run and its plan, for whoever takes it with `take_runs`. RunRefusedError if the id exists.

        `refuse_full`: QueueFullError where its limit is reached by runs that are driven, or were submitted before.
        """

    def take_lease(self, workflow_id: WorkflowId, holder: Holder, lease_s: float, *, drives: bool = True) -> Lease:
        """Take the free, dead or expired lease, with a token one higher. LeaseHeldError if it is alive.

        QueueFullError where the run's limit is reached by others that are driven now, unless the run is not to be
        driven (not `drives`), but answered, aborted or deleted.
        """

    def take_runs(self, wanted: RunFilter, holder: Holder, lease_s: float, most: int) -> list[TakenRun]:
        """Take the leases of runs that were submitted or interrupted, at most so many, in one transaction.

        By priority, then age; no run that another worker takes at the same time, nor one over its limit.
        """

    def return_lease(self, taken: TakenRun) -> None:
        """Let go of a run that could not be gone on with, and leave it as it was found: who held it, and until when."""

    def renew_lease(self, lease: Lease) -> None:
        """Push the expiry out; also where it had expired and nobody took it. LeaseLostError otherwise."""

    def release_lease(self, lease: Lease) -> None:
        """Let go in order. Does nothing if the lease is no longer ours."""

    def move_run(self, lease: Lease, root: str, host: str, scope: Scope) -> None:
        """Say that the run belongs to another worktree from now on; this store then shows the runs of that scope.

        A database file has no scopes: there `scope` means nothing. LeaseLostError; RunRefusedError where that worktree
        has a run of the same id.
        """

    def set_source(self, lease: Lease, source: str) -> None:
        """Say where the run's workflow is defined from now on. LeaseLostError."""

    def append(
        self,
        lease: Lease,
        events: Sequence[Event],
        progress: Progress,
        *,
        plan: bytes | None = None,
        consumed: Iterable[str] = (),
    ) -> None:
        """Write events in order, their checkpoints, a new plan revision, and take commands out of the inbox.

        The token, and that the first sequence follows the stored one, are checked in the same transaction:
        LeaseLostError, and nothing written, if either fails.
        """

    def open_line(self) -> Line | None:
        """None where the store has none, or none to spare: then `append`."""

    def read_events(
        self, workflow_id: WorkflowId, *, after: int = 0, upto: int | None = None, whole: bool = True
    ) -> list[Event]:
        """The events with after < seq <= upto, digest chain checked, large outputs put back in place.

        Not `whole`: of an output that has a blob of its own only the beginning is read. That is no JSON, nor checked.
        """

    def read_plan(self, workflow_id: WorkflowId, revision: int | None = None) -> bytes:
        """The base plan of a revision; the newest where none is given."""

    def find_run(self, workflow_id: str) -> RunRecord:
        """By id or unique prefix (an exact id wins). RunNotFoundError; RunRefusedError if ambiguous."""

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
        """Newest first: at most so many, and where any are named only those in one of the statuses, with one label.

        `name` is that of the workflow. `text` is a part of the id or the name; letters from A to Z are the same in
        either case. `before`: only what comes behind that place.

        What it costs grows with the runs it gives, not with those there are; a label, a name or a text is looked for
        from the newest on, until there are enough.
        """

    def open_questions(self) -> list[RunQuestions]:
        """The runs under way that ask something, newest first. One query, whose cost grows with what they ask.

        The rows that hold a question are checked against the digest before them; of a damaged one `asked` is None.
        """

    def find_checkpoint(self, checkpoint_id: str) -> CheckpointRecord | None: ...

    def list_checkpoints(self, workflow_id: WorkflowId) -> list[CheckpointRecord]:
        """Oldest first."""

    def newest_sound_checkpoint(self, workflow_id: WorkflowId) -> CheckpointRecord | None:
        """The newest checkpoint whose journal, from the start to its sequence, is undamaged."""

    def prune(self, workflow_id: WorkflowId, keep: int) -> int:
        """Delete all but the newest `keep` checkpoints that count, and what is older than these; no events.

        Of what a rollback left behind since then, the newest `keep` stay beside them. How many were deleted.
        """

    def prune_runs(self, workflow_ids: Sequence[WorkflowId], keep: int) -> list[PrunedRun]:
        """The same of many runs, some hundred at a time; those that are not there any more are left out."""

    def verify(self, workflow_id: WorkflowId) -> None:
        """Check every event, blob, checkpoint and plan of a run; the IntegrityError of the first damaged one."""

    def read_copy(self, workflow_id: WorkflowId) -> RunCopy:
        """The whole run as it stands at one moment, verified."""

    def insert_copy(self, copy: RunCopy) -> None:
        """Write a run that was copied elsewhere; nobody holds its lease. All of it, verified, or nothing.

        RunRefusedError if the id, or that of a checkpoint, exists; IntegrityError if the copy is not sound.
        """

    def post_command(self, workflow_id: WorkflowId, command: PostedCommand) -> None:
        """Put a command into the run's inbox; whoever drives the run finds it."""

    def read_inbox(self, workflow_id: WorkflowId) -> list[PostedCommand]:
        """Commands not yet consumed, oldest first."""

    def now(self) -> datetime:
        """The time that delays and schedules go by: the server's, or this host's."""

    def read_schedules(self) -> list[ScheduleRecord]:
        """By name: those of the repository, whichever worktree owns them; of a database file all. Removed ones too."""

    def read_schedule_plan(self, name: str) -> bytes:
        """What runs of this schedule are planned as. NotFoundError."""

    def write_schedule(
        self, schedule: ScheduleRecord, *, plan: bytes | None = None, fire: NewRun | None = None
    ) -> bool:
        """Store it in the place of the version it says (0: of none), and submit the run of a slot: both, or nothing.

        False where it was changed since. A run of that id that exists is left as it is.
        """

    def has_changed(self) -> bool:
        """Whether others wrote to the runs that this store has looked at, since the last call. Made for polling.

        It may tell of more than that (on SQLite of any write), and a little later than it was written.
        """

    def delete_runs(self, runs: Sequence[RunRecord]) -> list[WorkflowId]:
        """Remove those of the runs that nobody drives and that stand as they were listed, all or none of these, with
        their events, checkpoints and blobs nobody else uses; the space can be used again.

        Gives every one that is not there any more, also where it was gone before: safe to repeat.
        """

    def graph_tables(self) -> GraphTables:
        """Where LangGraph's threads are kept beside the runs, made where it is not there yet. It closes the store."""

    def size(self) -> int:
        """Bytes in use on disk."""

    def close(self) -> None: ...
