"""What restores have replaced, kept so that it can be brought back."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentos.exceptions import NotFoundError, SnapshotNotFoundError
from agentos.worktree.snapshots.snapshots import Snapshot, find, read, snapshot_refs
from agentos.worktree.snapshots.store import Worktree, safe_part

_UNDO = safe_part("undo")


def undo_points(worktree: Worktree) -> Iterator[Snapshot]:
    """What restores in this worktree replaced, newest first."""
    git = worktree.store_git()
    refs = {
        ref.rpartition("/")[2]: (ref, oid) for ref, oid in snapshot_refs(worktree).items() if ref.split("/")[3] == _UNDO
    }
    for name in sorted(refs, reverse=True):  # their names sort by time
        ref, oid = refs[name]
        snapshot = read(git, oid, oid, ref=ref)
        if snapshot.manifest.worktree == worktree.name:
            yield snapshot


def last_replaced(worktree: Worktree) -> Snapshot:
    """What the last restore in this worktree replaced. NotFoundError where there was none."""
    # One without `replaced_by` was taken by a restore that changed nothing, or found when one was finished.
    for snapshot in undo_points(worktree):
        if snapshot.manifest.replaced_by:
            return snapshot
    raise NotFoundError(
        "there is nothing to undo: no restore that is still remembered replaced files in this worktree",
        next_step="`agentos undo --list` shows what is remembered, `agentos checkpoints RUN` what a run keeps.",
    )


def find_by_prefix(worktree: Worktree, given: str) -> Snapshot:
    """The snapshot whose id begins so. SnapshotNotFoundError where none or several do."""
    if not re.fullmatch(r"[0-9a-f]{7,64}", given):
        raise SnapshotNotFoundError(given, "that is not the id of a snapshot")
    ids = {oid for oid in snapshot_refs(worktree).values() if oid.startswith(given)}
    if len(ids) > 1:
        raise SnapshotNotFoundError(given, f"{len(ids)} snapshots begin so; give more of the id")
    if not ids and len(given) != len(worktree.null_id):
        raise SnapshotNotFoundError(given)
    return find(worktree, ids.pop() if ids else given)
