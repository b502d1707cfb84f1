"""The floor on PostgreSQL: asyncio and psycopg, one INSERT and one commit for each task. No features."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import psycopg

from bench.postgres import serving
from bench.task import START, advance
from bench.work import WARM_UP, Metrics, check, check_stored

INSERT = "INSERT INTO result (task, body) VALUES (%s, %s)"


async def _task(previous: dict[str, Any]) -> dict[str, Any]:
    return advance(previous)


def chain(folder: Path, *, tasks: int) -> Metrics:
    with serving() as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE result (no bigserial PRIMARY KEY, task text, body jsonb)")

        async def go(count: int) -> dict[str, Any]:
            value = START
            for number in range(count):
                value = await asyncio.create_task(_task(value))
                connection.execute(INSERT, (f"t{number}", json.dumps(value)), prepare=True)
            return value

        asyncio.run(go(WARM_UP))
        began = time.perf_counter()
        value = asyncio.run(go(tasks))
        seconds = time.perf_counter() - began
        check("last result", value["n"], tasks)
        stored = connection.execute("SELECT count(*) FROM result").fetchone() or (0,)
        check_stored(stored[0], tasks + WARM_UP)
    return {"seconds": seconds, "ms_per_task": seconds / tasks * 1000, "per_second": tasks / seconds}
