"""Base plans: compiled for this release, stored with their run, and read back."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from agentos import typed
from agentos.dag.define.model_calls import WORK_OF
from agentos.dag.define.task import TaskDef
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.findings import Finding, locate_findings
from agentos.dag.plan.plan import Plan, PlannedTask, PlanSettings, assemble_plan, compile_plan
from agentos.exceptions import CheckpointCorruptedError, WorkflowDefinitionError
from agentos.ids import WorkflowId
from agentos.machine.facts.fold import Facts, fold
from agentos.machine.rules.plan_changes import current_plan
from agentos.store.port import StorePort
from agentos.tasks.extras import missing_for
from agentos.tasks.llm.answer_schemas import schema_problem


class StoredPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What cannot be derived; layers and dependants can."""

    version: int = 1
    name: str
    settings: PlanSettings = PlanSettings()
    params: Mapping[str, Any] = {}
    tasks: tuple[PlannedTask, ...] = ()


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
    return compile_plan(workflow, {**(params or {}), **dict.fromkeys(finding.parameter for finding in findings)})


def refused_now(workflow: Workflow, plan: Plan) -> tuple[Finding, ...]:
    """What cannot be performed as AgentOS is installed here."""
    return locate_findings(
        (
            Finding(problem="bad setting", task_id=task.id, setting=setting, message=message)
            for task in plan.tasks.values()
            if task.definition.kind in WORK_OF
            for setting, message in _not_performed(task.definition)
        ),
        workflow.locate,
    )


def _not_performed(definition: TaskDef) -> Iterator[tuple[str, str]]:
    """The setting that asks for it, and why not."""
    if definition.kind == "llm" and (missing := missing_for("llm tasks", "httpx2")) is not None:
        yield "llm", missing
    work = definition.llm or definition.agent
    if work is not None and work.schema is not None:
        if (missing := missing_for("answers with a schema", "jsonschema")) is not None:
            yield "schema", missing
        elif (problem := schema_problem(work.schema)) is not None:
            yield "schema", problem


def encode_plan(plan: Plan) -> bytes:
    tasks = tuple(plan.tasks[task_id] for layer in plan.layers for task_id in layer)
    stored = StoredPlan(name=plan.name, settings=plan.settings, params=plan.params, tasks=tasks)
    # The tasks of a plan are much alike: a fifth of the bytes, for a millisecond in a thousand tasks.
    return zlib.compress(_encode(stored), 1)


def decode_plan(stored: bytes) -> Plan:
    try:
        plan = typed.decode(zlib.decompress(stored), StoredPlan)
    except (msgspec.DecodeError, zlib.error) as error:
        raise CheckpointCorruptedError("a stored plan", str(error)) from error
    return assemble_plan(plan.name, plan.settings, plan.params, plan.tasks)


def plan_of_run(store: StorePort, workflow_id: WorkflowId) -> tuple[Plan, Facts]:
    """The plan of a run as it stands, with what was added to it on the way; and what is known of the run."""
    facts = fold(workflow_id, store.read_events(workflow_id))
    return current_plan(decode_plan(store.read_plan(workflow_id)), facts.changes)[0], facts
