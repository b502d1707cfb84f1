"""Put the files of a worktree back as a snapshot has them, and nothing else.

    1. capture what is there now: `undo`. If that fails, nothing is changed
    2. see that the target is whole, and which paths differ; leave out what is protected
    3. write the intent down
    4. let git switch from the one tree to the other: only differing paths are written, and if one of them was changed
       after step 1, nothing is
    5. permission bits, empty folders
    6. prove it: the files are what the tree says
    7. clear the intent

Killed anywhere, `finish_interrupted` brings it to the same end. HEAD, branches and index are not touched: see
`git_state`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from pathlib import Path

import msgspec

from agentos import crashpoints
from agentos.exceptions import FilesMovedError, GitError, RestoreError, SnapshotNotFoundError
from agentos.ids import new_id
from agentos.worktree import intent as intents
from agentos.worktree import known
from agentos.worktree.budget import Limits
from agentos.worktree.git import Git, shown
from agentos.worktree.intent import Intent, wanted
from agentos.worktree.manifest import Left, Manifest
from agentos.worktree.placing import behind_link, is_pipe, place_extras, remove_pipes
from agentos.worktree.protection import Protection
from agentos.worktree.session import PATIENCE_S, Session, session
from agentos.worktree.snapshot_store import Worktree
from agentos.worktree.snapshots import Snapshot, read, take_in, taken, write_snapshot
from agentos.worktree.survey import survey
from agentos.worktree.trees import Change, diff_trees, mode_changes, tree_with

_TRIES = 3
_REPOSITORY = "160000"


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore did."""

    undo: Snapshot
    """What was there before; restoring it brings it back."""
    tree: str
    """What is there now, proved."""
    paths: tuple[str, ...]
    """What was written or deleted."""
    left: tuple[Left, ...]
    """What differs from the target still, and why it was left alone."""


def restore(
    worktree: Worktree,
    target: Snapshot,
    *,
    workflow_id: str,
    protected: Iterable[str] = (),
    limits: Limits = Limits(),
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
            kept=_kept(target.manifest),
        )
        return _until_quiet(lambda: _put_back(opened, wanted, limits))


def undo(
    worktree: Worktree,
    replaced: Snapshot,
    *,
    workflow_id: str,
    protected: Iterable[str] = (),
    limits: Limits = Limits(),
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
            kept=_kept(replaced.manifest),
            only=touched(worktree, replaced),
        )
        return _until_quiet(lambda: _put_back(opened, wanted, limits))


def touched(worktree: Worktree, replaced: Snapshot) -> Protection:
    """The paths that a restore touched, by its undo snapshot."""
    git = worktree.store_git(timeout_s=60)
    return Protection(change.path for change in diff_trees(git, replaced.tree, replaced.manifest.replaced_by))


def apply_tree(
    worktree: Worktree,
    tree: str,
    *,
    workflow_id: str,
    protected: Iterable[str] = (),
    limits: Limits = Limits(),
    patience_s: float = PATIENCE_S,
) -> Restored:
    """Make the files those of a tree in the store (a merge's result), by the same steps and with the same promises."""
    with session(worktree, seconds=limits.seconds, patience_s=patience_s) as opened:
        _no_open_intent(worktree)
        wanted = _Target(workflow_id=workflow_id, id=tree, tree=tree, protected=Protection(protected))
        return _until_quiet(lambda: _put_back(opened, wanted, limits))


def apply_changes(
    worktree: Worktree, before: str, tree: str, *, workflow_id: str, limits: Limits = Limits()
) -> Restored:
    """Do to the files what leads from the tree `before` to `tree`, by the same steps; other paths are left alone.

    FilesMovedError, and nothing is changed, where one of these paths holds neither what it held before nor what it is
    to hold. So it can be repeated: after one that was killed, too.
    """
    with session(worktree, seconds=limits.seconds) as opened:
        _no_open_intent(worktree)
        wanted = _Target(workflow_id=workflow_id, id=tree, tree=tree, protected=Protection(()), before=before)
        return _until_quiet(lambda: _put_back(opened, wanted, limits))


def finish_interrupted(worktree: Worktree, *, limits: Limits = Limits()) -> Restored | None:
    """Finish the restore that a killed process had begun here; None if there is none. Safe to repeat.

    Only the paths of that restore are touched. What they hold by now is captured first, as before any restore.
    """
    with session(worktree, seconds=limits.seconds) as opened:
        intent = intents.read(worktree)
        if intent is None:
            return None
        return _until_quiet(lambda: _finish(opened, intent, limits))


def _finish(opened: Session, intent: Intent, limits: Limits) -> Restored:
    undo = _undo(opened, intent.workflow_id, intent.paths, limits)
    return _perform(opened, intent, undo, ())


def interrupted(worktree: Worktree) -> Intent | None:
    """The restore that was begun here and not ended, if any."""
    return intents.read(worktree)


