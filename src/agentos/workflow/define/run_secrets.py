"""Secrets of a run: which variables it asks for, what may not be written down, and what a task is given instead."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from agentos.dag.define.stored_values import from_stored
from agentos.dag.language.tokens import SECRETS
from agentos.dag.plan.findings import Finding
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.exceptions import CommandRefusedError, EvaluationError, RunRefusedError, WorkflowDefinitionError
from agentos.machine.commands import Command, InjectTasks, ModifyArgs, ReplanDag, command_to_data, parse_command
from agentos.secrets import LOOKS_SECRET, Masker
from agentos.workflow.define.parameters import variables_in, with_variables

Environment = Mapping[str, str]


def masker_for(plan: Plan, also: Iterable[str] = (), env: Environment = os.environ) -> Masker:
    """What masks a run of this plan: the secrets it declares, those named `also`, and all that look like one."""
    keys = {task.definition.llm.key_name for task in plan.tasks.values() if task.definition.llm is not None} - {""}
    return Masker.for_run((*plan.settings.secrets, *also, *sorted(keys), *variables_in(plan.params)), env)


def plan_without_secrets(
    plan: Plan, given: Mapping[str, Any] | None, masker: Masker, env: Environment = os.environ
) -> Plan:
    """The plan of a new run, as it may be stored. RunRefusedError where a secret is not set or would be written down.

    `given` are the parameters whoever begins the run gave. What the workflow says stands in its own file already, so
    that only the value of a declared secret is refused there; one that merely looks like a secret is warned about.
    """
    refuse_unset(plan, env)
    for name in given or ():
        found = masker.value_and_names(from_stored(plan.params[name]))[1] if name in plan.params else ()
        if found:
            raise RunRefusedError(
                f"the parameter {name!r} holds the value of {', '.join(found)}, and parameters are stored",
                next_step=f"Give the variable's name instead: {name}=env:{found[0]}",
            )
    if not masker:
        return plan
    plan, warnings = _definitions_checked(plan, masker, env)
    short = (f"the value of {name} is too short to be masked" for name in masker.too_short)
    return msgspec.structs.replace(plan, warnings=(*plan.warnings, *warnings, *short))


def refuse_unset(plan: Plan, env: Environment = os.environ) -> None:
    """RunRefusedError that names every secret of the plan, and every `env:NAME` parameter, that is not set."""
    asked = dict.fromkeys((*plan.settings.secrets, *variables_in(plan.params)))
    unset = [name for name in asked if not env.get(name)]
    if unset:
        are = "is not set" if len(unset) == 1 else "are not set"
        raise RunRefusedError(
            f"the workflow needs {', '.join(unset)}, which {are} in the environment",
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


def with_secrets(scope: Mapping[str, Any], plan: Plan, env: Environment) -> dict[str, Any]:
    """The scope an attempt's references are looked up in: `secrets`, and parameters that name a variable, resolved."""
    params = with_variables(scope["params"], env)
    return {**scope, "params": params, SECRETS: SecretValues(plan.settings.secrets, env)}


class SecretValues(Mapping[str, str]):
    """The declared secrets by name. Never stored, never shown."""

    def __init__(self, names: Iterable[str], env: Environment) -> None:
        self._names = tuple(names)
        self._env = env

    def __getitem__(self, name: str) -> str:
        if name not in self._names:
            raise KeyError(name)
        if not (value := self._env.get(name)):
            raise EvaluationError(f"{name} is not set in the environment", next_step=f"Set it: export {name}=…")
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


# --- what a workflow says -------------------------------------------------------------------------------------------


def _definitions_checked(plan: Plan, masker: Masker, env: Environment) -> tuple[Plan, list[str]]:
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
            planned = _question_hidden(plan.tasks[task_id], masker)  # type: ignore[index]
            tasks, part = tasks.set(planned.id, planned), planned.definition
        for name in masker.value_and_names(msgspec.to_builtins(part))[1]:
            if name in plan.settings.secrets and len(env.get(name, "")) >= LOOKS_SECRET:
                message = f"it holds the value of {name}: refer to it as ${{{{ secrets.{name} }}}} in env or run"
                findings.append(Finding(problem="bad setting", task_id=task_id, message=message))
            else:
                where = f"task {task_id!r}" if task_id else "the workflow"
                warnings.append(f"{where} holds the value of {name} in its definition, which is stored as it is")
    if findings:
        raise WorkflowDefinitionError(tuple(findings), name=plan.name)
    return msgspec.structs.replace(plan, tasks=tasks), warnings


def _question_hidden(task: PlannedTask, masker: Masker) -> PlannedTask:
    """The task with its texts for people masked. Its fingerprint stays: it is the same task wherever it runs."""
    definition = msgspec.structs.replace(task.definition, description=masker.text(task.definition.description))
    if definition.approve is not None:
        question = masker.text(definition.approve.question)
        definition = msgspec.structs.replace(
            definition, approve=msgspec.structs.replace(definition.approve, question=question)
        )
    return msgspec.structs.replace(task, definition=definition)
