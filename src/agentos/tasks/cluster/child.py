"""The process in which attempts are performed on a worker; its arguments are the descriptors to read and write.

It takes one piece of work after the other. It ends itself, with everything that the attempt started, when its worker
is gone, and when nobody has renewed the attempt in time: also where the worker was stopped and cannot end it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import select
import signal
import sys
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from time import perf_counter
from types import FrameType

import msgspec
from msgspec import Raw

from agentos import typed
from agentos.dag.define.model_calls import Budget
from agentos.exceptions import AgentosError
from agentos.machine.events import AgentSession, ModelCall, Usage
from agentos.machine.inputs import AttemptResult
from agentos.secrets import Masker
from agentos.store.holder import boot_clock
from agentos.tasks.attempt import AttemptSpec, ChildProcess, Mark, Stream
from agentos.tasks.cluster.wire import (
    AttemptReport,
    ChildWord,
    PlacedResult,
    PlacedWork,
    encode,
    fill_in_secrets,
    folder_there,
)
from agentos.tasks.context import ContextAdditions
from agentos.tasks.failures import failure_of, plain_failure
from agentos.tasks.masking import masked_outcome
from agentos.tasks.outcomes import milliseconds_since, success_outcome
from agentos.tasks.process.orphans import ATTEMPT_VARIABLE, ROOT_VARIABLE, end_attempt
from agentos.tasks.python.child import Replies, Reply, StepAnswer, perform
from agentos.values import encode_value

_READ = 65_536


class Control:
    """What the worker says, read by a thread of its own so that it is heard whatever the attempt does."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.work: queue.SimpleQueue[PlacedWork] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[StepAnswer] = queue.SimpleQueue()
        self.was_asked = False
        """A step of a function waits for answers, in a thread that lives as long as this process."""
        self._mark: Mark | None = None
        self._expires = 0.0
        Thread(target=self._listen, name="agentos-control", daemon=True).start()

    def attempt_over(self) -> None:
        self._mark = None

    def answer_lines(self) -> Iterator[bytes]:
        self.was_asked = True
        while True:
            yield encode(self.answers.get())

    def _listen(self) -> None:
        rest = b""
        while True:
            left_s = None if self._mark is None else max(0.0, self._expires - boot_clock())
            if not select.select([self._fd], [], [], left_s)[0]:
                if self._mark is not None and boot_clock() >= self._expires:
                    self._end_all()
                continue
            data = os.read(self._fd, _READ)
            if not data:
                self._end_all()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(typed.decode(line, ChildWord))

    def _take(self, word: ChildWord) -> None:
        if word.work is not None:
            self._mark = Mark(word.work.attempt_id, word.work.root)
            self._expires = boot_clock() + word.work.lease_s
            self.work.put(word.work)
        elif word.answer is not None:
            self.answers.put(word.answer)
        elif self._mark is not None:
            self._expires = max(self._expires, boot_clock() + word.renewed_s)

    def _end_all(self) -> None:
        """Nobody waits for the attempt any more: end what it started, and this process with its group."""
        if (mark := self._mark) is not None:
            with suppress(Exception):
                end_attempt(mark)
        with suppress(OSError):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


class Reports(Replies):
    """The way back to the worker."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._reports_fd = fd
        self._reports_lock = Lock()
        self.handle = ""

    def send(self, reply: Reply) -> None:
        if reply.step is not None:
            self.report(AttemptReport(handle=self.handle, step=reply.step))
        elif not reply.ended:
            self.report(AttemptReport(handle=self.handle, progress=reply.progress))

    def report(self, report: AttemptReport) -> None:
        data = memoryview(encode(report) + b"\n")
        with self._reports_lock, suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._reports_fd, data) :]


class _ChildHost:
    """What a shell command's performer asks, answered here: its start is durable already."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports

    def output(self, stream: Stream, text: str) -> None:
        if stream == "progress":
            self._reports.progress(text)

    async def child_started(self, child: ChildProcess) -> None:
        pass

    async def record_session(self, session: AgentSession) -> None:
        raise NotImplementedError

    async def record_usage(self, usage: Usage, call: ModelCall | None = None) -> None:
        raise NotImplementedError

    async def begin_step(self, number: int, name: str, inputs: str) -> None:
        raise NotImplementedError

    async def record_step(self, number: int, name: str, inputs: str, output: bytes) -> None:
        raise NotImplementedError

    async def begin_sleep(self, number: int, inputs: str, seconds: float) -> None:
        raise NotImplementedError

    async def ask(
        self, number: int, inputs: str, question: str, choices: tuple[str, ...], timeout_s: float | None
    ) -> None:
        raise NotImplementedError

    def allowance(self) -> Budget:
        return Budget()

    async def capture_turn(self) -> str:
        return ""

    async def current_tree(self) -> str:
        return ""

    def report_abandoned(self, ended: Awaitable[object]) -> None:
        pass


