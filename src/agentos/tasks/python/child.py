"""The child side of `isolation: process`: `python -m agentos.tasks.python.child REQUEST_FD REPLY_FD`.

Reads one request, calls the function, and writes JSON lines: progress and what its steps have to write down as it
comes, then how it ended. Each thing that was written down is answered with a line, once it is durable.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from types import FrameType
from typing import Any, Literal

import msgspec
from msgspec import Raw

from agentos import typed
from agentos.dag.define.task import TaskDef
from agentos.dag.plan.fingerprint import code_digest
from agentos.exceptions import AttemptError, OtherCodeError
from agentos.ids import TaskId, WorkflowId
from agentos.machine.events import NOTHING, TaskFailure
from agentos.machine.facts.facts import StepFacts
from agentos.tasks.attempt import AttemptSpec
from agentos.tasks.context import Context, ContextAdditions
from agentos.tasks.failures import failure_of, plain_failure
from agentos.tasks.outcomes import AttemptFailed, AttemptSuspended
from agentos.tasks.process.ancestors import mark_attempt
from agentos.tasks.process.orphans import ATTEMPT_VARIABLE
from agentos.tasks.python.functions import FunctionReference, callee_of, load
from agentos.tasks.python.performer import await_it, bind_arguments, call_async, call_sync
from agentos.tasks.python.steps import Steps
from agentos.tasks.python.threads import DaemonThreads
from agentos.values import decode_value


class ChildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is to call, and as which attempt."""

    function: FunctionReference
    arguments: Raw
    root: str
    worktree: str
    """The linked worktree that the attempt has to itself; empty where it has none."""
    path: tuple[str, ...]
    """The driver's sys.path."""
    workflow_id: WorkflowId
    task_id: TaskId
    attempt: int
    idempotency_key: str
    definition: TaskDef
    steps: tuple[StepFacts, ...]
    code: str = ""
    """A digest that the function's code must have; empty: any."""


class StepCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step asks of the driver: a verb of `StepHost`, and what that takes."""

    id: int
    verb: Literal["begin_step", "record_step", "begin_sleep", "ask"]
    number: int
    inputs: str
    name: str = ""
    output: Raw = NOTHING
    seconds: float = 0.0
    question: str = ""
    choices: tuple[str, ...] = ()
    timeout_s: float | None = None


class StepAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked is durable; with `problem` it is not, and never will be."""

    id: int
    problem: str = ""


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line from the child: progress, or with `ended` the last one."""

    progress: str = ""
    step: StepCall | None = None
    ended: bool = False
    output: Raw = NOTHING
    left: ContextAdditions = ContextAdditions()
    error: TaskFailure | None = None
    retryable: bool = True
    suspended: tuple[int, ...] = ()


class Replies:
    """The way back to the driver; lines of several threads do not mix."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = Lock()

    def progress(self, line: str) -> None:
        self.send(Reply(progress=line))

    def send(self, reply: Reply) -> None:
        data = memoryview(msgspec.json.encode(reply) + b"\n")
        # A driver that no longer reads has given this attempt up.
        with self._lock, suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._fd, data) :]


