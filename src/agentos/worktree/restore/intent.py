"""What a restore is about to do, written down first, so that one that is killed can be finished."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agentos import typed
from agentos.exceptions import RestoreError
from agentos.worktree.restore.safe_names import refuse_no_oid, refuse_unsafe
from agentos.worktree.snapshots.manifest import PERMISSIONS, Modes, check_modes
from agentos.worktree.snapshots.store import Worktree, write_durably
from agentos.worktree.snapshots.trees import Entry

_FILE = "restoring.json"
_MODES = {"0", "100644", "100755", "120000"}


class RestoreIntent(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is needed to put files back, from any state in between."""

    workflow_id: str
    target: str
    """What is restored: the id of a snapshot, or of a tree."""
    undo: str
    """The snapshot of what was there."""
    changes: tuple[Entry, ...]
    modes: Modes | None = None
    """Permission bits to end with; None: as git makes them."""
    modes_of: tuple[str, ...] = ()
    """The paths to give them to: what is written, and what has others now."""
    make_folders: tuple[str, ...] = ()
    remove_folders: tuple[str, ...] = ()
    locked: Mapping[str, int] = {}
    """Folders that we may not write to until we allow it ourselves, and the permission bits they end with."""

    @property
    def paths(self) -> list[str]:
        return [change.path for change in self.changes]


def write(worktree: Worktree, intent: RestoreIntent) -> None:
    """Durable on return."""
    path = worktree.folder / _FILE
    content = json.dumps(msgspec.to_builtins(intent), ensure_ascii=True).encode("ascii")
    write_durably(path.with_name(f"{_FILE}.new"), content, path)


def find_interrupted(worktree: Worktree) -> RestoreIntent | None:
    """The restore that was begun in this worktree and has not ended."""
    return read_from(worktree.folder)


def read_from(folder: Path) -> RestoreIntent | None:
    """The same, by the private folder of a worktree. RestoreError for a note that no restore of ours wrote."""
    try:
        return _check(typed.convert(json.loads((folder / _FILE).read_bytes()), RestoreIntent, strict=False))
    except FileNotFoundError:
        return None
    except ValueError as error:  # of JSON, of msgspec, of what it says
        raise RestoreError(
            f"a restore was interrupted here, and the note of what is left to do cannot be used: {error}",
            next_step="Go on with the files as they are: --files keep.",
        ) from error


def _check(intent: RestoreIntent) -> RestoreIntent:
    refuse_no_oid(intent.target, intent.undo, *(change.oid for change in intent.changes))
    if unknown := {change.mode for change in intent.changes} - _MODES:
        raise ValueError(f"it names the mode {min(unknown)!r}")
    refuse_unsafe((*intent.paths, *intent.modes_of, *intent.make_folders, *intent.remove_folders))
    refuse_unsafe(path for path in intent.locked if path)  # empty: the root
    modes = check_modes(intent.modes) if intent.modes is not None else None
    locked = {path: bits & PERMISSIONS for path, bits in intent.locked.items()}
    return msgspec.structs.replace(intent, modes=modes, locked=locked)


def clear(worktree: Worktree) -> None:
    (worktree.folder / _FILE).unlink(missing_ok=True)
