"""Performs an attempt of a Python function: on the loop if it is async, else in a daemon thread."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from threading import get_ident
from time import perf_counter
from typing import Any, Final

from msgspec import Raw

from agentos import crashpoints
from agentos.exceptions import (
    AttemptError,
    GateRejected,
    StepsChangedError,
    TaskCancelledError,
    TaskTimeoutError,
    TryAgainError,
)
from agentos.machine.inputs import AttemptResult
from agentos.tasks.attempt import AttemptHost, AttemptSpec, Performer
from agentos.tasks.context import Context
from agentos.tasks.failures import failure_of, plain_failure
from agentos.tasks.outcomes import (
    AttemptFailed,
    AttemptSuspended,
    encode_result,
    failure_outcome,
    milliseconds_since,
    success_outcome,
)
from agentos.tasks.python.functions import callee_of, find_imported, load, reference_of
from agentos.tasks.python.stdout import route_prints
from agentos.tasks.python.steps import Steps
from agentos.tasks.python.threads import DaemonThreads, ThreadCall

_EXPIRED: Final = object()
_NOT_RETRIED = (TryAgainError, StepsChangedError, GateRejected)
PENDING_PROGRESS = 100


class PythonPerformer:
    """Calls the function of a python task. What it costs beyond the call itself is a few microseconds."""

    def __init__(self, threads: DaemonThreads, isolated: Performer) -> None:
        self._threads = threads
        self._isolated = isolated

    async def __call__(self, spec: AttemptSpec, host: AttemptHost) -> AttemptResult:
        if spec.definition.isolation in ("process", "worktree"):  # a folder of its own takes a process of its own
            return await self._isolated(spec, host)
        with route_prints(lambda: LiveProgress(host)):
            return await self._perform(spec, host)

    async def _perform(self, spec: AttemptSpec, host: AttemptHost) -> AttemptResult:
        began = perf_counter()
        context: Context | None = None
        try:
            function = spec.function if spec.function is not None else await self._find_function(spec, host)
            callee = callee_of(function)
            steps: Steps | None = None
            if callee.takes_context:
                steps = Steps(spec, host, self._threads, asyncio.get_running_loop())
                context = context_of(spec, LiveProgress(host), steps)
            arguments = bind_arguments(callee.bind, spec.arguments, context)
            if callee.is_async:
                output = await call_async(function, arguments, spec.definition.timeout_s, steps)
            else:
                output = await self._in_thread(partial(call_sync, function, arguments), spec, host, context, steps)
        except AttemptSuspended as suspended:
            if context is not None:
                context.close("was suspended")
            return AttemptResult(suspended=suspended.waits, execution_time_ms=milliseconds_since(began))
        except Exception as error:
            if context is not None:
                context.close("has failed")
            # Others than AttemptFailed come from callables that do not even let themselves be looked at.
            failed = error if isinstance(error, AttemptFailed) else AttemptFailed(failure_of(error), retryable=False)
            return failure_outcome(failed, began)
        if context is None:
            return AttemptResult(output=Raw(output), execution_time_ms=milliseconds_since(began))
        return success_outcome(output, context.close("has ended"), began)

    async def _find_function(self, spec: AttemptSpec, host: AttemptHost) -> Callable[..., Any]:
        known = find_imported(spec.definition.call)
        if known is not None:
            return known
        # In a thread: a module's first import may take seconds, and everybody else waits for the loop.
        found: list[Callable[..., Any]] = []

        def work() -> bytes:
            try:
                found.append(load(reference_of(None, spec.definition.call), spec.root))
            except AttemptError as error:
                raise AttemptFailed(plain_failure(error), retryable=False) from None
            except BaseException as error:
                raise AttemptFailed(failure_of(error), retryable=False) from None
            return b""

        await self._in_thread(work, spec, host, None)
        return found[0]

    async def _in_thread(
        self,
        work: Callable[[], bytes | Awaitable[Any]],
        spec: AttemptSpec,
        host: AttemptHost,
        context: Context | None,
        steps: Steps | None = None,
    ) -> bytes:
        loop = asyncio.get_running_loop()
        timeout_s = spec.definition.timeout_s
        deadline = loop.time() + (timeout_s or 0.0)
        try:
            call = self._threads.start(work)
        except RuntimeError as error:  # the system gives no more threads
            raise AttemptFailed(failure_of(error)) from None
        answer = await _wait_for_answer(call, timeout_s)
        if answer is _EXPIRED or answer is None:
            raise _abandon(call, spec, host, context, timed_out=answer is _EXPIRED)
        if isinstance(answer, bytes):
            if steps is not None:
                try:
                    steps.refuse_forgotten()
                except AttemptError as error:
                    raise AttemptFailed(plain_failure(error), retryable=False) from None
            return answer
        left_s = None if timeout_s is None else max(deadline - loop.time(), 0.0)
        return await call_async(await_it, {"awaitable": answer}, left_s, steps)


async def _wait_for_answer(call: ThreadCall[Any], timeout_s: float | None) -> Any:
    """What the thread answers; `_EXPIRED` past the timeout; None where we were cancelled before it was done."""
    loop, answer = asyncio.get_running_loop(), call.answer

    def expire() -> None:
        if not answer.done():
            answer.set_result(_EXPIRED)

    timer = None if timeout_s is None else loop.call_later(timeout_s, expire)
    try:
        return await answer
    except asyncio.CancelledError:
        # Cancelled in the very moment when the work had ended: it was done, so it counts.
        return answer.result() if answer.done() and not answer.cancelled() else None
    finally:
        if timer is not None:
            timer.cancel()


def _abandon(
    call: ThreadCall[Any], spec: AttemptSpec, host: AttemptHost, context: Context | None, *, timed_out: bool
) -> AttemptFailed:
    """A thread cannot be stopped: say so, and let the engine know when it has ended after all."""
    if context is not None:
        context.close("ran out of time and was abandoned" if timed_out else "was cancelled and abandoned")
    where = call.stack()
    if not call.ended.done():
        host.report_abandoned(call.ended)
    why = "ran past its timeout" if timed_out else "was cancelled"
    warning = (
        f"{spec.task_id!r} {why}, but a synchronous function cannot be stopped in a thread: it was abandoned and may "
        "still be at work. `isolation: process` gives real cancellation."
    )
    error = _timeout_error(spec.definition.timeout_s) if timed_out else TaskCancelledError("the attempt was cancelled")
    return AttemptFailed(
        plain_failure(error, where),
        cancelled=not timed_out,
        cut_off=timed_out,
        retryable=timed_out,
        warnings=(warning,),
    )


def _timeout_error(timeout_s: float | None) -> TaskTimeoutError:
    return TaskTimeoutError(f"the attempt ran longer than its timeout of {timeout_s:g} s")


# --- the call itself; also used in the child of an isolated attempt ----------------------------------------------


async def call_async(
    function: Callable[..., Awaitable[Any]],
    arguments: dict[str, Any],
    timeout_s: float | None = None,
    steps: Steps | None = None,
) -> bytes:
    """Await the function's result, in stored form. AttemptFailed for any other end of it.

    AttemptSuspended where its `steps` wait for something, whatever the function made of its cancellation.
    """
    try:
        if steps is None:
            value = await _call_within(timeout_s, function, arguments)
        else:
            async with asyncio.timeout(None) as scope:
                with steps.suspend_with(scope):
                    value = await _call_within(timeout_s, function, arguments)
            if steps.suspended:
                raise AttemptSuspended(steps.suspended)
            steps.refuse_forgotten()
    except BaseException as error:
        if steps is not None and steps.suspended and not _is_final(error):
            raise AttemptSuspended(steps.suspended) from None
        raise _async_failure(error) from None
    crashpoints.reach("attempt.inside")
    return encode_result(value)


def call_sync(function: Callable[..., Any], arguments: dict[str, Any]) -> bytes | Awaitable[Any]:
    """The function's result, in stored form; or what it left to be awaited. AttemptFailed if it raises."""
    try:
        value = function(**arguments)
    except BaseException as error:
        raise _function_failure(error) from None
    crashpoints.reach("attempt.inside")
    try:
        return encode_result(value)
    except AttemptFailed:
        if inspect.isawaitable(value) and not inspect.isgenerator(value):
            return value
        raise


