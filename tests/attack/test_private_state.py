"""All that is kept is for the user alone, whatever the umask says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Agentos

pytestmark = pytest.mark.attack

FILES = """
name: files
tasks:
  a: {run: "echo a >> s.txt", effects: files}
  b: {run: "echo b >> t.txt", effects: files, isolation: worktree, needs: a}
  c: {run: "echo c >> u.txt", effects: files, isolation: worktree, needs: a}
"""


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_nothing_is_open_to_others_whatever_the_umask(
    agentos: Agentos, tmp_git_repo: Path, home: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    (tmp_git_repo / "files.yaml").write_text(FILES)
    before = os.umask(umask)
    try:
        ran = agentos("run", "files.yaml", "--id", "run", cwd=tmp_git_repo)
    finally:
        os.umask(before)
    assert ran.code == 0, ran.err
    kept = [tmp_git_repo / ".agentos", tmp_git_repo / ".git" / "agentos", *home.iterdir()]
    found = {path for folder in kept for path in (folder, *folder.rglob("*")) if not path.is_symlink()}
    assert any("worktrees" in str(path) for path in found if path.is_relative_to(home))
    assert any("objects" in str(path) for path in found)
    assert [path for path in found if path.stat().st_mode & 0o077] == []
