"""What tests of the client share: a repository with a few workflows of every sort."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import git

EDIT = """
name: edit
tasks:
  write: {run: "echo one > one.txt; echo written"}
  more:  {needs: write, run: "echo two >> one.txt; echo bad >&2"}
"""

ASK = """
name: ask
params: {word: hello}
tasks:
  before: {run: "echo ${{ params.word }}", effects: none}
  ship:   {needs: before, approve: "Ship it?", run: "echo ${{ tasks.before.output.stdout }} > shipped.txt"}
"""

SLOW = """
name: slow
tasks:
  long: {run: "echo begun; echo begun > begun; until [ -e go ]; do sleep 0.05; done; echo over", effects: none}
"""


@pytest.fixture
def repo(tmp_git_repo: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with `workflows/`, in which the test is."""
    folder = tmp_git_repo / "workflows"
    folder.mkdir()
    for name, text in {"edit": EDIT, "ask": ASK, "slow": SLOW}.items():
        (folder / f"{name}.yaml").write_text(text)
    (tmp_git_repo / ".gitignore").write_text("begun\ngo\n")
    git("add", ".", cwd=tmp_git_repo)
    git("commit", "--quiet", "--message", "workflows", cwd=tmp_git_repo)
    monkeypatch.chdir(tmp_git_repo)
    return tmp_git_repo
