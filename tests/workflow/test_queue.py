"""Submitted runs and the workers that take them: in order, in turn, and on the files they were submitted with."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentos import client
from agentos.cli.main import program
from agentos.client import Client, resolve_drive_options
from agentos.exceptions import QueueFullError, RunRefusedError
from agentos.machine import events as ev
from agentos.machine.commands import Abort, Pause
from agentos.store.port import RunRecord
from agentos.workflow.place.origin import head_commit
from agentos.workflow.start import own_worktree
from agentos.workflow.start.worker import Report, Worker, WorkerTarget
from agentos.worktree.snapshots.store import lock_file, open_worktree
from tests.conftest import git
from tests.marks import quick_first
from tests.postgres.server import fresh_url

FLOW = 'name: say\nparams: {word: hello}\ntasks: {say: {run: "echo ${{ params.word }} >> ../trace", effects: none}}\n'
EDIT = 'name: edit\ntasks: {edit: {run: "cat input >> ../trace; echo done > output"}}\n'
ONE = 'name: one\nqueue: {key: "${{ params.of }}", limit: 1}\nparams: {of: x}\ntasks:\n'
ONE += '  a: {run: "echo begin >> ../trace; until [ -e ../go ]; do sleep 0.02; done; echo end >> ../trace", '
ONE += "effects: none}\n"


@pytest.fixture(params=quick_first(["sqlite", "postgres"]))
def repo(request: pytest.FixtureRequest, tmp_git_repo: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "postgres":
        monkeypatch.setenv("AGENTOS_WORKFLOW_DB", fresh_url())
    for name, text in {"say": FLOW, "edit": EDIT, "one": ONE}.items():
        (tmp_git_repo / f"{name}.yaml").write_text(text)
    (tmp_git_repo / "input").write_text("first\n")
    commit(tmp_git_repo)
    monkeypatch.chdir(tmp_git_repo)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    return tmp_git_repo


def commit(repo: Path, message: str = "all") -> str:
    git("add", "-A", cwd=repo)
    git("commit", "--quiet", "--allow-empty", "-m", message, cwd=repo)
    return git("rev-parse", "HEAD", cwd=repo).strip()


def work(repo: Path, **how: Any) -> list[Report]:
    """What a worker tells that ends when nothing is left."""
    reports: list[Report] = []
    place, options = resolve_drive_options(repo)
    worker = Worker([WorkerTarget(place=place, options=options)], tell=reports.append, poll_s=0.05, **how)
    asyncio.run(worker.work(once=True))
    return reports


def trace(repo: Path) -> list[str]:
    file = repo.parent / "trace"
    return file.read_text().split() if file.exists() else []


def record(run: str) -> RunRecord:
    return client.find_run(run).record


def wait_for(look: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def start(repo: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def program(*argv: str) -> subprocess.Popen[str]:
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen([sys.executable, "-m", "agentos", *argv], cwd=repo, **pipes)
        started.append(process)
        return process

    yield program
    for process in started:
        process.kill()
        process.communicate()


# --- order ------------------------------------------------------------------------------------------------------------


def test_a_worker_drives_what_was_submitted_by_priority_then_age(repo: Path) -> None:
    for word, priority in (("b", 0), ("c", 0), ("a", 5)):
        client.submit("say.yaml", {"word": word}, word, priority=priority)
    told = work(repo, limit=1)
    assert trace(repo) == ["a", "b", "c"]
    assert [(one.workflow_id, one.what) for one in told] == [
        (word, what) for word in "abc" for what in ("taken", "ended")
    ]
    assert {one.status for one in told if one.what == "ended"} == {"complete"}
    events = Client(repo).events("a")
    assert [event.token for event in events if isinstance(event, ev.LeaseTaken)] == [1]


def test_a_queue_is_for_workers_that_name_it_and_a_delay_for_none(repo: Path) -> None:
    client.submit("say.yaml", {"word": "gpu"}, queue="gpu")
    client.submit("say.yaml", {"word": "later"}, delay_s=3600)
    client.submit("say.yaml", {"word": "open"})
    assert len(work(repo)) == 2
    assert trace(repo) == ["open"]
    work(repo, queues=("tpu", "gpu"))
    assert trace(repo) == ["open", "gpu"]
    with pytest.raises(RunRefusedError, match="is no queue"):
        work(repo, queues=("two words",))


def test_nothing_else_goes_on_with_a_submitted_run_unless_it_is_named(repo: Path, start: Any) -> None:
    client.submit("say.yaml", None, "mine")
    with pytest.raises(RunRefusedError, match="no unfinished run"):
        client.resume()
    out, _ = start("resume", "--all").communicate(timeout=60)
    assert "No run was interrupted" in out
    assert record("mine").status == "pending"
    assert client.resume("mine").status == "complete"
    [begin] = [one for one in Client(repo).events("mine") if isinstance(one, ev.TaskWarning)]
    assert begin.message == "the run was submitted for a worker, and is driven here instead"


def test_a_submitted_run_can_be_paused_aborted_and_deleted(repo: Path) -> None:
    for name in ("paused", "aborted", "deleted"):
        client.submit("say.yaml", None, name)
    client.deliver("paused", Pause())
    client.deliver("aborted", Abort())
    Client(repo).delete("deleted")
    assert {one.workflow_id: one.status for one in Client(repo).list_runs()} == {
        "paused": "paused",
        "aborted": "aborted",
    }
    assert work(repo) == []


# --- limits -----------------------------------------------------------------------------------------------------------


def test_runs_over_a_limit_wait_for_their_turn(repo: Path) -> None:
    for number in range(3):
        client.submit("one.yaml", None, f"one-{number}")
    client.submit("one.yaml", {"of": "y"}, "other")
    (repo.parent / "go").touch()
    told = work(repo, limit=4)
    assert {one.workflow_id: one.status for one in told if one.what == "ended"} == {
        "one-0": "complete",
        "one-1": "complete",
        "one-2": "complete",
        "other": "complete",
    }
    at_once = 0
    for one in told:
        if one.workflow_id != "other":
            at_once += {"taken": 1, "ended": -1}[one.what]
            assert at_once <= 1


def test_run_waits_for_its_turn_and_says_for_whom(repo: Path, start: Any) -> None:
    first = start("run", "one.yaml", "--id", "first")
    wait_for(lambda: trace(repo) == ["begin"])
    second = start("run", "one.yaml", "--id", "second")
    assert second.stdout is not None
    assert f"Waiting: 'x' allows 1 run at a time: first (process {first.pid} on" in second.stdout.readline()
    assert [one.workflow_id for one in Client(repo).list_runs()] == ["first"]
    (repo.parent / "go").touch()
    assert (first.wait(60), second.wait(60)) == (0, 0)
    assert trace(repo) == ["begin", "end", "begin", "end"]


def test_a_workflow_may_have_one_more_refused(repo: Path, start: Any) -> None:
    (repo / "one.yaml").write_text(ONE.replace("limit: 1", "limit: 1, on_full: refuse"))
    first = start("run", "one.yaml", "--id", "first")
    wait_for(lambda: trace(repo) == ["begin"])
    second = start("run", "one.yaml")
    out, _ = second.communicate(timeout=60)
    assert (second.returncode, "'x' allows 1 run at a time: first" in out) == (75, True), out
    with pytest.raises(QueueFullError):
        client.submit("one.yaml")
    (repo.parent / "go").touch()
    assert first.wait(60) == 0


# --- the files it was submitted with ----------------------------------------------------------------------------------


def test_a_run_works_in_its_worktree_while_that_has_the_files_it_was_submitted_with(repo: Path) -> None:
    (repo / "input").write_text("edited\n")
    client.submit("edit.yaml", None, "mine")
    told = work(repo)
    assert [one.what for one in told] == ["taken", "ended"]
    assert (trace(repo), (repo / "output").read_text()) == (["edited"], "done\n")
    assert client.view("mine").own_worktree == ""


def test_a_run_whose_files_were_edited_since_works_in_a_worktree_of_its_own(repo: Path) -> None:
    (repo / "input").write_text("submitted\n")
    client.submit("edit.yaml", None, "mine")
    (repo / "input").write_text("mine, do not touch\n")
    told = work(repo)
    own = repo / ".agentos/runs/mine"
    assert [(one.what, one.status, one.text) for one in told] == [("taken", "", f"in {own}"), ("ended", "complete", "")]
    assert client.view("mine").own_worktree == str(own)
    assert f"works in {own}" in CliRunner().invoke(program, ["show", "mine"]).output
    assert trace(own) == ["submitted"]
    assert (repo / "input").read_text() == "mine, do not touch\n"
    assert not (repo / "output").exists()
    assert (own / "output").read_text() == "done\n"
    assert client.view("mine").status == "complete"
    assert record("mine").root == str(repo)
    assert "submitted" in git("-C", str(own), "diff", cwd=repo)


def test_a_run_that_changes_no_files_works_on_the_commit_it_was_submitted_from(repo: Path) -> None:
    (repo / "read.yaml").write_text('tasks: {read: {run: "cat input >> ../../../../trace", effects: none}}')
    commit(repo)
    client.submit("read.yaml", None, "mine")
    (repo / "input").write_text("second\n")
    commit(repo)
    told = work(repo)
    assert [(one.what, one.status) for one in told] == [("taken", ""), ("ended", "complete")]
    assert trace(repo) == ["first"]
    assert not (repo / ".agentos/runs/mine").exists()
    assert "runs/mine" not in git("worktree", "list", cwd=repo)


@pytest.mark.full
def test_workers_do_not_take_the_worktree_of_a_run_from_each_other(repo: Path, start: Any) -> None:
    trace, runs = repo.parent / "trace", [f"mine-{number}" for number in range(6)]
    (repo / "read.yaml").write_text(f'tasks: {{read: {{run: "cat input >> {trace}", effects: none}}}}')
    commit(repo)
    for run in runs:
        client.submit("read.yaml", None, run)
    (repo / "input").write_text("second\n")
    commit(repo)
    for _ in range(3):
        start("worker", "--poll", "0.1")
    wait_for(lambda: all(record(run).status == "complete" for run in runs))
    assert trace.read_text().split() == ["first"] * len(runs)
    wait_for(lambda: not [*(repo / ".agentos/runs").iterdir()])


def test_a_worktree_whose_worker_was_killed_goes_with_the_next_worker(
    repo: Path, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = repo.parent / "trace"
    held = f"echo begin >> {trace}; until [ -e {repo.parent}/go ]; do sleep 0.02; done"
    (repo / "held.yaml").write_text(f'tasks: {{held: {{run: "{held}", effects: none}}}}')
    commit(repo)
    client.submit("held.yaml", None, "mine")
    commit(repo, "newer")
    worker = start("worker")
    wait_for(trace.exists)
    worker.kill()  # the driver of the run goes on
    monkeypatch.setattr(own_worktree, "STALE", timedelta())
    work(repo)
    assert (repo / ".agentos/runs/mine").exists(), "it is driven"
    (repo.parent / "go").touch()
    wait_for(lambda: record("mine").status == "complete" and record("mine").holder is None)
    work(repo)
    assert not (repo / ".agentos/runs/mine").exists()
    assert "runs/mine" not in git("worktree", "list", cwd=repo)


def test_a_worker_begins_though_another_one_is_stopped_amid_the_worktrees(repo: Path) -> None:
    (repo / "read.yaml").write_text("tasks: {read: {run: cat input, effects: none}}")
    commit(repo)
    (repo / ".agentos/runs/gone").mkdir(parents=True)
    client.submit("read.yaml", None, "mine")
    with lock_file(open_worktree(repo).store.parent / "worktrees.lock"):
        work(repo)
    assert record("mine").status == "complete"


def test_python_of_the_commit_is_what_runs(repo: Path) -> None:
    """Also where the worker has imported the same modules of another tree before."""
    flow = 'from helper import WORD\nfrom agentos import Workflow\nflow = Workflow("py")\n@flow.task\ndef say():\n'
    flow += "    return WORD\n"
    (repo / "of_commit.py").write_text(flow)
    (repo / "helper.py").write_text("WORD = 'old'\n")
    commit(repo)
    client.submit("of_commit.py", None, "old")
    (repo / "helper.py").write_text("WORD = 'newer'\n")  # another size: a .pyc is told by that and the second
    commit(repo)
    sys.modules.pop("helper", None)
    sys.modules.pop("of_commit", None)
    client.submit("of_commit.py", None, "new")
    try:
        assert [one.status for one in work(repo) if one.what == "ended"] == ["complete", "complete"]
    finally:
        sys.modules.pop("helper", None)
        sys.modules.pop("of_commit", None)
    assert [client.view(run).tasks[0].output for run in ("old", "new")] == ["old", "newer"]


def test_a_workflow_that_was_edited_since_is_left_with_what_to_do(repo: Path) -> None:
    client.submit("say.yaml", None, "mine")
    (repo / "say.yaml").write_text(FLOW.replace("echo", "printf"))
    [left] = work(repo)
    assert (left.what, record("mine").status) == ("left", "pending")
    assert "is not the one that was submitted" in left.text
    assert "agentos resume mine" in left.text
    (repo / "say.yaml").write_text(FLOW)
    assert [one.what for one in work(repo)] == ["taken", "ended"]


@pytest.mark.parametrize("repo", ["postgres"], indirect=True)
def test_a_clone_takes_what_it_has_and_leaves_the_rest(repo: Path, tmp_path: Path, home: Path) -> None:
    (repo / "agentos.toml").write_text('repository = "shared"\n')
    commit(repo)
    clone = tmp_path / "deep" / "clone"
    git("clone", "--quiet", str(repo), str(clone), cwd=tmp_path)
    client.submit("edit.yaml", None, "clean")
    (repo / "input").write_text("not committed\n")
    client.submit("edit.yaml", None, "dirty")
    git("checkout", "--quiet", "input", cwd=repo)
    (repo / "input").write_text("third\n")
    commit(repo)
    client.submit("say.yaml", None, "unknown")
    os.rename(repo, repo.with_name("away"))  # as on another host
    told = {(one.workflow_id, one.what): one.text for one in work(clone)}
    assert ("clean", "ended") in told
    assert "changes that were not committed" in told["dirty", "left"]
    assert "does not have" in told["unknown", "left"]
    assert (clone / "output").read_text() == "done\n"
    assert trace(clone) == ["first"]
    git("remote", "set-url", "origin", str(repo.with_name("away")), cwd=clone)
    git("fetch", "--quiet", cwd=clone)
    assert [(one.workflow_id, one.status) for one in work(clone) if one.what == "ended"] == [("unknown", "complete")]


def test_a_run_whose_commit_is_gone_says_so_though_its_files_are_kept(repo: Path) -> None:
    (repo / "input").write_text("second\n")
    gone = commit(repo)
    client.submit("edit.yaml", None, "mine")
    git("reset", "--quiet", "--hard", "HEAD~1", cwd=repo)
    git("reflog", "expire", "--expire=now", "--all", cwd=repo)
    git("gc", "--quiet", "--prune=now", cwd=repo)
    [left] = work(repo)
    assert (left.what, record("mine").status) == ("left", "pending")
    assert f"was submitted from commit {gone[:12]}" in left.text


def test_the_commit_of_head_is_read_as_git_tells_it(repo: Path, tmp_path: Path) -> None:
    told = git("rev-parse", "HEAD", cwd=repo).strip()
    assert head_commit(repo) == told
    git("worktree", "add", "--quiet", "-b", "side", str(tmp_path / "side"), cwd=repo)
    (tmp_path / "side" / "more").touch()
    side = commit(tmp_path / "side")
    assert (head_commit(tmp_path / "side"), head_commit(repo)) == (side, told)
    git("pack-refs", "--all", cwd=repo)
    assert (head_commit(tmp_path / "side"), head_commit(repo)) == (side, told)
    git("checkout", "--quiet", "--detach", side, cwd=repo)
    assert head_commit(repo) == side
    git("init", "--quiet", str(tmp_path / "new"), cwd=tmp_path)
    assert (head_commit(tmp_path / "new"), head_commit(tmp_path)) == ("", "")
