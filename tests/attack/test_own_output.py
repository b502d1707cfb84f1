"""What AgentOS prints into the worktree is nobody's edit: `agentos run flow > log.txt`, and every command after it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import pytest

from tests.cli.conftest import SOURCES, Agentos, agentos
from tests.marks import quick_first

__all__ = ["agentos"]

pytestmark = pytest.mark.attack

FILES = """
name: flow
tasks:
  a: {run: "echo a >> made.txt"}
  b: {needs: a, run: "echo b >> made.txt"}
"""
FLAKY = """
name: flow
tasks:
  a: {run: "echo a >> made.txt"}
  quiet: {needs: a, run: "echo nothing", effects: none}
  b:
    needs: quiet
    run: "echo b >> made.txt; [ -e .git/tried ] || { touch .git/tried; exit 1; }"
    retries: {retries: 1, backoff_s: 0}
  last: {needs: b, run: "echo last", effects: none}
"""
KILLED = """
name: flow
tasks:
  a: {run: "echo a >> made.txt"}
  b:
    needs: a
    run: "echo b >> made.txt; [ -e .git/again ] || { touch .git/again; kill -9 $PPID; exit 1; }"
"""


def printed(repo: Path, log: str, *arguments: str, mode: Literal["w", "a"] = "w") -> int:
    """The program with its output in a file of the worktree, as a shell redirects it."""
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    with (repo / log).open(mode) as out:
        argv = [sys.executable, "-m", "agentos", *arguments]
        return subprocess.run(argv, cwd=repo, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out).returncode


def test_no_layer_warns_and_a_retry_still_begins_from_the_files_before_it(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "flow.yaml").write_text(FLAKY)
    assert printed(tmp_git_repo, "log.txt", "run", "flow.yaml", "--id", "r") == 0
    assert "warning" not in (tmp_git_repo / "log.txt").read_text()
    assert (tmp_git_repo / "made.txt").read_text() == "a\nb\n", "what the failed attempt wrote was undone"


def cut_off(repo: Path) -> None:
    """A run that was killed while `b` was at work, with its output in the worktree."""
    (repo / "flow.yaml").write_text(KILLED)
    assert printed(repo, "log.txt", "run", "flow.yaml", "--id", "r") == -9


@pytest.mark.parametrize(("log", "mode"), quick_first([("o.log", "w"), ("log.txt", "w"), ("log.txt", "a")]))
def test_a_resume_that_prints_into_the_worktree_goes_on(tmp_git_repo: Path, log: str, mode: Literal["w", "a"]) -> None:
    cut_off(tmp_git_repo)
    time.sleep(2.5)  # whatever changes from here on is later than the driver's last sign of life
    assert printed(tmp_git_repo, log, "resume", "r", mode=mode) == 0, (tmp_git_repo / log).read_text()
    assert (tmp_git_repo / "made.txt").read_text() == "a\nb\n"
    assert "starts" in (tmp_git_repo / "log.txt").read_text(), "what was printed stays"


@pytest.mark.full
def test_the_preview_says_what_the_resume_does(tmp_git_repo: Path) -> None:
    cut_off(tmp_git_repo)
    assert printed(tmp_git_repo, "plan.json", "resume", "r", "--dry-run", "--json") == 0
    files = json.loads((tmp_git_repo / "plan.json").read_text().partition("\n}\n")[0] + "\n}")["files"]
    assert [change["path"] for change in files["changes"]] == ["made.txt"]
    assert files["asks"] == ""


@pytest.mark.full
def test_restore_and_undo_leave_their_own_output_and_that_of_the_run(tmp_git_repo: Path, agentos: Agentos) -> None:
    (tmp_git_repo / "flow.yaml").write_text(FILES)
    assert printed(tmp_git_repo, "log.txt", "run", "flow.yaml", "--id", "r") == 0
    before = (tmp_git_repo / "log.txt").read_text()
    first = json.loads(agentos("checkpoints", "r", "--json", cwd=tmp_git_repo).out)[0]["id"]
    for command in (["restore", first, "--dry-run"], ["restore", first], ["undo", "--dry-run"], ["undo"]):
        assert printed(tmp_git_repo, "own.txt", *command, mode="a") == 0, (tmp_git_repo / "own.txt").read_text()
    assert (tmp_git_repo / "log.txt").read_text() == before
    assert (tmp_git_repo / "made.txt").read_text() == "a\nb\n"
    told = (tmp_git_repo / "own.txt").read_text().splitlines()
    assert [line for line in told if line.endswith(".txt")] == ["M  made.txt"] * 4
