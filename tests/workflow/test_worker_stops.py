"""SIGTERM at the edges: while a run is being taken, in the middle of an edit, twice, and before anything began."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.client import Client
from agentos.crashpoints import VARIABLE
from tests.conftest import git
from tests.marks import quick_first
from tests.workflow.support import environment
from tests.workflow.test_worker import FLOW, wait_for

EDITS = """
name: edits
tasks:
  edit:
    run: "echo half >> made.txt; touch ../editing; until [ -e ../go ]; do sleep 0.02; done; echo whole >> made.txt"
  after: {needs: edit, run: "cat made.txt > ../seen", effects: none}
"""
SIGNALLED = """
import os, signal
from agentos import crashpoints
from agentos.cli.main import main

crashpoints.strike = lambda: os.kill(os.getpid(), signal.SIGTERM)
main()
"""
"""The program, in which an armed point asks for a stop in order."""


class Program:
    """What was started, and what it printed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.started: list[subprocess.Popen[str]] = []

    def __call__(self, *argv: str, code: str = "", **env: str) -> subprocess.Popen[str]:
        command = [sys.executable, *(["-c", code] if code else ["-m", "agentos"]), *argv]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.started.append(subprocess.Popen(command, cwd=self._root, env={**environment(), **env}, **pipes))
        return self.started[-1]


@pytest.fixture
def start(tmp_git_repo: Path) -> Iterator[Program]:
    (tmp_git_repo / "slow.yaml").write_text(FLOW)
    (tmp_git_repo / "edits.yaml").write_text(EDITS)
    git("add", "-A", cwd=tmp_git_repo)
    git("commit", "--quiet", "-m", "flows", cwd=tmp_git_repo)
    program = Program(tmp_git_repo)
    yield program
    for one in program.started:
        if one.poll() is None:
            one.kill()
        one.communicate()


def status(root: Path) -> str:
    [record] = Client(root).list_runs()
    return record.status


TAKING = ["take.after", "take.before", "resume.planned", "commit.before", "resume.started", "attempt.before"]


@pytest.mark.parametrize("point", quick_first([*TAKING, "attempt.after"]))
def test_a_run_that_is_being_taken_is_left_for_the_next_worker(tmp_git_repo: Path, start: Program, point: str) -> None:
    killed = start("run", "slow.yaml", "--id", "r1", **{VARIABLE: "attempt.before:2"})
    assert killed.wait(60) == -signal.SIGKILL
    (tmp_git_repo.parent / "go").touch()
    worker = start("worker", "--poll", "0.1", code=SIGNALLED, **{VARIABLE: point})
    out, _ = worker.communicate(timeout=90)
    assert (worker.returncode, "Draining" in out) == (0, True), out
    assert status(tmp_git_repo) in ("interrupted", "complete"), out
    out, _ = start("worker", "--once").communicate(timeout=90)
    assert status(tmp_git_repo) == "complete", out
    trace = (tmp_git_repo.parent / "trace").read_text().split()
    assert (trace.count("first"), trace.count("last")) == (1, 1)


@pytest.mark.parametrize("twice", quick_first([True, False]))
def test_an_edit_that_was_stopped_begins_again_from_the_files_it_began_with(
    tmp_git_repo: Path, start: Program, twice: bool
) -> None:
    above = tmp_git_repo.parent
    driver = start("run", "edits.yaml", "--id", "r1")
    wait_for((above / "editing").exists, "the edit to begin")
    driver.kill()
    driver.wait()
    (above / "editing").unlink()
    worker = start("worker", "--poll", "0.1")
    wait_for((above / "editing").exists, "the edit to begin again")
    worker.send_signal(signal.SIGTERM)
    if twice:
        assert worker.stdout is not None
        while not worker.stdout.readline().startswith("Draining"):
            pass
        worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=90)
    assert worker.returncode == 0, out
    assert status(tmp_git_repo) == "interrupted"
    (above / "go").touch()
    out, _ = start("worker", "--once").communicate(timeout=90)
    assert status(tmp_git_repo) == "complete", out
    assert (above / "seen").read_text() == "half\nwhole\n"


def test_an_idle_worker_ends_at_once(tmp_git_repo: Path, start: Program) -> None:
    worker = start("worker", "--metrics", "0")
    assert worker.stdout is not None
    assert worker.stdout.readline().startswith("Figures")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
