from __future__ import annotations

from pathlib import Path

import pytest

from agentos.worktree.snapshots.store import Worktree, open_worktree
from tests.conftest import git


@pytest.fixture
def root(tmp_git_repo: Path) -> Path:
    """A repository with a few files of every plain kind, committed."""
    (tmp_git_repo / ".gitignore").write_text("*.log\nbuild/\n")
    (tmp_git_repo / "src").mkdir()
    (tmp_git_repo / "src/main.py").write_text("print('one')\n")
    (tmp_git_repo / "src/util.py").write_text("util = 1\n")
    (tmp_git_repo / "run.sh").write_text("#!/bin/sh\n")
    (tmp_git_repo / "run.sh").chmod(0o755)
    (tmp_git_repo / "link").symlink_to("src/main.py")
    git("add", "--all", cwd=tmp_git_repo)
    git("commit", "--quiet", "--message", "second", cwd=tmp_git_repo)
    return tmp_git_repo


@pytest.fixture
def worktree(root: Path) -> Worktree:
    return open_worktree(root)
