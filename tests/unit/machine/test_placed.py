"""Attempts that another runner performs: where they were handed over is on record, and going down with it is no
failure of theirs."""

from __future__ import annotations

from typing import Any

import pytest

from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.plan import compile_plan
from agentos.exceptions import WorkflowDefinitionError
from agentos.ids import TaskId
from agentos.machine import events as ev
from tests.unit.machine.harness import Run, ended, failed, nothing

A = TaskId("a")


def flow_on_cluster(**settings: Any) -> Workflow:
    flow = Workflow("flow", schedule="layers")
    flow.add("a", nothing, runner="dask", **settings)
    flow.add("b", nothing, needs=["a"])
    return flow


def lost(attempt: int = 1, **more: Any) -> Any:
    return failed("a", attempt, "worker tcp://x died\nmore", type="Lost", lost=True, **more)


def test_where_an_attempt_was_handed_over_is_on_record_together_with_its_start() -> None:
    run = Run(flow_on_cluster()).begin()
    started, placed = run.last(ev.TaskStart), run.last(ev.TaskPlaced)
    assert placed.seq == started.seq + 1
    assert (placed.task_id, placed.attempt, placed.runner) == ("a", 1, "dask")
    assert run.facts.placed[A] == (1, "dask", placed.handle)
    assert run.give(ended("a")) == ["task_complete a", "checkpoint 0", "layer_start 1", "task_start b#1"]
    assert A not in run.facts.placed


def test_what_runs_beside_the_driver_is_not_handed_over() -> None:
    run = Run(flow_on_cluster()).begin()
    run.give(ended("a"))
    assert [event.task_id for event in run.journal if isinstance(event, ev.TaskPlaced)] == ["a"]


def test_each_attempt_has_a_handle_of_its_own() -> None:
    run = Run(flow_on_cluster(retries=1)).begin()
    run.give(failed("a"))
    run.later(100)
    handles = [event.handle for event in run.journal if isinstance(event, ev.TaskPlaced)]
    assert len(handles) == len(set(handles)) == 2


def test_an_attempt_that_was_lost_begins_anew_and_uses_up_no_retry() -> None:
    run = Run(flow_on_cluster(retries=0)).begin()
    assert run.give(lost()) == ["resume_planned", "task_start a#2", "task_placed a"]
    planned = run.last(ev.ResumePlanned)
    assert planned.under_way
    assert [(row.verdict, row.reason) for row in planned.verdicts] == [
        ("rerun", "was interrupted: worker tcp://x died")
    ]
    assert run.facts.task(A).tries == 0


def test_one_whose_driver_died_may_be_at_work_until_another_begins() -> None:
    run = Run(flow_on_cluster(effects="external")).begin()
    handle = run.last(ev.TaskPlaced).handle
    run.resume()
    assert run.facts.ask
    assert run.facts.placed[A].handle == handle


def test_three_in_a_row_that_were_lost_open_a_gate() -> None:
    run = Run(flow_on_cluster()).begin()
    run.give(lost(1))
    run.give(lost(2))
    said = run.give(lost(3))
    assert [what for what in said if what.startswith("task_start")] == []
    assert run.last(ev.DecisionRequired).kind == "ask"
    assert "3 times in a row" in run.facts.ask[A]


def test_one_that_ends_by_itself_in_between_starts_the_count_anew() -> None:
    run = Run(flow_on_cluster(retries=5)).begin()
    run.give(lost(1))
    run.give(lost(2))
    run.give(failed("a", 3))
    run.later(100)
    run.give(lost(4))
    assert not run.facts.open_gates
    assert run.facts.running[A] == 5


@pytest.mark.parametrize("idempotent", [True, "keyed"])
def test_an_external_effect_that_may_be_repeated_is(idempotent: object) -> None:
    run = Run(flow_on_cluster(effects="external", idempotent=idempotent)).begin()
    assert "task_start a#2" in run.give(lost(cut_off=True))


def test_an_external_effect_that_may_have_happened_is_asked_about() -> None:
    run = Run(flow_on_cluster(effects="external")).begin()
    run.give(lost(cut_off=True))
    assert run.facts.ask[A] == "was interrupted: worker tcp://x died"
    assert [run.facts.gates[gate].opened.kind for gate in run.facts.open_gates] == ["ask"]


def test_an_external_effect_that_had_not_begun_is_not_asked_about() -> None:
    run = Run(flow_on_cluster(effects="external")).begin()
    assert "task_start a#2" in run.give(lost())


def test_after_an_abort_nothing_is_begun_anew() -> None:
    run = Run(flow_on_cluster()).begin()
    run.say({"type": "abort"})
    assert run.give(lost())[-1] == "workflow_aborted"


def test_a_slot_of_its_group_is_free_again() -> None:
    run = Run(flow_on_cluster(concurrency="one")).begin()
    assert "task_start a#2" in run.give(lost())


def test_where_nothing_can_be_reached_the_run_is_put_off_and_anybody_may_go_on() -> None:
    run = Run(flow_on_cluster()).begin()
    said = run.give(failed("a", 1, "nobody there", type="ClusterError", unreachable="the cluster has no workers"))
    assert said == ["task_retry a#1", "workflow_paused drained"]
    assert run.machine.put_off == "the cluster has no workers"
    assert run.facts.status == "interrupted"
    assert run.facts.task(A).tries == 0
    run.resume()
    assert run.facts.running[A] == 2


def test_what_else_is_at_work_ends_before_the_run_is_put_off() -> None:
    flow = flow_on_cluster()
    flow.add("c", nothing)
    run = Run(flow).begin()
    assert run.give(failed("a", 1, "nobody there", unreachable="no workers")) == ["task_retry a#1"]
    assert run.give(ended("c")) == ["task_complete c", "workflow_paused drained"]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"effects": "files"}, "a task that changes files runs where the worktree is"),
        ({"isolation": "worktree"}, "there is no worktree of the run on a cluster"),
        ({"runner": "local", "resources": {"GPU": 1}}, "they need `runner: dask`"),
        ({"resources": {"GPU": 0}}, "a number above zero"),
    ],
)
def test_what_a_cluster_cannot_give_is_refused_with_the_reason(settings: dict[str, Any], why: str) -> None:
    flow = Workflow("flow")

    def check() -> None:
        flow.add("a", nothing, **{"runner": "dask", **settings})
        compile_plan(flow)

    with pytest.raises(WorkflowDefinitionError, match="(?s)" + why):
        check()
