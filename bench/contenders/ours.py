"""AgentOS as a user runs it: in a git repository of its own, state in its `.agentos`, durability full unless named.

What is timed is the whole call of `run`: planning, opening the database, the lease, the work, and letting go.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from agentos import Context, RunResult, Workflow, run
from agentos.dag.plan.plan import compile_plan
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
    git_repository,
    killed_and_resumed,
    message,
    python,
    stored_bytes,
    timed,
)

DATABASE = ".agentos/issue_workflow.db"


async def _first() -> dict[str, Any]:
    return advance(START)


async def _next(previous: Mapping[str, Any]) -> dict[str, Any]:
    return advance(previous)


async def _sleep() -> None:
    await asyncio.sleep(SLEEP_S)


def _output_of(task: str) -> dict[str, str]:
    return {"previous": f"${{{{ tasks.{task}.output }}}}"}


def chain_flow(tasks: int) -> Workflow:
    flow = Workflow("chain")
    flow.add("t0", _first)
    for number in range(1, tasks):
        flow.add(f"t{number}", _next, inputs=_output_of(f"t{number - 1}"))
    return flow


def wide_flow(layers: int, width: int, concurrency: int) -> Workflow:
    flow = Workflow("wide", max_concurrency=concurrency)
    for column in range(width):
        flow.add(f"l0-{column}", _first)
    for layer in range(1, layers):
        for column in range(width):
            flow.add(f"l{layer}-{column}", _next, inputs=_output_of(f"l{layer - 1}-{column}"))
    return flow


def in_repository(folder: Path) -> Path:
    """Go into a fresh repository."""
    root = git_repository(folder / "work")
    os.chdir(root)
    return root


def _durability() -> Literal["full", "process"]:
    return "process" if os.environ.get("BENCH_CONTENDER") == "agentos-process" else "full"


def _run(flow: Workflow) -> tuple[RunResult, float]:
    began = time.perf_counter()
    result = run(flow, durability=_durability())
    seconds = time.perf_counter() - began
    check(f"status ({result.errors})", result.status, "complete")
    return result, seconds


def count_finished(root: Path) -> int:
    """Finished tasks as plain SQL finds them in the file."""
    return _count_events(root, "task_complete")


def _count_events(root: Path, name: str) -> int:
    connection = sqlite3.connect(root / DATABASE)
    try:
        code = "SELECT code FROM event_type WHERE name = ?"
        count: int = connection.execute(f"SELECT count(*) FROM event WHERE type = ({code})", (name,)).fetchone()[0]
        return count
    finally:
        connection.close()


def _measured(root: Path, flow: Workflow, tasks: int, fresh: Workflow) -> Metrics:
    _run(chain_flow(WARM_UP))
    _, seconds = _run(flow)
    check_stored(count_finished(root), tasks + WARM_UP)
    planning = min(timed(lambda: compile_plan(fresh, None)))
    return {"seconds": seconds, "ms_per_task": seconds / tasks * 1000, "planning_ms": planning * 1000}


def chain(folder: Path, *, tasks: int) -> Metrics:
    return _measured(in_repository(folder), chain_flow(tasks), tasks, chain_flow(tasks))


async def _in_steps(ctx: Context, steps: int) -> dict[str, Any]:
    value = START
    for _ in range(steps):
        value = await ctx.step(_next, value)
    return value


def steps_flow(steps: int) -> Workflow:
    flow = Workflow("steps")
    flow.add("all", _in_steps, inputs={"steps": steps})
    return flow


def steps(folder: Path, *, tasks: int) -> Metrics:
    """As many steps in a loop as a chain has tasks, all in one task."""
    root = in_repository(folder)
    _run(steps_flow(WARM_UP))
    result, seconds = _run(steps_flow(tasks))
    check("last result", result.outputs["all"]["n"], tasks)
    check_stored(_count_events(root, "task_step"), tasks + WARM_UP)
    return {"seconds": seconds, "ms_per_task": seconds / tasks * 1000}


def wide(folder: Path, *, layers: int, width: int, concurrency: int = 100) -> Metrics:
    flows = [wide_flow(layers, width, concurrency) for _ in range(2)]
    return _measured(in_repository(folder), flows[0], layers * width, flows[1])


def growing(folder: Path, *, steps: int, edge: int) -> Metrics:
    stamps: list[float] = []

    async def work(ctx: Context, number: int) -> None:
        stamps.append(time.perf_counter())
        ctx.message("user", message(number))

    in_repository(folder / "warm")
    _run(chain_flow(WARM_UP))
    root = in_repository(folder)
    flow = Workflow("growing")
    for number in range(steps):
        flow.add(f"t{number}", work, inputs={"number": number}, needs=[f"t{number - 1}"] if number else [])
    result, _ = _run(flow)
    check("messages", len(result.state.messages), steps)
    check_stored(count_finished(root), steps)
    return {**edges(stamps, edge), "bytes": stored_bytes(root / ".agentos", "issue_workflow.db*")}


def sleeps(folder: Path) -> Metrics:
    in_repository(folder)
    _run(chain_flow(WARM_UP))
    flow = Workflow("sleeps")
    for layer in range(SLEEP_LAYERS):
        for column in range(SLEEP_WIDTH):
            flow.add(f"l{layer}-{column}", _sleep, needs=[f"l{layer - 1}-{column}"] if layer else [])
    return {"seconds": _run(flow)[1]}


def resume(folder: Path, *, tasks: int) -> Metrics:
    from bench.contenders.ours_state import load_and_restore

    root = git_repository(folder / "work")
    shutil.copy(SCRIPTS / "killed_agentos.py", root / "flow.py")

    def load() -> Metrics:
        os.chdir(root)
        check_stored(count_finished(root), tasks)
        os.environ["BENCH_TASKS"] = str(tasks)
        metrics = load_and_restore(root)
        os.chdir(folder)
        return metrics

    go_on = ["-c", "from agentos import resume; assert resume().status == 'complete'"]
    return killed_and_resumed(folder, run=["flow.py"], resume=go_on, tasks=tasks, before_resume=load)


def hello(folder: Path) -> Metrics:
    root = git_repository(folder / "work")
    shutil.copy(SCRIPTS / "hello_agentos.py", root / "hello.py")
    python("-c", "import agentos, agentos.store.sqlite.database", cwd=folder)
    metrics = cold_start("hello.py", cwd=root, says="hello")
    check_stored(count_finished(root), 1)
    return metrics


def importing(folder: Path) -> Metrics:
    return _importing("import agentos", folder)


def importing_names(folder: Path) -> Metrics:
    return _importing("from agentos import Workflow, run", folder)


def _importing(what: str, folder: Path) -> Metrics:
    python("-c", what, cwd=folder)
    return cold_start("-c", what, cwd=folder)


def showing_help(folder: Path) -> Metrics:
    python("-m", "agentos", "--help", cwd=folder)
    return cold_start("-m", "agentos", "--help", cwd=folder, says="Usage")


def listing(folder: Path) -> Metrics:
    root = git_repository(folder / "work")
    shutil.copy(SCRIPTS / "hello_agentos.py", root / "hello.py")
    python("hello.py", cwd=root)
    python("-m", "agentos", "list", cwd=root)
    return cold_start("-m", "agentos", "list", cwd=root, says="complete")
