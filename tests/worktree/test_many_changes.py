"""Many files that changed at once: written into one pack ahead of git, which still decides what a snapshot holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentos.worktree.snapshots import retention
from agentos.worktree.snapshots.pack_writer import MANY
from agentos.worktree.snapshots.retention import Loose, collect_if_it_pays, loose_objects
from agentos.worktree.snapshots.store import Worktree
from tests.worktree.support import back, fsck, model, snap

ODD = ('quo"te', "back\\slash", "new\nline", os.fsdecode(b"no-utf\xff8"), " blank ", "tab\there", "ünï")


def change_many(root: Path, text: str) -> None:
    for number in range(2 * MANY):
        file = root / f"folder{number % 7}" / f"deep{number % 3}" / f"file{number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text} {number}\n")


def packs(worktree: Worktree) -> list[Path]:
    return list((worktree.store / "objects/pack").glob("*.pack"))


def test_many_changed_files_and_their_folders_are_one_pack(root: Path, worktree: Worktree) -> None:
    snap(worktree)
    before = loose_objects(worktree).files
    change_many(root, "first")
    there = model(root)
    taken = snap(worktree, "two")
    assert len(packs(worktree)) == 1
    assert loose_objects(worktree).files == before + 1  # the snapshot itself
    fsck(worktree)
    change_many(root, "second")
    back(worktree, taken)
    assert model(root) == there


def test_whatever_is_among_them_the_snapshot_is_right(root: Path, worktree: Worktree) -> None:
    change_many(root, "first")
    (root / "was-file").write_text("file\n")
    (root / "was-folder").mkdir()
    (root / "was-folder/inside").write_text("inside\n")
    (root / "goes").write_text("gone soon\n")
    (root / "turns").write_text("program\n")
    first, there_first = snap(worktree), model(root)

    change_many(root, "second")
    for name in ODD:
        (root / name).write_text(f"odd {name!r}\n", errors="surrogateescape")
        (root / f"folder1/{name}").write_text("deeper\n")
    (root / "was-file").unlink()
    (root / "was-file").mkdir()
    (root / "was-file/now-inside").write_text("now\n")
    (root / "was-folder/inside").unlink()
    (root / "was-folder").rmdir()
    (root / "was-folder").write_text("a file now\n")
    (root / "goes").unlink()
    (root / "turns").chmod(0o755)
    (root / "folder2/link").symlink_to("/etc/passwd")
    (root / "folder3/empty").write_text("")
    (root / "folder3/large").write_bytes(os.urandom(1500) * 1000)
    os.mkfifo(root / "folder4/pipe")
    second = snap(worktree, "two")
    (root / "folder4/pipe").unlink()
    there_second = model(root)

    fsck(worktree)
    back(worktree, first)
    assert model(root) == there_first
    back(worktree, second)
    assert model(root) == there_second
    assert not list(worktree.store.glob("fast_import_crash_*"))


def test_packs_are_put_together_once_there_are_many(
    root: Path, worktree: Worktree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_MANY_PACKS", 3)
    never = Loose(files=1 << 40, total_bytes=1 << 40)
    taken = snap(worktree, "start")
    for number in range(3):
        assert not collect_if_it_pays(worktree, pays=never)
        change_many(root, f"round {number}")
        taken = snap(worktree, f"round-{number}")
    assert collect_if_it_pays(worktree, pays=never)
    assert len(packs(worktree)) == 1
    there = model(root)
    change_many(root, "later")
    back(worktree, taken)
    assert model(root) == there
