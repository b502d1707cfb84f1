"""AgentOS with runs in a queue: submitted by one process, driven by workers in processes of their own."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg

from agentos import client
from bench.contenders.ours import DATABASE, in_repository
from bench.postgres import serving
from bench.work import Metrics, end_all, per_second

FLOW = """
from agentos import Workflow
from bench.task import START, advance

flow = Workflow("queued")


async def first() -> dict:
    return advance(START)


async def then(previous: dict) -> dict:
    return advance(previous)


flow.add("t0", first)
for number in range(1, 5):
    flow.add(f"t{number}", then, inputs={"previous": f"${{{{ tasks.t{number - 1}.output }}}}"})
"""


COUNTS = "SELECT count(*) FILTER (WHERE status <> 'queued'), count(*) FILTER (WHERE status = 'complete') FROM {}run"
AT_A_TIME = 16
"""Runs of one worker: each waits for its commits most of the time."""


def drain(folder: Path, *, runs: int, workers: int, postgres: bool) -> Metrics:
    """Submit the runs, then start the workers. Counted is from the first run taken to the last end."""
    root = in_repository(folder)
    (root / "flow.py").write_text(FLOW)
    with ExitStack() as stack:
        url = stack.enter_context(serving()) if postgres else ""
        if postgres:
            os.environ["AGENTOS_WORKFLOW_DB"] = url
        began = time.perf_counter()
        for number in range(runs):
            client.submit("flow.py", workflow_id=f"run-{number}")
        submitted = time.perf_counter() - began
        if postgres:
            server = stack.enter_context(psycopg.connect(url, autocommit=True))
        argv = [sys.executable, "-m", "agentos", "worker", "--poll", "0.2", "--limit", str(AT_A_TIME)]
        processes = [subprocess.Popen(argv, stdout=subprocess.DEVNULL) for _ in range(workers)]
        stack.callback(end_all, processes)

        def look() -> tuple[int, int]:
            if postgres:
                return server.execute(COUNTS.format("agentos.")).fetchone() or (0, 0)
            with closing(sqlite3.connect(root / DATABASE)) as file:
                taken, ended = file.execute(COUNTS.format("")).fetchone()
                return taken, ended

        rate = per_second(look, runs, processes)
    return {"runs_per_second": rate, "ms_per_run": 1000 / rate, "submit_ms": submitted / runs * 1000}
