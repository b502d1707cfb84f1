"""Hints for every task of a plan, with the sources of Python functions looked up. Nothing is imported for it."""

from __future__ import annotations

from pathlib import Path

from agentos.dag.define.code import source_text
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.hints import Hints, hint_line, hints_of, retry_line
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.ids import TaskId
from agentos.workflow.define.python_tasks import source_of_call


def hints_by_task(flow: Workflow, plan: Plan, root: Path) -> dict[TaskId, Hints]:
    """What each task's own text tells, for those where it tells something; in plan order."""
    sources: dict[str, str] = {}

    def source(task: PlannedTask) -> str:
        if function := flow.functions.get(task.id):
            return source_text(function)
        call = task.definition.call
        if call and call not in sources:  # tasks often share one
            sources[call] = source_of_call(call, root)
        return sources.get(call, "")

    tasks = (plan.tasks[task_id] for layer in plan.layers for task_id in layer)
    found = ((task.id, hints_of(task.definition, source(task))) for task in tasks)
    return {task_id: hints for task_id, hints in found if any(hints)}


def hint_lines(flow: Workflow, plan: Plan, root: Path) -> list[str]:
    """What `check` says of tasks that should not run twice: at most one line for each."""
    hints = hints_by_task(flow, plan, root)
    lines = [hint_line(plan.tasks[task_id].definition, found) for task_id, found in hints.items()]
    lines += [retry_line(plan.tasks[task_id].definition) for layer in plan.layers for task_id in layer]
    return [line for line in lines if line]
