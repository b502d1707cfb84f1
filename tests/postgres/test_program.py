"""The whole program on PostgreSQL: each command that has to do with runs, typed as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.store.postgres.migrations import known_migrations
from tests.cli.conftest import Agentos, agentos
from tests.conftest import git, trust
from tests.postgres.server import PASSWORD, Server

__all__ = ["agentos"]

FLOW = """
name: release
tasks:
  build: {run: "echo built; echo $PASS_WORD > made.txt"}
  ship: {needs: build, approve: "Ship it?", run: "echo shipped", effects: none}
"""
SLOW = """
name: slow
tasks:
  wait: {run: "until [ -e go ]; do sleep 0.02; done; echo went", effects: none}
  then: {needs: wait, run: "echo then", effects: none}
"""


@pytest.fixture
def repo(tmp_git_repo: Path, server: Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    schema = f"program{abs(hash(request.node.name))}"
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", f"{server.tcp_url}?schema={schema}")
    (tmp_git_repo / "release.yaml").write_text(FLOW)
    (tmp_git_repo / "slow.yaml").write_text(SLOW)
    return tmp_git_repo


def test_every_command_works_and_none_shows_the_password(repo: Path, agentos: Agentos, tmp_path: Path) -> None:
    said: list[str] = []

    def typed(*argv: str, code: int = 0) -> str:
        done = agentos(*argv, cwd=repo)
        said.append(f"{done.out}{done.err}")
        assert done.code == code, f"{argv}: {done.code}\n{done.out}{done.err}"
        return done.out

    assert json.loads(typed("list", "--json")) == []
    typed("run", "release.yaml", "--id", "r-1", code=3)
    assert [(row["workflow_id"], row["status"]) for row in json.loads(typed("list", "--json"))] == [("r-1", "waiting")]
    assert json.loads(typed("inbox", "--json"))[0]["workflow_id"] == "r-1"
    typed("approve", "r-1", "--reason", "tested")
    shown = json.loads(typed("show", "r-1", "--json"))
    assert {task["id"]: task["status"] for task in shown["tasks"]} == {"build": "complete", "ship": "complete"}
    assert shown["state"]["decisions"][0]["reason"] == "tested"
    assert "built" in typed("logs", "r-1")
    assert "workflow_complete" in typed("events", "r-1")
    cuts = json.loads(typed("checkpoints", "r-1", "--json"))
    assert [cut["layer"] for cut in cuts] == [0, 1]
    typed("diff", cuts[0]["id"], cuts[1]["id"])
    typed("fork", cuts[0]["id"], "--id", "f-1", code=3)
    typed("prune", "r-1", "--keep", "1")
    assert len(json.loads(typed("checkpoints", "r-1", "--json"))) == 1
    stats = json.loads(typed("db", "stats", "--json"))
    assert stats["schema"] == len(known_migrations())
    assert {run["workflow_id"] for run in stats["runs"]} == {"r-1", "f-1"}
    assert json.loads(typed("db", "migrate", "--json"))["steps"] == []
    assert json.loads(typed("db", "path", "--json"))["path"].startswith("postgresql://postgres:***@127.0.0.1:")
    typed("doctor", "--deep")
    typed("doctor", "--set-aside", code=2)
    typed("export", "r-1", "-o", str(tmp_path / "r-1.export"))
    typed("delete", "r-1", "--yes")
    assert typed("import", str(tmp_path / "r-1.export")) == "r-1\n"
    assert json.loads(typed("show", "r-1", "--json"))["status"] == "complete"
    words = "".join(said)
    assert PASSWORD not in words
    assert PASSWORD.replace(" ", "%20") not in words


@pytest.fixture
def driving(repo: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that drives the run `busy`, in the middle of its task."""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    argv = [sys.executable, "-m", "agentos", "run", "slow.yaml", "--id", "busy"]
    process = subprocess.Popen(argv, cwd=repo, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()


def wait_for_status(agentos: Agentos, repo: Path, status: str) -> None:
    deadline = time.monotonic() + 30
    while status not in (found := agentos("list", "--json", cwd=repo).out):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_commands_reach_a_run_that_another_process_drives(
    repo: Path, agentos: Agentos, driving: subprocess.Popen[bytes]
) -> None:
    wait_for_status(agentos, repo, "running")
    assert agentos("resume", "busy", cwd=repo).code == 75
    assert agentos("pause", "busy", cwd=repo).code == 0
    (repo / "go").touch()
    assert driving.wait(30) == 3
    assert json.loads(agentos("list", "--json", cwd=repo).out)[0]["status"] == "paused"
    assert agentos("resume", "busy", cwd=repo).code == 0


def test_a_killed_driver_is_told_at_once_and_its_run_goes_on(
    repo: Path, agentos: Agentos, driving: subprocess.Popen[bytes], server: Server
) -> None:
    wait_for_status(agentos, repo, "running")
    server.restart()
    wait_for_status(agentos, repo, "running")
    driving.kill()
    driving.wait()
    wait_for_status(agentos, repo, "interrupted")
    (repo / "go").touch()
    done = agentos("resume", "--all", cwd=repo.parent)  # from anywhere: the server knows where it belongs
    assert (done.code, f"in {repo}" in done.err) == (0, True), done.err
    assert json.loads(agentos("list", "--json", cwd=repo).out)[0]["status"] == "complete"
    git("status", cwd=repo)


def test_settings_select_it_too(tmp_git_repo: Path, agentos: Agentos, url: str) -> None:
    (tmp_git_repo / "agentos.toml").write_text(f'database = "{url}"\nrepository = "by name"\n')
    trust(tmp_git_repo)
    (tmp_git_repo / "release.yaml").write_text(FLOW)
    assert agentos("run", "release.yaml", "--id", "r", cwd=tmp_git_repo).code == 3
    assert agentos("list", "--all", cwd=tmp_git_repo).out.count("waiting") == 1
    assert not (tmp_git_repo / ".agentos" / "issue_workflow.db").exists()


def test_a_server_that_is_not_there_is_told_with_the_right_code(repo: Path, agentos: Agentos, server: Server) -> None:
    env = {"AGENTOS_WORKFLOW_DB": f"{server.tcp_url.replace(f':{server.port}/', ':1/')}"}
    done = agentos("list", cwd=repo, env=env)
    assert (done.code, "cannot be reached" in done.err) == (75, True)
    wrong = {"AGENTOS_WORKFLOW_DB": server.tcp_url.replace("@", "x@")}
    done = agentos("run", "release.yaml", cwd=repo, env=wrong)
    assert (done.code, "password authentication failed" in done.err) == (1, True)
    assert PASSWORD.replace(" ", "%20") not in done.err
