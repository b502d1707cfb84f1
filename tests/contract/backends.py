"""The stores the contract suite holds to the port. Another one is added by adding a line to BACKENDS."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentos.store.port import StorePort
from agentos.store.sqlite_open import open_store

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
    with closing(sqlite3.connect(address)) as connection:
        return connection.execute(sql, arguments).fetchall()


OPEN: dict[str, Callable[..., StorePort]] = {"sqlite": open_store}
QUERY: dict[str, Callable[..., list[tuple[Any, ...]]]] = {"sqlite": _query_sqlite}
ADDRESS: dict[str, Callable[[Path], str]] = {"sqlite": lambda folder: str(folder / "issue_workflow.db")}
BACKENDS = tuple(OPEN)
