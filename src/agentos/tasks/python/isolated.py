"""Performs an attempt of a Python function in a child interpreter: `isolation: process`, with real cancellation."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import msgspec
from msgspec import Raw

from agentos import typed
from agentos.exceptions import AttemptError, ValueEncodingError
from agentos.machine.inputs import AttemptResult
from agentos.tasks.attempt import AttemptHost, AttemptSpec
from agentos.tasks.failures import plain_failure
from agentos.tasks.masking import capture_of
from agentos.tasks.outcomes import AttemptFailed, failure_outcome, milliseconds_since, success_outcome
from agentos.tasks.process.launch import Launch, environment_of, start_failure, working_folder
from agentos.tasks.process.supervision import Supervisor, describe_status, last_words, refuse_cut_short, was_ended
from agentos.tasks.python.child import ChildRequest, Reply, StepAnswer, StepCall
from agentos.tasks.python.functions import reference_of
from agentos.tasks.python.threads import DaemonThreads
from agentos.values import encode_value

# -c and not -m: agentos may be importable here only because of this process's own sys.path. -P: a module in the
# working folder must not stand in for one of the standard library.
_BOOT = "import sys; sys.path.append(sys.argv[1]); from agentos.tasks.python.child import main; main()"
_OUR_FOLDER = str(Path(__file__).parents[3])


class IsolatedPerformer:
    """Calls the function of a python task in a process of its own."""

    def __init__(self, supervisor: Supervisor, threads: DaemonThreads) -> None:
        self._supervisor = supervisor
        self._threads = threads

    async def __call__(self, spec: AttemptSpec, host: AttemptHost) -> AttemptResult:
        began = perf_counter()
        try:
            request = msgspec.json.encode(child_request(spec, sys.path))
            reply, warnings = await self._reply(request, spec, host)
        except AttemptFailed as failed:
            return failure_outcome(failed, began)
        if reply.suspended:
            waits, spent_ms = reply.suspended, milliseconds_since(began)
            return AttemptResult(suspended=waits, warnings=warnings, execution_time_ms=spent_ms)
        return success_outcome(reply.output, reply.left, began, warnings)

    async def _reply(self, request: bytes, spec: AttemptSpec, host: AttemptHost) -> tuple[Reply, tuple[str, ...]]:
        out, err = capture_of("stdout", spec, host), capture_of("stderr", spec, host)
        pipes = _Pipes()
        replies = _Replies(host, pipes.answer)
        try:
            fds = (pipes.childs_request, pipes.childs_reply)
            argv = (sys.executable, "-u", "-P", "-c", _BOOT, _OUR_FOLDER, *map(str, fds))
            try:
                launch = Launch(argv=argv, env=environment_of(spec), cwd=working_folder(spec), pass_fds=fds)
            except OSError as error:
                raise start_failure(error) from None
            ending = await self._supervisor.run(
                launch,
                host,
                mark=spec.mark,
                feeds=(out.feed, err.feed),
                timeout_s=spec.definition.timeout_s,
                more=[(pipes.reply, replies.feed)],
                on_go=lambda: pipes.hand_over(request, self._threads),
            )
        finally:
            pipes.close()
            out.close()
            err.close()
        refuse_cut_short(ending, last_words(out, err), spec.definition.timeout_s)
        reply = replies.last
        if reply is None:
            text = f"the task's process {describe_status(ending.status)} before it gave a result"
            failure = plain_failure(AttemptError(f"{text}{last_words(out, err)}"))
            raise AttemptFailed(failure, cut_off=was_ended(ending.status), warnings=ending.warnings)
        if reply.error is not None:
            raise AttemptFailed(reply.error, retryable=reply.retryable, warnings=ending.warnings)
        return reply, ending.warnings


class _Pipes:
    """One pipe to the child and one back. The child's ends stay open here only until it has its own."""

    def __init__(self) -> None:
        self.childs_request, self._request = os.pipe()
        self.reply, self.childs_reply = os.pipe()
        self._open = {self.childs_request, self._request, self.reply, self.childs_reply}
        os.set_blocking(self.reply, False)

    def hand_over(self, request: bytes, threads: DaemonThreads) -> None:
        """Send the request; in a thread, since it may be larger than what a pipe takes at once."""
        self._close(self.childs_request, self.childs_reply)
        written = os.dup(self._request)  # its own: this end stays open for answers, until the attempt is over

        def write() -> None:
            with suppress(BrokenPipeError), open(written, "wb") as file:
                file.write(request + b"\n")

        threads.start(write)

    def answer(self, answer: StepAnswer) -> None:
        """Tell the child what became of what it asked; it reads these lines as they come, so that this never waits."""
        if self._request in self._open:
            with suppress(BrokenPipeError):
                os.write(self._request, msgspec.json.encode(answer) + b"\n")

    def close(self) -> None:
        self._close(*self._open)

    def _close(self, *fds: int) -> None:
        for fd in fds:
            self._open.discard(fd)
            os.close(fd)


class _Replies:
    """Takes the child's lines apart: progress is shown, the last one kept."""

    def __init__(self, host: AttemptHost, answer: Callable[[StepAnswer], None]) -> None:
        self._host = host
        self._answer = answer
        self._asked: set[asyncio.Task[None]] = set()
        self._rest = bytearray()
        self.last: Reply | None = None

    def feed(self, data: bytes) -> None:
        self._rest += data
        if b"\n" not in data:
            return
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        for line in lines:
            # The function may write to any descriptor it finds; that must not disturb the driver.
            with suppress(msgspec.DecodeError):
                reply = typed.decode(line, Reply)
                if reply.ended:
                    self.last = reply
                elif reply.step is not None:
                    asked = asyncio.create_task(self._answer_step(reply.step))
                    self._asked.add(asked)
                    asked.add_done_callback(self._asked.discard)
                else:
                    self._host.output("progress", reply.progress)

    async def _answer_step(self, call: StepCall) -> None:
        self._answer(await write_step_down(self._host, call))


async def write_step_down(host: AttemptHost, call: StepCall) -> StepAnswer:
    """Do what a step of the function asks; the answer once it is durable, or why it will never be."""
    problem = ""
    try:
        match call.verb:
            case "begin_step":
                await host.begin_step(call.number, call.name, call.inputs)
            case "record_step":
                await host.record_step(call.number, call.name, call.inputs, call.output)
            case "begin_sleep":
                await host.begin_sleep(call.number, call.inputs, call.seconds)
            case "ask":
                await host.ask(call.number, call.inputs, call.question, call.choices, call.timeout_s)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    return StepAnswer(id=call.id, problem=problem)


def child_request(spec: AttemptSpec, path: Iterable[str]) -> ChildRequest:
    """What another interpreter is told of an attempt. AttemptFailed where its function cannot be found from there."""
    try:
        return ChildRequest(
            function=reference_of(spec.function, spec.definition.call),
            arguments=Raw(encode_value(dict(spec.arguments), around=True)),
            root=str(spec.root),
            worktree=str(spec.worktree or ""),
            path=tuple(path),
            workflow_id=spec.workflow_id,
            task_id=spec.task_id,
            attempt=spec.attempt,
            idempotency_key=spec.idempotency_key,
            definition=spec.definition,
            steps=spec.steps,
        )
    except (AttemptError, ValueEncodingError) as error:
        raise AttemptFailed(plain_failure(error), retryable=False) from None
