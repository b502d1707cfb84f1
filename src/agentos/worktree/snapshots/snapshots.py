"""Snapshots: the files of a worktree as a commit in the private store, and what differs between two of them."""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import UTC, datetime

import msgspec

from agentos import crashpoints
from agentos.exceptions import GitError, SnapshotNotFoundError
from agentos.worktree.git import Git
from agentos.worktree.snapshots import known_files
from agentos.worktree.snapshots.capture import LIMITS, CapturedFiles, SnapshotLimits, capture
from agentos.worktree.snapshots.ignore_rules import read_rules
from agentos.worktree.snapshots.index import PATIENCE_S, IndexSession, session
from agentos.worktree.snapshots.manifest import FORMAT, Head, Manifest, SkippedPath, decode, encode
from agentos.worktree.snapshots.own_objects import begin_keeping, keep_objects
from agentos.worktree.snapshots.store import Worktree, ref_folder, ref_name, sync_folder
from agentos.worktree.snapshots.trees import PathChange, check_ids, check_whole, diff_trees, mode_changes

_TRIES = 4
_REPLACED_BY = "the files that came in its place"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a worktree at one moment."""

    id: str
    """Of its commit in the private store."""
    tree: str
    manifest: Manifest
    ref: str = ""
    """Empty where it was looked up by its id."""

    @property
    def partial(self) -> tuple[SkippedPath, ...]:
        """What was there and could not be captured, with the reason. Empty: everything is in it."""
        return self.manifest.partial

    @property
    def head(self) -> Head:
        return self.manifest.head


def take(
    worktree: Worktree,
    *,
    workflow_id: str,
    name: str,
    limits: SnapshotLimits = LIMITS,
    patience_s: float = PATIENCE_S,
) -> Snapshot:
    """Capture the files as they are now, under a ref of the run.

    Durable on return, with its ref; another snapshot of that name is replaced. The user's index, HEAD, refs, reflogs,
    stash and hooks are not touched, and no file of theirs is. A SnapshotError means that there is no snapshot; what
    could not be captured of one is in `partial`.
    """
    with session(worktree, seconds=limits.seconds, patience_s=patience_s) as opened:
        return take_in(opened, workflow_id=workflow_id, name=name, limits=limits)


def take_in(
    opened: IndexSession, *, workflow_id: str, name: str, limits: SnapshotLimits, also: Collection[str] = ()
) -> Snapshot:
    """`take` within a session; `also` names paths to capture although they are ignored."""
    ref = ref_name(opened.worktree, workflow_id, name)
    for attempt in range(_TRIES):
        captured = capture(opened, limits, also=also)
        manifest = _manifest(opened.worktree, captured, workflow_id, name)
        needed = begin_keeping(opened, captured)
        try:
            commit = write_snapshot(opened.writing_git(), captured.tree, manifest)
            keep_objects(opened, needed, captured)
            break
        except GitError as error:
            if error.status is None or attempt + 1 == _TRIES:
                raise
            # What the private index says is stored was only borrowed, and is gone: read the files again.
            opened.worktree.index.unlink(missing_ok=True)
            known_files.forget(opened.worktree)
        finally:
            if needed is not None:
                needed.stop()
    else:
        raise AssertionError("the last try returns or raises")
    crashpoints.reach("snapshot.before_ref")
    _write_ref(opened, ref, commit)
    crashpoints.reach("snapshot.after_ref")
    known_files.save(opened.worktree, captured.known)
    return Snapshot(id=commit, tree=captured.tree, manifest=manifest, ref=ref)


def keep_tree(worktree: Worktree, tree: str, like: Snapshot, *, workflow_id: str, name: str) -> Snapshot:
    """A tree that was made from snapshots (by a merge), kept as a snapshot of its own; durable on return.

    What trees do not have (ignored paths, permission bits) is as in `like`.
    """
    manifest = msgspec.structs.replace(like.manifest, workflow_id=workflow_id, name=name)
    ref = ref_name(worktree, workflow_id, name)
    at_s = int(datetime.fromisoformat(manifest.at).timestamp())
    with session(worktree, seconds=LIMITS.seconds) as opened:
        commit = known_files.write_commit(opened.writing_git(), tree, (), encode(manifest).decode("ascii"), at_s)
        _write_ref(opened, ref, commit)
    return Snapshot(id=commit, tree=tree, manifest=manifest, ref=ref)


def _write_ref(opened: IndexSession, ref: str, commit: str) -> None:
    store = opened.worktree.store
    folders = [folder for folder in (store / ref).parents if folder.is_relative_to(store / "refs")]
    there = [folder.is_dir() for folder in folders]
    opened.git().ask("-c", "core.fsyncMethod=fsync", "update-ref", ref, commit)
    # Git syncs the ref's content, not its name, nor those of the folders that it made for it.
    for number, folder in enumerate(folders):
        if folder.is_dir() and (number == 0 or not there[number - 1]):
            sync_folder(folder)


def write_snapshot(git: Git, tree: str, manifest: Manifest) -> str:
    """The commit of a snapshot. Its parents hold what it needs besides its tree, and are no snapshots themselves."""
    at_s = int(datetime.fromisoformat(manifest.at).timestamp())
    parents: tuple[str, ...] = (manifest.index,) if manifest.index else ()
    if manifest.replaced_by:
        parents += (known_files.write_commit(git, manifest.replaced_by, (), _REPLACED_BY, 0),)
    return known_files.write_commit(git, tree, parents, encode(manifest).decode("ascii"), at_s)


def _manifest(worktree: Worktree, captured: CapturedFiles, workflow_id: str, name: str) -> Manifest:
    return Manifest(
        format=FORMAT,
        workflow_id=workflow_id,
        name=name,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        git=".".join(map(str, worktree.git_version)),
        head=captured.head,
        index=captured.staged,
        ignored=captured.ignored,
        empty=captured.empty,
        modes=captured.modes,
        partial=captured.partial,
        repositories=captured.repositories,
        worktree=worktree.name,
        place=worktree.identity,
        rules=read_rules(worktree),
    )


def find(worktree: Worktree, snapshot_id: str) -> Snapshot:
    """The snapshot of this id, also of one that a purge has replaced since. SnapshotNotFoundError if it is gone."""
    git = worktree.store_git()
    replaced = git.run("rev-parse", "--verify", "--quiet", f"refs/purged/{snapshot_id}", ok=(0, 1, 128))
    oid = os.fsdecode(replaced.stdout).strip() or snapshot_id
    return read(git, oid, snapshot_id)


def read(git: Git, oid: str, asked: str, *, ref: str = "") -> Snapshot:
    """The snapshot whose commit is `oid`."""
    check_ids(oid)
    try:
        header, _, message = git.ask("cat-file", "commit", oid).partition(b"\n\n")
        manifest = decode(message)
    except GitError as error:
        raise SnapshotNotFoundError(asked) from error
    except ValueError as error:  # of JSON, of msgspec, of the format
        raise SnapshotNotFoundError(asked, f"its manifest cannot be read: {error}") from error
    tree = header.partition(b"\n")[0].removeprefix(b"tree ").decode("ascii")
    return Snapshot(id=oid, tree=tree, manifest=manifest, ref=ref)


def diff(worktree: Worktree, old: Snapshot, new: Snapshot) -> list[PathChange]:
    """What differs between the files of two snapshots, by path; a rename is a deletion and an addition."""
    return diff_trees(worktree.store_git(), old.tree, new.tree)


def tree_patch(worktree: Worktree, old: str, new: str, *, paths: Collection[str] = ()) -> bytes:
    """What differs between two trees as text that `git apply` understands; `paths` for some files only."""
    argv = ("diff-tree", "-r", "-p", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--find-renames")
    only = ("--", *(f":(top,literal){path}" for path in paths)) if paths else ()
    git = worktree.store_git()
    check_ids(old, new)
    try:
        return git.ask(*argv, old, new, *only)
    except GitError:
        for tree in (old, new):
            check_whole(git, tree, tree)
        raise


def changed_since(worktree: Worktree, snapshot: Snapshot) -> list[str]:
    """The paths that differ now from the snapshot: content, kind, permission bits, what came and what went."""
    with session(worktree, seconds=LIMITS.seconds) as opened:
        now = capture(opened, LIMITS)
        known_files.save(worktree, now.known)
        changes = diff_trees(opened.git(), snapshot.tree, now.tree)
        modes = mode_changes(opened.git(), snapshot.tree, snapshot.manifest.modes, now.modes)
    folders = set(snapshot.manifest.empty) ^ set(now.empty)
    return sorted({change.path for change in changes} | modes | folders)


def is_unchanged(worktree: Worktree, since: Snapshot, *, limits: SnapshotLimits = LIMITS) -> bool:
    """Whether all that a restore of the snapshot would put back is as it was then, and so is HEAD. Writes no snapshot.

    False where part of the files could not be captured, then or now: of that nothing is known.
    """
    with session(worktree, seconds=limits.seconds) as opened:
        now = capture(opened, limits)
        known_files.save(worktree, now.known)
        then = since.manifest
        if then.partial or now.partial or (since.tree, then.empty, then.head) != (now.tree, now.empty, now.head):
            return False
        return not mode_changes(opened.git(), since.tree, then.modes, now.modes)


def snapshot_refs(worktree: Worktree, workflow_id: str | None = None) -> dict[str, str]:
    """The ids of all snapshots by their ref, of one run or of all."""
    under = ref_folder(worktree, workflow_id) if workflow_id is not None else "refs/agentos"
    return list_refs(worktree.store_git(), f"{under}/")


def list_refs(git: Git, under: str) -> dict[str, str]:
    """The ids that refs have, by their names."""
    listed = os.fsdecode(git.ask("for-each-ref", "--format=%(refname) %(objectname)", under))
    return dict(line.split(" ", 1) for line in listed.splitlines())
