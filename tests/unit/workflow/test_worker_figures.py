"""What a worker counts of events, and how Prometheus is told of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from agentos import Workflow
from agentos.dag.plan.plan import Plan, compile_plan
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.render.metrics_text import metrics_text
from agentos.store.stats import HeldRun, Workload, make_workload
from agentos.workflow.start.worker_figures import MOST_MODELS, OTHER, DatabaseSurvey, Durations, WorkerFigures, add_up

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
FAILURE = ev.TaskFailure(type="ValueError", text="no")


def a_plan() -> Plan:
    flow = Workflow("paid")
    flow.add("call", "llm", model="small", prompt="x")
    flow.add("edit", "agent", agent="claude", prompt="x")
    flow.add("review", "agent", agent="claude", model="large", prompt="x")
    return compile_plan(flow)


def used(task: str, dollars: float, tokens: int = 1) -> ev.TaskUsage:
    usage = ev.Usage(input_tokens=tokens, output_tokens=2 * tokens, cost_usd=dollars)
    return ev.TaskUsage(task_id=TaskId(task), layer=0, attempt=1, usage=usage)


def ended(kind: Any, **more: Any) -> ev.Event:
    event: ev.Event = kind(task_id="t", layer=0, **more)
    return event


def survey(figures: WorkerFigures, work: Workload) -> DatabaseSurvey:
    return DatabaseSurvey(
        figures=figures, work=work, readable=1, unreadable=0, driven=0, limit=4, oldest_drive_s=0.0, look_age_s=None
    )


def samples(told: DatabaseSurvey) -> dict[tuple[str, str], float]:
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics_text(told))
        for sample in family.samples
    }


def test_attempts_and_runs_are_counted_by_how_they_end() -> None:
    figures = WorkerFigures()
    events = [
        ended(ev.TaskComplete, place="1", attempt=1),
        ended(ev.TaskComplete, place="1", attempt=0),  # gathers what its items gave: no attempt of its own
        ended(ev.TaskError, place="1", attempt=1, error=FAILURE, status="failed_safe"),
        ended(ev.TaskError, place="1", attempt=0, error=FAILURE),
        ended(ev.TaskRetry, attempt=1, not_before=NOON, error=FAILURE),
        ended(ev.TaskSuspended, attempt=1, waits=(1,)),
        ev.WorkflowPaused(reason="drained"),
        ev.WorkflowPaused(reason="stopped"),
        ev.WorkflowFailed(),
    ]
    figures.record(events, 0.002, a_plan())
    assert figures.attempts_ended == {"complete": 1, "failed_safe": 1, "retrying": 1, "suspended": 1}
    assert figures.runs_ended == {"drained": 1, "paused": 1, "failed": 1}
    assert sum(figures.commits.counts) == 1


def test_what_was_paid_is_told_by_model_where_it_is_known() -> None:
    figures = WorkerFigures()
    figures.record([used("call", 0.5), used("edit", 1.0), used("review", 2.0), used("gone", 4.0)], 0.0, a_plan())
    assert figures.dollars == {"small": 0.5, "claude": 1.0, "large": 2.0, "": 4.0}
    assert figures.tokens["large", "input"] == 1
    assert figures.tokens["large", "output"] == 2


def test_dollars_never_go_down() -> None:
    figures = WorkerFigures()
    for dollars, told in ((2.0, 2.0), (-0.5, 2.0), (0.25, 2.0), (1.0, 2.75)):
        figures.record([used("call", dollars)], 0.0, a_plan())
        assert figures.dollars["small"] == told


def test_names_of_models_without_end_are_counted_together() -> None:
    figures = WorkerFigures()
    for number in range(MOST_MODELS + 10):
        flow = Workflow("many")
        flow.add("call", "llm", model=f"m{number}", prompt="x")
        figures.record([used("call", 1.0)], 0.0, compile_plan(flow))
    assert len(figures.dollars) == MOST_MODELS + 1
    assert figures.dollars[OTHER] == 10.0


@given(st.lists(st.floats(0, 20)))
def test_a_histogram_counts_each_once_and_only_up(lengths: list[float]) -> None:
    durations = Durations([0.001, 0.5, 10.0])
    for length in lengths:
        durations.add(length)
    figures = WorkerFigures()
    figures.commits = durations
    found = samples(survey(figures, Workload(runs={}, due={})))
    name = "agentos_worker_journal_commit_seconds"
    for bound in (0.001, 0.5, 10.0):
        assert found[f"{name}_bucket", str(bound)] == sum(length <= bound for length in lengths)
    assert found[f"{name}_bucket", "+Inf"] == found[f"{name}_count", ""] == len(lengths)
    assert found[f"{name}_sum", ""] == pytest.approx(sum(lengths))


@given(st.text(st.characters(blacklist_categories=["Cs"]), max_size=40))
def test_a_name_from_a_workflow_makes_no_lines_of_its_own(model: str) -> None:
    figures = WorkerFigures()
    figures.dollars[model] = 1.5
    text = metrics_text(survey(figures, Workload(runs={}, due={"": 0})))
    assert all(line.startswith(("agentos_", "# ")) for line in text.splitlines())
    [told] = [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "agentos_worker_cost_dollars_total"
    ]
    assert told.value == 1.5
    if model.isprintable():
        assert told.labels["model"] == model


def test_series_that_a_dashboard_waits_for_are_there_from_the_start() -> None:
    found = samples(survey(WorkerFigures(), add_up([])))
    assert found["agentos_runs", "failed"] == 0
    assert found["agentos_queue_depth", ""] == 0
    assert found["agentos_worker_runs_ended_total", "drained"] == 0
    assert found["agentos_worker_look_age_seconds", ""] == float("inf")


def test_counts_of_several_databases_are_added_up() -> None:
    first = Workload(runs={"complete": 2}, due={"": 1, "gpu": 2}, oldest_due=NOON, leases=1, overdue_s=3.0)
    second = Workload(runs={"complete": 1, "failed": 1}, due={"": 4}, oldest_due=NOON - timedelta(hours=1))
    assert add_up([first, second]) == Workload(
        runs={"complete": 3, "failed": 1},
        due={"": 5, "gpu": 2},
        oldest_due=NOON - timedelta(hours=1),
        leases=1,
        overdue_s=3.0,
    )


def test_a_holder_that_died_before_its_lease_was_over_is_not_overdue() -> None:
    dead = HeldRun(status="running", is_workflow=True, queue="", created_at=0, live=False, overdue_s=-9.0)
    found = make_workload([("running", 1)], [], [dead])
    assert (found.overdue_s, found.runs, found.due) == (0.0, {"interrupted": 1}, {"": 1})
