"""Changes a run made to its plan, applied again: on load, and on top of a workflow that was edited meanwhile."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from agentos.dag.define.task import TaskDef
from agentos.dag.plan.candidates import contest_tasks
from agentos.dag.plan.growth import item_tasks, with_definition, with_tasks, without_tasks
from agentos.dag.plan.plan import Origin, Plan, PlannedTask
from agentos.exceptions import WorkflowDefinitionError
from agentos.ids import TaskId
from agentos.machine.events import NOTHING, PlanChanged
from agentos.values import decode_value


def apply_change(plan: Plan, change: PlanChanged) -> Plan:
    """The plan with one change. WorkflowDefinitionError where it does not fit."""
    if change.origin == "for_each" and change.parent is not None:
        grown = _grown_tasks(plan, change.parent, change)
        return with_tasks(plan, grown, origin="for_each", parent=change.parent, min_layer=change.min_layer)
    if change.origin == "repeat":
        return _with_round(plan, change)
    if change.removed:
        kept = {definition.id for definition in change.added}
        plan = without_tasks(plan, change.removed, replaced=kept)
    for definition in change.changed:
        plan = with_definition(plan, definition.id, definition)
    if change.added:
        origin: Origin = "replan" if change.origin == "replan" else "inject"
        next_place = plan.next_place
        plan = with_tasks(plan, change.added, origin=origin, min_layer=change.min_layer)
        if change.under:
            plan = _move_tasks(plan, _places(change.added, change.under), next_place)
    return plan


def _grown_tasks(plan: Plan, parent: TaskId, change: PlanChanged) -> list[TaskDef]:
    """What a fan-out became. KeyError where the workflow was edited, and it cannot be that any more."""
    definition = plan.tasks[parent].definition
    if definition.candidates and change.items is NOTHING:
        grown = contest_tasks(definition)
        if tuple(child.id for child in grown) != change.children:
            raise KeyError(f"{parent} has other candidates now")
        return grown
    if definition.for_each is None:
        raise KeyError(f"{parent} is no fan-out any more")
    return item_tasks(plan, parent, decode_value(change.items), keys=change.children)


def _with_round(plan: Plan, change: PlanChanged) -> Plan:
    """The plan with another round; the task that asked for it comes behind that round."""
    before = {definition.id: plan.tasks[definition.id] for definition in change.changed}
    grown = without_tasks(plan, before, replaced=before)
    grown = with_tasks(grown, change.added, origin="repeat", min_layer=change.min_layer)
    grown = with_tasks(grown, change.changed, origin="replan", min_layer=change.min_layer)
    places = _places(change.added, change.under) | {task_id: task.place for task_id, task in before.items()}
    placed = _move_tasks(grown, places, plan.next_place)
    back = {task_id: replace(placed.tasks[task_id], origin=task.origin) for task_id, task in before.items()}
    return replace(placed, tasks=placed.tasks.update(back))


def _places(added: Iterable[TaskDef], under: str) -> dict[TaskId, str]:
    return {definition.id: f"{under}.{index:06d}" for index, definition in enumerate(added)}


def _move_tasks(plan: Plan, places: Mapping[TaskId, str], next_place: int) -> Plan:
    """The plan with its newest tasks, which stand at its end, moved to these places, behind the task that asked.

    At the end they would stand in the order in which tasks finished, and no two runs need agree on that.
    """
    moved: list[PlannedTask] = [replace(plan.tasks[task_id], place=place) for task_id, place in places.items()]
    tasks = plan.tasks.update({task.id: task for task in moved})
    layers = list(plan.layers)
    for task in moved:
        layers[task.layer] = layers[task.layer][:-1]
    for task in moved:
        layer = layers[task.layer]
        at = bisect_left(layer, task.place, key=lambda one: tasks[one].place)
        layers[task.layer] = (*layer[:at], task.id, *layer[at:])
    return replace(plan, tasks=tasks, layers=tuple(layers), next_place=next_place)


def without_items(plan: Plan, items: Iterable[TaskId]) -> Plan:
    """The plan before a fan-out was expanded to these items."""
    gone = [item for item in items if item in plan.tasks]
    return without_tasks(plan, gone, replaced=gone)


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
