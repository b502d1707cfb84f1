"""Killed anywhere, a snapshot is whole or not there, and a restore is brought to its end."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentos import crashpoints
from agentos.crashpoints import FILE_POINTS
from agentos.exceptions import RestoreError, SnapshotError, SnapshotNotFoundError
from agentos.worktree.restore.intent import find_interrupted
from agentos.worktree.restore.restore import finish_interrupted
from agentos.worktree.snapshots.known_files import write_object
from agentos.worktree.snapshots.retention import forget
from agentos.worktree.snapshots.snapshots import find, snapshot_refs
from agentos.worktree.snapshots.store import Worktree
from tests.marks import quick_first
from tests.worktree.child import play, start
from tests.worktree.support import RUN, back, find_named, fsck, model, snap, untouched


def edit(root: Path) -> None:
    """Everything that a restore has to deal with."""
    (root / "src/main.py").write_text("edited\n")
    (root / "src/util.py").unlink()
    (root / "run.sh").chmod(0o600)
    (root / "added/deep").mkdir(parents=True)
    (root / "added/deep/file").write_text("added")
    (root / "hollow").mkdir()
    (root / "link").unlink()
    (root / "link").mkdir()
    (root / "link/inside").write_text("x")
    (root / ".gitignore").write_text("")  # what the target ignores is not ignored now
    (root / "x.log").write_text("came while nothing was ignored")


@pytest.mark.parametrize("point", quick_first(point for point in FILE_POINTS if point.startswith("restore.")))
def test_a_restore_killed_anywhere_is_finished(root: Path, worktree: Worktree, point: str) -> None:
    (root / "kept.log").write_text("ignored when the snapshot was taken")
    (root / "src/main.py").chmod(0o640)
    before = model(root)
    snap(worktree, "target")
    edit(root)
    edited = model(root)
    with untouched(root):
        assert play("restore", root, "target", at=point) == -signal.SIGKILL
        begun = find_interrupted(worktree)
        assert begun is not None
        with pytest.raises(RestoreError, match="not finished"):
            back(worktree, find_named(worktree, RUN, "target"))
        done = finish_interrupted(worktree)
        assert done is not None
        assert model(root) == before
        assert finish_interrupted(worktree) is None
        back(worktree, find(worktree, begun.undo))
    assert model(root) == edited


@pytest.mark.parametrize("point", ["snapshot.before_ref", "snapshot.after_ref"])
def test_a_snapshot_killed_anywhere_is_whole_or_not_there(root: Path, worktree: Worktree, point: str) -> None:
    (root / "new").write_text("new")
    assert play("take", root, "cut", at=point) == -signal.SIGKILL
    if point == "snapshot.before_ref":
        with pytest.raises(SnapshotNotFoundError):
            find_named(worktree, RUN, "cut")
    else:
        assert find_named(worktree, RUN, "cut").tree == snap(worktree, "again").tree
    whole = snap(worktree, "whole")
    (root / "new").unlink()
    back(worktree, whole)
    assert (root / "new").read_text() == "new"


def test_a_restore_killed_at_its_snapshot_has_changed_nothing(root: Path, worktree: Worktree) -> None:
    snap(worktree, "target")
    edit(root)
    edited = model(root)
    assert play("restore", root, "target", at="snapshot.before_ref") == -signal.SIGKILL
    assert find_interrupted(worktree) is None
    assert model(root) == edited


def test_what_an_undo_captured_of_ignored_files_does_not_stay(root: Path, worktree: Worktree) -> None:
    (root / "notes.txt").write_text("then")
    snap(worktree, "target")
    (root / ".gitignore").write_text("*.txt\n")
    (root / "notes.txt").write_text("now")
    ignored = snap(worktree, "ignored")
    assert play("restore", root, "target", at="snapshot.before_ref") == -signal.SIGKILL
    assert snap(worktree, "after the kill").tree == ignored.tree


@pytest.mark.full
def test_kills_at_any_moment(root: Path, worktree: Worktree) -> None:
    """Not at named points: in the middle of git's own work, which goes on or is cut off as well."""
    chance = random.Random(4)
    for number in range(400):
        folder = root / f"many/{number % 20}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}").write_bytes(chance.randbytes(500))
    before = model(root)
    snap(worktree, "target")
    for path in (root / "many").rglob("*"):
        if path.is_file():
            path.write_bytes(chance.randbytes(500))
    edit(root)
    for _ in range(6):
        process = start("restore", root, "target")
        time.sleep(chance.uniform(0.15, 0.6))
        process.kill()
        process.communicate()
        play("finish", root)
        assert find_interrupted(worktree) is None
    back(worktree, find_named(worktree, RUN, "target"))
    assert model(root) == before
    worktree.store_git().ask("fsck", "--full")


