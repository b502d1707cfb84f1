"""Worktrees aside: each attempt of a task with `isolation: worktree` has one to itself, and it is thrown away after it.

What the attempt left in it is captured before. So one that is cut off has changed nothing: its worktree goes with the
next start, and it begins again.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

from agentos.crashpoints import reach
from agentos.exceptions import AgentosError, SnapshotError
from agentos.ids import new_id
from agentos.machine.events import TaskFiles
from agentos.workflow.files.worktree_files import WorktreeFiles
from agentos.workflow.place.location import FOLDER, make_private
from agentos.worktree.git import one_line
from agentos.worktree.linked_worktrees import linked_worktrees, make_linked, remove_linked
from agentos.worktree.snapshots.snapshots import Snapshot, diff, take
from agentos.worktree.snapshots.store import Worktree

log = logging.getLogger("agentos")

_SHOWN = 10


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


def hand_over(files: WorktreeFiles, aside: IsolatedWorktree) -> IsolatedChanges:
    """Capture what the attempt left; durable on return. SnapshotError where something of it cannot be kept."""
    now = take(aside.worktree, workflow_id=files.workflow_id, name=new_id())
    if now.partial:
        listed = ", ".join(f"{one_line(left.path)} ({left.why})" for left in now.partial[:_SHOWN])
        raise SnapshotError(f"not everything it left in its worktree can be captured: {listed}")
    reach("aside.captured")
    if now.tree == aside.base.tree:
        return IsolatedChanges(None)
    changed = tuple(one_line(change.path) for change in diff(aside.worktree, aside.base, now)[:_SHOWN])
    return IsolatedChanges(TaskFiles(base=aside.base.id, snapshot=now.id), changed)


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
