"""Daemon threads for work that cannot be cancelled: the interpreter's exit never waits for them.

`concurrent.futures` and `asyncio.to_thread` join their threads at exit; a function that hangs would hang the exit.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from agentos.tasks.failures import stack_of

T = TypeVar("T")
Idle = list["_Worker"]

IDLE_S = 10.0
_numbers = itertools.count(1)


class ThreadCall(Generic[T]):
    """Work under way in a thread, in a copy of the caller's context variables.

    `answer` gets what the work returns or raises, unless somebody settled or cancelled it before; `ended` is done
    once the work has ended, and only then.
    """

    __slots__ = ("_context", "_loop", "_work", "answer", "ended", "thread")

    def __init__(self, work: Callable[[], T]) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: Callable[[], T] | None = work
        self._context = contextvars.copy_context()
        self.answer: asyncio.Future[T] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.thread: threading.Thread | None = None

    def stack(self) -> str:
        """Where the work is just now."""
        ident = self.thread.ident if self.thread is not None else None
        return stack_of(sys._current_frames().get(ident)) if ident is not None else ""

    def perform(self) -> tuple[T | None, BaseException | None]:
        """Do the work; in the thread."""
        work, self._work = self._work, None
        assert work is not None
        try:
            return self._context.run(work), None
        except BaseException as error:
            return None, error

    def deliver_result(self, result: T | None, error: BaseException | None) -> None:
        """Tell the loop; in the thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._settle, result, error)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        if self.answer.done():
            if asyncio.iscoroutine(result):
                result.close()  # nobody will await it
            return
        if error is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(error)


class DaemonThreads:
    """As many threads as there are calls at once; one that stays idle for a while goes."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle: Idle = []
        self._lock = threading.Lock()
        self._idle_s = idle_s

    def start(self, work: Callable[[], T]) -> ThreadCall[T]:
        """Begin the work at once in a thread of its own. RuntimeError if the system gives no more threads."""
        call = ThreadCall(work)
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is None or not worker.thread.is_alive():  # after a fork none is
            worker = _Worker(self._idle, self._lock, self._idle_s)
            worker.thread.start()
        call.thread = worker.thread
        worker.calls.put(call)
        return call


class _Worker:
    __slots__ = ("_idle", "_idle_s", "_lock", "calls", "thread")

    def __init__(self, idle: Idle, lock: threading.Lock, idle_s: float) -> None:
        # Not the pool itself: a waiting thread must not keep it alive.
        self._idle = idle
        self._lock = lock
        self._idle_s = idle_s
        self.calls: queue.SimpleQueue[ThreadCall[Any]] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name=f"agentos-call-{next(_numbers)}", daemon=True)

    def _serve(self) -> None:
        while True:
            try:
                call = self.calls.get(timeout=self._idle_s)
            except queue.Empty:
                with self._lock:
                    # Where it is no longer listed, a call is just being handed over.
                    if self in self._idle:
                        self._idle.remove(self)
                        return
                continue
            result, error = call.perform()
            # Idle before the answer is posted, so that what follows from it finds this thread and starts no other.
            with self._lock:
                self._idle.append(self)
            call.deliver_result(result, error)
            del call, result, error  # else the last result would stay in memory while the thread is idle


async def wait_shielded(call: ThreadCall[T]) -> tuple[T, bool]:
    """Wait for a short call to its end, however often we are cancelled meanwhile; tells whether we were."""
    cancelled = False
    while not call.answer.done():
        try:
            await asyncio.wait([call.answer])
        except asyncio.CancelledError:
            cancelled = True
    return call.answer.result(), cancelled
