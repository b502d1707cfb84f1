"""`agentos delete` asks, refuses while somebody is at it, and leaves nothing of the run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pexpect
import pytest

from agentos import Client
from tests.cli.conftest import Agentos
from tests.cli.runs import complete, driven, waiting
from tests.workflow.support import environment


def test_without_a_terminal_it_wants_to_be_sure(tmp_git_repo: Path, agentos: Agentos) -> None:
    complete(tmp_git_repo)
    waiting(tmp_git_repo)
    done = agentos("delete", "run-1", cwd=tmp_git_repo, input="y\n")
    assert done.code == 2
    assert "say --yes" in done.err
    done = agentos("delete", "run-1", "--yes", "--json", cwd=tmp_git_repo)
    assert done.code == 0
    assert json.loads(done.out)["workflow_id"] == "run-1"
    assert [run.workflow_id for run in Client(tmp_git_repo).list_runs()] == ["ask-1"]
    assert agentos("delete", "run-1", "--yes", cwd=tmp_git_repo).code == 2


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 2, 1), ("", 2, 1), ("y", 0, 0)])
def test_at_a_terminal_it_asks(tmp_git_repo: Path, answer: str, code: int, left: int) -> None:
    complete(tmp_git_repo)
    child = pexpect.spawn(
        sys.executable,
        ["-m", "agentos", "delete", "run"],
        cwd=str(tmp_git_repo),
        env=environment(),
        timeout=30,
    )
    child.expect(r"Delete run run-1 \(chain, complete, \d+ events\)\? This cannot be undone\. \[y/N\]:")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == code
    assert len(Client(tmp_git_repo).list_runs()) == left


def test_a_driven_run_is_not_deleted(tmp_git_repo: Path, agentos: Agentos) -> None:
    with driven(tmp_git_repo):
        done = agentos("delete", "busy", "--yes", cwd=tmp_git_repo)
        assert done.code == 75
        assert "is being driven by process" in done.err
    assert Client(tmp_git_repo).find("busy").status == "interrupted"
    assert agentos("delete", "busy", "--yes", cwd=tmp_git_repo).code == 0


def test_ids_that_name_no_single_run(tmp_git_repo: Path, agentos: Agentos) -> None:
    complete(tmp_git_repo, "run-1")
    complete(tmp_git_repo, "run-2")
    for id in ("run", "zzz", "run-1/", "run-1\n"):
        done = agentos("delete", id, "--yes", cwd=tmp_git_repo)
        assert done.code == 2
        assert "Traceback" not in done.err
    assert len(Client(tmp_git_repo).list_runs()) == 2
