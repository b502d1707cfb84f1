"""Secrets of a run: which variables it asks for, what may not be written down, and what a task is given instead."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from agentos.dag.define.task import from_stored
from agentos.dag.language.references import SECRETS
from agentos.dag.plan.candidates import all_work
from agentos.dag.plan.findings import Finding
from agentos.dag.plan.plan import Plan
from agentos.exceptions import CommandRefusedError, EvaluationError, RunRefusedError, WorkflowDefinitionError
from agentos.machine.commands import Command, InjectTasks, ModifyArgs, ReplanDag, command_to_data, parse_command
from agentos.secrets import ENVIRONMENT, LOOKS_SECRET, Masker, SecretSource

_VARIABLE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")


def masker_for(plan: Plan, also: Iterable[str] = (), source: SecretSource = ENVIRONMENT) -> Masker:
    """What masks a run of this plan: the secrets it declares, those named `also`, and all that look like one."""
    work = all_work(task.definition for task in plan.tasks.values())
    keys = {task.llm.key_name for task in work if task.llm is not None} - {""}
    return Masker.for_run((*plan.settings.secrets, *also, *sorted(keys), *variables_in(plan.params)), source)


def plan_without_secrets(
    plan: Plan, given: Mapping[str, Any] | None, masker: Masker, source: SecretSource = ENVIRONMENT
) -> Plan:
    """The plan of a new run, as it may be stored. RunRefusedError where a secret is not set or would be written down.

    `given` are the parameters whoever begins the run gave. What the workflow says stands in its own file already, so
    that only the value of a declared secret is refused there; one that merely looks like a secret is warned about.
    """
    refuse_unset(plan, source)
    for name in given or ():
        found = masker.value_and_names(from_stored(plan.params[name]))[1] if name in plan.params else ()
        if found:
            raise RunRefusedError(
                f"the parameter {name!r} holds the value of {', '.join(found)}, and parameters are stored",
                next_step=f"Give the variable's name instead: {name}=env:{found[0]}",
            )
    if not masker:
        return plan
    plan, warnings = _mask_definitions(plan, masker, source)
    short = (f"the value of {name} is too short to be masked" for name in masker.too_short)
    return msgspec.structs.replace(plan, warnings=(*plan.warnings, *warnings, *short))


def refuse_unset(plan: Plan, source: SecretSource = ENVIRONMENT) -> None:
    """RunRefusedError that names every secret of the plan, and every `env:NAME` parameter, that is not set."""
    asked = dict.fromkeys((*plan.settings.secrets, *variables_in(plan.params)))
    unset = [name for name in asked if not source.get(name)]
    if unset:
        are = "is not set" if len(unset) == 1 else "are not set"
        raise RunRefusedError(
            f"the workflow needs {', '.join(unset)}, which {are} in {source.origin(unset[0])}",
            next_step=f"Nothing was run. Set it and try again: export {unset[0]}=…",
        )


def hidden_command(command: Command, masker: Masker) -> Command:
    """The command as it may be stored. CommandRefusedError where masking would change what it makes the run do."""
    masked, found = masker.value_and_names(command_to_data(command))
    if not found:
        return command
    if isinstance(command, (InjectTasks, ModifyArgs, ReplanDag)):
        raise CommandRefusedError(
            f"it holds the value of {', '.join(found)}, and commands are stored",
            next_step=f"Refer to it as ${{{{ secrets.{found[0]} }}}} in env or run, or read it inside the task.",
        )
    return parse_command(masked)


# --- what a task is given -------------------------------------------------------------------------------------------


def with_secrets(scope: Mapping[str, Any], plan: Plan, source: SecretSource) -> dict[str, Any]:
    """The scope an attempt's references are looked up in: `secrets`, and parameters that name a variable, resolved."""
    params = with_variables(scope["params"], source)
    return {**scope, "params": params, SECRETS: SecretValues(plan.settings.secrets, source)}


def _variable_in(value: object) -> str:
    """The environment variable that a parameter names as `env:NAME`; empty where it names none."""
    found = _VARIABLE.fullmatch(value) if isinstance(value, str) else None
    return found[1] if found else ""


def variables_in(value: object) -> Iterator[str]:
    """Every variable that a parameter names, anywhere inside it."""
    if isinstance(value, str):
        if variable := _variable_in(value):
            yield variable
    elif isinstance(value, (Mapping, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from variables_in(item)


def with_variables(params: Mapping[str, Any], source: SecretSource) -> Mapping[str, Any]:
    """The parameters as tasks are given them: `env:NAME` replaced. EvaluationError where a variable is not set."""
    return {name: _resolve_variables(name, value, source) for name, value in params.items()}


def _resolve_variables(name: str, value: Any, source: SecretSource) -> Any:
    if isinstance(value, dict):
        return {key: _resolve_variables(name, item, source) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve_variables(name, item, source) for item in value]
    variable = _variable_in(value)
    if not variable:
        return value
    if (found := source.get(variable)) is None:
        raise EvaluationError(
            f"the parameter {name!r} is env:{variable}, and that variable is not set",
            next_step=f"Set {variable} and resume.",
        )
    return found


class SecretValues(Mapping[str, str]):
    """The declared secrets by name. Never stored, never shown."""

    def __init__(self, names: Iterable[str], source: SecretSource) -> None:
        self._names = tuple(names)
        self._source = source

    def __getitem__(self, name: str) -> str:
        if name not in self._names:
            raise KeyError(name)
        if not (value := self._source.get(name)):
            raise EvaluationError(
                f"{name} is not set in {self._source.origin(name)}", next_step=f"Set it: export {name}=…"
            )
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


# --- what a workflow says -------------------------------------------------------------------------------------------


def _mask_definitions(plan: Plan, masker: Masker, source: SecretSource) -> tuple[Plan, list[str]]:
    """The plan with the texts that its tasks have for people masked, and warnings about other values in it."""
    findings: list[Finding] = []
    warnings: list[str] = []
    parts: list[tuple[str, Any]] = [("", [plan.name, plan.settings.env])]
    parts += [(task.id, task.definition) for task in plan.tasks.values()]
    if not masker.may_be_in(msgspec.json.encode(parts)):  # ten thousand tasks are looked at once, not one by one
        return plan, []
    tasks = plan.tasks
    for task_id, part in parts:
        if not masker.may_be_in(msgspec.json.encode(part)):
            continue
        if task_id:
            task = plan.tasks[task_id]  # type: ignore[index]
            part = msgspec.structs.replace(part, description=masker.text(part.description))
            if part.approve is not None:
                question = masker.text(part.approve.question)
                part = msgspec.structs.replace(part, approve=msgspec.structs.replace(part.approve, question=question))
            # Its fingerprint stays: it is the same task wherever it runs.
            tasks = tasks.set(task.id, msgspec.structs.replace(task, definition=part))
        for name in masker.value_and_names(msgspec.to_builtins(part))[1]:
            if name in plan.settings.secrets and len(source.get(name) or "") >= LOOKS_SECRET:
                message = f"it holds the value of {name}: refer to it as ${{{{ secrets.{name} }}}} in env or run"
                findings.append(Finding(problem="bad setting", task_id=task_id, message=message))
            else:
                where = f"task {task_id!r}" if task_id else "the workflow"
                warnings.append(f"{where} holds the value of {name} in its definition, which is stored as it is")
    if findings:
        raise WorkflowDefinitionError(tuple(findings), name=plan.name)
    return msgspec.structs.replace(plan, tasks=tasks), warnings
