"""Merge what isolated tasks did to the same files: trees against their common base, path by path, in the given order.

Paths that only one side changed are taken as they are; text that both changed is merged by `git merge-file`; the rest
is a conflict. No renames are guessed: a renamed file is one that went and one that came. So the result depends on the
trees and their order alone, with every version of git.

A path in conflict is settled by choices of sides, hunk by hunk (`settle`): what is not in dispute is taken from all.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from agentos.worktree.git import Git, parents
from agentos.worktree.hunks import Dispute, Edit, merge_edits, split_lines
from agentos.worktree.snapshots.capture import LIMITS
from agentos.worktree.snapshots.store import IndexSession, Worktree, session
from agentos.worktree.snapshots.trees import Entry, PathChange, check_ids, diff_trees, files_in, tree_with

_FILES = ("100644", "100755")
_LOOKED_AT = 8000
"""A NUL in so many bytes makes a file one that is no text, as for git."""
_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
_PLAIN = ("-U0", "--inter-hunk-context=0", "--text", "--no-ext-diff", "--no-textconv", "--no-color",
          "--no-indent-heuristic", "--diff-algorithm=myers")  # fmt: skip


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
    collides: bool = False
    """It would be a file where the sides before have a folder, or the other way round."""


class MergeResult(msgspec.Struct, frozen=True, kw_only=True):
    tree: str
    """Everything that goes together; nothing refers to it yet. No file in it has conflict markers."""
    conflicts: tuple[Conflict, ...]


class MergeSide(NamedTuple):
    """What one side made of a path."""

    name: str
    base: Version | None
    """What it began with."""
    version: Version | None


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a path in conflict."""

    version: Version | None
    disputes: tuple[Dispute, ...] = ()
    """What somebody has to choose before that counts."""


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
    return Version(mode=mode, oid=_store_blob(worktree.store_git(), file.read_bytes()))


def versions_in(worktree: Worktree, tree: str) -> dict[str, Version]:
    """What a tree holds, by path."""
    found = files_in(worktree.store_git(), tree)
    return {path: Version(mode=mode, oid=oid) for path, (mode, oid) in found.items()}


def changes_between(worktree: Worktree, base: str, tree: str, name: str) -> dict[str, MergeSide]:
    """What a side with this name, whose tree this is, made of the paths of `base` that it changed."""
    changed = diff_trees(worktree.store_git(), base, tree)
    return {change.path: MergeSide(name, _old(change), _new(change)) for change in changed}


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
            merged = _merge_text(opened, before, change)
            if merged is None:
                conflicts.append(
                    Conflict(path=change.path, base=_old(change), ours=_new(before), theirs=_new(change), by=name)
                )
            else:
                taken[change.path] = merged
    for path in _colliding(taken, mine):
        conflicts.append(Conflict(path=path, base=None, ours=None, theirs=taken.pop(path), by=name, collides=True))
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


def _merge_text(opened: IndexSession, ours: PathChange, theirs: PathChange) -> Version | None:
    """Both made something of one file: the merged version; None where it does not go together."""
    one, other, base = _new(ours), _new(theirs), _old(theirs)
    if one is None or other is None or one.mode not in _FILES or other.mode not in _FILES:
        return None
    mode = other.mode if base is not None and one.mode == base.mode else one.mode
    if one.oid == other.oid:
        return Version(mode=mode, oid=one.oid)
    if base is not None and base.mode in _FILES and base.oid in (one.oid, other.oid):
        return Version(mode=mode, oid=other.oid if base.oid == one.oid else one.oid)
    text_base = base if base is not None and base.mode in _FILES else None
    status, merged = _merge_file(opened, [one, text_base, other])
    if status != 0:
        return None
    return Version(mode=mode, oid=_store_blob(opened.git(), merged))


def _merge_file(opened: IndexSession, versions: Sequence[Version | None]) -> tuple[int, bytes]:
    git = opened.git()
    with tempfile.TemporaryDirectory(prefix="merge-", dir=opened.worktree.folder) as folder:
        files = [Path(folder, side) for side in ("ours", "base", "theirs")]
        for file, version in zip(files, versions, strict=True):
            file.write_bytes(git.ask("cat-file", "blob", version.oid) if version else b"")
        aside = Git(cwd=Path(folder), env=git.env, held=git.held, timeout_s=git.timeout_s)
        done = aside.run("merge-file", "-p", *(str(file) for file in files), ok=range(256))
    return done.status, done.stdout


def _store_blob(git: Git, content: bytes) -> str:
    return git.line("hash-object", "-w", "--no-filters", "--stdin", stdin=content)


# --- settling conflicts -----------------------------------------------------------------------------------------


def settle(
    worktree: Worktree, here: MergeSide, sides: Sequence[MergeSide], favour: Sequence[str] = (), *, whole: bool = False
) -> Settlement:
    """Merge what `sides`, each from what it began with, made of a path that has become `here` meanwhile.

    Each hunk in dispute goes to the first of `favour`, names of sides, that is a side of it, and every other hunk is
    kept, whoever it is from. `whole`: the path itself is in dispute.
    """
    with session(worktree, seconds=LIMITS.seconds) as opened:
        settling = _Settling(opened, here, sides, favour)
        settled, doubts = settling.settle(whole=whole, yielding=here.name)
        if doubts:
            # Between one task and the worktree: of no account where the choice overrules both of them.
            other, _ = settling.settle(whole=whole, yielding="")
            if settled.disputes or other != settled:
                settled = msgspec.structs.replace(settled, disputes=(*settled.disputes, *doubts))
    return settled


