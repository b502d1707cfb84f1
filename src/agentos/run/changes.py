"""Changes a run made to its plan, applied again: on load, and on top of a workflow that was edited meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from agentos.dag.growth import item_tasks, with_definition, with_tasks, without_tasks
from agentos.dag.plan import Plan
from agentos.exceptions import WorkflowDefinitionError
from agentos.run.events import PlanChanged
from agentos.values import decode_value


def apply_change(plan: Plan, change: PlanChanged) -> Plan:
    """The plan with one change. WorkflowDefinitionError where it does not fit."""
    if change.origin == "for_each" and change.parent is not None:
        if plan.tasks[change.parent].definition.for_each is None:
            raise KeyError(f"{change.parent} is no fan-out any more")
        items = decode_value(change.items)
        grown = item_tasks(plan, change.parent, items, keys=change.children)
        return with_tasks(plan, grown, origin="for_each", parent=change.parent, min_layer=change.min_layer)
    if change.origin == "repeat":
        moved = tuple(definition.id for definition in change.changed)
        plan = without_tasks(plan, moved, replaced=moved)
        plan = with_tasks(plan, change.added, origin="repeat", min_layer=change.min_layer)
        return with_tasks(plan, change.changed, origin="replan", min_layer=change.min_layer)
    if change.removed:
        kept = {definition.id for definition in change.added}
        plan = without_tasks(plan, change.removed, replaced=kept)
    for definition in change.changed:
        plan = with_definition(plan, definition.id, definition)
    if change.added:
        origin: Literal["replan", "inject"] = "replan" if change.origin == "replan" else "inject"
        plan = with_tasks(plan, change.added, origin=origin, min_layer=change.min_layer)
    return plan


def current_plan(base: Plan, changes: Iterable[PlanChanged]) -> tuple[Plan, list[str]]:
    """The base plan with every change of the run on top, and what no longer fits an edited base."""
    problems: list[str] = []
    for change in changes:
        try:
            base = apply_change(base, change)
        except (WorkflowDefinitionError, KeyError) as error:
            what = change.parent or ", ".join(task.id for task in (*change.added, *change.changed)) or "a removal"
            problems.append(f"{change.origin} of {what} no longer fits the workflow: {error}")
    return base, problems
