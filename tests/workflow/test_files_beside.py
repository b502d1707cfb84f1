"""File tasks that work side by side in one worktree: what is repeated after a kill, and what can be told of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import agentos
from agentos import Client, Workflow, resume, run
from agentos.ids import TaskId, WorkflowId
from agentos.machine import events as ev
from agentos.workflow.define.plans import decode_plan
from agentos.workflow.look.diffs import task_window
from agentos.workflow.place.place import find_place
from agentos.workflow.place.run_search import reading
from agentos.workflow.start.resume import preview_resume
from tests.conftest import git
from tests.forks import run_forked

# `edit` waits until the end of `beside` is on the record, and is killed in the middle of its own edit.
FLOW = """
import os, signal, time
from pathlib import Path
from agentos import Client, Workflow, run
flow = Workflow("f")
flow.add("beside", "shell", run="echo x >> .runs; until test -e .begun; do sleep 0.01; done; {does}")

@flow.task(effects="files")
def edit():
    Path(".begun").touch()
    while not any(event.type == "task_complete" for event in Client(".").events("r")):
        time.sleep(0.01)
    with open("shared.txt", "a") as file:
        file.write("half" + chr(10))
    if not Path(".go").exists():
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    run(flow, workflow_id="r")
"""


@pytest.fixture
def repo(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_git_repo / "shared.txt").write_text("mine\n")
    (tmp_git_repo / ".gitignore").write_text(".go\n.begun\n.runs\n__pycache__/\n")
    git("add", ".", cwd=tmp_git_repo)
    git("commit", "--quiet", "--message", "files", cwd=tmp_git_repo)
    monkeypatch.chdir(tmp_git_repo)
    return tmp_git_repo


def cut_off(repo: Path, does: str) -> None:
    (repo / "flow.py").write_text(FLOW.replace("{does}", does))
    env = {**os.environ, "PYTHONPATH": str(Path(agentos.__file__).parents[1])}
    done = run_forked("flow.py", cwd=repo, env=env)
    assert done.returncode == -signal.SIGKILL, done
    (repo / ".go").touch()


def test_a_task_that_changed_nothing_counts_as_none_whatever_the_other_did(repo: Path) -> None:
    cut_off(repo, "true")
    plan = preview_resume(find_place(), "r").plan
    verdicts = {str(row.task_id): row.verdict for row in plan.verdicts}
    assert verdicts == {"beside": "reuse", "edit": "rerun"}
    assert plan.undone == ()
    assert resume("r").status == "complete"
    assert (repo / ".runs").read_text() == "x\n"
    assert (repo / "shared.txt").read_text() == "mine\nhalf\n"


@pytest.mark.parametrize(
    "does", ["echo new > new.txt", "chmod 600 shared.txt; mkdir made", "git commit -qm x --allow-empty"]
)
def test_one_that_changed_something_is_repeated_with_the_one_that_was_cut_off(repo: Path, does: str) -> None:
    cut_off(repo, does)
    plan = preview_resume(find_place(), "r").plan
    assert plan.undone == ("beside",)
    [beside] = [row for row in plan.verdicts if row.task_id == "beside"]
    assert (beside.verdict, beside.reason) == ("rerun", "what it did to files is undone")


def test_what_a_task_did_is_told_apart_where_it_changed_nothing(repo: Path) -> None:
    cut_off(repo, "true")
    events = Client(repo).events("r")
    [kept] = [event for event in events if isinstance(event, ev.FilesCaptured) and event.beside]
    assert (kept.task_id, kept.beside) == ("beside", ("edit",))
    with reading(find_place()) as store:
        plan = decode_plan(store.read_plan(WorkflowId("r")))
    beside, edit = (task_window(events, plan, TaskId(name)) for name in ("beside", "edit"))
    assert beside is not None
    assert beside.after is not None
    assert beside.after.tree == beside.before.tree
    assert edit is not None
    assert edit.tasks == ("edit",)


def together(*does: str) -> Workflow:
    """Tasks that are at work at the same time: each waits until all have begun."""
    flow = Workflow("together")
    for number, one in enumerate(does):
        wait = f"touch .begun{number}; until test $(ls -d .begun* | wc -l) = {len(does)}; do sleep 0.01; done"
        flow.add(f"t{number}", "shell", run=f"{wait}; {one}")
    return flow


def warnings(repo: Path) -> list[ev.TaskWarning]:
    return [event for event in Client(repo).events("x") if isinstance(event, ev.TaskWarning)]


def test_files_that_changed_while_several_tasks_were_at_work_are_named(repo: Path) -> None:
    (repo / ".gitignore").write_text(".begun*\n")
    flow = together("echo a >> shared.txt", "echo b > other.txt", "true")
    assert run(flow, workflow_id="x").status == "complete"
    [told] = [row for row in warnings(repo) if "were at work at the same time" in row.message]
    assert "cannot be told: other.txt, shared.txt" in told.message
    assert told.message.startswith(("t0, t1", "t1, t0", "t0, t2", "t2, t0", "t1, t2", "t2, t1"))


def test_tasks_side_by_side_that_changed_nothing_are_not_worth_a_word(repo: Path) -> None:
    (repo / ".gitignore").write_text(".begun*\n")
    assert run(together("true", "true"), workflow_id="x").status == "complete"
    assert not [row for row in warnings(repo) if "at the same time" in row.message and row.task_id]