class _Log:
    """The attempt's log is with its driver."""

    limit = 1 << 62

    def __init__(self, reports: Reports) -> None:
        self._reports = reports

    def write(self, stream: Stream, data: bytes) -> None:
        self._reports.report(AttemptReport(handle=self._reports.handle, stream=stream, data=bytes(data)))

    def sync(self) -> None:
        pass

    def keep(self, suffix: str, data: Iterable[bytes]) -> str:
        return ""


def _perform(work: PlacedWork, reports: Reports, control: Control) -> PlacedResult:
    began = perf_counter()
    reports.handle = work.handle
    masker = _masker(work.secret_names)
    try:
        work = fill_in_secrets(work)
    except AgentosError as error:
        return PlacedResult(error=plain_failure(error), retryable=False)
    own = {
        ATTEMPT_VARIABLE: work.attempt_id,
        ROOT_VARIABLE: work.root,
        "AGENTOS_WORKFLOW_ID": work.workflow_id,
        "AGENTOS_TASK_ID": work.task_id,
        "AGENTOS_IDEMPOTENCY_KEY": work.idempotency_key,
    }
    before = dict(os.environ)
    try:
        os.environ.update({**work.env, **own})
        os.chdir(folder_there(work.cwd))
        if work.python is not None:
            return _perform_python(work, reports, control, masker, began)
        return _placed_result(asyncio.run(_perform_shell(work, reports, masker)), began)
    except Exception as error:
        return PlacedResult(error=failure_of(error), took_ms=milliseconds_since(began))
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _perform_python(work: PlacedWork, reports: Reports, control: Control, masker: Masker, began: float) -> PlacedResult:
    assert work.python is not None
    request = msgspec.structs.replace(work.python, root=folder_there(work.root))
    reply = perform(request, reports, control.answer_lines())
    if reply.suspended:
        return PlacedResult(suspended=reply.suspended, took_ms=milliseconds_since(began))
    if reply.error is None and not masker:
        return _result_of(reply.output, reply.left, began)
    if reply.error is None:
        return _placed_result(
            masked_outcome(success_outcome(reply.output, reply.left, began), work.task_id, masker), began
        )
    failed = AttemptResult(error=reply.error, retryable=reply.retryable)
    return _placed_result(masked_outcome(failed, work.task_id, masker), began)


def _result_of(output: Raw, left: ContextAdditions, began: float) -> PlacedResult:
    return PlacedResult(
        output=output,
        messages=left.messages,
        context=left.context,
        injected=left.injected,
        took_ms=milliseconds_since(began),
    )


async def _perform_shell(work: PlacedWork, reports: Reports, masker: Masker) -> AttemptResult:
    from agentos.tasks.process.supervision import Spawner, Supervisor
    from agentos.tasks.python.threads import DaemonThreads
    from agentos.tasks.shell import ShellPerformer

    folder = Path(folder_there(work.cwd))
    spec = AttemptSpec(
        workflow_id=work.workflow_id,
        task_id=work.task_id,
        attempt=work.attempt,
        definition=work.definition,
        command=work.command,
        env=work.env,
        cwd=folder,
        root=Path(work.root),
        idempotency_key=work.idempotency_key,
        attempt_id=work.attempt_id,
        masker=masker,
        log=_Log(reports),
    )
    performing = asyncio.create_task(ShellPerformer(Supervisor(DaemonThreads(), Spawner()))(spec, _ChildHost(reports)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, performing.cancel)
    return masked_outcome(await performing, work.task_id, masker)


def _placed_result(result: AttemptResult, began: float) -> PlacedResult:
    return PlacedResult(
        output=result.output,
        messages=result.messages,
        context=result.context,
        injected=tuple((id, Raw(encode_value(mapping))) for id, mapping in result.injected),
        warnings=result.warnings,
        error=result.error,
        retryable=result.retryable,
        cancelled=result.cancelled,
        cut_off=result.cut_off,
        took_ms=result.execution_time_ms or milliseconds_since(began),
    )


@cache
def _masker(names: tuple[str, ...]) -> Masker:
    return Masker.for_run(names)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)  # so that `finally` blocks run within the grace that the worker gives


def main() -> None:
    control_fd, report_fd = int(sys.argv[-2]), int(sys.argv[-1])
    for fd in (control_fd, report_fd):
        os.set_inheritable(fd, False)  # what an attempt starts must not keep the worker waiting
    del sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the worker's terminal is the worker's
    reports, control = Reports(report_fd), Control(control_fd)
    while True:
        work = control.work.get()
        signal.signal(signal.SIGTERM, _terminate)
        result = _perform(work, reports, control)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        control.attempt_over()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        leaves = not work.reusable or control.was_asked
        reports.report(AttemptReport(handle=work.handle, end=result, leaves=leaves))
        if leaves:
            os._exit(0)  # threads the function left behind do not hold the attempt


if __name__ == "__main__":
    main()
