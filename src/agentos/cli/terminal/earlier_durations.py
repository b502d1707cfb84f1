"""How long tasks took before: from it comes how long there is to go."""

from __future__ import annotations

from agentos.exceptions import AgentosError
from agentos.machine.events import TaskComplete
from agentos.workflow.place.place import Place
from agentos.workflow.place.run_search import reading

MOST_EVENTS = 5_000
"""A journal longer than this is not read for a guess."""
MOST_RUNS = 200
"""Nor are runs looked for that are older than the newest of these."""


def usual_ms(place: Place, name: str) -> dict[str, float]:
    """How long each task took in the newest complete run of this workflow, in milliseconds; empty where there is none.

    A guess is never worth an error.
    """
    try:
        with reading(place) as store:
            for run in store.list_runs(statuses={"complete"}, limit=MOST_RUNS):
                if run.name == name and run.sequence <= MOST_EVENTS:
                    events = store.read_events(run.workflow_id)
                    return {e.task_id: e.execution_time_ms for e in events if isinstance(e, TaskComplete) and e.attempt}
    except AgentosError:
        pass
    return {}
