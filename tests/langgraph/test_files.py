"""`files=True`: a checkpoint carries the files of the worktree, and going back to it brings them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentos.client import Client, doctor, undo
from agentos.exceptions import NotFoundError
from agentos.langgraph import AgentosSaver
from agentos.worktree.snapshots.retention import captured_runs
from agentos.worktree.snapshots.store import open_worktree
from tests.langgraph.states import config_of, put_values


@pytest.mark.parametrize("repo", ["sqlite"], indirect=True)
def test_going_back_to_a_checkpoint_brings_its_files_and_undo_what_was_there(repo: Path) -> None:
    notes = repo / "notes.txt"
    with AgentosSaver.open(repo, files=True) as saver:
        notes.write_text("first")
        first = put_values(saver, config_of("a"), {"x": 1}, step=0)
        notes.write_text("second")
        put_values(saver, first, {"x": 2}, step=1)
        notes.write_text("what the human wrote")
        (repo / "new.txt").write_text("theirs")
        preview = saver.restore_files(first, dry_run=True)
        assert (preview.done, [change.path for change in preview.changes]) == (False, ["new.txt", "notes.txt"])
        assert notes.read_text() == "what the human wrote"
        assert saver.restore_files(first).done
        assert notes.read_text() == "first"
        undo(repo)
        assert notes.read_text() == "what the human wrote"
        assert (repo / "new.txt").read_text() == "theirs"


@pytest.mark.parametrize("repo", ["sqlite"], indirect=True)
def test_a_checkpoint_without_files_says_so(repo: Path) -> None:
    with AgentosSaver.open(repo) as saver:
        config = put_values(saver, config_of("a"), {"x": 1})
        with pytest.raises(NotFoundError, match="without `files=True`"):
            saver.restore_files(config)
        with pytest.raises(NotFoundError, match="not there"):
            saver.restore_files(config_of("b"))


@pytest.mark.parametrize("repo", ["sqlite"], indirect=True)
def test_files_go_with_their_checkpoints_and_are_nobodys_leftovers(repo: Path) -> None:
    with AgentosSaver.open(repo, files=True) as saver:
        config = config_of("a")
        for step in range(3):
            (repo / "notes.txt").write_text(f"step {step}")
            config = put_values(saver, config, {"x": step}, step=step)
        assert captured_runs(open_worktree(repo)) == {"langgraph:a": 3}
        assert Client(repo).unknown_snapshots() == {}
        assert not [finding for finding in doctor(repo).findings if "snapshots of files" in finding.what]
        saver.prune(["a"])
        assert captured_runs(open_worktree(repo)) == {"langgraph:a": 1}
        (repo / "notes.txt").write_text("later")
        saver.restore_files(config)
        assert (repo / "notes.txt").read_text() == "step 2"
        saver.delete_thread("a")
    assert captured_runs(open_worktree(repo)) == {}


@pytest.mark.parametrize("thread", ["x" * 300, "日本語" * 40, "user:42/thread:7"])
@pytest.mark.parametrize("repo", ["sqlite"], indirect=True)
def test_a_thread_may_have_any_id(repo: Path, thread: str) -> None:
    with AgentosSaver.open(repo, files=True) as saver:
        (repo / "notes.txt").write_text("first")
        first = put_values(saver, config_of(thread), {"x": 1}, step=0)
        (repo / "notes.txt").write_text("second")
        put_values(saver, first, {"x": 2}, step=1)
        saver.restore_files(first)
        assert (repo / "notes.txt").read_text() == "first"
        saver.delete_thread(thread)
    assert captured_runs(open_worktree(repo)) == {}
