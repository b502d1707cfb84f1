"""What reaches the machine from outside. Together with the clock these are all it ever learns."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw

from agentos.ids import GateId, TaskId
from agentos.machine.commands import CommandRequest
from agentos.machine.events import (
    NOTHING,
    AgentEnd,
    AgentSession,
    CaptureReason,
    Event,
    FilesRestored,
    MergeConflict,
    ModelCall,
    RunForked,
    Signers,
    SourcesRecord,
    TaskFailure,
    TaskFiles,
    Usage,
    Verification,
)
from agentos.machine.facts.facts import Facts
from agentos.machine.resume import ResumePlan


class LimitReached(msgspec.Struct, frozen=True, kw_only=True):
    """The service of an attempt's agent takes no more calls for now."""

    until: datetime | None = None
    """None: nobody knows, or what was said cannot be believed."""


class AttemptResult(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended: `error` is None for success. All values are in stored form already."""

    output: Raw = NOTHING
    messages: Raw = NOTHING
    context: Raw = NOTHING
    injected: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Tasks asked for with `ctx.inject`: id and mapping form."""
    warnings: tuple[str, ...] = ()
    error: TaskFailure | None = None
    retryable: bool = True
    """False where trying again cannot help: cancelled, or a definition problem."""
    put_off: bool = False
    """It ended before it paid for anything, since nothing is left of the budget: no failure, though `error` says so."""
    paused: bool = False
    """It was stopped where its budget was used up, and goes on as soon as somebody allows more: no failure either."""
    limit: LimitReached | None = None
    """It ended at a limit of the service that its agent calls."""
    cancelled: bool = False
    """Ended because the drive stops."""
    cut_off: bool = False
    """It did not end by itself: it ran out of time, or was ended from outside. What it was doing may have happened."""
    lost: bool = False
    """It went down with the machine, the network or the scheduler it was on: no failure of its own, which uses up no
    retry. Nothing of it is at work any more; with `cut_off` what it was doing may have happened."""
    unreachable: str = ""
    """Why nothing could be performed where it was to be: the run is put off until that is over."""
    suspended: tuple[int, ...] = ()
    """It did not end: its function sleeps or waits, and these are the steps it waits for."""
    agent: AgentEnd = ""
    """How its agent ended, where it has said so itself."""
    files: TaskFiles | None = None
    """What it changed in its own worktree."""
    verified: Verification | None = None
    """What its commands of `verify` said, and on which files."""
    execution_time_ms: float = 0.0


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """A drive begins: this process holds the lease."""

    holder: str
    token: int
    taken_from: str = ""
    resume: ResumePlan | None = None
    """None for the first drive of a run."""
    rollback: str | None = None
    """Go back to this checkpoint first; whoever drives folds the journal again and says `Planned`."""
    forked: RunForked | None = None
    """For the first drive of a fork: what it begins from."""
    restored: FilesRestored | None = None
    """Files that were put back before this drive."""
    warnings: tuple[str, ...] = ()
    """What users should know before it starts."""
    signers: Signers | None = None
    """For the first drive of a run: who may sign its answers."""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """After a rollback: what this drive keeps, repeats and asks."""

    resume: ResumePlan


class CaptureEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The files of the worktree were looked at."""

    why: CaptureReason
    snapshot: str = ""
    tree: str = ""
    partial: tuple[str, ...] = ()
    task_id: str = ""
    base: str = ""
    layer: int = -1
    changed: tuple[str, ...] = ()
    """At a layer's end: what differs from the snapshot before, although no file task was at work. After tasks that
    worked `together`: what differs from the snapshot before them."""
    together: tuple[TaskId, ...] = ()
    """After the last of several file tasks that overlapped: all of them."""
    beside: tuple[TaskId, ...] = ()
    """After a task that left the files as they were: those that are still at work."""
    output: tuple[str, ...] = ()
    """At a drive's start: files that its own output goes to."""
    problem: str = ""
    """Why there is no snapshot."""
    left: tuple[str, ...] = ()
    """After a merge: what could not be written, with the reason."""


class AttemptEnded(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt is over."""

    task_id: TaskId
    attempt: int
    result: AttemptResult
    captured: CaptureEnded | None = None
    """The files it left in the worktree: on record together with its end, or not at all."""


class ChildStarted(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt has a child process that waits for leave to execute."""

    task_id: TaskId
    attempt: int
    pid: int
    pgid: int
    started: float


class SessionKnown(msgspec.Struct, frozen=True, kw_only=True):
    """The agent that performs an attempt has a session."""

    task_id: TaskId
    attempt: int
    session: AgentSession


class StepEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The function of an attempt has made a step."""

    task_id: TaskId
    attempt: int
    number: int
    name: str
    inputs: str
    output: Raw
    captured: CaptureEnded | None = None
    """The files after it: on record together with it, or not at all."""


class SourcesSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt that begins depends on, as it finds it."""

    task_id: TaskId
    attempt: int
    sources: SourcesRecord
    names: dict[str, str]


class SourcesChanged(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt changed files that finished tasks depend on which come after it."""

    task_id: TaskId
    stale: dict[TaskId, str]
    """These tasks, each with the reason."""


class StepBegan(msgspec.Struct, frozen=True, kw_only=True):
    """The function of an attempt is about to make a step that may not be repeated unasked."""

    task_id: TaskId
    attempt: int
    number: int
    name: str
    inputs: str


class SleepAsked(msgspec.Struct, frozen=True, kw_only=True):
    """The function of an attempt wants to sleep."""

    task_id: TaskId
    attempt: int
    number: int
    inputs: str
    seconds: float


class WaitAsked(msgspec.Struct, frozen=True, kw_only=True):
    """The function of an attempt wants an answer."""

    task_id: TaskId
    attempt: int
    number: int
    inputs: str
    question: str
    choices: tuple[str, ...] = ()
    timeout_s: float | None = None


class UsageKnown(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt has paid for something."""

    task_id: TaskId
    attempt: int
    usage: Usage
    call: ModelCall | None = None


class CommandArrived(msgspec.Struct, frozen=True, kw_only=True):
    asked: CommandRequest


class CommandUnreadable(msgspec.Struct, frozen=True, kw_only=True):
    """Something in the inbox that is no valid command; it is refused on the record."""

    command_id: str
    author: str
    command: dict[str, Any]
    why: str


class CommandsCameLate(msgspec.Struct, frozen=True, kw_only=True):
    """Commands reached the inbox of a run that has ended for good: they are refused on the record."""

    holder: str
    token: int
    commands: tuple[CommandUnreadable, ...]


class CutFailed(msgspec.Struct, frozen=True, kw_only=True):
    """Of what was decided since the last commit nothing could be written, because of a checkpoint among it."""

    events: tuple[Event, ...]
    """All that was decided since."""
    facts: Facts
    """What was known before."""
    error: TaskFailure
    strict: bool
    """The run stops there: what was decided after the cut is decided anew."""


class MergeEnded(msgspec.Struct, frozen=True, kw_only=True):
    """What isolated tasks did to files was merged, as far as it goes together; nothing is written yet."""

    layer: int
    tasks: tuple[TaskId, ...]
    before: str = ""
    tree: str = ""
    """Empty where somebody has to choose first."""
    snapshot: str = ""
    conflicts: tuple[MergeConflict, ...] = ()
    text: str = ""
    """The conflicts, for people."""
    problem: str = ""
    """Why it could not be merged, or not be written."""


class FilesSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Files that a task's command names were looked at, as the machine wanted. Good for this step alone."""

    task_id: TaskId
    files: dict[str, str] | None
    """By path from the root, with a digest of content and mode. None: nobody here can look."""
    since: dict[str, tuple[str, ...]] = {}
    """For trees that tasks before it were verified on: the paths that differ now. Without those that nobody can
    compare."""


class CoveredFilesChanged(msgspec.Struct, frozen=True, kw_only=True):
    """Files that an approval covers differ after the work of a task of this run from what they were before it."""

    gate_id: GateId
    task_id: TaskId | None
    before: dict[str, str]
    after: dict[str, str]


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """Time has passed: retries and deadlines may be due."""


DRAINED = "a worker was drained"
"""The reason of a stop after which any other worker may go on with the run."""


class StopAsked(msgspec.Struct, frozen=True, kw_only=True):
    """The process is asked to stop in order: what runs is drained, nothing new starts."""

    reason: str = ""
    uncut: bool = False
    """It stops because a checkpoint could not be cut: none is tried on the way out, and nothing is called complete."""


class GatesLeft(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody answers these gates now: where only they are left at this moment, the drive does not wait for them."""

    gates: frozenset[GateId]


class EffectsHeld(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an abandoned thread is still at work: while it is, no file or external attempt starts."""

    held: bool


Input = (
    Begin
    | Planned
    | AttemptEnded
    | ChildStarted
    | SessionKnown
    | StepBegan
    | StepEnded
    | SourcesSeen
    | SourcesChanged
    | SleepAsked
    | WaitAsked
    | UsageKnown
    | CommandArrived
    | CommandUnreadable
    | CommandsCameLate
    | CutFailed
    | CaptureEnded
    | MergeEnded
    | FilesSeen
    | CoveredFilesChanged
    | Tick
    | StopAsked
    | GatesLeft
    | EffectsHeld
)
