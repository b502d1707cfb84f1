"""A chain that dies in its last task. Resumed by another process, which finds it by where it was defined."""

import os
from collections.abc import Mapping
from typing import Any

from agentos import Workflow, run
from bench.task import START, advance, die_if_asked, stamp

TASKS = int(os.environ["BENCH_TASKS"])
flow = Workflow("killed")


async def first() -> dict[str, Any]:
    return advance(START)


async def work(previous: Mapping[str, Any]) -> dict[str, Any]:
    return advance(previous)


async def last(previous: Mapping[str, Any]) -> dict[str, Any]:
    die_if_asked()
    stamp()
    return advance(previous)


flow.add("t0", first)
for number in range(1, TASKS):
    flow.add(f"t{number}", work, inputs={"previous": f"${{{{ tasks.t{number - 1}.output }}}}"})
flow.add(f"t{TASKS}", last, inputs={"previous": f"${{{{ tasks.t{TASKS - 1}.output }}}}"})

if __name__ == "__main__":
    run(flow)