def preview(worktree: Worktree, target: Snapshot, now: Snapshot, *, protected: Iterable[str] = ()) -> list[Change]:
    """What `restore` would do to the files as they are in `now`."""
    return foresee(worktree, target, now, protected=protected)[0]


def foresee(
    worktree: Worktree,
    target: Snapshot,
    now: Snapshot,
    *,
    protected: Iterable[str] = (),
    only: Protection | None = None,
) -> tuple[list[Change], tuple[Left, ...]]:
    """The same, and what it would leave alone although it differs; `only`: of these paths, as `undo` does."""
    differing = diff_trees(worktree.store_git(timeout_s=60), now.tree, target.tree)
    meant = [change for change in differing if _is_meant(only, change.path)]
    return _divided(worktree.root, meant, Protection(protected), _kept(target.manifest), now)


def _kept(manifest: Manifest) -> Protection:
    """What was there when a snapshot was taken and is not in it: not being in it is no reason to delete it."""
    return Protection([*manifest.ignored, *(left.path for left in manifest.partial), *manifest.purged])


def _no_open_intent(worktree: Worktree) -> None:
    if (begun := intents.read(worktree)) is not None:
        raise RestoreError(
            f"a restore of {begun.target} was cut off here and is not finished",
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


def _is_meant(only: Protection | None, path: str) -> bool:
    # A file in the place of a folder, or the other way round, goes with what takes its place.
    return only is None or only.covers(path) or only.lies_below(path)


def _put_back(opened: Session, target: _Target, limits: Limits) -> Restored:
    git = opened.git()
    _check_whole(git, target)
    paths = git.names("ls-tree", "-r", "-z", "--name-only", target.tree)
    if target.only is not None:
        paths = [path for path in paths if _is_meant(target.only, path)]
    undo = _undo(opened, target.workflow_id, paths, limits)
    differing = diff_trees(git, undo.tree, target.tree)
    meant = [change for change in differing if _is_meant(target.only, change.path)]
    if target.before:
        wanted_paths = {change.path for change in diff_trees(git, target.before, target.tree)}
        meant = [change for change in meant if change.path in wanted_paths]
        _refuse_moved(git, target.before, undo, {change.path for change in meant})
    changes, left = _divided(opened.worktree.root, meant, target.protected, target.kept, undo)
    _check_readable(git, target.id, changes)
    others = {change.path for change in differing} - {change.path for change in meant}
    return _perform(opened, _intent(git, target, undo, changes, others), undo, left)


def _refuse_moved(git: Git, before: str, undo: Snapshot, paths: Collection[str]) -> None:
    """What is about to be written over must be what it was: somebody's change since is not taken away."""
    moved = sorted(change.path for change in diff_trees(git, before, undo.tree) if change.path in paths)
    if moved:
        raise FilesMovedError(
            f"files changed that were about to be written: {', '.join(map(shown, moved[:5]))}",
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


def _undo(opened: Session, workflow_id: str, paths: Collection[str], limits: Limits) -> Snapshot:
    """Capture what is there, the ignored files among `paths` included: they are about to be written over."""
    return take_in(opened, workflow_id=workflow_id, name=f"undo/{new_id()}", limits=limits, also=paths)


def _divided(
    root: Path, changes: list[Change], protected: Protection, kept: Protection, now: Snapshot
) -> tuple[list[Change], tuple[Left, ...]]:
    """What to do, and what is left alone although it differs."""
    # What is there now and not in the undo snapshot could not be brought back.
    uncaptured = Protection([*now.manifest.ignored, *(left.path for left in now.partial), *now.manifest.repositories])
    do: list[Change] = []
    left: list[Left] = []
    for change in changes:
        path = change.path
        if protected.covers(path):
            left.append(Left(path, "it is protected"))
        elif change.status == "D" and kept.covers(path):
            continue
        elif _REPOSITORY in (change.old_mode, change.new_mode):
            left.append(Left(path, "a repository of its own"))
        elif change.status == "A" and (protected.lies_below(path) or kept.lies_below(path)) and (root / path).is_dir():
            left.append(Left(path, "something protected is in its place"))
        elif change.status == "A" and (
            uncaptured.lies_below(path) or (uncaptured.covers(path) and _in_the_way(root, path))
        ):
            left.append(Left(path, "something is in its place that is not captured"))
        else:
            do.append(change)
    return do, tuple(left)


def _in_the_way(root: Path, path: str) -> bool:
    """Whether something is at `path`, or where one of its folders would be. Pipes and sockets hold nothing."""
    try:
        return not is_pipe(os.lstat(root / path).st_mode)
    except FileNotFoundError:
        return behind_link(root, path)
    except NotADirectoryError:
        return True


def _check_whole(git: Git, target: _Target) -> None:
    try:
        git.ask("rev-list", "--objects", "--quiet", target.tree)
    except GitError as error:
        if error.status is None:
            raise
        raise SnapshotNotFoundError(target.id, f"objects of it are missing ({error.said})") from error


def _check_readable(git: Git, target: str, changes: list[Change]) -> None:
    """Read what is to be written once: a damaged object must show before the first file is touched."""
    oids = sorted({change.new_oid for change in changes if change.status != "D"})
    asked = "\n".join([*oids, ""]).encode()
    try:
        if b" missing\n" in git.ask("cat-file", "--batch-check", stdin=asked):
            raise SnapshotNotFoundError(target, "contents of files are missing")
        git.done("cat-file", "--batch", stdin=asked, discard=True)
    except GitError as error:
        raise SnapshotNotFoundError(target, f"contents of files cannot be read ({error.said})") from error


def _intent(git: Git, target: _Target, undo: Snapshot, changes: list[Change], others: Collection[str]) -> Intent:
    """The changes, with what trees do not have: permission bits and empty folders. `others` differ and may."""
    do = Intent(workflow_id=target.workflow_id, target=target.id, undo=undo.id, changes=tuple(map(wanted, changes)))
    then, now = target.manifest, undo.manifest
    if then is None:
        return do
    paths = mode_changes(git, target.tree, then.modes, now.modes)
    paths |= {change.path for change in changes if change.status != "D"}
    gone = set() if target.only is not None else set(now.empty) - set(then.empty)
    return msgspec.structs.replace(
        do,
        modes=then.modes,
        modes_of=tuple(sorted(path for path in paths if path not in others and not target.protected.covers(path))),
        make_folders=tuple(path for path in then.empty if not target.protected.covers(path)),
        remove_folders=tuple(sorted(gone, reverse=True)),
    )


class _ChangedMeanwhile(Exception):
    """Git found a file that is not what was captured a moment ago, and changed nothing."""


def _perform(opened: Session, intent: Intent, undo: Snapshot, left: tuple[Left, ...]) -> Restored:
    worktree = opened.worktree
    tree = tree_with(opened, undo.tree, [(change.path, change.mode, change.oid) for change in intent.changes])
    first = intents.read(worktree) is None
    if first:
        intents.write(worktree, intent)
    crashpoints.reach("restore.intent")
    remove_pipes(worktree.root, intent.paths)
    try:
        _switch(opened, undo, tree)
    except _ChangedMeanwhile:
        if first:
            intents.clear(worktree)
        raise
    crashpoints.reach("restore.inside")
    place_extras(worktree.root, intent.modes, intent.modes_of, make=intent.make_folders, remove=intent.remove_folders)
    _prove(opened, tree, undo)
    crashpoints.reach("restore.before_clear")
    undo = _remember(opened, intent, undo)
    intents.clear(worktree)
    return Restored(undo=undo, tree=tree, paths=tuple(sorted(intent.paths)), left=left)


def _remember(opened: Session, intent: Intent, undo: Snapshot) -> Snapshot:
    """Note with what was there what came in its place, so that `undo` finds both; gives `undo` by its present id.

    Only here: what a restore that changed nothing captured, or one that was cut off found when it was finished, is
    nothing to undo.
    """
    if not (intent.changes or intent.modes_of or intent.remove_folders):
        return undo
    refs = {oid: ref for ref, oid in taken(opened.worktree, intent.workflow_id).items()}
    if (ref := refs.get(intent.undo)) is None:
        return undo  # cut off after this, and finished
    git = opened.writing_git()
    first = read(git, intent.undo, intent.undo, ref=ref)
    tree = tree_with(opened, first.tree, [(change.path, change.mode, change.oid) for change in intent.changes])
    manifest = msgspec.structs.replace(first.manifest, replaced_by=tree)
    noted = write_snapshot(git, first.tree, manifest, int(datetime.fromisoformat(manifest.at).timestamp()))
    git.ask("-c", "core.fsyncMethod=fsync", "update-ref", ref, noted, intent.undo)
    if undo.id != intent.undo:
        return undo  # what was found when it was finished
    return Snapshot(id=noted, tree=first.tree, manifest=manifest, ref=ref)


def _switch(opened: Session, undo: Snapshot, tree: str) -> None:
    known.forget(opened.worktree)  # the private index is about to hold what no rule would put there
    if undo.tree == tree:
        return
    # Where the capture did not note new times (of files copied, or touched), git would take them for changed.
    opened.git().done("update-index", "-q", "--refresh", ok=(0, 1, 128))
    done = opened.git().done("read-tree", "-m", "-u", undo.tree, tree, ok=(0, 1, 128))
    if done.status == 0:
        return
    if any(
        text in done.stderr for text in (b"not uptodate", b"would be overwritten", b"would be removed", b"would lose")
    ):
        raise _ChangedMeanwhile(done.said)
    raise RestoreError(
        f"git could not put all files back: {done.said}",
        undo=undo.id,
        next_step="Remove what is in the way (permissions, a full disk), and repeat it: it goes on where it stopped.",
    )


def _prove(opened: Session, tree: str, undo: Snapshot) -> None:
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
