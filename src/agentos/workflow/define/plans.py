"""Base plans: compiled for this release, admitted, stored with their run, and read back; and what their tasks produced.

Before a run begins it is asked for its secrets and keys, prices for its budget, and its labels.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from agentos import typed
from agentos.dag.define.model_calls import WORK_OF, AgentWork
from agentos.dag.define.task import TaskDef
from agentos.dag.define.workflow import Workflow
from agentos.dag.language.references import OPEN, as_text, resolve
from agentos.dag.plan.candidates import all_work
from agentos.dag.plan.findings import Finding, format_names, locate_findings, nearest
from agentos.dag.plan.plan import Plan, PlannedTask, PlanSettings, assemble_plan, compile_plan
from agentos.dag.plan.selection import EVERY_TASK, LEFT_OUT, Selection, refuse_without_results
from agentos.exceptions import (
    CheckpointCorruptedError,
    EvaluationError,
    RunRefusedError,
    UntrustedSettingsError,
    WorkflowDefinitionError,
)
from agentos.extras import missing_for
from agentos.ids import TaskId, WorkflowId
from agentos.machine.facts.fold import Facts, fold
from agentos.machine.rules.plan_changes import current_plan
from agentos.machine.rules.scope import scope_of
from agentos.secrets import ENVIRONMENT, Masker, SecretSource
from agentos.store.port import RunLimit, StorePort
from agentos.tasks.llm.answer_schemas import schema_problem
from agentos.tasks.llm.model_settings import LlmDefaults, ModelSettings
from agentos.tasks.process.sandbox_settings import NO_SANDBOX_SETTINGS, SandboxSettings
from agentos.workflow.define.run_secrets import masker_for, plan_without_secrets

MAX_LABELS = 32
_LABEL = re.compile(r"\w[\w./:=+@-]{0,62}")


class StoredPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What cannot be derived; layers and dependants can."""

    version: int = 1
    name: str
    settings: PlanSettings = PlanSettings()
    params: Mapping[str, Any] = {}
    tasks: tuple[PlannedTask, ...] = ()
    defaulted: tuple[str, ...] = ()
    selection: Selection = EVERY_TASK


_encode = msgspec.json.Encoder().encode


def plan_for_now(workflow: Workflow, params: Mapping[str, Any] | None = None) -> Plan:
    """The plan of a workflow that this release can perform. WorkflowDefinitionError holds all that it cannot."""
    plan = compile_plan(workflow, params)
    if findings := refused_now(workflow, plan):
        raise WorkflowDefinitionError(findings, name=plan.name)
    return plan


def plan_to_look_at(workflow: Workflow, params: Mapping[str, Any] | None = None) -> Plan:
    """The plan as far as the definition goes: parameters that only a run can give are null in it.

    WorkflowDefinitionError holds what is wrong with the definition; that a parameter is missing is not.
    """
    try:
        return compile_plan(workflow, params)
    except WorkflowDefinitionError as error:
        findings = [finding for finding in error.findings if isinstance(finding, Finding)]
    if wrong := tuple(finding for finding in findings if not finding.parameter):
        raise WorkflowDefinitionError(wrong, name=workflow.name)
    return compile_plan(workflow, params, unknown=[finding.parameter for finding in findings])


def refused_now(workflow: Workflow, plan: Plan) -> tuple[Finding, ...]:
    """What cannot be performed as AgentOS is installed here."""
    findings: list[Finding] = []
    placed = next((task for task in plan.tasks.values() if task.definition.runner == "dask"), None)
    if placed is not None and (message := missing_for("tasks with `runner: dask`", "distributed", "dask")):
        findings.append(Finding(problem="bad setting", task_id=placed.id, setting="runner", message=message))
    for task in plan.tasks.values():
        definition = task.definition
        if definition.kind not in WORK_OF:
            continue
        problems: dict[str, str | None] = {}  # by the setting that asks for it
        if definition.kind == "llm":
            problems["llm"] = missing_for("llm tasks", "httpx2")
        work = definition.llm or definition.agent
        if work is not None and work.schema is not None:
            problems["schema"] = missing_for("answers with a schema", "jsonschema") or schema_problem(work.schema)
        findings += [
            Finding(problem="bad setting", task_id=task.id, setting=setting, message=message)
            for setting, message in problems.items()
            if message is not None
        ]
    return locate_findings(findings, workflow.locate)


