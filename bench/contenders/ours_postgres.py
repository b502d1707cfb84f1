"""AgentOS with its state on PostgreSQL; the whole call of `run` is timed, as on SQLite."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psycopg

from agentos import run
from bench.contenders.ours import chain_flow, in_repository
from bench.postgres import serving
from bench.work import WARM_UP, Metrics, check, check_stored


def chain(folder: Path, *, tasks: int) -> Metrics:
    in_repository(folder)
    with serving() as url:
        os.environ["AGENTOS_WORKFLOW_DB"] = url
        check("status", run(chain_flow(WARM_UP)).status, "complete")
        flow = chain_flow(tasks)
        began = time.perf_counter()
        result = run(flow)
        seconds = time.perf_counter() - began
        check("status", result.status, "complete")
        with psycopg.connect(url) as connection:
            query = "SELECT count(*) FROM agentos.events WHERE type = 'task_complete'"
            check_stored((connection.execute(query).fetchone() or (0,))[0], tasks + WARM_UP)
    return {"seconds": seconds, "ms_per_task": seconds / tasks * 1000, "per_second": tasks / seconds}
