"""Runs as they stand, at one glance, by the clock, task by task; and as they change. Nothing here writes."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from agentos.client.places import FoundRun, find_run
from agentos.exceptions import AgentosError, NotFoundError
from agentos.ids import WorkflowId
from agentos.machine import events as ev
from agentos.machine.rules.budgets import money
from agentos.machine.rules.candidates import CandidateRow, recorded_table, winner_of
from agentos.store.holder import is_alive
from agentos.store.port import RunRecord, RunStatus, StorePort
from agentos.workflow.define.plans import decode_plan
from agentos.workflow.look.attempt_evidence import gate_evidence
from agentos.workflow.look.explanation import AttemptView, Explanation, explain, find_task
from agentos.workflow.look.run_model import RunModel
from agentos.workflow.look.run_view import (
    AttemptEvidence,
    GateView,
    RunView,
    StoredRun,
    TaskView,
    WaitingView,
    journal_at,
    next_command,
    read_journal,
    run_view,
    waiting_view,
)
from agentos.workflow.look.timeline import AttemptSpan, DriveSpan, IdleSpan, Timeline, WaitSpan, timeline_of
from agentos.workflow.place.place import Place, find_place
from agentos.workflow.place.run_search import reading
from agentos.workflow.telemetry.spans import Span, SpanLink, spans_of

__all__ = [
    "AttemptEvidence", "AttemptSpan", "AttemptView", "CandidateRow", "DriveSpan", "Explanation", "GateView", "IdleSpan",
    "RunModel", "RunView", "Span", "SpanLink", "StoredRun", "TaskView", "Timeline", "WaitSpan", "WaitingView", "money",
    "new_model", "next_command", "read_run", "recorded_table", "run_view", "timeline", "timeline_of", "trace",
    "usual_ms", "view", "waiting_view", "watch_all", "watch_place", "why", "winner_of",
]  # fmt: skip

T = TypeVar("T")
POLL_S = 0.1
LOOK_S = 1.0
"""How often `watch_all` looks whether drivers still live; on a server, also for runs that it has not seen."""
_DRIVEN: tuple[RunStatus, ...] = ("pending", "running", "waiting")
"""In which a run may be while somebody drives it."""
MOST_EVENTS = 5_000
"""A journal longer than this is not read for a guess."""
MOST_RUNS = 200
"""Nor are runs looked for that are older than the newest of these."""


def read_run(
    run: FoundRun | str | None = None,
    repo: str | Path | None = None,
    *,
    whole: bool = True,
    at: int | None = None,
    known: StoredRun | None = None,
) -> StoredRun:
    """Everything the store knows of a run, of one moment, even while somebody writes on.

    Not `whole`: outputs of more than a megabyte only begin, for who shows no more of them. `at` is the sequence of an
    event: the run as it stood once that was written. `known` is what was read of the run before, in the same way: only
    what came since is read.
    """
    found = find_run(run, repo)
    with reading(found.place) as store:
        journal = read_journal(store, found.record.workflow_id, whole=whole, known=known)
        if at is not None and at < len(journal.events):
            return journal_at(store, journal, at)
    own = found.place.own_folder(found.record.workflow_id)
    evidence = gate_evidence(journal, found.place)
    return replace(journal, evidence=evidence, own_worktree=str(own) if own.is_dir() else "")


def view(run: FoundRun | str | None = None, repo: str | Path | None = None) -> RunView:
    """A run at one glance: tasks in the order of the plan, gates, layers, state, all of one moment.

    The workflow's file is not needed. `RunView.is_cut_off` tells of a task whether its driver died under it.
    """
    return run_view(read_run(run, repo))


def why(
    run: FoundRun | str | None, task: str, repo: str | Path | None = None, *, journal: StoredRun | None = None
) -> Explanation:
    """Why a task (by id or unique prefix, gone ones included) is as it is: attempts, needs, gates, the last verdict.

    `journal` is what was read of the run already.
    """
    found = find_run(run, repo)
    with reading(found.place) as store:
        journal = journal or read_journal(store, found.record.workflow_id)
        return explain(store, journal, find_task(journal, task))


def timeline(run: FoundRun | str | None = None, repo: str | Path | None = None) -> Timeline:
    """A run by the clock: drives, attempts, what waited for an answer, and the time nobody drove it."""
    return timeline_of(read_run(run, repo, whole=False))


def trace(run: FoundRun | str | None = None, repo: str | Path | None = None) -> list[Span]:
    """What a run did as spans of OpenTelemetry, as they ended: the same from any process, now and later.

    What is under way has no span yet. Prompts, outputs and questions are not in them; errors are, by their first line.
    """
    journal = read_run(run, repo, whole=False)
    return spans_of(journal.events, driven=journal.record.holder is not None)


# --- as they change -------------------------------------------------------------------------------------------------


def new_model(run: FoundRun) -> RunModel:
    """A model of the run to feed with its events, from the first on."""
    workflow_id = run.record.workflow_id
    if run.record.kind != "workflow":
        return RunModel(workflow_id)
    with reading(run.place) as store:
        return RunModel(workflow_id, decode_plan(store.read_plan(workflow_id)))


def usual_ms(place: Place, name: str) -> dict[str, float]:
    """How long each task took in the newest complete run of this workflow, in milliseconds; empty where there is none.

    A guess is never worth an error.
    """
    try:
        with reading(place) as store:
            for run in store.list_runs(statuses={"complete"}, limit=MOST_RUNS):
                if run.name == name and run.sequence <= MOST_EVENTS:
                    done = (one for one in store.read_events(run.workflow_id) if isinstance(one, ev.TaskComplete))
                    return {one.task_id: one.execution_time_ms for one in done if one.attempt}
    except AgentosError:
        pass
    return {}


async def watch_all(repo: str | Path | None = None, *, poll_s: float = POLL_S) -> AsyncGenerator[list[RunRecord]]:
    """Runs of this worktree that are new or have changed, as any process changes them: first all, newest first.

    A driver that dies is a change, too, and so is a run that was deleted (nothing is listed then). Between two changes
    a database file is asked for nothing but its data version. A place where nothing was ever kept is waited at.
    """
    import asyncio

    async def pause() -> bool:
        await asyncio.sleep(poll_s)
        return False

    place = await asyncio.to_thread(find_place, repo, make=False)
    known: dict[WorkflowId, RunRecord] = {}
    async with aclosing(watch_place(place, lambda store: store.list_runs(), pause=pause)) as looks:
        async for found in looks:
            runs = {run.workflow_id: run for run in found}
            gone = known.keys() - runs.keys()
            changed = [
                one for one in runs.values() if _without_lease(one) != _without_lease(known.get(one.workflow_id))
            ]
            if changed or gone or not known:
                yield changed
            known = runs


async def watch_place(
    place: Place, look: Callable[[StorePort], T], *, pause: Callable[[], Awaitable[bool]]
) -> AsyncGenerator[T]:
    """What `look` finds in a store of the place: at once, then each time that something there may have changed.

    Between two times a database file is asked for nothing but its data version, and `pause` is awaited: how long is its
    own affair, and where it gives True the next look comes at once. A place where nothing was ever kept is waited at.
    """
    import asyncio

    from agentos.workflow.drive.patience import in_thread, run_to_end

    def look_around() -> tuple[T, list[RunRecord]]:
        return look(store), [run for run in store.list_runs(statuses=_DRIVEN) if run.holder is not None]

    while not place.exists():
        await pause()
    store = await run_to_end(asyncio.to_thread(_open, place), undo=lambda left: left.close())
    try:
        while True:
            found, driven = await in_thread(look_around)
            yield found
            await _wait_for_change(place, store, driven, pause)
    finally:
        store.close()


def _open(place: Place) -> StorePort:
    deadline = time.monotonic() + LOOK_S
    while True:
        try:
            return place.open(readonly=True)
        except NotFoundError:  # it is just being made
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def _without_lease(run: RunRecord | None) -> RunRecord | None:
    """A lease is renewed all the time, and that changes nothing."""
    return None if run is None else replace(run, lease_until=None)


async def _wait_for_change(
    place: Place, store: StorePort, driven: list[RunRecord], pause: Callable[[], Awaitable[bool]]
) -> None:
    from agentos.workflow.drive.patience import in_thread

    look_at = time.monotonic() + LOOK_S
    while not await in_thread(store.has_changed):
        if time.monotonic() >= look_at:
            # A server tells only of runs that were looked at; a dead driver tells nobody.
            if place.is_shared or any(run.holder is not None and is_alive(run.holder) is False for run in driven):
                return
            look_at = time.monotonic() + LOOK_S
        if await pause():
            return
