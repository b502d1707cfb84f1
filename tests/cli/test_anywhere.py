"""Runs are found from any directory, through the index of worktrees; where that is ambiguous, it is said."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Agentos
from tests.cli.sample import begin, make_repository
from tests.cli.test_approve import GATES
from tests.conftest import git


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """Two repositories with a waiting run each; one id is in both."""
    roots = (make_repository(tmp_path / "first"), make_repository(tmp_path / "second"))
    for root in roots:
        (root / "gates.py").write_text(GATES)
        begin(root, "one", "same", expected="waiting", name="gates.py")
    begin(roots[1], "one", "other", expected="waiting", name="gates.py")
    return roots


@pytest.fixture
def nowhere(tmp_path: Path) -> Path:
    """A directory that lies in no repository."""
    folder = tmp_path / "nowhere"
    folder.mkdir()
    return folder


def test_list_all_and_inbox_know_every_worktree(agentos: Agentos, both: tuple[Path, Path], nowhere: Path) -> None:
    for directory in (nowhere, both[0]):
        rows = json.loads(agentos("list", "--all", "--json", cwd=directory).out)
        assert [(row["workflow_id"], row["root"]) for row in rows] == [
            ("other", str(both[1])),
            ("same", str(both[1])),
            ("same", str(both[0])),
        ]
        gates = json.loads(agentos("inbox", "--json", cwd=directory).out)
        assert [gate["root"] for gate in gates] == [str(both[1]), str(both[1]), str(both[0])]
    assert "WORKTREE" in agentos("list", "--all", cwd=nowhere).out
    assert len(json.loads(agentos("list", "--json", cwd=both[0]).out)) == 1


def test_a_run_of_another_worktree_is_found_and_answered(
    agentos: Agentos, both: tuple[Path, Path], nowhere: Path
) -> None:
    assert agentos("show", "oth", cwd=nowhere).code == 0
    assert agentos("events", "other", cwd=both[0]).code == 0
    done = agentos("approve", "other", cwd=nowhere)
    assert done.code == 0, done.err
    view = json.loads(agentos("show", "other", "--json", cwd=nowhere).out)
    assert (view["status"], view["root"]) == ("complete", str(both[1]))
    assert list(nowhere.iterdir()) == []


def test_an_id_of_several_worktrees_must_be_told_apart(
    agentos: Agentos, both: tuple[Path, Path], nowhere: Path
) -> None:
    done = agentos("approve", "same", cwd=nowhere)
    assert done.code == 2
    assert str(both[0]) in done.err
    assert str(both[1]) in done.err
    assert "--repo PATH" in done.err
    here = json.loads(agentos("show", "same", "--json", cwd=both[0]).out)
    assert here["root"] == str(both[0]), "this worktree comes first"
    assert agentos("reject", "same", "--repo", both[1], cwd=nowhere).code == 0
    statuses = {root: json.loads(agentos("list", "--json", cwd=root).out)[-1]["status"] for root in both}
    assert statuses == {both[0]: "waiting", both[1]: "failed"}


def test_what_the_inbox_says_to_type_works_from_anywhere(
    agentos: Agentos, both: tuple[Path, Path], nowhere: Path
) -> None:
    for gate in json.loads(agentos("inbox", "--json", cwd=nowhere).out):
        _, *arguments = shlex.split(gate["approve"])
        done = agentos(*arguments, "--no-resume", cwd=nowhere)
        assert done.code == 0, done.err
    assert json.loads(agentos("inbox", "--json", cwd=nowhere).out) == []


def test_an_unknown_id_is_told_as_such_from_anywhere(agentos: Agentos, both: tuple[Path, Path], nowhere: Path) -> None:
    done = agentos("show", "nonsense", cwd=nowhere)
    assert done.code == 2
    assert "`agentos list`" in done.err


def test_one_damaged_worktree_does_not_hide_the_others(
    agentos: Agentos, both: tuple[Path, Path], nowhere: Path
) -> None:
    database = both[0] / ".agentos" / "issue_workflow.db"
    database.write_bytes(database.read_bytes()[:6000])
    done = agentos("list", "--all", "--json", cwd=nowhere)
    assert done.code == 6
    assert [row["workflow_id"] for row in json.loads(done.out)] == ["other", "same"]
    assert str(both[0]) in done.err
    assert agentos("show", "other", cwd=nowhere).code == 0


def test_the_variable_says_where_all_state_lives(agentos: Agentos, both: tuple[Path, Path], nowhere: Path) -> None:
    elsewhere = {"AGENTOS_WORKFLOW_DB": str(nowhere / "x.db")}
    assert json.loads(agentos("list", "--all", "--json", cwd=both[0], env=elsewhere).out) == []
    assert agentos("show", "other", cwd=both[0], env=elsewhere).code == 2
    assert list(nowhere.iterdir()) == []


def test_a_run_of_a_shared_database_goes_on_in_its_own_worktree(
    agentos: Agentos, both: tuple[Path, Path], nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", str(nowhere / "shared.db"))
    begin(both[0], "one", "shared", expected="waiting", name="gates.py")
    done = agentos("approve", "shared", cwd=both[1])
    assert done.code == 0, done.err
    monkeypatch.delenv("AGENTOS_WORKFLOW_DB")
    assert agentos("show", "shared", cwd=both[1]).code == 0, "the index knows that database"


def test_a_clone_in_the_place_of_a_known_worktree_is_not_written_to(
    agentos: Agentos, both: tuple[Path, Path], nowhere: Path
) -> None:
    root = both[1]
    subprocess.run(["git", "-C", str(root), "add", "--force", ".agentos"], check=True)
    assert git("ls-files", ".agentos", cwd=root)
    done = agentos("approve", "other", cwd=nowhere)
    assert done.code == 1
    assert "is tracked by git" in done.err
    assert os.path.exists(root)
