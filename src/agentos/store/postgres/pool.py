"""The connections of this process to one server, lent for one verb at a time; and named queries on one of them,
with the transactions around them."""

from __future__ import annotations

import atexit
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.raw_cursor import RawCursor

from agentos.exceptions import WorkflowConfigurationError
from agentos.store.postgres.address import Address
from agentos.store.postgres.driver import statement_pooling
from agentos.store.sqlfiles import queries

Scopes = Callable[["QuerySession"], list[int]]


class QuerySession:
    """The queries of queries.sql on one connection. `scopes` gives the numbers of the scopes that are looked at."""

    def __init__(self, connection: Connection, statements: Statements, scopes: Scopes) -> None:
        self.connection = connection
        self.statements = statements
        self._scopes = scopes

    @property
    def scopes(self) -> list[int]:
        return self._scopes(self)

    def rows(self, name: str, *arguments: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.cursor(binary=True)
        cursor.execute(self.statements[name], self._complete(name, arguments))
        return cursor.fetchall()

    def execute(self, name: str, *arguments: Any) -> int:
        """How many rows a statement that returns none changed."""
        return self.connection.execute(self.statements[name], self._complete(name, arguments)).rowcount

    def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        if arguments:
            self.connection.cursor().executemany(self.statements[name], arguments)

    def _complete(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*arguments, self._scopes(self)) if name in self.statements.scoped else arguments


@contextmanager
def read_transaction(pool: Pool, scopes: Scopes, *, long: bool = False) -> Iterator[QuerySession]:
    """Everything inside sees the database as it is at one moment."""
    with pool.lend(long=long) as connection:
        connection.execute(pool.statements.begin_reading)
        yield QuerySession(connection, pool.statements, scopes)
        connection.execute("COMMIT")


@contextmanager
def write_transaction(pool: Pool, scopes: Scopes, *, unseen: bool = False) -> Iterator[QuerySession]:
    """All or nothing, where one statement is not enough. `unseen`: nobody waits for these rows, so it may take long."""
    with pool.lend(long=True) as connection:
        connection.execute(pool.statements.begin_long if unseen else pool.statements.begin_writing)
        yield QuerySession(connection, pool.statements, scopes)
        connection.execute("COMMIT")


@contextmanager
def autocommit_session(pool: Pool, scopes: Scopes) -> Iterator[QuerySession]:
    """Statements that each stand for themselves."""
    with pool.lend() as connection:
        yield QuerySession(connection, pool.statements, scopes)


T = TypeVar("T")

LIMIT = 8
"""Connections of one process, however many runs it drives; one more listens for news."""
STALE_S = 30.0
"""A connection that lay idle for longer is asked whether it still lives before it is lent."""

LINGER_S = 30.0
"""So long connections that nobody uses stay open: the next run of this process needs none of its own."""
MOST_UNUSED = 2
"""To so many servers."""

SILENCE_S = 20.0
"""A server that says nothing for so long, asked what takes no time, hangs: its host answers, and it does not."""

_PLACEHOLDER = re.compile(r"\$(\d+)")
_SCOPE = "$scope"
_COMMITS = {
    # A stronger setting of the server's stays.
    False: "CASE current_setting('synchronous_commit') WHEN 'off' "
    "THEN set_config('synchronous_commit', 'on', true) END",
    True: "set_config('synchronous_commit', 'off', true)",
}
_IDLE = "SET LOCAL idle_in_transaction_session_timeout = "


class Statements:
    """The statements of queries.sql for one schema, by their names, and what transactions begin with.

    Every name in them says whose it is: behind a pooler the search path is whoever's was there before, and a run would
    be written to their schema. What they set ends with the transaction, for the same reason.
    """

    def __init__(self, schema: str, *, lazy_commits: bool) -> None:
        self.schema = sql.Identifier(schema).as_string()
        self._durably = _COMMITS[lazy_commits]
        texts = queries("postgres/queries.sql")
        self.scoped = frozenset(name for name, text in texts.items() if _SCOPE in text)
        self._texts = {name: self.complete(text) for name, text in texts.items()}
        # Readers hold no lock that a takeover waits for, and may think about what they read for a while.
        self.begin_reading = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {_IDLE}'60s'"
        # Shorter than any lease that can be set: one stopped inside a transaction loses it before its lease ends.
        self.begin_writing = f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {_IDLE}'2s'; SELECT {self._durably}"
        self.begin_long = self.begin_writing.replace("'2s'", "'60s'")

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def complete(self, text: str) -> str:
        """A statement with its scopes numbered behind the other arguments, and our schema in it."""
        last = max((int(number) for number in _PLACEHOLDER.findall(text)), default=0)
        text = text.replace(_SCOPE, f"${last + 1}").replace("$durably", self._durably)
        return text.replace("$schema", self.schema)


@cache
def statements_of(schema: str, *, lazy_commits: bool) -> Statements:
    return Statements(schema, lazy_commits=lazy_commits)


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose statements may be given an end: the driver alone would wait for ever."""

    silence_s: float | None = None
    is_session = False
    """Whether one process of the server answers here until the end. Otherwise a pooler does, and each transaction may
    have another: nothing lasts that was prepared, set or listened for."""
    prepared = False
    """Whether it knows the statement of lines."""

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        if self.silence_s is not None:
            gen = _limit_silence(gen, self.silence_s)
        try:
            return super().wait(gen, *args, **kwargs)
        except _ServerHangs:
            self.close()  # whatever was asked may still be done: only another connection can tell
            raise


class _ServerHangs(psycopg.OperationalError):
    """Said nothing for too long."""


def _limit_silence(talk: Generator[Any, Any, Any], silence_s: float) -> Generator[Any, Any, Any]:
    """The same talk with the server, ended once it has been silent for so long. Tells what to wait for, and hears."""
    heard, since = None, time.monotonic()
    while True:
        try:
            wanted = talk.send(heard)
        except StopIteration as ended:
            return ended.value
        heard = yield wanted
        if heard:
            since = time.monotonic()
        elif time.monotonic() - since > silence_s:
            raise _ServerHangs(f"the server has said nothing for {silence_s:.0f} seconds")


class Pool:
    """Any thread may borrow. Statements commit by themselves, unless a transaction is begun."""

    silence_s = SILENCE_S

    def __init__(self, address: Address, *, lazy_commits: bool, limit: int = LIMIT, key: tuple[Any, ...] = ()) -> None:
        self.address = address
        self.key = key
        """By which it is shared."""
        self.schema_version: int | None = None
        """Of what was found at the address, once a store that may write has looked."""
        self.statements = statements_of(address.schema, lazy_commits=lazy_commits)
        self._idle: list[tuple[float, Connection]] = []
        self._free = threading.BoundedSemaphore(limit)
        self._to_hold = threading.BoundedSemaphore(max(limit // 2, 1))  # a lease is renewed, whoever holds on to some
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def lend(self, *, long: bool = False) -> Iterator[Connection]:
        """A connection outside any transaction. psycopg.Error where there is none to be had.

        A server that is silent for too long is given up, unless what it is asked may take `long`.
        """
        with self._free:
            connection = self._take_idle() or self.connect()
            connection.silence_s = None if long else self.silence_s
            try:
                yield connection
            finally:
                self._put_away(connection)

    def take_free(self) -> Connection | None:
        """One that lies idle, to hold on to, without waiting for anything; None where there is none to spare.

        It must be taken back.
        """
        if not self._to_hold.acquire(blocking=False):
            return None
        if self._free.acquire(blocking=False):
            with self._lock:
                if self._idle and time.monotonic() - self._idle[-1][0] < STALE_S:
                    return self._idle.pop()[1]
            self._free.release()
        self._to_hold.release()
        return None

    def take_back(self, connection: Connection) -> None:
        """One that `take_free` gave."""
        self._put_away(connection)
        self._free.release()
        self._to_hold.release()

    def connect(self) -> Connection:
        """A connection of its own. The driver prepares nothing: what it did would be gone behind a pooler, or worse,
        another's statement of the same name would be there."""
        connection = Connection.connect(
            self.address.conninfo, autocommit=True, prepare_threshold=None, cursor_factory=RawCursor
        )
        connection.silence_s = self.silence_s
        try:
            encoding, process = self._look_at(connection)
            # A pooler greets for the server, with a number of its own in place of the process's.
            connection.is_session = connection.pgconn.backend_pid == process
            if not connection.is_session:
                connection.execute("BEGIN")
                first, second = self._look_at(connection), self._look_at(connection)
                connection.execute("COMMIT")
                if first != second:
                    raise statement_pooling(self.address.shown)
            if encoding != "UTF8":
                raise WorkflowConfigurationError(
                    f"the database {self.address.shown} is not encoded in UTF8",
                    next_step="Make one that is: CREATE DATABASE agentos ENCODING 'UTF8' TEMPLATE template0.",
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _look_at(self, connection: Connection) -> tuple[str, int]:
        """The encoding of the database, and the process that answered."""
        [(encoding, process)] = connection.execute(self.statements["read_session"]).fetchall()
        return encoding, process

    def _take_idle(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                since, connection = self._idle.pop()
            if connection.closed:
                continue
            if time.monotonic() - since < STALE_S:
                return connection
            with suppress(psycopg.Error):
                connection.execute("SELECT 1")
                return connection
            connection.close()

    def _put_away(self, connection: Connection) -> None:
        connection.silence_s = self.silence_s
        if not connection.closed and connection.pgconn.transaction_status != TransactionStatus.IDLE:
            with suppress(psycopg.Error):
                connection.rollback()
        if connection.closed or connection.pgconn.transaction_status != TransactionStatus.IDLE:
            connection.close()
            # The server went away: the others that lie idle went with it.
            self._drop_idle()
            return
        with self._lock:
            if not self._closed:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def rest(self) -> None:
        """Nobody uses it for now: whoever does next looks at the schema anew."""
        self.schema_version = None

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._drop_idle()


class Shared(Generic[T]):
    """Things by key, each there as long as somebody uses it, and a few for a while after: the next may come at once."""

    def __init__(self, close: Callable[[T], None], rest: Callable[[T], None] = lambda _: None) -> None:
        self._close = close
        self._rest = rest
        self._lock = threading.Lock()
        self._held: dict[object, _Held[T]] = {}
        self._unused: dict[object, float] = {}
        """Since when, the longest first."""
        self._is_watched = False
        """A timer will look whether what is unused has been so for long."""

    def acquire(self, key: object, make: Callable[[], T]) -> T:
        with self._lock:
            held = self._held.get(key)
            if held is None:
                held = self._held[key] = _Held(make())
            held.users += 1
            self._unused.pop(key, None)
            return held.thing

    def release(self, key: object) -> None:
        with self._lock:
            held = self._held.get(key)
            if held is None:  # of a process that has forked us
                return
            held.users -= 1
            if held.users == 0:
                self._unused[key] = time.monotonic()
                self._rest(held.thing)
        self._tidy_up()

    def close_all(self) -> None:
        """At the end of the process, whoever still uses them."""
        with self._lock:
            held, self._held = self._held, {}
            self._unused.clear()
        for one in held.values():
            self._close(one.thing)

    def _tidy_up(self, *, timer: bool = False) -> None:
        """Close what was unused for long, or is one too many, and see that this is looked at again."""
        gone: list[T] = []
        with self._lock:
            self._is_watched = self._is_watched and not timer
            long_ago = time.monotonic() - LINGER_S
            while self._unused:
                key, since = next(iter(self._unused.items()))
                if since > long_ago and len(self._unused) <= MOST_UNUSED:
                    break
                del self._unused[key]
                gone.append(self._held.pop(key).thing)
            if self._unused and not self._is_watched:
                self._is_watched = True
                look = threading.Timer(LINGER_S, self._tidy_up, kwargs={"timer": True})
                look.name, look.daemon = "agentos-connections", True
                look.start()
        for one in gone:
            self._close(one)


class _Held(Generic[T]):
    def __init__(self, thing: T) -> None:
        self.thing = thing
        self.users = 0


def share_within(process: int, close: Callable[[T], None], rest: Callable[[T], None] = lambda _: None) -> Shared[T]:
    """What the stores of a process share, until it ends. A forked child begins with nothing: it must not write to its
    parent's sockets, and somebody may have held a lock at that moment."""
    shared = Shared(close, rest)

    def close_own() -> None:
        if os.getpid() == process:
            shared.close_all()

    atexit.register(close_own)
    return shared


@cache
def _pools_of(process: int) -> Shared[Pool]:
    return share_within(process, Pool.close, Pool.rest)


def acquire_pool(address: Address, *, lazy_commits: bool) -> Pool:
    """The pool of this address, which is to be released.

    Stores are opened for every thread and every question; connections are dear, and belong to the process, as file
    descriptors do.
    """
    key = (os.getpid(), address.url, lazy_commits)
    return _pools_of(os.getpid()).acquire(key, lambda: Pool(address, lazy_commits=lazy_commits, key=key))


def release_pool(pool: Pool) -> None:
    _pools_of(os.getpid()).release(pool.key)
