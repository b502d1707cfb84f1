"""`agentos undo`: what the last restore replaced comes back, and nothing else is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentos.crashpoints import FILE_POINTS
from tests.cli import edits
from tests.cli.conftest import Agentos
from tests.conftest import git
from tests.marks import quick_first
from tests.worktree.support import untouched


@pytest.fixture
def repo(tmp_git_repo: Path, home: Path) -> Path:
    return edits.make_repository(tmp_git_repo)


def test_an_undone_restore_leaves_the_files_as_they_were(agentos: Agentos, repo: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    (repo / "mine.txt").write_text("edited since\n")
    (repo / "mine.txt").chmod(0o600)
    (repo / "empty").mkdir()
    before = edits.files(repo)
    assert agentos("restore", first, cwd=repo).code == 0
    after = edits.files(repo)
    assert after != before
    with untouched(repo):
        done = agentos("undo", cwd=repo)
    assert done.code == 0, done.err
    assert edits.files(repo) == before
    assert agentos("undo", cwd=repo).code == 0
    assert {path: kept for path, kept in edits.files(repo).items() if path != "empty"} == after


@pytest.mark.full
def test_what_the_restore_did_not_touch_stays(agentos: Agentos, repo: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    assert agentos("restore", first, cwd=repo).code == 0
    (repo / "mine.txt").write_text("written after the restore\n")
    (repo / "new.txt").write_text("new\n")
    done = agentos("undo", cwd=repo)
    assert done.out.splitlines() == ["A  last.txt", "M  src/one.txt", "M  tool.sh", "D  two.txt"]
    assert (repo / "mine.txt").read_text() == "written after the restore\n"
    assert (repo / "new.txt").read_text() == "new\n"


def test_what_was_done_since_to_a_path_that_comes_back_is_kept_for_another_undo(agentos: Agentos, repo: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    assert agentos("restore", first, cwd=repo).code == 0
    (repo / "two.txt").write_text("mine, after the restore\n")
    assert agentos("undo", cwd=repo).code == 0
    assert not (repo / "two.txt").exists()
    assert agentos("undo", cwd=repo).code == 0
    assert (repo / "two.txt").read_text() == "mine, after the restore\n"


@pytest.mark.full
def test_a_file_where_a_folder_was_gives_way(agentos: Agentos, repo: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    (repo / "two.txt").mkdir()
    (repo / "two.txt" / "inside").write_text("inside\n")
    assert agentos("restore", first, cwd=repo).code == 0
    assert (repo / "two.txt").read_text() == "two\n"
    assert agentos("undo", cwd=repo).code == 0
    assert (repo / "two.txt" / "inside").read_text() == "inside\n"


def test_a_restore_that_changed_nothing_is_not_what_is_undone(agentos: Agentos, repo: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    before = edits.files(repo)
    assert agentos("restore", first, cwd=repo).code == 0
    assert agentos("restore", first, cwd=repo).out == ""
    assert agentos("undo", cwd=repo).code == 0
    assert edits.files(repo) == before


@pytest.mark.full
def test_files_that_have_other_times_and_the_same_content_are_no_obstacle(agentos: Agentos, repo: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    before = edits.files(repo)
    assert agentos("restore", first, cwd=repo).code == 0
    for path in (repo / "src" / "one.txt", repo / "two.txt", repo / "mine.txt"):
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    assert agentos("undo", cwd=repo).code == 0
    assert edits.files(repo) == before


def test_a_dry_run_says_what_would_come_back(agentos: Agentos, repo: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    assert agentos("restore", first, cwd=repo).code == 0
    before = edits.files(repo)
    would = agentos("undo", "--dry-run", cwd=repo)
    assert would.code == 0
    assert edits.files(repo) == before
    assert agentos("undo", cwd=repo).out == would.out


def test_nothing_to_undo_is_said(agentos: Agentos, repo: Path) -> None:
    for when in ("before any run", "after a run"):
        done = agentos("undo", cwd=repo)
        assert done.code == 2, when
        assert "nothing to undo" in done.err
        assert agentos("undo", "--list", cwd=repo).code == 0
        edits.complete(agentos, repo, when.replace(" ", "-"))


@pytest.mark.full
def test_the_list_is_of_this_worktree(agentos: Agentos, repo: Path, tmp_path: Path) -> None:
    first, second, _ = edits.complete(agentos, repo)
    git("worktree", "add", "--quiet", str(tmp_path / "other"), cwd=repo)
    assert agentos("restore", first, cwd=repo).code == 0
    assert agentos("restore", second, cwd=repo).code == 0
    points = edits.shown(agentos, repo, "undo", "--list")["points"]
    assert [(point["workflow_id"], point["paths"], point["is_replaced"]) for point in points] == [
        ("run-1", 3, True),
        ("run-1", 4, True),
    ]
    assert edits.shown(agentos, tmp_path / "other", "undo", "--list")["points"] == []
    assert agentos("undo", cwd=tmp_path / "other").code == 2
    # An older one comes back whole, by its id.
    assert agentos("restore", points[-1]["snapshot"], cwd=repo).code == 0
    assert (repo / "last.txt").exists()


@pytest.mark.parametrize("point", quick_first(name for name in FILE_POINTS if name.startswith("restore.")))
def test_a_restore_that_was_killed_is_finished_and_can_be_undone(agentos: Agentos, repo: Path, point: str) -> None:
    first, *_ = edits.complete(agentos, repo)
    (repo / "mine.txt").write_text("edited since\n")
    before = edits.files(repo)
    killed = agentos("restore", first, cwd=repo, env={"AGENTOS_CRASH_AT": point})
    assert killed.code == -9
    done = agentos("undo", cwd=repo)
    assert done.code == 0, done.err
    assert edits.files(repo) == before


@pytest.mark.full
def test_deleting_the_run_takes_its_undo_along(agentos: Agentos, repo: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    assert agentos("restore", first, cwd=repo).code == 0
    assert agentos("delete", "run-1", "--yes", cwd=repo).code == 0
    assert agentos("undo", cwd=repo).code == 2
    assert edits.shown(agentos, repo, "db", "stats")["snapshots"] == 0


@pytest.mark.parametrize("command", [("undo",), ("undo", "--list"), ("restore", "abc")])
def test_without_a_repository_it_says_so(
    agentos: Agentos, tmp_path: Path, home: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "plain").mkdir()
    done = agentos(*command, cwd=tmp_path / "plain")
    assert done.code == 1
    assert "Cannot determine checkpoint database location" in done.err
    done = agentos(*command, cwd=tmp_path / "plain", env={"AGENTOS_WORKFLOW_DB": str(tmp_path / "db")})
    assert done.code in (0, 1, 2)
    assert "Traceback" not in done.err
    assert os.listdir(tmp_path / "plain") == []
