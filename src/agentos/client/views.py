"""A run as it stands: at one glance, by the clock, task by task. Nothing here writes."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from agentos.client.places import FoundRun, find_run
from agentos.machine.rules.budgets import money
from agentos.workflow.look.attempt_evidence import gate_evidence
from agentos.workflow.look.explanation import AttemptView, Explanation, explain, find_task
from agentos.workflow.look.run_view import (
    AttemptEvidence,
    GateView,
    RunView,
    StoredRun,
    TaskView,
    next_command,
    read_journal,
    run_view,
)
from agentos.workflow.look.timeline import AttemptSpan, DriveSpan, IdleSpan, Timeline, WaitSpan, timeline_of
from agentos.workflow.place.run_search import reading

__all__ = [
    "AttemptEvidence", "AttemptSpan", "AttemptView", "DriveSpan", "Explanation", "GateView", "IdleSpan", "RunView",
    "StoredRun", "TaskView", "Timeline", "WaitSpan", "money", "next_command", "read_run", "run_view", "timeline",
    "view", "why",
]  # fmt: skip


def read_run(run: FoundRun | str | None = None, repo: str | Path | None = None, *, whole: bool = True) -> StoredRun:
    """Everything the store knows of a run, of one moment, even while somebody writes on.

    Not `whole`: outputs of more than a megabyte only begin, for who shows no more of them.
    """
    found = find_run(run, repo)
    with reading(found.place) as store:
        journal = read_journal(store, found.record.workflow_id, whole=whole)
    return replace(journal, evidence=gate_evidence(journal, found.place))


def view(run: FoundRun | str | None = None, repo: str | Path | None = None) -> RunView:
    """A run at one glance: tasks in the order of the plan, gates, layers, state, all of one moment.

    The workflow's file is not needed. `RunView.is_cut_off` tells of a task whether its driver died under it.
    """
    return run_view(read_run(run, repo))


def why(run: FoundRun | str | None, task: str, repo: str | Path | None = None) -> Explanation:
    """Why a task (by id or unique prefix, gone ones included) is as it is: attempts, needs, gates, the last verdict."""
    found = find_run(run, repo)
    with reading(found.place) as store:
        journal = read_journal(store, found.record.workflow_id)
        return explain(store, journal, find_task(journal, task))


def timeline(run: FoundRun | str | None = None, repo: str | Path | None = None) -> Timeline:
    """A run by the clock: drives, attempts, what waited for an answer, and the time nobody drove it."""
    return timeline_of(read_run(run, repo, whole=False))
