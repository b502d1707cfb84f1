"""Put the files of a worktree back as a snapshot has them, and nothing else.

    1. capture what is there now: `undo`. If that fails, nothing is changed
    2. see that the target is whole, and which paths differ; leave out what is protected
    3. write the intent down
    4. write the differing paths, by handles of their folders; if one of them was changed after step 1, none is
    5. permission bits, empty folders
    6. prove it: the files are what the tree says
    7. clear the intent

Killed anywhere, `finish_interrupted` brings it to the same end. HEAD, branches and index are not touched: see
`git_state`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import msgspec

from agentos import crashpoints
from agentos.exceptions import FilesMovedError, GitError, RestoreError, SnapshotNotFoundError
from agentos.ids import new_id
from agentos.worktree.git import Git, one_line, parents, path_text
from agentos.worktree.restore import intent as intents
from agentos.worktree.restore.changes import Target, divide_changes, find_extras, make_target, touched_paths
from agentos.worktree.restore.intent import RestoreIntent, find_interrupted
from agentos.worktree.restore.safe_names import Protection, unsafe_path
from agentos.worktree.restore.writes import (
    Ground,
    keep_open,
    locked_folders,
    open_to_us,
    place_extras,
    remove_pipes,
)
from agentos.worktree.snapshots import known_files
from agentos.worktree.snapshots.capture import LIMITS, SnapshotLimits
from agentos.worktree.snapshots.manifest import SkippedPath
from agentos.worktree.snapshots.snapshots import Snapshot, find_unignored, read, snapshot_refs, take_in, write_snapshot
from agentos.worktree.snapshots.store import PATIENCE_S, IndexSession, Worktree, session
from agentos.worktree.snapshots.survey import survey
from agentos.worktree.snapshots.trees import PathChange, blob_reader, check_whole, diff_trees, tree_with

_TRIES = 3
_CLOSED = 20
"""So many folders inside each other may be closed to us before we give up opening them."""
_LINK, _EXECUTABLE = "120000", "100755"


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore did."""

    undo: Snapshot
    """What was there before; restoring it brings it back."""
    tree: str
    """What is there now, proved."""
    changes: tuple[PathChange, ...]
    """What was written or deleted, permission bits and empty folders (which end in `/`) among it."""
    left: tuple[SkippedPath, ...]
    """What differs from the target still, and why it was left alone."""

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(change.path for change in self.changes)


def restore(
    worktree: Worktree,
    target: Snapshot,
    *,
    workflow_id: str,
    protected: Iterable[str] = (),
    only: Protection | None = None,
    limits: SnapshotLimits = LIMITS,
) -> Restored:
    """Make the files those of `target`: exact bytes and modes, only differing paths written, nothing lost.

    Never written or deleted: what was ignored or left out when `target` was taken, repositories inside, and what the
    caller names in `protected` (paths relative to the root); with `only`, whatever else there is. A RestoreError
    without `undo` means that nothing was changed; with it, that the rest is still to do: `finish_interrupted`, or
    restore `undo`.
    """
    wanted = make_target(target, workflow_id=workflow_id, protected=protected, only=only)
    return _reach(worktree, wanted, limits)


def undo(worktree: Worktree, replaced: Snapshot, *, workflow_id: str, protected: Iterable[str] = ()) -> Restored:
    """Bring back what a restore replaced, and leave alone what it did not touch. `replaced` is its undo snapshot.

    By the same steps and with the same promises as a restore; itself undoable.
    """
    only = touched_paths(worktree, replaced)
    return restore(worktree, replaced, workflow_id=workflow_id, protected=protected, only=only)


def apply_changes(worktree: Worktree, before: str, tree: str, *, workflow_id: str) -> Restored:
    """Do to the files what leads from the tree `before` to `tree`, by the same steps; other paths are left alone.

    FilesMovedError, and nothing is changed, where one of these paths holds neither what it held before nor what it is
    to hold. So it can be repeated: after one that was killed, too.
    """
    wanted = Target(workflow_id=workflow_id, id=tree, tree=tree, before=before)
    return _reach(worktree, wanted, LIMITS)


