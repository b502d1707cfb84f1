"""Sees one child through: started when durable, read, timed, ended with everything it started."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec

from agentos import crashpoints
from agentos.tasks.attempt import AttemptHost
from agentos.tasks.process.launch import Launch, start_failure
from agentos.tasks.process.orphans import Mark
from agentos.tasks.process.spawn import Child, Spawner
from agentos.tasks.process.termination import Termination
from agentos.tasks.python.threads import DaemonThreads

GRACE_S = 2.0
"""Between SIGTERM and SIGKILL, after a timeout."""
CANCEL_GRACE_S = 1.0
"""The same when the attempt is cancelled; a second cancellation cuts it short."""
DRAIN_S = 0.25
"""How long to read on after the command has exited while something it left behind keeps its output open."""
_READ_BYTES = 65_536

Feed = Callable[[bytes], None]
Why = Literal["exited", "timeout", "stopped", "cancelled"]


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a child ended. `status` is None where it was lost or the child never ran its command."""

    status: int | None
    why: Why = "exited"
    warnings: tuple[str, ...] = ()


class Supervisor:
    """Runs children for the performers; holds the threads they need."""

    def __init__(self, threads: DaemonThreads, spawner: Spawner) -> None:
        self._threads = threads
        self._spawner = spawner

    async def run(
        self,
        launch: Launch,
        host: AttemptHost,
        *,
        mark: Mark,
        feeds: tuple[Feed, Feed],
        timeout_s: float | None,
        more: Sequence[tuple[int, Feed]] = (),
        on_go: Callable[[], None] = lambda: None,
        stop: asyncio.Future[Any] | None = None,
    ) -> Ending:
        """Run a command to its end. Cancelling it ends the command and comes back as `cancelled`.

        `feeds` get what it writes to stdout and stderr, `more` what comes out of other descriptors. Once `stop` is done
        it is ended like one that ran out of time, and comes back as `stopped`. AttemptFailed where it cannot be
        started; what `child_started` raises comes out, and the command never ran.
        """
        try:
            child, cancelled = await self._spawner.spawn(launch)
        except (OSError, ValueError) as error:
            raise start_failure(error) from None
        pipes: list[Pipe] = []
        try:
            if cancelled:
                return await self._end(child, pipes, "cancelled", 0.0, mark)
            crashpoints.reach("process.before")
            try:
                await host.child_started(child.record)
            except BaseException as error:
                ending = await self._end(child, pipes, "cancelled", 0.0, mark)
                if isinstance(error, asyncio.CancelledError):
                    return ending
                raise
            sources = ((child.stdout, feeds[0]), (child.stderr, feeds[1]), *more)
            pipes += [Pipe(fd, feed) for fd, feed in sources]
            child.go()
            on_go()
            crashpoints.reach("attempt.inside")
            return await self._watch(child, mark, pipes, timeout_s, stop)
        finally:
            for pipe in pipes:
                pipe.close()
            child.close()

    async def _watch(
        self,
        child: Child,
        mark: Mark,
        pipes: list[Pipe],
        timeout_s: float | None,
        stop: asyncio.Future[Any] | None,
    ) -> Ending:
        awaited = [child.exited] if stop is None else [child.exited, stop]
        try:
            await asyncio.wait(awaited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not child.exited.done():
                why: Why = "stopped" if stop is not None and stop.done() else "timeout"
                return await self._end(child, pipes, why, GRACE_S, mark)
            held_open = await _drain(pipes)
        except asyncio.CancelledError:
            return await self._end(child, pipes, "cancelled", CANCEL_GRACE_S, mark)
        status = child.exited.result()
        if status != 0:
            # What a failed attempt left in its group must not work on beside the next one. What left the group did so
            # on purpose, as a daemon does, and stays.
            return await self._end(child, pipes, "exited", CANCEL_GRACE_S)
        warnings = (_HELD_OPEN,) if held_open else ()
        return Ending(status=status, warnings=warnings)

    async def _end(self, child: Child, pipes: list[Pipe], why: Why, grace_s: float, mark: Mark | None = None) -> Ending:
        termination = Termination(child, self._threads)
        warnings = await termination.end(grace_s=grace_s, mark=mark)
        with suppress(asyncio.CancelledError):
            await _drain(pipes)
        status = child.exited.result() if child.exited.done() else None
        return Ending(status=status, why="cancelled" if termination.cancelled else why, warnings=warnings)


_HELD_OPEN = (
    "the command has exited, but something it started in the background still holds its output open; what that prints "
    "is not kept. Redirect its output to a file."
)


class Pipe:
    """Reads one descriptor on the loop until its end. Whose descriptor it is, closes it."""

    def __init__(self, fd: int, feed: Feed) -> None:
        self._fd, self._feed = fd, feed
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(fd, self.read)

    def read(self) -> bool:
        """Feed what is there now; whether there was anything."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        if data:
            self._feed(data)
        else:
            self.close()
        return bool(data)

    def close(self) -> None:
        if not self.ended.done():
            self._loop.remove_reader(self._fd)
            self.ended.set_result(None)


async def _drain(pipes: list[Pipe]) -> bool:
    """Read to the end, or as long as is decent; whether somebody still holds a pipe open."""
    if pipes:
        await asyncio.wait([pipe.ended for pipe in pipes], timeout=DRAIN_S)
    held_open = [pipe for pipe in pipes if not pipe.ended.done()]
    for pipe in held_open:
        for _ in range(16):  # what is still in the pipe, and no more, should it be refilled for ever
            if pipe.ended.done() or not pipe.read():
                break
        pipe.close()
    return bool(held_open)
