"""The files of the worktree a run works in: captured, and put back where a task that changed them was interrupted.

Each attempt of a task with `isolation: worktree` has a worktree to itself, which is thrown away after it. What the
attempt left in it is captured before. So one that is cut off has changed nothing: its worktree goes with the next
start, and it begins again.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec

from agentos import typed
from agentos.crashpoints import reach
from agentos.exceptions import (
    AgentosError,
    RestoreError,
    SnapshotError,
    SnapshotNotFoundError,
    TryAgainError,
    WorktreeBusyError,
)
from agentos.ids import new_id, short_id
from agentos.machine.events import CaptureReason, FilesRestored, TaskFiles
from agentos.machine.inputs import CaptureEnded
from agentos.store.holder import boot_clock, boot_id, current_holder
from agentos.workflow.place.location import FOLDER, make_private
from agentos.workflow.place.settings import SETTINGS
from agentos.worktree.git import one_line, path_text, text_paths
from agentos.worktree.linked_worktrees import linked_worktrees, make_linked, remove_linked
from agentos.worktree.restore.changes import preview_changes
from agentos.worktree.restore.intent import RestoreIntent, find_interrupted
from agentos.worktree.restore.restore import finish_interrupted, give_up_interrupted, restore
from agentos.worktree.snapshots.manifest import SkippedPath
from agentos.worktree.snapshots.retention import retain_ids
from agentos.worktree.snapshots.snapshots import Snapshot, count_lines, current_tree, diff, find, is_unchanged, take
from agentos.worktree.snapshots.store import Worktree, known_worktree, open_private, open_worktree
from agentos.worktree.snapshots.trees import files_in

log = logging.getLogger("agentos")

_SHOWN = 100
_SHOWN_ISOLATED = 10
_BEAT = "alive"
_CLOCK_SLACK_S = 0.5
"""Clocks are slewed; one that fell behind by more was set."""


def own_output(root: Path) -> tuple[str, ...]:
    """The files below `root` that this process prints to, as text. What a pipe leads to (`| tee log`) is not known."""
    found = []
    for stream in (1, 2):
        with suppress(OSError, ValueError):
            named = Path(os.readlink(f"/proc/self/fd/{stream}"))
            if os.path.samestat(os.stat(named), os.fstat(stream)):
                found.append(path_text(str(named.relative_to(root))))
    return tuple(dict.fromkeys(found))


class WorktreeFiles:
    """The files of one worktree, for one run that may change them. All of it blocks: call it from a thread.

    While it is open no other run can have them: WorktreeBusyError, which says who has.
    """

    def __init__(self, root: Path, workflow_id: str, *, protected: Iterable[str] = ()) -> None:
        self.worktree: Worktree = open_worktree(root)
        self._lock = WorktreeLock(self.worktree)
        self.workflow_id = workflow_id
        self._protected = (SETTINGS, *protected)
        self.own_output = own_output(self.worktree.root)
        """The files of the worktree that this process prints to, as text."""
        self._outputs: tuple[str, ...] = ()
        self.protect(self.own_output)

    def close(self) -> None:
        """Let others have the worktree."""
        self._lock.release()

    @property
    def protected(self) -> tuple[str, ...]:
        """Paths that are never put back."""
        return self._protected

    def protect(self, outputs: Iterable[str]) -> None:
        """Files that drives print to, as text: they are never put back, and what is printed is nobody's edit."""
        also = tuple(path for text in outputs for path in text_paths(text))
        self._outputs = tuple(dict.fromkeys((*self._outputs, *also)))
        self._protected = tuple(dict.fromkeys((*self._protected, *also)))

    def capture(self) -> Snapshot:
        """The files as they are now; durable on return. SnapshotError where that cannot be done."""
        return take(self.worktree, workflow_id=self.workflow_id, name=new_id())

    def try_capture(self, worktree: Worktree | None = None) -> Snapshot | str:
        """The files as they are now, here or in a linked worktree; or why they could not be captured."""
        try:
            return take(worktree or self.worktree, workflow_id=self.workflow_id, name=new_id())
        except (SnapshotError, TryAgainError) as error:
            return error.message

    def changed_paths(self, before: str, now: Snapshot) -> tuple[str, ...]:
        """The paths that differ from an earlier snapshot, as text."""
        changes = diff(self.worktree, find(self.worktree, before), now)
        return tuple(path_text(change.path) for change in changes if change.path not in self._outputs)

    def is_same(self, then: Snapshot, now: Snapshot) -> bool:
        """Whether the files are what they were, permissions and folders included. What we print to does not count."""
        return not preview_changes(self.worktree, then, now, protected=self._outputs)[0]

    def is_unchanged(self, since: Snapshot) -> bool:
        """Whether the files, and where HEAD stands, are as in the snapshot, as far as either could be captured."""
        if is_unchanged(self.worktree, since):
            return True
        if not self._outputs:
            return False
        now = self.capture()
        known = not since.partial and not now.partial and since.head == now.head
        return known and not preview_changes(self.worktree, since, now, protected=self._outputs)[0]

    def beat(self) -> None:
        """Give a sign of life: what changes files later than the last of them was not this run."""
        write_beat(self.worktree, self.workflow_id)

    def finish_interrupted(self) -> None:
        """A restore that a killed process had begun is brought to its end, before anything else looks at the files."""
        try:
            done = finish_interrupted(self.worktree)
        except (SnapshotError, SnapshotNotFoundError) as error:
            begun = begun_restore(self.worktree)
            run, undo = (begun.workflow_id, begun.undo) if begun is not None else (self.workflow_id, "SNAPSHOT")
            raise RestoreError(
                f"files are half put back, and this cannot be finished: {error.message}",
                next_step=f"{error.next_step} Or bring back what was there before (agentos restore {undo[:12]}), "
                f"or go on with the files as they are (agentos resume {short_id(run)} --files keep).",
            ) from error
        _tell_left(done.left if done is not None else ())

    def give_up_interrupted(self) -> None:
        """Such a restore is left as it is: the user wants the files as they are."""
        if (undo := give_up_interrupted(self.worktree)) is not None:
            kept = f"; what was there before is snapshot {undo}" if undo else ""
            log.warning("files were half put back, and stay so%s", kept)

    def put_back(self, snapshot_id: str) -> FilesRestored:
        """Make the files those of the snapshot; what was there is in `undo`. Never the workflow's file or settings."""
        target = find(self.worktree, snapshot_id)
        done = restore(self.worktree, target, workflow_id=self.workflow_id, protected=self._protected)
        _tell_left(done.left)
        paths = tuple(map(path_text, done.paths[:_SHOWN]))
        return FilesRestored(
            snapshot=target.id, tree=target.tree, undo=done.undo.id, paths=paths, count=len(done.paths)
        )

    def retain(self, snapshots: Iterable[str]) -> None:
        """Let go of all snapshots of this run but these (by id), so that their space can be given back."""
        retain_ids(self.worktree, self.workflow_id, set(snapshots))


