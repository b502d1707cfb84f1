"""A clone that brings runs of its own, with gates that are "approved", or that asks for answers elsewhere."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentos.exceptions import WorkflowConfigurationError
from agentos.workflow.place.location import find_location
from tests.cli.conftest import Agentos, agentos
from tests.cli.runs import complete, waiting
from tests.conftest import git

__all__ = ["agentos"]

pytestmark = pytest.mark.attack

LOOKS = (["list"], ["show"], ["inbox", "--repo", "."], ["doctor"], ["resume"], ["run", "flow.yaml"], ["db", "path"])


def commit(root: Path, *paths: str) -> None:
    git("add", "--force", *paths, cwd=root)
    git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "--quiet", "-m", "x", cwd=root)


@pytest.fixture
def inner(tmp_path: Path) -> Path:
    """A repository that tracks a database with a run."""
    root = tmp_path / "inner"
    git("init", "--quiet", str(root), cwd=tmp_path)
    complete(root, id="planted")
    (root / ".agentos" / ".gitignore").unlink()
    shutil.copytree(root / ".agentos", root / "state" / "deep")
    commit(root, ".")
    return root


@pytest.fixture
def outer(tmp_git_repo: Path, inner: Path) -> Path:
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub", cwd=tmp_git_repo)
    (tmp_git_repo / "flow.yaml").write_text("name: x\ntasks: {a: {run: 'true', effects: none}}\n")
    return tmp_git_repo


@pytest.mark.parametrize("path", ["sub/.agentos", "sub/state/deep", "sub/new/folder"])
def test_a_database_in_a_submodule_is_refused(agentos: Agentos, outer: Path, path: str) -> None:
    (outer / "agentos.toml").write_text(f'database = "{path}/issue_workflow.db"\n')
    for words in LOOKS:
        done = agentos(*words, cwd=outer)
        assert (done.code, "planted" in done.out) == (1, False), (words, done)
        assert "a repository of its own" in done.err + done.out
    assert not (outer / ".agentos").exists()
    assert not (outer / "sub" / "new").exists()


def test_so_is_one_where_only_the_index_knows_of_the_submodule(outer: Path) -> None:
    (outer / "sub" / ".git").unlink()
    (outer / "agentos.toml").write_text('database = "sub/.agentos/issue_workflow.db"\n')
    with pytest.raises(WorkflowConfigurationError, match="a repository of its own"):
        find_location(outer)
    git("update-index", "--index-version", "4", cwd=outer)
    with pytest.raises(WorkflowConfigurationError, match="a repository of its own"):
        find_location(outer)


def test_so_is_one_in_a_repository_that_merely_lies_there(tmp_git_repo: Path, inner: Path) -> None:
    shutil.copytree(inner, tmp_git_repo / "vendor" / "it")
    (tmp_git_repo / "agentos.toml").write_text('database = "vendor/it/.agentos/issue_workflow.db"\n')
    with pytest.raises(WorkflowConfigurationError, match="a repository of its own"):
        find_location(tmp_git_repo)


def test_so_is_a_folder_of_state_that_is_a_repository(agentos: Agentos, tmp_git_repo: Path) -> None:
    complete(tmp_git_repo, id="planted")
    git("init", "--quiet", cwd=tmp_git_repo / ".agentos")
    assert agentos("list", cwd=tmp_git_repo).code == 1


def test_a_submodule_itself_brings_no_runs(agentos: Agentos, outer: Path) -> None:
    for words in (["list"], ["show"], ["inbox"]):
        done = agentos(*words, "--repo", outer / "sub", cwd=outer)
        assert (done.code, "is tracked by git" in done.err) == (1, True), done


def test_a_folder_of_state_that_is_a_submodule_is_refused(agentos: Agentos, tmp_git_repo: Path, inner: Path) -> None:
    flat = inner.parent / "flat"
    git("init", "--quiet", str(flat), cwd=inner.parent)
    shutil.copy(inner / ".agentos" / "issue_workflow.db", flat)
    commit(flat, ".")
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(flat), ".agentos", cwd=tmp_git_repo)
    done = agentos("list", cwd=tmp_git_repo)
    assert (done.code, "planted" in done.out) == (1, False)


# --- runs that claim to be of another worktree ------------------------------------------------------------------------


@pytest.fixture
def claiming(tmp_git_repo: Path, tmp_path: Path) -> Path:
    """A worktree of the index whose waiting run says that it belongs to another one, which is there as well."""
    other = tmp_path / "production"
    git("init", "--quiet", str(other), cwd=tmp_path)
    complete(other, id="of-production")
    waiting(tmp_git_repo, id="ask-1")
    with closing(sqlite3.connect(tmp_git_repo / ".agentos" / "issue_workflow.db")) as database, database:
        database.execute("UPDATE run SET root = ?", (str(other),))
    database.close()
    return tmp_git_repo


def test_inbox_prints_no_command_that_would_move_a_run_of_another_root(
    agentos: Agentos, claiming: Path, tmp_path: Path
) -> None:
    [gate] = json.loads(agentos("inbox", "--json", cwd=tmp_path).out)
    assert "--repo" not in gate["approve"] + gate["reject"]
    assert "--repo" not in agentos("inbox", cwd=tmp_path).out


def test_an_answer_does_not_carry_it_into_the_root_that_it_names(
    agentos: Agentos, claiming: Path, tmp_path: Path
) -> None:
    done = agentos("approve", "ask-1", cwd=tmp_path)
    assert (done.code, "belongs to" in done.err) == (2, True), done
    assert agentos("resume", "ask-1", cwd=claiming).code == 2
    assert json.loads(agentos("show", "ask-1", "--json", cwd=claiming).out)["status"] != "complete"


def test_of_its_own_root_it_does(agentos: Agentos, tmp_git_repo: Path, tmp_path: Path) -> None:
    waiting(tmp_git_repo, id="ask-1")
    git("init", "--quiet", str(tmp_path / "other"), cwd=tmp_path)
    complete(tmp_path / "other", id="x")
    [gate] = json.loads(agentos("inbox", "--json", cwd=tmp_path).out)
    assert f"--repo {tmp_git_repo}" in gate["approve"]
