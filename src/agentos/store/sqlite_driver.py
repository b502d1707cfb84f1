"""The one place that touches the sqlite3 driver's manners: transactions, waiting for locks, and its errors."""

from __future__ import annotations

import functools
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from agentos.exceptions import (
    AgentosError,
    CheckpointCorruptedError,
    ForeignDatabaseError,
    NotFoundError,
    StoreUnavailableError,
    ValueEncodingError,
    WorkflowConfigurationError,
)

BUSY_TIMEOUT_S = 0.25
"""How long SQLite itself waits for a lock before we do; its own pauses grow to 0.1 s and are unfair."""
BUSY_S = 30.0
"""After waiting this long for other writers in all, give up with StoreUnavailableError."""

_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_PRIMARY = 0xFF  # extended result codes carry the primary one in the low byte

P = ParamSpec("P")
T = TypeVar("T")


class Driven(Protocol):
    """What has verbs that talk to SQLite."""

    path: Path
    busy_s: float


S = TypeVar("S", bound=Driven)


def verb(method: Callable[Concatenate[S, P], T], /) -> Callable[Concatenate[S, P], T]:
    """Makes a method that is one transaction wait its turn, and raise our errors only.

    A locked database rolls the transaction back, so the whole method is simply called again.
    """

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except (sqlite3.Error, UnicodeError) as error:
            first = error
        return insist(lambda: method(self, *args, **kwargs), self.path, self.busy_s, first=first)

    return call


def insist(act: Callable[[], T], path: Path, busy_s: float, *, first: Exception | None = None) -> T:
    """Do it, again and again while others hold the lock, for `busy_s` at most."""
    deadline = time.monotonic() + busy_s
    error = first
    while True:
        if error is not None:
            if not is_locked(error) or time.monotonic() >= deadline:
                raise translated(error, path) from error
            time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 (only to break step with the others)
        try:
            return act()
        except (sqlite3.Error, UnicodeError) as again:
            error = again


def is_locked(error: Exception) -> bool:
    return _code(error) & _PRIMARY in _LOCKED


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", None) or 0


def translated(error: Exception, path: Path) -> AgentosError:
    """The error of ours that says what the driver's means, and what to do."""
    if _code(error) == sqlite3.SQLITE_READONLY_ROLLBACK:
        # Only the transaction that makes the database has a rollback journal: its process was killed in it.
        return NotFoundError(f"the database at {path} was never finished", next_step="It is made by the next run.")
    if isinstance(error, UnicodeEncodeError):
        return ValueEncodingError("$", f"an id or name holds what is no text: {error}")
    if isinstance(error, UnicodeDecodeError):
        # What SQLite quotes in its message about a schema that was changed.
        return CheckpointCorruptedError(f"database {path}", f"it holds what is no text: {error}")
    code = _code(error) & _PRIMARY
    if code == sqlite3.SQLITE_NOTADB:
        return ForeignDatabaseError(
            f"{path} is not an SQLite database",
            next_step="Name another file, or move this one away. It was not changed.",
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR):
        # Our statements are always the same: one that makes no sense to SQLite has met a schema that is not ours.
        return CheckpointCorruptedError(f"database {path}", str(error))
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return WorkflowConfigurationError(
            f"the database {path} cannot be opened: {error}",
            next_step="Check that the file and its folder exist, and may be read and written by you.",
        )
    why, next_step = _UNAVAILABLE.get(code, (f"{error}", "See the cause above; nothing was written."))
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
    sqlite3.SQLITE_BUSY: ("is locked by other processes for too long", "Try again when they are done."),
    sqlite3.SQLITE_LOCKED: ("is locked by this process", "Try again when its other work is done."),
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
