"""From a planned task to what its attempt is given: references resolved, values decoded afresh."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentos import typed
from agentos.dag.define.model_calls import AgentWork, LlmWork, switched_work, verify_commands
from agentos.dag.define.task import resolve_inputs
from agentos.dag.language.references import as_text, resolve
from agentos.dag.language.shell_references import arguments_for, script_for
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.ids import TaskId
from agentos.machine.facts.fold import Facts
from agentos.machine.resume import session_fingerprint
from agentos.machine.rules.scope import scope_of
from agentos.secrets import ENVIRONMENT, SecretSource
from agentos.tasks.attempt import AttemptSpec, VerifySpec
from agentos.workflow.define.run_secrets import with_secrets

SomeWork = TypeVar("SomeWork", AgentWork, LlmWork)


def idempotency_key(facts: Facts, task_id: TaskId) -> str:
    """The same over retries and crashes of a task; new after a rollback or in a fork."""
    text = f"{facts.workflow_id}\0{task_id}\0{facts.epoch}"
    return blake2b(text.encode(), digest_size=16).hexdigest()


def attempt_spec(
    plan: Plan,
    facts: Facts,
    task: PlannedTask,
    attempt: int,
    functions: Mapping[TaskId, Callable[..., Any]],
    root: Path,
    *,
    secrets: SecretSource = ENVIRONMENT,
) -> AttemptSpec:
    """Everything the attempt needs. EvaluationError where a reference leads nowhere.

    Only here do secrets have their values, taken from `secrets`; to another machine they go by name.
    """
    definition = task.definition
    if definition.runner != "local":
        from agentos.tasks.cluster.wire import SecretNames  # few runs have a cluster

        secrets = SecretNames(secrets)
    env = {**plan.settings.env, **definition.env}
    scope: Mapping[str, Any] = {}
    if env or definition.inputs or definition.cwd or definition.kind != "python":  # else nothing refers to anything
        scope = with_secrets(scope_of(plan, facts, task), plan, secrets)
    command: str | tuple[str, ...] = ""
    variables: Mapping[str, str] = {}
    arguments: Mapping[str, Any] = {}
    verify: tuple[VerifySpec, ...] = ()
    if definition.kind == "python":
        arguments = resolve_inputs(definition, scope) if definition.inputs else {}
    elif definition.kind == "shell":
        command, variables = _command(definition.run, scope)
    elif definition.agent is not None:
        verify = tuple(_verify_spec(command, scope) for command in verify_commands(definition.agent))
    env = {name: as_text(resolve(value, scope)) for name, value in env.items()}
    session = facts.sessions.get(task.id)
    work, switch = definition.agent, facts.task(task.id).switch
    if work is not None and switch is not None and switch == definition.on_limit:  # else it was edited since
        work = switched_work(work, switch)
    return AttemptSpec(
        workflow_id=facts.workflow_id,
        task_id=task.id,
        attempt=attempt,
        definition=definition,
        function=_function(plan, task, functions),
        arguments=arguments,
        command=command,
        agent=_resolve_work(work, scope) if work is not None else None,
        verify=verify,
        session=session if session is not None and session.task in _about(task) else None,
        llm=_resolve_work(definition.llm, scope) if definition.llm is not None else None,
        env={**env, **variables},
        cwd=root / as_text(resolve(definition.cwd, scope)) if definition.cwd else root,
        root=root,
        idempotency_key=idempotency_key(facts, task.id),
        attempt_id=f"{facts.workflow_id}/{task.id}/{attempt}",
        steps=facts.task(task.id).steps,
        settled=facts.task(task.id).settled,
        handle=placed.handle if (placed := facts.placed.get(task.id)) is not None else "",
    )


def _about(task: PlannedTask) -> tuple[str, str]:
    """What a session that the task's agent may go on with is about; the second as earlier versions have it."""
    return session_fingerprint(task), task.fingerprint


def _function(
    plan: Plan, task: PlannedTask, functions: Mapping[TaskId, Callable[..., Any]]
) -> Callable[..., Any] | None:
    """The workflow's own function for this task; None where a command or another task brought it, named by `call`."""
    while task.parent is not None:  # an item grew out of its fan-out, a round out of the first
        task = plan.tasks[task.parent]
    return functions.get(task.id) if task.origin not in ("inject", "replan") else None


def _resolve_work(work: SomeWork, scope: Mapping[str, Any]) -> SomeWork:
    """What an agent or a model is to do, with every reference replaced; as text wherever it takes text."""
    given = msgspec.to_builtins(work)
    told = {name: _resolve_texts(value, scope) for name, value in given.items() if name not in _AS_WRITTEN}
    if "extra_body" in given:
        told["extra_body"] = resolve(given["extra_body"], scope)
    if "command" in given:
        told["command"] = arguments_for(given["command"], scope)
    return typed.convert({**given, **told}, type(work))


_AS_WRITTEN = ("verify", "schema", "extra_body", "command")
"""A script gets its values as variables, a command as words; a schema is no text; a server may want a number."""


def _resolve_texts(written: Any, scope: Mapping[str, Any]) -> Any:
    if isinstance(written, str):
        return as_text(resolve(written, scope))
    if isinstance(written, (list, tuple)):
        return [_resolve_texts(item, scope) for item in written]
    if isinstance(written, Mapping):
        return {name: _resolve_texts(item, scope) for name, item in written.items()}
    return written


def _verify_spec(written: str | tuple[str, ...], scope: Mapping[str, Any]) -> VerifySpec:
    command, variables = _command(written, scope)
    text = written if isinstance(written, str) else shlex.join(written)
    return VerifySpec(written=text.strip(), command=command, env=variables)


def _command(run: str | tuple[str, ...], scope: Mapping[str, Any]) -> tuple[str | tuple[str, ...], dict[str, str]]:
    """The command with no value inside a script: values travel as variables, or as whole arguments."""
    if isinstance(run, tuple):
        return tuple(arguments_for(run, scope)), {}
    return script_for(run, scope)
