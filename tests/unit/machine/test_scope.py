"""What references of a task can see."""

from __future__ import annotations

from typing import Any

from agentos.dag.define.task import resolve_inputs
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.ids import TaskId
from agentos.machine.facts.fold import Facts
from agentos.machine.rules.scope import TaskResults, newest_round, scope_of
from tests.unit.machine.harness import Run, flow_of, nothing, take


def resolved_inputs(plan: Plan, facts: Facts, task: PlannedTask) -> dict[str, Any]:
    return resolve_inputs(task.definition, scope_of(plan, facts, task))


def test_results_by_task_id() -> None:
    run = Run(flow_of({"a": [], "b": [], "c": ["a"]})).begin()
    run.ok("a", {"x": 1})
    run.fail("b", "broken")
    results = TaskResults(run.machine.plan, run.facts)
    assert list(results) == list(run.machine.plan.tasks)
    assert len(results) == 3
    assert results["a"] == {"output": {"x": 1}, "status": "complete", "error": None}
    assert results["b"]["error"]["text"] == "broken"
    assert results["b"]["output"] is None
    assert results["c"]["status"] == "running"
    assert "nowhere" not in results


def test_inputs_are_resolved_with_params_results_and_the_item() -> None:
    def three(value: object, result: object, param: object) -> None: ...

    flow = Workflow("w", params={"n": 5})
    flow.add("a", nothing)
    inputs = {"value": "${{ item.name }}", "result": "${{ tasks.a.output }}", "param": "${{ params.n }}"}
    flow.add("each", three, for_each=[{"name": "x"}], inputs=inputs)
    run = Run(flow).begin()
    run.ok("a", [1])
    plan = run.machine.plan
    assert resolved_inputs(plan, run.facts, plan.tasks[TaskId("each[0]")]) == {"value": "x", "result": [1], "param": 5}
    assert resolved_inputs(plan, run.facts, plan.tasks[TaskId("a")]) == {}
    assert set(scope_of(plan, run.facts, plan.tasks[TaskId("a")])) == {"params", "tasks"}


def test_a_reference_means_the_newest_round_that_completed() -> None:
    flow = Workflow("w")
    flow.add("draft", nothing)
    flow.add("loop", repeat={"tasks": ["draft"], "until": "tasks.draft.output == 'good'", "max": 3})
    flow.add("end", take, inputs={"value": "${{ tasks.draft.output }}"}, needs=["loop"])
    run = Run(flow).begin()
    run.ok("draft", "bad")
    assert run.running == ["draft@2"]
    assert newest_round(run.machine.plan, run.facts, TaskId("draft")) == "draft"
    run.ok("draft@2", "good")
    assert newest_round(run.machine.plan, run.facts, TaskId("draft")) == "draft@2"
    plan = run.machine.plan
    assert resolved_inputs(plan, run.facts, plan.tasks[TaskId("end")]) == {"value": "good"}


def test_a_task_that_does_not_wait_for_the_rounds_sees_none_of_them() -> None:
    flow = Workflow("w", schedule="ready")
    flow.add("draft", nothing)
    flow.add("loop", repeat={"tasks": ["draft"], "until": "tasks.draft.output == 'good'", "max": 3})
    flow.add("slow", nothing)
    flow.add("beside", take, inputs={"value": "${{ tasks.draft.output }}"}, needs=["slow"])
    run = Run(flow).begin()
    run.ok("draft", "bad")
    run.ok("draft@2", "good")
    run.ok("slow")  # had it ended before, nothing would be different
    plan = run.machine.plan
    assert resolved_inputs(plan, run.facts, plan.tasks[TaskId("beside")]) == {"value": "bad"}


def test_a_task_of_a_repeat_refers_back_to_the_round_before() -> None:
    flow = Workflow("w")
    feedback = "${{ tasks.review.output.feedback || 'none yet' }}"
    flow.add("draft", take, inputs={"value": [feedback, "${{ tasks.draft.output || 'first' }}"]})
    flow.add("review", take, inputs={"value": "${{ tasks.draft.output }}"})
    flow.add("loop", repeat={"tasks": ["draft", "review"], "until": "tasks.review.output.ok", "max": 3})
    run = Run(flow).begin()

    def given(task_id: str) -> object:
        plan = run.machine.plan
        return resolved_inputs(plan, run.facts, plan.tasks[TaskId(task_id)])["value"]

    assert run.machine.plan.layers == (("draft",), ("review",), ("loop",))
    assert given("draft") == ["none yet", "first"]
    run.ok("draft", "a")
    run.ok("review", {"ok": False, "feedback": "shorter"})
    assert given("draft@2") == ["shorter", "a"]
    run.ok("draft@2", "b")
    run.ok("review@2", {"ok": False, "feedback": "funnier"})
    assert given("draft@3") == ["funnier", "b"]
    assert given("review@3") == "b"
    run.ok("draft@3", "c")
    assert given("review@3") == "c"
    assert run.ok("review@3", {"ok": True})[-1] == "workflow_complete"


def test_what_is_not_there_yet_is_missing_and_not_null() -> None:
    flow = Workflow("w")
    flow.add("draft", take, inputs={"value": "${{ tasks.review.output || 'nothing' }}"})
    flow.add("review", take, inputs={"value": "${{ tasks.draft.output }}"})
    flow.add("loop", repeat={"tasks": ["draft", "review"], "until": "true", "max": 2})
    run = Run(flow).begin()
    plan = run.machine.plan
    assert resolved_inputs(plan, run.facts, plan.tasks[TaskId("draft")]) == {"value": "nothing"}