def capture_input(
    found: Snapshot | str,
    why: CaptureReason,
    *,
    task_id: str = "",
    layer: int = -1,
    changed: tuple[str, ...] = (),
    base: str = "",
    left: tuple[str, ...] = (),
) -> CaptureEnded:
    """What the machine is told of a snapshot, or of why there is none."""
    if isinstance(found, str):
        return CaptureEnded(why=why, task_id=task_id, layer=layer, problem=found, left=left)
    return CaptureEnded(
        why=why,
        snapshot=found.id,
        tree=found.tree,
        partial=tuple(path_text(missed.path) for missed in found.partial),
        task_id=task_id,
        base=base,
        layer=layer,
        changed=changed,
        left=left,
    )


def try_tree(worktree: Worktree) -> str:
    """The tree of the files as they are now; empty where it cannot be told. Keeps nothing."""
    with suppress(SnapshotError, TryAgainError):
        return current_tree(worktree)
    return ""


class AllFiles(NamedTuple):
    """Every file of a worktree."""

    files: dict[str, tuple[str, str]]
    """Mode and id, by its path as text."""
    since: dict[str, tuple[str, ...]]
    """For each tree that they were compared with: the paths that differ."""


def look_at_all(root: Path, but: Collection[str], trees: Collection[str] = ()) -> AllFiles | None:
    """The files as a snapshot would have them now, `but` some and those that this process prints to.

    None where that cannot be told. Trees that are gone are not compared.
    """
    with suppress(SnapshotError, TryAgainError):
        worktree = known_worktree(root)
        if worktree is None or not (tree := current_tree(worktree)):
            return None
        left_out = {*but, *own_output(worktree.root)}
        now, since = _named_files(worktree, tree, left_out), {}
        for before in trees:
            with suppress(SnapshotError):
                then = _named_files(worktree, before, left_out)
                since[before] = tuple(sorted(path for path in {*then, *now} if then.get(path) != now.get(path)))
        return AllFiles(now, since)
    return None


def _named_files(worktree: Worktree, tree: str, left_out: Collection[str]) -> dict[str, tuple[str, str]]:
    named = ((path_text(path), about) for path, about in files_in(worktree.store_git(), tree).items())
    return {path: about for path, about in named if path not in left_out}


def begun_restore(worktree: Worktree) -> RestoreIntent | None:
    """The restore that was begun here and has not ended, if there is one that can be read."""
    with suppress(RestoreError):
        return find_interrupted(worktree)
    return None


