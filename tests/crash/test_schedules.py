"""Real workers that are killed where they fire a slot, take its run, or drive it: each slot has its run, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentos.client import Client, add_schedule, list_schedules
from agentos.crashpoints import QUEUE_POINTS, SCHEDULE_POINTS, VARIABLE
from agentos.machine.slots import slot_id
from tests.conftest import git
from tests.marks import quick_first
from tests.postgres.server import fresh_url

pytestmark = pytest.mark.timeout(300)  # a busy machine is no failure

FLOW = """
name: hourly
cron: {every: 1h, catch_up: all}
tasks: {a: {run: "echo $AGENTOS_WORKFLOW_ID >> ../trace", effects: none}}
"""
SLOTS = 3
TAKING = [f"{point}:{times}" for point in QUEUE_POINTS if point.startswith("take.") for times in (1, 2)]
DRIVING = ["commit.before:2", "commit.inside:2", "attempt.before:2", "release.before:2"]


@pytest.fixture(params=quick_first(["sqlite", "postgres"]))
def repo(request: pytest.FixtureRequest, tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "postgres":
        monkeypatch.setenv("AGENTOS_WORKFLOW_DB", fresh_url())
    (tmp_git_repo / "hourly.yaml").write_text(FLOW)
    git("add", "-A", cwd=tmp_git_repo)
    git("commit", "--quiet", "-m", "flow", cwd=tmp_git_repo)
    add_schedule("hourly.yaml", since=last_hour() - SLOTS * timedelta(hours=1), repo=tmp_git_repo)
    return tmp_git_repo


def last_hour() -> datetime:
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


def worker(root: Path, at: str = "") -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    if at:
        env[VARIABLE] = at
    argv = [sys.executable, "-m", "agentos", "worker", "--once", "--poll", "0.1"]
    return subprocess.Popen(argv, cwd=root, env=env, stdout=subprocess.DEVNULL)


def every_slot(repo: Path) -> list[str]:
    """Those of the schedule so far: an hour may have ended meanwhile."""
    [view] = list_schedules(repo)
    assert view.last_slot is not None
    begin = view.last_slot - (SLOTS - 1) * timedelta(hours=1)
    return [slot_id("hourly", begin + number * timedelta(hours=1)) for number in range(SLOTS)]


def trace(repo: Path) -> Counter[str]:
    return Counter((repo.parent / "trace").read_text().split())


def statuses(repo: Path) -> dict[str, str]:
    return {record.workflow_id: record.status for record in Client(repo).list_runs()}


FIRING = [f"{point}:{times}" for point in SCHEDULE_POINTS for times in range(1, SLOTS + 1)]


@pytest.mark.parametrize("at", quick_first([*FIRING[3:4], *FIRING[:3], *FIRING[4:], *TAKING, *DRIVING]))
def test_a_worker_that_is_killed_leaves_each_slot_fired_once(repo: Path, at: str) -> None:
    assert worker(repo, at).wait(120) == -signal.SIGKILL
    assert worker(repo).wait(120) == 0
    slots = every_slot(repo)
    assert statuses(repo) == dict.fromkeys(slots, "complete")
    if at in FIRING + TAKING and at.endswith(":1"):  # later it may be driving one of them already
        assert trace(repo) == dict.fromkeys(slots, 1)
    else:
        assert set(trace(repo)) == set(slots)


def test_workers_of_linked_worktrees_fire_each_slot_once_between_them(repo: Path) -> None:
    linked = repo.parent / "linked"
    git("worktree", "add", "--quiet", str(linked), cwd=repo)
    workers = [worker(root, at) for root, at in ((repo, ""), (repo, "schedule.after:2"), (linked, ""), (linked, ""))]
    assert {process.wait(120) for process in workers} <= {0, -signal.SIGKILL}
    assert worker(repo).wait(120) == 0
    slots = every_slot(repo)
    assert statuses(repo) == dict.fromkeys(slots, "complete")
    assert trace(repo) == dict.fromkeys(slots, 1)
    assert statuses(linked) == {}
