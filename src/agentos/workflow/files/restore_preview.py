"""What a resume puts back in the worktree, and whether it may do so unasked: a dry run shows it, a resume acts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from agentos.exceptions import AgentosError, SnapshotError
from agentos.ids import EPOCH
from agentos.machine.events import Event
from agentos.workflow.files.decisions import BEAT_S, Decided, FilesChoice, last_written
from agentos.workflow.files.restore import LOOK, FileChange, LeftAlone, file_changes
from agentos.workflow.files.source_files import digest_of
from agentos.workflow.files.worktree_files import last_beat
from agentos.worktree.git import path_text
from agentos.worktree.restore.changes import preview_changes
from agentos.worktree.restore.intent import find_interrupted
from agentos.worktree.restore.restore import capture_current
from agentos.worktree.snapshots.snapshots import find
from agentos.worktree.snapshots.store import Worktree, known_worktree
from agentos.worktree.snapshots.survey import read_head
from agentos.worktree.snapshots.trees import PathChange, blob_reader

_SLACK_S = 1.0
_PATIENCE_S = 5.0
"""So long somebody who only asks waits for a run that is at work on the files."""


class FilesForeseen(msgspec.Struct, frozen=True, kw_only=True):
    """What a resume would put back before it runs anything."""

    snapshot: str
    """What the files would be put back to."""
    changes: list[FileChange]
    left: list[LeftAlone]
    """Protected, or not captured: left as it is."""
    asks: str
    """Why it would not do so unasked (`--files restore|keep` answers); empty: it would."""
    disputed: list[str]
    """The paths that this is about."""
    problem: str
    """Why nothing of this could be found out; empty: it could."""


def preview_restore(
    root: Path,
    workflow_id: str,
    decided: Decided,
    events: Sequence[Event],
    choice: FilesChoice,
    protected: Iterable[str],
) -> FilesForeseen:
    """What would be put back in the worktree at `root`. No file of the user's is touched."""
    worktree = known_worktree(root)
    try:
        if worktree is None:
            raise SnapshotError("there are no snapshots here")
        return look_at_files(worktree, workflow_id, decided, events, choice, protected)
    except AgentosError as error:
        return FilesForeseen(snapshot=decided.target, changes=[], left=[], asks="", disputed=[], problem=error.message)


def look_at_files(
    worktree: Worktree,
    workflow_id: str,
    decided: Decided,
    events: Sequence[Event],
    choice: FilesChoice,
    protected: Iterable[str],
) -> FilesForeseen:
    """What has to be done to the files to put them back, and why somebody has to be asked first, if so.

    They are captured once, under a name that the next look takes over.
    """
    protected = tuple(protected)
    target = find(worktree, decided.target)
    now = capture_current(worktree, target, workflow_id=workflow_id, name=LOOK, patience_s=_PATIENCE_S)
    changes, left = preview_changes(worktree, target, now, protected=protected)
    asks, disputed = "", list[PathChange]()
    begun = find_interrupted(worktree) if choice == "ask" and changes else None
    # This very restore may have been begun, and cut off: it is finished before anything else.
    if choice == "ask" and changes and (begun is None or begun.target != decided.target):
        if decided.as_left:
            disputed = list(preview_changes(worktree, find(worktree, decided.as_left), now, protected=protected)[0])
            asks = "these files were changed after it was stopped" if disputed else ""
        else:
            asks, disputed = _changed_since_kill(worktree, workflow_id, changes, last_written(events, decided.begun))
        if not asks and read_head(worktree.user_git()) != target.head:
            asks, disputed = "HEAD was moved since it began; these files would be put back", list(changes)
    return FilesForeseen(
        snapshot=target.id,
        changes=file_changes(changes),
        left=[LeftAlone(path=path_text(row.path), why=row.why) for row in left],
        asks=asks,
        disputed=[path_text(change.path) for change in disputed],
        problem="",
    )


def restored_digests(root: Path, workflow_id: str, target: str, protected: Iterable[str]) -> dict[str, str | None]:
    """The files that a restore of the snapshot `target` would change: a digest of what each becomes, as of sources.

    None for one that goes. Nothing where that cannot be found out: then the restore itself fails, and says why.
    """
    worktree = known_worktree(root)
    if worktree is None:
        return {}
    try:
        wanted = find(worktree, target)
        now = capture_current(worktree, wanted, workflow_id=workflow_id, name=LOOK, patience_s=_PATIENCE_S)
        changes, _ = preview_changes(worktree, wanted, now, protected=tuple(protected))
        with blob_reader(worktree.store_git()) as read:
            return {
                change.path: digest_of(read(change.new_oid), change.new_mode) if change.status != "D" else None
                for change in changes
                if change.status == "D" or change.new_oid  # else only permission bits, or a folder
            }
    except AgentosError:
        return {}


def _changed_since_kill(
    worktree: Worktree, workflow_id: str, changes: Iterable[PathChange], written: datetime | None
) -> tuple[str, list[PathChange]]:
    """Of these changes, those that were made after the driver's last sign of life, for all that can be told.

    A process that it left behind may have made them as well: that is no reason to take somebody's work away.
    """
    beat = last_beat(worktree, workflow_id)
    if beat is not None and beat.clock_went_back:
        why = "the clock was set back since, so it is unknown whether these files were changed after it"
        return why, list(changes)
    signs = [sign for sign in (written, beat.at if beat is not None else None) if sign is not None]
    alive_until = max(signs, default=EPOCH) + timedelta(seconds=BEAT_S + _SLACK_S)
    late = [change for change in changes if _change_time(worktree.root / change.path) > alive_until]
    return "these files were changed after it" if late else "", late


def _change_time(path: Path) -> datetime:
    """When the path was last written, or went away; the nearest folder that is there tells of what is not."""
    while True:
        try:
            found = os.lstat(path)
        except OSError:
            if path == path.parent:
                raise SnapshotError(f"{path} is gone with everything above it") from None
            path = path.parent
            continue
        return datetime.fromtimestamp(max(found.st_mtime, found.st_ctime), UTC)
