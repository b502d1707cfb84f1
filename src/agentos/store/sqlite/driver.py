"""The one place that touches the sqlite3 driver's manners: transactions, waiting for locks, and its errors."""

from __future__ import annotations

import functools
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

from agentos.exceptions import (
    AgentosError,
    CheckpointCorruptedError,
    StoreUnavailableError,
    ValueEncodingError,
    WorkflowConfigurationError,
)

BUSY_TIMEOUT_S = 0.25
"""How long SQLite itself waits for a lock before we do; its own pauses grow to 0.1 s and are unfair."""
DOUBTS = 3
"""So often what looks like damage is tried again."""

MOVES = 30
"""So often in a row a database is followed to where it is now."""

_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_DOUBTFUL = frozenset(
    {
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    }
)
_TOLD = (sqlite3.Error, UnicodeError, MemoryError)
_PRIMARY = 0xFF  # extended result codes carry the primary one in the low byte

P = ParamSpec("P")
T = TypeVar("T")


class Moved(Exception):
    """The database is in another file now, where the same has to be done again."""


class UsesSqlite(Protocol):
    """What has verbs that talk to SQLite."""

    path: Path
    busy_s: float
    live: Any


S = TypeVar("S", bound=UsesSqlite)


def verb(method: Callable[Concatenate[S, P], T], /) -> Callable[Concatenate[S, P], T]:
    """Makes a method that is one transaction wait its turn, follow a database that moved, and raise our errors only.

    Whatever fails rolls the transaction back, so the whole method is simply called again.
    """

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with self.live.busy:
                return method(self, *args, **kwargs)
        except (*_TOLD, Moved, CheckpointCorruptedError) as error:
            first = error

        def again() -> T:
            with self.live.busy:
                if self.live.find_trouble() is not None:  # which may be why it failed
                    self.live.follow()
                return method(self, *args, **kwargs)

        return insist(again, self.path, self.busy_s, first=first)

    return call


def insist(act: Callable[[], T], path: Path, busy_s: float, *, first: Exception | None = None) -> T:
    """Do it, again and again while others hold the lock, for `busy_s` at most.

    What looks like damage is tried again as well: somebody who drops our locks can make a single read go wrong.
    """
    deadline = time.monotonic() + busy_s
    error, doubts = first, 0
    while True:
        if error is not None:
            doubts += is_doubtful(error)
            allowed = MOVES if isinstance(error, Moved) else DOUBTS
            given_up = time.monotonic() >= deadline if is_locked(error) else not 0 < doubts <= allowed
            if given_up:
                raise translate_error(error, path) from error
            sleep_out_of_step(0.001, 0.02)
        try:
            return act()
        except (*_TOLD, Moved, CheckpointCorruptedError) as again:
            error = again


def sleep_out_of_step(least_s: float, most_s: float) -> None:
    """Wait for a moment of random length, so that those who wait together do not try together."""
    time.sleep(least_s + (most_s - least_s) * os.urandom(1)[0] / 255)  # `random` takes long to load


def uri_of(path: Path, query: str) -> str:
    return f"file:{quote(os.fsencode(os.path.abspath(path)))}?{query}"


def busy_error() -> sqlite3.Error:
    """What SQLite raises where another holds the lock."""
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return error


def is_locked(error: Exception) -> bool:
    return _code(error) & _PRIMARY in _LOCKED


def is_damage(error: Exception) -> bool:
    return _code(error) & _PRIMARY in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR)


def is_doubtful(error: Exception) -> bool:
    """Whether the same may succeed in a moment, or on the file that is there now."""
    return isinstance(error, (Moved, CheckpointCorruptedError)) or _code(error) & _PRIMARY in _DOUBTFUL


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", None) or 0


def translate_error(error: Exception, path: Path) -> AgentosError:
    """The error of ours that says what the driver's means, and what to do.

    Damage is only what SQLite itself calls so, or a schema that lacks what it must have.
    """
    code = _code(error) & _PRIMARY
    if isinstance(error, CheckpointCorruptedError):
        return error
    if isinstance(error, UnicodeEncodeError):
        return ValueEncodingError("$", f"an id or name holds what is no text: {error}")
    if isinstance(error, UnicodeDecodeError) or str(error).startswith("Could not decode to UTF-8"):
        # What SQLite quotes in its message about a schema that was changed; a text that is none.
        return CheckpointCorruptedError(f"database {path}", f"it holds what is no text: {error}")
    if _code(error) == sqlite3.SQLITE_READONLY_ROLLBACK:
        # Only earlier releases made a database in its place, in a transaction with a rollback journal.
        return CheckpointCorruptedError(f"database {path}", "it was never finished: who made it was killed meanwhile")
    lacks_schema = code == sqlite3.SQLITE_ERROR and str(error).startswith(("no such table", "no such column", "table "))
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or lacks_schema:
        return CheckpointCorruptedError(f"database {path}", str(error))
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return WorkflowConfigurationError(
            f"the database {path} cannot be opened: {error}",
            next_step="Check that the file and its folder exist, and may be read and written by you.",
        )
    if isinstance(error, MemoryError):
        code = sqlite3.SQLITE_NOMEM
    if isinstance(error, Moved):
        why, next_step = "is replaced again and again", "Find out which program does that, and try again."
    elif code in _UNAVAILABLE:
        why, next_step = _UNAVAILABLE[code]
    else:
        return AgentosError(
            f"SQLite refused what AgentOS asked of the database {path}: {error}",
            next_step="This is a bug in AgentOS; the database is unchanged. Please report it.",
        )
    return StoreUnavailableError(f"the database {path} {why}", next_step=next_step)


_UNAVAILABLE = {
    sqlite3.SQLITE_FULL: (
        "has no room left: the disk is full",
        "Free some space and try again. Nothing stored was lost.",
    ),
    sqlite3.SQLITE_READONLY: (
        "is read-only",
        "Make the file and its folder writable (chmod u+w), and try again. Nothing was written.",
    ),
    sqlite3.SQLITE_IOERR: (
        "cannot be read or written: the disk reports an error, or a limit on its size",
        "Check the disk, its free space and quotas, and try again. Nothing stored was lost.",
    ),
    sqlite3.SQLITE_NOMEM: (
        "cannot be read or written: there is not enough memory",
        "Free some, or raise the limit (`ulimit -v`), and try again. Nothing stored was lost.",
    ),
    sqlite3.SQLITE_BUSY: ("is locked by other processes for too long", "Try again when they are done."),
    sqlite3.SQLITE_LOCKED: ("is locked by this process", "Try again when its other work is done."),
    sqlite3.SQLITE_PROTOCOL: ("is in use by too many at once", "Try again in a moment."),
    sqlite3.SQLITE_INTERRUPT: ("was interrupted in the middle of a query", "Try again."),
}


class Transaction:
    """`with transaction:` writes all or nothing. The lock is taken at the start, so that nothing fails half-way."""

    __slots__ = ("_begin", "_connection")

    def __init__(self, connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> None:
        self._connection = connection
        self._begin = begin

    def __enter__(self) -> None:
        self._connection.execute(self._begin)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            try:
                self._connection.execute("COMMIT")
                return
            except BaseException:
                self._roll_back()
                raise
        self._roll_back()

    def _roll_back(self) -> None:
        # SQLite has already rolled back by itself after some errors (full disk, I/O).
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
