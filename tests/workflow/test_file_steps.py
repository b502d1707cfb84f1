"""Steps in tasks that change files: a snapshot after each is what a task that is cut off goes back to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentos import Client, Context, RunFailedError, Workflow, resume, run, testing
from agentos.machine.events import ResumePlanned
from tests.marks import quick_first

FLOW = """
from pathlib import Path
from agentos import Workflow, run

flow = Workflow("edit")

def append(line):
    with open("list.txt", "a") as file:
        file.write(line + "\\n")
    return line

@flow.task(effects="files")
async def edit(ctx):
    return [await ctx.step(append, f"line {number}") for number in range(3)]

if __name__ == "__main__":
    print(run(flow, workflow_id="r").outputs)
"""
LINES = ["line 0", "line 1", "line 2"]


@pytest.fixture(autouse=True)
def here(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_git_repo)
    return tmp_git_repo


def append(line: str) -> str:
    with Path("list.txt").open("a") as file:
        file.write(f"{line}\n")
    return line


@pytest.mark.parametrize("at", quick_first([f"step.{when}:{n}" for n in (2, 1, 3) for when in ("before", "after")]))
def test_killed_the_files_go_back_to_the_last_step_on_record(here: Path, at: str) -> None:
    (here / "edit.py").write_text(FLOW)
    assert testing.start([sys.executable, "edit.py"], cwd=here, at=at).returncode == -9
    assert testing.start([sys.executable, "edit.py"], cwd=here).returncode == 0
    assert (here / "list.txt").read_text().splitlines() == LINES
    (planned,) = (event for event in Client().events("r") if isinstance(event, ResumePlanned))
    assert ("after its last step" in planned.verdicts[0].reason) == (at != "step.before:1")


def test_before_a_retry_only_what_came_after_the_last_step_is_undone(here: Path) -> None:
    flow, tries = Workflow("w"), []

    def half(line: str) -> str:
        append(line)
        tries.append(line)
        if len(tries) == 1:
            raise ConnectionError("no")
        return line

    @flow.task(effects="files", retries={"retries": 1, "backoff_s": 0})
    async def edit(ctx: Context) -> None:
        await ctx.step(append, "one")
        await ctx.step(half, "two")

    run(flow)
    assert (here / "list.txt").read_text().splitlines() == ["one", "two"]


def test_files_put_back_behind_its_steps_take_the_steps_with_them(here: Path) -> None:
    flow, failing = Workflow("w"), [True]
    flow.add("first", lambda: append("first"), effects="files")

    @flow.task(effects="files", needs=["first"])
    async def edit(ctx: Context) -> None:
        await ctx.step(append, "one")
        if failing.pop():
            raise ValueError("no")

    with pytest.raises(RunFailedError):
        run(flow, workflow_id="r")
    failing.append(False)
    resume("r", workflow=flow, files="checkpoint")
    assert (here / "list.txt").read_text().splitlines() == ["first", "one"]


def test_beside_another_file_task_steps_are_refused() -> None:
    flow = Workflow("w")

    async def edit(ctx: Context) -> None:
        await ctx.step(append, "never")

    for name in ("left", "right"):
        flow.add(name, edit, effects="files")
    done = run(flow, check=False)
    assert any("another task changes files at the same time" in error for error in done.errors.values())


def test_a_task_that_changes_files_may_sleep_and_wait(here: Path) -> None:
    flow = Workflow("w")

    @flow.task(effects="files")
    async def edit(ctx: Context) -> None:
        await ctx.step(append, "one")
        await ctx.sleep(0.01)
        await ctx.wait_for("Go on?")
        await ctx.step(append, "two")

    run(flow, workflow_id="r")
    (here / "own.txt").write_text("mine")
    Client().approve("r")
    resume("r", workflow=flow)
    assert (here / "list.txt").read_text().splitlines() == ["one", "two"]
    assert (here / "own.txt").read_text() == "mine"
