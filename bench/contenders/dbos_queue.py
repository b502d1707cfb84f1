"""DBOS queues: workflows of five steps, enqueued by a client, run by processes that listen to the queue.

`python -m bench.contenders.dbos_queue URL` is such a process. On PostgreSQL any number share a queue; on SQLite, which
DBOS has for one process, only one is started.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
from dbos import DBOS, DBOSClient

from bench.contenders.dbos_sqlite import _prepare, step
from bench.postgres import serving
from bench.task import START
from bench.work import Metrics, end_all, per_second

QUEUE = "bench"
VERSION = "bench"


@DBOS.workflow()
def five_steps() -> dict[str, Any]:
    value = START
    for _ in range(5):
        value = step(value)
    return value


def drain(folder: Path, *, runs: int, workers: int, postgres: bool) -> Metrics:
    """Enqueue the runs, then start the workers. Counted is from the first run taken to the last end."""
    with ExitStack() as stack:
        if postgres:
            url = f"{stack.enter_context(serving()).rpartition('/')[0]}/dbos"
        else:
            _prepare(folder / "dbos.sqlite")
            url = f"sqlite:///{folder / 'dbos.sqlite'}"
        _launch(url, listens=False)  # lays the database out
        DBOS.destroy()
        client = DBOSClient(system_database_url=url)
        stack.callback(client.destroy)
        began = time.perf_counter()
        for _ in range(runs):
            client.enqueue({"queue_name": QUEUE, "workflow_name": "five_steps", "app_version": VERSION})
        submitted = time.perf_counter() - began
        argv = [sys.executable, "-m", "bench.contenders.dbos_queue", url]
        processes = [subprocess.Popen(argv, stdout=subprocess.DEVNULL) for _ in range(workers)]
        stack.callback(end_all, processes)
        rate = per_second(_look_at(stack, url, postgres=postgres), runs, processes)
    return {"runs_per_second": rate, "ms_per_run": 1000 / rate, "submit_ms": submitted / runs * 1000}


COUNTS = (
    "SELECT count(*) FILTER (WHERE status <> 'ENQUEUED'), count(*) FILTER (WHERE status = 'SUCCESS') "
    "FROM {}workflow_status WHERE name = 'five_steps'"
)


def _look_at(stack: ExitStack, url: str, *, postgres: bool) -> Callable[[], tuple[int, int]]:
    if postgres:
        server = stack.enter_context(psycopg.connect(url, autocommit=True))
        return lambda: server.execute(COUNTS.format("dbos.")).fetchone() or (0, 0)
    file = stack.enter_context(closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)))
    return lambda: tuple(file.execute(COUNTS.format("")).fetchone())


def _launch(url: str, *, listens: bool) -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "log_level": "ERROR",
            "application_version": VERSION,
        }
    )
    DBOS.launch()
    if listens:
        DBOS.register_queue(QUEUE, polling_interval_sec=0.2)


if __name__ == "__main__":
    _launch(sys.argv[1], listens=True)
    threading.Event().wait()
