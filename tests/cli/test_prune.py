"""`agentos prune` deletes older checkpoints and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from agentos import Client
from tests.cli.conftest import Agentos
from tests.cli.runs import complete


def test_a_run_keeps_its_newest_checkpoints_and_all_events(tmp_git_repo: Path, agentos: Agentos) -> None:
    complete(tmp_git_repo, "run-1")
    complete(tmp_git_repo, "run-2")
    client = Client(tmp_git_repo)
    before = client.events("run-1")
    done = agentos("prune", "run-1", "--keep", "2", cwd=tmp_git_repo)
    assert done.code == 0
    assert done.out.splitlines()[1].split() == ["run-1", "5", "2"]
    assert [len(client.checkpoints(id)) for id in ("run-1", "run-2")] == [2, 7]
    assert len(client.events("run-1")) == len(before)
    rows = json.loads(agentos("prune", "--all", "--json", cwd=tmp_git_repo).out)
    assert rows == [
        {"workflow_id": "run-2", "deleted": 2, "kept": 5},
        {"workflow_id": "run-1", "deleted": 0, "kept": 2},
    ]


def test_what_is_asked_must_be_clear(tmp_git_repo: Path, agentos: Agentos) -> None:
    complete(tmp_git_repo, "run-1")
    for argv in ((), ("run-1", "--all"), ("run-1", "--keep", "0"), ("run-1", "--keep", "many"), ("nobody",)):
        done = agentos("prune", *argv, cwd=tmp_git_repo)
        assert (done.code, done.out) == (2, "")
        assert "Traceback" not in done.err
    (tmp_git_repo / "agentos.toml").write_text("keep = 0")
    assert "--keep N" in agentos("prune", "--all", cwd=tmp_git_repo).err
    (tmp_git_repo / "agentos.toml").write_text("keep = 'x'")
    assert agentos("prune", "--all", cwd=tmp_git_repo).code == 1
    assert len(Client(tmp_git_repo).checkpoints("run-1")) == 7


def test_nothing_here_yet(tmp_git_repo: Path, agentos: Agentos) -> None:
    done = agentos("prune", "--all", "--json", cwd=tmp_git_repo)
    assert (done.code, json.loads(done.out)) == (0, [])
