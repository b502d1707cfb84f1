"""Where a submitted run works: on the commit and the files it was submitted with, or nowhere.

Where the worktree it belongs to still has them, there. Otherwise in a linked worktree of its own, made from them below
`.agentos/runs`: nobody's files are written over. That of a run which changes files is the user's once it is made, and
whoever goes on with the run works there; that of another run is made for one drive and removed after it, or, where
its worker was killed, by the next one.
"""

from __future__ import annotations

import fcntl
import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec.structs import replace

from agentos.exceptions import LeaseHeldError, RunRefusedError, SnapshotNotFoundError, WorktreeBusyError
from agentos.ids import short_id
from agentos.store.port import ENDED, RunRecord
from agentos.store.private_files import make_folders
from agentos.workflow.place.origin import SubmittedFrom, head_commit
from agentos.workflow.place.place import Place, known_run
from agentos.worktree.git import Git, clean_env
from agentos.worktree.linked_worktrees import linked_worktrees, make_linked, release_linked, remove_linked
from agentos.worktree.snapshots.manifest import FORMAT, Head, Manifest
from agentos.worktree.snapshots.snapshots import Snapshot, current_tree, find, is_unchanged
from agentos.worktree.snapshots.store import FOLDER as FOLDER_IN_GIT
from agentos.worktree.snapshots.store import Worktree, open_worktree

_LABEL = "submitted"
_PASSING = "drive"
"""What they are for, as the lock says: those of the second kind are for one drive."""
STALE = timedelta(minutes=1)
"""So long after the end of a run its worker has removed what it made, if it is alive."""
_WHOLE = "whole"
"""Marks a worktree of ours that was made to its end."""


def working_place(place: Place, record: RunRecord) -> Place:
    """The place as it is, or with the run's own worktree as its root, where that was made and kept."""
    path = place.own_folder(record.workflow_id)
    return replace(place, root=path, home=place.root) if place.home is None and _is_whole(path) else place


def place_submitted(place: Place, record: RunRecord, origin: SubmittedFrom, held: ExitStack) -> Place:
    """Where a run that has not begun works; its own worktree is made where it needs one, and no other worker's until
    `held` is left: its driver takes a lease of its own only once it has started.

    RunRefusedError where neither the commit nor the files it was submitted with can be had here; LeaseHeldError where
    another worker has made its worktree.
    """
    path = place.own_folder(record.workflow_id)
    head = head_commit(place.root)
    if not origin.tree and head == origin.commit:
        return place
    held.enter_context(_claim(path.parent.with_name("claims") / path.name, record.workflow_id))
    worktree = open_worktree(place.root)
    snapshot = _snapshot_of(worktree, origin)
    if snapshot is None:
        raise _missing_error(place, record, origin)
    if origin.tree and _is_there(worktree, snapshot, origin, head):
        return place
    if not (origin.tree and _is_whole(path)):
        remove_linked(worktree, path)  # a killed worker left it
        label = _LABEL if origin.tree else _PASSING
        made = make_linked(worktree, snapshot, path, workflow_id=record.workflow_id, label=label)
        (made.folder / _WHOLE).touch()
    if origin.tree:
        release_linked(worktree, path)
    return replace(place, root=path, home=place.root)


def leave_worktree(place: Place, workflow_id: str, origin: SubmittedFrom) -> None:
    """The end of a drive in a worktree that was made for it alone: it goes, with everything in it. Not where somebody
    resumed the run by hand meanwhile, and works there."""
    if place.home is None or origin.tree:
        return
    with closing(replace(place, root=place.home, home=None).open(readonly=True)) as store:
        run = known_run(store, workflow_id)
    if run is None or run.holder is None:
        with suppress(WorktreeBusyError):  # else it goes with the next worker
            remove_linked(open_worktree(place.home), place.root)


