"""DBOS with its system database on SQLite, as shipped (a rollback journal, synchronous=FULL) or with the file in WAL.

Launching and migrating are not timed. Steps of a layer are started together with asyncio.gather; a queue of child
workflows, the other way, would write several rows more for each task.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dbos import DBOS

from bench.task import START, advance
from bench.work import (
    SCRIPTS,
    SLEEP_LAYERS,
    SLEEP_S,
    SLEEP_WIDTH,
    WARM_UP,
    Metrics,
    check,
    check_stored,
    cold_start,
    edges,
    killed_and_resumed,
    message,
    python,
    stored_bytes,
)

STAMPS: list[float] = []


@DBOS.step()
def step(previous: dict[str, Any]) -> dict[str, Any]:
    return advance(previous)


@DBOS.step()
async def async_step(previous: dict[str, Any], sleep_s: float) -> dict[str, Any]:
    if sleep_s:
        await asyncio.sleep(sleep_s)
    return advance(previous)


@DBOS.step()
def message_step(number: int) -> dict[str, str]:
    STAMPS.append(time.perf_counter())
    return {"role": "user", "content": message(number)}


@DBOS.workflow()
def chained(tasks: int) -> dict[str, Any]:
    value = START
    for _ in range(tasks):
        value = step(value)
    return value


@DBOS.workflow()
async def layered(layers: int, width: int, sleep_s: float = 0.0) -> int:
    values = [START] * width
    for _ in range(layers):
        values = await asyncio.gather(*(async_step(value, sleep_s) for value in values))
    return sum(value["n"] for value in values)


@DBOS.workflow()
def grown(steps: int) -> int:
    return len([message_step(number) for number in range(steps)])


@contextmanager
def _launched(folder: Path) -> Iterator[Path]:
    path = folder / "dbos.sqlite"
    _prepare(path)
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{path}", "log_level": "ERROR"})
    DBOS.launch()
    try:
        yield path
    finally:
        DBOS.destroy()


def _prepare(path: Path) -> None:
    if os.environ.get("BENCH_CONTENDER") == "dbos-wal":
        connection = sqlite3.connect(path)
        check("journal mode", connection.execute("PRAGMA journal_mode = WAL").fetchone()[0], "wal")
        connection.close()


def _stored(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        count: int = connection.execute("SELECT count(*) FROM operation_outputs").fetchone()[0]
        return count
    finally:
        connection.close()


def chain(folder: Path, *, tasks: int) -> Metrics:
    with _launched(folder) as path:
        chained(WARM_UP)
        began = time.perf_counter()
        value = chained(tasks)
        seconds = time.perf_counter() - began
        check("last result", value["n"], tasks)
        check_stored(_stored(path), tasks + WARM_UP)
    return {"seconds": seconds, "ms_per_task": seconds / tasks * 1000}


def wide(folder: Path, *, layers: int, width: int, concurrency: int = 100) -> Metrics:
    async def go() -> float:
        await layered(1, WARM_UP)
        began = time.perf_counter()
        total = await layered(layers, width)
        seconds = time.perf_counter() - began
        check("sum of the last results", total, layers * width)
        return seconds

    with _launched(folder) as path:
        seconds = asyncio.run(go())
        check_stored(_stored(path), layers * width + WARM_UP)
    return {"seconds": seconds, "ms_per_task": seconds / (layers * width) * 1000}


def growing(folder: Path, *, steps: int, edge: int) -> Metrics:
    with _launched(folder) as path:
        chained(WARM_UP)
        check("messages", grown(steps), steps)
        check_stored(_stored(path), steps)
    return {**edges(STAMPS, edge), "bytes": stored_bytes(folder, "dbos.sqlite*")}


def sleeps(folder: Path) -> Metrics:
    async def go() -> float:
        await layered(1, WARM_UP)
        began = time.perf_counter()
        await layered(SLEEP_LAYERS, SLEEP_WIDTH, SLEEP_S)
        return time.perf_counter() - began

    with _launched(folder):
        return {"seconds": asyncio.run(go())}


def resume(folder: Path, *, tasks: int) -> Metrics:
    (folder / "work").mkdir()
    script = str(SCRIPTS / "killed_dbos.py")
    return killed_and_resumed(folder, run=[script], resume=[script, "resume"], tasks=tasks)


def hello(folder: Path) -> Metrics:
    python("-c", "import dbos", cwd=folder)
    return cold_start(str(SCRIPTS / "hello_dbos.py"), cwd=folder, says="hello")
