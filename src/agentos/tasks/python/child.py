"""The child side of `isolation: process`: `python -m agentos.tasks.python.child REQUEST_FD REPLY_FD`.

Reads one request, calls the function, and writes JSON lines: progress as it comes, then how it ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock
from types import FrameType

import msgspec
from msgspec import Raw

from agentos import typed
from agentos.exceptions import AttemptError
from agentos.ids import TaskId, WorkflowId
from agentos.machine.events import NOTHING, TaskFailure
from agentos.tasks.context import Context, ContextAdditions
from agentos.tasks.failures import failure_of, plain_failure
from agentos.tasks.outcomes import AttemptFailed
from agentos.tasks.process.ancestors import mark_attempt
from agentos.tasks.process.orphans import ATTEMPT_VARIABLE
from agentos.tasks.python.functions import FunctionReference, callee_of, load
from agentos.tasks.python.performer import await_it, bind_arguments, call_async, call_sync
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


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line from the child: progress, or with `ended` the last one."""

    progress: str = ""
    ended: bool = False
    output: Raw = NOTHING
    left: ContextAdditions = ContextAdditions()
    error: TaskFailure | None = None
    retryable: bool = True


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


def perform(request: ChildRequest, replies: Replies) -> Reply:
    """Call the function; whatever it does is a reply."""
    context = Context(
        workflow_id=request.workflow_id,
        task_id=request.task_id,
        attempt=request.attempt,
        idempotency_key=request.idempotency_key,
        root=Path(request.worktree or request.root),
        show=replies.progress,
    )
    try:
        with mark_attempt(os.environ.get(ATTEMPT_VARIABLE, "")):  # the function may drop the variable
            output = _call(request, context)
    except AttemptFailed as failed:
        return Reply(ended=True, error=failed.failure, retryable=failed.retryable)
    return Reply(ended=True, output=Raw(output), left=context.close("has ended"))


def _call(request: ChildRequest, context: Context) -> bytes:
    try:
        function = load(request.function, Path(request.root))
    except AttemptError as error:
        raise AttemptFailed(plain_failure(error), retryable=False) from None
    except BaseException as error:
        raise AttemptFailed(failure_of(error), retryable=False) from None
    callee = callee_of(function)
    arguments = bind_arguments(callee.bind, decode_value(request.arguments), context if callee.takes_context else None)
    if callee.is_async:
        return asyncio.run(call_async(function, arguments))
    answer = call_sync(function, arguments)
    return answer if isinstance(answer, bytes) else asyncio.run(call_async(await_it, {"awaitable": answer}))


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)  # so that `finally` blocks run within the grace the driver gives


def main() -> None:
    request_fd, reply_fd = int(sys.argv[-2]), int(sys.argv[-1])
    os.set_inheritable(reply_fd, False)  # what the function starts must not keep the driver waiting
    with open(request_fd, "rb") as file:
        data = file.read()
    if not data:
        os._exit(125)  # the driver died before it had said what to do
    request = typed.decode(data, ChildRequest)
    sys.path[:] = request.path
    del sys.argv[1:]
    signal.signal(signal.SIGTERM, _terminate)
    replies = Replies(reply_fd)
    reply = perform(request, replies)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    replies.send(reply)
    os._exit(0)  # threads the function left behind do not hold the attempt


if __name__ == "__main__":
    main()
