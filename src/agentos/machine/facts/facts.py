"""What is known of a run: a value that the reducers make from its journal, event by event.

Maps are persistent: a new value shares all that did not change, so that the cost of an event does not grow with the
size of the run. Nothing here depends on the plan: a state can be read back without the workflow that made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec
from msgspec import Raw

from agentos.dag.define.model_calls import OnLimit
from agentos.ids import CheckpointId, GateId, TaskId, WorkflowId
from agentos.machine import events as ev
from agentos.machine.commands import Sender, SignedAnswer
from agentos.machine.state import ENDED, TaskStatus
from agentos.persistent_map import PersistentMap

Stopping = Literal["", "abort", "pause"]
Status = Literal["pending", "running", "waiting", "paused", "interrupted", "complete", "failed", "aborted"]
FAILED: frozenset[str] = frozenset({"failed", "cancelled"})
"""Statuses that make a run end as failed."""


class StepFacts(NamedTuple):
    """A step that a task's function has made."""

    number: int
    name: str
    inputs: str
    output: Raw


class PendingStep(NamedTuple):
    """A step that has begun, and has no result yet: one with an external effect, a sleep, or a wait for an answer."""

    number: int
    name: str
    inputs: str
    until: datetime | None = None
    """Of a sleep."""
    seconds: float = 0.0
    gate: GateId | None = None
    """Of a wait: the gate that asks."""

    @property
    def is_waited_for(self) -> bool:
        """Whether the function sleeps or waits there; else it is at work."""
        return self.until is not None or self.gate is not None

    def due_from(self, now: datetime) -> PendingStep:
        """The same for somebody who starts to wait now: the clock by which `until` was written may have been ahead."""
        latest = now + timedelta(seconds=self.seconds)
        return self if self.until is None or self.until <= latest else self._replace(until=latest)


class TaskFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All that is known of one task."""

    status: TaskStatus = "pending"
    """`running`: an attempt is under way, or its items are."""
    layer: int = 0
    place: str = ""
    attempts: int = 0
    """Attempts ever started; the newest has this number."""
    tries: int = 0
    """Failed attempts that count against the present allowance of retries."""
    settled: int = 0
    """Attempts that ended by themselves, ever: not those whose driver died, nor those that were put off."""
    cuts: int = 0
    """Attempts in a row that ended because their driver died."""
    seq: int = 0
    """Of the event that last began or ended an attempt: later than a checkpoint, its effect is not part of it."""
    not_before: datetime | None = None
    retry_s: float = 0.0
    """How long the next attempt was to wait when the last one failed."""
    output: Raw = ev.NOTHING
    messages: Raw = ev.NOTHING
    context: Raw = ev.NOTHING
    error: ev.TaskFailure | None = None
    because: str = ""
    execution_time_ms: float = 0.0
    verified: ev.Verification | None = None
    """By what the attempt was verified that ended last."""
    previous: bytes | None = None
    """What came of it (`result_mark`) before it was set back: dependants follow only if the new result differs."""
    steps: tuple[StepFacts, ...] = ()
    """Those of a task that has not succeeded: its next attempt takes them over."""
    files_seq: int = 0
    """Of the newest snapshot that holds what its steps did to files; 0 where they did nothing to any."""
    pending: tuple[PendingStep, ...] = ()
    """Those that have begun and have no result."""
    suspended: bool = False
    """Its function sleeps or waits, and no attempt is under way. What it waits for lets it go on."""
    limit: ev.AtLimit = ""
    """`ask`: somebody is to say what becomes of it at the limit that its agent reached. `wait`: it waits there."""
    waits: int = 0
    """Attempts in a row that ended at a limit which is to be waited for."""
    switch: OnLimit | None = None
    """What its agent goes on as, since it reached a limit."""
    outdated: bool = False
    """A need of it ran again with another result while it was under way: what comes of it does not count."""

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def sleeps_until(self) -> datetime | None:
        """When the first of its sleeps is over."""
        return min((step.until for step in self.pending if step.until is not None), default=None)

    def due(self, now: datetime) -> datetime:
        """When the next attempt may begin for somebody who starts to wait now.

        Never later than its delay from now: the clock by which `not_before` was written may have been ahead.
        """
        latest = now + timedelta(seconds=self.retry_s)
        return latest if self.not_before is None else min(self.not_before, latest)


class GateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A gate. One without an answer that is not open was withdrawn: what it guarded ended, changed or went."""

    opened: ev.DecisionRequired
    epoch: int
    answer: ev.Answer | Literal[""] = ""
    author: str = ""
    sender: Sender | None = None
    signed: SignedAnswer | None = None
    covers: dict[str, tuple[str, ...]] | None = None
    """What the approval is about beside the task itself: for each path every digest that it holds for, as it was when
    the gate opened and as tasks of this run have left it since; empty for no file. What is undone is as it was before.
    """
    reason: str = ""
    choice: str = ""
    output: Raw = ev.NOTHING
    order: tuple[int, str, str] = (0, "", "")
    """Where its decision stands in the state: layer, place, gate."""


