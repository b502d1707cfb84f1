"""Which objects of a snapshot must be our own: those that the user's gc may take away.

The store borrows the repository's objects. What is reachable from HEAD stays there; a blob that was only staged, or a
commit that was amended away, does not. Such objects are copied into the store before a snapshot's ref is written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from agentos.worktree.git import REPOSITORY, Git, split_names
from agentos.worktree.snapshots.capture import CapturedFiles
from agentos.worktree.snapshots.index import IndexSession

_NEWS = ("diff-tree", "-r", "-t", "-z", "--raw", "--no-renames", "--no-abbrev")
_NOTHING = "000000"
"""The mode of what is not there any more."""


class Listing:
    """What a snapshot may need of objects that are not our own yet, while git finds it out."""

    def __init__(self, opened: IndexSession, captured: CapturedFiles) -> None:
        self._opened, self._captured = opened, captured
        last = captured.known.kept
        self._since = last[0] if last and last[1:] == _key(captured)[1:] else None
        """The tree of the snapshot before, where that is all that has changed: what it has is kept already."""
        argv = (*_NEWS, self._since, captured.tree) if self._since else _needed_argv(captured, beside_head=True)
        self._running = opened.git().start(*argv)

    def stop(self) -> None:
        self._running.stop()

    def end(self) -> list[str]:
        """The ids of these objects. GitError where one that must be there is not."""
        git, captured = self._opened.git(), self._captured
        done = self._running.end(ok=range(256))
        if self._since and done.status == 0:
            about = (entry.split(" ") for entry in split_names(done.stdout)[::2])
            return [captured.tree, *(oid for _, mode, _, oid, _ in about if mode not in (_NOTHING, REPOSITORY))]
        if self._since:  # the snapshot before is not whole any more
            done = git.run(*_needed_argv(captured, beside_head=True), ok=range(256))
        if done.status:
            # HEAD's own history is not whole here (a shallow or partial clone): keep everything.
            done = git.run(*_needed_argv(captured, beside_head=False))
        needed = [line for line in os.fsdecode(done.stdout).splitlines() if line]
        if any(line.startswith("?") for line in needed):
            # Of the user's index much may be missing (a partial clone); of the files nothing.
            git.ask("rev-list", "--objects", "--quiet", captured.tree)
        return [oid for oid in needed if oid[0] not in "?-"]


def begin_keeping(opened: IndexSession, captured: CapturedFiles) -> Listing | None:
    """Begin to list what a snapshot needs that HEAD's history does not hold; None where nothing changed since."""
    return None if captured.known.kept == _key(captured) else Listing(opened, captured)


def keep_objects(opened: IndexSession, listing: Listing | None, captured: CapturedFiles) -> None:
    """Copy into the store what was listed and the store does not hold itself.

    GitError where an object is gone already: the user's gc was quicker than we.
    """
    if listing is None:
        return
    git, store = opened.git(), opened.worktree.store
    copied = [oid for oid in listing.end() if not os.path.exists(f"{store}/objects/{oid[:2]}/{oid[2:]}")]
    if copied and any((store / "objects/pack").glob("*.idx")):
        copied = sorted(set(copied) - own_objects(git, store, copied))
    if copied:
        git.ask("pack-objects", "-q", str(store / "objects/pack/pack"), stdin="\n".join([*copied, ""]).encode())
    captured.known.kept = _key(captured)


def _key(captured: CapturedFiles) -> tuple[str | None, ...]:
    return (captured.tree, captured.head.oid, captured.staged)


def _needed_argv(captured: CapturedFiles, *, beside_head: bool) -> tuple[str, ...]:
    # Plain --objects would list the whole tree, since a snapshot has no history in common with HEAD.
    listing = ("rev-list", "--objects-edge-aggressive", "--no-object-names", "--missing=print")
    head = captured.head.oid if beside_head else None
    return (*listing, captured.tree, *([captured.staged] if captured.staged else []), *([f"^{head}"] if head else []))


def own_objects(git: Git, store: Path, oids: Iterable[str] | None = None) -> set[str]:
    """Which of `oids` (None: of all) the store holds itself, not counting what it borrows."""
    argv: tuple[str, ...] = ("cat-file", "--batch-check=%(objectname)")
    if oids is None:
        argv += ("--batch-all-objects", "--unordered")
    stdin = None if oids is None else "\n".join([*oids, ""]).encode()
    listed = git.ask(*argv, stdin=stdin, env={"GIT_OBJECT_DIRECTORY": str(own_folder(store))})
    return {line for line in os.fsdecode(listed).splitlines() if " " not in line}


def own_folder(store: Path) -> Path:
    """An object folder without alternates, on the same objects: only so can git be asked about what is ours alone."""
    alone = store / "own"
    alone.mkdir(mode=0o700, exist_ok=True)
    for name in ("pack", *(f"{byte:02x}" for byte in range(256))):
        if not (alone / name).is_symlink():
            with contextlib.suppress(FileExistsError):  # somebody else was first
                (alone / name).symlink_to(f"../objects/{name}")
    return alone
