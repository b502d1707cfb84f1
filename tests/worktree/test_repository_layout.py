"""A process asks git once where a repository is, and again as soon as anything has changed that git would go by."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos import Client, Workflow, run
from agentos.exceptions import WorkflowConfigurationError
from agentos.worktree.git import find_origin, find_repository
from tests.conftest import git

SHIM = """#!/bin/sh
echo "$@" >> {log}
exec {git} "$@"
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often git was started since the last call: by a program of that name that counts, and is git."""
    real, log = shutil.which("git"), tmp_path / "asked"
    folder = tmp_path / "shim"
    folder.mkdir()
    (folder / "git").write_text(SHIM.format(log=log, git=real))
    (folder / "git").chmod(0o755)
    log.touch()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def count() -> int:
        lines = log.read_text().splitlines()
        log.write_text("")
        return len(lines)

    return count


def test_a_hundred_runs_of_a_process_ask_git_once(tmp_git_repo: Path, asked: Callable[[], int]) -> None:
    flow = Workflow("short")
    flow.add("t", lambda: 1)
    for _ in range(100):
        run(flow, repo=tmp_git_repo, durability="process")
    assert asked() == 1
    for _ in range(10):
        Client(tmp_git_repo).list_runs()
    assert asked() == 0


def test_from_another_directory_git_is_asked_for_that_one(
    tmp_git_repo: Path, asked: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_git_repo / "src" / "deep"
    inside.mkdir(parents=True)
    for directory, times in ((tmp_git_repo, 1), (inside, 1), (tmp_git_repo, 0), (inside, 0)):
        assert find_repository(directory).root == tmp_git_repo
        assert asked() == times


Change = Callable[[Path], Path | None]


def make_nested(root: Path) -> Path:
    git("init", "--quiet", str(root / "src"), cwd=root)
    return root / "src"


def move(root: Path) -> Path:
    return root.rename(root.parent / "moved") / "src"


def replace(root: Path) -> Path:
    shutil.rmtree(root / ".git")
    git("init", "--quiet", str(root), cwd=root)
    return root / "src"


def set_worktree(root: Path) -> Path:
    git("config", "core.worktree", "..", cwd=root)  # as it was, said in words
    return root / "src"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (make_nested, lambda root: root / "src"),
        (move, lambda root: root.parent / "moved"),
        (replace, lambda root: root),
        (set_worktree, lambda root: root),
    ],
)
def test_what_has_changed_is_asked_about_anew(
    tmp_git_repo: Path, asked: Callable[[], int], change: Callable[[Path], Path], found: Callable[[Path], Path]
) -> None:
    (tmp_git_repo / "src").mkdir()
    find_repository(tmp_git_repo / "src")
    find_repository(tmp_git_repo / "src")
    assert asked() == 1
    directory = change(tmp_git_repo)
    asked()
    assert find_repository(directory).root == found(tmp_git_repo)
    assert asked() == 1


def test_a_repository_that_is_gone_is_found_no_more(tmp_git_repo: Path) -> None:
    find_repository(tmp_git_repo)
    shutil.rmtree(tmp_git_repo / ".git")
    with pytest.raises(WorkflowConfigurationError, match="not in a git repository"):
        find_repository(tmp_git_repo)


def test_one_that_became_bare_has_no_worktree_any_more(tmp_git_repo: Path) -> None:
    find_repository(tmp_git_repo)
    git("config", "core.bare", "true", cwd=tmp_git_repo)
    with pytest.raises(WorkflowConfigurationError, match="bare"):
        find_repository(tmp_git_repo)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_one_that_became_another_users_is_not_trusted_any_more(tmp_git_repo: Path) -> None:
    find_repository(tmp_git_repo)
    os.chown(tmp_git_repo, 65534, 65534)
    with pytest.raises(WorkflowConfigurationError, match="dubious ownership"):
        find_repository(tmp_git_repo)


def test_linked_worktrees_are_told_apart(tmp_git_repo: Path, asked: Callable[[], int]) -> None:
    git("commit", "--quiet", "--allow-empty", "-m", "first", cwd=tmp_git_repo)
    other = tmp_git_repo.parent / "other"
    git("worktree", "add", "--quiet", str(other), cwd=tmp_git_repo)
    asked()
    for _ in range(2):
        assert (find_repository(tmp_git_repo).root, find_repository(other).root) == (tmp_git_repo, other)
    assert asked() == 2


def test_origin_is_asked_for_anew_where_settings_changed_or_include_others(
    tmp_git_repo: Path, asked: Callable[[], int]
) -> None:
    found = find_repository(tmp_git_repo)
    assert find_origin(found) == ""
    git("remote", "add", "origin", "https://host.example/one.git", cwd=tmp_git_repo)
    asked()
    assert [find_origin(found) for _ in range(3)] == ["https://host.example/one.git"] * 3
    assert asked() == 1
    more = tmp_git_repo / "more"
    git("config", "include.path", str(more), cwd=tmp_git_repo)
    for name in ("two", "three"):  # what other files say is not looked at: git is asked each time
        more.write_text(f'[remote "origin"]\n\turl = https://host.example/{name}.git\n')
        assert find_origin(found) == f"https://host.example/{name}.git"
    assert stat.S_ISREG(more.stat().st_mode)
