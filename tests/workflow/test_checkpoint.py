"""The seeds' own cases, under their numbers and names: where the checkpoint database lives."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agentos.exceptions import WorkflowConfigurationError
from agentos.workflow.checkpoint import ensure_agentos_dir, get_checkpoint_db_path, get_repo_root

LAUNCHER = Path(__file__).parents[2] / "tools" / "run_issue_workflow.py"
SETTLED = 2  # what the launcher ends with while the workflow itself is still to come

pytestmark = pytest.mark.usefixtures("clean_env")


def launch(cwd: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, LAUNCHER, *argv], cwd=cwd, capture_output=True, text=True, timeout=60)


def new_repo(path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    return path


def test_per_repo_database_creation(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """010: the database of a repository is .agentos/issue_workflow.db at its root, and can be made there."""
    monkeypatch.chdir(tmp_git_repo)
    path = get_checkpoint_db_path()
    assert path == str(tmp_git_repo / ".agentos" / "issue_workflow.db")
    assert not os.path.exists(path)
    with sqlite3.connect(path) as database:
        database.execute("create table t (x)")
    database.close()
    assert os.path.isfile(path)


def test_different_repos_get_different_databases(tmp_path: Path) -> None:
    """020"""
    one, two = new_repo(tmp_path / "repo1"), new_repo(tmp_path / "repo2")
    assert launch(one).returncode == launch(two).returncode == SETTLED
    assert get_checkpoint_db_path(one) == str(one / ".agentos" / "issue_workflow.db")
    assert get_checkpoint_db_path(two) == str(two / ".agentos" / "issue_workflow.db")


def test_environment_variable_override(tmp_git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """030: the variable wins, and nothing appears in the repository."""
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", str(tmp_path / "new" / "custom.db"))
    monkeypatch.chdir(tmp_git_repo)
    assert get_checkpoint_db_path() == str(tmp_path / "new" / "custom.db")
    assert (tmp_path / "new").is_dir()
    assert not (tmp_git_repo / ".agentos").exists()


def test_fail_closed_outside_repo(tmp_path: Path) -> None:
    """040: the launcher prints the library's error on stderr and exits 1; nothing is made."""
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    for argv in ([], ["--brief"], ["--brief", "missing.md"]):
        done = launch(nowhere, *argv)
        assert done.returncode == 1
        assert done.stderr.startswith("Cannot determine checkpoint database location")
        assert "AGENTOS_WORKFLOW_DB" in done.stderr
        assert done.stdout == ""
    assert list(nowhere.iterdir()) == []


def test_worktree_isolation(tmp_worktree: tuple[Path, Path]) -> None:
    """050: a linked worktree has a folder of its own, and the main one is not touched."""
    main, worktree = tmp_worktree
    assert launch(worktree).returncode == SETTLED
    assert (worktree / ".agentos" / ".gitignore").is_file()
    assert not (main / ".agentos").exists()


def test_global_database_untouched(tmp_git_repo: Path) -> None:
    """060: neither content nor times of ~/.agentos/issue_workflow.db change, nor anything beside it."""
    old = Path.home() / ".agentos" / "issue_workflow.db"
    old.parent.mkdir()
    old.write_bytes(b"the old one")
    os.utime(old, (1, 1))
    before = old.stat()
    assert launch(tmp_git_repo, "--brief").returncode == SETTLED
    after = old.stat()
    assert (after.st_mtime_ns, after.st_atime_ns, after.st_ctime_ns) == (
        before.st_mtime_ns,
        before.st_atime_ns,
        before.st_ctime_ns,
    )
    assert [path.name for path in old.parent.iterdir()] == [old.name]


def test_nested_repo_detection(tmp_git_repo: Path) -> None:
    """070: from a subdirectory the database is still at the root."""
    below = tmp_git_repo / "subdir"
    below.mkdir()
    assert launch(below).returncode == SETTLED
    assert (tmp_git_repo / ".agentos").is_dir()
    assert not (below / ".agentos").exists()


def test_agentos_directory_creation(tmp_git_repo: Path) -> None:
    """080: the folder is made for this user alone, whatever the umask."""
    before = os.umask(0)
    try:
        folder = ensure_agentos_dir(tmp_git_repo)
    finally:
        os.umask(before)
    assert folder == tmp_git_repo / ".agentos"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert ensure_agentos_dir(tmp_git_repo) == folder


def test_env_var_with_tilde_expansion(monkeypatch: pytest.MonkeyPatch) -> None:
    """090"""
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", "~/custom.db")
    assert get_checkpoint_db_path() == str(Path.home() / "custom.db")


@pytest.mark.parametrize("blank", ["", " ", "\t\n "])
def test_empty_env_var_treated_as_unset(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch, blank: str) -> None:
    """100"""
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", blank)
    assert get_checkpoint_db_path(tmp_git_repo) == str(tmp_git_repo / ".agentos" / "issue_workflow.db")


def test_t1_happy_path_repo(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_git_repo)
    assert get_repo_root() == tmp_git_repo
    assert get_checkpoint_db_path() == str(tmp_git_repo / ".agentos" / "issue_workflow.db")
    assert (tmp_git_repo / ".agentos" / ".gitignore").read_text() == "*\n"


def test_t2_env_var_override_skips_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no git to be found
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", str(tmp_path / "x.db"))
    assert get_checkpoint_db_path() == str(tmp_path / "x.db")


def test_t3_fail_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="AGENTOS_WORKFLOW_DB") as caught:
        get_checkpoint_db_path()
    assert isinstance(caught.value, WorkflowConfigurationError)
    assert str(caught.value).startswith("Cannot determine checkpoint database location")
    with pytest.raises(RuntimeError, match="not in a git repository"):
        get_repo_root()


def test_t4_worktree_isolation(tmp_worktree: tuple[Path, Path]) -> None:
    main, worktree = tmp_worktree
    assert get_repo_root(worktree) == worktree
    assert get_checkpoint_db_path(worktree) == str(worktree / ".agentos" / "issue_workflow.db")
    assert get_checkpoint_db_path(main) != get_checkpoint_db_path(worktree)


def test_t5_subdir_resolution(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_git_repo / "src" / "module"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert get_checkpoint_db_path() == str(tmp_git_repo / ".agentos" / "issue_workflow.db")


def test_m010_concurrent_execution_in_three_repos(tmp_path: Path) -> None:
    """The seed's manual test, done by the machine."""
    repos = [new_repo(tmp_path / name) for name in ("one", "two", "three")]
    running = [subprocess.Popen([sys.executable, LAUNCHER], cwd=repo, stderr=subprocess.PIPE) for repo in repos]
    said = [process.communicate(timeout=60)[1].decode() for process in running]
    assert [process.returncode for process in running] == [SETTLED] * 3
    for repo, text in zip(repos, said, strict=True):
        assert str(repo / ".agentos" / "issue_workflow.db") in text
        assert [path.name for path in (repo / ".agentos").iterdir()] == [".gitignore"]