class _Settling:
    def __init__(
        self, opened: IndexSession, here: MergeSide, sides: Sequence[MergeSide], favour: Sequence[str]
    ) -> None:
        self._git = opened.git()
        self._here, self._sides, self._favour = here, sides, favour
        self._read: dict[str, bytes] = {}

    def settle(self, *, whole: bool, yielding: str) -> tuple[Settlement, list[Dispute]]:
        """The settlement, and disputes with the worktree alone, in which `yielding` (or else the task) gave way."""
        here, doubts = self._here, list[Dispute]()
        changed: dict[str, Version | None] = {}
        for side in self._sides:
            version, more = self._carry_over(side, yielding)
            doubts += more
            if version != here.version:
                changed[side.name] = version
        if not whole and len(set(changed.values())) < 2:
            return Settlement(version=next(iter(changed.values()), here.version)), doubts
        if whole or not all(map(self._is_text, (here.version, *changed.values()))):
            winner = self._winner(here.name, *changed)
            if not winner:
                return Settlement(
                    version=here.version, disputes=(self._whole({here.name: here.version, **changed}),)
                ), doubts
            chosen = changed.get(winner, here.version)
            if winner == here.name or not self._is_text(chosen):
                return Settlement(version=chosen), doubts
        texts = {name: version for name, version in changed.items() if version and self._is_text(version)}
        merged, disputes = self._merge(self._ground(), texts, base_name=here.name)
        return Settlement(version=self._version(merged), disputes=tuple(disputes)), doubts

    def _carry_over(self, side: MergeSide, yielding: str) -> tuple[Version | None, list[Dispute]]:
        """What the side would have made of the path as it is now."""
        here = self._here
        if here.version == side.base or side.version == side.base or here.version == side.version:
            return (side.version if here.version == side.base else here.version), []
        otherwise = side.name if yielding == here.name else here.name
        if here.version and side.version and self._is_text(here.version) and self._is_text(side.version):
            base = side.base if self._is_text(side.base) else None
            texts = {here.name: here.version, side.name: side.version}
            merged, disputes = self._merge(base, texts, otherwise=otherwise)
            return self._version(merged), disputes
        winner = self._winner(here.name, side.name)
        disputes = [] if winner else [Dispute(sides=(here.name, side.name))]
        return (side.version if (winner or otherwise) == side.name else here.version), disputes

    def _whole(self, versions: Mapping[str, Version | None]) -> Dispute:
        """The whole file in dispute; with its texts where the worktree has none, and the others nothing else."""
        texts = [self._content(version) if version and self._is_text(version) else b"" for version in versions.values()]
        if self._here.version is None and all(texts[1:]):
            return Dispute(sides=tuple(versions), line=1, texts=tuple(texts))
        return Dispute(sides=tuple(versions))

    def _winner(self, *names: str) -> str:
        return next((name for name in self._favour if name in names), "")

    def _ground(self) -> Version | None:
        """What hunks are told apart by: the file as it is now, or else what all began with."""
        if self._is_text(self._here.version):
            return self._here.version
        bases = {side.base for side in self._sides}
        base = bases.pop()
        return base if not bases and self._is_text(base) else None

    def _merge(
        self, base: Version | None, texts: Mapping[str, Version], *, base_name: str = "", otherwise: str = ""
    ) -> tuple[bytes, list[Dispute]]:
        lines = split_lines(self._content(base)) if base else []
        oid = base.oid if base else _store_blob(self._git, b"")
        edits = {name: self._edits(oid, version) for name, version in texts.items()}
        return merge_edits(lines, edits, self._favour, base_name=base_name, otherwise=otherwise)

    def _edits(self, base: str, version: Version) -> list[Edit]:
        lines = split_lines(self._content(version))
        edits = []
        for found in _HUNK.finditer(self._git.ask("diff", *_PLAIN, base, version.oid)) if base != version.oid else ():
            old, new = int(found[1]), int(found[3])
            went, came = (1 if count is None else int(count) for count in (found[2], found[4]))
            start = old - 1 if went else old  # where nothing went it is the line before
            edits.append(Edit(start, start + went, tuple(lines[new - 1 : new - 1 + came] if came else ())))
        return edits

    def _version(self, merged: bytes) -> Version:
        """A version with this content, executable where one of the sides made it so."""
        here = self._here
        modes = {}
        for side in self._sides:
            if side.version and side.version.mode in _FILES and (not side.base or side.base.mode != side.version.mode):
                modes[side.name] = side.version.mode
        if here.version and here.version.mode in _FILES and (not modes or any(not side.base for side in self._sides)):
            modes = {here.name: here.version.mode, **modes}
        others = [side.version.mode for side in self._sides if side.version and side.version.mode in _FILES]
        mode = next((modes[name] for name in (*self._favour, *modes) if name in modes), "") or others[0]
        return Version(mode=mode, oid=_store_blob(self._git, merged))

    def _is_text(self, version: Version | None) -> bool:
        return version is not None and version.mode in _FILES and b"\0" not in self._content(version)[:_LOOKED_AT]

    def _content(self, version: Version) -> bytes:
        if version.oid not in self._read:
            check_ids(version.oid)
            self._read[version.oid] = self._git.ask("cat-file", "blob", version.oid)
        return self._read[version.oid]
