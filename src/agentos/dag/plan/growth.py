"""Plans that grow: tasks that come, change or go while a run is under way.

Each function gives a new plan that shares what did not change with the old one, which stays as it was.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from agentos.dag.define.task import TaskDef, to_stored
from agentos.dag.language.references import resolve
from agentos.dag.plan.checks import changes_files, id_problem, key_template, references_of, together_problems
from agentos.dag.plan.findings import Finding, format_names
from agentos.dag.plan.fingerprint import changed_fingerprint
from agentos.dag.plan.links import (
    Parameters,
    check_definition,
    group_of,
    link_definition,
    round_before,
    take_parameters,
)
from agentos.dag.plan.plan import Origin, Plan, PlannedTask, cycle_findings, layer_tasks, overlap_warnings, plan_task
from agentos.exceptions import EvaluationError, WorkflowDefinitionError
from agentos.ids import TaskId


def with_tasks(
    plan: Plan, definitions: Iterable[TaskDef], *, origin: Origin, parent: TaskId | None = None, min_layer: int = 0
) -> Plan:
    """The plan with more tasks, checked like those of a workflow. WorkflowDefinitionError tells what does not fit.

    Where one changes files, a plan whose schedule was chosen goes by layers from there on.

    They may need each other and any task of the plan. Each comes one layer below its needs and not above `min_layer`;
    tasks that waited for one of them (`without_tasks` with `replaced`) move down behind it. Items of a fan-out
    (`parent`) share its layer and follow it. The cost follows the new tasks and the layers they come to, not the size
    of the plan.
    """
    new = list(definitions)
    findings = list(_id_findings(plan, new))
    if plan.settings.schedule_chosen and plan.settings.schedule == "ready" and any(map(changes_files, new)):
        by_layers = msgspec.structs.replace(plan.settings, schedule="layers")
        plan = msgspec.structs.replace(plan, settings=by_layers)
    if origin == "for_each" and parent is not None:
        _raise(plan, findings)
        above = plan.tasks[parent]
        return _add_tasks(
            plan,
            [
                plan_task(definition, above.layer, f"{above.place}.{index:06d}", origin, parent)
                for index, definition in enumerate(new)
            ],
        )
    places = {definition.id: f"{plan.next_place + index:06d}" for index, definition in enumerate(new)}
    linked = _link_definitions(plan, new, parent, places, findings)
    waiting = _waiting_for(plan, linked)
    layers = _assign_layers(plan, {**linked, **{task.id: task.definition for task in waiting}}, min_layer, findings)
    _raise(plan, findings)
    moved = [task for task in waiting if layers[task.id] != task.layer]
    down = [msgspec.structs.replace(task, layer=layers[task.id]) for task in moved]
    fresh = [
        # A round grew out of the task it repeats.
        plan_task(task, layers[i], places[i], origin, TaskId(i.rpartition("@")[0]) if origin == "repeat" else parent)
        for i, task in linked.items()
    ]
    return _add_tasks(_remove_tasks(plan, moved), [*down, *fresh])


def with_definition(plan: Plan, task_id: TaskId, definition: TaskDef) -> Plan:
    """The plan with a task defined anew. It keeps its layer, so whatever it newly needs must lie in a layer above."""
    old = plan.tasks[task_id]
    findings: list[Finding] = []
    if definition.id != task_id:
        findings.append(Finding(problem="bad id", task_id=task_id, message=f"it cannot become {definition.id!r}"))
        _raise(plan, findings)
    linked = _link_definitions(plan, [definition], old.parent, {}, findings)[task_id]
    if later := [need for need in linked.needs if plan.tasks[need].layer >= old.layer]:
        message = f"it would have to wait for {format_names(later)}, not planned before it: replan it instead"
        findings.append(Finding(problem="bad reference", task_id=task_id, message=message))
    _raise(plan, findings)
    return _add_tasks(_remove_tasks(plan, [old]), [plan_task(linked, old.layer, old.place, old.origin, old.parent)])


def without_tasks(plan: Plan, task_ids: Iterable[TaskId], *, replaced: Iterable[TaskId] = ()) -> Plan:
    """The plan without these tasks and what grew out of them. The others keep their layers, even where one empties.

    WorkflowDefinitionError where one that stays needs one that goes, unless `replaced` says that it comes back at once.
    """
    gone, back = dict.fromkeys(task_ids), set(replaced)
    findings = [
        Finding(problem="bad id", task_id=task_id, message="there is no such task")
        for task_id in gone
        if task_id not in plan.tasks
    ]
    for task in sorted(plan.tasks.values(), key=lambda task: (task.place.count("."), task.place)):
        if task.parent in gone:
            gone[task.id] = None
    findings += [
        Finding(problem="unknown need", task_id=needing, message=f"it needs {task_id!r}, which would be removed")
        for task_id in gone
        if task_id not in back
        for needing in plan.dependants.get(task_id, ())
        if needing not in gone
    ]
    _raise(plan, findings)
    return _remove_tasks(plan, [plan.tasks[task_id] for task_id in gone])


def round_tasks(plan: Plan, task_id: TaskId, number: int) -> list[TaskDef]:
    """The tasks of a `repeat` for another round: `id@number`, behind all of the round before. The first round is 1."""
    repeat = plan.tasks[task_id].definition.repeat
    if repeat is None:
        raise ValueError(f"task {task_id!r} has no repeat")
    group = set(repeat.tasks)
    before = tuple(TaskId(f"{name}@{number - 1}" if number > 2 else name) for name in repeat.tasks)
    tasks = []
    for name in repeat.tasks:
        definition = plan.tasks[TaskId(name)].definition
        needs = tuple(TaskId(f"{need}@{number}") if need in group else need for need in definition.needs)
        tasks.append(msgspec.structs.replace(definition, id=TaskId(f"{name}@{number}"), needs=needs + before))
    return tasks


def item_tasks(
    plan: Plan,
    parent_id: TaskId,
    items: Sequence[Any],
    scope: Mapping[str, Any] | None = None,
    *,
    keys: Sequence[TaskId] | None = None,
) -> list[TaskDef]:
    """A task `id[key]` for each item, in order. EvaluationError where keys are missing, alike or no text.

    What is settled once for all items stays with the task itself: its `if`, its `approve`, and the fan-out. References
    to the item stay references, so that no item can be mistaken for one. `keys` gives the ids where they were settled
    before.
    """
    definition = plan.tasks[parent_id].definition
    ids = keys if keys is not None else [f"{parent_id}[{key}]" for key in item_keys(definition, items, scope or {})]
    base = msgspec.structs.replace(definition, for_each=None, approve=None, condition="")
    return [
        msgspec.structs.replace(base, id=TaskId(task_id), item=to_stored(item))
        for task_id, item in zip(ids, items, strict=True)
    ]


def item_keys(definition: TaskDef, items: Sequence[Any], scope: Mapping[str, Any]) -> list[str]:
    """The key of each item: its index, or what `key` makes of it."""
    for_each = definition.for_each
    if for_each is None:
        raise ValueError(f"task {definition.id!r} has no for_each")
    if for_each.key is None:
        return [str(index) for index in range(len(items))]
    template = key_template(for_each)
    seen: dict[str, int] = {}
    for index, item in enumerate(items):
        value = resolve(template, {**scope, for_each.as_: item})
        if not (isinstance(value, str) and value) and (not isinstance(value, int) or isinstance(value, bool)):
            raise EvaluationError(f"for_each: the key of item {index} is {value!r}, not a text or a whole number")
        key = str(value)
        if problem := id_problem(f"{definition.id}[{key}]"):
            raise EvaluationError(f"for_each: the key of item {index} makes no good id: {problem}")
        if key in seen:
            raise EvaluationError(
                f"for_each: items {seen[key]} and {index} have the same key {key!r}",
                next_step="Choose a `key` that tells the items apart, or leave it out to count them.",
            )
        seen[key] = index
    return list(seen)


# --- checking -----------------------------------------------------------------------------------------------------


def _raise(plan: Plan, findings: Sequence[Finding]) -> None:
    if findings:
        raise WorkflowDefinitionError(tuple(findings), name=plan.name)


def _id_findings(plan: Plan, definitions: Iterable[TaskDef]) -> Iterator[Finding]:
    seen: set[TaskId] = set()
    for definition in definitions:
        if problem := id_problem(definition.id):
            yield Finding(problem="bad id", task_id=str(definition.id), message=problem)
        if definition.id in plan.tasks or definition.id in seen:
            yield Finding(problem="duplicate id", task_id=definition.id, message="another task has this id")
        seen.add(definition.id)


def _link_definitions(
    plan: Plan,
    definitions: Iterable[TaskDef],
    parent: TaskId | None,
    places: Mapping[TaskId, str],
    findings: list[Finding],
) -> dict[TaskId, TaskDef]:
    """The definitions with every need, implied ones too, by plan order."""
    order = _Order(plan, places)
    parameters = Parameters(plan.params, (), {})
    for_each = plan.tasks[parent].definition.for_each if parent is not None else None
    linked: dict[TaskId, TaskDef] = {}
    new = [(definition, references_of(definition, definition.inputs, findings)) for definition in definitions]
    repeats = []
    # Only looked for where a reference may mean the round before, and groups where a new task has one.
    if any(not reference.required for _, references in new for _, reference in references):
        every = (*(task.definition for task in plan.tasks.values()), *(definition for definition, _ in new))
        repeats = [definition.repeat for definition in every if definition.repeat is not None]
    groups: dict[str, int] = {}
    if any(definition.concurrency is not None for definition, _ in new):
        known = (task.definition.concurrency for task in plan.tasks.values())
        groups = {group.group: group.slots for group in known if group is not None}
    for definition, references in new:
        own = definition.for_each or for_each
        before = round_before(definition.id, repeats)
        check_definition(definition, references, own.as_ if own is not None else None, order, findings, before)
        take_parameters(definition.id, references, parameters)
        named = [*definition.needs, *group_of(definition)]
        needs = link_definition(definition, named, references, order, findings, before)
        linked[definition.id] = msgspec.structs.replace(definition, needs=needs)
    findings += parameters.findings()
    findings += together_problems(linked.values(), plan.settings.schedule, groups)
    return linked


class _Order(Mapping[str, str]):
    """The place of each task, old and new; looked up, never copied."""

    def __init__(self, plan: Plan, places: Mapping[TaskId, str]) -> None:
        self._plan, self._places = plan, places

    def __getitem__(self, task_id: str) -> str:
        place = self._places.get(TaskId(task_id))
        return self._plan.tasks[TaskId(task_id)].place if place is None else place

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._places or task_id in self._plan.tasks

    def __iter__(self) -> Iterator[str]:
        yield from self._plan.tasks
        yield from self._places

    def __len__(self) -> int:
        return len(self._plan.tasks) + len(self._places)


def _waiting_for(plan: Plan, new: Mapping[TaskId, TaskDef]) -> list[PlannedTask]:
    """Tasks of the plan that need a new one, directly or not: new ones may come back in place of old ones."""
    found: dict[TaskId, PlannedTask] = {}
    ahead = [task_id for task_id in new if task_id in plan.dependants]
    while ahead:
        for needing in plan.dependants.get(ahead.pop(), ()):
            if needing not in found and needing not in new:
                found[needing] = plan.tasks[needing]
                ahead.append(needing)
    return list(found.values())


def _assign_layers(
    plan: Plan, definitions: Mapping[TaskId, TaskDef], min_layer: int, findings: list[Finding]
) -> dict[TaskId, int]:
    known = {
        need: plan.tasks[need].layer
        for definition in definitions.values()
        for need in definition.needs
        if need in plan.tasks and need not in definitions
    }
    lowest = {task_id: plan.tasks[task_id].layer if task_id in plan.tasks else min_layer for task_id in definitions}
    layers = layer_tasks(definitions, known, lowest)
    if len(layers) < len(definitions):
        findings += cycle_findings({task_id: definitions[task_id] for task_id in definitions if task_id not in layers})
    return layers


# --- joining and parting ------------------------------------------------------------------------------------------


def _add_tasks(plan: Plan, tasks: Sequence[PlannedTask]) -> Plan:
    """The plan with these tasks, which fit it."""
    by_layer: dict[int, list[PlannedTask]] = {}
    dependants: dict[TaskId, list[TaskId]] = {}
    all_tasks = plan.tasks.mutate()
    for task in tasks:
        all_tasks[task.id] = task
        by_layer.setdefault(task.layer, []).append(task)
        for need in task.definition.needs:
            dependants.setdefault(need, []).append(task.id)
    joined = all_tasks.finish()
    all_dependants = plan.dependants.mutate()
    for need, needing in dependants.items():
        all_dependants[need] = (*all_dependants.get(need, ()), *needing)
    depending = all_dependants.finish()
    layers = list(plan.layers)
    layers += [()] * (max(by_layer, default=-1) + 1 - len(layers))
    for layer, more in by_layer.items():
        layers[layer] = _merge_layer(layers[layer], more, joined)
    roots = [int(task.place) for task in tasks if "." not in task.place]
    grown = msgspec.structs.replace(
        plan,
        tasks=joined,
        dependants=depending,
        layers=tuple(layers),
        fingerprint=changed_fingerprint(plan.fingerprint, added=((task.id, task.fingerprint) for task in tasks)),
        next_place=max([plan.next_place, *(place + 1 for place in roots)]),
    )
    return _refresh_warnings(grown, {task.layer for task in tasks if changes_files(task.definition)})


def _merge_layer(
    layer: tuple[TaskId, ...], more: Sequence[PlannedTask], tasks: Mapping[TaskId, PlannedTask]
) -> tuple[TaskId, ...]:
    """The layer with more tasks, in plan order."""

    def place(task_id: TaskId) -> str:
        return tasks[task_id].place

    more = sorted(more, key=lambda task: task.place)
    at = bisect_left(layer, more[0].place, key=place)
    if at == len(layer) or more[-1].place < place(layer[at]):
        # They follow each other, as items and injected tasks do: no need to look at the rest of the layer.
        return (*layer[:at], *(task.id for task in more), *layer[at:])
    return tuple(sorted((*layer, *(task.id for task in more)), key=place))


def _remove_tasks(plan: Plan, tasks: Sequence[PlannedTask]) -> Plan:
    """The plan without these tasks; whoever needs them still says so."""
    if not tasks:
        return plan
    gone = {task.id for task in tasks}
    needs = {need for task in tasks for need in task.definition.needs}
    all_tasks = plan.tasks.mutate()
    for task_id in gone:
        del all_tasks[task_id]
    left = all_tasks.finish()
    all_dependants = plan.dependants.mutate()
    for task_id in needs | gone:
        needing = tuple(name for name in all_dependants.pop(task_id, ()) if name not in gone)
        if needing:
            all_dependants[task_id] = needing
    depending = all_dependants.finish()
    layers = list(plan.layers)
    for layer in {task.layer for task in tasks}:
        layers[layer] = tuple(task_id for task_id in layers[layer] if task_id not in gone)
    while layers and not layers[-1]:
        layers.pop()
    parted = msgspec.structs.replace(
        plan,
        tasks=left,
        dependants=depending,
        layers=tuple(layers),
        fingerprint=changed_fingerprint(plan.fingerprint, removed=((task.id, task.fingerprint) for task in tasks)),
    )
    return _refresh_warnings(parted, {task.layer for task in tasks if changes_files(task.definition)})


def _refresh_warnings(plan: Plan, touched: set[int]) -> Plan:
    """The plan with the warnings of these layers made anew."""
    if not touched:
        return plan
    begins = tuple(f"layer {layer + 1}: " for layer in touched)
    warnings = [warning for warning in plan.warnings if not warning.startswith(begins)]
    for layer in sorted(touched):
        if layer < len(plan.layers):
            tasks = [plan.tasks[task_id].definition for task_id in plan.layers[layer]]
            warnings += overlap_warnings(layer, tasks, plan.settings.max_concurrency)
    warnings.sort(key=lambda warning: int(warning.removeprefix("layer ").partition(":")[0]))
    return msgspec.structs.replace(plan, warnings=tuple(warnings))
