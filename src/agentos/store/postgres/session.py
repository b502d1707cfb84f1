"""Named queries on one connection, and the transactions around them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from agentos.store.postgres.pool import Connection, Pool
from agentos.store.sqlfiles import queries

_BEGIN_READING = (
    # Readers hold no lock that a takeover waits for, and may think about what they read for a while.
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL idle_in_transaction_session_timeout = '60s'"
)
_BEGIN_LONG = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '60s'"
_PLACEHOLDER = re.compile(r"\$(\d+)")
_SCOPE = "$scope"


def _numbered(text: str) -> str:
    if _SCOPE not in text:
        return text
    last = max((int(number) for number in _PLACEHOLDER.findall(text)), default=0)
    return text.replace(_SCOPE, f"${last + 1}")


_TEXTS = queries("postgres/queries.sql")
_SCOPED = frozenset(name for name, text in _TEXTS.items() if _SCOPE in text)
_Q = {name: _numbered(text) for name, text in _TEXTS.items()}


def text_of(name: str) -> str:
    """The statement as the server gets it."""
    return _Q[name]


Scopes = Callable[["Session"], list[int]]


class Session:
    """The queries of queries.sql on one connection. `scopes` gives the numbers of the scopes that are looked at."""

    def __init__(self, connection: Connection, scopes: Scopes) -> None:
        self.connection = connection
        self._scopes = scopes

    def rows(self, name: str, *arguments: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.cursor(binary=True)
        cursor.execute(_Q[name], self._complete(name, arguments))
        return cursor.fetchall()

    def changed(self, name: str, *arguments: Any) -> int:
        """How many rows a statement that returns none changed."""
        return self.connection.execute(_Q[name], self._complete(name, arguments)).rowcount

    def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        if arguments:
            self.connection.cursor().executemany(_Q[name], arguments)

    def _complete(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*arguments, self._scopes(self)) if name in _SCOPED else arguments


@contextmanager
def reading(pool: Pool, scopes: Scopes, *, long: bool = False) -> Iterator[Session]:
    """Everything inside sees the database as it is at one moment."""
    with pool.lend(long=long) as connection:
        connection.execute(_BEGIN_READING)
        yield Session(connection, scopes)
        connection.execute("COMMIT")


@contextmanager
def writing(pool: Pool, scopes: Scopes, *, unseen: bool = False) -> Iterator[Session]:
    """All or nothing, where one statement is not enough. `unseen`: nobody waits for these rows, so it may take long."""
    with pool.lend(long=True) as connection:
        connection.execute(_BEGIN_LONG if unseen else "BEGIN")
        yield Session(connection, scopes)
        connection.execute("COMMIT")


@contextmanager
def asking(pool: Pool, scopes: Scopes) -> Iterator[Session]:
    """Statements that each stand for themselves."""
    with pool.lend() as connection:
        yield Session(connection, scopes)
