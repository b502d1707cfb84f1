"""Ends a child with everything it started, first politely, and to the end whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import TypeVar

from agentos.tasks.process.orphans import Mark, end_attempt, group_is_empty
from agentos.tasks.process.spawn import Child
from agentos.tasks.python.threads import DaemonThreads, wait_shielded

KILLED_S = 5.0
"""How long SIGKILL may take; one that is stuck in the kernel takes longer."""
_LOOK_AGAIN_S = 0.02

T = TypeVar("T")


class Termination:
    """Ends one child. Cancelling it does not stop it: it makes it hurry, and is remembered in `cancelled`.

    It runs in the task that waits for it. In one of its own, the end of the loop would cancel it in the middle.
    """

    def __init__(self, child: Child, threads: DaemonThreads) -> None:
        self._child = child
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self.cancelled = False

    async def end(self, *, grace_s: float, mark: Mark | None = None) -> tuple[str, ...]:
        """End the group, then whatever else carries its mark. What could not be ended comes back as warnings."""
        if not await self._is_empty():
            await self._end_group(grace_s)
        survivors = await self._in_thread(lambda: end_attempt(mark)) if mark else []
        return tuple(
            f"process {one.pid} ({one.command}) could not be ended, not even by SIGKILL"
            for one in survivors
            if not one.ended
        )

    async def _end_group(self, grace_s: float) -> None:
        if grace_s:
            self._child.signal(signal.SIGTERM)
            self._child.signal(signal.SIGCONT)  # one that was stopped would never notice
            await self._wait_until_gone(grace_s)
        self._child.signal(signal.SIGKILL)
        until = self._loop.time() + KILLED_S
        # A signal is sent at once, but even SIGKILL takes its time to work.
        while self._loop.time() < until and not await self._is_empty():
            await self._pause(_LOOK_AGAIN_S)

    async def _wait_until_gone(self, grace_s: float) -> None:
        """Wait until child and group are gone, the grace is over, or somebody is in a hurry."""
        until = self._loop.time() + grace_s
        await self._pause(grace_s)
        while not self.cancelled and self._loop.time() < until and not await self._is_empty():
            await self._pause(_LOOK_AGAIN_S)

    async def _is_empty(self) -> bool:
        return self._child.exited.done() and await self._in_thread(lambda: group_is_empty(self._child.pid))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        result, cancelled = await wait_shielded(self._threads.start(work))
        self.cancelled |= cancelled
        return result

    async def _pause(self, seconds: float) -> None:
        """Until the child has exited, at most so long; where it has, simply so long."""
        try:
            if self._child.exited.done():
                await asyncio.sleep(seconds)
            else:
                await asyncio.wait([self._child.exited], timeout=seconds)
        except asyncio.CancelledError:
            self.cancelled = True
