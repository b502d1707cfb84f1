"""The files of the worktree a run works in: captured, and put back where a task was cut off while it changed them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec

from agentos.dag.checks import changes_files
from agentos.dag.plan import Plan, PlannedTask
from agentos.exceptions import FilesChangedError, RunRefusedError, SnapshotError, WorktreeBusyError
from agentos.ids import TaskId, new_id
from agentos.run.events import FilesRestored
from agentos.run.facts import Facts
from agentos.run.inputs import Captured
from agentos.run.resume import FilesAre
from agentos.store.holder import current_holder
from agentos.store.port import CheckpointRecord, RunRecord
from agentos.workflow.agents_cut_off import agents_cut_off
from agentos.workflow.settings_file import SETTINGS
from agentos.worktree.git import path_text, text_paths
from agentos.worktree.housekeeping import retain_ids
from agentos.worktree.restore import finish_interrupted, preview, restore
from agentos.worktree.snapshot_store import Worktree, open_worktree
from agentos.worktree.snapshots import Snapshot, diff, find, is_unchanged, take
from agentos.worktree.survey import read_head
from agentos.worktree.trees import Change

FilesChoice = Literal["ask", "restore", "keep", "checkpoint"]
"""What a resume does with files that a cut-off task may have changed: put them back unless somebody else changed them
since; in any case; never; or back to the newest checkpoint, whatever happened since."""

_SHOWN = 100
BEAT_S = 0.5
"""How often a drive gives a sign of life while a task changes files."""
_SLACK_S = 1.0


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the files before a drive."""

    files: FilesAre = "unknown"
    restored_to: int = 0
    target: str = ""
    """The snapshot to put back; empty: nothing is touched."""
    continues: Mapping[TaskId, str] = {}
    """Agents that were cut off and go on in their sessions, and from where."""
    starts_anew: Mapping[TaskId, str] = {}
    """Those that would, and why they cannot."""


class WorktreeFiles:
    """The files of one worktree, for one run that may change them. All of it blocks: call it from a thread.

    While it is open no other run can have them: WorktreeBusyError, which says who has.
    """

    def __init__(self, root: Path, workflow_id: str, *, protected: Iterable[str] = ()) -> None:
        self.worktree: Worktree = open_worktree(root)
        self._lock = WorktreeLock(self.worktree)
        self.workflow_id = workflow_id
        self._protected = (SETTINGS, *protected)

    def close(self) -> None:
        """Let others have the worktree."""
        self._lock.release()

    def protect(self, paths: Iterable[str]) -> None:
        """Never put these back either; as text, the way `own_output` gives them."""
        also = (path for text in paths for path in text_paths(text))
        self._protected = tuple(dict.fromkeys((*self._protected, *also)))

    def own_output(self) -> tuple[str, ...]:
        """The files of the worktree that this process prints to, as text."""
        found = []
        for stream in (1, 2):
            with suppress(OSError, ValueError):
                named = Path(os.readlink(f"/proc/self/fd/{stream}"))
                if os.path.samestat(os.stat(named), os.fstat(stream)):
                    found.append(path_text(str(named.relative_to(self.worktree.root))))
        return tuple(dict.fromkeys(found))

    def capture(self) -> Snapshot:
        """The files as they are now; durable on return. SnapshotError where that cannot be done."""
        return take(self.worktree, workflow_id=self.workflow_id, name=new_id())

    def told(self, found: Snapshot | str, about: Captured) -> Captured:
        """What the machine is told of a snapshot, or of why there is none."""
        if isinstance(found, str):
            return msgspec.structs.replace(about, problem=found)
        partial = tuple(path_text(left.path) for left in found.partial)
        return msgspec.structs.replace(about, snapshot=found.id, tree=found.tree, partial=partial)

    def changed(self, before: str, now: Snapshot) -> tuple[str, ...]:
        """The paths that differ from an earlier snapshot, as text."""
        return tuple(path_text(change.path) for change in diff(self.worktree, find(self.worktree, before), now))

    def is_unchanged(self, since: Snapshot) -> bool:
        """Whether the files, and where HEAD stands, are as in the snapshot, as far as either could be captured."""
        return is_unchanged(self.worktree, since)

    def beat(self) -> None:
        """Give a sign of life: what changes files later than the last of them was not this run."""
        path = self.worktree.folder / "alive"
        with suppress(OSError):
            path.write_text(self.workflow_id)

    def last_beat(self) -> datetime | None:
        """The last sign of life of this run, if it was the last to give one here."""
        return last_beat(self.worktree, self.workflow_id)

    def finish_interrupted(self) -> None:
        """A restore that a killed process had begun is brought to its end, before anything else looks at the files."""
        finish_interrupted(self.worktree)

    def put_back(self, snapshot_id: str) -> FilesRestored:
        """Make the files those of the snapshot; what was there is in `undo`. Never the workflow's file or settings."""
        target = find(self.worktree, snapshot_id)
        done = restore(self.worktree, target, workflow_id=self.workflow_id, protected=self._protected)
        paths = tuple(map(path_text, done.paths[:_SHOWN]))
        return FilesRestored(
            snapshot=target.id, tree=target.tree, undo=done.undo.id, paths=paths, count=len(done.paths)
        )

    def foreign_changes(self, snapshot_id: str, alive_until: datetime) -> tuple[str, tuple[str, ...]]:
        """Why the files are not simply put back, and which: they changed after the driver's last sign of life."""
        target, now = find(self.worktree, snapshot_id), self.capture()
        changes = preview(self.worktree, target, now, protected=self._protected)
        return disputed(self.worktree, target, changes, alive_until)

    def retain(self, snapshots: Iterable[str]) -> None:
        """Let go of all snapshots of this run but these (by id), so that their space can be given back."""
        retain_ids(self.worktree, self.workflow_id, set(snapshots))


