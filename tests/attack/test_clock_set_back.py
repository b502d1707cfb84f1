"""A clock that was ahead, or is set back, makes nobody wait longer than a retry was to wait."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentos import Workflow
from agentos.ids import TaskId
from agentos.workflow.drive.drive import Drive
from tests.cli.conftest import SOURCES, Agentos, agentos
from tests.marks import quick_first
from tests.postgres.server import fresh_url
from tests.workflow.support import a_place, drive

__all__ = ["agentos"]

pytestmark = pytest.mark.attack

FLOW = """
from agentos import Workflow
from agentos.ids import TaskId

flow = Workflow("flaky")

@flow.task(retries={"retries": 1, "backoff_s": 5, "jitter": 0})
def flaky(ctx):
    if ctx.attempt == 1:
        raise RuntimeError("not today")
    return ctx.attempt
"""

A_DAY_AHEAD = """
import sys
from datetime import UTC, datetime, timedelta

from agentos.cli.main import main
from agentos.workflow.drive.drive import Drive

Drive.__init__.__kwdefaults__["now"] = lambda: datetime.now(UTC) + timedelta(days=1)
sys.exit(main())
"""


def run_until_it_waits(repo: Path) -> None:
    """A driver whose clock is a day ahead, killed while it waits for the second attempt."""
    (repo / "flaky.py").write_text(FLOW)
    driver = subprocess.Popen(
        [sys.executable, "-c", A_DAY_AHEAD, "run", "flaky.py", "--id", "r", "--json"],
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert driver.stdout is not None
    with driver.stdout:
        next(line for line in driver.stdout if json.loads(line)["type"] == "task_retry")
        driver.send_signal(signal.SIGKILL)
    driver.wait()


@pytest.mark.parametrize("store", quick_first(["sqlite", "postgres"]))
def test_a_resume_waits_no_longer_than_the_delay_and_says_so(
    agentos: Agentos, tmp_git_repo: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store == "postgres":
        monkeypatch.setenv("AGENTOS_WORKFLOW_DB", fresh_url())
    run_until_it_waits(tmp_git_repo)

    (task,) = json.loads(agentos("show", "r", "--json", cwd=tmp_git_repo).out)["tasks"]
    assert datetime.fromisoformat(task["not_before"]) < datetime.now(UTC) + timedelta(minutes=1)
    assert "next attempt in" in agentos("show", "r", cwd=tmp_git_repo).out
    why = agentos("why", "r", "flaky", cwd=tmp_git_repo).out
    assert "not today" in why
    assert "at most 5 s after the run is resumed" in why

    resumed = agentos("resume", "r", cwd=tmp_git_repo)  # which gives up after a minute
    assert resumed.code == 0, resumed.err
    assert "flaky: its last attempt failed (RuntimeError: not today); the next one begins in 5 s" in resumed.out


def test_a_clock_set_back_while_a_drive_waits(tmp_path: Path) -> None:
    tries: list[int] = []

    def flaky() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("not today")

    def set_back(driven: Drive) -> None:
        def now() -> datetime:
            waits = driven.facts.task(TaskId("flaky")).status == "retrying"
            return datetime.now(UTC) - timedelta(days=waits)

        driven._mail.now = now

    flow = Workflow("flaky")
    flow.add("flaky", flaky, retries={"retries": 1, "backoff_s": 1, "jitter": 0})
    assert drive(a_place(tmp_path), flow, started=set_back).status == "complete"
