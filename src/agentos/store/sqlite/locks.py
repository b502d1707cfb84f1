"""Locks on a database's files that nothing else in this process can drop, and turns among its writers.

SQLite's locks are POSIX locks: whoever closes any descriptor of a file drops all that the process has on it. A task in
the driver's process that merely reads every file here does so. Another process then takes itself for the last one and
deletes the log under a live connection, empties its index, or writes in the middle of a transaction. So the same bytes
are locked once more by open file descriptions (Linux has those), on the very descriptors that SQLite has: nothing is
opened or closed for it. Where there are no such locks, `files` still notices what was lost.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

from agentos.store.sqlite.driver import busy_error, sleep_out_of_step, uri_of

TURN_S = 5.0
"""A turn that does not come for so long is no longer waited for: a fork of a killed process may hold it."""
HOPELESS_S = 0.05
"""Nor is the next one, until one comes: every write would wait, and leases run out."""

_DESCRIPTORS = Path("/proc/self/fd")
_SETLK = getattr(fcntl, "F_OFD_SETLK", None)


def _flock(kind: int, start: int, length: int) -> bytes:
    return struct.pack("hhqqi0q", kind, os.SEEK_SET, start, length, 0)


# The bytes are those of SQLite's os_unix.c: who holds SHARED keeps others from deleting the log, and who holds the last
# byte of -shm keeps them from emptying it. PENDING keeps newcomers out. The first bytes behind its own are ours.
_KEEP_LOG = _flock(fcntl.F_RDLCK, 0x40000002, 510)
_LEAVE_LOG = _flock(fcntl.F_UNLCK, 0x40000002, 510)
_KEEP_INDEX = _flock(fcntl.F_RDLCK, 128, 1)
_KEEP_OUT = _flock(fcntl.F_WRLCK, 0x40000000, 1)
_LET_IN = _flock(fcntl.F_UNLCK, 0x40000000, 1)
_TAKE_TURN = _flock(fcntl.F_WRLCK, 0x40000200, 1)
_SHUT_DOOR = _flock(fcntl.F_WRLCK, 0x40000201, 1)
_SHUT_DOOR_READING = _flock(fcntl.F_RDLCK, 0x40000201, 1)
_OPEN_DOOR = _flock(fcntl.F_UNLCK, 0x40000201, 1)
_END_TURN = _flock(fcntl.F_UNLCK, 0x40000200, 1)
_ASK = _flock(fcntl.F_UNLCK, 0x40000202, 1)  # of a byte that nobody locks

_NOT_HERE = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EPERM})
"""What a kernel without such locks says (gVisor, WSL 1), or a file system."""


class Identity(NamedTuple):
    """Which file it is, whatever its name."""

    device: int
    inode: int


def identity_of(found: os.stat_result) -> Identity:
    return Identity(found.st_dev, found.st_ino)


class Log(NamedTuple):
    """A write-ahead log and its index (-shm)."""

    file: Identity | None
    shared: Identity | None


class FileLocks:
    """The locks that this process has on one database, shared by all its stores of it."""

    def __init__(self) -> None:
        self.stores: WeakSet[Any] = WeakSet()
        self.log: Log | None = None
        """That of the first connection, whose index all others of this process use as well, whatever is at the path."""
        self._turn = threading.Lock()
        self._patience_s = TURN_S
        self._database: list[int] = []
        self._file: Identity | None = None

    @property
    def can_be_had(self) -> bool:
        """Whether this platform, and this file system, has such locks."""
        return bool(self._database)

    def reset_after_fork(self) -> None:
        """In a child: the thread that had the turn is not there."""
        self._turn = threading.Lock()

    def take_up(self, database: Identity, index: Identity | None) -> None:
        """Lock the files of a connection that was just opened."""
        self._file, self._database = database, _descriptors_of(database)
        for descriptor in self._database:
            _lock(descriptor, _KEEP_LOG)
        for descriptor in _descriptors_of(index) if index else []:
            _lock(descriptor, _KEEP_INDEX)

    def let_go(self, database: Identity) -> None:
        """The last connection is about to be closed: it may find itself alone, and tidy up."""
        for descriptor in self._open_now(database):
            _lock(descriptor, _LEAVE_LOG)

    def keep_newcomers_out(self) -> bool:
        """Until the descriptors are closed nobody else opens the database. False where that cannot be had now."""
        return any(self._lock_own(descriptor, _KEEP_OUT) for descriptor in self._database)

    def let_newcomers_in(self, database: Identity) -> None:
        """Also where a descriptor is still open: somebody else in this process has a connection."""
        for descriptor in self._open_now(database):
            _lock(descriptor, _LET_IN)

    def _open_now(self, database: Identity) -> list[int]:
        try:
            return _descriptors_of(database)
        except sqlite3.Error:  # none is left for finding out
            return self._database

    def take_turn(self, busy_s: float) -> int:
        """Write, while no other process of ours does, however it lost SQLite's lock. Gives what `end_turn` wants."""
        if not self._turn.acquire(timeout=busy_s):
            raise busy_error()
        try:
            for descriptor in self._database:
                if self._lock_own(descriptor, _TAKE_TURN):
                    return descriptor
            return self._wait_for_turn()
        except BaseException:
            self._turn.release()
            raise

    def end_turn(self, descriptor: int) -> None:
        if descriptor >= 0:
            _lock(descriptor, _END_TURN)
        self._turn.release()

    def _wait_for_turn(self) -> int:
        until = time.monotonic() + self._patience_s
        while self._database and time.monotonic() < until:
            sleep_out_of_step(0.0005, 0.003)
            for descriptor in self._database:
                if self._lock_own(descriptor, _TAKE_TURN):
                    self._patience_s = TURN_S
                    return descriptor
        self._patience_s = HOPELESS_S
        return -1

    def _lock_own(self, descriptor: int, wanted: bytes) -> bool:
        """Not one that a task had open when they were listed: it is closed by now, and its number another file's."""
        try:
            return identity_of(os.fstat(descriptor)) == self._file and _lock(descriptor, wanted)
        except OSError as error:
            if error.errno == errno.EBADF:
                return False
            raise


