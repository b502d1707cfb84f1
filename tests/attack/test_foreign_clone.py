"""A clone that wants more than to be looked at: modules that stand in for ours, links, pipes, files without end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import SOURCES, Agentos, agentos

__all__ = ["agentos"]

pytestmark = pytest.mark.attack

LOOKS = (["list"], ["inbox"], ["doctor"], ["check", "flow"], ["graph", "flow"], ["db", "path"], ["init", "new"])
FLOW = 'name: flow\ntasks:\n  a: {python: "evil.part:f", effects: none}\n'


@pytest.fixture
def clone(tmp_git_repo: Path) -> Path:
    """Its root has modules of the names that we import, and a package that a workflow names."""
    names = ("click", "msgspec", "platformdirs", "yaml", "psutil", "sqlite3", "tomllib", "sitecustomize")
    for name in (*names, "usercustomize", "difflib"):
        (tmp_git_repo / f"{name}.py").write_text(f"open({str(tmp_git_repo / 'owned')!r}, 'a').write({name!r})\n")
    (tmp_git_repo / "evil").mkdir()
    (tmp_git_repo / "evil" / "__init__.py").write_text((tmp_git_repo / "click.py").read_text())
    (tmp_git_repo / "evil" / "part.py").write_text("def f(): pass\n")
    (tmp_git_repo / "workflows").mkdir()
    (tmp_git_repo / "workflows" / "flow.yaml").write_text(FLOW)
    return tmp_git_repo


def test_modules_of_a_clone_stand_in_for_none_of_ours(agentos: Agentos, clone: Path) -> None:
    for words in LOOKS:
        done = agentos(*words, cwd=clone)
        assert (done.code, (clone / "owned").exists()) == (0, False), (words, done.err)


def test_completion_loads_nothing_of_a_clone(agentos: Agentos, clone: Path) -> None:
    for typed in ("agentos run f", "agentos show "):
        env = {"_AGENTOS_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        assert agentos(cwd=clone, env=env).err == ""
    assert not (clone / "owned").exists()


def test_check_says_that_it_imports_python_files(agentos: Agentos) -> None:
    said = agentos("check", "--help").out
    assert "imports Python files" in said
    assert "Runs nothing" not in said + agentos("--help").out


def test_a_workflow_that_is_a_link_out_of_the_clone_is_not_quoted(
    agentos: Agentos, tmp_git_repo: Path, tmp_path: Path
) -> None:
    (tmp_path / "credentials").write_text("the-key-of-the-user: 1\n")
    (tmp_git_repo / "workflows").mkdir()
    (tmp_git_repo / "workflows" / "flow.yaml").symlink_to(tmp_path / "credentials")
    for words in (["check", "flow"], ["check", "workflows/flow.yaml"], ["graph", "flow"], ["run", "flow"]):
        done = agentos(*words, cwd=tmp_git_repo)
        assert (done.code, "the-key-of-the-user" in done.out + done.err) == (2, False), done
        assert "out of the repository" in done.out + done.err
    (tmp_path / "mine.yaml").write_text("name: mine\ntasks: {a: {run: 'true', effects: none}}\n")
    assert agentos("check", tmp_path / "mine.yaml", cwd=tmp_git_repo).code == 0, "one that the user names"
    (tmp_git_repo / "workflows" / "near.yaml").symlink_to("../near")
    (tmp_git_repo / "near").write_text((tmp_path / "mine.yaml").read_text())
    assert agentos("check", "near", cwd=tmp_git_repo).code == 0, "a link that stays inside"


def test_pipes_and_files_without_end_keep_nobody_waiting(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "workflows").mkdir()
    os.mkfifo(tmp_git_repo / "workflows" / "pipe.yaml")
    (tmp_git_repo / "workflows" / "zero.yaml").symlink_to("/dev/zero")
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}

    def code(*words: str) -> int:
        program = [sys.executable, "-m", "agentos", *words]
        return subprocess.run(program, cwd=tmp_git_repo, env=env, capture_output=True, timeout=60).returncode

    assert [code("check", "pipe"), code("check", "zero")] == [2, 2]
    for name in ("agentos.toml", "pyproject.toml"):
        os.mkfifo(tmp_git_repo / name)
        assert code("list") == (1 if name == "agentos.toml" else 0)
        (tmp_git_repo / name).unlink()
