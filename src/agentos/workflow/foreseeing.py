"""What a resume would do to the files of a worktree, before it does: for whoever asks for a dry run."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import msgspec

from agentos.exceptions import AgentosError
from agentos.store.port import RunRecord
from agentos.workflow.file_decisions import Decided, FilesChoice, alive_until
from agentos.workflow.files import disputed, last_beat
from agentos.workflow.loading import source_files
from agentos.workflow.ready import DriveOptions
from agentos.workflow.restoring import LOOK, FileChange, LeftAlone, file_changes
from agentos.workflow.settings_file import SETTINGS
from agentos.worktree.git import path_text
from agentos.worktree.restore import foresee
from agentos.worktree.snapshot_store import Worktree, known_worktree
from agentos.worktree.snapshots import find, take

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


def foreseen_files(
    root: Path, record: RunRecord, decided: Decided, choice: FilesChoice, own_output: Iterable[str]
) -> FilesForeseen | None:
    """What would be put back in the worktree at `root`; None: nothing is. No file of the user's is touched.

    The files are captured once, under a name that the next look takes over.
    """
    if not decided.target:
        return None
    worktree = known_worktree(root)
    if worktree is None:
        return _nothing(decided, "there are no snapshots here")
    try:
        return _foreseen(worktree, record, decided, choice, tuple(own_output))
    except AgentosError as error:
        return _nothing(decided, error.message)


def _nothing(decided: Decided, problem: str) -> FilesForeseen:
    return FilesForeseen(snapshot=decided.target, changes=[], left=[], asks="", disputed=[], problem=problem)


def _foreseen(
    worktree: Worktree, record: RunRecord, decided: Decided, choice: FilesChoice, own_output: tuple[str, ...]
) -> FilesForeseen:
    target = find(worktree, decided.target)
    now = take(worktree, workflow_id=record.workflow_id, name=LOOK, patience_s=_PATIENCE_S)
    protected = (SETTINGS, *source_files(record.source), *own_output)
    changes, left = foresee(worktree, target, now, protected=protected)
    asks, paths = "", tuple[str, ...]()
    if choice == "ask":
        asks, paths = disputed(worktree, target, changes, _alive_until(worktree, record))
    return FilesForeseen(
        snapshot=target.id,
        changes=file_changes(changes),
        left=[LeftAlone(path=path_text(row.path), why=row.why) for row in left],
        asks=asks,
        disputed=list(paths),
        problem="",
    )


def _alive_until(worktree: Worktree, record: RunRecord) -> datetime:
    beat = last_beat(worktree, record.workflow_id)
    return alive_until(record, beat, lease_s=DriveOptions().lease_s, ended_now=False)