# POSIX locks belong to the process, and so does this: every store of a file has to know of the others.
_held: dict[Identity, FileLocks] = {}
_registry = threading.Lock()
opening = threading.RLock()
"""Held while a connection is opened: whoever closes all of them must know of all."""


def _reset_after_fork() -> None:
    """A child has the locks of threads that it does not have."""
    global _registry, opening
    _registry, opening = threading.Lock(), threading.RLock()
    for locks in _held.values():
        locks.reset_after_fork()


os.register_at_fork(after_in_child=_reset_after_fork)


@contextmanager
def connection_lock(path: Path) -> Iterator[None]:
    """Open or close a connection while no other process of ours does: one that is half open has no locks of ours yet.

    From here on nobody deletes the log.
    """
    with opening, ExitStack() as bare:
        try:
            # It reads nothing, and so has no locks: a descriptor of SQLite's to have ours on.
            bare.enter_context(closing(sqlite3.connect(uri_of(path, "mode=rw"), uri=True)))
            descriptors = _descriptors_of(identity_of(os.stat(path)))
        except (OSError, sqlite3.Error):  # whoever reads it will be told
            yield
            return
        until = time.monotonic() + TURN_S
        # Who may only read it has descriptors that cannot keep other readers out.
        writable = [one for one in descriptors if _is_writable(one)]
        wanted = _SHUT_DOOR if writable else _SHUT_DOOR_READING
        while descriptors and time.monotonic() < until:
            if any(_lock(one, wanted) for one in writable or descriptors):
                break
            sleep_out_of_step(0.0005, 0.003)
        try:
            # While another has it, it is worth waiting for.
            taken = (errno.EAGAIN, errno.EACCES)
            while any(_why_not(one, _KEEP_LOG) in taken for one in descriptors) and time.monotonic() < until:
                sleep_out_of_step(0.0005, 0.003)
            yield
        finally:
            for one in descriptors:
                _lock(one, _OPEN_DOOR)


def join(store: object, database: Identity, log: Log) -> FileLocks:
    """The locks of a database that a store has just opened a connection to."""
    with _registry:
        locks = _held.setdefault(database, FileLocks())
        locks.log = locks.log or log
        locks.stores.add(store)
        locks.take_up(database, log.shared)
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


def _descriptors_of(file: Identity) -> list[int]:
    """SQLite's descriptors of the file, where it can be locked by them."""
    if _SETLK is None:
        return []
    try:
        names = os.listdir(_DESCRIPTORS)
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # no /proc
        return []
    except OSError as error:  # no descriptor left for the listing itself
        told = sqlite3.OperationalError(f"unable to open database file: {error.strerror}")
        told.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise told from error
    found = []
    for name in names:
        try:
            if identity_of(os.fstat(int(name))) == file and _takes_locks(int(name)):
                found.append(int(name))
        except OSError:  # the one that listed them
            continue
    return found


def _takes_locks(descriptor: int) -> bool:
    try:
        fcntl.fcntl(descriptor, _SETLK, _ASK)  # type: ignore[arg-type]  # asked where it is there
    except OSError as error:
        if error.errno in _NOT_HERE:
            return False
        raise
    return True


def _is_writable(descriptor: int) -> bool:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except OSError:  # somebody else's, who has closed it meanwhile
        return False


def _lock(descriptor: int, wanted: bytes) -> bool:
    return _why_not(descriptor, wanted) == 0


def _why_not(descriptor: int, wanted: bytes) -> int:
    """Lock it; 0, or the error that kept us from it."""
    try:
        fcntl.fcntl(descriptor, _SETLK, wanted)  # type: ignore[arg-type]  # without it there are no descriptors
    except OSError as error:
        # Another's; or one that was opened to read, or to write, or is closed by now.
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EBADF):
            return error.errno
        raise
    return 0
