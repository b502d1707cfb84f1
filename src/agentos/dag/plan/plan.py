"""A plan: the workflow compiled. Checked, layered (which tasks may run side by side, and the loops that keep a
plan from having layers), and with a fingerprint for each task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from agentos.dag.define.run_settings import PlanSettings, Schedule, read_parameters, read_settings
from agentos.dag.define.task import TaskDef
from agentos.dag.language.references import references_in
from agentos.dag.plan.checks import changes_files, item_id_problems, together_problems, undeclared_secrets
from agentos.dag.plan.findings import Finding, format_names, locate_findings
from agentos.dag.plan.fingerprint import plan_fingerprint, task_fingerprint
from agentos.dag.plan.links import link_workflow, stored_parameters, take_parameters
from agentos.dag.plan.selection import EVERY_TASK, Selection, select_tasks
from agentos.exceptions import ExpressionError, WorkflowDefinitionError
from agentos.ids import TaskId
from agentos.persistent_map import PersistentMap

if TYPE_CHECKING:
    from agentos.dag.define.workflow import Workflow

_MAX_CYCLES = 20


def layer_tasks(
    definitions: Mapping[TaskId, TaskDef],
    known: Mapping[TaskId, int] | None = None,
    lowest: Mapping[TaskId, int] | None = None,
) -> dict[TaskId, int]:
    """The layer of each task that is in no loop.

    Layer k holds every task whose needs lie in layers below k, one of them in k - 1. `known` gives the layers of needs
    that are not among the tasks, `lowest` a layer that a task must not come before.
    """
    known, lowest = known or {}, lowest or {}
    layers: dict[TaskId, int] = {}
    dependants: dict[TaskId, list[TaskId]] = {}
    waiting: dict[TaskId, int] = {}
    ready: list[TaskId] = []
    for task_id, definition in definitions.items():
        missing = 0
        for need in definition.needs:
            if need in definitions:
                missing += 1
                dependants.setdefault(need, []).append(task_id)
        if missing:
            waiting[task_id] = missing
        else:
            ready.append(task_id)
    for task_id in ready:  # grows while it is walked
        layer = lowest.get(task_id, 0)
        for need in definitions[task_id].needs:
            above = layers[need] if need in layers else known[need]
            if above >= layer:
                layer = above + 1
        layers[task_id] = layer
        for dependant in dependants.get(task_id, ()):
            waiting[dependant] -= 1
            if not waiting[dependant]:
                ready.append(dependant)
    return layers


def cycle_findings(definitions: Mapping[TaskId, TaskDef]) -> list[Finding]:
    """A finding for each task that needs itself and for each loop, with its path; every loop once."""
    findings = [
        Finding(problem="self-loop", task_id=task_id, setting="needs", message="it needs itself")
        for task_id, definition in definitions.items()
        if task_id in definition.needs
    ]
    place = {task_id: index for index, task_id in enumerate(definitions)}
    groups = [set(task.repeat.tasks) for task in definitions.values() if task.repeat is not None]
    for loop in islice(_loops(definitions), _MAX_CYCLES):
        start = loop.index(min(loop, key=place.__getitem__))
        path = (*loop[start:], *loop[:start])
        shown: tuple[str, ...] = path
        if len(path) > 20:
            shown = (*path[:10], f"… {len(path) - 20} more …", *path[-10:])
        message = f"{' -> '.join((*shown, path[0]))} (each needs the next)"
        if any(group.issuperset(path) for group in groups):  # the loop may be meant: a `repeat` has rounds
            message += (
                ": an earlier task of a repeat refers to the round before with a default, as in ${{ x.y || 'text' }}"
            )
        findings.append(Finding(problem="cycle", task_id=path[0], setting="needs", message=message))
    return findings


def _loops(definitions: Mapping[TaskId, TaskDef]) -> Iterator[list[TaskId]]:
    """The loops of two tasks or more that a walk along the needs closes, one for each need that leads back.

    Walked without recursion: a chain may be thousands of tasks long.
    """
    done: set[TaskId] = set()
    for start in definitions:
        if start in done:
            continue
        path, where = [start], {start: 0}
        ahead = [iter(definitions[start].needs)]
        while path:
            need = next(ahead[-1], None)
            if need is None:
                ahead.pop()
                finished = path.pop()
                del where[finished]
                done.add(finished)
            elif need in where:
                if need != path[-1]:
                    yield path[where[need] :]
            elif need in definitions and need not in done:
                where[need] = len(path)
                path.append(need)
                ahead.append(iter(definitions[need].needs))


def overlap_warnings(layer: int, tasks: Sequence[TaskDef], max_concurrency: int) -> tuple[str, ...]:
    """What to know of tasks that change files of one worktree side by side; empty where none do."""
    writers = [task for task in tasks if changes_files(task)]
    fanned_out = any(task.for_each is not None for task in writers)
    groups = {task.concurrency for task in writers}
    one_at_a_time = len(groups) == 1 and all(group is not None and group.slots == 1 for group in groups)
    if max_concurrency == 1 or (len(writers) < 2 and not fanned_out) or one_at_a_time:
        return ()
    names = format_names(task.id for task in writers)
    items = " (or its items)" if len(writers) == 1 else ""
    warnings = [
        f"layer {layer + 1}: {names}{items} may change files at the same time: if the run is killed meanwhile, those "
        "that overlapped are repeated. isolation 'worktree' avoids it"
    ]
    if retried := [task.id for task in writers if task.retry.retries]:
        warnings.append(
            f"layer {layer + 1}: edits of a failed attempt are not undone before it is retried: {format_names(retried)}"
        )
    return tuple(warnings)


__all__ = [
    "Origin",
    "Plan",
    "PlanSettings",
    "PlannedTask",
    "assemble_plan",
    "compile_plan",
    "default_parameters",
    "fitting_schedule",
    "plan_task",
    "with_schedule_of",
]

Origin = Literal["", "for_each", "repeat", "inject", "replan"]


class PlannedTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A task with its place in the plan."""

    definition: TaskDef
    layer: int
    place: str
    """Sorts tasks within a layer by their place in the plan: `000003`, and `000003.000001` for what grew out of it."""
    fingerprint: str
    """`1:<hex>`: version of the algorithm, and what the task does (definition and code, nothing cosmetic)."""
    origin: Origin = ""
    """How a task that was not in the workflow as written came to be."""
    parent: TaskId | None = None
    """The task it grew out of, for `for_each` items and rounds."""
    item: Any = msgspec.UNSET
    """for_each: the item, in stored form."""

    @property
    def id(self) -> TaskId:
        return self.definition.id


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """An immutable plan. Growing it (`with_tasks`) makes a new one that shares what did not change."""

    name: str
    settings: PlanSettings
    params: Mapping[str, Any]
    """Values of the run's parameters, in stored form."""
    tasks: PersistentMap[TaskId, PlannedTask]
    layers: tuple[tuple[TaskId, ...], ...]
    """Task ids by layer, each in plan order."""
    dependants: PersistentMap[TaskId, tuple[TaskId, ...]]
    """For each task, those that need it."""
    fingerprint: str
    """Of the whole: name, settings that matter, and every task's fingerprint."""
    warnings: tuple[str, ...] = ()
    """What a careful reader of the plan would want to know; nothing that stops it."""
    next_place: int = 0
    """The place of the next task that is added at the end."""
    defaulted: tuple[str, ...] = ()
    """Parameters that nobody gave: they have the default that the workflow had when the run began."""
    selection: Selection = EVERY_TASK
    """Which tasks are to run; not part of what the workflow says, nor of the fingerprint."""

    def selected_tasks(self) -> frozenset[TaskId] | None:
        """The tasks selected; None: all. Costs as much as the plan is large, where there is a selection."""
        if not self.selection:
            return None
        needs = {task.id: task.definition.needs for task in self.tasks.values()}
        return select_tasks(self.selection, needs, self.dependants)


