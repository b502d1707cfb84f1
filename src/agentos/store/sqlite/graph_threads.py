"""LangGraph's threads in a database file, beside the runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agentos.store.journal_reader import Queries
from agentos.store.sqlfiles import migrations, queries, refuse_newer, statements
from agentos.store.sqlite.driver import verb
from agentos.store.sqlite.live import LiveConnection, Reading, Writing

if TYPE_CHECKING:
    from agentos.store.sqlite.store import SqliteStore

T = TypeVar("T")
_Q = queries("graph_threads.sql")


class SqliteGraphTables:
    """The tables in the file of a store, on its connection; made with the first look."""

    def __init__(self, store: SqliteStore) -> None:
        self.live: LiveConnection = store.live
        self.path: Path = store.path
        self.busy_s = store.busy_s
        self._store = store
        self._queries = _ThreadQueries(store.live)
        self._writing, self._reading = Writing(store.live), Reading(store.live)
        self.write(self._lay_out)

    def _lay_out(self, rows: Queries) -> None:
        steps = migrations("graph_threads")
        [(found,)] = rows.rows("version")
        refuse_newer(self.path, found, len(steps))
        for step in steps[found:]:
            for statement in statements(step.sql):
                self.live.get().execute(statement)
            rows.each("set_version", [(str(step.number),)])

    @verb
    def read(self, act: Callable[[Queries], T], /) -> T:
        with self._reading:
            return act(self._queries)

    def look(self, act: Callable[[Queries], T], /) -> T:
        return self.read(act)

    @verb
    def write(self, act: Callable[[Queries], T], /) -> T:
        with self._writing:
            return act(self._queries)

    def give_back(self) -> None:
        self._store.give_back()

    def close(self) -> None:
        self._store.close()


class _ThreadQueries:
    def __init__(self, live: LiveConnection) -> None:
        self._live = live

    def rows(self, name: str, *arguments: Any) -> Iterable[tuple[Any, ...]]:
        return self._live.get().execute(_Q[name], arguments)

    def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        self._live.get().executemany(_Q[name], arguments)