def test_what_somebody_did_after_the_kill_is_captured_first(root: Path, worktree: Worktree) -> None:
    snap(worktree, "target")
    (root / "src/main.py").write_text("edited\n")
    assert play("restore", root, "target", at="restore.intent") == -signal.SIGKILL
    (root / "src/main.py").write_text("edited after the kill\n")
    (root / "elsewhere").write_text("not of that restore\n")
    done = finish_interrupted(worktree)
    assert done is not None
    assert (root / "src/main.py").read_text() == "print('one')\n"
    assert (root / "elsewhere").read_text() == "not of that restore\n"
    back(worktree, done.undo)
    assert (root / "src/main.py").read_text() == "edited after the kill\n"


def test_a_file_changed_between_capture_and_writing_is_not_lost(
    root: Path, worktree: Worktree, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = snap(worktree, "first")
    (root / "src/main.py").write_text("edited\n")
    reached: list[str] = []

    def reach(point: str) -> None:
        reached.append(point)
        if reached.count("restore.intent") == 1 and point == "restore.intent":
            time.sleep(0.01)
            (root / "src/main.py").write_text("edited at the last moment\n")

    monkeypatch.setattr(crashpoints, "reach", reach)
    done = back(worktree, first)
    assert reached.count("restore.intent") == 2
    assert (root / "src/main.py").read_text() == "print('one')\n"
    back(worktree, done.undo)
    assert (root / "src/main.py").read_text() == "edited at the last moment\n"


def test_files_that_never_stand_still_are_left_alone(
    root: Path, worktree: Worktree, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = snap(worktree, "first")

    def reach(point: str) -> None:
        if point == "restore.intent":
            (root / "src/main.py").write_text(f"edited {os.urandom(8).hex()}\n")

    (root / "src/main.py").write_text("edited\n")
    monkeypatch.setattr(crashpoints, "reach", reach)
    with pytest.raises(RestoreError, match="keep changing"):
        back(worktree, first)
    assert find_interrupted(worktree) is None
    assert (root / "src/main.py").read_text().startswith("edited ")


def test_the_remains_of_a_killed_git_are_no_obstacle(root: Path, worktree: Worktree) -> None:
    snap(worktree, "first")
    worktree.index.with_name("index.lock").write_text("left behind")
    (root / "new").write_text("x")
    snap(worktree, "second")
    worktree.index.write_bytes(b"damaged")
    third = snap(worktree, "third")
    assert third.tree == find_named(worktree, RUN, "second").tree
    assert len(snapshot_refs(worktree)) == 3


_KILLED_BEFORE_ITS_REF = """
import os, signal, sys
from pathlib import Path
from agentos.worktree.snapshots.snapshots import take
from agentos.worktree.snapshots.store import open_worktree
name = os.replace
def replace(fresh, path):
    if "refs" in Path(path).parts:
        os.kill(os.getpid(), signal.SIGKILL)
    name(fresh, path)
os.replace = replace
take(open_worktree(Path(sys.argv[1])), workflow_id=sys.argv[2], name="look")
"""


def test_a_ref_whose_writer_was_killed_can_be_deleted(root: Path, worktree: Worktree) -> None:
    kept = snap(worktree, "look")
    (root / "src/main.py").write_text("edited\n")
    killed = subprocess.run([sys.executable, "-c", _KILLED_BEFORE_ITS_REF, str(root), RUN], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert snapshot_refs(worktree) == {kept.ref: kept.id}
    assert forget(worktree, [RUN]) == 1
    assert snapshot_refs(worktree) == {}


def test_an_empty_folder_that_git_left_under_the_name_of_a_ref_is_no_obstacle(worktree: Worktree) -> None:
    (worktree.store / snap(worktree, "name/inside").ref).unlink()
    assert snap(worktree, "name").ref.endswith("/name")
    fsck(worktree)


def test_an_object_that_cannot_be_written_is_told_as_a_snapshot_that_failed(worktree: Worktree) -> None:
    content = b"tree 0\n"
    oid = hashlib.new(worktree.object_format, b"commit 7\0" + content).hexdigest()
    (worktree.store / "objects" / oid[:2]).write_text("in the way")
    with pytest.raises(SnapshotError, match="nothing can be written"):
        write_object(worktree, b"commit", content)