def is_left_out(task: PlannedTask, selected: frozenset[TaskId] | None) -> bool:
    """Whether the task is not to run. Items and rounds go with what they grew out of; injected tasks always run."""
    if selected is None or task.origin in ("inject", "replan"):
        return False
    return task.id not in selected and (task.origin == "" or task.parent not in selected)


# --- compiling ----------------------------------------------------------------------------------------------------


def compile_plan(flow: Workflow, params: Mapping[str, Any] | None = None, *, unknown: Iterable[str] = ()) -> Plan:
    """The plan of a run with these parameters; the `unknown` ones are null, whatever their type.

    WorkflowDefinitionError holds every problem of the workflow.
    """
    findings: list[Finding] = [*flow.findings]
    settings = read_settings(flow, findings)
    parameters = read_parameters(flow, params, findings, unknown)
    with suppress(ExpressionError):  # read_settings has told it
        take_parameters("", [("env", reference) for reference in references_in(settings.env)], parameters)
        key = settings.queue.key if settings.queue is not None else ""
        take_parameters("", [("queue", reference) for reference in references_in(key)], parameters)
    definitions = link_workflow(flow, parameters, findings)
    findings += parameters.findings(definitions)
    values = stored_parameters(parameters.values, findings)
    if settings.schedule_chosen:
        settings = replace(settings, schedule=fitting_schedule(settings, definitions.values()))
    findings += together_problems(definitions.values(), settings.schedule, {})
    findings += item_id_problems(definitions)
    findings += undeclared_secrets(settings.env, definitions.values(), settings.secrets)
    layers = layer_tasks(definitions)
    if len(layers) < len(definitions):
        findings += cycle_findings({task_id: definitions[task_id] for task_id in definitions if task_id not in layers})
    if findings:
        told = locate_findings(findings, flow.locate)
        raise WorkflowDefinitionError(told, name=flow.name, next_step=_next_step(told, parameters.known))
    planned = [
        plan_task(definition, layers[task_id], f"{index:06d}")
        for index, (task_id, definition) in enumerate(definitions.items())
    ]
    defaulted = tuple(name for name in values if name not in parameters.given)
    return assemble_plan(flow.name, settings, values, planned, defaulted)


