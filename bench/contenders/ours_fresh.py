"""A complete run resumed while nothing has changed: with sources, without, and `git status` on the same files."""

from __future__ import annotations

import os
import time
from pathlib import Path

from agentos import Workflow, run
from agentos.workflow.place.place import find_place
from agentos.workflow.start.ready_run import Finished
from agentos.workflow.start.resume import resume_run
from bench.contenders.ours_files import git, make_repository
from bench.work import Metrics, check, in_ms, timed

TIMES = 9
PER_FOLDER = 10


def fresh(folder: Path, *, tasks: int, files: int) -> Metrics:
    """Median times of each, taking turns; and how much the resume with sources takes above the one without."""
    root = folder / "project"
    make_repository(root, files)
    os.chdir(root)
    flows = {"plain": _flow("plain", tasks, 0), "fresh": _flow("fresh", tasks, files)}
    for name, flow in flows.items():
        check("complete", run(flow, workflow_id=name).status, "complete")
    place = find_place(root)

    def resume(name: str) -> None:
        done = resume_run(place, name, workflow=flows[name])
        assert isinstance(done, Finished)
        assert done.plan is not None
        check("all kept", done.plan.counts, {"reuse": tasks})

    time.sleep(2.1)  # files that have just changed are read again, by git and by us
    git(root, "status")
    resume("fresh")
    taken: dict[str, list[float]] = {"plain": [], "fresh": [], "status": []}
    for _ in range(TIMES):
        for name in flows:
            taken[name] += timed(lambda name=name: resume(name))  # type: ignore[misc]
        taken["status"] += timed(lambda: git(root, "status", "--porcelain"))
    metrics: Metrics = {f"{what}_ms": in_ms(seconds)["p50_ms"] for what, seconds in taken.items()}
    return {**metrics, "above_ms": metrics["fresh_ms"] - metrics["plain_ms"]}


def _flow(name: str, tasks: int, files: int) -> Workflow:
    """Independent tasks; with `files`, each depends on a folder of these."""
    flow = Workflow(name)
    folders = max(files // PER_FOLDER, 1)
    for number in range(tasks):
        at = number % folders
        sources = [f"d{at // 10}/e{at % 10}/**"] if files else []
        flow.add(f"t{number}", _work, sources=sources)
    return flow


def _work() -> bool:
    return True
