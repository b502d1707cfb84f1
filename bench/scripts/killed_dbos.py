"""A workflow of DBOS steps that dies in its last step; with `resume`, launching recovers it."""

import os
import sys
from typing import Any

from dbos import DBOS, SetWorkflowID

from bench.task import START, advance, die_if_asked, stamp

TASKS = int(os.environ["BENCH_TASKS"])


@DBOS.step()
def work(previous: dict[str, Any]) -> dict[str, Any]:
    return advance(previous)


@DBOS.step()
def last(previous: dict[str, Any]) -> dict[str, Any]:
    die_if_asked()
    stamp()
    return advance(previous)


@DBOS.workflow()
def chain() -> dict[str, Any]:
    value = START
    for _ in range(TASKS):
        value = work(value)
    ended: dict[str, Any] = last(value)
    return ended


if __name__ == "__main__":
    DBOS(config={"name": "killed", "system_database_url": "sqlite:///dbos.sqlite", "log_level": "ERROR"})
    DBOS.launch()
    if sys.argv[1:] == ["resume"]:
        DBOS.retrieve_workflow("killed").get_result()
    else:
        with SetWorkflowID("killed"):
            chain()
    DBOS.destroy()
