"""Which objects of a snapshot must be our own: those that the user's gc may take away.

The store borrows the repository's objects. What is reachable from HEAD stays there; a blob that was only staged, or a
commit that was amended away, does not. Such objects are copied into the store before a snapshot's ref is written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from agentos.worktree.capture import Captured
from agentos.worktree.git import Git, Running
from agentos.worktree.session import Session


def begin_keeping(opened: Session, captured: Captured) -> Running | None:
    """Begin to list what a snapshot needs that HEAD's history does not hold; None where nothing changed since."""
    if captured.known.kept == _key(captured):
        return None
    return opened.git().start(*_needed(captured), *([f"^{captured.head.oid}"] if captured.head.oid else []))


def keep_objects(opened: Session, listing: Running | None, captured: Captured) -> None:
    """Copy into the store what was listed and the store does not hold itself.

    GitError where an object is gone already: the user's gc was quicker than we.
    """
    if listing is None:
        return
    git, store = opened.git(), opened.worktree.store
    done = listing.end(ok=range(256))
    if done.status:
        # HEAD's own history is not whole here (a shallow or partial clone): keep everything.
        done = git.done(*_needed(captured))
    needed = [line for line in os.fsdecode(done.stdout).splitlines() if line]
    if any(line.startswith("?") for line in needed):
        # Of the user's index much may be missing (a partial clone); of the files nothing.
        git.ask("rev-list", "--objects", "--quiet", captured.tree)
    borrowed = [oid for oid in needed if oid[0] not in "?-" and not _is_loose(store, oid)]
    copied = _not_packed(git, store, borrowed)
    if copied:
        git.ask("pack-objects", "-q", str(store / "objects/pack/pack"), stdin="\n".join([*copied, ""]).encode())
    captured.known.kept = _key(captured)


def _key(captured: Captured) -> tuple[str | None, ...]:
    return (captured.tree, captured.head.oid, captured.staged)


def _needed(captured: Captured) -> tuple[str, ...]:
    # Plain --objects would list the whole tree, since a snapshot has no history in common with HEAD.
    listing = ("rev-list", "--objects-edge-aggressive", "--no-object-names", "--missing=print")
    return (*listing, captured.tree, *([captured.staged] if captured.staged else []))


def _is_loose(store: Path, oid: str) -> bool:
    return (store / "objects" / oid[:2] / oid[2:]).exists()


def _not_packed(git: Git, store: Path, oids: list[str]) -> list[str]:
    """Those of `oids` that are in none of our packs."""
    if not oids or not any((store / "objects/pack").glob("*.idx")):
        return oids
    return sorted(set(oids) - own_objects(git, store, oids))


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
    alone.mkdir(exist_ok=True)
    for name in ("pack", *(f"{byte:02x}" for byte in range(256))):
        if not (alone / name).is_symlink():
            with contextlib.suppress(FileExistsError):  # somebody else was first
                (alone / name).symlink_to(f"../objects/{name}")
    return alone
