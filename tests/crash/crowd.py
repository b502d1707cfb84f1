"""Several processes on one database, killed at random; some of them read its files past SQLite all the while.

A task runs only once the one before it is acknowledged: so whatever was executed before another was must never be
executed again.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from tests.crash import checks
from tests.crash.harness import Theatre

MAX_ROUNDS = 40

FLOW = """
import os, threading
from pathlib import Path
from tests.crash.children.witness import main, saw
from agentos import Context, Workflow

flow = Workflow("crowd")

def body(ctx: Context) -> str:
    saw(ctx)
    if {reads} and ctx.workflow_id[-1] in "02468":
        for file in Path(".agentos").glob("*.db*"):
            try:
                file.read_bytes()  # drops every lock that SQLite has in this process
            except FileNotFoundError:
                pass
    return "x" * {bytes}

for number in range({tasks}):
    flow.add(f"t{{number:03}}", body, needs=[f"t{{number - 1:03}}"] if number else [])

if __name__ == "__main__":
    main(flow)
"""


def play_crowd(folder: Path, chance: random.Random, name: str) -> tuple[Theatre, int]:
    """Runs of a crowd, disturbed until all are complete; the theatre, and how many were killed."""
    flow = FLOW.format(
        reads=chance.random() < 0.7, bytes=chance.choice([10, 2_000, 40_000]), tasks=chance.randint(4, 25)
    )
    theatre = Theatre.of_text(folder, flow, name)
    left = {f"run-{number}" for number in range(chance.randint(2, 6))}
    everyone, kills, rounds = sorted(left), 0, 0
    while left:
        rounds += 1
        assert rounds < MAX_ROUNDS, f"these do not come to an end: {sorted(left)}"
        kills += _play_round(theatre, chance, sorted(left), may_kill=rounds < 6)
        left -= {run for run in left if (record := theatre.record(run)) is not None and record.status == "complete"}
    check_crowd(theatre, everyone)
    return theatre, kills


def _play_round(theatre: Theatre, chance: random.Random, runs: list[str], *, may_kill: bool) -> int:
    began = time.monotonic()
    crowd = [
        (
            theatre.start(str(theatre.repo / "flow.py"), env={"CRASH_RUN": run}),
            began + chance.uniform(0.3, 4.0) if may_kill and chance.random() < 0.6 else None,
        )
        for run in runs
    ]
    kills = 0
    for process, until in sorted(crowd, key=lambda one: one[1] or float("inf")):
        if until is not None:
            while process.poll() is None and time.monotonic() < until:
                time.sleep(0.005)
            process.kill()
        ended = theatre.end(process)
        assert ended.killed if until is not None and ended.code else ended.code == 0, str(ended)
        kills += ended.killed
    return kills


def check_crowd(theatre: Theatre, runs: list[str]) -> None:
    trace = theatre.trace()
    for run in runs:
        events = theatre.journal(run)
        assert events[-1].type == "workflow_complete"
        newest = ""
        for line in trace:
            if line["run"] != run:
                continue
            again = f"{line['task']} of {run} was executed again, after {newest} had begun: {json.dumps(line)}"
            assert line["task"] >= newest, again
            newest = line["task"]
    checks.check_file(theatre.database)
