"""What a restore would do to the files: which paths differ from the target, and which of them are left alone."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from agentos.worktree.git import REPOSITORY, Git
from agentos.worktree.restore.safe_names import Protection
from agentos.worktree.restore.writes import behind_link, is_pipe
from agentos.worktree.snapshots.manifest import Manifest, SkippedPath
from agentos.worktree.snapshots.snapshots import Snapshot
from agentos.worktree.snapshots.store import Worktree
from agentos.worktree.snapshots.trees import PathChange, diff_trees, mode_changes


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What files are to become."""

    workflow_id: str
    id: str
    tree: str
    protected: Protection = msgspec.field(default_factory=lambda: Protection(()))
    """Never written or deleted."""
    kept: Protection = msgspec.field(default_factory=lambda: Protection(()))
    """Never deleted."""
    manifest: Manifest | None = None
    only: Protection | None = None
    """Nothing else is looked at. None: everything."""
    before: str = ""
    """Only what differs from this tree is wanted; empty: all that differs from what is there."""

    def selects(self, path: str) -> bool:
        # A file in the place of a folder, or the other way round, goes with what takes its place.
        return self.only is None or self.only.covers(path) or self.only.lies_below(path)


def make_target(
    snapshot: Snapshot, *, workflow_id: str = "", protected: Iterable[str] = (), only: Protection | None = None
) -> Target:
    """The files of a snapshot."""
    then = snapshot.manifest
    return Target(
        workflow_id=workflow_id,
        id=snapshot.id,
        tree=snapshot.tree,
        manifest=then,
        protected=Protection(protected),
        # What was there when it was taken and is not in it: not being in it is no reason to delete it.
        kept=Protection([*then.ignored, *(left.path for left in then.partial), *then.purged]),
        only=only,
    )


def preview_changes(
    worktree: Worktree,
    target: Snapshot,
    now: Snapshot,
    *,
    protected: Iterable[str] = (),
    only: Protection | None = None,
) -> tuple[list[PathChange], tuple[SkippedPath, ...]]:
    """What `restore` would do to the files as they are in `now`, and what it would leave alone although it differs.

    Permission bits and empty folders are changes, too. `only`: of these paths, as `undo` does.
    """
    git = worktree.store_git()
    meant = make_target(target, protected=protected, only=only)
    differing = diff_trees(git, now.tree, target.tree)
    changes, left = divide_changes(worktree.root, meant, differing, now)
    return [*changes, *find_extras(git, worktree.root, meant, now, differing)], left


def touched_paths(worktree: Worktree, replaced: Snapshot) -> Protection:
    """The paths that a restore touched, by its undo snapshot."""
    changes = diff_trees(worktree.store_git(), replaced.tree, replaced.manifest.replaced_by)
    return Protection([*(change.path for change in changes), *replaced.manifest.replaced_modes])


def divide_changes(
    root: Path, target: Target, changes: Iterable[PathChange], now: Snapshot
) -> tuple[list[PathChange], tuple[SkippedPath, ...]]:
    """What to do, and what is left alone although it differs."""
    protected, kept = target.protected, target.kept
    missing = {left.path: left.why for left in now.partial if left.path not in now.manifest.repositories}
    # What is there now and not in the undo snapshot could not be brought back.
    uncaptured = Protection([*now.manifest.ignored, *missing, *now.manifest.repositories])
    do: list[PathChange] = []
    left: list[SkippedPath] = []
    for change in changes:
        path = change.path
        if not target.selects(path):
            continue
        if protected.covers(path):
            left.append(SkippedPath(path, "it is protected"))
        elif change.status == "D" and kept.covers(path):
            continue
        elif REPOSITORY in (change.old_mode, change.new_mode):
            left.append(SkippedPath(path, "a repository of its own"))
        elif change.status == "A" and (protected.lies_below(path) or kept.lies_below(path)) and (root / path).is_dir():
            left.append(SkippedPath(path, "something protected is in its place"))
        elif change.status == "A" and (
            uncaptured.lies_below(path) or (uncaptured.covers(path) and _in_the_way(root, path))
        ):
            left.append(SkippedPath(path, "something is in its place that is not captured"))
        else:
            do.append(change)
    told = {one.path for one in left}
    if target.manifest is not None and target.only is None:
        left += [SkippedPath(path, why) for path, why in missing.items() if path not in told and not kept.covers(path)]
    return do, tuple(left)


def find_extras(
    git: Git, root: Path, target: Target, now: Snapshot, differing: Collection[PathChange]
) -> tuple[PathChange, ...]:
    """What trees do not have: permission bits that differ where the content does not, and empty folders."""
    then = target.manifest
    if then is None:
        return ()
    modes = now.manifest.modes
    bits = mode_changes(git, target.tree, then.modes, modes) - {change.path for change in differing}
    # A folder that is new has bits of its own, which are nothing to put back.
    new = {path for path in bits if path in modes.odd_folders and path not in then.modes.odd_folders}
    gone = set() if target.only is not None else set(now.manifest.empty) - set(then.empty)
    if new or gone:
        folders = set(git.names("ls-tree", "-r", "-d", "-z", "--name-only", target.tree))
        bits, gone = bits - (new - folders), gone - folders
    found = [
        *((path, "M") for path in bits if os.path.lexists(root / path)),
        *((f"{path}/", "D") for path in gone),
        *((f"{path}/", "A") for path in then.empty if not os.path.isdir(root / path)),
    ]
    return tuple(
        sorted(
            PathChange(
                path=path,
                status=status,
                old_mode=f"{modes.odd.get(path, 0):o}",
                new_mode=f"{then.modes.odd.get(path, 0):o}",
                old_oid="",
                new_oid="",
            )
            for path, status in set(found)
            if target.selects(path.rstrip("/")) and not target.protected.covers(path.rstrip("/"))
        )
    )


def _in_the_way(root: Path, path: str) -> bool:
    """Whether something is at `path`, or where one of its folders would be. Pipes and sockets hold nothing."""
    try:
        return not is_pipe(os.lstat(root / path).st_mode)
    except FileNotFoundError:
        return behind_link(root, path)
    except NotADirectoryError:
        return True
