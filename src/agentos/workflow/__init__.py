"""Making a run go: executors, the stream of events, the queue of commands, checkpoints.

The names below are imported when they are asked for, so that `import agentos` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentos.workflow.drive.command_queue import CommandQueue
    from agentos.workflow.drive.event_stream import EventStream
    from agentos.workflow.executor import ControlledExecutor, ParallelExecutor

__all__ = ["CommandQueue", "ControlledExecutor", "EventStream", "ParallelExecutor"]

_HOMES = {
    "CommandQueue": "drive.command_queue",
    "ControlledExecutor": "executor",
    "EventStream": "drive.event_stream",
    "ParallelExecutor": "executor",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
