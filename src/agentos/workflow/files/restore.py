"""Files put back: by hand, to what a checkpoint has or to what the last restore replaced; and what a resume would
put back, and whether it may do so unasked."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec

from agentos.exceptions import (
    AgentosError,
    CheckpointNotFoundError,
    IntegrityError,
    NotFoundError,
    RestoreError,
    RunRefusedError,
    SnapshotError,
    SnapshotNotFoundError,
)
from agentos.ids import EPOCH
from agentos.machine.events import Event
from agentos.machine.facts.fold import fold
from agentos.store.port import RunRecord
from agentos.workflow.define.workflow_source import source_files
from agentos.workflow.files.decisions import BEAT_S, Decided, FilesChoice, last_written
from agentos.workflow.files.source_files import digest_of
from agentos.workflow.files.worktree_files import WorktreeFiles, last_beat, own_output
from agentos.workflow.place.place import Place, find_place, known_run
from agentos.workflow.place.run_search import find_checkpoint, reading
from agentos.workflow.place.settings import SETTINGS
from agentos.worktree.git import path_text, text_paths
from agentos.worktree.restore.changes import preview_changes, touched_paths
from agentos.worktree.restore.git_state import check_git, restore_git
from agentos.worktree.restore.intent import find_interrupted
from agentos.worktree.restore.restore import Restored, capture_current, restore, undo
from agentos.worktree.restore.safe_names import Protection
from agentos.worktree.restore.undo_points import find_by_prefix, last_replaced, undo_points
from agentos.worktree.snapshots.manifest import SkippedPath
from agentos.worktree.snapshots.snapshots import Snapshot, find
from agentos.worktree.snapshots.store import Worktree, known_worktree, open_worktree
from agentos.worktree.snapshots.survey import read_head
from agentos.worktree.snapshots.trees import PathChange, blob_reader, diff_trees

ChangeWord = Literal["added", "deleted", "modified", "retyped"]

_WORDS: dict[str, ChangeWord] = {"A": "added", "D": "deleted", "M": "modified", "T": "retyped"}
log = logging.getLogger("agentos")
LOOK = "look"
"""The name of what a dry run captures: there is never more than one of a run."""


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """What became, or becomes, of one path."""

    path: str
    """From the root of the worktree; bytes that are no UTF-8 are written as `\\\\xff`."""
    change: ChangeWord
    """`retyped`: a file became a link, or the other way round."""


class LeftAlone(msgspec.Struct, frozen=True, kw_only=True):
    """A path that is left as it is although it differs."""

    path: str
    why: str


class HeadMoved(msgspec.Struct, frozen=True, kw_only=True):
    """Where HEAD was, and where it is now: `branch` and `commit`, null where there is none."""

    from_branch: str | None
    from_commit: str | None
    branch: str | None
    commit: str | None


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """Files that were, or would be, put back."""

    workflow_id: str
    """The run whose snapshot it is."""
    checkpoint: str | None
    snapshot: str
    """What the files are put back to."""
    taken_at: datetime
    """When it was taken."""
    done: bool
    """False: it was only asked what would happen."""
    undo: str | None
    """The snapshot of what was there before; `agentos undo` brings it back."""
    changes: list[FileChange]
    left: list[LeftAlone]
    """Protected, or not captured: left as it is."""
    missing: list[LeftAlone]
    """What is not in the snapshot, though it was there when it was taken."""
    head: HeadMoved | None
    """Where `--git` was given and something moved."""


class UndoPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What one restore replaced."""

    snapshot: str
    workflow_id: str
    at: datetime
    """When it was replaced."""
    paths: int
    """How many paths the restore touched; 0 also where it changed permission bits alone."""
    is_replaced: bool
    """False: the restore changed nothing, was not finished, or this was found when it was. `agentos undo` passes it by;
    `agentos restore SNAPSHOT` brings it back."""


class _RestoreTarget(msgspec.Struct, frozen=True, kw_only=True):
    snapshot: Snapshot
    workflow_id: str
    checkpoint: str | None = None
    protected: tuple[str, ...] = (SETTINGS,)


def restore_files(given: str, repo: Path | None, *, git: bool = False, dry_run: bool = False) -> RestoreReport:
    """Make the files of the worktree those of a checkpoint, or of a snapshot by its id.

    What was there is captured first. WorktreeBusyError while a run changes files here.
    """
    place = find_place(repo, make=False)
    with _files_of(place.root, dry_run=dry_run) as worktree:
        meant = _find_target(given, place, repo, worktree)
        if git:
            check_git(worktree, meant.snapshot)
        if dry_run:
            return _preview_restore(worktree, meant)
        done = restore(worktree, meant.snapshot, workflow_id=meant.workflow_id, protected=meant.protected)
        return _finish_restore(worktree, meant, done, git=git)


def undo_restore(repo: Path | None, *, git: bool = False, dry_run: bool = False) -> RestoreReport:
    """Bring back what the last restore in this worktree replaced. What it did not touch is left alone."""
    place = find_place(repo, make=False)
    with _files_of(place.root, dry_run=dry_run) as worktree:
        replaced = last_replaced(worktree)
        run = replaced.manifest.workflow_id
        meant = _RestoreTarget(
            snapshot=replaced, workflow_id=run, protected=_protected_paths(place, _run(place, run), worktree)
        )
        if git:
            check_git(worktree, replaced)
        if dry_run:
            return _preview_restore(worktree, meant, only=touched_paths(worktree, replaced))
        done = undo(worktree, replaced, workflow_id=run, protected=meant.protected)
        return _finish_restore(worktree, meant, done, git=git)


