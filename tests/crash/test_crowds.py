"""Many processes at once: each in its own repository, and all in one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.crash import checks
from tests.crash.harness import Theatre

TINY = """
from tests.crash.children.witness import main, saw
from agentos import Context, Workflow

flow = Workflow("tiny")

@flow.task
def one(ctx: Context) -> int:
    saw(ctx)
    return 1

@flow.task
async def two(one: int, ctx: Context) -> int:
    saw(ctx)
    return one + 1

@flow.task
def three(one: int, ctx: Context) -> int:
    saw(ctx)
    return one + 2

@flow.task
def sum_up(two: int, three: int, ctx: Context) -> int:
    saw(ctx)
    return two + three

if __name__ == "__main__":
    main(flow)
"""


@contextmanager
def starting_line() -> Iterator[tuple[dict[str, str], tuple[int, int], int, int]]:
    """Children that have come so far wait here for each other: what they need for it, and our two ends."""
    ready_out, ready_in = os.pipe()
    go_out, go_in = os.pipe()
    try:
        yield {"CRASH_LINE": f"{ready_in},{go_out}"}, (ready_in, go_out), ready_out, go_in
    finally:
        for end in (ready_out, ready_in, go_out):
            os.close(end)


def start_together(starts: Sequence[tuple[Theatre, str]]) -> list[subprocess.Popen[bytes]]:
    """Run the workflow of each theatre under the given id; all of them leave the starting line at once."""
    with starting_line() as (env, ends, ready, go):
        crowd = [
            theatre.start(str(theatre.repo / "flow.py"), env={**env, "CRASH_RUN": workflow_id}, pass_fds=ends)
            for theatre, workflow_id in starts
        ]
        for _ in crowd:
            assert os.read(ready, 1) == b"."
        os.close(go)
    return crowd


def check_complete(theatre: Theatre, workflow_id: str, trace: list[dict[str, object]]) -> None:
    events = theatre.journal(workflow_id)
    checks.check_journal(events, killed=[])
    checks.check_trace(events, trace)
    assert [entry["output"] for entry in checks.canonical_state(theatre.facts(workflow_id), theatre.repo)["tasks"]] == [
        1,
        2,
        3,
        5,
    ]


@pytest.mark.full
@pytest.mark.timeout(300)
def test_150_processes_at_once_each_in_its_own_repository(tmp_path: Path) -> None:
    theatres = [Theatre.of_text(tmp_path / str(number), TINY, f"repository {number}") for number in range(150)]
    crowd = start_together([(theatre, "run-1") for theatre in theatres])
    for theatre, process in zip(theatres, crowd, strict=True):
        ended = theatre.end(process)
        assert (ended.code, ended.said, ended.stderr) == (0, {"status": "complete"}, "")
    for theatre in theatres:
        check_complete(theatre, "run-1", theatre.trace())


@pytest.mark.full
@pytest.mark.timeout(300)
def test_50_processes_at_once_in_one_repository_each_with_its_own_run(tmp_path: Path) -> None:
    """The database does not exist before: the fifty also race to make it."""
    theatre = Theatre.of_text(tmp_path, TINY, "one repository")
    ids = [f"run-{number}" for number in range(50)]
    crowd = start_together([(theatre, workflow_id) for workflow_id in ids])
    for process in crowd:
        ended = theatre.end(process)
        assert (ended.code, ended.said, ended.stderr) == (0, {"status": "complete"}, "")
    store = theatre.open()
    runs = store.list_runs()
    store.close()
    assert sorted((run.workflow_id, run.status) for run in runs) == sorted((name, "complete") for name in ids)
    trace = theatre.trace()
    for workflow_id in ids:
        check_complete(theatre, workflow_id, [line for line in trace if line["run"] == workflow_id])
    checks.check_file(theatre.database)
