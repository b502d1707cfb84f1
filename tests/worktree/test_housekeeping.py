"""Space: what goes, what stays, and what a user's own gc cannot take."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from agentos.exceptions import GitError, SnapshotNotFoundError
from agentos.worktree.snapshots.retention import (
    Loose,
    collect,
    collect_if_it_pays,
    forget,
    loose_objects,
    purge,
    retain_ids,
    sizes,
)
from agentos.worktree.snapshots.snapshots import find, snapshot_refs, take
from agentos.worktree.snapshots.store import Worktree, open_worktree, session
from tests.conftest import LinkedWorktree, git
from tests.worktree.support import RUN, back, find_named, fsck, model, run_git, snap


def test_only_the_snapshots_asked_for_stay(root: Path, worktree: Worktree) -> None:
    snaps = []
    for number in range(4):
        (root / "file").write_bytes(os.urandom(50_000))
        snaps.append(snap(worktree, f"layer/{number}"))
    other = take(worktree, workflow_id="other", name="base")
    before = sizes(worktree)
    assert before.snapshots == 5
    assert retain_ids(worktree, RUN, [snaps[3].id, snaps[1].id]) == 2
    after = collect(worktree)
    assert after.snapshots == 3
    assert after.total_bytes < before.total_bytes - 90_000
    assert set(snapshot_refs(worktree).values()) == {snaps[1].id, snaps[3].id, other.id}
    with pytest.raises(SnapshotNotFoundError):
        find(worktree, snaps[0].id)
    fsck(worktree)
    back(worktree, snaps[1])
    snap(worktree, "again")
    fsck(worktree)


def test_undo_snapshots_are_kept_by_age(root: Path, worktree: Worktree) -> None:
    first = snap(worktree, "first")
    undone = []
    for number in range(4):
        (root / "file").write_text(str(number))
        undone.append(back(worktree, first).undo.id)
    assert retain_ids(worktree, RUN, [first.id], undo=2) == 2
    assert set(snapshot_refs(worktree).values()) == {first.id, *undone[2:]}
    assert forget(worktree, [RUN]) == 3
    assert collect(worktree).snapshots == 0


def test_collecting_keeps_what_the_private_index_needs(root: Path, worktree: Worktree) -> None:
    (root / "file").write_text("captured, not kept")
    snap(worktree, "first")
    forget(worktree, RUN)
    collect(worktree)
    second = snap(worktree, "second")
    (root / "file").unlink()
    back(worktree, second)
    assert (root / "file").read_text() == "captured, not kept"
    fsck(worktree)


def test_a_staged_blob_survives_the_users_gc(root: Path, worktree: Worktree) -> None:
    (root / "staged").write_text("only staged")
    git("add", "staged", cwd=root)
    first = snap(worktree)
    git("reset", "--quiet", cwd=root)
    (root / "staged").unlink()
    git("reflog", "expire", "--expire=now", "--all", cwd=root)
    git("gc", "--quiet", "--prune=now", cwd=root)
    back(worktree, first)
    assert (root / "staged").read_text() == "only staged"
    fsck(worktree)


def test_a_blob_that_git_has_by_chance_survives_the_users_gc(root: Path, worktree: Worktree) -> None:
    first = snap(worktree)
    (root / "new").write_text("known to git, and to no commit")
    git("hash-object", "-w", "new", cwd=root)
    (root / "gone").write_text("x")
    second = snap(worktree, "second")
    (root / "gone").unlink()
    snap(worktree, "third")
    git("gc", "--quiet", "--prune=now", cwd=root)
    back(worktree, first)
    assert not (root / "new").exists()
    back(worktree, second)
    assert (root / "new").read_text() == "known to git, and to no commit"
    fsck(worktree)


def test_what_was_copied_stays_ours_after_a_collection(root: Path, worktree: Worktree) -> None:
    (root / "staged").write_text("only staged")
    git("add", "staged", cwd=root)
    first = snap(worktree)
    collect(worktree)
    snap(worktree, "second")
    git("reset", "--quiet", cwd=root)
    (root / "staged").unlink()
    git("gc", "--quiet", "--prune=now", cwd=root)
    collect(worktree)
    back(worktree, first)
    assert (root / "staged").read_text() == "only staged"


def test_an_amended_commit_survives_the_users_gc(root: Path, worktree: Worktree) -> None:
    (root / "file").write_text("committed, then amended away")
    git("add", "--all", cwd=root)
    git("commit", "--quiet", "--message", "to be amended", cwd=root)
    git("rm", "--quiet", "--cached", "file", cwd=root)
    git("commit", "--quiet", "--amend", "--allow-empty", "--message", "amended", cwd=root)
    first = snap(worktree)
    (root / "file").unlink()
    git("reflog", "expire", "--expire=now", "--all", cwd=root)
    git("gc", "--quiet", "--prune=now", cwd=root)
    back(worktree, first)
    assert (root / "file").read_text() == "committed, then amended away"


def test_a_base_that_was_purged_is_told_before_anything_is_touched(root: Path, worktree: Worktree) -> None:
    (root / "file").write_text("in the history")
    git("add", "--all", cwd=root)
    git("commit", "--quiet", "--message", "to be dropped", cwd=root)
    first = snap(worktree)
    git("reset", "--quiet", "--hard", "HEAD~1", cwd=root)
    git("reflog", "expire", "--expire=now", "--all", cwd=root)
    git("gc", "--quiet", "--prune=now", cwd=root)
    before = model(root)
    with pytest.raises(SnapshotNotFoundError, match="rewritten away"):
        back(worktree, first)
    assert model(root) == before


def test_damage_is_told_before_anything_is_touched(root: Path, worktree: Worktree) -> None:
    (root / "file").write_bytes(os.urandom(20_000))
    first = snap(worktree)
    blob = worktree.store_git().line("rev-parse", f"{first.tree}:file")
    path = worktree.store / "objects" / blob[:2] / blob[2:]
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:10_000])
    (root / "file").unlink()
    (root / "run.sh").write_text("changed")
    with pytest.raises(SnapshotNotFoundError, match="cannot be read"):
        back(worktree, first)
    assert (root / "run.sh").read_text() == "changed"


def test_a_secret_is_purged_from_every_snapshot(root: Path, worktree: Worktree) -> None:
    secret = b"SECRET-" + os.urandom(20).hex().encode()
    (root / "keys").mkdir()
    (root / "keys/token").write_bytes(secret)
    first = snap(worktree, "first")
    git("add", "keys/token", cwd=root)
    second = snap(worktree, "second")
    blob = worktree.store_git().line("rev-parse", f"{first.tree}:keys/token")
    git("rm", "--quiet", "--cached", "keys/token", cwd=root)
    git("gc", "--quiet", "--prune=now", cwd=root)
    replaced = purge(worktree, "keys")
    assert set(replaced) == {first.id, second.id}
    assert worktree.store_git().run("cat-file", "-e", blob, ok=range(256)).status != 0
    fsck(worktree)
    again = find(worktree, first.id)
    assert again.id == replaced[first.id] == find_named(worktree, RUN, "first").id
    (root / "src/main.py").write_text("x")
    back(worktree, again)
    assert (root / "keys/token").read_bytes() == secret  # purged is no reason to delete it
    assert (root / "src/main.py").read_text() == "print('one')\n"
    assert purge(worktree, "src/util.py")
    assert find(worktree, first.id).manifest.purged == ("keys", "src/util.py")


def test_nothing_of_ours_travels(root: Path, worktree: Worktree, tmp_path: Path) -> None:
    (root / ".env.production").write_text("not in .gitignore")
    first = snap(worktree)
    blob = worktree.store_git().line("rev-parse", f"{first.tree}:.env.production")
    copies = {"mirror": tmp_path / "mirror", "clone": tmp_path / "clone", "bundle": tmp_path / "bundled"}
    git("init", "--quiet", "--bare", str(copies["mirror"]), cwd=tmp_path)
    git("push", "--quiet", "--mirror", str(copies["mirror"]), cwd=root)
    git("clone", "--quiet", str(root), str(copies["clone"]), cwd=tmp_path)
    git("bundle", "create", "--quiet", str(tmp_path / "all.bundle"), "--all", cwd=root)
    git("clone", "--quiet", "--mirror", str(tmp_path / "all.bundle"), str(copies["bundle"]), cwd=tmp_path)
    for place in copies.values():
        assert run_git(place, "cat-file", "-e", first.id).returncode != 0
        assert run_git(place, "cat-file", "-e", blob).returncode != 0
        assert "agentos" not in git("for-each-ref", cwd=place)
    assert run_git(root, "fsck").returncode == 0
    assert subprocess.run(["git", "cat-file", "-e", blob], cwd=root, capture_output=True, check=False).returncode != 0


def test_remains_of_killed_processes_are_removed(root: Path, worktree: Worktree) -> None:
    snap(worktree)
    objects = worktree.store / "objects"
    (objects / "pack/tmp_pack_x").write_text("x")
    (objects / "aa").mkdir(exist_ok=True)
    (objects / "aa/tmp_obj_x").write_text("x")
    (objects / "tmp_objdir-incoming-x").mkdir()
    (worktree.store.parent / "making-x").mkdir()
    collect(worktree)
    assert not list(objects.rglob("tmp_*"))
    assert not (worktree.store.parent / "making-x").exists()
    fsck(worktree)


# --- without being asked ----------------------------------------------------------------------------------------


def gathered(root: Path, worktree: Worktree, files: int) -> Loose:
    """So many objects at least, none of them needed any more but those of the last snapshot."""
    for number in range(files):
        (root / f"file{number}").write_text(f"{number} {worktree.root}")
    snap(worktree)
    return loose_objects(worktree)


def test_space_is_given_back_once_enough_has_gathered(root: Path, worktree: Worktree) -> None:
    found = gathered(root, worktree, 20)
    assert found.files > 20
    assert not collect_if_it_pays(worktree, pays=Loose(files=found.files + 1, total_bytes=1 << 40))
    assert loose_objects(worktree) == found
    assert collect_if_it_pays(worktree, pays=Loose(files=1 << 40, total_bytes=found.total_bytes))
    assert loose_objects(worktree) == Loose(files=0, total_bytes=0)
    assert not collect_if_it_pays(worktree, pays=Loose(files=1, total_bytes=1))
    fsck(worktree)
    (root / "file3").unlink()
    back(worktree, find_named(worktree, RUN, "one"))
    assert (root / "file3").exists()


def test_it_waits_for_nobody(root: Path, worktree: Worktree) -> None:
    found = gathered(root, worktree, 5)
    with session(worktree, seconds=60):
        assert not collect_if_it_pays(worktree, pays=Loose(files=1, total_bytes=1))
    assert loose_objects(worktree) == found


def test_what_takes_too_long_is_given_up_and_not_tried_again_soon(root: Path, worktree: Worktree) -> None:
    pays = Loose(files=1, total_bytes=1)
    found = gathered(root, worktree, 20)
    with pytest.raises(GitError):
        collect_if_it_pays(worktree, pays=pays, seconds=0)
    assert loose_objects(worktree) == found
    assert not collect_if_it_pays(worktree, pays=pays)
    fsck(worktree)
    gathered(root, worktree, 50)
    assert collect_if_it_pays(worktree, pays=pays)
    assert collect_if_it_pays(worktree, pays=pays) is False
    gathered(root, worktree, 51)
    assert collect_if_it_pays(worktree, pays=pays)


def test_worktrees_that_are_captured_meanwhile_lose_nothing(tmp_worktree: LinkedWorktree) -> None:
    main, other = open_worktree(tmp_worktree.main), open_worktree(tmp_worktree.worktree)
    taken_ids: list[str] = []

    def capture(worktree: Worktree) -> None:
        for number in range(8):
            (worktree.root / "file").write_text(f"{worktree.name} {number}")
            taken_ids.append(snap(worktree, f"{worktree.name}-{number}").id)

    threads = [threading.Thread(target=capture, args=(worktree,)) for worktree in (main, other)]
    for thread in threads:
        thread.start()
    collected = 0
    while any(thread.is_alive() for thread in threads):
        collected += collect_if_it_pays(main, pays=Loose(files=1, total_bytes=1))
    collected += collect_if_it_pays(main, pays=Loose(files=1, total_bytes=1))
    assert collected
    assert len(taken_ids) == 16
    for found in (find(main, snapshot_id) for snapshot_id in taken_ids):
        main.store_git().ask("rev-list", "--objects", "--quiet", found.tree)
    fsck(main)
