"""What happened in a run. The journal is the ordered list of these; everything else is folded from it.

Every event has `type`, `seq` (1, 2, 3, … without holes), `at` and `workflow_id`. Values that users made (`output`,
`messages`, `context`, `items`) stay in their stored form, as raw JSON bytes: whoever needs one decodes it afresh.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Literal, get_args

import msgspec
from msgspec import Raw

from agentos.dag.define.model_calls import OnLimit
from agentos.dag.define.task import TaskDef
from agentos.ids import EPOCH, CheckpointId, GateId, TaskId, WorkflowId
from agentos.machine.commands import Sender, SignedAnswer

NOTHING = Raw(b"null")
"""The stored form of no value; also the default, so that it costs no bytes."""

GateKind = Literal["approval", "approve", "layer", "error", "ask", "merge", "budget", "wait", "limit"]
Answer = Literal["approved", "rejected", "rerun", "happened", "withdrawn"]
EndedAs = Literal["failed", "failed_safe", "cancelled"]
CaptureReason = Literal["start", "attempt", "turn", "task", "layer", "merge"]
Verdict = Literal["reuse", "reuse, changed", "rerun", "run", "ask", "new", "orphan"]
AgentEnd = Literal["", "ended", "rejected", "cut_off"]
"""How an attempt of an agent ended whose session goes on with the next one: by itself and not done, with work that was
not accepted, or in the middle of a turn. Empty: no session goes on."""


AtLimit = Literal["", "wait", "ask", "switch"]
"""An agent has reached a limit of its service: it waits until that is over, somebody is asked since nobody knows when
that is, or it goes on as another one."""


ALL_FILES = "."
"""Among the files that an approval is about: all of the worktree."""


class TaskFailure(msgspec.Struct, frozen=True, kw_only=True):
    """An error as data."""

    type: str
    text: str
    traceback: str = ""

    @property
    def in_short(self) -> str:
        """Its first line: whoever wants the rest finds it with the attempt."""
        first, *rest = self.text.splitlines() or [""]
        return f"{self.type}: {first}{' …' if rest else ''}" if self.text else self.type


class TaskFiles(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an isolated task left in its own worktree, as snapshots: what it began with, and what it made of that."""

    base: str
    snapshot: str
    paths: int = 0
    """Of a candidate: how much it changed."""
    added: int = 0
    removed: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What models were paid for."""

    input_tokens: int = 0
    """Those read from a cache included."""
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float = 0.0
    """As far as it is known. Below zero where more had been reckoned than an agent says at its end."""
    calls: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cost_usd=self.cost_usd + other.cost_usd,
            calls=self.calls + other.calls,
        )

    def beyond(self, known: Usage) -> Usage:
        """What of this is not in what is known; without its cost."""
        return Usage(
            input_tokens=max(0, self.input_tokens - known.input_tokens),
            output_tokens=max(0, self.output_tokens - known.output_tokens),
            cached_tokens=max(0, self.cached_tokens - known.cached_tokens),
            calls=max(0, self.calls - known.calls),
        )


NO_USAGE = Usage()
"""The one that stands for none: a default takes no bytes only where it is the same value."""


class ModelCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a usage was paid for: one call of a model, or one turn of an agent."""

    started: datetime
    provider: str = ""
    """As OpenTelemetry's `gen_ai.provider.name` has it, else the server's host."""
    model: str = ""
    answered_by: str = ""
    """The model that the answer names, where that is another one."""
    agent: str = ""
    """The agent whose turn it was; empty for a call of our own."""
    error: str = ""
    """In a word, why it was paid for and gave nothing."""


