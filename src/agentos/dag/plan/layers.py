"""Layers: which tasks may run side by side, and the loops that keep a plan from having any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from agentos.dag.define.task import TaskDef
from agentos.dag.plan.checks import changes_files
from agentos.dag.plan.findings import Finding, format_names
from agentos.ids import TaskId

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
