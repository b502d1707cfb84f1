"""Many at once: processes that make the store, writers, and a user who commits and collects garbage all the time."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentos.exceptions import SnapshotRefusedError, WorktreeBusyError
from agentos.worktree.snapshots.capture import SnapshotLimits
from agentos.worktree.snapshots.retention import collect
from agentos.worktree.snapshots.snapshots import Snapshot, changed_since, diff, snapshot_refs, take, tree_patch
from agentos.worktree.snapshots.store import Worktree, lock_file, open_worktree
from tests.conftest import LinkedWorktree, git
from tests.worktree.child import start
from tests.worktree.guard import Guard, nothing_travels
from tests.worktree.support import RUN, back, snap


@contextmanager
def meanwhile(act: Callable[[int], None]) -> Iterator[list[int]]:
    """Do something over and over in a thread; an error there is an error here. Gives a list that grows."""
    done: list[int] = []
    failed: list[BaseException] = []
    stop = threading.Event()

    def loop() -> None:
        try:
            while not stop.is_set():
                act(len(done))
                done.append(1)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]


def test_many_processes_make_the_store_at_once(root: Path) -> None:
    children = [start("loop", root, "2") for _ in range(4)]
    for child in children:
        _, stderr = child.communicate(timeout=60)
        assert child.returncode == 0, stderr
    worktree = open_worktree(root)
    assert len(snapshot_refs(worktree)) == 8
    assert not list(worktree.store.parent.glob("making-*"))
    assert (worktree.store.stat().st_mode & 0o777) == 0o700


def test_files_that_are_being_written_meanwhile(root: Path, worktree: Worktree, tmp_path: Path) -> None:
    guard = Guard(tmp_path / "copies")

    def write(number: int) -> None:
        (root / "busy").write_bytes(b"%d\n" % number * (1000 + number % 50_000))

    with meanwhile(write):
        until = time.monotonic() + 2
        count = 0
        while time.monotonic() < until or count < 3:  # on a busy machine one takes a second
            guard.snap(worktree, f"busy-{count}")
            count += 1
    guard.nothing_shows()
    worktree.store_git().ask("fsck", "--full")


def test_a_user_who_commits_and_collects_garbage(tmp_worktree: LinkedWorktree, tmp_path: Path) -> None:
    main, other = open_worktree(tmp_worktree.main), open_worktree(tmp_worktree.worktree)

    def work(number: int) -> None:
        (main.root / "committed").write_text(f"{number}\n")
        git("add", "--all", cwd=main.root)
        git("commit", "--quiet", *(["--amend"] if number % 2 else []), "--message", str(number), cwd=main.root)
        git(
            "-c",
            "gc.reflogExpire=now",
            "-c",
            "gc.reflogExpireUnreachable=now",
            "gc",
            "--quiet",
            "--prune=now",
            cwd=main.root,
        )

    snaps: list[Snapshot] = []
    with meanwhile(work) as commits:
        until = time.monotonic() + 4
        while time.monotonic() < until or len(commits) < 3:
            (other.root / "edited").write_text(str(len(snaps)))
            snaps.append(snap(other, f"other-{len(snaps)}"))
            snaps.append(snap(main, f"main-{len(snaps)}"))
    git("gc", "--quiet", "--prune=now", cwd=main.root)
    assert subprocess.run(["git", "fsck"], cwd=main.root, check=False, capture_output=True).returncode == 0
    ours = [found for found in snaps if found.manifest.name.startswith("other")]
    main.store_git().ask("rev-list", "--objects", "--quiet", *(found.tree for found in ours))
    back(other, ours[0])
    assert (other.root / "edited").read_text() == "0"
    nothing_travels(main.root, tmp_path / "copies")


def test_a_collection_waits_for_those_who_use_the_store(root: Path, worktree: Worktree) -> None:
    snap(worktree)
    with lock_file(worktree.store.parent / "store.lock", shared=True), pytest.raises(WorktreeBusyError):
        collect(worktree, patience_s=0.1)
    with lock_file(worktree.store.parent / "store.lock"), pytest.raises(WorktreeBusyError):
        snap(worktree, patience_s=0.1)
    with lock_file(worktree.folder / "lock"), pytest.raises(WorktreeBusyError):
        snap(worktree, patience_s=0.1)


def test_budgets_are_checked_before_anything_is_hashed(root: Path, worktree: Worktree) -> None:
    for number in range(20):
        (root / f"new-{number}").write_bytes(b"x" * 1000)
    for limits, limit in ((SnapshotLimits(files=19), "files"), (SnapshotLimits(total_bytes=19_999), "total_bytes")):
        with pytest.raises(SnapshotRefusedError) as refused:
            snap(worktree, limits=limits)
        assert refused.value.limit == limit
    assert not worktree.index.exists()
    # What the repository tracks itself is no news, however much it is.
    assert not snap(worktree, limits=SnapshotLimits(files=20, total_bytes=20_000)).partial
    with pytest.raises(SnapshotRefusedError) as slow:
        snap(worktree, limits=SnapshotLimits(seconds=-1))
    assert slow.value.limit == "seconds"


def test_the_home_folder_is_refused(home: Path) -> None:
    git("init", "--quiet", cwd=home)
    with pytest.raises(SnapshotRefusedError) as refused:
        take(open_worktree(home.resolve()), workflow_id=RUN, name="x")
    assert refused.value.limit == "root"


def test_differences_are_listed_and_shown(root: Path, worktree: Worktree) -> None:
    first = snap(worktree, "first")
    (root / "src/main.py").write_text("print('two')\n")
    (root / "README").unlink()
    (root / "bin").write_bytes(b"\0\1")
    (root / "src/util.py").chmod(0o600)
    assert changed_since(worktree, first) == ["README", "bin", "src/main.py", "src/util.py"]
    second = snap(worktree, "second")
    assert [(change.status, change.path) for change in diff(worktree, first, second)] == [
        ("D", "README"),
        ("A", "bin"),
        ("M", "src/main.py"),
    ]
    assert b"+print('two')" in tree_patch(worktree, first.tree, second.tree, paths=["src/main.py"])
    assert first.tree != second.tree
    (root.parent / "x.patch").write_bytes(tree_patch(worktree, second.tree, first.tree))
    git("apply", str(root.parent / "x.patch"), cwd=root)
    assert first.tree == snap(worktree, "third").tree


def test_a_repository_can_be_moved(root: Path, worktree: Worktree) -> None:
    first = snap(worktree)
    moved = root.rename(root.parent / "moved")
    (moved / "README").unlink()
    again = open_worktree(moved)
    back(again, first)
    assert (moved / "README").exists()
