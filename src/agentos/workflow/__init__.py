"""Making a run go.

    place       which store, which worktree, which run is meant
    define      from a file or a function to a plan that can be run
    start       how a drive comes about: a new run, a fork, a resume, a worker
    drive       one process makes a run go
    expiry      runs that nobody needs any more, and how they go
    files       what a drive does about the files of its worktree
    look        looking at a run without touching it
    transfer    a run from one place to another
    telemetry   what a run did, as spans of OpenTelemetry
    prove       whether tasks may be repeated
    executor    executors: in memory, or with events, commands and checkpoints
    checkpoint  where checkpoints live, and `CheckpointManager`

The names below are imported when they are asked for, so that `import agentos` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentos.workflow.drive.command_delivery import CommandQueue
    from agentos.workflow.drive.event_stream import EventStream
    from agentos.workflow.executor import ControlledExecutor, ParallelExecutor

__all__ = ["CommandQueue", "ControlledExecutor", "EventStream", "ParallelExecutor"]

_HOMES = {
    "CommandQueue": "drive.command_delivery",
    "ControlledExecutor": "executor",
    "EventStream": "drive.event_stream",
    "ParallelExecutor": "executor",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
