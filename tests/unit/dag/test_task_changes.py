"""Single settings of tasks, set to other values."""

from __future__ import annotations

from typing import Any

import pytest

from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.plan import Plan, compile_plan
from agentos.dag.plan.task_changes import changed_definitions
from agentos.ids import TaskId
from tests.unit.dag.support import findings_of


def take(value: Any = None) -> Any:
    return value


@pytest.fixture
def plan() -> Plan:
    flow = Workflow("w")
    flow.add("a", take, inputs={"value": 1})
    flow.add("a.b", take, inputs={"value": 2})
    flow.add("sh", "shell", run="true", effects="none")
    flow.add("ask", "agent", agent="claude", prompt="Do it", needs=["a"])
    flow.add("each", take, for_each=[1, 2], inputs={"value": "${{ item }}"})
    return compile_plan(flow)


def changed(plan: Plan, **given: Any) -> dict[str, Any]:
    found = changed_definitions(plan, {name.replace("__", "."): value for name, value in given.items()})
    return {str(task_id): definition for task_id, definition in found.items()}


def test_an_argument_a_variable_a_setting_and_a_part_of_what_an_agent_does(plan: Plan) -> None:
    assert changed(plan, a__value=5)["a"].inputs == {"value": 5}
    assert changed(plan, a__inputs__more=5)["a"].inputs == {"value": 1, "more": 5}
    assert changed(plan, sh__env__WORD="x", sh__timeout_s=3)["sh"].env == {"WORD": "x"}
    assert changed(plan, sh__retries=2)["sh"].retry.retries == 2
    assert changed(plan, ask__prompt="Other", ask__model="small")["ask"].agent.prompt == "Other"
    assert changed(plan, sh__if="false")["sh"].condition == "false"


def test_ids_may_hold_dots_and_the_longest_counts(plan: Plan) -> None:
    assert list(changed(plan, a__b__value=5)) == ["a.b"]


def test_a_new_reference_is_a_need(plan: Plan) -> None:
    assert plan.tasks[TaskId("ask")].definition.needs == ("a",)
    assert set(changed(plan, ask__prompt="${{ tasks.sh.output }}")["ask"].needs) == {"a", "sh"}


def test_everything_wrong_is_told_at_once_with_the_nearest(plan: Plan) -> None:
    found = findings_of(lambda: changed(plan, ask__promt="x", sh__timeout_s="soon", shh__run="x", sh__needs="a"))
    messages = [finding.message for finding in found]
    assert len(messages) == 4
    assert "did you mean 'prompt'?" in messages[0]
    assert "timeout_s" in messages[1]
    assert "did you mean 'sh'?" in messages[2]
    assert "edit the workflow" in messages[3]