def finish_interrupted(worktree: Worktree) -> Restored | None:
    """Finish the restore that a killed process had begun here; None if there is none. Safe to repeat.

    Only the paths of that restore are touched. What they hold by now is captured first, as before any restore.
    """
    with session(worktree, seconds=LIMITS.seconds) as opened:
        intent = find_interrupted(worktree)
        if intent is None:
            return None

        def finish() -> Restored:
            undo = _undo(opened, intent.workflow_id, lambda: intent.paths, LIMITS)
            return _perform(opened, intent, undo, (), ())

        return _until_quiet(finish)


def give_up_interrupted(worktree: Worktree) -> str | None:
    """Leave the files as the restore that was begun here left them: it is not finished any more.

    Gives the snapshot of what was there before it, empty where that cannot be told; None where there was no restore.
    """
    with session(worktree, seconds=LIMITS.seconds):
        try:
            intent = find_interrupted(worktree)
            undo = intent.undo if intent is not None else None
        except RestoreError:  # a note that nobody can use
            undo = ""
        intents.clear(worktree)
        return undo


def capture_current(
    worktree: Worktree,
    target: Snapshot,
    *,
    workflow_id: str,
    name: str,
    patience_s: float = PATIENCE_S,
) -> Snapshot:
    """What is there now, captured as `restore` does before it puts `target` back: for `preview_changes`.

    So with files that are ignored now and were not then; but what is closed to us is not opened.
    """
    with session(worktree, seconds=LIMITS.seconds, patience_s=patience_s) as opened:
        check_whole(opened.git(), target.tree, target.id, target.head.oid)
        also = _paths_to_compare(opened, make_target(target))
        return take_in(opened, workflow_id=workflow_id, name=name, limits=LIMITS, also=also)


def _reach(worktree: Worktree, target: Target, limits: SnapshotLimits) -> Restored:
    with session(worktree, seconds=limits.seconds) as opened:
        if (begun := find_interrupted(worktree)) is not None:
            raise RestoreError(
                f"a restore of {begun.target} was interrupted here and is not finished",
                undo=begun.undo,
                next_step="Finish it first; what was there before it is in the snapshot it names.",
            )
        return _until_quiet(lambda: _put_back(opened, target, limits))


def _until_quiet(act: Callable[[], Restored]) -> Restored:
    """Begin again where a file changed between being captured and being written over: nothing was done then."""
    for _ in range(_TRIES - 1):
        try:
            return act()
        except _ChangedMeanwhile:
            continue
    try:
        return act()
    except _ChangedMeanwhile as error:
        raise RestoreError(
            f"files keep changing while they are to be put back: {error}",
            next_step="Nothing was changed. Stop what writes here, and try again.",
        ) from error


def _put_back(opened: IndexSession, target: Target, limits: SnapshotLimits) -> Restored:
    git, root = opened.git(), opened.worktree.root
    check_whole(git, target.tree, target.id, target.manifest.head.oid if target.manifest is not None else None)
    undo = _undo(opened, target.workflow_id, lambda: _paths_to_compare(opened, target), limits)
    differing = diff_trees(git, undo.tree, target.tree)
    meant = differing
    if target.before:
        wanted = {change.path for change in diff_trees(git, target.before, target.tree)}
        meant = [change for change in differing if change.path in wanted]
        _refuse_moved(git, target.before, undo, {change.path for change in meant})
    changes, left = divide_changes(root, target, meant, undo)
    # A tree of somebody else's making may name what no capture of ours would.
    if (path := unsafe_path(change.path for change in changes if change.status != "D")) is not None:
        raise RestoreError(
            f"snapshot {target.id} would write to {path_text(path)!r}, which no snapshot may",
            next_step="Nothing was changed. It was not made by AgentOS: delete the run that it came with.",
        )
    _check_readable(git, target.id, changes)
    extras = find_extras(git, root, target, undo, differing)
    return _perform(opened, _intent(root, target, undo, changes, extras), undo, left, extras)


def _paths_to_compare(opened: IndexSession, target: Target) -> list[str]:
    """The paths to capture, ignored or not, for a comparison: those of the tree, and what it would not have ignored."""
    paths = opened.git().names("ls-tree", "-r", "-z", "--name-only", target.tree)
    if target.manifest is not None:
        paths += find_unignored(opened, target.tree, target.manifest, paths)
    return [path for path in paths if target.selects(path)]


