"""`agentos completion`: what the shell offers, asked as the shells ask."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Agentos
from tests.cli.sample import begin, make_repository


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_repository(tmp_path_factory.mktemp("completion") / "repo")
    begin(root, "flow", "waits", expected="waiting")
    begin(root, "good", "ended", expected="complete")
    return root


def offered(agentos: Agentos, repo: Path, typed: str) -> list[str]:
    words = typed.split(" ")
    env = {"_AGENTOS_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    done = agentos(cwd=repo, env=env)
    assert (done.code, done.err) == (0, "")
    return [line.partition(",")[2] for line in done.out.split()]


def test_ids_that_are_there_are_offered(agentos: Agentos, repo: Path) -> None:
    assert offered(agentos, repo, "agentos show ") == ["ended", "waits"]
    assert offered(agentos, repo, "agentos approve w") == ["waits"]
    assert offered(agentos, repo, "agentos approve waits ") == ["ship"]
    assert offered(agentos, repo, "agentos why waits n") == ["never", "notes"]
    assert len(offered(agentos, repo, "agentos diff ")) == 4
    assert set(offered(agentos, repo, "agentos ch")) >= {"checkpoints"}
    assert len(offered(agentos, repo, "agentos fork ")) == 4
    assert offered(agentos, repo, "agentos resume e") == ["ended"]
    (repo / "workflows").mkdir(exist_ok=True)
    (repo / "workflows" / "nightly.yaml").touch()
    assert offered(agentos, repo, "agentos run n") == ["nightly", "n"], "and what the shell knows of files"
    assert "--status" in offered(agentos, repo, "agentos list --s")
    assert offered(agentos, repo, "agentos list --status w") == ["waiting"]


def test_whatever_is_wrong_nothing_is_offered_and_nothing_said(agentos: Agentos, repo: Path, tmp_path: Path) -> None:
    assert offered(agentos, tmp_path, "agentos show ") == []
    assert offered(agentos, repo, "agentos why nonsense ") == []
    assert offered(agentos, repo, "agentos nonsense x") == []
    broken = make_repository(tmp_path / "broken")
    (broken / ".agentos").mkdir(mode=0o700)
    (broken / ".agentos" / "issue_workflow.db").write_text("no database")
    assert offered(agentos, broken, "agentos show ") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_the_shell_can_read(agentos: Agentos, shell: str, tmp_path: Path) -> None:
    done = agentos("completion", shell, cwd=tmp_path)
    assert done.code == 0
    assert "_AGENTOS_COMPLETE" in done.out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.out, text=True, check=True)


def test_an_unknown_shell_is_wrong_usage(agentos: Agentos, tmp_path: Path) -> None:
    assert agentos("completion", "tcsh", cwd=tmp_path).code == 2
