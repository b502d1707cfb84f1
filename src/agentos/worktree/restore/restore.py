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
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from agentos import crashpoints
from agentos.exceptions import FilesMovedError, GitError, RestoreError, SnapshotNotFoundError
from agentos.ids import new_id
from agentos.worktree.git import Git, one_line, path_text
from agentos.worktree.restore import intent as intents
from agentos.worktree.restore.intent import RestoreIntent, wanted_from
from agentos.worktree.restore.protection import Protection
from agentos.worktree.restore.safe_names import unsafe_path
from agentos.worktree.restore.writes import (
    Ground,
    behind_link,
    is_pipe,
    keep_open,
    locked_folders,
    open_to_us,
    place_extras,
    remove_pipes,
)
from agentos.worktree.snapshots import known_files
from agentos.worktree.snapshots.budget import SnapshotLimits
from agentos.worktree.snapshots.ignore_rules import find_unignored
from agentos.worktree.snapshots.index import PATIENCE_S, IndexSession, session
from agentos.worktree.snapshots.manifest import Manifest, Modes, SkippedPath
from agentos.worktree.snapshots.snapshots import Snapshot, read, snapshot_refs, take_in, write_snapshot
from agentos.worktree.snapshots.store import Worktree
from agentos.worktree.snapshots.survey import survey
from agentos.worktree.snapshots.trees import PathChange, blob_reader, check_whole, diff_trees, mode_changes, tree_with

_TRIES = 3
_CLOSED = 20
"""So many folders inside each other may be closed to us before we give up opening them."""
_REPOSITORY, _LINK, _EXECUTABLE = "160000", "120000", "100755"


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
    limits: SnapshotLimits = SnapshotLimits(),
    patience_s: float = PATIENCE_S,
) -> Restored:
    """Make the files those of `target`: exact bytes and modes, only differing paths written, nothing lost.

    Never written or deleted: what was ignored or left out when `target` was taken, repositories inside, and what the
    caller names in `protected` (paths relative to the root). A RestoreError without `undo` means that nothing was
    changed; with it, that the rest is still to do: `finish_interrupted`, or restore `undo`.
    """
    with session(worktree, seconds=limits.seconds, patience_s=patience_s) as opened:
        _no_open_intent(worktree)
        wanted = _Target(
            workflow_id=workflow_id,
            id=target.id,
            tree=target.tree,
            manifest=target.manifest,
            protected=Protection(protected),
            kept=_uncaptured_paths(target.manifest),
        )
        return _until_quiet(lambda: _put_back(opened, wanted, limits))


def undo(
    worktree: Worktree,
    replaced: Snapshot,
    *,
    workflow_id: str,
    protected: Iterable[str] = (),
    limits: SnapshotLimits = SnapshotLimits(),
    patience_s: float = PATIENCE_S,
) -> Restored:
    """Bring back what a restore replaced, and leave alone what it did not touch. `replaced` is its undo snapshot.

    By the same steps and with the same promises as a restore; itself undoable.
    """
    with session(worktree, seconds=limits.seconds, patience_s=patience_s) as opened:
        _no_open_intent(worktree)
        wanted = _Target(
            workflow_id=workflow_id,
            id=replaced.id,
            tree=replaced.tree,
            manifest=replaced.manifest,
            protected=Protection(protected),
            kept=_uncaptured_paths(replaced.manifest),
            only=touched_paths(worktree, replaced),
        )
        return _until_quiet(lambda: _put_back(opened, wanted, limits))


def touched_paths(worktree: Worktree, replaced: Snapshot) -> Protection:
    """The paths that a restore touched, by its undo snapshot."""
    changes = diff_trees(worktree.store_git(timeout_s=60), replaced.tree, replaced.manifest.replaced_by)
    return Protection([*(change.path for change in changes), *replaced.manifest.replaced_modes])


def apply_tree(
    worktree: Worktree,
    tree: str,
    *,
    workflow_id: str,
    protected: Iterable[str] = (),
    limits: SnapshotLimits = SnapshotLimits(),
    patience_s: float = PATIENCE_S,
) -> Restored:
    """Make the files those of a tree in the store (a merge's result), by the same steps and with the same promises."""
    with session(worktree, seconds=limits.seconds, patience_s=patience_s) as opened:
        _no_open_intent(worktree)
        wanted = _Target(workflow_id=workflow_id, id=tree, tree=tree, protected=Protection(protected))
        return _until_quiet(lambda: _put_back(opened, wanted, limits))


