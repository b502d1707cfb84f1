"""The stores the contract suite holds to the port. Another one is added by adding a line to BACKENDS."""

from __future__ import annotations

import atexit
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.string import TextLoader

from agentos.store.port import StorePort
from agentos.store.postgres import database
from agentos.store.postgres.address import read_address
from agentos.store.sqlite.database import open_store
from tests.postgres.pooler import OwnPooler
from tests.postgres.server import fresh_url, shared_url

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Backend:
    """A kind of store, and the address of one that this test has to itself."""

    name: str
    address: str

    def open(self, **options: Any) -> StorePort:
        return OPEN[self.name](self.address, **options)

    def query(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        """SQL as a user would type it, on a connection of its own."""
        return QUERY[self.name](self.address, sql, *arguments)

    def tidy(self) -> None:
        """What PostgreSQL does by and by: pages that hold nothing are given back. SQLite did it already."""
        if self.name != "sqlite":
            self.query("VACUUM FULL run, event, blob, plan, checkpoint, inbox")

    def empty(self) -> None:
        """No runs, without the cost of making a store anew."""
        for table in ("run", "event", "blob", "plan", "checkpoint", "inbox", "schedule"):
            self.query(f"DELETE FROM {table}")  # noqa: S608

    @contextmanager
    def child(self, action: str, *arguments: object) -> Iterator[Child]:
        """Another process that uses the same store; see child.py for what it can do."""
        argv = [sys.executable, "-m", "tests.contract.child", self.name, self.address, action, *map(str, arguments)]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.Popen(argv, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            yield Child(process)
        finally:
            process.kill()
            process.communicate()


@dataclass(frozen=True)
class Child:
    """A child process: it says things, one JSON document a line, and goes on when told to."""

    process: subprocess.Popen[str]

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the child process ended without a word"
        return json.loads(line)

    def tell(self, word: str = "go") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()


def _query_sqlite(address: str, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(address)) as connection, connection:
        return connection.execute(sql, arguments).fetchall()


def _query_postgres(address: str, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
    server = read_address(address)
    cursor = _connection().execute("SELECT set_config('search_path', %s, false)", [server.search_path])
    cursor.execute(sql.replace("?", "%s") if arguments else sql, arguments or None)
    return cursor.fetchall() if cursor.description else []


@cache
def _connection() -> psycopg.Connection[tuple[Any, ...]]:
    connection = psycopg.connect(shared_url(), autocommit=True)
    connection.adapters.register_loader("jsonb", TextLoader)  # as text, which is what SQLite has
    atexit.register(connection.close)
    return connection


def _schema(folder: Path) -> str:
    return f"t{blake2b(str(folder).encode(), digest_size=12).hexdigest()}"


@cache
def _pooler() -> OwnPooler:
    pooler = OwnPooler(shared_url())
    pooler.__enter__()
    atexit.register(pooler.__exit__)
    return pooler


OPEN: dict[str, Callable[..., StorePort]] = {
    "sqlite": open_store,
    "postgres": database.open_store,
    "pooled": database.open_store,
}
QUERY: dict[str, Callable[..., list[tuple[Any, ...]]]] = {
    "sqlite": _query_sqlite,
    "postgres": _query_postgres,
    "pooled": _query_postgres,
}
ADDRESS: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: str(folder / "issue_workflow.db"),
    "postgres": lambda folder: fresh_url(_schema(folder)),
    "pooled": lambda folder: f"{_pooler().url}?schema={read_address(fresh_url(f'p{_schema(folder)}')).schema}",
}
BACKENDS = tuple(OPEN)
"""The last is the one before it behind a pooler in transaction mode."""
KINDS = BACKENDS[:2]
