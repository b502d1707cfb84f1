"""Gates: their names, and when one lets through what it guards. Only an explicit approval does."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta

from agentos.dag.plan import Plan, PlannedTask
from agentos.dag.references import as_text, resolve
from agentos.dag.task import Approve
from agentos.ids import GateId, TaskId
from agentos.run import events as ev
from agentos.run.facts import Facts, GateFacts
from agentos.run.scope import scope_of, shown_digest


def gate_name(facts: Facts, kind: ev.GateKind, subject: str, number: int) -> GateId:
    """`approve:ship`, then `approve:ship#2`; in a later epoch `approve:ship~1`."""
    epoch = f"~{facts.epoch}" if facts.epoch else ""
    again = f"#{number}" if number > 1 else ""
    return GateId(f"{kind}:{subject}{epoch}{again}")


def newest_gate(
    facts: Facts, kind: ev.GateKind, subject: str, task_id: TaskId | None = None
) -> tuple[GateFacts | None, GateId]:
    """The newest gate before this subject in this epoch, if any, and the name the next one would have.

    No answer fits two gates: a name that was ever used, if only because a task is called `ship#2`, is not used again.
    """
    number, newest = 1, None
    while (gate := facts.gates.get(name := gate_name(facts, kind, subject, number))) is not None:
        if gate.opened.task_id == task_id:
            newest = gate
        number += 1
    return newest, name


def task_gate(plan: Plan, facts: Facts, task: PlannedTask, now: datetime) -> tuple[bool, ev.DecisionRequired | None]:
    """Whether the task may start, and else the gate to open first (None where it is open already, or answered no)."""
    approve = task.definition.approve
    if approve is None:
        return True, None
    kind = gate_kind(task)
    gate, next_name = newest_gate(facts, kind, task.id, task.id)
    if gate is not None and gate.opened.gate_id in facts.open_gates:
        return False, None
    digest, text = shown_digest(plan, facts, task)
    if gate is not None and gate.answer and gate.opened.shown == digest:
        return gate.answer == "approved", None
    scope = scope_of(plan, facts, task)
    return False, ev.DecisionRequired(
        gate_id=next_name,
        kind=kind,
        task_id=task.id,
        layer=task.layer,
        place=task.place,
        question=as_text(resolve(approve.question, scope)),
        choices=approve.choices,
        file=as_text(resolve(approve.file, scope)),
        by=approve.by,
        shown=digest,
        inputs=text,
        command=answer_command(facts.workflow_id, next_name, approve.choices),
        deadline=_deadline(approve, now),
        on_timeout=approve.on_timeout,
    )


def gate_kind(task: PlannedTask) -> ev.GateKind:
    return "approval" if task.definition.kind == "approval" else "approve"


def ask_gate(facts: Facts, task: PlannedTask, why: str) -> ev.DecisionRequired | None:
    """The question about an effect that may have happened; None where it is asked already."""
    gate, next_name = newest_gate(facts, "ask", task.id, task.id)
    if gate is not None and gate.opened.gate_id in facts.open_gates:
        return None
    return ev.DecisionRequired(
        gate_id=next_name,
        kind="ask",
        task_id=task.id,
        layer=task.layer,
        place=task.place,
        question=f"Task {task.id!r} had begun ({why}) and may have taken effect. Run it again?",
        command=answer_command(facts.workflow_id, next_name),
    )


def answer_command(workflow_id: str, gate_id: str, choices: Sequence[str] = ()) -> str:
    """What to type to say yes; of a gate with choices, to the first of them."""
    chosen = f" --choose {shlex.quote(choices[0])}" if choices else ""
    return f"agentos approve {shlex.quote(workflow_id)} {shlex.quote(gate_id)}{chosen}"


def _deadline(approve: Approve, now: datetime) -> datetime | None:
    return None if approve.timeout_s is None else now + timedelta(seconds=approve.timeout_s)


def only_rejected(facts: Facts) -> bool:
    """Whether all that failed was rejected at a gate: then no resume has anything left to run."""
    errors = [facts.task(task_id).error for task_id in facts.failed]
    rejected = all(error is not None and error.type == "GateRejected" for error in errors)
    return rejected and (bool(errors) or facts.refused is not None)
