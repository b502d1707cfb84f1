"""Files whose names are no UTF-8, in runs that are killed and resumed: names of git's world, in a journal of text."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import agentos
from agentos import Client, resume
from agentos.machine import events as ev
from tests.conftest import git

# `cut` waits until it is killed, the first time.
FLOW = r"""
from agentos import Workflow, run
flow = Workflow("odd")
flow.add("cut", "shell", run=r'''
echo half >> $'caf\xe9'; echo new > $'new\xff'
test -e .go || { kill -9 $(ps -o ppid= -p $$); exec sleep 600; }
rm $'new\xff'
''')
if __name__ == "__main__":
    print("begun", flush=True)
    run(flow, workflow_id="r")
"""

ASIDE = r"""
from agentos import Workflow, run
flow = Workflow("odd")
flow.add("aside", "shell", run=r"echo more >> $'caf\xe9'; echo new > $'new\xff'", isolation="worktree")
if __name__ == "__main__":
    run(flow, workflow_id="r")
"""

CAFE, OUTPUT = os.fsdecode(b"caf\xe9"), os.fsdecode(b"out\xfeput")


@pytest.fixture
def repo(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_git_repo / CAFE).write_text("mine\n")
    (tmp_git_repo / ".gitignore").write_text(".go\n__pycache__/\n")
    git("add", ".", cwd=tmp_git_repo)
    git("commit", "--quiet", "--message", "files", cwd=tmp_git_repo)
    monkeypatch.chdir(tmp_git_repo)
    return tmp_git_repo


def killed(repo: Path, flow: str, at: str = "") -> None:
    """Run it until it is killed, printing to a file with such a name."""
    (repo / "flow.py").write_text(flow)
    env = {**os.environ, "PYTHONPATH": str(Path(agentos.__file__).parents[1])}
    env |= {"AGENTOS_CRASH_AT": at} if at else {}
    with open(repo / OUTPUT, "w") as output:
        done = subprocess.run([sys.executable, "flow.py"], cwd=repo, env=env, stdout=output, stderr=subprocess.PIPE)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (repo / ".go").touch()


def test_what_was_cut_off_is_put_back_and_what_we_print_to_is_not(repo: Path) -> None:
    killed(repo, FLOW)
    assert resume("r").status == "complete"
    assert (repo / CAFE).read_text() == "mine\nhalf\n"
    assert not (repo / os.fsdecode(b"new\xff")).exists()
    assert (repo / OUTPUT).read_text() == "begun\n"
    events = Client(repo).events("r")
    [restored] = [event for event in events if isinstance(event, ev.FilesRestored)]
    assert restored.paths == ("caf\\xe9", "new\\xff")
    assert any(isinstance(event, ev.FilesCaptured) and event.output == ("out\\xfeput",) for event in events)


def test_what_could_not_be_captured_is_named_and_asked_about(repo: Path) -> None:
    git("init", "--quiet", os.fsdecode(b"in\xff"), cwd=repo)  # a repository without a commit: nothing of it can be kept
    killed(repo, FLOW)
    captured = [event for event in Client(repo).events("r") if isinstance(event, ev.FilesCaptured)]
    assert {event.partial for event in captured} == {("in\\xff",)}
    assert resume("r").status == "waiting"
    assert (repo / CAFE).read_text() == "mine\nhalf\n"


def test_what_an_isolated_task_did_is_merged_after_a_kill(repo: Path) -> None:
    killed(repo, ASIDE, at="restore.inside")
    assert resume("r").status == "complete"
    assert (repo / CAFE).read_text() == "mine\nmore\n"
    assert (repo / os.fsdecode(b"new\xff")).read_text() == "new\n"


def test_files_that_changed_while_no_file_task_was_at_work_are_named(repo: Path) -> None:
    flow = agentos.Workflow("liar")
    flow.add("edit", "shell", run="true")
    flow.add("liar", "shell", run=r"echo x > $'new\xff'", effects="none", needs=["edit"])
    assert agentos.run(flow, workflow_id="r").status == "complete"
    [warning] = [event for event in Client(repo).events("r") if isinstance(event, ev.TaskWarning)]
    assert "new\\xff" in warning.message