class Added(NamedTuple):
    """What a layer has added to the state since it was cut last."""

    tasks: int = 0
    messages: int = 0
    decisions: int = 0
    context_keys: int = 0


NOTHING_ADDED = Added()


class EndPoint(NamedTuple):
    """The files after the last of the attempts that were at work on them."""

    task_id: TaskId
    snapshot: str
    tree: str
    seq: int
    partial: bool
    alone: bool
    """No other changed files while this one was at work."""


class FilePoint(NamedTuple):
    """The newest snapshot of the worktree's files."""

    snapshot: str
    """Empty where the files could not be captured."""
    tree: str
    seq: int
    open: bool
    """An attempt may have changed files since, and none has ended in order after which they were captured again."""
    partial: bool
    kept: frozenset[tuple[TaskId, int]] = frozenset()
    """Attempts that have ended since, and after which the files were still these: nothing of them is undone."""
    ended: EndPoint | None = None
    """What was captured after the last of these attempts, until its end is on record: cut off in between, the attempt
    has no result, and goes back to the files before it."""


class HalfDone(NamedTuple):
    """Attempts that ended without a result, and whose edits are still in the files: undone before the next attempt."""

    before: FilePoint
    tasks: frozenset[TaskId]


class Placement(NamedTuple):
    """Where the newest attempt of a task is performed, where that is not beside the driver."""

    attempt: int
    runner: str
    handle: str


class Turn(NamedTuple):
    """The files as an agent that is at work had left them last."""

    snapshot: str
    seq: int
    base: str
    """Of an isolated one: what its worktree was made from."""


class GateRejection(NamedTuple):
    """A decision point that was answered no."""

    gate_id: GateId
    layer: int