def apply_changes(
    worktree: Worktree, before: str, tree: str, *, workflow_id: str, limits: SnapshotLimits = SnapshotLimits()
) -> Restored:
    """Do to the files what leads from the tree `before` to `tree`, by the same steps; other paths are left alone.

    FilesMovedError, and nothing is changed, where one of these paths holds neither what it held before nor what it is
    to hold. So it can be repeated: after one that was killed, too.
    """
    with session(worktree, seconds=limits.seconds) as opened:
        _no_open_intent(worktree)
        wanted = _Target(workflow_id=workflow_id, id=tree, tree=tree, protected=Protection(()), before=before)
        return _until_quiet(lambda: _put_back(opened, wanted, limits))


def finish_interrupted(worktree: Worktree, *, limits: SnapshotLimits = SnapshotLimits()) -> Restored | None:
    """Finish the restore that a killed process had begun here; None if there is none. Safe to repeat.

    Only the paths of that restore are touched. What they hold by now is captured first, as before any restore.
    """
    with session(worktree, seconds=limits.seconds) as opened:
        intent = intents.read(worktree)
        if intent is None:
            return None
        return _until_quiet(lambda: _finish(opened, intent, limits))


def _finish(opened: IndexSession, intent: RestoreIntent, limits: SnapshotLimits) -> Restored:
    undo = _undo(opened, intent.workflow_id, lambda: intent.paths, limits)
    return _perform(opened, intent, undo, (), ())


def give_up_interrupted(worktree: Worktree) -> str | None:
    """Leave the files as the restore that was begun here left them: it is not finished any more.

    Gives the snapshot of what was there before it, empty where that cannot be told; None where there was no restore.
    """
    with session(worktree, seconds=SnapshotLimits().seconds):
        try:
            intent = intents.read(worktree)
            undo = intent.undo if intent is not None else None
        except RestoreError:  # a note that nobody can use
            undo = ""
        intents.clear(worktree)
        return undo


def find_interrupted(worktree: Worktree) -> RestoreIntent | None:
    """The restore that was begun here and not ended, if any."""
    return intents.read(worktree)


def capture_current(
    worktree: Worktree,
    target: Snapshot,
    *,
    workflow_id: str,
    name: str,
    limits: SnapshotLimits = SnapshotLimits(),
    patience_s: float = PATIENCE_S,
) -> Snapshot:
    """What is there now, captured as `restore` does before it puts `target` back: for `foresee`.

    So with files that are ignored now and were not then; but what is closed to us is not opened.
    """
    with session(worktree, seconds=limits.seconds, patience_s=patience_s) as opened:
        check_whole(opened.git(), target.tree, target.id, target.head.oid)
        also = _paths_to_compare(opened, target.tree, target.manifest)
        return take_in(opened, workflow_id=workflow_id, name=name, limits=limits, also=also)


def preview(worktree: Worktree, target: Snapshot, now: Snapshot, *, protected: Iterable[str] = ()) -> list[PathChange]:
    """What `restore` would do to the files as they are in `now`."""
    return preview_changes(worktree, target, now, protected=protected)[0]


def preview_changes(
    worktree: Worktree,
    target: Snapshot,
    now: Snapshot,
    *,
    protected: Iterable[str] = (),
    only: Protection | None = None,
) -> tuple[list[PathChange], tuple[SkippedPath, ...]]:
    """The same, and what it would leave alone although it differs; `only`: of these paths, as `undo` does.

    Permission bits and empty folders are changes, too.
    """
    git = worktree.store_git(timeout_s=60)
    meant = _Target(
        workflow_id="",
        id=target.id,
        tree=target.tree,
        manifest=target.manifest,
        protected=Protection(protected),
        kept=_uncaptured_paths(target.manifest),
        only=only,
    )
    differing = diff_trees(git, now.tree, target.tree)
    changes, left = _divide_changes(worktree.root, meant, differing, now)
    return [*changes, *_extras(git, worktree.root, meant, now, differing)], left


def _uncaptured_paths(manifest: Manifest) -> Protection:
    """What was there when a snapshot was taken and is not in it: not being in it is no reason to delete it."""
    return Protection([*manifest.ignored, *(left.path for left in manifest.partial), *manifest.purged])


def _no_open_intent(worktree: Worktree) -> None:
    if (begun := intents.read(worktree)) is not None:
        raise RestoreError(
            f"a restore of {begun.target} was interrupted here and is not finished",
            undo=begun.undo,
            next_step="Finish it first; what was there before it is in the snapshot it names.",
        )


class _Target(msgspec.Struct, frozen=True, kw_only=True):
    workflow_id: str
    id: str
    tree: str
    protected: Protection
    """Never written or deleted."""
    kept: Protection = msgspec.field(default_factory=lambda: Protection(()))
    """Never deleted."""
    manifest: Manifest | None = None
    only: Protection | None = None
    """Nothing else is looked at. None: everything."""
    before: str = ""
    """Only what differs from this tree is wanted; empty: all that differs from what is there."""


def _is_selected(only: Protection | None, path: str) -> bool:
    # A file in the place of a folder, or the other way round, goes with what takes its place.
    return only is None or only.covers(path) or only.lies_below(path)