def encode_plan(plan: Plan) -> bytes:
    tasks = tuple(plan.tasks[task_id] for layer in plan.layers for task_id in layer)
    stored = StoredPlan(
        name=plan.name,
        settings=plan.settings,
        params=plan.params,
        tasks=tasks,
        defaulted=plan.defaulted,
        selection=plan.selection,
    )
    # The tasks of a plan are much alike: a fifth of the bytes, for a millisecond in a thousand tasks.
    return zlib.compress(_encode(stored), 1)


def decode_plan(stored: bytes) -> Plan:
    try:
        plan = typed.decode(zlib.decompress(stored), StoredPlan)
    except (msgspec.DecodeError, zlib.error) as error:
        raise CheckpointCorruptedError("a stored plan", str(error)) from error
    return assemble_plan(plan.name, plan.settings, plan.params, plan.tasks, plan.defaulted, plan.selection)


def plan_of_run(store: StorePort, workflow_id: WorkflowId) -> tuple[Plan, Facts]:
    """The plan of a run as it stands, with what was added to it on the way; and what is known of the run."""
    facts = fold(workflow_id, store.read_events(workflow_id))
    return current_plan(decode_plan(store.read_plan(workflow_id)), facts.changes)[0], facts


def missing_products(plan: Plan, facts: Facts, root: Path) -> dict[TaskId, tuple[str, ...]]:
    """Finished tasks of which paths that they produce are gone, and which: those tasks cannot be reused."""
    missing: dict[TaskId, tuple[str, ...]] = {}
    for task in plan.tasks.values():
        # What an isolated task produced is not here before it is merged.
        if not task.definition.produces or task.id in facts.unmerged or facts.task(task.id).status != "complete":
            continue
        scope = scope_of(plan, facts, task)
        paths: list[str] = []
        for written in task.definition.produces:
            with suppress(EvaluationError):  # a path that cannot be told says nothing against reusing the task
                found = resolve(written, scope)
                paths += map(as_text, found if isinstance(found, list) else [found])
        if gone := tuple(path for path in paths if not (root / path).exists()):
            missing[task.id] = gone
    return missing


def checked_selection(plan: Plan, facts: Facts) -> frozenset[TaskId]:
    """The tasks of the plan that are selected, without what grew out of others.

    RunRefusedError where the selection names what is not there, or what cannot run without the rest.
    """
    selection, selected = plan.selection, plan.selected_tasks()
    if selected is None:
        return frozenset()
    for name in selection.names:
        if name not in plan.tasks:
            raise RunRefusedError(
                f"{selection}: there is no task {name!r}{nearest(name, plan.tasks)}",
                next_step="Nothing was run. `agentos check FILE` shows the tasks; where one that was selected is gone "
                "since, `agentos resume RUN --all-tasks` runs all there are.",
            )
        if plan.tasks[name].origin in ("for_each", "repeat"):
            raise RunRefusedError(
                f"{name!r} is a part of {plan.tasks[name].parent!r}, which can be selected as a whole",
                next_step="Nothing was run. `agentos resume RUN --rerun TASK` runs one item again.",
            )
    chosen = frozenset(name for name in selected if plan.tasks[name].origin not in ("for_each", "repeat"))
    needs = {task_id: plan.tasks[task_id].definition.needs for task_id in chosen}

    def is_there(task_id: TaskId) -> bool:
        was = facts.task(task_id)
        return was.ended and not was.because.startswith(LEFT_OUT)

    refuse_without_results(selection, chosen, needs, is_there)
    return chosen


def run_limit_of(plan: Plan) -> RunLimit | None:
    """How many runs like this one are driven at once, where the workflow limits that."""
    setting = plan.settings.queue
    if setting is None:
        return None
    key = as_text(resolve(setting.key, {"params": plan.params})) if setting.key else plan.name
    return RunLimit(key=" ".join(key.split()), limit=setting.limit)


