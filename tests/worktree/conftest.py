from __future__ import annotations

from pathlib import Path

import pytest

from agentos.worktree.snapshots.store import Worktree, open_worktree
from tests.conftest import copy_repository, git


@pytest.fixture(scope="session")
def _root_template(_git_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = copy_repository(_git_template, tmp_path_factory.mktemp("template") / "root")
    (root / ".gitignore").write_text("*.log\nbuild/\n")
    (root / "src").mkdir()
    (root / "src/main.py").write_text("print('one')\n")
    (root / "src/util.py").write_text("util = 1\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("src/main.py")
    git("add", "--all", cwd=root)
    git("commit", "--quiet", "--message", "second", cwd=root)
    return root


@pytest.fixture
def root(tmp_path: Path, _root_template: Path) -> Path:
    """A repository with a few files of every plain kind, committed."""
    return copy_repository(_root_template, tmp_path / "repo")


@pytest.fixture
def worktree(root: Path) -> Worktree:
    return open_worktree(root)
