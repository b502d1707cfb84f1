"""Who is behind a call: the processes above this one, and whether one of them belongs to a run.

A variable is no proof of a human: a task can drop it (`env -i`) before it calls us. What it does not reach is above it.
The environment that a process was started with stands in the kernel, the processes that started it as well, and a
driver keeps a descriptor open whose name says what it is. So nothing has to be registered, whatever database is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from agentos.machine.commands import Sender
from agentos.store.holder import boot_id, pid_namespace
from agentos.store.port import Holder
from agentos.tasks.process.orphans import ATTEMPT_VARIABLE

_SAME_START_S = 0.02
_TRIES = 50
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
    descriptor, path = _open_mark(f"agentos-driver-{os.getpid()}")
    try:
        yield
    finally:
        os.close(descriptor)
        if path is not None:
            with suppress(OSError):
                os.unlink(path)


def acting_attempt(driver: Holder | None = None) -> str:
    """What part of a run the caller is: an attempt's id, or a driver above it; empty where it is none.

    Whoever is asked to act for a human refuses where this is not empty. `driver` is a process that is known to drive a
    run; others are known by their own mark.
    """
    marked = _attempt.get() or os.environ.get(ATTEMPT_VARIABLE, "")
    if marked:
        return marked
    family = ancestors()
    if not family:
        return "processes that could not be told"
    for one in family:
        carried = carried_attempt(one.pid)
        if carried is not None:
            return carried or "an attempt whose id was removed"
        if one is not family[0] and (_has_mark(one.pid) or _is_driver(one, driver)):
            return f"a process below driver {one.pid}"
    return ""


def current_sender() -> Sender:
    """Who sends a command from here, as the system knows it."""
    import pwd

    uid = os.getuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = ""
    chain = tuple(f"{one.name} {one.pid}" for one in ancestors())
    return Sender(user=user, uid=uid, host=os.uname().nodename, pid=os.getpid(), processes=chain)


def ancestors() -> list[Ancestor]:
    """This process and those above it, nearest first. Empty where they changed faster than they could be read."""
    if not os.path.isdir("/proc/self/fd"):
        return _ancestors_by_psutil()
    for _ in range(_TRIES):
        # One that ends hands its children to another: then what was read so far may have left somebody out.
        with suppress(_Gone):
            found = list(_walk())
            if [one.pid for one in _walk()] == [one.pid for one in found]:
                return found
    return []


def _walk() -> Iterator[Ancestor]:
    pid, younger = os.getpid(), float("inf")
    while pid:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            if _is_hidden(pid):  # and so is whatever is above it
                return
            raise _Gone from None
        head, _, tail = stat.rpartition(b")")
        fields = tail.split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        if started > younger:
            raise _Gone  # the pid was given to somebody else meanwhile
        yield Ancestor(pid, head.partition(b"(")[2].decode(errors="replace"), started)
        pid, younger = int(fields[1]), started


def _is_hidden(pid: int) -> bool:
    """Whether it lives and is another user's, which the kernel may be told not to show (`hidepid` of /proc)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _ancestors_by_psutil() -> list[Ancestor]:
    import psutil

    found = []
    for process in (psutil.Process(), *psutil.Process().parents()):
        with suppress(psutil.Error):
            found.append(Ancestor(process.pid, process.name(), process.create_time()))
    return found


def carried_attempt(pid: int) -> str | None:
    """The attempt in the environment that a process was started with; None where there is none, or it is not ours."""
    if sys.platform != "linux":
        return _carried_by_psutil(pid)
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    prefix = f"{ATTEMPT_VARIABLE}=".encode()
    found = (entry[len(prefix) :] for entry in environment if entry.startswith(prefix))
    return next((value.decode(errors="replace") for value in found), None)


def _carried_by_psutil(pid: int) -> str | None:
    import psutil

    try:
        return psutil.Process(pid).environ().get(ATTEMPT_VARIABLE)
    except psutil.Error:
        return None


def _is_driver(one: Ancestor, driver: Holder | None) -> bool:
    return (
        driver is not None
        and one.pid == driver.pid
        and abs(one.started - driver.started) < _SAME_START_S
        and (driver.boot, driver.pidns) == (boot_id(), pid_namespace())
    )


# --- the mark of a driver -----------------------------------------------------------------------------------------
# Its name has the pid: a copy that a fork inherits marks nobody.


def _open_mark(name: str) -> tuple[int, str | None]:
    try:
        return os.memfd_create(name), None
    except (AttributeError, OSError):  # another system than Linux
        from tempfile import mkstemp

        return mkstemp(prefix=f"{name}-")


def _has_mark(pid: int) -> bool:
    name = f"agentos-driver-{pid}"
    if sys.platform != "linux":
        return any(os.path.basename(path).startswith(f"{name}-") for path in _open_files_by_psutil(pid))
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


def _open_files_by_psutil(pid: int) -> list[str]:
    import psutil

    try:
        return [file.path for file in psutil.Process(pid).open_files()]
    except psutil.Error:
        return []
