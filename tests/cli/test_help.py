"""What somebody sees who types `agentos`, or words that other tools have."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentos.cli.main import EVERY_DAY, SECTIONS
from tests.cli.conftest import Agentos
from tests.crash.harness import wait_for


def test_the_front_page_has_ten_commands_and_the_way_to_the_rest(agentos: Agentos, tmp_path: Path) -> None:
    for words in ((), ("help",)):
        shown = agentos(*words, cwd=tmp_path)
        assert shown.code == 0
        assert [line.split()[1] for line in shown.out.splitlines() if line.startswith("  agentos ")] == [*EVERY_DAY]
        assert "agentos help --all" in shown.out
        assert len(shown.out.splitlines()) <= 24, "one screen"


def test_help_knows_every_command(agentos: Agentos, tmp_path: Path) -> None:
    every = agentos("help", "--all", cwd=tmp_path)
    assert every.out == agentos("--help", cwd=tmp_path).out
    assert all(f"  {name} " in every.out for section in SECTIONS.values() for name in section)
    assert agentos("help", "resume", cwd=tmp_path).out == agentos("resume", "--help", cwd=tmp_path).out
    unknown = agentos("help", "resum", cwd=tmp_path)
    assert unknown.code == 2
    assert "no command 'resum'" in unknown.err


@pytest.mark.parametrize(("typed", "meant"), [("ls", "list"), ("ps", "list"), ("status", "show"), ("rm", "delete")])
def test_words_of_other_tools_are_understood(agentos: Agentos, tmp_path: Path, typed: str, meant: str) -> None:
    assert (
        agentos(typed, "--help", cwd=tmp_path).out.splitlines()[2:]
        == (agentos(meant, "--help", cwd=tmp_path).out.splitlines()[2:])
    )


def test_keys_of_other_tools_get_the_right_word(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "flow.yaml").write_text(
        "steps: {}\ntasks:\n  a: {run: echo 1}\n  b: {script: echo 2, depends_on: a, when: '1 == 1', timeout: 3}\n"
        "  c: {steps: [echo 3]}\n"
    )
    told = agentos("check", "flow.yaml", cwd=tmp_git_repo).out
    assert re.search(r"tasks\.c\.steps: .*\(did you mean 'run'\?\)", told)
    for word in ("tasks", "run", "needs", "if", "timeout_s"):
        assert f"(did you mean {word!r}?)" in told


def test_a_parameter_that_is_spelt_nearly_like_a_task_is_told(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "flow.py").write_text(
        "from agentos import Workflow\nflow = Workflow('f')\n"
        "@flow.task\ndef fetch(): return 1\n@flow.task\ndef total(fech): return 2\n"
    )
    for words in (("run", "flow.py"), ("check", "flow.py")):
        told = agentos(*words, cwd=tmp_git_repo)
        assert "(did you mean the task 'fetch'?)" in told.out + told.err


def test_a_second_run_waits_for_its_turn_where_it_is_asked_to(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "flow.yaml").write_text(
        "tasks:\n  a:\n    run: touch ../begun; until [ -e ../go ]; do sleep 0.1; done; echo $AGENTOS_WORKFLOW_ID >>f\n"
    )
    first = subprocess.Popen(
        [sys.executable, "-m", "agentos", "run", "flow.yaml", "--id", "one", "-q"],
        cwd=tmp_git_repo,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for((tmp_git_repo.parent / "begun").exists, "the first run at work")
        refused = agentos("run", "flow.yaml", "--id", "two", cwd=tmp_git_repo)
        assert refused.code == 75
        assert "--wait" in refused.err
        assert "`effects: none`" in refused.err
        said = tmp_git_repo.parent / "said"
        with said.open("w") as file:
            second = subprocess.Popen(
                [sys.executable, "-m", "agentos", "run", "flow.yaml", "--id", "two", "-q", "--wait"],
                cwd=tmp_git_repo,
                stderr=file,
            )
        try:
            wait_for(lambda: "Waiting: another run changes files" in said.read_text(), "the second run to say so")
            (tmp_git_repo.parent / "go").touch()
            assert (first.wait(60), second.wait(60)) == (0, 0)
        finally:
            second.kill()
    finally:
        first.kill()
    assert (tmp_git_repo / "f").read_text().splitlines() == ["one", "two"]