def _refuse_moved(git: Git, before: str, undo: Snapshot, paths: Collection[str]) -> None:
    """What is about to be written over must be what it was: somebody's change since is not taken away."""
    moved = sorted(change.path for change in diff_trees(git, before, undo.tree) if change.path in paths)
    if moved:
        raise FilesMovedError(
            f"files changed that were about to be written: {', '.join(map(one_line, moved[:5]))}",
            next_step="Nothing was changed. Merge again.",
        )


def _undo(
    opened: IndexSession, workflow_id: str, also: Callable[[], Collection[str]], limits: SnapshotLimits
) -> Snapshot:
    """Capture what is there, the ignored files of `also` included: they are about to be written over.

    What its owner closed to us, who are its owner, is opened first.
    """

    def take() -> Snapshot:
        return take_in(opened, workflow_id=workflow_id, name=f"undo/{new_id()}", limits=limits, also=also())

    now = take()
    for _ in range(_CLOSED):
        if not open_to_us(opened.worktree.root, (left.path for left in now.partial)):
            break
        opened.git().ask("update-ref", "-d", now.ref)
        now = take()
    return now


def _check_readable(git: Git, target: str, changes: list[PathChange]) -> None:
    """Read what is to be written once: a damaged object must show before the first file is touched."""
    oids = sorted({change.new_oid for change in changes if change.status != "D"})
    asked = "\n".join([*oids, ""]).encode()
    try:
        if b" missing\n" in git.ask("cat-file", "--batch-check", stdin=asked):
            raise SnapshotNotFoundError(target, "contents of files are missing")
        git.run("cat-file", "--batch", stdin=asked, discard=True)
    except GitError as error:
        raise SnapshotNotFoundError(target, f"contents of files cannot be read ({error.said})") from error


def _intent(
    root: Path, target: Target, undo: Snapshot, changes: list[PathChange], extras: tuple[PathChange, ...]
) -> RestoreIntent:
    """The changes, with what trees do not have: permission bits and empty folders."""
    do = RestoreIntent(
        workflow_id=target.workflow_id,
        target=target.id,
        undo=undo.id,
        changes=tuple(change.entry for change in changes),
    )
    touched = [change.path.rstrip("/") for change in (*changes, *extras)]
    locked, others = locked_folders(root, touched)
    if others:
        raise RestoreError(
            f"files in {', '.join(map(one_line, others[:5]))} are to be put back, where you may not write",
            next_step="Nothing was changed. Make it writable, or go on with the files as they are: --files keep.",
        )
    then = target.manifest
    if then is None:
        return msgspec.structs.replace(do, locked=locked)
    written = {change.path for change in changes if change.status != "D"}
    paths = {change.path for change in extras if change.status == "M"} | written
    paths |= {above for path in written for above in parents(path)}
    return msgspec.structs.replace(
        do,
        modes=then.modes,
        modes_of=tuple(sorted(path for path in paths if not target.protected.covers(path))),
        make_folders=tuple(path for path in then.empty if not target.protected.covers(path)),
        remove_folders=tuple(sorted((change.path[:-1] for change in extras if change.status == "D"), reverse=True)),
        locked={path: then.modes.of(path, folder=True) if path in paths else bits for path, bits in locked.items()},
    )


class _ChangedMeanwhile(Exception):
    """A file is not what was captured a moment ago. Nothing was changed."""


def _perform(
    opened: IndexSession,
    intent: RestoreIntent,
    undo: Snapshot,
    left: tuple[SkippedPath, ...],
    extras: tuple[PathChange, ...],
) -> Restored:
    worktree = opened.worktree
    tree = tree_with(opened, undo.tree, intent.changes)
    changes = diff_trees(opened.git(), undo.tree, tree)
    first = find_interrupted(worktree) is None
    if first:
        intents.write(worktree, intent)
    crashpoints.reach("restore.intent")
    try:
        with keep_open(worktree.root, intent.locked):
            remove_pipes(worktree.root, intent.paths)
            _switch(opened, undo, tree, changes)
            crashpoints.reach("restore.inside")
            others = place_extras(
                worktree.root, intent.modes, intent.modes_of, make=intent.make_folders, remove=intent.remove_folders
            )
    except _ChangedMeanwhile:
        if first:
            intents.clear(worktree)
        raise
    except OSError as error:
        raise RestoreError(
            f"not all files could be put back: {error}",
            undo=undo.id,
            next_step="Remove what is in the way (permissions, a full disk), and repeat it: it goes on where it "
            "stopped. Or go on with the files as they are: --files keep.",
        ) from error
    _prove(opened, tree, undo)
    crashpoints.reach("restore.before_clear")
    undo = _remember(opened, intent, undo)
    intents.clear(worktree)
    left += tuple(SkippedPath(path, "its permission bits: it belongs to another user") for path in others)
    return Restored(undo=undo, tree=tree, changes=tuple(sorted((*changes, *extras))), left=left)