# --- what is asked of a run before it begins ----------------------------------------------------------------------


def admit(
    workflow: Workflow,
    params: Mapping[str, Any] | None,
    secret_names: Iterable[str],
    models: ModelSettings,
    sandbox: SandboxSettings,
    *,
    looks_for_keys: bool,
) -> tuple[Plan, Masker]:
    """The plan of a new run, as it may be stored, and what masks the run. An error where anything speaks against it."""
    plan = plan_for_now(workflow, params)
    masker = masker_for(plan, secret_names)
    plan = plan_without_secrets(plan, params, masker)
    refuse_unpriced(plan, models)
    refuse_untrusted_models(plan, models)
    refuse_no_sandbox(plan, sandbox)
    if looks_for_keys and (why := keyless(plan, models.llm)):
        raise RunRefusedError(
            why, next_step=f"Nothing was run. Set it, `export {models.llm.key_name}=…`, or correct the setting."
        )
    return plan, masker


def checked_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """The labels of a run, words by which lists and workers pick runs: in order, each once.

    RunRefusedError where one is no label, or there are too many.
    """
    given = _checked_words("label", labels)
    if len(given) > MAX_LABELS:
        raise RunRefusedError(
            f"a run has at most {MAX_LABELS} labels, and {len(given)} are given",
            next_step="Keep those that you would pick runs by.",
        )
    return tuple(given)


def checked_queues(queues: Iterable[str]) -> tuple[str, ...]:
    """Names of queues, each once. RunRefusedError where one is none."""
    return tuple(_checked_words("queue", queues))


def _checked_words(what: str, words: Iterable[str]) -> list[str]:
    given = sorted({words} if isinstance(words, str) else set(words))  # a text would be its letters
    if wrong := [word for word in given if not _LABEL.fullmatch(word)]:
        raise RunRefusedError(
            f"{wrong[0][:80]!r} is no {what}",
            next_step=f"A {what} is a word of up to 63 letters, digits and . / : = + @ - _, not a sign first.",
        )
    return given


# --- keys and settings of models ----------------------------------------------------------------------------------


def refuse_untrusted_models(plan: Plan, models: ModelSettings) -> None:
    """UntrustedSettingsError where tasks ask a model as settings say that came with the repository unaccepted."""
    if not models.untrusted:
        return
    from agentos.tasks.llm.endpoints import needs_defaults  # few runs get here

    calls = [task.llm for task in _work(plan) if task.llm is not None]
    if any(needs_defaults(work, models.llm) for work in calls):
        raise UntrustedSettingsError(models.untrusted)


def refuse_no_sandbox(plan: Plan, settings: SandboxSettings) -> None:
    """RunRefusedError where tasks ask for a wall that cannot be had here; UntrustedSettingsError, as for models."""
    asking = [task.id for task in plan.tasks.values() if task.definition.sandbox]
    if not asking:
        return
    from agentos.tasks.process.sandbox import no_sandbox_error, sandbox_ability  # few runs get here

    if settings.untrusted:
        raise UntrustedSettingsError(settings.untrusted)
    if (ability := sandbox_ability()).problem:
        error = no_sandbox_error(ability)
        raise RunRefusedError(
            f"{format_names(asking)}: {error.message}", next_step=f"Nothing was run. {error.next_step}"
        )


def keyless(plan: Plan, defaults: LlmDefaults, source: SecretSource = ENVIRONMENT) -> str:
    """What is wrong with the variable that `[llm] key_name` names, and for which tasks; empty where nothing is."""
    name = defaults.key_name
    value = source.get(name) if name else None
    if not name or name in plan.settings.env or (value or "").strip():
        return ""
    from agentos.tasks.llm.endpoints import has_default_key  # few runs get here

    needing = [
        task.id
        for task in _work(plan)
        if (work := task.llm) is not None and name not in task.env and has_default_key(work, defaults)
    ]
    if not needing:
        return ""
    state = "is not set" if value is None else "is empty"
    return (
        f"`[llm] key_name` in the settings names the variable {name}, which {state}; needed by {format_names(needing)}"
    )


