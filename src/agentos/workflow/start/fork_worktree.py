"""A linked worktree for a fork: the files of a checkpoint's snapshot on its commit. The user's, from then on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from agentos.exceptions import AgentosError, RunRefusedError
from agentos.ids import new_id
from agentos.workflow.place.place import Place, find_place, refuse_bad_id
from agentos.workflow.place.run_search import reading
from agentos.workflow.start.new_run import find_fork_point
from agentos.worktree.git import path_text
from agentos.worktree.linked_worktrees import make_linked, release_linked, remove_linked
from agentos.worktree.snapshots.retention import forget
from agentos.worktree.snapshots.snapshots import find, take
from agentos.worktree.snapshots.store import open_worktree

_LABEL = "fork"


class ForkWorktree(msgspec.Struct, frozen=True, kw_only=True):
    """A new worktree, and the id of the run that is to begin there."""

    place: Place
    workflow_id: str
    as_now: bool
    """The checkpoint had no snapshot: the files are those of the parent's worktree as they are now."""


@contextmanager
def new_worktree(place: Place, checkpoint_id: str, path: Path, workflow_id: str | None) -> Iterator[ForkWorktree]:
    """Make a linked worktree at `path` for a fork of the checkpoint. It stays if the block ends well, else it goes.

    RunRefusedError where something is at `path` already.
    """
    refuse_bad_id(workflow_id)
    path = Path(os.path.abspath(path))
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise RunRefusedError(
            f"{path_text(str(path))} is there already", next_step="Name a path that is not there yet."
        )
    worktree = open_worktree(place.root)
    run = workflow_id or new_id()
    passing = new_id()
    with reading(place) as store:
        checkpoint = find_fork_point(store, checkpoint_id)
    as_now = not checkpoint.snapshot
    if as_now:
        snapshot = take(worktree, workflow_id=passing, name=new_id())
    else:
        snapshot = find(worktree, checkpoint.snapshot)
    try:
        linked = make_linked(worktree, snapshot, path, workflow_id=run, label=_LABEL)
        # Not `named`: nothing has moved there.
        home = msgspec.structs.replace(find_place(linked.root), named=False, durability=place.durability)
        yield ForkWorktree(place=home, workflow_id=run, as_now=as_now)
    except BaseException:
        with suppress(AgentosError, OSError):  # what is told is why it failed
            remove_linked(worktree, path)
        raise
    finally:
        forget(worktree, passing)
    # From here on it is no leftover of ours that a later start would remove.
    release_linked(worktree, path)