def _put_back(opened: IndexSession, target: _Target, limits: SnapshotLimits) -> Restored:
    git, root = opened.git(), opened.worktree.root
    check_whole(git, target.tree, target.id, target.manifest.head.oid if target.manifest is not None else None)
    compared = partial(_paths_to_compare, opened, target.tree, target.manifest, target.only)
    undo = _undo(opened, target.workflow_id, compared, limits)
    differing = diff_trees(git, undo.tree, target.tree)
    meant = differing
    if target.before:
        wanted_paths = {change.path for change in diff_trees(git, target.before, target.tree)}
        meant = [change for change in differing if change.path in wanted_paths]
        _refuse_moved(git, target.before, undo, {change.path for change in meant})
    changes, left = _divide_changes(root, target, meant, undo)
    _refuse_unsafe(target, changes)
    _check_readable(git, target.id, changes)
    extras = _extras(git, root, target, undo, differing)
    return _perform(opened, _intent(root, target, undo, changes, extras), undo, left, extras)


def _paths_to_compare(
    opened: IndexSession, tree: str, manifest: Manifest | None, only: Protection | None = None
) -> list[str]:
    """The paths to capture, ignored or not, for a comparison: those of the tree, and what it would not have ignored."""
    paths = opened.git().names("ls-tree", "-r", "-z", "--name-only", tree)
    if manifest is not None:
        paths += find_unignored(opened, tree, manifest, paths)
    return [path for path in paths if _is_selected(only, path)]


def _refuse_unsafe(target: _Target, changes: Iterable[PathChange]) -> None:
    """A tree of somebody else's making may name what no capture of ours would."""
    if (path := unsafe_path(change.path for change in changes if change.status != "D")) is not None:
        raise RestoreError(
            f"snapshot {target.id} would write to {path_text(path)!r}, which no snapshot may",
            next_step="Nothing was changed. It was not made by AgentOS: delete the run that it came with.",
        )


def _refuse_moved(git: Git, before: str, undo: Snapshot, paths: Collection[str]) -> None:
    """What is about to be written over must be what it was: somebody's change since is not taken away."""
    moved = sorted(change.path for change in diff_trees(git, before, undo.tree) if change.path in paths)
    if moved:
        raise FilesMovedError(
            f"files changed that were about to be written: {', '.join(map(one_line, moved[:5]))}",
            next_step="Nothing was changed. Merge again.",
        )


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


def _divide_changes(
    root: Path, target: _Target, changes: Iterable[PathChange], now: Snapshot
) -> tuple[list[PathChange], tuple[SkippedPath, ...]]:
    """What to do, and what is left alone although it differs."""
    protected, kept = target.protected, target.kept
    missing = {left.path: left.why for left in now.partial if left.path not in now.manifest.repositories}
    # What is there now and not in the undo snapshot could not be brought back.
    uncaptured = Protection([*now.manifest.ignored, *missing, *now.manifest.repositories])
    do: list[PathChange] = []
    left: list[SkippedPath] = []
    for change in changes:
        path = change.path
        if not _is_selected(target.only, path):
            continue
        if protected.covers(path):
            left.append(SkippedPath(path, "it is protected"))
        elif change.status == "D" and kept.covers(path):
            continue
        elif _REPOSITORY in (change.old_mode, change.new_mode):
            left.append(SkippedPath(path, "a repository of its own"))
        elif change.status == "A" and (protected.lies_below(path) or kept.lies_below(path)) and (root / path).is_dir():
            left.append(SkippedPath(path, "something protected is in its place"))
        elif change.status == "A" and (
            uncaptured.lies_below(path) or (uncaptured.covers(path) and _in_the_way(root, path))
        ):
            left.append(SkippedPath(path, "something is in its place that is not captured"))
        else:
            do.append(change)
    told = {one.path for one in left}
    if target.manifest is not None and target.only is None:
        left += [SkippedPath(path, why) for path, why in missing.items() if path not in told and not kept.covers(path)]
    return do, tuple(left)


def _extras(
    git: Git, root: Path, target: _Target, now: Snapshot, differing: Collection[PathChange]
) -> tuple[PathChange, ...]:
    """What trees do not have: permission bits that differ where the content does not, and empty folders."""
    then = target.manifest
    if then is None:
        return ()
    other = {change.path for change in differing}
    bits = mode_changes(git, target.tree, then.modes, now.manifest.modes) - other
    # A folder that is new has bits of its own, which are nothing to put back.
    new = {path for path in bits if path in now.manifest.modes.odd_folders and path not in then.modes.odd_folders}
    gone = set() if target.only is not None else set(now.manifest.empty) - set(then.empty)
    made = {path for path in then.empty if not os.path.isdir(root / path)}
    if new or gone:
        folders = set(git.names("ls-tree", "-r", "-d", "-z", "--name-only", target.tree))
        bits, gone = bits - (new - folders), gone - folders
    found = [
        *(_extra(path, "M", now.manifest.modes, then.modes) for path in bits if os.path.lexists(root / path)),
        *(_extra(f"{path}/", "D", now.manifest.modes, then.modes) for path in gone),
        *(_extra(f"{path}/", "A", now.manifest.modes, then.modes) for path in made),
    ]
    return tuple(
        sorted(
            change
            for change in found
            if _is_selected(target.only, change.path.rstrip("/"))
            and not target.protected.covers(change.path.rstrip("/"))
        )
    )


