"""Files put back by hand, what that replaced, and files taken out of every snapshot."""

from __future__ import annotations

from pathlib import Path

from agentos.workflow.files.restore import (
    FileChange,
    FilesForeseen,
    LeftAlone,
    RestoreReport,
    UndoPoint,
    list_undo_points,
    restore_files,
    undo_restore,
)
from agentos.workflow.files.retention import Purged, purge_path, snapshot_path
from agentos.workflow.place.place import find_place

__all__ = [
    "FileChange", "FilesForeseen", "LeftAlone", "Purged", "RestoreReport", "UndoPoint", "path_in_snapshots", "purge",
    "restore", "undo", "undo_points",
]  # fmt: skip


def restore(
    checkpoint: str, repo: str | Path | None = None, *, git: bool = False, dry_run: bool = False
) -> RestoreReport:
    """Make the files of the worktree those of a checkpoint, or of a snapshot by its id; `dry_run`: say what would be.

    What is there is captured first, and `undo` brings it back. The run is not rolled back; HEAD and the index follow
    with `git` only. WorktreeBusyError while a run changes files here.
    """
    return restore_files(checkpoint, _path(repo), git=git, dry_run=dry_run)


def undo(repo: str | Path | None = None, *, git: bool = False, dry_run: bool = False) -> RestoreReport:
    """Bring back what the last restore in this worktree replaced; what it did not touch stays. Undone twice: as before.

    NotFoundError where there is nothing to undo.
    """
    return undo_restore(_path(repo), git=git, dry_run=dry_run)


def undo_points(repo: str | Path | None = None) -> list[UndoPoint]:
    """What restores in this worktree replaced, newest first: `undo` brings back the first that `is_replaced`."""
    return list_undo_points(_path(repo))


def path_in_snapshots(given: str, repo: str | Path | None = None) -> str:
    """A path as snapshots name it, from one as it was typed: from here, or with `repo` from its root.

    ValueError if it is outside. It need not be there any more.
    """
    return snapshot_path(given, find_place(repo, make=False).root, from_root=repo is not None)


def purge(path: str, repo: str | Path | None = None) -> Purged:
    """Take a file or folder, as `path_in_snapshots` names it, out of every snapshot of the repository, for good.

    NotFoundError where none has it.
    """
    return purge_path(path, _path(repo))


def _path(repo: str | Path | None) -> Path | None:
    return Path(repo) if repo is not None else None