class SavedState(msgspec.Struct, frozen=True, kw_only=True):
    """A state that a CheckpointManager saved by itself, in stored form piece by piece."""

    current_layer: int = 0
    messages: tuple[Raw, ...] = ()
    tasks: tuple[Raw, ...] = ()
    decisions: tuple[Raw, ...] = ()
    context: Mapping[str, Raw] = {}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """A run, as far as its journal tells."""

    workflow_id: WorkflowId
    name: str = ""
    sequence: int = 0
    """Of the last event folded; the next one has this plus one."""
    epoch: int = 0
    began_at: datetime | None = None
    """When its first event was written."""
    drives: int = 0
    status: Status = "pending"
    """`interrupted`: nothing is in its way, and nobody drives it. One whose driver died stays `running` here: only its
    lease tells."""
    stood: Status = "pending"
    """Its status before this drive began."""
    interrupted: bool = False
    """The drive before this one had no terminal event: its driver died."""
    current_layer: int = 0
    """The highest layer that has begun or was finished in this epoch."""
    begun_layer: int = -1
    """The highest layer that has begun in this epoch, -1 before the first has."""
    finished_layer: int = -1
    """Layer of the newest checkpoint that counts, -1 before the first."""
    total_layers: int = 0
    """The most layers that the plan has had: no task lies beyond."""
    plan_revision: int = 1
    tasks: PersistentMap[TaskId, TaskFacts] = PersistentMap()
    """Every task that anything has happened to. A task that is absent is pending."""
    running: PersistentMap[TaskId, int] = PersistentMap()
    """All and only tasks with an attempt under way, and its number."""
    placed: PersistentMap[TaskId, Placement] = PersistentMap()
    """Where the newest attempt of a task was handed over to another runner, until it is known to have ended: also of
    one whose driver died, and which may still be at work there."""
    failed: PersistentMap[TaskId, bool] = PersistentMap()
    """All and only tasks that ended failed or cancelled."""
    gates: PersistentMap[GateId, GateFacts] = PersistentMap()
    open_gates: PersistentMap[GateId, bool] = PersistentMap()
    """All and only gates that wait for an answer."""
    refused: GateRejection | None = None
    """A decision point that was answered no: neither its layer nor a later one begins any more."""
    children: PersistentMap[TaskId, tuple[TaskId, ...]] = PersistentMap()
    """For each for_each task that was expanded: its items' tasks, in order."""
    commands: tuple[ev.CommandReceived, ...] = ()
    """Asked for, and waiting for a layer boundary."""
    changes: tuple[ev.PlanChanged, ...] = ()
    """How the plan was changed under way, oldest first."""
    cuts: PersistentMap[CheckpointId, tuple[int, int]] = PersistentMap()
    """Checkpoints that count: id to sequence and layer."""
    ask: PersistentMap[TaskId, str] = PersistentMap()
    """Tasks whose effect may have happened, and why that is not known; they wait for an answer."""
    opened: PersistentMap[int, bool] = PersistentMap()
    """Layers whose layer_start stands in this drive."""
    added: PersistentMap[int, Added] = PersistentMap()
    """For each layer to which anything was added since it was cut last: how much."""
    stopping: Stopping = ""
    stop_reason: str = ""
    files: FilePoint | None = None
    """None before the first file task, and after a rollback."""
    half_done: HalfDone | None = None
    """What `files` still holds of attempts that wait for another try, or that a stop in order cut off."""
    sessions: PersistentMap[TaskId, ev.AgentSession] = PersistentMap()
    """Tasks without success whose agent has a session that the next attempt may go on with."""
    turns: PersistentMap[TaskId, Turn] = PersistentMap()
    """The same, for what such a one had done to files."""
    spent: PersistentMap[TaskId, ev.Usage] = PersistentMap()
    """What each task has paid for, all attempts together, also those that were rolled back."""
    spent_in_all: ev.Usage = ev.Usage()
    """The sum of these."""
    sources: PersistentMap[TaskId, ev.SourcesRecord] = PersistentMap()
    """What the sources of each task that has some were when its newest attempt began; of none that went on with what
    it had made from others."""
    source_names: PersistentMap[str, dict[str, str]] = PersistentMap()
    """By the digest of each: the files, or folders, to name what changed."""
    own_output: tuple[str, ...] = ()
    """Files of the worktree that drives of this run printed to."""
    unmerged: PersistentMap[TaskId, ev.TaskFiles] = PersistentMap()
    """All and only finished isolated tasks whose changes are not yet in the worktree."""
    candidates: PersistentMap[TaskId, ev.TaskFiles] = PersistentMap()
    """What candidates that have ended made of files; what the winner did is in `unmerged`, under its task."""
    merge: ev.FilesMerged | None = None
    """The newest merge of these, until it is written to the worktree; None where they changed since."""
    saved: SavedState | None = None
    """Newest state of a run of kind `states`."""
    signers: ev.Signers | None = None
    """Who may sign answers; None where no gate took a signature when it began."""

    def task(self, task_id: TaskId) -> TaskFacts:
        return self.tasks.get(task_id, PENDING)

    @property
    def still_spending(self) -> frozenset[TaskId]:
        """Tasks whose agent may have used more than is known: it is at work, or was cut off and has not gone on."""
        return frozenset(id for id, session in self.sessions.items() if session.ended in ("", "cut_off"))


PENDING = TaskFacts()


def begun_steps(task: TaskFacts) -> list[PendingStep]:
    """Steps with an external effect that have begun, and of which nobody knows what became of them."""
    return [step for step in task.pending if not step.is_waited_for]


def result_mark(task: TaskFacts) -> bytes:
    """What dependants can see of how a task ended, in a form that only compares."""
    seen = bytes(task.output)
    if task.error is not None:
        seen += f"\0{task.error.type}\0{task.error.text}".encode(errors="surrogatepass")
    return blake2b(task.status.encode() + b"\0" + seen, digest_size=16).digest()
