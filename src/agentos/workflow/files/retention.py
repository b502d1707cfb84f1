"""Snapshots that are no longer needed: let go of with their checkpoints and runs, and files taken out of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from agentos.exceptions import AgentosError, NotFoundError, SnapshotError
from agentos.machine.facts.fold import fold
from agentos.machine.rules.files import snapshots_in_use
from agentos.store.port import RunRecord, StorePort
from agentos.workflow.files.thread_files import OWNER as THREAD_OWNER
from agentos.workflow.files.worktree_files import WorktreeLock
from agentos.workflow.place.location import FOLDER
from agentos.workflow.place.place import Place, find_place
from agentos.workflow.place.run_search import own_store, places, reading
from agentos.worktree.git import path_text
from agentos.worktree.linked_worktrees import linked_worktrees, remove_linked
from agentos.worktree.snapshots.retention import (
    Sizes,
    captured_runs,
    collect,
    forget,
    forget_worktree,
    purge,
    purged_ids,
    refs_by_run,
    retain_ids,
    sizes,
)
from agentos.worktree.snapshots.store import Worktree, known_worktree, open_worktree

log = logging.getLogger("agentos")


class PurgedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint whose snapshot no longer has the file."""

    id: str
    workflow_id: str
    layer: int
    root: str
    """The worktree of its run."""


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """A path that was taken out of all snapshots."""

    path: str
    """From the root of the worktree."""
    snapshots: int
    """How many had it."""
    checkpoints: list[PurgedCheckpoint]
    """Those that are kept in the worktrees known here."""
    returns: bool
    """The file is still there and not ignored: the next snapshot takes it again."""


def forget_unnamed_snapshots(root: Path, store: StorePort, runs: Sequence[RunRecord]) -> None:
    """Let go of snapshots in a worktree that no checkpoint of these runs names any more. Never an error.

    Of a complete run also of what candidates did that were not chosen. A journal is read only of a run that has more
    snapshots than its checkpoints name. While a run changes files in that worktree nothing is let go of: it does so
    itself at its end.
    """

    def act(worktree: Worktree) -> None:
        refs = refs_by_run(worktree)
        for run in runs:
            own = refs.get(run.workflow_id)
            if not own:
                continue
            named = {cut.snapshot for cut in store.list_checkpoints(run.workflow_id)}
            if named.issuperset(own.values()):
                continue
            facts = fold(run.workflow_id, store.read_events(run.workflow_id))
            retain_ids(worktree, run.workflow_id, {*named, *snapshots_in_use(facts, looked_at=False)})

    _run_locked_quietly(root, f"of {len(runs)} runs", act)


def forget_runs_snapshots(root: Path, workflow_ids: Sequence[str]) -> bool:
    """Let go of every snapshot in a worktree of runs that are gone. False where that has to wait; never an error."""
    return _run_locked_quietly(root, f"of {len(workflow_ids)} deleted runs", lambda one: forget(one, workflow_ids))


def _run_locked_quietly(root: Path, whose: str, act: Callable[[Worktree], object]) -> bool:
    worktree = known_worktree(root) if root.is_dir() else None
    if worktree is None:
        return True
    try:
        # A snapshot that was just taken has its ref before anything names it: whoever takes some must not be at work.
        lock = WorktreeLock(worktree)
        try:
            act(worktree)
        finally:
            lock.release()
    except (AgentosError, OSError) as error:
        log.warning("snapshots %s in %s were not released: %s", whose, root, error)
        return False
    return True


def unknown_snapshots(place: Place) -> dict[str, int]:
    """Runs of this worktree that snapshots are kept of and the database here does not know, with how many.

    They were left by a database that is gone, or belong to another one (AGENTOS_WORKFLOW_DB names one at a time).
    """
    worktree = known_worktree(place.root)
    if worktree is None:
        return {}
    try:
        with reading(place) as store:
            known = {run.workflow_id for run in store.list_runs()}
    except NotFoundError:  # no database
        known = set()
    captured = captured_runs(worktree).items()
    return {run: number for run, number in captured if run not in known and not run.startswith(THREAD_OWNER)}


