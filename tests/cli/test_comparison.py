"""What a resume says of an edited workflow, before anything runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.cli.conftest import SOURCES, Agentos

FLOW = """\
name: ci
params: {modules: core, port: 80}
tasks:
  lint: {run: "echo lint ${{ params.modules }} >> ran", effects: none}
  check: {run: "true", effects: none}
  each: {for_each: [a, b], run: ["echo", "${{ item }}"], effects: none}
  last: {run: "test -e fixed", needs: [lint, check], effects: none}
"""
EDITED = (
    FLOW.replace("echo lint", "echo linted")
    .replace('  check: {run: "true", effects: none}', '  sign: {run: "echo signed >> ran", effects: none}')
    .replace("needs: [lint, check]", "needs: [lint]")
    .replace('[a, b], run: ["echo"', '[a, b], run: ["printf"')
    .replace("modules: core", "modules: all of it")
)
LINE = (
    "changed: lint (kept), each (kept), last (runs again) · new: sign · gone: check · "
    "parameter defaults ignored: modules"
)
TAKE = "The run keeps its parameters. To take the new defaults: agentos resume mine '--param=modules=all of it'"


@pytest.fixture
def edited(agentos: Agentos, tmp_git_repo: Path, home: Path) -> Path:
    """A repository with one run, `mine`, that failed at `last`; and then its file was edited."""
    (tmp_git_repo / "ci.yaml").write_text(FLOW)
    assert agentos("run", "ci.yaml", "--id", "mine", cwd=tmp_git_repo).code == 1
    (tmp_git_repo / "ci.yaml").write_text(EDITED)
    return tmp_git_repo


def test_a_resume_in_a_pipe_says_it_first_and_on_stderr(agentos: Agentos, edited: Path) -> None:
    (edited / "fixed").touch()
    done = agentos("resume", "mine", cwd=edited)
    assert done.code == 0, done.err
    assert done.err.splitlines()[0] == LINE
    assert done.err.splitlines()[1].startswith(TAKE)
    assert (edited / "ran").read_text().splitlines() == ["lint core", "signed"]


def test_a_dry_run_says_it_and_programs_get_it(agentos: Agentos, edited: Path) -> None:
    told = agentos("resume", "mine", "--dry-run", cwd=edited)
    assert LINE in told.err.splitlines()
    assert "TASK" in told.out
    shown = json.loads(agentos("resume", "mine", "--dry-run", "--json", cwd=edited).out)
    assert shown["compared"] == {
        "changed": {"lint": "reuse, changed", "each": "reuse, changed", "last": "rerun"},
        "new": ["sign"],
        "gone": ["check"],
        "ignored_defaults": {"modules": "all of it"},
    }


def test_nothing_is_said_where_nothing_differs_or_one_wants_quiet(agentos: Agentos, edited: Path) -> None:
    assert "changed:" not in agentos("resume", "mine", "--quiet", cwd=edited).err
    (edited / "ci.yaml").write_text(EDITED.replace("all of it", "core"))
    accepted = agentos("resume", "mine", cwd=edited)  # the edited one was accepted by the resume before
    assert "changed:" not in accepted.err
    assert "defaults ignored" not in accepted.err


def test_a_parameter_that_somebody_gave_is_no_ignored_default(agentos: Agentos, edited: Path) -> None:
    (edited / "ci.yaml").write_text(FLOW)
    assert agentos("run", "ci.yaml", "--id", "given", "-p", "modules=mine", cwd=edited).code == 1
    (edited / "ci.yaml").write_text(FLOW.replace("modules: core", "modules: other"))
    assert "defaults ignored" not in agentos("resume", "given", "--dry-run", cwd=edited).err
    assert "parameter defaults ignored: modules" in agentos("resume", "mine", "--dry-run", cwd=edited).err
    # Taken once, it is the run's own: nobody ignores anything any more.
    (edited / "fixed").touch()
    assert agentos("resume", "mine", "-p", "modules=third", "--rerun", "changed", cwd=edited).code == 0
    assert (edited / "ran").read_text().splitlines()[-1] == "lint third"
    assert "defaults ignored" not in agentos("resume", "mine", "--dry-run", cwd=edited).err


def test_a_default_that_is_ignored_stays_told_in_every_resume(agentos: Agentos, edited: Path) -> None:
    assert "parameter defaults ignored: modules" in agentos("resume", "mine", cwd=edited).err
    assert "parameter defaults ignored: modules" in agentos("resume", "mine", cwd=edited).err


def test_a_fork_says_it_of_its_parent(agentos: Agentos, edited: Path) -> None:
    (edited / "fixed").touch()
    forked = agentos("fork", "mine", "--id", "child", cwd=edited)
    assert forked.code == 0, forked.err
    assert "changed: lint (kept)" in forked.err
    assert "parameter defaults ignored: modules" in forked.err


def test_python_says_it_where_the_run_is_shown(agentos: Agentos, edited: Path) -> None:
    (edited / "fixed").touch()
    script = "from agentos import resume; resume('mine', show=True)"
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run([sys.executable, "-c", script], cwd=edited, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert LINE in done.stderr.splitlines()


def test_a_worker_says_it_of_what_it_adopts(agentos: Agentos, tmp_git_repo: Path, home: Path) -> None:
    flow = textwrap.dedent(
        """\
        name: cut
        tasks:
          lint: {run: "true", effects: none}
          nap: {run: "test -e wake || { touch begun; kill -9 $PPID; sleep 60; }", needs: lint, effects: none}
        """
    )
    (tmp_git_repo / "cut.yaml").write_text(flow)
    killed = agentos("run", "cut.yaml", "--id", "mine", cwd=tmp_git_repo)
    assert killed.code == -signal.SIGKILL
    (tmp_git_repo / "wake").touch()
    (tmp_git_repo / "cut.yaml").write_text(flow.replace("true", "exit 0"))
    done = agentos("worker", "--once", cwd=tmp_git_repo)
    assert done.code == 0, done.err
    assert "changed: lint (kept)" in done.err
