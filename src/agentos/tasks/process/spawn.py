"""Children that wait for leave: they exist, but execute their command only once that is durable."""

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
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agentos.store.holder import process_started
from agentos.tasks.attempt import ChildProcess
from agentos.tasks.process.launch import Launch
from agentos.tasks.python.threads import ThreadCall, wait_shielded

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
