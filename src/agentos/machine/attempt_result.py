"""How an attempt ended: one value from its performer, through the drive, to the machine that makes events of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from agentos.machine.events import NOTHING, AgentEnd, TaskFailure, TaskFiles


class AttemptResult(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended: `error` is None for success. All values are in stored form already."""

    output: Raw = NOTHING
    messages: Raw = NOTHING
    context: Raw = NOTHING
    injected: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Tasks asked for with `ctx.inject`: id and mapping form."""
    warnings: tuple[str, ...] = ()
    error: TaskFailure | None = None
    retryable: bool = True
    """False where trying again cannot help: cancelled, or a definition problem."""
    put_off: bool = False
    """It ended before it paid for anything, since nothing is left of the budget: no failure, though `error` says so."""
    paused: bool = False
    """It was stopped where its budget was used up, and goes on as soon as somebody allows more: no failure either."""
    cancelled: bool = False
    """Ended because the drive stops."""
    cut_off: bool = False
    """It did not end by itself: it ran out of time, or was ended from outside. What it was doing may have happened."""
    suspended: tuple[int, ...] = ()
    """It did not end: its function sleeps or waits, and these are the steps it waits for."""
    agent: AgentEnd = ""
    """How its agent ended, where it has said so itself."""
    files: TaskFiles | None = None
    """What it changed in its own worktree."""
    execution_time_ms: float = 0.0
