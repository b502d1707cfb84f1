"""What a restore is about to do, written down first, so that one that is killed can be finished."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agentos import typed
from agentos.worktree.manifest import Modes
from agentos.worktree.snapshot_store import Worktree, write_durably
from agentos.worktree.trees import Change


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What one path is to become; no `oid`: nothing."""

    path: str
    mode: str
    oid: str = ""


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is needed to put files back, from any state in between."""

    workflow_id: str
    target: str
    """What is restored: the id of a snapshot, or of a tree."""
    undo: str
    """The snapshot of what was there."""
    changes: tuple[Wanted, ...]
    modes: Modes | None = None
    """Permission bits to end with; None: as git makes them."""
    modes_of: tuple[str, ...] = ()
    """The paths to give them to: what is written, and what has others now."""
    make_folders: tuple[str, ...] = ()
    remove_folders: tuple[str, ...] = ()

    @property
    def paths(self) -> list[str]:
        return [change.path for change in self.changes]


def wanted(change: Change) -> Wanted:
    if change.status == "D":
        return Wanted(path=change.path, mode="0")
    return Wanted(path=change.path, mode=change.new_mode, oid=change.new_oid)


def write(worktree: Worktree, intent: Intent) -> None:
    """Durable on return."""
    path = worktree.folder / "restoring.json"
    content = json.dumps(msgspec.to_builtins(intent), ensure_ascii=True).encode("ascii")
    write_durably(path.with_name("restoring.json.new"), content, path)


def read(worktree: Worktree) -> Intent | None:
    """The restore that was begun in this worktree and has not ended."""
    return read_from(worktree.folder)


def read_from(folder: Path) -> Intent | None:
    """The same, by the private folder of a worktree."""
    try:
        content: Mapping[str, object] = json.loads((folder / "restoring.json").read_bytes())
    except FileNotFoundError:
        return None
    return typed.convert(content, Intent, strict=False)


def clear(worktree: Worktree) -> None:
    (worktree.folder / "restoring.json").unlink(missing_ok=True)