def has_file_tasks(plan: Plan) -> bool:
    """Whether a task of the plan may change files of the worktree, itself or by what is merged into it."""
    return any(changes_files(task.definition) or is_isolated(task) for task in plan.tasks.values())


def is_isolated(task: PlannedTask) -> bool:
    """Whether each attempt of it has a worktree to itself."""
    return task.definition.isolation == "worktree"


def decide(
    facts: Facts,
    plan: Plan,
    checkpoints: Iterable[CheckpointRecord],
    choice: FilesChoice,
    workflow_id: str,
    *,
    before: Plan | None,
) -> Decided:
    """What becomes of the files, as far as the journal tells. Looks at no file.

    `before` is the plan the last drive had; None: the run goes back to a checkpoint.
    """
    if choice == "checkpoint":
        return _back_to_checkpoint(checkpoints, workflow_id)
    point = facts.files
    cut_off = [name for name in facts.running if name in plan.tasks and changes_files(plan.tasks[name].definition)]
    agents = agents_cut_off(facts, plan, cut_off, kept=choice == "keep", before=before)
    if not cut_off:
        return Decided(continues=agents.go_on)
    if point is None or not point.open:  # the snapshot that comes before an attempt's first step is not there
        return Decided(files="untouched", continues=agents.go_on, starts_anew=agents.start_anew)
    if choice == "keep":
        return Decided(files="kept", continues=agents.go_on, starts_anew=agents.start_anew)
    if not point.snapshot or (point.partial and choice != "restore"):
        return Decided(starts_anew=agents.start_anew)
    seq, target = agents.turn or (point.seq, point.snapshot)
    return Decided(
        files="restored",
        restored_to=seq,
        target=target,
        continues=agents.go_on,
        starts_anew=agents.start_anew,
    )


def _back_to_checkpoint(checkpoints: Iterable[CheckpointRecord], workflow_id: str) -> Decided:
    newest = [row for row in checkpoints if not row.abandoned][-1:]
    if not newest or not newest[0].snapshot:
        raise RunRefusedError(
            f"run {workflow_id} has no checkpoint with a snapshot of the files",
            next_step="Resume without --restore-files.",
        )
    return Decided(files="restored", restored_to=newest[0].sequence, target=newest[0].snapshot)


def alive_until(record: RunRecord, beat: datetime | None, *, lease_s: float, ended_now: bool) -> datetime:
    """Until when the run's last driver, or what it left behind, may have written files itself."""
    if ended_now:
        return datetime.now(UTC)
    last = record.updated_at
    if beat is not None:
        return max(last, beat) + timedelta(seconds=BEAT_S + _SLACK_S)
    if record.lease_until is not None:
        # It renews the lease every third of it, so that it may have lived so much longer than its last renewal.
        last = max(last, record.lease_until - timedelta(seconds=lease_s * 2 / 3))
    return last + timedelta(seconds=_SLACK_S)


def last_beat(worktree: Worktree, workflow_id: str) -> datetime | None:
    """The last sign of life of a run in this worktree, if it was the last to give one here."""
    path = worktree.folder / "alive"
    try:
        ours = path.read_text() == workflow_id
        return datetime.fromtimestamp(path.stat().st_mtime, UTC) if ours else None
    except (OSError, ValueError):
        return None


def disputed(
    worktree: Worktree, target: Snapshot, changes: Iterable[Change], alive_until: datetime
) -> tuple[str, tuple[str, ...]]:
    """Why these changes back to `target` are not simply made, and the paths that this is about, as text."""
    changes = list(changes)
    late = [change for change in changes if _changed_at(worktree.root / change.path) > alive_until]
    if late:
        return "these files were changed after it", tuple(path_text(change.path) for change in late)
    if changes and read_head(worktree.user_git(timeout_s=60)) != target.head:
        why = "HEAD was moved since it began; these files would be put back"
        return why, tuple(path_text(change.path) for change in changes)
    return "", ()


def refuse_foreign_changes(files: WorktreeFiles, decided: Decided, record: RunRecord, until: datetime) -> None:
    """FilesChangedError where putting files back could take away what somebody else did to them."""
    why, paths = files.foreign_changes(decided.target, until)
    if why:
        raise FilesChangedError(record.workflow_id, why, paths)


class WorktreeLock:
    """One driver of file tasks for each worktree. Held by this process until it is let go, or dies."""

    def __init__(self, worktree: Worktree) -> None:
        path = worktree.folder / "driver.lock"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            who = os.pread(self._file, 500, 0).decode(errors="replace") or "another process"
            os.close(self._file)
            raise WorktreeBusyError(
                f"another run changes files in this worktree: {who}",
                next_step="Wait for it to end, or work in another worktree (`git worktree add`).",
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(current_holder()).encode(), 0)

    def release(self) -> None:
        """Let others have it."""
        with suppress(OSError):
            os.ftruncate(self._file, 0)
        os.close(self._file)


def _changed_at(path: Path) -> datetime:
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
