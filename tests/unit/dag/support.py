"""What the tests of `agentos.dag` share: plans in one line, findings as short text, and small random workflows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import strategies as st

from agentos.dag.define.task import TaskDef
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.findings import Finding
from agentos.dag.plan.plan import Plan, compile_plan
from agentos.exceptions import WorkflowDefinitionError
from agentos.ids import TaskId


def nothing() -> None:
    """A task that does nothing."""


def flow_of(needs: Mapping[str, Iterable[str]], **settings: Any) -> Workflow:
    """A workflow of tasks that do nothing, by what each needs."""
    flow = Workflow("flow", **settings)
    for task_id, needed in needs.items():
        flow.add(task_id, nothing, needs=list(needed))
    return flow


def plan_of(needs: Mapping[str, Iterable[str]], **settings: Any) -> Plan:
    return compile_plan(flow_of(needs, **settings))


def findings_of(make: Callable[[], object]) -> list[Finding]:
    """What was found wrong."""
    with pytest.raises(WorkflowDefinitionError) as caught:
        make()
    return [finding for finding in caught.value.findings if isinstance(finding, Finding)]


def problems(flow: Workflow, params: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    """What was found wrong: problem and task."""
    return [(finding.problem, finding.task_id) for finding in findings_of(lambda: compile_plan(flow, params))]


def only_message(flow: Workflow, params: dict[str, Any] | None = None) -> str:
    """The message of the one thing that is wrong."""
    (finding,) = findings_of(lambda: compile_plan(flow, params))
    return finding.message


def task(task_id: str, *needs: str, **fields: Any) -> TaskDef:
    return TaskDef(id=TaskId(task_id), kind="python", call="m:f", needs=tuple(map(TaskId, needs)), **fields)


@st.composite
def needs_without_loops(draw: st.DrawFn, most: int = 12) -> dict[str, list[str]]:
    """Tasks by what they need, written in any order, without loops."""
    count = draw(st.integers(0, most))
    names = [f"t{index}" for index in range(count)]
    needs = {
        name: draw(st.lists(st.sampled_from(names[:index]), unique=True, max_size=4)) if index else []
        for index, name in enumerate(names)
    }
    return {name: needs[name] for name in draw(st.permutations(names))}
