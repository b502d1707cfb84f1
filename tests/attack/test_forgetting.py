"""What is kept of a worktree can be forgotten, all of it, and what outlived its database is found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agentos import Client
from tests.cli import edits
from tests.cli.conftest import Agentos
from tests.cli.runs import driven
from tests.conftest import git

pytestmark = pytest.mark.attack

SECRET = "the-secret-of-the-house"


@pytest.fixture
def repo(tmp_git_repo: Path, home: Path) -> Path:
    root = edits.make_repository(tmp_git_repo)
    (root / "creds.env").write_text(f"{SECRET}\n")
    return root


def in_git_folder(root: Path) -> bool:
    """Whether the secret is in any object of the store, or anywhere else in git's folder as it is."""
    common = Path(os.path.realpath(root / git("rev-parse", "--git-common-dir", cwd=root)))
    listed = subprocess.run(
        ["git", "--git-dir", common / "agentos/store", "cat-file", "--batch-all-objects", "--batch"],
        capture_output=True,
        check=True,
    )
    return SECRET.encode() in listed.stdout


def test_snapshots_whose_database_is_gone_are_found_and_forgotten(agentos: Agentos, repo: Path) -> None:
    edits.complete(agentos, repo)
    shutil.rmtree(repo / ".agentos")  # as the README once advised
    assert in_git_folder(repo)
    found = json.loads(agentos("doctor", "--json", cwd=repo).out)["findings"]
    (told,) = [one for one in found if "snapshots of files are kept" in one["what"]]
    assert "run-1" in told["what"]
    assert "agentos delete --all" in told["mend"]
    assert "run-1" in agentos("prune", "--all", cwd=repo).err
    assert agentos("delete", "--all", cwd=repo).code == 2  # it wants to be sure
    assert in_git_folder(repo)
    done = agentos("delete", "--all", "--yes", "--json", cwd=repo)
    assert done.code == 0, done.err
    assert json.loads(done.out)["snapshots"] > 0
    assert not in_git_folder(repo)
    assert not git("--git-dir", str(repo / ".git/agentos/store"), "for-each-ref", cwd=repo)
    assert "snapshots of files are kept" not in agentos("doctor", cwd=repo).out
    assert (repo / "creds.env").read_text() == f"{SECRET}\n"
    # And everything goes on as in a new repository.
    edits.complete(agentos, repo, "run-2")


def test_all_runs_and_snapshots_are_forgotten_together(agentos: Agentos, repo: Path) -> None:
    edits.complete(agentos, repo)
    edits.complete(agentos, repo, "run-2")
    done = agentos("delete", "--all", "--yes", "--json", cwd=repo)
    assert done.code == 0, done.err
    assert sorted(json.loads(done.out)["runs"]) == ["run-1", "run-2"]
    assert Client(repo).list_runs() == []
    assert not in_git_folder(repo)
    assert not list((repo / ".agentos").glob("logs/*/*"))


@pytest.mark.full
def test_a_run_known_by_its_snapshots_alone_is_forgotten_by_name(agentos: Agentos, repo: Path) -> None:
    edits.complete(agentos, repo)
    shutil.rmtree(repo / ".agentos")
    (repo / "creds.env").unlink()
    edits.complete(agentos, repo, "run-2")
    assert agentos("delete", "run-9", "--yes", cwd=repo).code == 2
    assert agentos("delete", "run-1", "--yes", cwd=repo).code == 0
    assert not in_git_folder(repo)
    assert len(edits.checkpoints(agentos, repo, "run-2")) == 3
    assert agentos("restore", edits.checkpoints(agentos, repo, "run-2")[0], cwd=repo).code == 0


@pytest.mark.full
def test_other_worktrees_keep_what_is_theirs(agentos: Agentos, repo: Path) -> None:
    other = repo.parent / "other"
    git("worktree", "add", "--quiet", str(other), cwd=repo)
    edits.complete(agentos, repo)
    edits.complete(agentos, other)
    assert agentos("delete", "--all", "--yes", cwd=repo).code == 0
    assert agentos("restore", edits.checkpoints(agentos, other)[0], cwd=other).code == 0
    assert not in_git_folder(repo)
    assert agentos("delete", "--all", "--yes", cwd=other).code == 0
    assert not git("--git-dir", str(repo / ".git/agentos/store"), "for-each-ref", cwd=repo)


def test_nothing_is_forgotten_while_somebody_is_at_work(agentos: Agentos, repo: Path) -> None:
    edits.complete(agentos, repo)
    with driven(repo):
        assert agentos("delete", "--all", "--yes", cwd=repo).code == 75
    with edits.busy(repo):
        shutil.rmtree(repo / ".agentos")
        assert agentos("delete", "--all", "--yes", cwd=repo).code == 75
    assert in_git_folder(repo)


@pytest.mark.full
def test_a_half_done_restore_is_forgotten_too(agentos: Agentos, repo: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    assert agentos("restore", first, cwd=repo, env={"AGENTOS_CRASH_AT": "restore.inside"}).code == -9
    assert agentos("delete", "--all", "--yes", cwd=repo).code == 0
    assert not in_git_folder(repo)
    edits.complete(agentos, repo, "run-2")
