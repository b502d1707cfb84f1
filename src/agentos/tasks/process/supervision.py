"""Sees one child through: it waits for leave until its start is durable, is read, timed, and ended with all it
started."""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar

import msgspec

from agentos import crashpoints
from agentos.exceptions import ShellCommandFailed, TaskCancelledError, TaskTimeoutError
from agentos.store.holder import process_started
from agentos.tasks.attempt import AttemptHost, ChildProcess, Mark
from agentos.tasks.failures import plain_failure
from agentos.tasks.outcomes import AttemptFailed
from agentos.tasks.process.launch import Launch, start_failure
from agentos.tasks.process.orphans import end_attempt, group_is_empty
from agentos.tasks.process.output_capture import Capture
from agentos.tasks.python.threads import DaemonThreads, ThreadCall, wait_shielded

# The child waits on its stdin. A line is leave to go on; the end of the file means that the driver is dead, and then
# the command never runs. The command and its own stdin are handed over as arguments: nothing is ever pasted into this
# text.
_WAIT_FOR_LEAVE = 'read -r go && exec "$@" <"$0"; exit 125'


class Child:
    """A child process, leader of its own session and group. Belongs to one event loop.

    `exited` gets the exit status: 0 … 255, minus the number of a signal, or None where the status was lost. Until
    `close` the child stays a zombie where the system allows, so that its group's number cannot be reused and a signal
    to the group cannot hit a stranger.
    """

    def __init__(self, process: subprocess.Popen[bytes], started: float, spawner: Spawner) -> None:
        self._process = process
        self._spawner = spawner  # were it to go, its thread would end, and the child with that
        self.pid = process.pid
        self.started = started
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int | None] = self._loop.create_future()
        self.stdout, self.stderr = _fileno(process.stdout), _fileno(process.stderr)
        self._pidfd = -1
        try:
            self._pidfd = os.pidfd_open(self.pid)  # type: ignore[attr-defined, unused-ignore]  # Linux
        except (AttributeError, OSError):
            threading.Thread(target=_wait_blocking, args=(process, self._loop, self._exit), daemon=True).start()
        else:
            self._loop.add_reader(self._pidfd, self._exit_seen)

    @property
    def record(self) -> ChildProcess:
        return ChildProcess(pid=self.pid, pgid=self.pid, started=self.started)

    def go(self) -> None:
        """Let it execute its command."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead already; its status will tell
            os.write(self._process.stdin.fileno(), b"\n")
        self._process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole group."""
        # PermissionError is what macOS says where only the zombie is left.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def interrupt_leader(self) -> None:
        """What Ctrl-C would tell the child alone."""
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGINT)

    def close(self) -> None:
        """Let go of it: pipes closed, reaped. It must have exited, or is killed."""
        if not self.exited.done():
            self.signal(signal.SIGKILL)
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self._process.poll()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _exit_seen(self) -> None:
        self._loop.remove_reader(self._pidfd)
        try:
            # WNOWAIT: look, and leave it a zombie.
            seen = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:  # somebody else reaped it
            seen = None
        if seen is None:
            self._exit(None)
        else:
            self._exit(seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status)

    def _exit(self, status: int | None) -> None:
        if not self.exited.done():
            self.exited.set_result(status)


def _wait_blocking(
    process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, tell: Callable[[int | None], None]
) -> None:
    status = process.wait()
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(tell, status)


def _fileno(pipe: Any) -> int:
    fd: int = pipe.fileno()
    os.set_blocking(fd, False)
    return fd


class Spawner:
    """Starts children from one thread that lives as long as the spawner does.

    Linux ends a child with PR_SET_PDEATHSIG when the THREAD that started it ends: from a thread of a pool the signal
    would come at any time. It also keeps the time a fork takes off the event loop.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[ThreadCall[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    async def spawn(self, launch: Launch) -> tuple[Child, bool]:
        """Start a child that waits for leave; and whether we were cancelled meanwhile. OSError or ValueError."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # after a fork it is not
                self._thread = threading.Thread(target=_serve, args=(self._calls,), name="agentos-spawner", daemon=True)
                self._thread.start()
                # At exit the thread, and what hangs on it, ends by itself.
                weakref.finalize(self, self._calls.put, None).atexit = False
        call = ThreadCall(functools.partial(_start, launch))
        self._calls.put(call)
        (process, started), cancelled = await wait_shielded(call)
        return Child(process, started, self), cancelled


def _serve(calls: queue.SimpleQueue[ThreadCall[Any] | None]) -> None:
    while (call := calls.get()) is not None:
        call.deliver_result(*call.perform())
        del call


def _start(launch: Launch) -> tuple[subprocess.Popen[bytes], float]:
    process = subprocess.Popen(
        (*_death_signal(), "/bin/sh", "-c", _WAIT_FOR_LEAVE, str(launch.stdin), *launch.argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        cwd=launch.cwd,
        env=launch.env,
        pass_fds=launch.pass_fds,
        start_new_session=True,
    )
    return process, process_started(process.pid) or 0.0


@functools.cache
def _death_signal() -> tuple[str, ...]:
    """A prefix that has the kernel kill the child when the driver dies. A help only: it does not reach grandchildren.

    Set by a program and not by a hook between fork and exec, which is not safe in a process with threads.
    """
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    if setpriv is None:
        return ()
    prefix = (setpriv, "--pdeathsig", "KILL")
    tried = subprocess.run((*prefix, "/bin/sh", "-c", ":"), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return prefix if tried.returncode == 0 else ()


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
            ending = await self._watch(hold, mark, timeout_s, stop)
            return _ending_inside(ending) if launch.enclosed else ending
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


def _ending_inside(ending: Ending) -> Ending:
    """Of a command behind a wall, whose program tells signals by numbers: those that come from outside, as such.

    Not all: an agent's own exit codes go beyond 128, too.
    """
    ended_by = next((one for one in _FROM_OUTSIDE if ending.status == 128 + one), None)
    return ending if ended_by is None else msgspec.structs.replace(ending, status=-ended_by)


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
                if not self._child.exited.done():
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
    error = ShellCommandFailed(f"the command {describe_status(status)}{said}", exit_code=exit_code_of(status))
    raise AttemptFailed(plain_failure(error), cut_off=was_ended(status), warnings=ending.warnings)


def exit_code_of(status: int | None) -> int:
    """As a shell would number it; -1 where nobody knows."""
    return -1 if status is None else status if status >= 0 else 128 - status


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
