"""`agentos diff` of files: between two checkpoints, and what one task did."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli import edits
from tests.cli.conftest import Agentos
from tests.conftest import git

PARALLEL = """
name: beside
tasks:
  left:  {run: "echo left > left.txt; until [ -e right.txt ]; do sleep 0.05; done"}
  right: {run: "echo right > right.txt; until [ -e left.txt ]; do sleep 0.05; done"}
  none:  {needs: [left, right], run: "true", effects: none}
"""

ASIDE = """
name: aside
defaults: {isolation: worktree}
tasks:
  left:  {run: "echo left > left.txt; echo left >> mine.txt"}
  right: {run: "echo right > right.txt"}
  none:  {run: "true"}
  each:  {for_each: [1, 2], run: ["sh", "-c", "echo x > $0.txt", "${{ item }}"], key: item}
"""


@pytest.fixture
def repo(tmp_git_repo: Path, home: Path) -> Path:
    return edits.make_repository(tmp_git_repo)


def test_files_of_two_checkpoints_are_compared(agentos: Agentos, repo: Path) -> None:
    first, second, last = edits.complete(agentos, repo)
    done = agentos("diff", first, last, cwd=repo)
    assert done.code == 0
    listed = done.out.split("Files\n")[1].splitlines()
    assert listed == ["A  last.txt", "M  src/one.txt", "M  tool.sh", "D  two.txt"]
    shown = edits.shown(agentos, repo, "diff", first, second)
    assert shown["kind"] == "states"
    assert shown["files"]["compared"]
    assert not shown["same"]
    assert {row["path"]: row["change"] for row in shown["files"]["changes"]} == {
        "src/one.txt": "modified",
        "tool.sh": "modified",
        "two.txt": "deleted",
    }
    same = edits.shown(agentos, repo, "diff", last, last)
    assert same["same"]
    assert same["files"]["changes"] == []


def test_a_patch_is_one_that_git_applies(agentos: Agentos, repo: Path) -> None:
    first, _, last = edits.complete(agentos, repo)
    done = agentos("diff", first, last, "--patch", cwd=repo)
    assert done.out.startswith("diff --git ")
    assert agentos("restore", first, cwd=repo).code == 0
    subprocess.run(["git", "apply"], input=done.out, text=True, cwd=repo, check=True)
    assert (repo / "src" / "one.txt").read_text() == "one\nchanged\n"
    assert not (repo / "two.txt").exists()


def test_paths_limit_it(agentos: Agentos, repo: Path) -> None:
    first, _, last = edits.complete(agentos, repo)
    done = agentos("diff", first, last, "--path", "src/", "--patch", cwd=repo)
    assert "src/one.txt" in done.out
    assert "last.txt" not in done.out
    shown = edits.shown(agentos, repo, "diff", first, last, "--path", "src", "--path", "last.txt")
    assert [row["path"] for row in shown["files"]["changes"]] == ["last.txt", "src/one.txt"]


def test_what_a_task_did_is_shown(agentos: Agentos, repo: Path) -> None:
    edits.complete(agentos, repo)
    done = agentos("diff", "run-1", "change", cwd=repo)
    assert done.out.splitlines() == ["M  src/one.txt", "M  tool.sh", "D  two.txt"]
    shown = edits.shown(agentos, repo, "diff", "run-1", "write", "--patch")
    assert (shown["kind"], shown["task_id"], shown["others"]) == ("task", "write", [])
    assert "+two" in shown["patch"]


def test_tasks_that_overlapped_are_named(agentos: Agentos, repo: Path) -> None:
    (repo / "beside.yaml").write_text(PARALLEL)
    assert agentos("run", "beside.yaml", "--id", "beside", "-q", cwd=repo).code == 0
    done = agentos("diff", "beside", "left", cwd=repo)
    assert done.out.splitlines() == ["A  left.txt", "A  right.txt"]
    assert "may be theirs: right" in done.err
    none = agentos("diff", "beside", "none", cwd=repo)
    assert none.code == 0
    assert "declared to change none" in none.err


def test_what_an_isolated_task_did_is_its_own(agentos: Agentos, repo: Path) -> None:
    (repo / "aside.yaml").write_text(ASIDE)
    assert agentos("run", "aside.yaml", "--id", "aside", "-q", cwd=repo).code == 0
    done = agentos("diff", "aside", "left", cwd=repo)
    assert (done.out.splitlines(), done.err) == (["M  mine.txt", "A  left.txt"][::-1], "")
    shown = edits.shown(agentos, repo, "diff", "aside", "right", "--patch")
    assert ([row["path"] for row in shown["files"]["changes"]], shown["others"]) == (["right.txt"], [])
    assert "+right" in shown["patch"]
    assert "No file differs" in agentos("diff", "aside", "none", cwd=repo).err
    assert "name one, as each[…]" in agentos("diff", "aside", "each", cwd=repo).err
    assert agentos("diff", "aside", "each[1]", cwd=repo).out == "A  1.txt\n"


def test_a_task_that_was_cut_off_has_not_ended(agentos: Agentos, repo: Path) -> None:
    edits.killed(repo)
    assert "has not ended" in agentos("diff", "cut-1", "slow", cwd=repo).err
    assert agentos("resume", "cut-1", "-q", cwd=repo).code == 0
    assert agentos("diff", "cut-1", "slow", "--patch", cwd=repo).out.endswith("+two\n")


def test_a_snapshot_that_is_gone_is_said(agentos: Agentos, repo: Path) -> None:
    edits.complete(agentos, repo)
    assert agentos("prune", "run-1", "--keep", "1", cwd=repo).code == 0
    done = agentos("diff", "run-1", "write", cwd=repo)
    assert (done.code, done.out) == (0, "")
    assert "gone" in done.err
    # What the last task left is the newest snapshot; what it began with is gone.
    assert "gone" in agentos("diff", "run-1", "last", cwd=repo).err


def test_what_has_no_snapshot_is_said(agentos: Agentos, repo: Path) -> None:
    (repo / "plain.yaml").write_text('name: plain\ntasks: {a: {run: "true", effects: none}}\n')
    assert agentos("run", "plain.yaml", "--id", "plain", "-q", cwd=repo).code == 0
    first, *_ = edits.complete(agentos, repo)
    done = agentos("diff", first, "plain", cwd=repo)
    assert done.code == 0
    assert "the second has no snapshot of the files" in done.err


def test_two_worktrees_of_one_repository_are_compared(agentos: Agentos, repo: Path, tmp_path: Path) -> None:
    edits.complete(agentos, repo)
    other = tmp_path / "other"
    git("worktree", "add", "--quiet", str(other), cwd=repo)
    assert agentos("run", "edits", "--id", "there", "-q", cwd=other).code == 0
    shown = edits.shown(agentos, repo, "diff", "run-1", "there")
    assert [row["path"] for row in shown["files"]["changes"]] == ["mine.txt"]


def test_the_exact_id_of_a_run_is_not_taken_for_a_task(agentos: Agentos, repo: Path) -> None:
    edits.complete(agentos, repo)
    edits.complete(agentos, repo, "write")
    assert edits.shown(agentos, repo, "diff", "run-1", "write")["kind"] == "states"
    assert edits.shown(agentos, repo, "diff", "run-1", "change")["kind"] == "task"


def test_what_is_no_checkpoint_run_or_task_is_told(agentos: Agentos, repo: Path) -> None:
    edits.complete(agentos, repo)
    done = agentos("diff", "run-1", "nope", cwd=repo)
    assert done.code == 2
    assert "no checkpoint" in done.err
