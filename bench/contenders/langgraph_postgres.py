"""LangGraph with its PostgreSQL saver and durability="sync", on one connection, as its documentation has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langgraph.checkpoint.postgres import PostgresSaver

from bench.contenders.langgraph_sqlite import _chain_graph, _invoke
from bench.postgres import serving
from bench.task import START
from bench.work import WARM_UP, Metrics, check, check_stored


def chain(folder: Path, *, tasks: int) -> Metrics:
    with serving() as url, PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        graph: Any = saver  # the graph takes any saver
        _invoke(_chain_graph(WARM_UP, graph), {"value": START}, "warm", WARM_UP)
        result, seconds = _invoke(_chain_graph(tasks, graph), {"value": START}, "1", tasks)
        check("last result", result["value"]["n"], tasks)
        query = "SELECT count(*) AS found FROM checkpoints WHERE thread_id = '1'"
        row: Any = saver.conn.execute(query).fetchone()
        check_stored(row["found"], tasks)
    return {"seconds": seconds, "ms_per_task": seconds / tasks * 1000, "per_second": tasks / seconds}
