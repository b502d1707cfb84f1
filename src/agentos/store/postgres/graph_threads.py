"""LangGraph's threads on a server: those of the worktree whose runs the store shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from agentos.store.journal_reader import Queries
from agentos.store.postgres.driver import verb
from agentos.store.postgres.pool import Pool, QuerySession, autocommit_session, read_transaction, write_transaction
from agentos.store.sqlfiles import migrations, queries, refuse_newer

if TYPE_CHECKING:
    from agentos.store.postgres.store import PostgresStore

T = TypeVar("T")


class PostgresGraphTables:
    """The tables in the schema of a store; made with the first look."""

    def __init__(self, store: PostgresStore, pool: Pool, own_scope: Callable[[QuerySession], int]) -> None:
        self.shown = store.shown
        self.patience_s = store.patience_s
        self._store = store
        self._pool = pool
        self._own_scope = own_scope
        self._texts = {
            name: (pool.statements.complete(text), "$scope" in text)
            for name, text in queries("postgres/graph_threads.sql").items()
        }
        # Once: the store's own way to it is for one thread at a time.
        self._scopes = [self._find_scope()]
        if self._version() < len(migrations("postgres/graph_threads")):
            self._lay_out()

    @verb
    def _find_scope(self) -> int:
        with write_transaction(self._pool, self._store.scopes) as session:
            return self._own_scope(session)

    @verb
    def _version(self) -> int:
        with read_transaction(self._pool, self._own) as session:
            [(found,)] = _ThreadQueries(session, self._texts).rows("version")
        refuse_newer(self.shown, found, len(migrations("postgres/graph_threads")))
        return int(found)

    @verb
    def _lay_out(self) -> None:
        with write_transaction(self._pool, self._own) as session:
            session.rows("use_schema", self._pool.address.search_path)
            session.rows("lock_layout", self._pool.address.schema)
            asked = _ThreadQueries(session, self._texts)
            [(found,)] = asked.rows("version")
            for step in migrations("postgres/graph_threads")[found:]:
                session.connection.execute(step.sql)
                asked.each("set_version", [(str(step.number),)])

    @verb
    def read(self, act: Callable[[Queries], T], /) -> T:
        with read_transaction(self._pool, self._own) as session:
            return act(_ThreadQueries(session, self._texts))

    @verb
    def look(self, act: Callable[[Queries], T], /) -> T:
        with autocommit_session(self._pool, self._own) as session:
            return act(_ThreadQueries(session, self._texts))

    @verb
    def write(self, act: Callable[[Queries], T], /) -> T:
        with write_transaction(self._pool, self._own) as session:
            return act(_ThreadQueries(session, self._texts))

    def _own(self, _: QuerySession) -> list[int]:
        return self._scopes

    def give_back(self) -> None:
        """The server's vacuum does, by and by."""

    def close(self) -> None:
        self._store.close()


class _ThreadQueries:
    def __init__(self, session: QuerySession, texts: dict[str, tuple[str, bool]]) -> None:
        self._session = session
        self._texts = texts

    def rows(self, name: str, *arguments: Any) -> list[tuple[Any, ...]]:
        text, scoped = self._texts[name]
        cursor = self._session.connection.cursor(binary=True)
        cursor.execute(text, (*arguments, self._session.scopes) if scoped else arguments)
        return cursor.fetchall()

    def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        text, scoped = self._texts[name]
        cursor = self._session.connection.cursor()
        if len(arguments) == 1:
            cursor.execute(text, (*arguments[0], self._session.scopes) if scoped else arguments[0])
        elif arguments:
            cursor.executemany(text, arguments)