def list_undo_points(repo: Path | None) -> list[UndoPoint]:
    """What `agentos undo` could bring back, newest first: it brings back the first that `is_replaced`."""
    worktree = known_worktree(find_place(repo, make=False).root)
    if worktree is None:
        return []
    git = worktree.store_git()
    return [
        UndoPoint(
            snapshot=point.id,
            workflow_id=point.manifest.workflow_id,
            at=datetime.fromisoformat(point.manifest.at),
            paths=len(diff_trees(git, point.tree, point.manifest.replaced_by)) if point.manifest.replaced_by else 0,
            is_replaced=bool(point.manifest.replaced_by),
        )
        for point in undo_points(worktree)
    ]


def file_changes(changes: Iterable[PathChange]) -> list[FileChange]:
    """Differences of trees, as they are shown."""
    return [FileChange(path=path_text(change.path), change=_WORDS[change.status]) for change in changes]


@contextmanager
def _files_of(root: Path, *, dry_run: bool) -> Iterator[Worktree]:
    """The worktree, for ourselves unless we only look.

    A restore that was interrupted here is finished first; where that cannot be, it gives way to what is asked for now.
    """
    if dry_run:
        yield open_worktree(root)
        return
    files = WorktreeFiles(root, "by hand")
    try:
        try:
            files.finish_interrupted()
        except RestoreError as error:
            log.warning("%s", error.message)
            files.give_up_interrupted()
        yield files.worktree
    finally:
        files.close()


def _find_target(given: str, place: Place, repo: Path | None, worktree: Worktree) -> _RestoreTarget:
    try:
        where, checkpoint = find_checkpoint(given, repo)
    except CheckpointNotFoundError as error:
        try:
            snapshot = find_by_prefix(worktree, given)
        except SnapshotNotFoundError:
            raise error from None
        run = snapshot.manifest.workflow_id
        return _RestoreTarget(
            snapshot=snapshot, workflow_id=run, protected=_protected_paths(place, _run(place, run), worktree)
        )
    record = _run(where, checkpoint.workflow_id)
    if record is not None and not place.named and record.root != str(place.root):
        raise RunRefusedError(
            f"checkpoint {checkpoint.id} belongs to {record.root}, not to {place.root}",
            next_step=f"Say which files are meant: agentos restore {checkpoint.id} --repo PATH",
        )
    if not checkpoint.snapshot:
        raise RunRefusedError(
            f"checkpoint {checkpoint.id} has no snapshot of the files",
            next_step="Files are captured in runs that have a task which changes some (`effects`), in a repository.",
        )
    return _RestoreTarget(
        snapshot=find(worktree, checkpoint.snapshot),
        workflow_id=checkpoint.workflow_id,
        checkpoint=checkpoint.id,
        protected=_protected_paths(where, record, worktree),
    )


def _run(place: Place, workflow_id: str) -> RunRecord | None:
    """The run, if it is still known here."""
    with suppress(NotFoundError), reading(place) as store:
        return known_run(store, workflow_id)
    return None


def _protected_paths(place: Place, record: RunRecord | None, worktree: Worktree) -> tuple[str, ...]:
    """Never replaced: the workflow as it is being written now, the settings, and what we and the run print."""
    outputs = own_output(worktree.root)
    if record is None:
        return (SETTINGS, *outputs)
    with suppress(IntegrityError), reading(place) as store:  # a damaged journal keeps nobody from their files
        outputs += fold(record.workflow_id, store.read_events(record.workflow_id)).own_output
    paths = (path for text in outputs for path in text_paths(text))
    return (SETTINGS, *source_files(record.source), *paths)


def _preview_restore(worktree: Worktree, meant: _RestoreTarget, *, only: Protection | None = None) -> RestoreReport:
    now = capture_current(worktree, meant.snapshot, workflow_id=meant.workflow_id, name=LOOK)
    changes, left = preview_changes(worktree, meant.snapshot, now, protected=meant.protected, only=only)
    return _restore_report(meant, changes, left)


def _finish_restore(worktree: Worktree, meant: _RestoreTarget, done: Restored, *, git: bool) -> RestoreReport:
    report = msgspec.structs.replace(_restore_report(meant, done.changes, done.left), done=True, undo=done.undo.id)
    if not git:
        return report
    now = meant.snapshot.head
    try:
        before = restore_git(worktree, meant.snapshot, expected=done.undo.head)
    except RestoreError as error:
        raise RestoreError(
            f"the files were put back, but {error.message}",
            undo=done.undo.id,
            next_step="`agentos undo` brings back the files that were replaced.",
        ) from error
    if before == now:
        return report
    head = HeadMoved(from_branch=before.ref, from_commit=before.oid, branch=now.ref, commit=now.oid)
    return msgspec.structs.replace(report, head=head)


def _restore_report(meant: _RestoreTarget, changes: Iterable[PathChange], left: Iterable[SkippedPath]) -> RestoreReport:
    return RestoreReport(
        workflow_id=meant.workflow_id,
        checkpoint=meant.checkpoint,
        snapshot=meant.snapshot.id,
        taken_at=datetime.fromisoformat(meant.snapshot.manifest.at),
        done=False,
        undo=None,
        changes=file_changes(changes),
        left=[LeftAlone(path=path_text(row.path), why=row.why) for row in left],
        missing=[LeftAlone(path=path_text(row.path), why=row.why) for row in meant.snapshot.partial],
        head=None,
    )


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
        if not asks and read_head(worktree, worktree.user_git()) != target.head:
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
