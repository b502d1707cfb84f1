"""`agentos purge`, and how snapshots go with their checkpoints and runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli import edits
from tests.cli.conftest import SOURCES, Agentos
from tests.cli.terminal import Terminal
from tests.conftest import git
from tests.marks import quick_first

SECRET = "the-secret-of-the-house"


@pytest.fixture
def repo(tmp_git_repo: Path, home: Path) -> Path:
    root = edits.make_repository(tmp_git_repo)
    (root / "conf").mkdir()
    (root / "conf" / "key").write_text(f"{SECRET}\n")
    return root


def stored(root: Path) -> bool:
    """Whether the private store holds the secret in any object, referred to or not."""
    store = Path(os.path.realpath(root / git("rev-parse", "--git-common-dir", cwd=root))) / "agentos" / "store"
    listed = subprocess.run(
        ["git", "--git-dir", store, "cat-file", "--batch-all-objects", "--batch"], capture_output=True, check=True
    )
    return SECRET.encode() in listed.stdout


def test_a_secret_is_taken_out_of_every_snapshot(agentos: Agentos, repo: Path) -> None:
    first, second, last = edits.complete(agentos, repo)
    assert agentos("restore", first, cwd=repo).code == 0
    assert agentos("undo", cwd=repo).code == 0
    assert stored(repo)
    done = agentos("purge", "conf/key", "--yes", cwd=repo)
    assert done.code == 0, done.err
    assert [line.split()[0] for line in done.out.splitlines()[1:]] == [first, second, last]
    assert "next snapshot takes it again" in done.err
    assert not stored(repo)
    assert (repo / "conf" / "key").read_text() == f"{SECRET}\n"
    # The checkpoints are still good, and leave that path alone.
    (repo / "conf" / "key").write_text("another\n")
    assert agentos("restore", first, cwd=repo).code == 0
    assert (repo / "conf" / "key").read_text() == "another\n"
    assert (repo / "two.txt").exists()


def test_checkpoints_that_were_purged_outlive_a_prune(agentos: Agentos, repo: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    assert agentos("purge", "conf", "--yes", cwd=repo).code == 0
    assert agentos("prune", "run-1", "--keep", "5", cwd=repo).code == 0
    assert agentos("restore", first, cwd=repo).code == 0


@pytest.mark.full
def test_what_only_a_restore_put_there_is_taken_out_too(agentos: Agentos, repo: Path) -> None:
    """The tree that replaced the files is kept with them, so that an undo knows what to bring back."""
    first, *_ = edits.complete(agentos, repo)
    (repo / "conf" / "key").unlink()
    assert agentos("restore", first, cwd=repo).code == 0
    assert agentos("purge", "conf/key", "--yes", cwd=repo).code == 0
    assert not stored(repo)
    assert agentos("undo", cwd=repo).code == 0


def test_a_path_counts_from_where_one_stands(agentos: Agentos, repo: Path, tmp_path: Path) -> None:
    edits.complete(agentos, repo)
    assert agentos("purge", "key", "--yes", cwd=repo).code == 2
    assert agentos("purge", "../conf/key", "--yes", cwd=repo / "conf").code == 0
    assert agentos("purge", "mine.txt", "--yes", "--repo", repo, cwd=tmp_path).code == 0
    assert agentos("purge", repo / "two.txt", "--yes", cwd=repo).code == 0


@pytest.mark.parametrize("path", quick_first(["..", ".", "../elsewhere", "/etc/passwd", "", "-x", "no\nsuch", "a*"]))
def test_what_no_snapshot_has_is_told(agentos: Agentos, repo: Path, path: str) -> None:
    edits.complete(agentos, repo)
    done = agentos("purge", "--yes", "--", path, cwd=repo)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert stored(repo)


def test_it_asks_first(agentos: Agentos, repo: Path) -> None:
    edits.complete(agentos, repo)
    unasked = agentos("purge", "conf/key", cwd=repo)
    assert unasked.code == 2
    assert "say --yes" in unasked.err
    terminal = Terminal("purge", "conf/key", cwd=repo, env={"PYTHONPATH": str(SOURCES)})
    terminal.until("cannot be undone")
    terminal.type("n\r")
    assert terminal.end() == 2
    assert stored(repo)


@pytest.mark.full
def test_the_snapshots_of_other_worktrees_lose_it_too(agentos: Agentos, repo: Path, tmp_path: Path) -> None:
    first, *_ = edits.complete(agentos, repo)
    aside = tmp_path / "aside"
    assert agentos("fork", first, "--id", "again", "--worktree", aside, "-q", cwd=repo).code == 0
    done = edits.shown(agentos, repo, "purge", "conf/key", "--yes")
    assert {row["workflow_id"]: row["root"] for row in done["checkpoints"]} == {"run-1": str(repo), "again": str(aside)}
    assert not stored(repo)


def test_snapshots_go_with_their_checkpoints_and_runs(agentos: Agentos, repo: Path) -> None:
    edits.complete(agentos, repo, "one")
    edits.complete(agentos, repo, "two")
    before = edits.shown(agentos, repo, "db", "stats")
    assert before["snapshots"] == 6
    assert before["snapshot_bytes"] > 0
    assert agentos("prune", "one", "--keep", "1", cwd=repo).code == 0
    assert edits.shown(agentos, repo, "db", "stats")["snapshots"] == 4
    assert agentos("delete", "one", "--yes", cwd=repo).code == 0
    assert agentos("delete", "two", "--yes", cwd=repo).code == 0
    after = edits.shown(agentos, repo, "db", "stats")
    assert after["snapshots"] == 0
    assert after["snapshot_bytes"] < before["snapshot_bytes"]


@pytest.mark.full
def test_a_prune_beside_a_run_that_changes_files_lets_go_of_no_snapshot(agentos: Agentos, repo: Path) -> None:
    edits.complete(agentos, repo)
    with edits.busy(repo):
        assert agentos("prune", "run-1", "--keep", "1", cwd=repo).code == 0
    assert edits.shown(agentos, repo, "db", "stats")["snapshots"] == 3
    assert agentos("prune", "run-1", "--keep", "1", cwd=repo).code == 0
    assert edits.shown(agentos, repo, "db", "stats")["snapshots"] == 1