def _next_step(findings: Iterable[Finding], known: Iterable[str]) -> str:
    """What to do where nothing is wrong with the workflow, only with the parameters that were given."""
    found = list(findings)
    if all(finding.parameter for finding in found):
        given = " ".join(f"--param {finding.parameter}=…" for finding in found)
        return f"Nothing was run; give what is missing: {given}"
    if all(finding.parameter or finding.given for finding in found):
        names = f"Its parameters: {format_names(sorted(known), 10)}" if known else "It takes no parameters"
        return f"Nothing was run. {names}; `agentos run FILE --help` describes them."
    return ""


def fitting_schedule(settings: PlanSettings, definitions: Iterable[TaskDef]) -> Schedule:
    """The schedule of a run whose workflow names none: `ready` where nothing has effects and nobody is asked between
    layers."""
    pure = all(definition.effects == ("none",) for definition in definitions)
    return "ready" if pure and settings.decision_points == "never" else "layers"


def with_schedule_of(plan: Plan, accepted: Plan) -> Plan:
    """The plan with the schedule of an earlier one of the same run, unless the workflow names its own.

    Where its tasks have effects by now it keeps to layers.
    """
    if not plan.settings.schedule_chosen or accepted.settings.schedule == "ready":
        return plan
    return replace(plan, settings=replace(plan.settings, schedule="layers"))


def plan_task(
    definition: TaskDef, layer: int, place: str, origin: Origin = "", parent: TaskId | None = None
) -> PlannedTask:
    """The task at its place, with its fingerprint."""
    return PlannedTask(
        definition=definition,
        layer=layer,
        place=place,
        fingerprint=task_fingerprint(definition),
        origin=origin,
        parent=parent,
        item=definition.item,
    )


def default_parameters(flow: Workflow) -> dict[str, Any]:
    """The defaults that the workflow declares for parameters, in stored form; problems are for `compile_plan`."""
    return stored_parameters(read_parameters(flow, None, []).values, [])


def assemble_plan(
    name: str,
    settings: PlanSettings,
    params: Mapping[str, Any],
    tasks: Iterable[PlannedTask],
    defaulted: tuple[str, ...] = (),
    selection: Selection = EVERY_TASK,
) -> Plan:
    """A plan of tasks that were planned before, in any order: what a stored plan is read back with."""
    in_order = sorted(tasks, key=lambda task: task.place)
    layers: list[list[TaskId]] = [[] for _ in range(max((task.layer for task in in_order), default=-1) + 1)]
    dependants: dict[TaskId, list[TaskId]] = {}
    for task in in_order:
        layers[task.layer].append(task.id)
        for need in task.definition.needs:
            dependants.setdefault(need, []).append(task.id)
    by_id = {task.id: task for task in in_order}
    # One that was chosen says nothing of its own: what it was chosen by counts with each task.
    schedule = "layers" if settings.schedule_chosen else settings.schedule
    about = (name, schedule, settings.decision_points, settings.env)
    return Plan(
        name=name,
        settings=settings,
        params=params,
        tasks=PersistentMap(by_id),
        layers=tuple(map(tuple, layers)),
        dependants=PersistentMap({task_id: tuple(needing) for task_id, needing in dependants.items()}),
        fingerprint=plan_fingerprint(about, ((task.id, task.fingerprint) for task in in_order)),
        warnings=tuple(
            warning
            for layer, ids in enumerate(layers)
            for warning in overlap_warnings(
                layer, [by_id[task_id].definition for task_id in ids], settings.max_concurrency
            )
        ),
        next_place=1 + max((int(task.place.partition(".")[0]) for task in in_order), default=-1),
        defaulted=defaulted,
        selection=selection,
    )
