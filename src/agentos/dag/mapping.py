"""Tasks in the mapping form of workflow files: what YAML holds and the commands inject_tasks and replan_dag carry.

    {"needs": "lint", "python": "mypkg.notes:write", "inputs": {"log": "${{ tasks.lint.output.stdout }}"}}

One key says what the task does: `run` (a script or a list of words), `python` ("module:function"), `agent` or `llm` (a
name, with `prompt`), `approval` (a question). A task that has only a `repeat` needs none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentos.dag.checks import id_problem
from agentos.dag.findings import Finding, nearest
from agentos.dag.settings import default_effects, draft, known_settings
from agentos.dag.task import Approve, Retry, TaskDef
from agentos.exceptions import WorkflowDefinitionError
from agentos.ids import TaskId

WORK = {
    "run": ("shell", "run"),
    "python": ("python", "call"),
    "agent": ("agent", "call"),
    "llm": ("llm", "call"),
    "approval": ("approval", "question"),
}
"""For each key that says what a task does: its kind, and the setting that holds it."""
_IDEMPOTENT: dict[str, Any] = {"yes": True, "keyed": "keyed"}
_PLAIN = ("env", "cwd", "timeout_s", "continue_on_error", "isolation", "output", "description")


def task_from_mapping(task_id: str, mapping: Mapping[str, Any]) -> TaskDef:
    """The task. WorkflowDefinitionError holds everything that is wrong with its shape.

    What it refers to is not looked at: `with_tasks` and `compile_plan` do that.
    """
    definition, findings = read_mapping(task_id, mapping)
    if findings:
        raise WorkflowDefinitionError(tuple(findings), name=str(task_id))
    return definition


def tasks_from_mappings(mappings: Mapping[str, Mapping[str, Any]], *, name: str = "tasks") -> list[TaskDef]:
    """Tasks by id. WorkflowDefinitionError holds the findings of all of them."""
    read = [read_mapping(task_id, mapping) for task_id, mapping in mappings.items()]
    findings = tuple(finding for _, found in read for finding in found)
    if findings:
        raise WorkflowDefinitionError(findings, name=name)
    return [definition for definition, _ in read]


def read_mapping(task_id: str, mapping: Any) -> tuple[TaskDef, list[Finding]]:
    """The task as far as it can be read, and what is wrong with it."""

    def stand_in(problem: Any, message: str) -> tuple[TaskDef, list[Finding]]:
        finding = Finding(problem=problem, task_id=str(task_id), message=message)
        return TaskDef(id=TaskId(str(task_id)), kind="python"), [finding]

    if problem := id_problem(task_id):
        return stand_in("bad id", problem)
    if not isinstance(mapping, Mapping):
        return stand_in("bad setting", f"a task is a map of settings, not {mapping!r}")
    work = [key for key in WORK if key in mapping]
    if len(work) > 1:
        return stand_in("bad setting", f"{' and '.join(work)}: a task does one of them")
    if not work and "repeat" not in mapping:
        return stand_in("bad setting", f"nothing says what it does: give one of {', '.join(WORK)}{_meant(mapping)}")
    kind, setting = WORK[work[0]] if work else ("python", "")
    settings = {
        setting if key in work else key: value for key, value in mapping.items() if key != setting or key in work
    }
    made = draft(task_id, kind, settings)
    for key in mapping.keys() & {
        "call",
        "question",
        "if_",
        "as_",
    }:  # Python's spelling of what a mapping says otherwise
        message = f"unknown setting {key!r}{nearest(key, [*WORK, *known_settings(kind)])}"
        made.findings.append(Finding(problem="bad setting", task_id=task_id, message=message))
    strangers = [need for need in made.needs if not isinstance(need, str)]
    if strangers:
        made.findings.append(Finding(problem="bad setting", task_id=task_id, message="needs takes ids"))
    needs = tuple(TaskId(need) for need in made.needs if isinstance(need, str))
    return TaskDef(id=TaskId(task_id), needs=needs, **made.fields), made.findings


def _meant(mapping: Mapping[str, Any]) -> str:
    known = known_settings("python")
    return next((hint for key in mapping if key not in known and (hint := nearest(str(key), list(WORK)))), "")


def task_to_mapping(definition: TaskDef) -> dict[str, Any]:
    """The task in mapping form, without what is default. Its `code` is not part of that form."""
    mapping: dict[str, Any] = {"needs": list(definition.needs)} if definition.needs else {}
    mapping |= _work(definition)
    mapping |= {name: getattr(definition, name) for name in _PLAIN if getattr(definition, name)}
    mapping |= {name: list(values) for name in ("effects", "produces") if (values := getattr(definition, name))}
    if tuple(definition.effects) == default_effects(definition.kind):
        mapping.pop("effects", None)
    if definition.idempotent in _IDEMPOTENT:
        mapping["idempotent"] = _IDEMPOTENT[definition.idempotent]
    if definition.condition:
        mapping["if"] = definition.condition
    if definition.retry != Retry():
        mapping["retries"] = msgspec.to_builtins(definition.retry)
    for name in ("concurrency", "for_each", "repeat"):
        if (struct := getattr(definition, name)) is not None:
            mapping[name] = msgspec.to_builtins(struct)
    if definition.approve is not None and definition.kind != "approval":
        mapping["approve"] = _question(definition.approve)
    return mapping


def _work(definition: TaskDef) -> dict[str, Any]:
    inputs = {"inputs": dict(definition.inputs)} if definition.inputs else {}
    if definition.kind == "shell":
        run = definition.run
        return {"run": run if isinstance(run, str) else list(run)} | inputs
    if definition.kind == "approval":
        return {"approval": _question(definition.approve) if definition.approve is not None else ""} | inputs
    if definition.kind == "python" and definition.repeat is not None and not definition.call:
        return inputs
    return {definition.kind: definition.call} | inputs


def _question(approve: Approve) -> Any:
    plain = approve == Approve(question=approve.question)
    return approve.question if plain else msgspec.to_builtins(approve)
