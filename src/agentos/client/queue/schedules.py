"""Workflows that run by themselves: added, listed, removed. Workers fire them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from agentos.client.places import find_place
from agentos.client.runs import resolve_drive_options
from agentos.dag.define.workflow import Workflow
from agentos.workflow.define.workflow_source import find_workflow
from agentos.workflow.place.worktree_index import remember
from agentos.workflow.start import schedules
from agentos.workflow.start.schedules import ScheduleView

__all__ = ["ScheduleView", "add_schedule", "list_schedules", "remove_schedule", "schedules_elsewhere"]


def add_schedule(
    workflow: Workflow | str,
    params: Mapping[str, Any] | Callable[[Workflow], Mapping[str, Any]] | None = None,
    *,
    name: str | None = None,
    queue: str = "",
    priority: int = 0,
    labels: Iterable[str] = (),
    since: datetime | None = None,
    repo: str | Path | None = None,
) -> ScheduleView:
    """Have a workflow run by itself, as its `cron` says, whenever a worker works here; it is called as the workflow.

    One of the same name is changed; no slot comes twice. Slots later than `since` (default: now) count as due.
    RunRefusedError where another worktree of the repository has a schedule of that name. `params` may be a function
    that makes them for the workflow.
    """
    place, options = resolve_drive_options(repo)
    flow = find_workflow(workflow, place.root) if isinstance(workflow, str) else workflow
    given = params(flow) if callable(params) else params
    remember(place.root, place.database)
    return schedules.add_schedule(
        place, flow, given, options, name=name, queue=queue, priority=priority, labels=labels, since=since
    )


def list_schedules(repo: str | Path | None = None) -> list[ScheduleView]:
    """The schedules of this repository that its database has: when each runs, ran and did not run. Reads only."""
    return schedules.list_schedules(find_place(repo, make=False))


def schedules_elsewhere(repo: str | Path | None = None) -> dict[str, str]:
    """Schedules that other worktrees of this repository keep in databases of their own, with the root of each."""
    elsewhere = schedules.schedules_elsewhere(find_place(repo, make=False))
    return {name: owner.root for name, owner in elsewhere.items()}


def remove_schedule(name: str, repo: str | Path | None = None) -> None:
    """Nothing more is fired by it; its runs stay. NotFoundError."""
    schedules.remove_schedule(find_place(repo), name)
