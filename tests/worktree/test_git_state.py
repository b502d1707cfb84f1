"""HEAD, branch and index come back on request, by compare and swap, and never otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentos.exceptions import RestoreError
from agentos.worktree.restore.git_state import restore_git
from agentos.worktree.snapshots.manifest import Head
from agentos.worktree.snapshots.store import Worktree, open_worktree
from agentos.worktree.snapshots.survey import read_head
from tests.conftest import LinkedWorktree, git
from tests.worktree.support import back, install_hooks, model, run_git, snap, user_state


def commit(root: Path, message: str) -> str:
    git("add", "--all", cwd=root)
    git("commit", "--quiet", "--no-verify", "--message", message, cwd=root)
    return git("rev-parse", "HEAD", cwd=root)


def test_head_branch_and_index_come_back(root: Path, worktree: Worktree) -> None:
    (root / "staged").write_text("staged")
    (root / "src/main.py").write_text("staged, too\n")
    git("add", "staged", "src/main.py", cwd=root)
    (root / "src/main.py").write_text("and edited after\n")
    install_hooks(root)
    status, files = git("status", "--porcelain", cwd=root), model(root)
    first = snap(worktree)
    git("-c", "core.hooksPath=/dev/null", "checkout", "--quiet", "-b", "agent", cwd=root)
    (root / "more").write_text("more")
    git("-c", "core.hooksPath=/dev/null", "add", "--all", cwd=root)
    git("-c", "core.hooksPath=/dev/null", "commit", "--quiet", "--message", "by the agent", cwd=root)
    git("-c", "core.hooksPath=/dev/null", "gc", "--quiet", "--prune=now", cwd=root)
    ran = user_state(root)["hooks that ran"]
    undo = back(worktree, first).undo
    before = restore_git(worktree, first, expected=undo.head)
    assert user_state(root)["hooks that ran"] == ran
    assert before.ref == "refs/heads/agent"
    assert git("symbolic-ref", "HEAD", cwd=root) == "refs/heads/main"
    assert git("status", "--porcelain", cwd=root) == status
    assert git("show", ":src/main.py", cwd=root) == "staged, too"
    assert model(root) == files
    assert git("log", "-1", "--format=%s", "agent", cwd=root) == "by the agent"
    assert run_git(root, "fsck").returncode == 0


@pytest.mark.parametrize(
    "commands",
    [
        (),
        (("pack-refs", "--all", "--prune"),),
        (("pack-refs", "--all", "--prune"), ("commit", "--quiet", "--allow-empty", "--message", "after")),
        (("checkout", "--quiet", "-b", "release/1.2"),),
        (("checkout", "--quiet", "-b", "sub/branch"), ("pack-refs", "--all")),
        (("checkout", "--quiet", "--detach"),),
        (("symbolic-ref", "refs/heads/alias", "refs/heads/main"), ("symbolic-ref", "HEAD", "refs/heads/alias")),
    ],
)
def test_head_is_what_git_says(root: Path, commands: tuple[tuple[str, ...], ...]) -> None:
    for command in commands:
        git(*command, cwd=root)
    branch = run_git(root, "symbolic-ref", "HEAD").stdout.decode().strip()
    worktree = open_worktree(root)
    found = read_head(worktree, worktree.user_git())
    assert found.oid == git("rev-parse", "HEAD", cwd=root)
    assert found.ref in (branch or None, git("rev-parse", "--symbolic-full-name", "HEAD", cwd=root))


def test_head_of_a_linked_worktree_is_its_own(tmp_worktree: LinkedWorktree) -> None:
    for root in (tmp_worktree.main, tmp_worktree.worktree):
        worktree = open_worktree(root)
        found = read_head(worktree, worktree.user_git())
        assert found == Head(ref=git("symbolic-ref", "HEAD", cwd=root), oid=git("rev-parse", "HEAD", cwd=root))


def test_a_branch_that_moved_is_moved_back_with_its_reflog(root: Path, worktree: Worktree) -> None:
    first = snap(worktree)
    (root / "more").write_text("more")
    ahead = commit(root, "by the agent")
    restore_git(worktree, first, expected=Head(ref="refs/heads/main", oid=ahead))
    assert git("rev-parse", "HEAD", cwd=root) == first.head.oid
    assert git("rev-parse", "main@{1}", cwd=root) == ahead
    assert git("status", "--porcelain", cwd=root) == "?? more"


def test_a_detached_head_comes_back(root: Path, worktree: Worktree) -> None:
    git("checkout", "--quiet", "--detach", "HEAD~1", cwd=root)
    first = snap(worktree)
    git("checkout", "--quiet", "main", cwd=root)
    now = Head(ref="refs/heads/main", oid=git("rev-parse", "main", cwd=root))
    restore_git(worktree, first, expected=now)
    assert run_git(root, "symbolic-ref", "-q", "HEAD").returncode == 1
    assert git("rev-parse", "HEAD", cwd=root) == first.head.oid
    assert git("rev-parse", "main", cwd=root) == now.oid


def test_conflicts_in_the_index_come_back(root: Path, worktree: Worktree) -> None:
    git("checkout", "--quiet", "-b", "other", cwd=root)
    (root / "src/main.py").write_text("theirs\n")
    commit(root, "theirs")
    git("checkout", "--quiet", "main", cwd=root)
    (root / "src/main.py").write_text("ours\n")
    commit(root, "ours")
    assert run_git(root, "merge", "other").returncode == 1
    listing = git("ls-files", "--stage", cwd=root)
    first = snap(worktree)
    git("add", "--all", cwd=root)
    restore_git(worktree, first, expected=first.head)
    assert git("ls-files", "--stage", cwd=root) == listing
    assert "UU src/main.py" in git("status", "--porcelain", cwd=root)


def test_a_head_that_moved_meanwhile_is_left_alone(root: Path, worktree: Worktree) -> None:
    first = snap(worktree)
    expected = first.head
    (root / "more").write_text("more")
    commit(root, "by the user")
    before = user_state(root)
    with pytest.raises(RestoreError, match="HEAD is at"):
        restore_git(worktree, first, expected=expected)
    assert user_state(root) == before


def test_an_index_in_use_is_left_alone(root: Path, worktree: Worktree) -> None:
    first = snap(worktree)
    (root / ".git/index.lock").write_text("held")
    before = user_state(root)
    with pytest.raises(RestoreError, match="using the index"):
        restore_git(worktree, first, expected=first.head)
    assert user_state(root) == before


def test_a_commit_that_is_gone_is_told(root: Path, worktree: Worktree) -> None:
    (root / "more").write_text("more")
    commit(root, "to be dropped")
    first = snap(worktree)
    git("reset", "--quiet", "--hard", "HEAD~1", cwd=root)
    git("reflog", "expire", "--expire=now", "--all", cwd=root)
    git("gc", "--quiet", "--prune=now", cwd=root)
    now = Head(ref="refs/heads/main", oid=git("rev-parse", "HEAD", cwd=root))
    with pytest.raises(RestoreError, match="no longer in this repository"):
        restore_git(worktree, first, expected=now)


def test_there_is_no_way_back_before_the_first_commit(tmp_path: Path) -> None:
    git("init", "--quiet", str(tmp_path / "r"), cwd=tmp_path)
    worktree = open_worktree((tmp_path / "r").resolve())
    first = snap(worktree)
    with pytest.raises(RestoreError, match="before the first commit"):
        restore_git(worktree, first, expected=first.head)
