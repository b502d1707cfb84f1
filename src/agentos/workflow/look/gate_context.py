"""What a person must know to decide at a gate: what ran before, what will run, with which values, on which files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Literal

import msgspec

from agentos.dag.language.references import as_text, format_path, look_up, references_in
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.exceptions import EvaluationError
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.facts.fold import Facts, TaskFacts
from agentos.machine.rules.gates import prints_text
from agentos.machine.rules.merges import open_conflicts
from agentos.machine.rules.scope import newest_round, scope_of


class GateContext(msgspec.Struct, frozen=True, kw_only=True):
    """Around one gate, as the run stands."""

    before: Mapping[TaskId, TaskFacts] = {}
    """What the guarded task builds on, and how that ended; of rounds the newest."""
    command: str = ""
    """What the guarded task runs: its command as it is written, or the function's name. Empty for an approval."""
    values: Mapping[str, str] = {}
    """What the references in that command stand for. Never put into it: what is shown must not read as shell code."""
    takes_inputs: bool = False
    """Whether the gate's `inputs` say more than that: arguments, or what an agent or a model is told."""
    behind: tuple[TaskId, ...] = ()
    """Tasks that can go once it is approved, where it guards none of its own: an approval, or a decision point."""
    conflicts: tuple[ev.MergeConflict, ...] = ()
    """Of a merge: the paths to choose versions for."""
    gives: Literal["text", "document", "value"] = "value"
    """What the guarded task gives: a command the text, or the JSON document, that it prints; any other a value."""


def gate_context(plan: Plan, facts: Facts, gate: ev.DecisionRequired) -> GateContext:
    """What there is to know about an open gate."""
    if gate.kind == "merge":
        return GateContext(conflicts=open_conflicts(facts))
    if gate.task_id is None:
        return GateContext(behind=plan.layers[gate.layer] if gate.layer < len(plan.layers) else ())
    task = plan.tasks.get(gate.task_id)
    if task is None:
        return GateContext()
    definition = task.definition
    before = {need: facts.task(newest_round(plan, facts, need)) for need in definition.needs}
    if definition.kind == "approval":
        behind = tuple(plan.dependants.get(task.id, ()))
        return GateContext(before=before, behind=behind, takes_inputs=bool(definition.inputs))
    command = definition.run if isinstance(definition.run, str) else shlex.join(definition.run)
    return GateContext(
        before=before,
        command=command or definition.call or definition.kind,
        values=_values(plan, facts, task),
        takes_inputs=bool(definition.inputs) or definition.kind in ("agent", "llm"),
        gives="text" if prints_text(definition) else "document" if definition.kind == "shell" else "value",
    )


def _values(plan: Plan, facts: Facts, task: PlannedTask) -> dict[str, str]:
    scope = scope_of(plan, facts, task)
    values: dict[str, str] = {}
    for reference in references_in((task.definition.run, dict(task.definition.env))):
        try:
            values[format_path(reference.path)] = as_text(look_up(reference, scope))
        except EvaluationError as error:
            values[format_path(reference.path)] = error.message
    return values
