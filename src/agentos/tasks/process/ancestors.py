"""Who is behind a call: the processes above this one, and whether one of them belongs to a run.

A variable is no proof of a human: a task can drop it (`env -i`) before it calls us. What it does not reach is above it.
The environment that a process was started with stands in the kernel, the processes that started it as well, and a
driver keeps a descriptor open whose name says what it is. So nothing has to be registered, whatever database is used.

Orphans stay below their driver: a task that leaves its group and its parent (`setsid`, a double fork) is still seen. On
Linux a process can ask to be given the orphans among its descendants, instead of the system's first process. It has to
reap them as well, and them alone: a status that somebody else waits for must not be taken away.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from agentos.machine.commands import Sender
from agentos.store.holder import boot_id, pid_namespace, refuse_hidden_processes
from agentos.store.port import Holder
from agentos.tasks.process.orphans import ATTEMPT_VARIABLE

UNTOLD = "processes that could not be told"
_SAME_START_S = 0.02
_TRIES = 50
_SET_SUBREAPER, _GET_SUBREAPER = 36, 37
_attempt: ContextVar[str] = ContextVar("agentos-attempt", default="")


class Ancestor(NamedTuple):
    """A process: this one, or one above it."""

    pid: int
    name: str
    started: float


class _Gone(Exception):
    """A process ended while we looked."""


@contextmanager
def mark_attempt(attempt_id: str) -> Iterator[None]:
    """While this lasts, what is called in this context (and in threads that get a copy of it) is an attempt's."""
    token = _attempt.set(attempt_id)
    try:
        yield
    finally:
        _attempt.reset(token)


@contextmanager
def mark_driver() -> Iterator[None]:
    """While this lasts, processes below this one can tell that it drives a run. Ends with the process in any case."""
    name, path = f"agentos-driver-{os.getpid()}", None  # with the pid: a copy that a fork inherits marks nobody
    try:
        descriptor = os.memfd_create(name)
    except (AttributeError, OSError):  # another system than Linux
        from tempfile import mkstemp

        descriptor, path = mkstemp(prefix=f"{name}-")
    try:
        yield
    finally:
        os.close(descriptor)
        if path is not None:
            with suppress(OSError):
                os.unlink(path)


def acting_attempt(driver: Holder | None = None, pid: int | None = None) -> str:
    """What part of a run the caller is: an attempt's id, or a driver above it; empty where it is none.

    Whoever is asked to act for a human refuses where this is not empty. `driver` is a process that is known to drive a
    run; others are known by their own mark. `pid` is another process to judge, from outside: a driver is part of a run,
    too, since nobody can tell which of its tasks acts in it.
    """
    marked = pid is None and (_attempt.get() or os.environ.get(ATTEMPT_VARIABLE, ""))
    if marked:
        return marked
    family = ancestors(pid)
    if not family:
        return UNTOLD
    for one in family:
        carried = carried_attempt(one.pid)
        if carried is not None:
            return carried or "an attempt whose id was removed"
        known = (
            driver is not None
            and one.pid == driver.pid
            and abs(one.started - driver.started) < _SAME_START_S
            and (driver.boot, driver.pidns) == (boot_id(), pid_namespace())
        )
        if (one is not family[0] or pid is not None) and (known or _has_mark(one.pid)):
            return f"a process below driver {one.pid}"
    return ""


def acting_peer(driver: Holder | None, peers: Sequence[int]) -> str:
    """The same of processes that speak through this one, which may be any of these; where there are none, of nobody
    that could be told."""
    return next(filter(None, (acting_attempt(driver, pid) for pid in peers)), "") if peers else UNTOLD


def current_sender(pid: int | None = None) -> Sender:
    """Who sends a command from here, or from another process, as the system knows it."""
    import pwd

    uid = os.getuid()
    if pid is not None:
        import psutil

        with suppress(psutil.Error):
            uid = psutil.Process(pid).uids().real
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = ""
    chain = tuple(f"{one.name} {one.pid}" for one in ancestors(pid))
    return Sender(user=user, uid=uid, host=os.uname().nodename, pid=pid or os.getpid(), processes=chain)


def ancestors(pid: int | None = None) -> list[Ancestor]:
    """This process, or another one, and those above it, nearest first. Empty where they changed faster than they could
    be read."""
    if not os.path.isdir("/proc/self/fd"):
        import psutil

        chain = []
        refuse_hidden_processes()
        with suppress(psutil.Error):
            for process in (psutil.Process(pid), *psutil.Process(pid).parents()):
                with suppress(psutil.Error):
                    chain.append(Ancestor(process.pid, process.name(), process.create_time()))
        return chain
    for _ in range(_TRIES):
        # One that ends hands its children to another: then what was read so far may have left somebody out.
        with suppress(_Gone):
            found = list(_walk(pid))
            if [one.pid for one in _walk(pid)] == [one.pid for one in found]:
                return found
    return []


