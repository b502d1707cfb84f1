"""Locks on a database's files that nothing else in this process can drop, and turns among its writers.

SQLite's locks are POSIX locks: whoever closes any descriptor of a file drops all that the process has on it. A task in
the driver's process that merely reads every file here does so. Another process then takes itself for the last one and
deletes the log under a live connection, empties its index, or writes in the middle of a transaction. So the same bytes
are locked once more by open file descriptions (Linux has those), on the very descriptors that SQLite has: nothing is
opened or closed for it. Where there are no such locks, `sqlite_files` still notices what was lost.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

from agentos.store.sqlite_driver import busy_error

TURN_S = 5.0
"""A turn that does not come for so long is no longer waited for: a fork of a killed process may hold it."""

_DESCRIPTORS = Path("/proc/self/fd")
_SETLK = getattr(fcntl, "F_OFD_SETLK", None)


class _Bytes(NamedTuple):
    """Where a lock lies in a file."""

    start: int
    length: int


# As in SQLite's os_unix.c: who holds SHARED keeps others from deleting the log, and who holds the last byte of -shm
# keeps them from emptying it. PENDING keeps newcomers out.
_PENDING = _Bytes(0x40000000, 1)
_SHARED = _Bytes(0x40000002, 510)
_INDEX_IN_USE = _Bytes(128, 1)
_TURN = _Bytes(0x40000200, 1)  # the first byte behind SQLite's own


class Identity(NamedTuple):
    """Which file it is, whatever its name."""

    device: int
    inode: int


def identity_of(found: os.stat_result) -> Identity:
    return Identity(found.st_dev, found.st_ino)


class FileLocks:
    """The locks that this process has on one database, shared by all its stores of it."""

    def __init__(self) -> None:
        self.stores: WeakSet[Any] = WeakSet()
        self.moving = threading.Lock()
        """Held by the store that closes all of them to open them anew."""
        self._turn = threading.Lock()
        self._database: list[int] = []

    def take_up(self, database: Identity, index: Identity | None) -> None:
        """Lock the files of a connection that was just opened."""
        self._database = _descriptors_of(database)
        for descriptor in self._database:
            _lock(descriptor, fcntl.F_RDLCK, _SHARED)
        for descriptor in _descriptors_of(index) if index else []:
            _lock(descriptor, fcntl.F_RDLCK, _INDEX_IN_USE)

    def let_go(self, database: Identity) -> None:
        """The last connection is about to be closed: it may find itself alone, and tidy up."""
        for descriptor in _descriptors_of(database):
            _lock(descriptor, fcntl.F_UNLCK, _SHARED)

    def keep_newcomers_out(self) -> bool:
        """Until the descriptors are closed nobody else opens the database. False where that cannot be had now."""
        return any(_lock(descriptor, fcntl.F_WRLCK, _PENDING) for descriptor in self._database)

    @contextmanager
    def turn(self, busy_s: float) -> Iterator[None]:
        """Write, while no other process of ours does, however it lost SQLite's lock."""
        if not self._turn.acquire(timeout=busy_s):
            raise busy_error()
        descriptor = -1
        try:
            descriptor = self._wait_for_turn()
            yield
        finally:
            if descriptor >= 0:
                _lock(descriptor, fcntl.F_UNLCK, _TURN)
            self._turn.release()

    def _wait_for_turn(self) -> int:
        until = time.monotonic() + TURN_S
        while True:
            taken = next((one for one in self._database if _lock(one, fcntl.F_WRLCK, _TURN)), -1)
            if taken >= 0 or not self._database or time.monotonic() >= until:
                return taken
            time.sleep(random.uniform(0.0005, 0.003))  # noqa: S311 (only to break step with the others)


# POSIX locks belong to the process, and so does this: every store of a file has to know of the others.
_held: dict[Identity, FileLocks] = {}
_registry = threading.Lock()


def join(store: object, database: Identity, index: Identity | None) -> FileLocks:
    """The locks of a database that a store has just opened a connection to."""
    with _registry:
        locks = _held.setdefault(database, FileLocks())
        locks.stores.add(store)
        locks.take_up(database, index)
        return locks


def leave(store: object, database: Identity) -> None:
    """The store is about to close its connection."""
    with _registry:
        locks = _held.get(database)
        if locks is None:
            return
        locks.stores.discard(store)
        if not locks.stores:
            locks.let_go(database)
            del _held[database]


def are_known() -> bool:
    """Whether this platform has such locks."""
    return _SETLK is not None and _DESCRIPTORS.is_dir()


def _descriptors_of(file: Identity) -> list[int]:
    if not are_known():
        return []
    found = []
    for name in os.listdir(_DESCRIPTORS):
        try:
            if identity_of(os.fstat(int(name))) == file:
                found.append(int(name))
        except OSError:  # the one that listed them
            continue
    return found


def _lock(descriptor: int, kind: int, where: _Bytes) -> bool:
    wanted = struct.pack("hhqqi0q", kind, os.SEEK_SET, where.start, where.length, 0)
    try:
        fcntl.fcntl(descriptor, _SETLK, wanted)  # type: ignore[arg-type]  # without it there are no descriptors
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EBADF):  # another's; or one that was opened to read
            return False
        raise
    return True
