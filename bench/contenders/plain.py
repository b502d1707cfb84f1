"""asyncio alone: how little it costs to do the work when nothing is kept."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from bench.task import START, advance
from bench.work import SLEEP_LAYERS, SLEEP_S, SLEEP_WIDTH, Metrics, check


async def _task(previous: dict[str, Any]) -> dict[str, Any]:
    return advance(previous)


def chain(folder: Path, *, tasks: int) -> Metrics:
    async def go() -> dict[str, Any]:
        value = START
        for _ in range(tasks):
            value = await asyncio.create_task(_task(value))
        return value

    began = time.perf_counter()
    value = asyncio.run(go())
    seconds = time.perf_counter() - began
    check("last result", value["n"], tasks)
    return {"seconds": seconds, "ms_per_task": seconds / tasks * 1000}


def wide(folder: Path, *, layers: int, width: int, concurrency: int = 100) -> Metrics:
    async def go() -> list[dict[str, Any]]:
        values = [START] * width
        for _ in range(layers):
            values = await asyncio.gather(*(_task(value) for value in values))
        return values

    began = time.perf_counter()
    values = asyncio.run(go())
    seconds = time.perf_counter() - began
    check("last results", [value["n"] for value in values], [layers] * width)
    return {"seconds": seconds, "ms_per_task": seconds / (layers * width) * 1000}


def sleeps(folder: Path) -> Metrics:
    async def go() -> None:
        for _ in range(SLEEP_LAYERS):
            await asyncio.gather(*(asyncio.sleep(SLEEP_S) for _ in range(SLEEP_WIDTH)))

    began = time.perf_counter()
    asyncio.run(go())
    return {"seconds": time.perf_counter() - began}
