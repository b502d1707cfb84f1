"""`agentos watch`: following a run that another process drives, and leaving it alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import SOURCES, Agentos
from tests.cli.terminal import Terminal

FLOW = """
from agentos import Workflow

flow = Workflow("watched")
flow.add("first", "shell", run="echo done", effects="none")
flow.add("nap", "shell", run="while ! test -e wake; do sleep 0.05; done", needs=["first"], effects="none")
flow.add("more", "shell", run="touch more", needs=["nap"], effects="none")
"""


@pytest.fixture
def repo(tmp_git_repo: Path, home: Path) -> Path:
    (tmp_git_repo / "flow.py").write_text(FLOW)
    return tmp_git_repo


@pytest.fixture
def driven(repo: Path) -> Iterator[subprocess.Popen[str]]:
    """A run, `mine`, that another process drives and that waits for the file `wake`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "agentos", "run", "flow.py", "--id", "mine"],
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert any("nap starts" in line for line in process.stdout)
    yield process
    (repo / "wake").touch()
    process.communicate(timeout=30)


def watching(repo: Path, *arguments: str) -> Terminal:
    return Terminal("watch", *arguments, cwd=repo, env={"PYTHONPATH": str(SOURCES)})


def test_the_live_view_of_a_run_that_another_process_drives(repo: Path, driven: subprocess.Popen[str]) -> None:
    screen = watching(repo)
    screen.until("▸ nap")
    assert "1/3 layers  1/3 tasks" in screen.shown
    assert "Ctrl-C stops watching; the run goes on" in screen.shown
    (repo / "wake").touch()
    assert screen.end() == 0
    assert "3/3 layers  3/3 tasks" in screen.shown
    assert "watched (mine) is complete" in screen.shown
    screen.close()


def test_ctrl_c_leaves_the_run_alone(repo: Path, driven: subprocess.Popen[str]) -> None:
    screen = watching(repo, "mine")
    screen.until("▸ nap")
    screen.type("\x03")
    assert screen.end() == 130
    assert screen.cursor_is_visible
    screen.close()
    assert driven.poll() is None
    (repo / "wake").touch()
    driven.communicate(timeout=30)
    assert driven.returncode == 0
    assert (repo / "more").exists()


def test_in_a_pipe_it_tells_lines_or_json(agentos: Agentos, repo: Path, driven: subprocess.Popen[str]) -> None:
    (repo / "wake").touch()
    plain = agentos("watch", "mine", cwd=repo)
    assert plain.code == 0
    assert "first is complete" in plain.out
    events = [json.loads(line) for line in agentos("watch", "mine", "--json", cwd=repo).out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "workflow_complete"


def test_a_run_whose_driver_died(agentos: Agentos, repo: Path, driven: subprocess.Popen[str]) -> None:
    screen = watching(repo, "mine")
    screen.until("▸ nap")
    driven.send_signal(signal.SIGKILL)
    assert screen.end() == 1
    assert "it was interrupted. Go on with: agentos resume mine" in screen.shown
    screen.close()


def test_nothing_to_watch(agentos: Agentos, repo: Path, tmp_path: Path) -> None:
    assert agentos("watch", cwd=repo).code == 2
    unknown = agentos("watch", "nonesuch", cwd=repo)
    assert unknown.code == 2
    assert "Traceback" not in unknown.err
