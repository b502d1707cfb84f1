"""Sees one child through: started when durable, read, timed, ended with all it started; and says how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar

import msgspec

from agentos import crashpoints
from agentos.exceptions import ShellCommandFailed, TaskCancelledError, TaskTimeoutError
from agentos.tasks.attempt import AttemptHost, Mark
from agentos.tasks.failures import plain_failure
from agentos.tasks.outcomes import AttemptFailed
from agentos.tasks.process.launch import Launch, start_failure
from agentos.tasks.process.orphans import end_attempt, group_is_empty
from agentos.tasks.process.output_capture import Capture
from agentos.tasks.process.spawn import Child, Spawner
from agentos.tasks.python.threads import DaemonThreads, wait_shielded

GRACE_S = 2.0
"""Between SIGTERM and SIGKILL, after a timeout."""
CANCEL_GRACE_S = 1.0
"""The same when the attempt is cancelled; a second cancellation cuts it short."""
DRAIN_S = 0.25
"""How long to read on after the command has exited while something it left behind keeps its output open."""
KILLED_S = 5.0
"""How long SIGKILL may take; one that is stuck in the kernel takes longer."""
_LOOK_AGAIN_S = 0.02
_READ_BYTES = 65_536
_FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
"""What ends a process that did nothing wrong: a service manager, a shutdown, the kernel when memory runs out."""
_HELD_OPEN = (
    "the command has exited, but something it started in the background still holds its output open; what that prints "
    "is not kept. Redirect its output to a file."
)

T = TypeVar("T")
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
        on_hold: Callable[[Hold], None] = lambda _: None,
        leader_first: bool = False,
    ) -> Ending:
        """Run a command to its end. Cancelling it ends the command and comes back as `cancelled`.

        `feeds` get what it writes to stdout and stderr, `more` what comes out of other descriptors. Once `stop` is done
        it is ended like one that ran out of time, and comes back as `stopped`. `on_hold` gets what can hold it still
        for a moment; `leader_first`: as `Termination.end`. AttemptFailed where it cannot be
        started; what `child_started` raises comes out, and the command never ran.
        """
        try:
            child, cancelled = await self._spawner.spawn(launch)
        except (OSError, ValueError) as error:
            raise start_failure(error) from None
        hold = Hold(child, leader_first=leader_first)
        try:
            if cancelled:
                return await self._end(hold, "cancelled", 0.0, mark)
            crashpoints.reach("process.before")
            try:
                await host.child_started(child.record)
            except BaseException as error:
                ending = await self._end(hold, "cancelled", 0.0, mark)
                if isinstance(error, asyncio.CancelledError):
                    return ending
                raise
            sources = ((child.stdout, feeds[0]), (child.stderr, feeds[1]), *more)
            hold.pipes += [Pipe(fd, feed) for fd, feed in sources]
            on_hold(hold)
            child.go()
            on_go()
            crashpoints.reach("attempt.inside")
            return await self._watch(hold, mark, timeout_s, stop)
        finally:
            hold.over = True
            for pipe in hold.pipes:
                pipe.close()
            child.close()

    async def _watch(self, hold: Hold, mark: Mark, timeout_s: float | None, stop: asyncio.Future[Any] | None) -> Ending:
        child = hold.child
        awaited = [child.exited] if stop is None else [child.exited, stop]
        try:
            await asyncio.wait(awaited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not child.exited.done():
                why: Why = "stopped" if stop is not None and stop.done() else "timeout"
                return await self._end(hold, why, GRACE_S, mark)
            held_open = await _drain(hold.pipes)
        except asyncio.CancelledError:
            return await self._end(hold, "cancelled", CANCEL_GRACE_S, mark)
        status = child.exited.result()
        if status != 0:
            # What a failed attempt left in its group must not work on beside the next one. What left the group did so
            # on purpose, as a daemon does, and stays.
            return await self._end(hold, "exited", CANCEL_GRACE_S)
        return Ending(status=status, warnings=(_HELD_OPEN,) if held_open else ())

    async def _end(self, hold: Hold, why: Why, grace_s: float, mark: Mark | None = None) -> Ending:
        hold.over = True
        child = hold.child
        termination = Termination(child, self._threads)
        warnings = await termination.end(grace_s=grace_s, mark=mark, leader_first=hold.leader_first)
        with suppress(asyncio.CancelledError):
            await _drain(hold.pipes)
        status = child.exited.result() if child.exited.done() else None
        return Ending(status=status, why="cancelled" if termination.cancelled else why, warnings=warnings)


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


class Hold:
    """A child at work. Holds its group still, so that its files can be looked at between two of its steps."""

    def __init__(self, child: Child, *, leader_first: bool = False) -> None:
        self.child = child
        self.leader_first = leader_first
        """How it is ended."""
        self.pipes: list[Pipe] = []
        self.over = False
        """It is being ended, or has ended: what it still does is no step of its work, and nobody holds it still."""

    def stop(self) -> None:
        if not self.over:
            self.child.signal(signal.SIGSTOP)

    def read_rest(self) -> None:
        """Feed what it had written before it stood still."""
        for pipe in self.pipes:
            while not pipe.ended.done() and pipe.read():
                pass

    def go_on(self) -> None:
        if not self.over:
            self.child.signal(signal.SIGCONT)


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


class Termination:
    """Ends one child. Cancelling it does not stop it: it makes it hurry, and is remembered in `cancelled`.

    It runs in the task that waits for it. In one of its own, the end of the loop would cancel it in the middle.
    """

    def __init__(self, child: Child, threads: DaemonThreads) -> None:
        self._child = child
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self.cancelled = False

    async def end(self, *, grace_s: float, mark: Mark | None = None, leader_first: bool = False) -> tuple[str, ...]:
        """End the group, then whatever else carries its mark. What could not be ended comes back as warnings.

        `leader_first`: the others are told to end when their leader has. An agent whose tool ends first takes that for
        an answer, and pays for the next.
        """
        if not await self._is_empty():
            if grace_s:
                if leader_first and not self._child.exited.done():
                    self._child.interrupt_leader()
                    self._child.signal(signal.SIGCONT)
                    await self._pause(grace_s)
                self._child.signal(signal.SIGTERM)
                self._child.signal(signal.SIGCONT)  # one that was stopped would never notice
                until = self._loop.time() + grace_s
                await self._pause(grace_s)
                while not self.cancelled and self._loop.time() < until and not await self._is_empty():
                    await self._pause(_LOOK_AGAIN_S)
            self._child.signal(signal.SIGKILL)
            until = self._loop.time() + KILLED_S
            # A signal is sent at once, but even SIGKILL takes its time to work.
            while self._loop.time() < until and not await self._is_empty():
                await self._pause(_LOOK_AGAIN_S)
        survivors = await self._in_thread(lambda: end_attempt(mark)) if mark else []
        return tuple(
            f"process {one.pid} ({one.command}) could not be ended, not even by SIGKILL"
            for one in survivors
            if not one.ended
        )

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


# --- how it ended, in words ---------------------------------------------------------------------------------------


def refuse_cut_short(ending: Ending, said: str, timeout_s: float | None) -> None:
    """AttemptFailed where the child was cancelled or ran out of time."""
    if ending.why == "cancelled":
        failure = plain_failure(TaskCancelledError("the attempt was cancelled and its processes were ended"))
        raise AttemptFailed(failure, retryable=False, cancelled=True, warnings=ending.warnings)
    if ending.why == "timeout":
        text = f"the attempt ran longer than its timeout of {timeout_s:g} s and its processes were ended{said}"
        raise AttemptFailed(plain_failure(TaskTimeoutError(text)), cut_off=True, warnings=ending.warnings)


def refuse_failure(ending: Ending, said: str) -> None:
    """AttemptFailed unless the command exited with 0."""
    status = ending.status
    if status == 0:
        return
    code = -1 if status is None else status if status >= 0 else 128 - status  # as a shell would number it
    error = ShellCommandFailed(f"the command {describe_status(status)}{said}", exit_code=code)
    raise AttemptFailed(plain_failure(error), cut_off=was_ended(status), warnings=ending.warnings)


def was_ended(status: int | None) -> bool:
    """Whether the command did not end by itself, as far as its status tells: somebody ended it, or nobody knows."""
    return status is None or -status in _FROM_OUTSIDE


def describe_status(status: int | None) -> str:
    if status is None:
        return "ended, and its exit status was lost (another part of this process took it)"
    if status < 0:
        return f"was killed by {_signal_name(-status)}"
    if status > 128 and (name := _signal_name(status - 128)):
        return f"ended with exit code {status} (128 + {status - 128}: as if killed by {name})"
    hint = {126: " (found but not executable)", 127: " (command not found)"}.get(status, "")
    return f"ended with exit code {status}{hint}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if number <= 64 else ""


def last_words(out: Capture | None, err: Capture) -> str:
    """The ends of both streams, for an error's text; None: one that is not for people."""
    shown = (("stderr", err.last_lines()), ("stdout", out.last_lines() if out is not None else ""))
    return "".join(f"\n--- {name}, last lines ---\n{lines}" for name, lines in shown if lines)