def bind_arguments(
    bind: Callable[[Mapping[str, Any], Context | None], dict[str, Any]],
    arguments: Mapping[str, Any],
    context: Context | None,
) -> dict[str, Any]:
    try:
        return bind(arguments, context)
    except AttemptError as error:
        raise AttemptFailed(plain_failure(error), retryable=False) from None


def _is_final(error: BaseException) -> bool:
    """Whether an attempt that was to be suspended has ended in another way: it ran out of time, or was cancelled."""
    task = asyncio.current_task()
    return isinstance(error, AttemptFailed) or (task is not None and task.cancelling() > 0)


async def _call_within(
    timeout_s: float | None, function: Callable[..., Awaitable[Any]], arguments: dict[str, Any]
) -> Any:
    return await (function(**arguments) if timeout_s is None else _within(timeout_s, function, arguments))


async def _within(timeout_s: float, function: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> Any:
    scope = asyncio.timeout(timeout_s)
    try:
        async with scope:
            value = await function(**arguments)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        if not scope.expired():
            raise
        # Whatever it made of the cancellation, it ran out of time; the cause shows what it was waiting for.
        cause = error.__cause__ if isinstance(error, TimeoutError) and error.__cause__ else error
        raise AttemptFailed(
            plain_failure(_timeout_error(timeout_s), failure_of(cause).traceback), cut_off=True
        ) from None
    if scope.expired():
        raise AttemptFailed(plain_failure(_timeout_error(timeout_s)), cut_off=True)
    return value


def _async_failure(error: BaseException) -> AttemptFailed:
    if isinstance(error, AttemptFailed):
        return error
    if not isinstance(error, asyncio.CancelledError):
        return _function_failure(error)
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return AttemptFailed(
            plain_failure(TaskCancelledError("the attempt was cancelled")), retryable=False, cancelled=True
        )
    return AttemptFailed(failure_of(asyncio.CancelledError("the function raised CancelledError; nobody cancelled it")))


def _function_failure(error: BaseException) -> AttemptFailed:
    # "Later" is not "at once": whoever raises it knows that a retry would come too soon.
    return AttemptFailed(failure_of(error), retryable=not isinstance(error, _NOT_RETRIED))


async def await_it(awaitable: Awaitable[Any]) -> Any:
    """What a synchronous function left to be awaited."""
    return await awaitable


# --- contexts ----------------------------------------------------------------------------------------


class LiveProgress:
    """Brings progress lines from any thread to the host, on the loop. Floods lose their oldest lines."""

    __slots__ = ("_host", "_lines", "_loop", "_scheduled", "_thread")

    def __init__(self, host: AttemptHost) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._lines: deque[str] = deque(maxlen=PENDING_PROGRESS)
        self._scheduled = False

    def __call__(self, line: str) -> None:
        if get_ident() == self._thread:
            self._host.output("progress", line)
            return
        self._lines.append(line)
        if not self._scheduled:
            self._scheduled = True
            with suppress(RuntimeError):  # the loop is closed: nobody looks
                self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        # First, so that a line added while we empty the queue schedules another turn.
        self._scheduled = False
        for _ in range(len(self._lines)):
            self._host.output("progress", self._lines.popleft())


def context_of(spec: AttemptSpec, show: Callable[[str], None], steps: Steps) -> Context:
    return Context(
        workflow_id=spec.workflow_id,
        task_id=spec.task_id,
        attempt=spec.attempt,
        idempotency_key=spec.idempotency_key,
        root=spec.worktree or spec.root,
        show=show,
        steps=steps,
    )
