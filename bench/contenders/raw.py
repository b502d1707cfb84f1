"""The floor: asyncio and sqlite3 with WAL and synchronous=FULL. No retries, events, checks or features."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

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
    in_ms,
    killed_and_resumed,
    message,
    python,
    stored_bytes,
    timed,
)

INSERT = "INSERT INTO result (task, body) VALUES (?, ?)"


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS result (no INTEGER PRIMARY KEY, task TEXT, body TEXT)")
    return connection


async def _task(previous: dict[str, Any]) -> dict[str, Any]:
    return advance(previous)


def chain(folder: Path, *, tasks: int) -> Metrics:
    connection = connect(folder / "raw.db")

    async def go(count: int) -> dict[str, Any]:
        value = START
        for number in range(count):
            value = await asyncio.create_task(_task(value))
            connection.execute(INSERT, (f"t{number}", json.dumps(value)))  # autocommit: one commit for each task
        return value

    asyncio.run(go(WARM_UP))
    began = time.perf_counter()
    value = asyncio.run(go(tasks))
    seconds = time.perf_counter() - began
    check("last result", value["n"], tasks)
    check_stored(connection.execute("SELECT count(*) FROM result").fetchone()[0], tasks + WARM_UP)
    return {"seconds": seconds, "ms_per_task": seconds / tasks * 1000}


def wide(folder: Path, *, layers: int, width: int, concurrency: int = 100) -> Metrics:
    connection = connect(folder / "raw.db")

    async def go(layers: int, width: int) -> list[dict[str, Any]]:
        values = [START] * width
        for layer in range(layers):
            values = await asyncio.gather(*(_task(value) for value in values))
            connection.execute("BEGIN")
            connection.executemany(INSERT, [(f"l{layer}.{n}", json.dumps(value)) for n, value in enumerate(values)])
            connection.execute("COMMIT")
        return values

    asyncio.run(go(1, WARM_UP))
    began = time.perf_counter()
    values = asyncio.run(go(layers, width))
    seconds = time.perf_counter() - began
    check("last results", [value["n"] for value in values], [layers] * width)
    check_stored(connection.execute("SELECT count(*) FROM result").fetchone()[0], layers * width + WARM_UP)
    return {"seconds": seconds, "ms_per_task": seconds / (layers * width) * 1000}


def growing(folder: Path, *, steps: int, edge: int) -> Metrics:
    warm = connect(folder / "warm.db")
    for number in range(WARM_UP):
        warm.execute(INSERT, (f"t{number}", "null"))
    connection = connect(folder / "raw.db")
    stamps = []
    for number in range(steps):
        stamps.append(time.perf_counter())
        body = json.dumps({"role": "user", "content": message(number)})
        connection.execute(INSERT, (f"t{number}", body))
    check_stored(connection.execute("SELECT count(*) FROM result").fetchone()[0], steps)
    connection.close()
    return {**edges(stamps, edge), "bytes": stored_bytes(folder, "raw.db*")}


def sleeps(folder: Path) -> Metrics:
    connection = connect(folder / "raw.db")

    async def go() -> None:
        for layer in range(SLEEP_LAYERS):
            await asyncio.gather(*(asyncio.sleep(SLEEP_S) for _ in range(SLEEP_WIDTH)))
            connection.execute("BEGIN")
            connection.executemany(INSERT, [(f"l{layer}.{n}", "null") for n in range(SLEEP_WIDTH)])
            connection.execute("COMMIT")

    began = time.perf_counter()
    asyncio.run(go())
    return {"seconds": time.perf_counter() - began}


def resume(folder: Path, *, tasks: int) -> Metrics:
    (folder / "work").mkdir()
    script = str(SCRIPTS / "killed_raw.py")
    return killed_and_resumed(folder, run=[script], resume=[script], tasks=tasks)


def hello(folder: Path) -> Metrics:
    python("-c", "import asyncio, json, sqlite3", cwd=folder)
    return cold_start(str(SCRIPTS / "hello_raw.py"), cwd=folder, says="hello")


def bare(folder: Path) -> Metrics:
    python("-c", "pass", cwd=folder)
    return cold_start("-c", "pass", cwd=folder)


def location(folder: Path, *, times: int) -> Metrics:
    """What finding the root costs at least: git asked once, and nothing else."""
    subprocess.run(["git", "init", "--quiet", str(folder / "repo")], check=True)
    ask = ["git", "rev-parse", "--show-toplevel"]
    return in_ms(timed(lambda: subprocess.run(ask, cwd=folder / "repo", check=True, capture_output=True), times))