# --- budgets in dollars need prices -------------------------------------------------------------------------------


def refuse_unpriced(plan: Plan, models: ModelSettings) -> None:
    """RunRefusedError that names every model under a budget in dollars whose price neither a setting nor a list tells.

    One that is only known later, through a reference, is looked at before its call.
    """
    unknown = sorted(model for model in _models_under_budget(plan) if models.price_of(model) is None)
    if unknown:
        raise RunRefusedError(
            f"there is a budget in dollars, and there is no price for {format_names(unknown)}",
            next_step=f'Nothing was run. Say it in agentos.toml: [prices."{unknown[0]}"] with input_per_million and '
            "output_per_million (0 for a model of your own), or give a budget of tokens.",
        )
    silent = (task.agent for task in _under_budget(plan) if task.agent is not None and _is_silent(task.agent))
    if nameless := sorted({work.agent for work in silent if not work.model}):
        raise RunRefusedError(
            f"there is a budget in dollars, and these agents do not tell what they cost: {format_names(nameless)}",
            next_step="Nothing was run. Name a `model`, with its price in agentos.toml, or give a budget of tokens.",
        )


def look_ahead(plan: Plan, models: ModelSettings) -> list[str]:
    """What a run would meet here that is not the workflow's fault: missing agents, prices, no sandbox."""
    agents = [task.agent for task in _work(plan) if task.agent is not None]
    told = []
    if agents:
        import os
        import shutil

        from agentos.tasks.agents.adapters.known import AGENTS, seems_signed_in

        traits = {work.agent: AGENTS[work.agent].TRAITS for work in agents if work.agent in AGENTS}
        told = [
            f"{name} is not installed here, or not on PATH: `npm install -g {one.package}`, then sign in"
            for name, one in sorted(traits.items())
            if one.program and shutil.which(one.program) is None
        ]
        told += [
            f"{name} seems not to be signed in: start `{one.program}` once, or set {one.sign_in.variables[0]}"
            for name, one in sorted(traits.items())
            if one.sign_in is not None and shutil.which(one.program) and not seems_signed_in(one, os.environ)
        ]
    try:
        refuse_no_sandbox(plan, NO_SANDBOX_SETTINGS)
        refuse_unpriced(plan, models)
    except RunRefusedError as error:
        return [*told, f"a run would be refused: {error.message}. {error.next_step.removeprefix('Nothing was run. ')}"]
    if listed := sorted(model for model in _models_under_budget(plan) if model not in models.prices):
        from agentos.tasks.llm.list_prices import AS_OF

        told.append(
            f"the budget counts {format_names(listed)} at the list price of {AS_OF}; a price of yours goes into "
            f'agentos.toml: [prices."{listed[0]}"]'
        )
    return told


def _work(plan: Plan) -> list[TaskDef]:
    return list(all_work(task.definition for task in plan.tasks.values()))


def _under_budget(plan: Plan) -> list[TaskDef]:
    """The tasks that a budget in dollars limits: the run's, or their own."""
    definitions = _work(plan)
    of_run = plan.settings.budget.cost_usd is not None
    return definitions if of_run else [task for task in definitions if task.budget.cost_usd is not None]


def _models_under_budget(plan: Plan) -> set[str]:
    """Models that must have a price, as far as they are known before the run."""
    limited = _under_budget(plan)
    named = {task.llm.model for task in limited if task.llm is not None}
    named |= {task.agent.model for task in limited if task.agent is not None and _is_silent(task.agent)}
    return {model for model in named if model and OPEN not in model}


def _is_silent(work: AgentWork) -> bool:
    """Whether this agent does not tell what it costs. A program of the user's own is taken to cost nothing."""
    from agentos.tasks.agents.adapters.known import AGENTS  # few runs have an agent and a budget

    agent = AGENTS.get(work.agent)
    return agent is not None and bool(agent.TRAITS.program) and not agent.TRAITS.tells_cost
