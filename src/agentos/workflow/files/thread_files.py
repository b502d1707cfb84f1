"""The files of the worktree at checkpoints of LangGraph: captured, and let go of with them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from agentos.ids import new_id
from agentos.worktree.snapshots.retention import forget, forget_ids
from agentos.worktree.snapshots.snapshots import take
from agentos.worktree.snapshots.store import Worktree, open_worktree

OWNER = "langgraph:"
"""Snapshots of a thread are filed under this and its id, as those of a run are under its own."""


class ThreadFiles:
    """Snapshots of one worktree, by thread. What a call captures or lets go of is durable on return."""

    def __init__(self, root: Path) -> None:
        self._worktree: Worktree = open_worktree(root)

    def capture(self, thread: str) -> str:
        """The files as they are now; the id of their snapshot. SnapshotError where that cannot be done."""
        return take(self._worktree, workflow_id=OWNER + thread, name=new_id()).id

    def forget(self, thread: str) -> None:
        """Let go of all snapshots of a thread."""
        forget(self._worktree, [OWNER + thread])

    def forget_ids(self, thread: str, snapshots: Collection[str]) -> None:
        """Let go of these."""
        forget_ids(self._worktree, OWNER + thread, snapshots)