class DriverHost:
    """What the function's steps ask of the driver, over the pipes between them."""

    def __init__(self, replies: Replies, answers: Iterable[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._replies, self._answers, self._loop = replies, answers, loop
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._numbers = itertools.count()
        self._listening = False

    async def begin_step(self, number: int, name: str, inputs: str) -> None:
        await self._ask_driver(verb="begin_step", number=number, name=name, inputs=inputs)

    async def record_step(self, number: int, name: str, inputs: str, output: bytes) -> None:
        await self._ask_driver(verb="record_step", number=number, name=name, inputs=inputs, output=Raw(output))

    async def begin_sleep(self, number: int, inputs: str, seconds: float) -> None:
        await self._ask_driver(verb="begin_sleep", number=number, inputs=inputs, seconds=seconds)

    async def ask(
        self, number: int, inputs: str, question: str, choices: tuple[str, ...], timeout_s: float | None
    ) -> None:
        asked = {"question": question, "choices": choices, "timeout_s": timeout_s}
        await self._ask_driver(verb="ask", number=number, inputs=inputs, **asked)

    def report_abandoned(self, ended: Awaitable[object]) -> None:
        """The thread ends with this process."""

    async def _ask_driver(self, **call: Any) -> None:
        if not self._listening:
            self._listening = True
            Thread(target=self._listen, daemon=True).start()
        id = next(self._numbers)
        durable = self._waiting[id] = self._loop.create_future()
        self._replies.send(Reply(step=StepCall(id=id, **call)))
        await durable

    def _listen(self) -> None:
        for line in self._answers:
            self._loop.call_soon_threadsafe(self._settle, typed.decode(line, StepAnswer))

    def _settle(self, answer: StepAnswer) -> None:
        durable = self._waiting.pop(answer.id)
        if durable.done():
            return
        if answer.problem:
            durable.set_exception(AttemptError(answer.problem))
        else:
            durable.set_result(None)


def perform(request: ChildRequest, replies: Replies, answers: Iterable[bytes]) -> Reply:
    """Call the function; whatever it does is a reply."""
    try:
        with mark_attempt(os.environ.get(ATTEMPT_VARIABLE, "")):  # the function may drop the variable
            output, left = _call(request, replies, answers)
    except AttemptFailed as failed:
        return Reply(ended=True, error=failed.failure, retryable=failed.retryable)
    except AttemptSuspended as suspended:
        return Reply(ended=True, suspended=suspended.waits)
    return Reply(ended=True, output=Raw(output), left=left)


def _call(request: ChildRequest, replies: Replies, answers: Iterable[bytes]) -> tuple[bytes, ContextAdditions]:
    try:
        function = load(request.function, Path(request.root))
    except AttemptError as error:
        raise AttemptFailed(plain_failure(error), retryable=False) from None
    except BaseException as error:
        raise AttemptFailed(failure_of(error), retryable=False) from None
    _refuse_other_code(function, request)
    callee, given = callee_of(function), decode_value(request.arguments)
    with asyncio.Runner() as runner:
        steps: Steps | None = None
        if callee.is_async:
            loop = runner.get_loop()
            steps = Steps(_spec(request), DriverHost(replies, answers, loop), DaemonThreads(), loop)
        context = _context(request, replies, steps)
        arguments = bind_arguments(callee.bind, given, context if callee.takes_context else None)
        if callee.is_async:
            return runner.run(call_async(function, arguments, steps=steps)), context.close("has ended")
        answer = call_sync(function, arguments)
        if not isinstance(answer, bytes):
            answer = runner.run(call_async(await_it, {"awaitable": answer}))
        return answer, context.close("has ended")


def _refuse_other_code(function: Callable[..., Any], request: ChildRequest) -> None:
    seen = code_digest(function) if request.code else ""
    if seen and seen != request.code:
        name = f"{request.function.module}:{request.function.qualname}"
        error = OtherCodeError(
            f"{name} is another function on the worker than where the run is driven",
            next_step="Install the same version of your code on the workers and on the driver, then resume.",
        )
        raise AttemptFailed(plain_failure(error), retryable=False)


def _context(request: ChildRequest, replies: Replies, steps: Steps | None) -> Context:
    return Context(
        workflow_id=request.workflow_id,
        task_id=request.task_id,
        attempt=request.attempt,
        idempotency_key=request.idempotency_key,
        root=Path(request.worktree or request.root),
        show=replies.progress,
        steps=steps,
    )


def _spec(request: ChildRequest) -> AttemptSpec:
    """What steps have to know of the attempt."""
    return AttemptSpec(
        workflow_id=request.workflow_id,
        task_id=request.task_id,
        attempt=request.attempt,
        definition=request.definition,
        arguments=decode_value(request.arguments),
        cwd=Path(request.root),
        root=Path(request.root),
        idempotency_key=request.idempotency_key,
        attempt_id=os.environ.get(ATTEMPT_VARIABLE, ""),
        steps=request.steps,
    )


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)  # so that `finally` blocks run within the grace the driver gives


def main() -> None:
    request_fd, reply_fd = int(sys.argv[-2]), int(sys.argv[-1])
    os.set_inheritable(reply_fd, False)  # what the function starts must not keep the driver waiting
    os.set_inheritable(request_fd, False)
    answers = open(request_fd, "rb")  # noqa: SIM115 (as long as this process lives)
    data = answers.readline()
    if not data:
        os._exit(125)  # the driver died before it had said what to do
    request = typed.decode(data, ChildRequest)

    def lines() -> Iterator[bytes]:
        yield from answers
        os._exit(125)  # the driver is gone, and nothing more can be written down

    sys.path[:] = request.path
    del sys.argv[1:]
    signal.signal(signal.SIGTERM, _terminate)
    replies = Replies(reply_fd)
    reply = perform(request, replies, lines())
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    replies.send(reply)
    os._exit(0)  # threads the function left behind do not hold the attempt


if __name__ == "__main__":
    main()
