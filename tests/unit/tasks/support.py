"""What the tests of `agentos.tasks` share: a host that writes down what it is told, and specs with few words."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
from msgspec import Raw

from agentos.dag.define.model_calls import Budget
from agentos.dag.define.task import TaskDef
from agentos.ids import TaskId, WorkflowId
from agentos.machine.events import AgentSession, ModelCall, Usage
from agentos.machine.facts.facts import StepFacts
from agentos.machine.inputs import AttemptResult
from agentos.tasks.attempt import AttemptSpec, ChildProcess, Stream
from agentos.tasks.runner import LocalRunner, performers
from agentos.values import decode_value

PATIENCE_S = 20.0


def fresh_attempt_id() -> str:
    """Unlike that of any other test: ending an attempt ends whatever carries its id, wherever it runs."""
    return f"run-{uuid.uuid4()}/t/1"


class RecordingHost:
    """An AttemptHost that remembers; `on_child` runs before a child gets leave to go on."""

    def __init__(self, on_child: Callable[[ChildProcess], Awaitable[None]] | None = None) -> None:
        self.shown: list[tuple[Stream, str]] = []
        self.threads: set[int] = set()
        self.children: list[ChildProcess] = []
        self.abandonments: list[Awaitable[object]] = []
        self.sessions: list[AgentSession] = []
        self.usages: list[Usage] = []
        self.calls: list[ModelCall | None] = []
        self.steps: list[StepFacts] = []
        self.begun: list[int] = []
        self.sleeps: list[float] = []
        self.questions: list[str] = []
        self.turns = 0
        self.budget = Budget()
        self._on_child = on_child

    def output(self, stream: Stream, text: str) -> None:
        self.shown.append((stream, text))
        self.threads.add(threading.get_ident())

    async def child_started(self, child: ChildProcess) -> None:
        self.children.append(child)
        if self._on_child is not None:
            await self._on_child(child)

    async def record_session(self, session: AgentSession) -> None:
        self.sessions.append(session)

    async def begin_step(self, number: int, name: str, inputs: str) -> None:
        self.begun.append(number)

    async def begin_sleep(self, number: int, inputs: str, seconds: float) -> None:
        self.sleeps.append(seconds)

    async def ask(
        self, number: int, inputs: str, question: str, choices: tuple[str, ...], timeout_s: float | None
    ) -> None:
        self.questions.append(question)

    async def record_step(self, number: int, name: str, inputs: str, output: bytes) -> None:
        self.steps.append(StepFacts(number, name, inputs, Raw(output)))

    async def record_usage(self, usage: Usage, call: ModelCall | None = None) -> None:
        self.usages.append(usage)
        self.calls.append(call)

    def allowance(self) -> Budget:
        return self.budget

    async def capture_turn(self) -> str:
        self.turns += 1
        return ""

    async def current_tree(self) -> str:
        return ""

    def report_abandoned(self, ended: Awaitable[object]) -> None:
        self.abandonments.append(ended)

    def lines(self, stream: Stream) -> list[str]:
        return [text for name, text in self.shown if name == stream]


def python_spec(
    function: Callable[..., Any] | None = None, arguments: dict[str, Any] | None = None, **fields: Any
) -> AttemptSpec:
    return _spec(TaskDef(id=TaskId("t"), kind="python", **fields), function=function, arguments=arguments or {})


def shell_spec(
    command: str | tuple[str, ...],
    *,
    root: Path | None = None,
    env: dict[str, str] | None = None,
    cwd: str = "",
    attempt_id: str = "",
    **fields: Any,
) -> AttemptSpec:
    return _spec(
        TaskDef(id=TaskId("t"), kind="shell", **fields),
        command=command,
        env=env or {},
        root=root or Path("/tmp"),
        cwd=Path(cwd),
        attempt_id=attempt_id or fresh_attempt_id(),
    )


def _spec(definition: TaskDef, **more: Any) -> AttemptSpec:
    given: dict[str, Any] = {
        "workflow_id": WorkflowId("run-1"),
        "task_id": definition.id,
        "attempt": 1,
        "definition": definition,
        "cwd": Path(),
        "root": Path("/tmp"),
        "idempotency_key": "key-1",
        "attempt_id": fresh_attempt_id(),
    }
    return AttemptSpec(**{**given, **more})


def perform(spec: AttemptSpec, host: RecordingHost | None = None) -> AttemptResult:
    """One attempt, from its start to its end, in a loop of its own."""
    return asyncio.run(_perform(spec, host or RecordingHost()))


async def _perform(spec: AttemptSpec, host: RecordingHost) -> AttemptResult:
    runner = LocalRunner(performers())
    return await runner.wait(runner.start(spec, host))


def output_of(outcome: AttemptResult) -> Any:
    assert outcome.error is None, outcome.error
    return decode_value(outcome.output)


async def cancel_when(
    spec: AttemptSpec, host: RecordingHost, ready: Callable[[], bool], times: int = 1
) -> AttemptResult:
    """Start an attempt, cancel it once `ready`, and give back how it ended."""
    attempt = asyncio.create_task(_perform(spec, host))
    await asyncio.sleep(0)  # a task cancelled before its first step never runs at all
    await soon(lambda: ready() or attempt.done())
    assert not attempt.done(), attempt.result()
    for _ in range(times):
        attempt.cancel()
        await asyncio.sleep(0)
    return await attempt


async def soon(condition: Callable[[], bool]) -> None:
    """Await a condition that must come true."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        await asyncio.sleep(0.005)


def wait_for(condition: Callable[[], bool]) -> None:
    asyncio.run(soon(condition))


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def pid_in(path: Path) -> int:
    """The pid a script wrote to a file, once it is there in full."""
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def open_files() -> set[str]:
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    return set(os.listdir(folder))