def forget_unknown(place: Place, run: str) -> int:
    """Let go of the snapshots of a run that no database here knows; how many that were."""
    return _run_locked(place, lambda worktree: forget(worktree, [run]))


def forget_files(place: Place) -> int:
    """Let go of every snapshot of this worktree, and of the worktrees that its runs left; how many snapshots."""

    def act(worktree: Worktree) -> int:
        for one in linked_worktrees(worktree):
            if one.path.is_relative_to(worktree.root / FOLDER):
                remove_linked(worktree, one.path)
        return forget_worktree(worktree)

    return _run_locked(place, act)


def _run_locked(place: Place, act: Callable[[Worktree], int]) -> int:
    worktree = known_worktree(place.root)
    if worktree is None:
        return 0
    lock = WorktreeLock(open_worktree(place.root))
    try:
        return act(worktree)
    finally:
        lock.release()


def collect_snapshots(root: Path) -> Sizes | None:
    """Give the space of snapshots that were let go of back; what is left. None where nothing was ever captured."""
    worktree = known_worktree(root)
    return collect(worktree) if worktree is not None else None


def snapshot_sizes(root: Path) -> Sizes | None:
    """What the snapshots of the repository take. None where nothing was ever captured."""
    worktree = known_worktree(root)
    with suppress(SnapshotError):
        return sizes(worktree) if worktree is not None else None
    return None


def snapshot_path(given: str, root: Path, *, from_root: bool) -> str:
    """A path as it is named in snapshots, from one as it was typed: from here, or `from_root`. ValueError if outside.

    It need not be there any more. Only the way to it is followed through links, not the path itself.
    """
    start = root if from_root else Path.cwd()
    folder, name = os.path.split(os.path.normpath(start / given))
    path = os.path.relpath(os.path.join(os.path.realpath(folder), name), os.path.realpath(root))
    if path == "." or path == ".." or path.startswith("../"):
        raise ValueError(f"{path_text(given)} is not in {path_text(str(root))}")
    return path


def purge_path(path: str, repo: Path | None) -> Purged:
    """Take a file or folder out of every snapshot of the repository. NotFoundError where none has it."""
    place = find_place(repo, make=False)
    worktree = known_worktree(place.root)
    replaced = purge(worktree, path) if worktree is not None else {}
    if worktree is None or not replaced:
        raise NotFoundError(
            f"no snapshot of this repository has {path_text(path)!r}",
            next_step="The path counts from the current directory; with --repo, from the root of that worktree.",
        )
    returns = False
    if os.path.lexists(worktree.root / path):  # and not ignored
        asked = worktree.user_git().run("check-ignore", "-q", "--", path, ok=(0, 1))
        returns = asked.status == 1
    checkpoints = _checkpoints_of(worktree, set(replaced.values()), repo)
    return Purged(path=path_text(path), snapshots=len(replaced), checkpoints=checkpoints, returns=returns)


def _checkpoints_of(worktree: Worktree, snapshots: set[str], repo: Path | None) -> list[PurgedCheckpoint]:
    present = purged_ids(worktree)
    found: list[PurgedCheckpoint] = []
    for place in places(everywhere=True, repo=repo):
        other = known_worktree(place.root) if place.root.is_dir() else None
        if other is None or other.common_dir != worktree.common_dir:
            continue
        # The file is gone from the snapshots; a database that cannot be read must not hide that.
        with suppress(AgentosError), reading(place) as store:
            for run in store.list_runs():
                with own_store(place, store, run) as own:
                    cuts = own.list_checkpoints(run.workflow_id)
                found += [
                    PurgedCheckpoint(id=cut.id, workflow_id=cut.workflow_id, layer=cut.layer, root=run.root)
                    for cut in cuts
                    if present.get(cut.snapshot) in snapshots
                ]
    return found
