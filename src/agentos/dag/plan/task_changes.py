"""Single settings and arguments of planned tasks, set to other values: `lint.timeout_s`, `notes.inputs.title`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from agentos.dag.define.readers import BadSetting, refuse_half_characters, work_part
from agentos.dag.define.settings import SETTINGS, WORK, known_settings
from agentos.dag.define.task import TaskDef, to_stored
from agentos.dag.plan.findings import Finding, nearest
from agentos.dag.plan.growth import with_definition
from agentos.dag.plan.plan import Plan
from agentos.exceptions import ValueEncodingError, WorkflowDefinitionError
from agentos.ids import TaskId

_SHAPE = ("needs", "for_each", "as", "key", "max_failures", "repeat", "candidates", "judge")
"""What other tasks or items follow from: only the workflow itself can say it."""


def changed_definitions(plan: Plan, given: Mapping[str, Any]) -> dict[TaskId, TaskDef]:
    """The tasks named by `TASK.KEY`, defined with these values. WorkflowDefinitionError holds all that is wrong.

    KEY is an argument of the task (`inputs.NAME`, or its bare name), a variable (`env.NAME`) or a setting.
    """
    changed: dict[TaskId, TaskDef] = {}
    findings: list[Finding] = []
    for name, value in given.items():
        task_id, key = _split(plan, name)
        try:
            if task_id is None:
                near = nearest(name.partition(".")[0], plan.tasks)
                raise BadSetting(f"{name!r} names no task and setting of it, TASK.KEY{near}")
            if plan.tasks[task_id].origin in ("for_each", "repeat"):
                raise BadSetting(f"{task_id!r} follows from {plan.tasks[task_id].parent!r}: set it there")
            definition = changed.get(task_id, plan.tasks[task_id].definition)
            changed[task_id] = _changed_definition(definition, key, value)
        except (BadSetting, ValueEncodingError) as error:
            findings.append(Finding(problem="bad setting", task_id=task_id or "", setting=key, message=str(error)))
    if findings:
        raise WorkflowDefinitionError(tuple(findings), name=plan.name, next_step=_SAY)
    # With the needs that new references imply, so that each reads the same wherever it is applied.
    return {task_id: with_definition(plan, task_id, one).tasks[task_id].definition for task_id, one in changed.items()}


_SAY = "Nothing was run. `agentos check FILE` shows the tasks; a key is an argument, env.NAME, or a setting."


def _split(plan: Plan, name: str) -> tuple[TaskId | None, str]:
    """The task of the longest id that the name begins with: ids may hold dots, too."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        task_id = TaskId(".".join(parts[:end]))
        if task_id in plan.tasks:
            return task_id, ".".join(parts[end:])
    return None, ""


def _changed_definition(definition: TaskDef, key: str, value: Any) -> TaskDef:
    kind, inputs = definition.kind, definition.inputs
    if key.startswith("inputs.") or key in inputs:
        return replace(definition, inputs={**inputs, key.removeprefix("inputs."): to_stored(value)})
    if key.startswith("env."):
        more = SETTINGS["env"].read("env", {key.removeprefix("env."): value})  # type: ignore[misc]
        return replace(definition, env={**definition.env, **more})
    name = WORK[key][1] if key in WORK and WORK[key][0] == kind else key
    known = [one for one in known_settings(kind) if one not in _SHAPE]
    if name in _SHAPE:
        raise BadSetting(f"{name} says which tasks there are: edit the workflow instead")
    if name not in known:
        raise BadSetting(f"it has no argument or setting {key!r}{nearest(key, [*inputs, *known])}")
    setting = SETTINGS[name]
    if setting.read is None:
        work = getattr(definition, kind)
        return replace(definition, **{kind: replace(work, **{name: work_part(kind, name, value)})})
    read = setting.read(name, value)
    refuse_half_characters(name, read)
    return replace(definition, **{setting.field or name: read})
