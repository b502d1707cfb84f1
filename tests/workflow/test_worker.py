"""Workers: they adopt what nobody drives, one worker for each run, and leave in order when they are drained."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agentos.client import Client, resolve_drive_options
from agentos.crashpoints import VARIABLE
from agentos.exceptions import AgentosError, ForeignDatabaseError
from agentos.machine.events import LeaseTaken, WorkflowStart
from agentos.workflow.place.place import Place, find_place
from agentos.workflow.start import worker as working
from agentos.workflow.start.resume import resume_run
from tests.conftest import git
from tests.crash import checks
from tests.marks import quick_first
from tests.postgres.server import fresh_url

FLOW = """
name: slow
tasks:
  first: {run: "echo first >> ../trace", effects: none}
  wait: {needs: first, run: "echo wait >> ../trace; until [ -e ../go ]; do sleep 0.02; done", effects: none}
  last: {needs: wait, run: "echo last >> ../trace", effects: none}
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(params=quick_first(["sqlite", "postgres"]))
def repo(request: pytest.FixtureRequest, tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "postgres":
        monkeypatch.setenv("AGENTOS_WORKFLOW_DB", fresh_url())
    (tmp_git_repo / "slow.yaml").write_text(FLOW)
    git("add", "-A", cwd=tmp_git_repo)
    git("commit", "--quiet", "-m", "flow", cwd=tmp_git_repo)
    return tmp_git_repo


@pytest.fixture
def start(repo: Path) -> Iterator[Start]:
    """Starts the program; what is left of it at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def program(*argv: str, env: Mapping[str, str] = {}) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), **env}
        command = [sys.executable, "-m", "agentos", *argv]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(command, cwd=repo, env=env, **pipes)
        started.append(process)
        return process

    yield program
    for process in started:
        process.kill()
        process.communicate()


def wait_for(look: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def trace(repo: Path) -> Counter[str]:
    file = repo.parent / "trace"
    return Counter(file.read_text().split()) if file.exists() else Counter()


def interrupted(repo: Path, start: Start, count: int = 1) -> None:
    """Runs whose driver was killed in the middle of `wait`."""
    before = trace(repo)["wait"]
    drivers = [start("run", "slow.yaml", "--id", f"r{number}") for number in range(count)]
    wait_for(lambda: trace(repo)["wait"] == before + count, "the tasks to begin")
    for driver in drivers:
        driver.kill()
        driver.wait()


def statuses(repo: Path) -> dict[str, str]:
    return {record.workflow_id: record.status for record in Client(repo).list_runs()}


def post_of(repo: Path) -> working.WorkerTarget:
    place, options = resolve_drive_options(repo)
    return working.WorkerTarget(place=place, options=options)


def test_workers_adopt_what_nobody_drives_each_run_once(repo: Path, start: Start) -> None:
    interrupted(repo, start, count=3)
    assert set(statuses(repo).values()) == {"interrupted"}
    workers = [start("worker", "--poll", "0.1") for _ in range(2)]
    wait_for(lambda: trace(repo)["wait"] == 6, "the runs to be adopted")
    assert set(statuses(repo).values()) == {"running"}
    (repo.parent / "go").touch()
    wait_for(lambda: set(statuses(repo).values()) == {"complete"}, "the runs to end")
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    assert trace(repo) == {"first": 3, "wait": 6, "last": 3}
    store = find_place(repo).open(readonly=True)
    for record in store.list_runs():
        events = store.read_events(record.workflow_id)
        assert [event.token for event in events if isinstance(event, LeaseTaken)] == [1, 2]
        assert sum(isinstance(event, WorkflowStart) for event in events) == 2
        pid = next(event for event in events if isinstance(event, LeaseTaken)).holder.split()[1]
        checks.check_journal(events, killed=[int(pid)])
    store.close()


def test_a_drained_worker_leaves_its_run_to_the_next_one(repo: Path, start: Start) -> None:
    interrupted(repo, start)
    first = start("worker", "--poll", "0.1")
    wait_for(lambda: trace(repo)["wait"] == 2, "the run to be adopted")
    first.send_signal(signal.SIGTERM)
    assert first.stdout is not None
    while not first.stdout.readline().startswith("Draining"):
        pass
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 0
    assert statuses(repo) == {"r0": "interrupted"}
    (repo.parent / "go").touch()
    once = start("worker", "--once")
    out, _ = once.communicate(timeout=60)
    assert (once.returncode, "slow (r0) is complete" in out) == (0, True), out
    assert trace(repo)["last"] == 1


def test_what_somebody_paused_or_has_to_answer_is_left_alone(repo: Path, start: Start) -> None:
    (repo / "asks.yaml").write_text('name: asks\ntasks: {ship: {run: "true", approve: "Ship?", effects: none}}\n')
    assert start("run", "asks.yaml", "--id", "asks").wait(60) == 3
    (repo.parent / "go").touch()
    out, _ = start("worker", "--once").communicate(timeout=60)
    assert out == ""
    assert statuses(repo) == {"asks": "waiting"}


@pytest.mark.full
def test_a_run_that_was_answered_is_gone_on_with_unless_it_was_paused_too(repo: Path, start: Start) -> None:
    (repo / "asks.yaml").write_text('name: asks\ntasks: {ship: {run: "true", approve: "Ship?", effects: none}}\n')
    for name in ("goes", "stays", "refused"):
        assert start("run", "asks.yaml", "--id", name).wait(60) == 3
    assert start("pause", "stays").wait(60) == 0
    for name in ("goes", "stays"):
        assert start("approve", name, "--no-resume").wait(60) == 0
    assert start("reject", "refused", "--reason", "no").wait(60) == 0
    assert statuses(repo) == {"goes": "interrupted", "stays": "paused", "refused": "failed"}
    out, _ = start("worker", "--once").communicate(timeout=60)
    assert statuses(repo) == {"goes": "complete", "stays": "paused", "refused": "failed"}, out


@pytest.mark.full
@pytest.mark.parametrize("repo", ["postgres"], indirect=True)  # a database file is that of one worktree
def test_an_answer_from_where_the_files_are_not_leaves_the_run_to_a_worker(
    repo: Path, start: Start, tmp_path: Path
) -> None:
    (repo / "asks.yaml").write_text(
        'name: asks\ntasks:\n  edit: {run: "echo done > kept", effects: files}\n'
        '  ship: {needs: edit, run: "test -e kept", approve: "Ship?", effects: files}\n'
    )
    (repo / "agentos.toml").write_text('repository = "shared"\n')
    git("add", "-A", cwd=repo)
    git("commit", "--quiet", "-m", "asks", cwd=repo)
    assert start("run", "asks.yaml", "--id", "asks").wait(60) == 3
    clone = tmp_path / "clone"
    git("clone", "--quiet", str(repo), str(clone), cwd=tmp_path)
    answering = start("approve", "asks", "--repo", str(clone))
    out, _ = answering.communicate(timeout=60)
    assert (answering.returncode, "approved" in out) == (2, True), out
    assert statuses(repo) == {"asks": "interrupted"}
    out, _ = start("worker", "--once").communicate(timeout=60)
    assert statuses(repo) == {"asks": "complete"}, out


@pytest.mark.full
def test_a_run_that_cannot_go_on_is_told_once_and_the_others_go_on(repo: Path, start: Start) -> None:
    interrupted(repo, start, count=2)
    (repo / "slow.yaml").rename(repo / "gone.yaml")
    (repo.parent / "go").touch()
    worker = start("worker", "--poll", "0.1")
    assert worker.stdout is not None
    told = ""
    while told.count("is left as it is") < 2:
        told += worker.stdout.readline()
    time.sleep(0.5)  # several more looks, of which nothing may be told
    (repo / "gone.yaml").rename(repo / "slow.yaml")
    worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=60)
    assert "is left as it is" not in out, out
    out, _ = start("worker", "--once", "--workflow", "another").communicate(timeout=60)
    assert out == ""
    out, _ = start("worker", "--once", "--workflow", "slow").communicate(timeout=60)
    assert set(statuses(repo).values()) == {"complete"}, out


def test_a_run_that_could_not_go_on_is_tried_again_when_its_workflow_is_mended(repo: Path, start: Start) -> None:
    interrupted(repo, start)
    (repo.parent / "go").touch()
    (repo / "slow.yaml").rename(repo / "gone.yaml")
    worker = start("worker", "--poll", "0.1")
    assert worker.stdout is not None
    while "is left as it is" not in worker.stdout.readline():
        pass
    (repo / "gone.yaml").rename(repo / "slow.yaml")
    wait_for(lambda: statuses(repo) == {"r0": "complete"}, "the run to be tried again")


FILES = """
name: files
tasks:
  first: {run: "true", effects: none}
  edit: {needs: first, run: "echo edit >> ../trace; until [ -e ../go ]; do sleep 0.02; done", effects: files}
"""


@pytest.mark.full
def test_runs_that_wait_for_a_busy_worktree_say_so_once_and_keep_no_processor_busy(repo: Path, start: Start) -> None:
    (repo / "files.yaml").write_text(FILES)
    for number in range(4):
        env = {VARIABLE: "attempt.before:2"}
        assert start("run", "files.yaml", "--id", f"w{number}", env=env).wait(60) == -signal.SIGKILL
    holding = start("run", "files.yaml", "--id", "holding")
    wait_for(lambda: trace(repo)["edit"] == 1, "a run to hold the worktree")
    tries: list[str] = []
    reports: list[working.Report] = []

    async def look_on() -> None:
        worker = working.Worker([post_of(repo)], tell=reports.append, poll_s=0.05)
        working_on = asyncio.ensure_future(worker.work())
        while len(tries) < 8:  # each of them twice: the pauses grow from one second
            await asyncio.sleep(0.05)
        assert len(tries) <= 9
        (repo.parent / "go").touch()
        assert await asyncio.to_thread(holding.wait, 60) == 0
        while {one for one, status in statuses(repo).items() if status != "complete"}:
            await asyncio.sleep(0.1)
        worker.drain()
        assert await working_on == []

    def counted(place: Place, run: str, **more: Any) -> Any:
        tries.append(run)
        return resume_run(place, run, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(working, "resume_run", counted)
        asyncio.run(look_on())
    delayed = [report for report in reports if report.what == "delayed"]
    about_holding = [one.workflow_id for one in delayed if f"process {holding.pid} " in one.text]
    assert sorted(about_holding) == ["w0", "w1", "w2", "w3"]
    assert Counter(report.workflow_id for report in reports if report.what == "ended") == Counter(about_holding)


@pytest.mark.full
def test_once_goes_on_with_runs_that_wait_for_one_another_and_leaves_those_that_wait_for_others(
    repo: Path, start: Start
) -> None:
    (repo / "files.yaml").write_text(FILES)
    for number in range(2):
        env = {VARIABLE: "attempt.before:2"}
        assert start("run", "files.yaml", "--id", f"w{number}", env=env).wait(60) == -signal.SIGKILL
    holding = start("run", "files.yaml", "--id", "holding")
    wait_for(lambda: trace(repo)["edit"] == 1, "a run to hold the worktree")
    once = start("worker", "--once", "--poll", "0.1")
    out, _ = once.communicate(timeout=60)
    assert (once.returncode, out.count("has to wait")) == (0, 2), out
    (repo.parent / "go").touch()
    assert holding.wait(60) == 0
    once = start("worker", "--once", "--poll", "0.1")
    out, _ = once.communicate(timeout=60)
    assert (once.returncode, set(statuses(repo).values())) == (0, {"complete"}), out


def test_a_database_that_cannot_be_read_holds_up_no_other(
    repo: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(repo, start)
    good = post_of(repo)
    other = tmp_path / "other"
    git("init", "--quiet", str(other), cwd=tmp_path)
    monkeypatch.delenv("AGENTOS_WORKFLOW_DB", raising=False)
    place, options = resolve_drive_options(other)
    Path(place.database).write_text("no database, but a long enough text about something else\n" * 20)
    bad = working.WorkerTarget(place=place, options=options)
    reports: list[working.Report] = []
    worker = working.Worker([bad, good], tell=reports.append, poll_s=0.05)

    def complete() -> bool:
        return [one.what for one in reports if one.workflow_id == "r0"] == ["adopted", "ended"]

    async def work() -> list[AgentosError]:
        working_on = asyncio.ensure_future(worker.work(once=True))
        while not any(one.what == "adopted" for one in reports):
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.2)  # it is looked at again, with the same result
        (repo.parent / "go").touch()
        return await working_on

    trouble = asyncio.run(work())
    assert complete()
    assert [(one.root, one.text) for one in reports if one.what == "unreadable"] == [(str(other), str(trouble[0]))]
    with pytest.raises(ForeignDatabaseError):
        asyncio.run(working.Worker([bad], tell=reports.append).work())


def test_a_worker_takes_runs_with_one_of_its_labels_alone(repo: Path, start: Start) -> None:
    (repo.parent / "go").touch()
    labels = {"night": ["nightly", "gpu"], "day": ["daily"], "none": []}
    for name, words in labels.items():
        flags = [flag for word in words for flag in ("--label", word)]
        env = {VARIABLE: "attempt.before:2"}
        assert start("run", "slow.yaml", "--id", name, *flags, env=env).wait(60) == -signal.SIGKILL
    out, _ = start("worker", "--once", "--label", "gpu", "--label", "huge").communicate(timeout=60)
    assert statuses(repo) == {"night": "complete", "day": "interrupted", "none": "interrupted"}, out
    out, _ = start("worker", "--once").communicate(timeout=60)
    assert set(statuses(repo).values()) == {"complete"}, out


def test_a_fault_of_ours_in_one_run_is_told_once_and_holds_up_no_other(
    repo: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = [start("run", "slow.yaml", "--id", name) for name in ("odd", "even")]
    wait_for(lambda: trace(repo)["wait"] == 2, "both work")
    for killed in begun:
        killed.kill()
        killed.wait()
    (repo.parent / "go").touch()

    def stumbling(place: Place, run: str, **more: Any) -> Any:
        if run == "odd":
            raise LookupError("nobody has thought of this")
        return resume_run(place, run, **more)

    monkeypatch.setattr(working, "resume_run", stumbling)
    reports: list[working.Report] = []
    asyncio.run(working.Worker([post_of(repo)], tell=reports.append, poll_s=0.1).work(once=True))
    told = {(report.workflow_id, report.what): report.text for report in reports}
    assert told.pop(("odd", "left")) == "LookupError: nobody has thought of this"
    assert set(told) == {("even", "adopted"), ("even", "ended")}
    assert [report.what for report in reports].count("left") == 1
