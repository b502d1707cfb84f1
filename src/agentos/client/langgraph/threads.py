"""LangGraph's threads: where they are kept, and the files of the worktree that belong to a checkpoint."""

from __future__ import annotations

from agentos.client.files import RestoreReport, restore
from agentos.client.places import Place, find_place
from agentos.store.graph_threads import (
    Encoded,
    GraphThreads,
    Header,
    Line,
    Loaded,
    NewCheckpoint,
    StoredCheckpoint,
    Write,
)
from agentos.workflow.files.thread_files import ThreadFiles

__all__ = [
    "Encoded", "GraphThreads", "Header", "Line", "Loaded", "NewCheckpoint", "Place", "RestoreReport",
    "StoredCheckpoint", "ThreadFiles", "Write", "find_place", "open_threads", "restore",
    "thread_files",
]  # fmt: skip


def open_threads(place: Place) -> GraphThreads:
    """The threads that are kept beside the runs of a place. Database and tables are made where there are none."""
    store = place.open(create=True)
    try:
        return GraphThreads(store.graph_tables())
    except BaseException:
        store.close()
        raise


def thread_files(place: Place) -> ThreadFiles:
    """Snapshots of the worktree for checkpoints. NothingToCaptureError where there is no worktree."""
    return ThreadFiles(place.root)