class AgentSession(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The conversation an agent keeps by itself, as far as one needs it to go on with it."""

    agent: str
    id: str = ""
    """Empty where the agent tells it only later: then it is found by its title."""
    title: str = ""
    program: str = ""
    version: str = ""
    forked_from: str = ""
    """The session it is a copy of."""
    cwd: str = ""
    """Where it works, from the root of the run's worktree; agents find sessions by it."""
    prompt: str = ""
    """Digest of what it was asked."""
    task: str = ""
    """Fingerprint of the task it is about, its limits left out: one that was edited since starts anew."""
    ended: AgentEnd = ""
    """How its attempt ended; empty while that is under way, and where its driver died."""
    feedback: str = ""
    """Why what it did was not accepted, where that was said last."""
    used: Usage = NO_USAGE
    """What the journal has of it, and of those it is a copy of: agents count on."""


class SourcesRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the sources of a task were when an attempt of it began."""

    digest: str
    """Of its files: paths and contents."""
    variables: dict[str, str] = {}
    """By name, each with a digest of its value that `salt` went into; empty for one that was not set."""
    salt: str = ""


class Signers(msgspec.Struct, frozen=True, kw_only=True):
    """Who may sign answers of a run: `.agentos-signers` of the commit that it began at."""

    commit: str
    text: str
    """The file, in OpenSSH's allowed_signers form."""


class VerifyCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One command of a task's `verify`: how it ended, and on which files."""

    command: str
    """As it is written."""
    exit_code: int | None = None
    """None: it did not start, or did not end by itself."""
    seconds: float = 0.0
    said: str = ""
    """The end of what it printed; masked."""
    saw: str = ""
    """The tree of the files when it began; empty where that is not known."""
    tree: str = ""
    """The same when it had ended: what it stands for. Another one than it saw where it changed files itself."""

    @property
    def passed(self) -> bool:
        return self.exit_code == 0

    @property
    def changed_files(self) -> bool:
        return bool(self.saw and self.tree and self.saw != self.tree)


class Verification(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an attempt was verified by."""

    checks: tuple[VerifyCheck, ...]
    """In order, up to the first that failed."""
    not_run: tuple[str, ...] = ()
    """Commands that would have come after that."""
    tree: str = ""
    """Of the files as the attempt left them; empty where that is not known."""
    snapshot: str = ""
    """Of that tree."""
    unknown: str = ""
    """Why the tree is not known."""

    @property
    def passed(self) -> bool:
        return not self.not_run and all(check.passed for check in self.checks)


class ShownCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One command of the `verify` of a task before a gate, as the gate shows it."""

    task_id: TaskId
    command: str
    exit_code: int | None = None
    """None: it did not run, or did not end by itself."""
    said: str = ""
    """The end of what it printed; masked, and cut short."""
    tree: str = ""
    """The files that it stands for; empty where that is not known."""
    stale: str = ""
    """Why it tells nothing about the files as they were when the gate asked; empty where it does."""


class MergeConflict(msgspec.Struct, frozen=True, kw_only=True):
    """A path that was changed in ways that do not go together."""

    path: str
    sides: tuple[str, ...]
    """Whose version can be chosen where they conflict: `worktree`, `task:ID`."""
    mark: str
    """Digest of all versions of the path: an answer holds for what was shown."""
    chosen: tuple[str, ...] = ()
    """What was answered so far: a hunk in conflict goes to the first of these that is a side of it."""
    settled: bool = False
    """Whether that leaves nothing to choose."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What all events have. `seq`, `at` and `workflow_id` are stamped when the event is decided."""

    type: ClassVar[str] = ""
    seq: int = 0
    at: datetime = EPOCH
    workflow_id: WorkflowId = WorkflowId("")


# --- the run and its drives -------------------------------------------------------------------------------------


class WorkflowStart(Event, frozen=True, kw_only=True):
    """A drive begins. `resumed_from` is the last finished layer, or None at the very start."""

    type: ClassVar[str] = "workflow_start"
    name: str
    total_layers: int
    drive: int = 1
    resumed_from: int | None = None
    plan_revision: int = 1
    plan_fingerprint: str = ""
    signers: Signers | None = None
    """Of the first drive of a run with gates that take signed answers."""


class LeaseTaken(Event, frozen=True, kw_only=True):
    """Which process drives from here on, and from whom it took over, if from anybody."""

    type: ClassVar[str] = "lease_taken"
    token: int
    holder: str
    taken_from: str = ""


class PlannedVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    task_id: TaskId
    verdict: Verdict
    reason: str = ""


class ResumePlanned(Event, frozen=True, kw_only=True):
    """What this drive keeps, repeats and asks.

    Plain `reuse` and `run` verdicts are only counted; each other one is listed with its reason.
    """

    type: ClassVar[str] = "resume_planned"
    plan_revision: int
    skipped_layers: int = 0
    """Layers 0 … n-1 are complete and are not looked at again."""
    counts: dict[str, int] = {}
    verdicts: tuple[PlannedVerdict, ...] = ()
    reset: tuple[TaskId, ...] = ()
    """Tasks whose earlier result no longer counts."""
    cut_off: tuple[TaskId, ...] = ()
    """Tasks whose attempt did not end by itself: its driver died, or it ran out of time in this drive."""
    continued: tuple[TaskId, ...] = ()
    """Those of them whose agent goes on in the session it had."""
    ask: tuple[TaskId, ...] = ()
    """Tasks that need an answer before anything else happens to them."""
    regrown: tuple[TaskId, ...] = ()
    """for_each tasks whose list is made anew: their items of before no longer count."""
    under_way: bool = False
    """Decided in the middle of a drive, not at its start: only of what is listed."""
    steps_forgotten: tuple[TaskId, ...] = ()
    """Tasks that begin without the steps they had made."""
    sessions_forgotten: tuple[TaskId, ...] = ()
    """Tasks that wait for their next attempt and whose agent begins a new session with it."""


class WorkflowComplete(Event, frozen=True, kw_only=True):
    type: ClassVar[str] = "workflow_complete"


class WorkflowFailed(Event, frozen=True, kw_only=True):
    type: ClassVar[str] = "workflow_failed"
    reason: str = ""
    failed: tuple[TaskId, ...] = ()


class WorkflowAborted(Event, frozen=True, kw_only=True):
    type: ClassVar[str] = "workflow_aborted"
    reason: str = ""


class WorkflowPaused(Event, frozen=True, kw_only=True):
    """The drive ends in order without the run having ended: somebody asked, or only gates are left."""

    type: ClassVar[str] = "workflow_paused"
    reason: Literal["asked", "waiting", "stopped", "drained", "answered"] = "asked"
    """`drained`: a worker had to leave the run; `answered`: nothing is asked any more, and who answered did not go on
    with it. Any worker goes on with both."""
    gates: tuple[GateId, ...] = ()


# --- layers and tasks -------------------------------------------------------------------------------------------


class LayerStart(Event, frozen=True, kw_only=True):
    type: ClassVar[str] = "layer_start"
    layer: int
    tasks: int


class TaskStart(Event, frozen=True, kw_only=True):
    """An attempt may begin: durable before its first effect."""

    type: ClassVar[str] = "task_start"
    task_id: TaskId
    layer: int
    attempt: int


class TaskProcess(Event, frozen=True, kw_only=True):
    """The attempt's child process, durable before it executes the command."""

    type: ClassVar[str] = "task_process"
    task_id: TaskId
    layer: int
    attempt: int
    pid: int
    pgid: int
    started: float
    """When the kernel says the process began; tells a reused pid apart."""


class TaskPlaced(Event, frozen=True, kw_only=True):
    """The attempt is performed by another runner than the driver's own: durable, with its start, before it is handed
    over. Until the attempt has ended, something may be at work under that handle, whatever became of the driver."""

    type: ClassVar[str] = "task_placed"
    task_id: TaskId
    layer: int
    attempt: int
    runner: str
    handle: str


class TaskSession(Event, frozen=True, kw_only=True):
    """The session of the agent that performs the attempt, known as soon as the agent has one."""

    type: ClassVar[str] = "task_session"
    task_id: TaskId
    layer: int
    attempt: int
    session: AgentSession


class TaskStep(Event, frozen=True, kw_only=True):
    """A step inside the task's function has given its result: an attempt that goes on or tries again takes it over."""

    type: ClassVar[str] = "task_step"
    task_id: TaskId
    layer: int
    attempt: int
    number: int
    """In the order in which the function asked for its steps, from 0 on."""
    name: str
    """Of the function that was called."""
    inputs: str
    """A digest of what the task's function was given: with other inputs the step does not count."""
    output: Raw = NOTHING


class TaskSources(Event, frozen=True, kw_only=True):
    """What the attempt depends on, as it found it: durable before the attempt has an effect, or an end."""

    type: ClassVar[str] = "task_sources"
    task_id: TaskId
    layer: int
    attempt: int
    sources: SourcesRecord
    names: dict[str, str] | None = None
    """The files, or the folders they lie in, each with a short digest: to name what changes later. None where an
    earlier event of the run has those of the same digest."""


class TaskStepStarted(Event, frozen=True, kw_only=True):
    """A step with an external effect is about to begin: cut off from here on, somebody is asked about this step."""

    type: ClassVar[str] = "task_step_started"
    task_id: TaskId
    layer: int
    attempt: int
    number: int
    name: str
    inputs: str


class TaskSleep(Event, frozen=True, kw_only=True):
    """The task's function sleeps. Once `until` has come, a `task_step` says so."""

    type: ClassVar[str] = "task_sleep"
    task_id: TaskId
    layer: int
    attempt: int
    number: int
    """Among the steps of the function."""
    inputs: str
    until: datetime
    seconds: float
    """How long it was to sleep: never longer than that from the start of a later drive, whatever its clock says."""


class TaskSuspended(Event, frozen=True, kw_only=True):
    """The attempt is over, and the task is not: its function sleeps or waits for an answer. Uses up no retry."""

    type: ClassVar[str] = "task_suspended"
    task_id: TaskId
    layer: int
    attempt: int
    waits: tuple[int, ...]
    """The steps that it waits for; the first that has come lets it go on."""


class TaskUsage(Event, frozen=True, kw_only=True):
    """The attempt has paid for a call of a model, or for a turn of an agent."""

    type: ClassVar[str] = "task_usage"
    task_id: TaskId
    layer: int
    attempt: int
    usage: Usage
    call: ModelCall | None = None
    """None where one usage corrects others, and of runs of earlier versions."""


class TaskRetry(Event, frozen=True, kw_only=True):
    """An attempt failed and another one follows, not before `not_before`."""

    type: ClassVar[str] = "task_retry"
    task_id: TaskId
    layer: int
    attempt: int
    not_before: datetime
    error: TaskFailure
    put_off: bool = False
    """It did not fail: nothing is left of the budget for what it was about to pay. That uses up no retry."""
    agent: AgentEnd = ""
    """An agent whose session the next attempt goes on with, from the files of its last turn: how this one ended."""
    limit: AtLimit = ""
    """It did not fail: the subscription of its agent is used up. That uses up no retry either."""
    switch: OnLimit | None = None
    """What it goes on as."""
    verified: Verification | None = None


class TaskComplete(Event, frozen=True, kw_only=True):
    type: ClassVar[str] = "task_complete"
    task_id: TaskId
    layer: int
    place: str
    attempt: int = 0
    output: Raw = NOTHING
    gathered: bool = False
    """for_each: the output is the list of the items' outputs and is not stored again."""
    messages: Raw = NOTHING
    """List of {role, content}, where the task left any."""
    context: Raw = NOTHING
    """Map of what the task set in the run's context, where it set anything."""
    files: TaskFiles | None = None
    """With `isolation: worktree`: what it changed, to be merged at the end of its layer. None: nothing."""
    candidate: bool = False
    """One of several: its files are kept, and merged only where the task that it is one of takes them over."""
    execution_time_ms: float = 0.0
    verified: Verification | None = None
    """By which commands, and on which files. None: it has no `verify`."""


class TaskError(Event, frozen=True, kw_only=True):
    """A task ended without success."""

    type: ClassVar[str] = "task_error"
    task_id: TaskId
    layer: int
    place: str
    attempt: int = 0
    error: TaskFailure
    status: EndedAs = "failed"
    agent: AgentEnd = ""
    """An agent whose session a resume may go on with: how this attempt ended."""
    files: TaskFiles | None = None
    """Of a candidate: what it had changed, to look at."""
    execution_time_ms: float = 0.0
    verified: Verification | None = None


class TaskSkipped(Event, frozen=True, kw_only=True):
    type: ClassVar[str] = "task_skipped"
    task_id: TaskId
    layer: int
    place: str
    because: str = ""
    """The task, gate or command that caused it; empty where the task's own `if` was false."""


class TaskWarning(Event, frozen=True, kw_only=True):
    type: ClassVar[str] = "task_warning"
    task_id: TaskId | None = None
    layer: int | None = None
    attempt: int = 0
    message: str


class TaskOutput(Event, frozen=True, kw_only=True):
    """A line an attempt printed, live. Never stored: it has no `seq`."""

    type: ClassVar[str] = "task_output"
    task_id: TaskId
    layer: int
    attempt: int
    stream: Literal["stdout", "stderr", "progress"] = "stdout"
    text: str


class StateUpdated(Event, frozen=True, kw_only=True):
    """What a finished layer added to the state."""

    type: ClassVar[str] = "state_updated"
    layer: int
    tasks: int = 0
    messages: int = 0
    decisions: int = 0
    context_keys: int = 0


class Checkpointed(Event, frozen=True, kw_only=True):
    """A cut in the journal after a finished layer; its row is written in the same transaction."""

    type: ClassVar[str] = "checkpoint"
    checkpoint_id: CheckpointId
    layer: int
    snapshot: str = ""


class CheckpointFailed(Event, frozen=True, kw_only=True):
    type: ClassVar[str] = "checkpoint_failed"
    layer: int
    error: TaskFailure


# --- the files of the worktree ------------------------------------------------------------------------------------


class FilesCaptured(Event, frozen=True, kw_only=True):
    """The worktree's files as a snapshot: what a file task that is cut off from here on starts again from.

    `why` is `start` (of a drive), `attempt` (before one that may change files, while no other is under way), `turn`
    (while an agent that may, and is alone or isolated, is at work), `task` (after such a one), `layer` (at its end) or
    `merge` (after what isolated tasks did was written). Without a
    `snapshot` they could not be captured, and cannot be put back.
    """

    type: ClassVar[str] = "files_captured"
    snapshot: str = ""
    tree: str = ""
    why: CaptureReason
    task_id: str = ""
    base: str = ""
    """Of the turn of an isolated task: the snapshot its worktree was made from."""
    partial: tuple[str, ...] = ()
    """Paths that had to be left out; a snapshot that lacks some is not put back by itself."""
    output: tuple[str, ...] = ()
    """At the start of a drive: files of the worktree that its own output goes to. They are never put back."""
    beside: tuple[TaskId, ...] = ()
    """Tasks that were still at work when this one ended. The files are then those from before all of them, so that
    putting them back takes nothing of this task away."""
    together: tuple[TaskId, ...] = ()
    """After the last of several that overlapped: all of them. Nobody can tell whose change is whose."""


class FilesRestored(Event, frozen=True, kw_only=True):
    """Files were put back to a snapshot before this drive began; `undo` is the snapshot of what was there."""

    type: ClassVar[str] = "files_restored"
    snapshot: str
    tree: str
    undo: str
    paths: tuple[str, ...] = ()
    """The first hundred of them."""
    count: int = 0


class FilesMerged(Event, frozen=True, kw_only=True):
    """What isolated tasks of a layer did to files was merged; it is written to the worktree after this is durable.

    With `conflicts` and no `tree` somebody has to choose first: a gate of kind `merge` asks.
    """

    type: ClassVar[str] = "files_merged"
    layer: int
    tasks: tuple[TaskId, ...] = ()
    """In plan order, which is the order of merging."""
    before: str = ""
    """The tree of the worktree that they were merged with."""
    tree: str = ""
    snapshot: str = ""
    """Of that tree."""
    conflicts: tuple[MergeConflict, ...] = ()
    """With a `tree`: those that somebody's answer settled."""


# --- gates and commands -----------------------------------------------------------------------------------------


class DecisionRequired(Event, frozen=True, kw_only=True):
    """A gate opened. What it guards does not start until an explicit approval is durable."""

    type: ClassVar[str] = "decision_required"
    gate_id: GateId
    kind: GateKind
    task_id: TaskId | None = None
    layer: int
    place: str = ""
    question: str
    choices: tuple[str, ...] = ()
    """An approval must name one of these, where there are some."""
    file: str = ""
    """A file to look at before answering, relative to the root."""
    by: Literal["human", "agent", "signed"] = "human"
    shown: str = ""
    """Digest of what is asked about: the task's fingerprint and resolved inputs."""
    inputs: str = ""
    """The resolved inputs as text, cut short."""
    covers: dict[str, str] | None = None
    """Files that the task's command names, by their path from the root, with a digest of content and mode: an approval
    is about these, too. None where nobody looked: the task has no command, or an earlier version asked. Where tasks
    before it were verified, `.` stands for all files of the worktree."""
    again: str = ""
    """Why it is asked again, where an earlier approval does not hold because of files."""
    changed: tuple[str, ...] = ()
    """The files that changed since that one."""
    verified: tuple[ShownCheck, ...] = ()
    """By what the tasks before it were verified, in order, and what of that is stale."""
    spent: Usage | None = None
    """Of a budget's gate: what had been spent when it asked."""
    step: int | None = None
    """The step of the task's function that it is about, where it is about one."""
    command: str = ""
    """What to type to answer."""
    deadline: datetime | None = None
    on_timeout: Literal["reject", "approve"] = "reject"


class DecisionMade(Event, frozen=True, kw_only=True):
    type: ClassVar[str] = "decision_made"
    gate_id: GateId
    kind: GateKind
    task_id: TaskId | None = None
    layer: int
    place: str = ""
    answer: Answer
    author: str
    sender: Sender | None = None
    """Who answered as the system knows it; None where nobody did (a deadline passed), or none was written down."""
    reason: str = ""
    choice: str = ""
    """Which of the gate's choices an approval took."""
    output: Raw = NOTHING
    """For `happened`: what the effect returned. Of a merge: the version chosen for each path, or `agent:NAME`."""
    signed: SignedAnswer | None = None
    """Of an answer with a signature; `author` is the signer then."""


class CoverChanged(Event, frozen=True, kw_only=True):
    """A task of this run changed files that an approval covers: it holds for what the task made of them."""

    type: ClassVar[str] = "cover_changed"
    gate_id: GateId
    task_id: TaskId | None = None
    """None where what isolated tasks did was merged."""
    files: dict[str, str]
    """As `covers` of the gate; an empty digest where the file is gone."""


class CommandReceived(Event, frozen=True, kw_only=True):
    """Somebody asked for something that takes effect at the next layer boundary."""

    type: ClassVar[str] = "command_received"
    command_id: str
    author: str
    attempt_id: str = ""
    """Set where it came from a process that carries an attempt of ours."""
    command: dict[str, Any]


class CommandApplied(Event, frozen=True, kw_only=True):
    type: ClassVar[str] = "command_applied"
    command_id: str
    author: str
    command: dict[str, Any]


class CommandRefused(Event, frozen=True, kw_only=True):
    type: ClassVar[str] = "command_refused"
    command_id: str
    author: str
    command: dict[str, Any]
    why: str


class PlanChanged(Event, frozen=True, kw_only=True):
    """The plan grew or changed while the run was under way; applied again on top of an edited workflow."""

    type: ClassVar[str] = "plan_changed"
    origin: Literal["for_each", "inject", "replan", "modify_args", "repeat"]
    parent: TaskId | None = None
    added: tuple[TaskDef, ...] = ()
    changed: tuple[TaskDef, ...] = ()
    removed: tuple[TaskId, ...] = ()
    items: Raw = NOTHING
    """for_each: the list as it was expanded."""
    children: tuple[TaskId, ...] = ()
    """for_each: the id of each item's task, in the order of the list; of candidates, theirs and the judge's."""
    min_layer: int = 0
    """New tasks come in this layer or later, so that none lands in one already passed."""
    under: str = ""
    """Asked for by a task: its place. What it added stands right behind it, whichever task finished first."""
    total_layers: int = 0
    """Layers of the plan with this change."""


class RolledBack(Event, frozen=True, kw_only=True):
    """The fold goes on from an older checkpoint; what came after it counts for nothing."""

    type: ClassVar[str] = "rolled_back"
    checkpoint_id: CheckpointId
    to_seq: int
    layer: int
    epoch: int
    drive: int = 0
    ask: tuple[TaskId, ...] = ()
    """Tasks whose external effect has begun since that checkpoint: not repeated without an answer."""
    spent: dict[TaskId, Usage] = {}
    """What was paid for so far: going back brings no money back."""
    reason: str = ""
    total_layers: int = 0
    """Layers of the plan that it goes on with, which may have been edited since that checkpoint."""


# --- runs that begin from a state -------------------------------------------------------------------------------


class RunForked(Event, frozen=True, kw_only=True):
    """First event of a fork: all it needs of its parent, in the shape of the parent's own events."""

    type: ClassVar[str] = "run_forked"
    parent_id: WorkflowId
    checkpoint_id: CheckpointId
    current_layer: int
    results: tuple[Raw, ...] = ()
    """Task results that still count: `{"type": "task_complete", …}` and the like, outputs included."""
    changes: tuple[PlanChanged, ...] = ()
    ask: tuple[TaskId, ...] = ()
    """Tasks whose external effect the parent had started."""
    sources: dict[TaskId, SourcesRecord] = {}
    """What the sources of these results were."""
    source_names: dict[str, dict[str, str]] = {}
    """By the digest of each: the `names` of `task_sources`."""
    parent_began: datetime | None = None
    """When the parent's first event was written: names its trace. None in forks of earlier versions."""


class StateSaved(Event, frozen=True, kw_only=True):
    """A CheckpointManager used by itself saved a state: what differs from the last one saved.

    Each list is `kept[:from] + added`; the context is `(kept without removed) + set`.
    """

    type: ClassVar[str] = "state_saved"
    current_layer: int
    messages_from: int = 0
    messages: Raw = NOTHING
    tasks_from: int = 0
    tasks: Raw = NOTHING
    decisions_from: int = 0
    decisions: Raw = NOTHING
    context_set: Raw = NOTHING
    context_removed: tuple[str, ...] = ()


TERMINAL = (WorkflowComplete, WorkflowFailed, WorkflowAborted, WorkflowPaused)
"""Each drive ends with exactly one of these."""

JournaledEvent = (
    WorkflowStart
    | LeaseTaken
    | ResumePlanned
    | WorkflowComplete
    | WorkflowFailed
    | WorkflowAborted
    | WorkflowPaused
    | LayerStart
    | TaskStart
    | TaskProcess
    | TaskRetry
    | TaskComplete
    | TaskError
    | TaskSkipped
    | TaskWarning
    | StateUpdated
    | Checkpointed
    | CheckpointFailed
    | DecisionRequired
    | DecisionMade
    | CommandReceived
    | CommandApplied
    | CommandRefused
    | PlanChanged
    | RolledBack
    | RunForked
    | StateSaved
    | FilesCaptured
    | FilesRestored
    | FilesMerged
    | TaskSession
    | TaskUsage
    | CoverChanged
    | TaskStep
    | TaskSources
    | TaskStepStarted
    | TaskSleep
    | TaskSuspended
    | TaskPlaced
)
"""In the order of their stored type codes (1, 2, 3, …): append only, never reorder."""

JOURNALED: tuple[type[Event], ...] = get_args(JournaledEvent)
