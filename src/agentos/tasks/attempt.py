"""What one attempt is given and what it gives back, whatever its kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from agentos.dag.define.model_calls import AgentWork, Budget, LlmWork
from agentos.dag.define.task import TaskDef
from agentos.ids import TaskId, WorkflowId
from agentos.machine.events import AgentSession, ModelCall, Usage
from agentos.machine.facts.facts import StepFacts
from agentos.machine.inputs import AttemptResult
from agentos.secrets import NO_SECRETS, Masker
from agentos.tasks.llm.model_settings import NO_MODEL_SETTINGS, ModelSettings
from agentos.tasks.process.sandbox_settings import NO_SANDBOX_SETTINGS, SandboxSettings

Stream = Literal["stdout", "stderr", "progress"]


class Mark(NamedTuple):
    """What an attempt is known by, also to a later driver: its processes carry both.

    The same run id may be in use in other worktrees at the same time.
    """

    attempt_id: str
    root: str


class ChildProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A child that exists and waits for leave to execute its command."""

    pid: int
    pgid: int
    started: float


class AttemptLog(Protocol):
    """Where everything goes that an attempt prints."""

    limit: int
    """Bytes of it, and of each file beside it."""

    def write(self, stream: Stream, data: bytes) -> None:
        """Keep what was printed, masked already. Never blocks."""

    def sync(self) -> None:
        """Have what was printed so far outlive a loss of power, soon. Never blocks."""

    def keep(self, suffix: str, data: Iterable[bytes]) -> str:
        """Write a file beside the log, in place of one of that name; its name, empty where that failed. Blocks."""


class VerifySpec(msgspec.Struct, frozen=True, kw_only=True):
    """A command that must succeed after an agent has."""

    written: str
    """As it stands in the workflow."""
    command: str | tuple[str, ...]
    """References already replaced."""
    env: Mapping[str, str] = {}
    """What they stand for, in a script."""


class AttemptSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an attempt needs. References are resolved, values decoded afresh."""

    workflow_id: WorkflowId
    task_id: TaskId
    attempt: int
    definition: TaskDef
    function: Callable[..., Any] | None = None
    """python: what to call; where None, `definition.call` is imported."""
    arguments: Mapping[str, Any] = {}
    """python: keyword arguments."""
    command: str | tuple[str, ...] = ""
    """shell: script or argument vector; references already replaced."""
    agent: AgentWork | None = None
    """agent: what it is to do; references already replaced."""
    verify: tuple[VerifySpec, ...] = ()
    """agent: the commands that must succeed after it, in order."""
    session: AgentSession | None = None
    """agent: what an attempt that was interrupted had, and this one goes on with."""
    llm: LlmWork | None = None
    """llm: the call; references already replaced."""
    env: Mapping[str, str] = {}
    """Variables added to the inherited ones."""
    cwd: Path
    root: Path
    """Of the run: also for an attempt in a worktree of its own, whose processes are found by it."""
    worktree: Path | None = None
    """The linked worktree that the attempt has to itself."""
    idempotency_key: str
    attempt_id: str
    """Marks the attempt's processes through `AGENTOS_ATTEMPT_ID`."""
    steps: tuple[StepFacts, ...] = ()
    """python: steps that attempts before this one have made."""
    settled: int = 0
    """Attempts of the task that have ended, ever; one that was interrupted has not."""
    models: ModelSettings = NO_MODEL_SETTINGS
    """agent, llm: limits, prices and defaults of the repository."""
    sandbox: SandboxSettings = NO_SANDBOX_SETTINGS
    """agent, shell: what the settings say, where the task asks for one."""
    masker: Masker = NO_SECRETS
    """Masks what its processes print, before any of it is kept or shown."""
    log: AttemptLog | None = None
    handle: str = ""
    """What it is known by where it is handed over to."""

    @property
    def mark(self) -> Mark:
        return Mark(self.attempt_id, str(self.root))


class StepHost(Protocol):
    """What the steps of a function ask of the engine. What they write down is durable on return."""

    async def begin_step(self, number: int, name: str, inputs: str) -> None:
        """Write down that a step is about to begin, which may not be repeated unasked."""

    async def record_step(self, number: int, name: str, inputs: str, output: bytes) -> None:
        """Write down what a step of the function gave."""

    async def begin_sleep(self, number: int, inputs: str, seconds: float) -> None:
        """Write down until when the function sleeps, unless an earlier attempt has."""

    async def ask(
        self, number: int, inputs: str, question: str, choices: tuple[str, ...], timeout_s: float | None
    ) -> None:
        """Open the gate that the function waits at, unless an earlier attempt has."""

    def report_abandoned(self, ended: Awaitable[object]) -> None:
        """A thread could not be stopped: until `ended`, no attempt with file or external effects starts."""


class AttemptHost(StepHost, Protocol):
    """What an attempt may ask of the engine while it runs."""

    def output(self, stream: Stream, text: str) -> None:
        """Show a line live. Never blocks; nothing is stored."""

    async def child_started(self, child: ChildProcess) -> None:
        """Write the child down; durable on return. The child executes its command only after this."""

    async def record_session(self, session: AgentSession) -> None:
        """Write down which session the agent has; durable on return."""

    async def record_usage(self, usage: Usage, call: ModelCall | None = None) -> None:
        """Write down what was paid, and for what; durable on return. Called as soon as it is known: a crash forgets the
        rest."""

    def allowance(self) -> Budget:
        """What may still be spent, by what the journal says now."""

    async def capture_turn(self) -> str:
        """Capture the files as an agent has left them so far, where it is alone or isolated; else nothing.

        The tree of these, empty where there is none.
        """

    async def current_tree(self) -> str:
        """The tree of the files as they are now, where the attempt is alone or isolated; else empty. Keeps nothing."""


class Performer(Protocol):
    """How an attempt of one kind is performed. Cancelling the coroutine really ends the work."""

    async def __call__(self, spec: AttemptSpec, host: AttemptHost) -> AttemptResult: ...
