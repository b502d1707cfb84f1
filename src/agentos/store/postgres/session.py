"""Named queries on one connection, and the transactions around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from agentos.store.postgres.pool import Connection, Pool, Statements

Scopes = Callable[["QuerySession"], list[int]]


class QuerySession:
    """The queries of queries.sql on one connection. `scopes` gives the numbers of the scopes that are looked at."""

    def __init__(self, connection: Connection, statements: Statements, scopes: Scopes) -> None:
        self.connection = connection
        self.statements = statements
        self._scopes = scopes

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
