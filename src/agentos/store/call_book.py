"""The book of calls: which of a user's processes call which model or agent just now, and who waits to.

One small SQLite database for all worktrees, in which every call has a line while it waits and while it is under way.
A line goes with its process: one that was killed is struck out by the next who looks. Nothing in it is needed: a book
that is lost is begun anew.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, TypeVar

from agentos.store.holder import current_holder, decode_holder, encode_holder, is_alive
from agentos.store.private_files import make_folders
from agentos.store.sqlfiles import queries, script, statements
from agentos.store.sqlite.driver import Transaction

APPLICATION_ID = 0x41474C42  # AGLB
VERSION = 1
LEASE_S = 60.0
"""A call not heard of for so long is struck out, whatever became of its process."""
MINUTE_S = 60.0
BUSY_S = 0.05
"""How long a verb waits for another process's transaction, which takes a fraction of a millisecond."""
KEEP_DAYS = 60

T = TypeVar("T")


class Situation(NamedTuple):
    """What a call that wants to begin finds."""

    now: float
    """Seconds of the wall clock, as all times here: other processes, and later days, must understand them."""
    under_way: int
    before: int
    """How many have waited for longer."""
    starts: tuple[float, ...]
    """When calls of the last minute began, oldest first."""
    cool_until: float
    """In the past where nothing pauses."""
    cap: int | None
    """What 429s taught: at most so many at once."""
    spent_usd: float
    """Today, by UTC."""


class CallBook:
    """An open book. Each verb is one short transaction, and raises sqlite3.Error as it comes."""

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], float] = time.time) -> None:
        self._db = connection
        self._clock = clock
        self._sql = queries("calls.sql")
        self._write = Transaction(connection)

    def close(self) -> None:
        self._db.close()

    def enter(self, credential: str) -> int:
        """Wait from now on, behind all who wait already; the number of the line."""
        with self._write:
            return self._one("enter", credential, encode_holder(current_holder()), self._clock())

    def ask(self, call: int, credential: str, decide: Callable[[Situation], T | None]) -> T | None:
        """Begin the call where `decide` gives None; else what it gives, and the call goes on waiting.

        Nothing is written, and no lock taken, where there is nothing to hope for.
        """
        if (answer := decide(self._situation(call, credential))) is not None:
            return answer
        with self._write:
            self._strike_out_lost(credential)
            if (answer := decide(self._situation(call, credential))) is not None:
                return answer
            now = self._clock()
            self._run("see", call, credential, encode_holder(current_holder()), now, now)
            self._run("note_start", credential, now)
        return None

    def see(self, call: int, credential: str, *, under_way: bool) -> None:
        """The call's process lives; strikes out those whose process does not."""
        with self._write:
            now = self._clock()
            self._run("see", call, credential, encode_holder(current_holder()), now, now if under_way else None)
            self._strike_out_lost(credential)

    def leave(self, call: int) -> None:
        with self._write:
            self._run("leave", call)

    def cool_down(self, credential: str, for_s: float, *, cap_for_s: float = 0.0) -> None:
        """No call for so long; then, for `cap_for_s`, one less at a time than there are now, this one included."""
        with self._write:
            now = self._clock()
            self._run("cool_down", credential, now, now + for_s)
            if cap_for_s:
                cap = max(1, self._one("under_way", credential) - 1)
                self._run("cap", credential, cap, now + for_s + cap_for_s)

    def spend(self, credential: str, usd: float) -> None:
        with self._write:
            self._run("spend", credential, self._day(), usd)
            self._run("forget_spending", self._day(days_ago=KEEP_DAYS))

    def situation(self, credential: str) -> Situation:
        """For somebody who only looks."""
        return self._situation((1 << 63) - 1, credential)

    def _situation(self, call: int, credential: str) -> Situation:
        now = self._clock()
        row = self._db.execute(self._sql["pause"], (credential,)).fetchone() or (0.0, 0.0, 0, 0.0)
        cool_from, cool_until, cap, cap_until = row
        set_back = cool_from > now + 5  # the clock was: nobody knows what the times mean now
        starts = self._db.execute(self._sql["starts"], (credential, now - MINUTE_S)).fetchall()
        return Situation(
            now=now,
            under_way=self._one("under_way", credential),
            before=self._one("before", credential, call),
            starts=tuple(at for (at,) in starts),
            cool_until=0.0 if set_back else cool_until,
            cap=cap if cap and now < cap_until and not set_back else None,
            spent_usd=self._one("spent", credential, self._day()),
        )

    def _strike_out_lost(self, credential: str) -> None:
        now = self._clock()
        lost: dict[str, bool] = {}  # many calls of one process: looked for once
        for call, holder, seen in self._db.execute(self._sql["holders"], (credential,)).fetchall():
            if holder not in lost:
                lost[holder] = is_alive(decode_holder(holder)) is False
            if lost[holder] or now - seen > LEASE_S:
                self._run("leave", call)
        self._run("forget_starts", now - MINUTE_S, now + 5)

    def _day(self, days_ago: int = 0) -> str:
        return (datetime.fromtimestamp(self._clock(), UTC) - timedelta(days=days_ago)).strftime("%Y-%m-%d")

    def _run(self, name: str, *values: object) -> None:
        self._db.execute(self._sql[name], values)

    def _one(self, name: str, *values: object) -> int:
        found: int = self._db.execute(self._sql[name], values).fetchone()[0]
        return found


def open_book(path: Path, clock: Callable[[], float] = time.time) -> CallBook:
    """The book at `path`, made where there is none, for the user alone. OSError or sqlite3.Error where it cannot be."""
    make_folders(path.parent)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError("it is no file of yours") from None
        if found.st_mode & 0o077:
            os.chmod(path, 0o600)
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    return _laid_out(connection, clock)


def book_in_memory(clock: Callable[[], float] = time.time) -> CallBook:
    """For this process alone."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    book = _laid_out(connection, clock)
    connection.execute(queries("calls.sql")["begin_numbers_at"], (1 << 40,))
    return book


def _laid_out(connection: sqlite3.Connection, clock: Callable[[], float]) -> CallBook:
    try:
        connection.execute("PRAGMA busy_timeout = 5000")  # several may be laying it out at once
        with Transaction(connection):
            found = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if not found and not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                for statement in statements(script("calls_schema.sql")):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
            elif (found, version) != (APPLICATION_ID, VERSION):
                raise sqlite3.DatabaseError("it belongs to another program, or to another version of this one")
        # Only now: it would change a database of somebody else.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")
    except BaseException:
        connection.close()
        raise
    return CallBook(connection, clock)
