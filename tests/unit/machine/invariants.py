"""What holds for the facts of every run, at every event. Tests ask after each step."""

from __future__ import annotations

from collections.abc import Iterator

from agentos.exceptions import StateInvariantError
from agentos.machine.facts.facts import FAILED, Facts


def validate_facts(facts: Facts) -> None:
    """Raise StateInvariantError, with all that is wrong, unless these are facts that a journal can lead to."""
    if broken := sorted(_violations(facts)):
        raise StateInvariantError(f"facts of run {facts.workflow_id!r} at event {facts.sequence}: {'; '.join(broken)}")


def _violations(facts: Facts) -> Iterator[str]:
    if not facts.workflow_id.strip():
        yield "workflow_id is blank"
    yield from _task_violations(facts)
    yield from _gate_violations(facts)
    yield from _layer_violations(facts)


def _task_violations(facts: Facts) -> Iterator[str]:
    for task_id, task in facts.tasks.items():
        under_way = task_id in facts.running or (task_id in facts.children and not task.ended)
        if (task.status == "running") != under_way:
            yield f"task {task_id!r} is {task.status} and its attempt {'is' if under_way else 'is not'} under way"
        if (task.status in FAILED) != (task_id in facts.failed):
            yield f"task {task_id!r} is {task.status} and listed wrongly among the failed"
        if task.suspended and (task.status != "waiting" or not any(step.is_waited_for for step in task.pending)):
            yield f"task {task_id!r} is suspended, {task.status}, and waits for nothing"
        if gone := [step.gate for step in task.pending if step.gate and step.gate not in facts.open_gates]:
            yield f"task {task_id!r} waits at gates that are not open: {gone}"
        if task.seq > facts.sequence:
            yield f"task {task_id!r} began at event {task.seq}, which is not there yet"
    for task_id, attempt in facts.running.items():
        if facts.task(task_id).attempts != attempt:
            yield f"attempt {attempt} of task {task_id!r} is under way and not its newest"
    for listed in (facts.running, facts.failed):
        if missing := [task_id for task_id in listed if task_id not in facts.tasks]:
            yield f"tasks {sorted(missing)} are listed and unknown"
    for parent, children in facts.children.items():
        if len(set(children)) != len(children):
            yield f"items of {parent!r} stand in it twice"


def _gate_violations(facts: Facts) -> Iterator[str]:
    for gate_id in facts.open_gates:
        gate = facts.gates.get(gate_id)
        if gate is None:
            yield f"gate {gate_id!r} is open and was never opened"
        elif gate.answer:
            yield f"gate {gate_id!r} is open and answered"
        elif gate.opened.kind == "wait" and gate.opened.task_id is not None:
            if gate_id not in [step.gate for step in facts.task(gate.opened.task_id).pending]:
                yield f"gate {gate_id!r} is open and its task does not wait at it"
        elif gate.opened.task_id is not None and facts.task(gate.opened.task_id).status != "waiting":
            yield f"gate {gate_id!r} is open and its task does not wait"
    if facts.refused is not None and facts.gates[facts.refused.gate_id].answer != "rejected":
        yield f"gate {facts.refused.gate_id!r} refused and was not rejected"


def _layer_violations(facts: Facts) -> Iterator[str]:
    for task_id, task in facts.tasks.items():
        if not 0 <= task.layer < max(facts.total_layers, 1):
            yield f"task {task_id!r} has layer {task.layer} of {facts.total_layers}"
    if facts.current_layer < max(facts.begun_layer, facts.finished_layer, 0) and facts.saved is None:
        yield f"current_layer is {facts.current_layer}, though layer {facts.begun_layer} has begun"
    for checkpoint, (sequence, layer) in facts.cuts.items():
        if not 0 < sequence <= facts.sequence or layer < 0:
            yield f"checkpoint {checkpoint} stands at event {sequence}, layer {layer}"