def _walk(first: int | None) -> Iterator[Ancestor]:
    pid, younger = first or os.getpid(), float("inf")
    while pid:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            try:
                os.kill(pid, 0)
            except PermissionError:
                # It lives and is another user's, which the kernel may be told not to show (`hidepid` of /proc); and so
                # is whatever is above it.
                return
            except OSError:
                pass
            raise _Gone from None
        head, _, tail = stat.rpartition(b")")
        fields = tail.split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        if started > younger:
            raise _Gone  # the pid was given to somebody else meanwhile
        yield Ancestor(pid, head.partition(b"(")[2].decode(errors="replace"), started)
        pid, younger = int(fields[1]), started


def carried_attempt(pid: int) -> str | None:
    """The attempt in the environment that a process was started with; None where there is none, or it is not ours."""
    if sys.platform != "linux":
        import psutil

        try:
            return psutil.Process(pid).environ().get(ATTEMPT_VARIABLE)
        except psutil.Error:
            return None
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    prefix = f"{ATTEMPT_VARIABLE}=".encode()
    found = (entry[len(prefix) :] for entry in environment if entry.startswith(prefix))
    return next((value.decode(errors="replace") for value in found), None)


def _has_mark(pid: int) -> bool:
    """Whether it is marked as a driver."""
    name = f"agentos-driver-{pid}"
    if sys.platform != "linux":
        import psutil

        try:
            opened = psutil.Process(pid).open_files()
        except psutil.Error:
            return False
        return any(os.path.basename(file.path).startswith(f"{name}-") for file in opened)
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # another user's
        return False
    for descriptor in descriptors:
        with suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
            if target.startswith(f"/memfd:{name} ") or os.path.basename(target).startswith(f"{name}-"):
                return True
    return False


# --- orphans stay below their driver ------------------------------------------------------------------------------


class _Own:
    """Children that carry an attempt's mark, as orphans do, and that somebody here waits for."""

    def __init__(self) -> None:
        self.known: WeakValueDictionary[int, asyncio.subprocess.Process] = WeakValueDictionary()
        self.starting = 0
        """How many there are that are not known yet."""


_own = _Own()


async def start_own(*argv: str, **options: Any) -> asyncio.subprocess.Process:
    """`asyncio.create_subprocess_exec` for a child that carries an attempt's mark: its status is the caller's."""
    _own.starting += 1
    try:
        process = await asyncio.create_subprocess_exec(*argv, **options)
        _own.known[process.pid] = process
    finally:
        _own.starting -= 1
    return process


class _Child(NamedTuple):
    pid: int
    started: bytes
    ended: bool
    session: int


@contextmanager
def adopt_orphans() -> Iterator[None]:
    """From here on orphans below this process become its children; while this lasts those that end are reaped.

    For programs of our own, in the main thread, inside their event loop: whoever calls `run` in a program keeps the
    say over its children. Elsewhere than on Linux nothing is done.
    """
    import ctypes  # here, since most commands drive nothing

    try:
        asked = sys.platform == "linux" and ctypes.CDLL(None).prctl(_SET_SUBREAPER, 1, 0, 0, 0) == 0
    except (OSError, AttributeError):
        asked = False
    if not asked:
        yield
        return
    loop, adoption = asyncio.get_running_loop(), _Adoption()
    loop.add_signal_handler(signal.SIGCHLD, adoption.reap)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGCHLD)


@contextmanager
def leave_orphans() -> Iterator[None]:
    """While this lasts, this process takes no orphans, if it did: for who starts one that is to outlive it."""
    if sys.platform != "linux":
        yield
        return
    import ctypes

    system, is_set = ctypes.CDLL(None), ctypes.c_int()
    system.prctl(_GET_SUBREAPER, ctypes.byref(is_set), 0, 0, 0)
    if is_set.value:
        system.prctl(_SET_SUBREAPER, 0, 0, 0, 0)
    try:
        yield
    finally:
        if is_set.value:
            system.prctl(_SET_SUBREAPER, 1, 0, 0, 0)


class _Adoption:
    """Knows which children were adopted. One that it is not sure of stays a zombie until this process ends."""

    def __init__(self) -> None:
        self._session = os.getsid(0)
        self._own_attempt = os.environ.get(ATTEMPT_VARIABLE)
        self._marked: set[tuple[int, bytes]] = set()

    def reap(self) -> None:
        """Reap adopted children that have ended."""
        living: set[tuple[int, bytes]] = set()
        for child in _children():
            name = child.pid, child.started
            # Our own children are in our session, or lead one of their own: whoever is in another one was adopted.
            adopted = child.session not in (self._session, child.pid) or name in self._marked
            if child.ended:
                if adopted:
                    with suppress(ChildProcessError):
                        os.waitpid(child.pid, os.WNOHANG)
                continue
            ours = _own.starting or child.pid in _own.known
            # In a run that a task of another one started, our own children carry that task's mark, as we do.
            if adopted or (not ours and carried_attempt(child.pid) not in (None, self._own_attempt)):
                living.add(name)
        self._marked = living


def _children() -> Iterator[_Child]:
    """Children of the main thread, to which the kernel gives orphans; those of an attempt belong to another one."""
    pid = os.getpid()
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # a kernel that does not tell
        return
    for child in map(int, listed):
        with suppress(OSError):
            fields = Path(f"/proc/{child}/stat").read_bytes().rpartition(b")")[2].split()
            yield _Child(child, fields[19], fields[0] in (b"Z", b"X"), int(fields[3]))