def _remember(opened: IndexSession, intent: RestoreIntent, undo: Snapshot) -> Snapshot:
    """Note with what was there what came in its place, so that `undo` finds both; gives `undo` by its present id.

    Only here: what a restore that changed nothing captured, or one that was interrupted found when it was finished, is
    nothing to undo.
    """
    if not (intent.changes or intent.modes_of or intent.remove_folders):
        return undo
    refs = {oid: ref for ref, oid in snapshot_refs(opened.worktree, intent.workflow_id).items()}
    if (ref := refs.get(intent.undo)) is None:
        return undo  # cut off after this, and finished
    git = opened.writing_git()
    first = read(git, intent.undo, intent.undo, ref=ref)
    tree = tree_with(opened, first.tree, intent.changes)
    manifest = msgspec.structs.replace(first.manifest, replaced_by=tree, replaced_modes=intent.modes_of)
    noted = write_snapshot(opened.worktree, first.tree, manifest)
    git.ask("-c", "core.fsyncMethod=fsync", "update-ref", ref, noted, intent.undo)
    if undo.id != intent.undo:
        return undo  # what was found when it was finished
    return Snapshot(id=noted, tree=first.tree, manifest=manifest, ref=ref)


def _switch(opened: IndexSession, undo: Snapshot, tree: str, changes: Collection[PathChange]) -> None:
    known_files.forget(opened.worktree)  # the private index is about to hold what no rule would put there
    if undo.tree == tree:
        return
    # Before the first write: everything that is about to be written over is still what was captured.
    meant = Protection(change.path for change in changes)
    found = survey(opened, refresh=False)
    now = (*found.changed, *found.deleted, *found.untracked, *found.new_repositories)
    if moved := [path for path in now if meant.covers(path) or meant.lies_below(path)]:
        raise _ChangedMeanwhile(", ".join(map(path_text, moved[:5])))
    _write(opened, undo, changes)
    opened.git().ask("read-tree", "-i", "-m", tree)
    opened.read_files("update-index", "-q", "--refresh", ok=(0, 1, 128))


def _write(opened: IndexSession, undo: Snapshot, changes: Collection[PathChange]) -> None:
    gone = [change.path for change in changes if change.status == "D"]
    emptied = {*undo.manifest.empty, *map(os.path.dirname, gone)}
    with Ground(opened.worktree.root) as ground, blob_reader(opened.git()) as content:
        for path in gone:
            ground.remove(path)
        for change in changes:
            if change.status == "D":
                continue
            path = change.path
            ground.remove(path)
            if stat.S_ISDIR(ground.mode(path) or 0):
                # The folder in the file's place holds nothing any more but empty ones.
                for folder in sorted((one for one in emptied if one.startswith(f"{path}/")), reverse=True):
                    ground.remove_empty(folder)
                ground.remove_empty(path)
            if change.new_mode == _LINK:
                ground.link(path, b"".join(content(change.new_oid)))
            else:
                ground.write(path, content(change.new_oid), executable=change.new_mode == _EXECUTABLE)
        for path in gone:
            ground.remove_empty(os.path.dirname(path))


def _prove(opened: IndexSession, tree: str, undo: Snapshot) -> None:
    """The private index is the tree, and no file differs from the index."""
    found = survey(opened, refresh=False)
    uncaptured = {left.path for left in undo.partial}
    differing = [path for path in (*found.changed, *found.deleted) if path not in uncaptured]
    if opened.git().line("write-tree") != tree or differing:
        raise RestoreError(
            f"files are not what they should be after they were put back: {', '.join(differing[:5]) or 'another tree'}",
            undo=undo.id,
            next_step="Something else writes here. Stop it, and repeat the restore.",
        )
