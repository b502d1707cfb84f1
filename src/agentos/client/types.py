"""Names for what the client takes and hands out.

Events and commands are here to be matched and made. The others are for annotations: import them where types are
checked, since most are loaded by few commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentos.machine import events
from agentos.machine.commands import (
    DID_NOT_RUN,
    IT_RAN,
    RUN_AGAIN,
    Abort,
    ApprovalResponse,
    Command,
    Pause,
    parse_command,
)

if TYPE_CHECKING:
    from agentos.dag.define.workflow import Workflow
    from agentos.dag.plan.plan import Plan, PlannedTask
    from agentos.machine.board import GatePolicy
    from agentos.machine.facts.fold import Facts, GateFacts
    from agentos.store.port import CheckpointRecord, RunRecord, RunStatus, StorePort
    from agentos.workflow.drive.drive import Drive
    from agentos.workflow.drive.event_stream import EventStream
    from agentos.workflow.files.decisions import FilesChoice
    from agentos.workflow.place.place import Place
    from agentos.workflow.place.worktree_index import InterruptedRun
    from agentos.workflow.start.fork_worktree import ForkWorktree
    from agentos.workflow.start.ready_run import DriveOptions, Finished, Ready
    from agentos.workflow.start.worker import Worker

__all__ = [
    "DID_NOT_RUN", "IT_RAN", "RUN_AGAIN", "Abort", "ApprovalResponse", "CheckpointRecord", "Command", "Drive",
    "DriveOptions", "EventStream", "Facts", "FilesChoice", "Finished", "ForkWorktree", "GateFacts", "GatePolicy",
    "InterruptedRun", "Pause", "Place", "Plan", "PlannedTask", "Ready", "RunRecord", "RunStatus",
    "StorePort", "Worker", "Workflow", "events", "parse_command",
]  # fmt: skip
