"""The files of the worktree at checkpoints of LangGraph: captured, and let go of with them."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from pathlib import Path

from agentos.ids import new_id
from agentos.worktree.snapshots.retention import forget, forget_ids
from agentos.worktree.snapshots.snapshots import take
from agentos.worktree.snapshots.store import Worktree, open_worktree, safe_part

OWNER = "langgraph:"
"""Snapshots of a thread are filed under this and its id, as those of a run are under its own."""
_LONGEST = 120
"""The name of a folder has room for no more, with the worktree's behind it; a longer id is filed under its digest."""


class ThreadFiles:
    """Snapshots of one worktree, by thread. What a call captures or lets go of is durable on return."""

    def __init__(self, root: Path) -> None:
        self._worktree: Worktree = open_worktree(root)

    def capture(self, thread: str) -> str:
        """The files as they are now; the id of their snapshot. SnapshotError where that cannot be done."""
        return take(self._worktree, workflow_id=_owner(thread), name=new_id()).id

    def forget(self, thread: str) -> None:
        """Let go of all snapshots of a thread."""
        forget(self._worktree, [_owner(thread)])

    def forget_ids(self, thread: str, snapshots: Collection[str]) -> None:
        """Let go of these."""
        forget_ids(self._worktree, _owner(thread), snapshots)


def _owner(thread: str) -> str:
    is_long = len(safe_part(thread)) > _LONGEST
    return OWNER + (blake2b(thread.encode(), digest_size=20).hexdigest() if is_long else thread)
