"""Orphans stay below their driver: a task that leaves its group and its parent (`setsid`, a double fork) is still seen.

On Linux a process can ask to be given the orphans among its descendants, instead of the system's first process. It has
to reap them as well, and them alone: a status that somebody else waits for must not be taken away.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from agentos.tasks.process.ancestors import carried_attempt
from agentos.tasks.process.orphans import ATTEMPT_VARIABLE

_PR_SET_CHILD_SUBREAPER = 36


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
    if sys.platform != "linux" or not _ask_for_orphans():
        yield
        return
    loop, adoption = asyncio.get_running_loop(), _Adoption()
    loop.add_signal_handler(signal.SIGCHLD, adoption.reap)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGCHLD)


def _ask_for_orphans() -> bool:
    import ctypes  # here, since most commands drive nothing

    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


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
            elif adopted or self._is_orphan(child.pid):
                living.add(name)
        self._marked = living

    def _is_orphan(self, pid: int) -> bool:
        if _own.starting or pid in _own.known:
            return False
        # In a run that a task of another one started, our own children carry that task's mark, as we do.
        return carried_attempt(pid) not in (None, self._own_attempt)


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
