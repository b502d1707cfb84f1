"""Merge what isolated tasks did to the same files: trees against their common base, path by path, in the given order.

Paths that only one side changed are taken as they are; text that both changed is merged by `git merge-file`; the rest
is a conflict. No renames are guessed: a renamed file is one that went and one that came. So the result depends on the
trees and their order alone, with every version of git.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from agentos.worktree.git import Git, parents
from agentos.worktree.snapshots.capture import LIMITS
from agentos.worktree.snapshots.index import IndexSession, session
from agentos.worktree.snapshots.store import Worktree
from agentos.worktree.snapshots.trees import Entry, PathChange, check_ids, diff_trees, files_in, tree_with

_FILES = ("100644", "100755")


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """What a path holds on one side."""

    mode: str
    oid: str


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """A path that two sides changed in ways that do not go together. None: it is not there."""

    path: str
    base: Version | None
    ours: Version | None
    """What the sides before made of it; the merged tree holds this."""
    theirs: Version | None
    by: str
    """The side that `theirs` is from."""
    marked: str = ""
    """Content with conflict markers, for text: what a human can start from."""


class MergeResult(msgspec.Struct, frozen=True, kw_only=True):
    tree: str
    """Everything that goes together; nothing refers to it yet. No file in it has conflict markers."""
    conflicts: tuple[Conflict, ...]


def merge(worktree: Worktree, base: str, sides: Sequence[tuple[str, str]]) -> MergeResult:
    """Merge trees, given as (name, tree), that all began from the tree `base`. The same again gives the same result."""
    conflicts: list[Conflict] = []
    with session(worktree, seconds=LIMITS.seconds) as opened:
        merged = sides[0][1] if sides else base
        for name, tree in sides[1:]:
            merged, more = _merge_one(opened, base, merged, name, tree)
            conflicts += more
    return MergeResult(tree=merged, conflicts=tuple(conflicts))


def resolve(worktree: Worktree, tree: str, choices: Mapping[str, Version | None]) -> str:
    """`tree` with the chosen versions of conflicting paths."""
    with session(worktree, seconds=LIMITS.seconds) as opened:
        return tree_with(opened, tree, [_entry(path, version) for path, version in choices.items()])


def version_from_file(worktree: Worktree, file: Path, *, mode: str = "100644") -> Version:
    """A file that a human prepared, as a version to choose."""
    oid = worktree.store_git().line("hash-object", "-w", "--no-filters", "--stdin", stdin=file.read_bytes())
    return Version(mode=mode, oid=oid)


def versions_in(worktree: Worktree, tree: str) -> dict[str, Version]:
    """What a tree holds, by path."""
    found = files_in(worktree.store_git(), tree)
    return {path: Version(mode=mode, oid=oid) for path, (mode, oid) in found.items()}


def versions_changed(worktree: Worktree, base: str, tree: str) -> dict[str, Version | None]:
    """What a tree holds where it differs from `base`, by path."""
    return {change.path: _new(change) for change in diff_trees(worktree.store_git(), base, tree)}


def content(worktree: Worktree, version: Version) -> bytes:
    """The bytes of a version: a file's content, or where a link leads."""
    check_ids(version.oid)
    return worktree.store_git().ask("cat-file", "blob", version.oid)


def _merge_one(opened: IndexSession, base: str, ours: str, name: str, theirs: str) -> tuple[str, list[Conflict]]:
    git = opened.git()
    mine = {change.path: change for change in diff_trees(git, base, ours)}
    taken: dict[str, Version | None] = {}
    conflicts: list[Conflict] = []
    for change in diff_trees(git, base, theirs):
        before = mine.get(change.path)
        if before is None:
            taken[change.path] = _new(change)
        elif _new(before) != _new(change):
            merged, marked = _merge_text(opened, before, change, name)
            if merged is None:
                versions = {"base": _old(change), "ours": _new(before), "theirs": _new(change)}
                conflicts.append(Conflict(path=change.path, **versions, by=name, marked=marked))
            else:
                taken[change.path] = merged
    for path in _colliding(taken, mine):
        conflicts.append(Conflict(path=path, base=None, ours=None, theirs=taken.pop(path), by=name))
    return tree_with(opened, ours, [_entry(path, version) for path, version in taken.items()]), conflicts


def _entry(path: str, version: Version | None) -> Entry:
    return Entry(path=path, mode=version.mode, oid=version.oid) if version else Entry(path=path)


def _new(change: PathChange) -> Version | None:
    return None if change.status == "D" else Version(mode=change.new_mode, oid=change.new_oid)


def _old(change: PathChange) -> Version | None:
    return None if change.status == "A" else Version(mode=change.old_mode, oid=change.old_oid)


def _colliding(taken: Mapping[str, Version | None], mine: Mapping[str, PathChange]) -> list[str]:
    """What would be a file where the sides before have a folder, or the other way round."""
    standing = {path for path, change in mine.items() if change.status != "D" and taken.get(path, change) is not None}
    folders = {above for path in standing for above in parents(path)}
    return [
        path
        for path, version in taken.items()
        if version is not None and (path in folders or any(above in standing for above in parents(path)))
    ]


def _merge_text(opened: IndexSession, ours: PathChange, theirs: PathChange, name: str) -> tuple[Version | None, str]:
    """Both made something of one file: the merged version, or none and the content with markers."""
    one, other, base = _new(ours), _new(theirs), _old(theirs)
    if one is None or other is None or one.mode not in _FILES or other.mode not in _FILES:
        return None, ""
    mode = other.mode if base is not None and one.mode == base.mode else one.mode
    if one.oid == other.oid:
        return Version(mode=mode, oid=one.oid), ""
    if base is not None and base.mode in _FILES and base.oid in (one.oid, other.oid):
        return Version(mode=mode, oid=other.oid if base.oid == one.oid else one.oid), ""
    text_base = base if base is not None and base.mode in _FILES else None
    status, merged = _merge_file(opened, [one, text_base, other], name)
    if status >= 128:  # not text
        return None, ""
    oid = opened.git().line("hash-object", "-w", "--no-filters", "--stdin", stdin=merged)
    return (Version(mode=mode, oid=oid), "") if status == 0 else (None, oid)


def _merge_file(opened: IndexSession, versions: Sequence[Version | None], name: str) -> tuple[int, bytes]:
    git = opened.git()
    with tempfile.TemporaryDirectory(prefix="merge-", dir=opened.worktree.folder) as folder:
        files = [Path(folder, side) for side in ("ours", "base", "theirs")]
        for file, version in zip(files, versions, strict=True):
            file.write_bytes(git.ask("cat-file", "blob", version.oid) if version else b"")
        labels = [part for label in ("merged so far", "before", name) for part in ("-L", label)]
        aside = Git(cwd=Path(folder), env=git.env, held=git.held, timeout_s=git.timeout_s)
        done = aside.run("merge-file", "-p", *labels, *(str(file) for file in files), ok=range(256))
    return done.status, done.stdout