def _tell_left(left: Iterable[SkippedPath]) -> None:
    for one in left:
        log.warning("left as it is: %s (%s)", path_text(one.path), one.why)


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of life of whoever changes files here, with a clock that nobody sets."""

    run: str
    at: datetime
    boot: str
    since_boot: float

    @property
    def clock_went_back(self) -> bool:
        """Whether the date was set back since, so that what was changed later may look older.

        Across a reboot this is known only where the date now, or when the machine started, lies before the beat.
        """
        now, up = datetime.now(UTC), boot_clock()
        if self.boot == boot_id():
            passed, ticked = (now - self.at).total_seconds(), up - self.since_boot
            return passed < ticked - _CLOCK_SLACK_S
        return now - timedelta(seconds=up) < self.at


def write_beat(worktree: Worktree, workflow_id: str) -> None:
    """Give a sign of life. Read after a loss of power it may be older than the truth, and never younger."""
    beat = Beat(run=workflow_id, at=datetime.now(UTC), boot=boot_id(), since_boot=boot_clock())
    path = worktree.folder / _BEAT
    with suppress(OSError):
        fresh = path.with_suffix(".new")
        with open(fresh, "wb", opener=open_private) as file:
            file.write(msgspec.json.encode(beat))
        os.replace(fresh, path)  # never half written, whenever the process is killed


def last_beat(worktree: Worktree, workflow_id: str) -> Beat | None:
    """The last sign of life of a run in this worktree, if it was the last to give one here."""
    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        beat = typed.decode((worktree.folder / _BEAT).read_bytes(), Beat)
        return beat if beat.run == workflow_id else None
    return None


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
                next_step="Wait for it with --wait, or work in another worktree (`git worktree add`). A run whose "
                "tasks change no files needs neither, if they say so: `effects: none`.",
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(current_holder()).encode(), 0)

    def release(self) -> None:
        """Let others have it."""
        with suppress(OSError):
            os.ftruncate(self._file, 0)
        os.close(self._file)


# --- isolated attempts --------------------------------------------------------------------------------------------


class IsolatedWorktree(NamedTuple):
    """The worktree of one attempt."""

    worktree: Worktree
    base: Snapshot
    """The files it was made with."""
    root: Path
    """What stands for the run's root in it."""


class IsolatedChanges(NamedTuple):
    """What an attempt left in its worktree."""

    files: TaskFiles | None
    """None: it changed nothing."""
    tree: str
    """Of all files in it."""
    snapshot: str
    """Of that tree."""
    changed: tuple[str, ...] = ()
    """The first paths of it."""


def make_isolated_worktree(
    files: WorktreeFiles, base: Snapshot, root: Path, task_id: str, *, begin: Snapshot
) -> IsolatedWorktree:
    """A worktree with the files of `begin`, for an attempt of the run whose root is `root`. SnapshotError if not.

    What it leaves counts from `base`: the same, or what an attempt that was interrupted had begun with.
    """
    folder = _folder(files)
    path = folder / new_id()
    make_private(folder.parent)
    try:
        made = make_linked(files.worktree, begin, path, workflow_id=files.workflow_id, label=task_id)
        files.worktree.lend(made)
        reach("aside.made")
        return IsolatedWorktree(made, base, made.root / os.path.relpath(os.path.realpath(root), files.worktree.root))
    except BaseException:
        _remove(files, path)
        raise


def hand_over(files: WorktreeFiles, aside: IsolatedWorktree, *, measured: bool = False) -> IsolatedChanges:
    """Capture what the attempt left; durable on return. SnapshotError where something of it cannot be kept.

    `measured`: with how much that is.
    """
    now = take(aside.worktree, workflow_id=files.workflow_id, name=new_id())
    if now.partial:
        listed = ", ".join(f"{one_line(left.path)} ({left.why})" for left in now.partial[:_SHOWN_ISOLATED])
        raise SnapshotError(f"not everything it left in its worktree can be captured: {listed}")
    reach("aside.captured")
    if now.tree == aside.base.tree:
        return IsolatedChanges(None, now.tree, now.id)
    changes = diff(aside.worktree, aside.base, now)
    left = TaskFiles(base=aside.base.id, snapshot=now.id)
    if measured:
        added, removed = count_lines(aside.worktree, aside.base.tree, now.tree)
        left = msgspec.structs.replace(left, paths=len(changes), added=added, removed=removed)
    changed = tuple(one_line(change.path) for change in changes[:_SHOWN_ISOLATED])
    return IsolatedChanges(left, now.tree, now.id, changed)


def throw_away(files: WorktreeFiles, aside: IsolatedWorktree) -> None:
    """Remove the worktree. One that cannot be removed now is removed by the next start."""
    _remove(files, aside.worktree.root)


def remove_left_behind(files: WorktreeFiles) -> None:
    """Remove what runs that were killed here left. Nobody else is at work here while `files` is open."""
    if not (files.worktree.common_dir / "worktrees").is_dir():
        return  # there is no linked worktree at all
    folder = os.path.realpath(_folder(files))
    for one in linked_worktrees(files.worktree):
        if os.path.dirname(os.path.realpath(one.path)) == folder:
            log.info("removing %s, left by run %s", one.path, one.workflow_id)
            _remove(files, one.path)


def _folder(files: WorktreeFiles) -> Path:
    # In the worktree, so that tools find what they look for in the folders above (node_modules, settings).
    return files.worktree.root / FOLDER / "worktrees"


def _remove(files: WorktreeFiles, path: Path) -> None:
    try:
        remove_linked(files.worktree, path)
    except (AgentosError, OSError) as error:
        log.warning("worktree %s could not be removed, the next start tries again: %s", path, error)