@contextmanager
def _claim(lock: Path, workflow_id: str) -> Iterator[None]:
    """One worker at a time makes the worktree of a run, and leaves it. LeaseHeldError where another does."""
    make_folders(lock.parent)
    opened = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(os.fstat(opened), os.stat(lock))
        except (BlockingIOError, FileNotFoundError):  # who had it has just removed it
            is_ours = False
        if not is_ours:
            raise LeaseHeldError(workflow_id, "another worker")
        yield
        lock.unlink(missing_ok=True)
    finally:
        os.close(opened)


def remove_left_behind(place: Place) -> None:
    """Remove worktrees that were made for one drive, of runs that have ended: their workers were killed.

    WorktreeBusyError where another worker is at it, or makes one.
    """
    folder = os.path.realpath(place.own_folder("x").parent)
    if not os.path.isdir(folder):
        return
    worktree = open_worktree(place.root)
    with closing(place.open(readonly=True)) as store:
        for one in linked_worktrees(worktree, patience_s=0):
            if one.label != _PASSING or os.path.dirname(one.path) != folder:
                continue
            run = known_run(store, one.workflow_id)
            if run is not None and run.status in ENDED and datetime.now(UTC) - run.updated_at > STALE:
                remove_linked(worktree, one.path, patience_s=0)


def _is_whole(path: Path) -> bool:
    """Whether there is a worktree of ours that was made to its end."""
    try:
        git_dir = (path / ".git").read_text().removeprefix("gitdir: ").strip()
    except OSError:
        return False
    return (Path(git_dir) / FOLDER_IN_GIT / _WHOLE).exists()


def _is_there(worktree: Worktree, snapshot: Snapshot, origin: SubmittedFrom, head: str) -> bool:
    """Whether the files of the worktree are those that the run was submitted with, and HEAD is."""
    if snapshot.manifest.place == worktree.identity:
        return is_unchanged(worktree, snapshot)
    return head == origin.commit and current_tree(worktree) == origin.tree


def _snapshot_of(worktree: Worktree, origin: SubmittedFrom) -> Snapshot | None:
    """The files it was submitted with: as they were kept in this repository, else as the commit has them, if those are
    the same; None where they are not here."""
    git = worktree.user_git()
    found = git.run("rev-parse", "--verify", "--quiet", f"{origin.commit or 'HEAD'}^{{tree}}", ok=(0, 1, 128))
    tree = os.fsdecode(found.stdout).strip()
    if origin.commit and not tree:  # a snapshot keeps files, not the history that they stand on
        return None
    if origin.snapshot:
        try:
            return find(worktree, origin.snapshot)
        except SnapshotNotFoundError:
            pass
    if not origin.commit or (origin.tree and tree != origin.tree):
        return None
    now = datetime.now(UTC).isoformat(timespec="seconds")
    head = Head(oid=origin.commit)
    manifest = Manifest(format=FORMAT, workflow_id="", name="", at=now, git="", head=head)
    return Snapshot(id=origin.commit, tree=tree, manifest=manifest)


def _missing_error(place: Place, record: RunRecord, origin: SubmittedFrom) -> RunRefusedError:
    run = shlex.quote(short_id(record.workflow_id))
    here = f"`agentos resume {run} --repo {shlex.quote(str(place.root))}` runs it on the files as they are here."
    git = Git(cwd=place.root, env=clean_env(os.environ), timeout_s=10.0)
    commit = origin.commit[:12]
    if not origin.commit or git.run("cat-file", "-e", f"{origin.commit}^{{commit}}", ok=range(256)).status == 0:
        return RunRefusedError(
            f"run {record.workflow_id} was submitted with changes that were not committed, and they are not in this "
            "repository",
            next_step=f"Start a worker where it was submitted ({record.root}), or commit them, and submit it again. "
            f"{here}",
        )
    return RunRefusedError(
        f"run {record.workflow_id} was submitted from commit {commit}, which {place.root} does not have",
        next_step=f"Fetch it: git -C {shlex.quote(str(place.root))} fetch --all. {here}",
    )