def _extra(path: str, status: str, now: Modes, then: Modes) -> PathChange:
    old, new = (f"{modes.odd.get(path, 0):o}" for modes in (now, then))
    return PathChange(path=path, status=status, old_mode=old, new_mode=new, old_oid="", new_oid="")


def _in_the_way(root: Path, path: str) -> bool:
    """Whether something is at `path`, or where one of its folders would be. Pipes and sockets hold nothing."""
    try:
        return not is_pipe(os.lstat(root / path).st_mode)
    except FileNotFoundError:
        return behind_link(root, path)
    except NotADirectoryError:
        return True


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
    root: Path, target: _Target, undo: Snapshot, changes: list[PathChange], extras: tuple[PathChange, ...]
) -> RestoreIntent:
    """The changes, with what trees do not have: permission bits and empty folders."""
    do = RestoreIntent(
        workflow_id=target.workflow_id, target=target.id, undo=undo.id, changes=tuple(map(wanted_from, changes))
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
    paths |= {"/".join(path.split("/")[:depth]) for path in written for depth in range(1, path.count("/") + 1)}
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
    tree = tree_with(opened, undo.tree, [(change.path, change.mode, change.oid) for change in intent.changes])
    changes = diff_trees(opened.git(), undo.tree, tree)
    first = intents.read(worktree) is None
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
    tree = tree_with(opened, first.tree, [(change.path, change.mode, change.oid) for change in intent.changes])
    manifest = msgspec.structs.replace(first.manifest, replaced_by=tree, replaced_modes=intent.modes_of)
    noted = write_snapshot(git, first.tree, manifest, int(datetime.fromisoformat(manifest.at).timestamp()))
    git.ask("-c", "core.fsyncMethod=fsync", "update-ref", ref, noted, intent.undo)
    if undo.id != intent.undo:
        return undo  # what was found when it was finished
    return Snapshot(id=noted, tree=first.tree, manifest=manifest, ref=ref)


def _switch(opened: IndexSession, undo: Snapshot, tree: str, changes: Collection[PathChange]) -> None:
    known_files.forget(opened.worktree)  # the private index is about to hold what no rule would put there
    if undo.tree == tree:
        return
    _refuse_changed(opened, changes)
    _write(opened, undo, changes)
    opened.git().ask("read-tree", "-i", "-m", tree)
    opened.read_files("update-index", "-q", "--refresh", ok=(0, 1, 128))


def _refuse_changed(opened: IndexSession, changes: Iterable[PathChange]) -> None:
    """Before the first write: everything that is about to be written over is still what was captured."""
    meant = Protection(change.path for change in changes)
    found = survey(opened, refresh=False)
    now = (*found.changed, *found.deleted, *found.untracked, *found.new_repositories)
    if moved := [path for path in now if meant.covers(path) or meant.lies_below(path)]:
        raise _ChangedMeanwhile(", ".join(map(path_text, moved[:5])))


def _write(opened: IndexSession, undo: Snapshot, changes: Collection[PathChange]) -> None:
    gone = [change.path for change in changes if change.status == "D"]
    with Ground(opened.worktree.root) as ground, blob_reader(opened.git()) as content:
        for path in gone:
            ground.remove(path)
        for change in changes:
            if change.status == "D":
                continue
            path = change.path
            ground.remove(path)
            if stat.S_ISDIR(ground.mode(path) or 0):
                _clear_folder(ground, path, [*undo.manifest.empty, *(os.path.dirname(one) for one in gone)])
            if change.new_mode == _LINK:
                ground.link(path, b"".join(content(change.new_oid)))
            else:
                ground.write(path, content(change.new_oid), executable=change.new_mode == _EXECUTABLE)
        for path in gone:
            ground.remove_empty(os.path.dirname(path))


def _clear_folder(ground: Ground, path: str, empty: Iterable[str]) -> None:
    """Make way for a file: the folder in its place holds nothing any more but empty ones."""
    for folder in sorted({one for one in empty if one.startswith(f"{path}/")}, reverse=True):
        ground.remove_empty(folder)
    ground.remove_empty(path)


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
