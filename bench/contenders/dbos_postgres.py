"""DBOS with its system database on PostgreSQL, as shipped."""

from __future__ import annotations

import time
from pathlib import Path

import psycopg
from dbos import DBOS

from bench.contenders.dbos_sqlite import chained
from bench.postgres import serving
from bench.work import WARM_UP, Metrics, check, check_stored


def chain(folder: Path, *, tasks: int) -> Metrics:
    with serving() as url:
        system = f"{url.rpartition('/')[0]}/dbos"
        DBOS(config={"name": "bench", "system_database_url": system, "log_level": "ERROR"})
        DBOS.launch()
        try:
            chained(WARM_UP)
            began = time.perf_counter()
            value = chained(tasks)
            seconds = time.perf_counter() - began
            check("last result", value["n"], tasks)
            with psycopg.connect(system) as connection:
                query = "SELECT count(*) FROM dbos.operation_outputs"
                check_stored((connection.execute(query).fetchone() or (0,))[0], tasks + WARM_UP)
        finally:
            DBOS.destroy()
    return {"seconds": seconds, "ms_per_task": seconds / tasks * 1000, "per_second": tasks / seconds}
