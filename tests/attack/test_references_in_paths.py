"""References in `cwd` and `produces` are replaced wherever the paths are looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Agentos, agentos
from tests.marks import quick_first

__all__ = ["agentos"]

pytestmark = pytest.mark.attack

FLOW = """
name: flow
params: {folder: sub}
defaults: {idempotent: true}
tasks:
  names:
    run: [echo, '["a.txt", "b.txt"]']
    effects: none
    output: json
  made:
    run: "echo made >> ../trace; touch here"
    cwd: "${{ params.folder }}"
    produces: "${{ params.folder }}/here"
  many:
    needs: names
    run: "touch a.txt b.txt; echo many >> trace"
    produces: ["${{ tasks.names.output }}", "${{ tasks.names.output[0] }}"]
  each:
    for_each: "${{ tasks.names.output }}"
    run: "echo each >> trace; touch each-${{ item }}"
    produces: "each-${{ item }}"
  last: {needs: [made, many, each], run: "[ -e go ]", effects: none}
"""


@pytest.fixture
def repo(tmp_git_repo: Path, agentos: Agentos) -> Path:
    (tmp_git_repo / "flow.yaml").write_text(FLOW)
    (tmp_git_repo / "sub").mkdir()
    ended = agentos("run", "flow.yaml", "--id", "r", cwd=tmp_git_repo)
    assert ended.code == 1, ended.err
    return tmp_git_repo


def trace(repo: Path) -> list[str]:
    return sorted((repo / "trace").read_text().split())


def test_a_command_runs_in_the_folder_that_a_reference_names(repo: Path) -> None:
    assert (repo / "sub" / "here").exists()


def test_what_was_produced_is_found_and_nothing_runs_again(repo: Path, agentos: Agentos) -> None:
    before = trace(repo)
    planned = json.loads(agentos("resume", "r", "--dry-run", "--json", cwd=repo).out)
    verdicts = {row["id"]: row["verdict"] for row in planned["tasks"]}
    assert {name for name, verdict in verdicts.items() if verdict == "rerun"} == {"last"}
    assert agentos("resume", "r", cwd=repo).code == 1
    assert trace(repo) == before


@pytest.mark.parametrize(
    ("gone", "task"),
    quick_first([("sub/here", "made"), ("b.txt", "many"), ("a.txt", "many"), ("each-b.txt", "each[1]")]),
)
def test_what_is_gone_is_made_again_and_named(repo: Path, agentos: Agentos, gone: str, task: str) -> None:
    (repo / gone).unlink()
    (repo / "go").touch()
    planned = json.loads(agentos("resume", "r", "--dry-run", "--json", cwd=repo).out)
    reasons = {row["id"]: row["reason"] for row in planned["tasks"] if row["verdict"] == "rerun"}
    assert gone in reasons[task]
    assert agentos("resume", "r", cwd=repo).code == 0
    assert (repo / gone).exists()
    assert agentos("fork", cut(agentos, repo), "--id", "f", cwd=repo).code == 0


def cut(agentos: Agentos, repo: Path) -> str:
    checkpoint: str = json.loads(agentos("checkpoints", "r", "--json", cwd=repo).out)[-1]["id"]
    return checkpoint


def test_an_isolated_task_works_in_that_folder_of_its_own_worktree(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "sub").mkdir()
    (tmp_git_repo / "sub" / "there").touch()
    (tmp_git_repo / "flow.yaml").write_text(
        "name: flow\nparams: {folder: sub}\ntasks:\n"
        '  alone: {run: "touch made", cwd: "${{ params.folder }}", isolation: worktree}\n'
    )
    ended = agentos("run", "flow.yaml", "--id", "r", cwd=tmp_git_repo)
    assert ended.code == 0, ended.err
    assert (tmp_git_repo / "sub" / "made").exists()


def test_an_approval_holds_for_the_folder_that_was_shown(agentos: Agentos, tmp_git_repo: Path) -> None:
    for folder in ("one", "two"):
        (tmp_git_repo / folder).mkdir()
    (tmp_git_repo / "folder").write_text("one")
    (tmp_git_repo / "flow.yaml").write_text(
        "name: flow\ntasks:\n  which: {run: cat folder, effects: none}\n"
        '  ship: {run: "touch shipped", cwd: "${{ tasks.which.output.stdout }}", approve: "Ship?"}\n'
    )
    assert agentos("run", "flow.yaml", "--id", "r", cwd=tmp_git_repo).code == 3
    shown = json.loads(agentos("show", "r", "--json", cwd=tmp_git_repo).out)
    assert "one" in shown["gates"][0]["inputs"]
    assert agentos("approve", "r", "--no-resume", cwd=tmp_git_repo).code == 0
    (tmp_git_repo / "folder").write_text("two")
    assert agentos("resume", "r", "--rerun", "which", cwd=tmp_git_repo).code == 3, "the gate asks anew"
    assert not (tmp_git_repo / "two" / "shipped").exists()
