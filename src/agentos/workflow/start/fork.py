"""What a fork takes along from its parent: results that count, changes of the plan, and what must be asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from agentos.dag.plan.plan import Plan
from agentos.ids import EPOCH, TaskId, WorkflowId
from agentos.machine import events as ev
from agentos.machine.facts.fold import RESULTS, Facts, counting, fold, result_from
from agentos.machine.state import SUCCEEDED
from agentos.store.port import CheckpointRecord

E = TypeVar("E", bound=ev.Event)


def forked_event(
    parent_id: WorkflowId,
    checkpoint: CheckpointRecord,
    before: Sequence[ev.Event],
    after: Sequence[ev.Event] | None,
    plan: Plan,
) -> ev.RunForked:
    """The first event of a fork, made from the parent's journal up to the checkpoint.

    What came after tells which external effects the parent had begun; where it is unknown (None), all may have.
    """
    facts = fold(parent_id, before)
    rejected = _rejected_ids(facts)
    results = tuple(
        _as_raw(event)
        for task_id, event in _newest_results(before).items()
        if facts.task(task_id).ended and task_id not in rejected and facts.task(task_id).because not in rejected
    )
    # Unfinished, or without success: it may have taken effect all the same.
    begun = {task_id for task_id, task in facts.tasks.items() if task.attempts and task.status not in SUCCEEDED}
    if after is None:
        begun.update(task_id for task_id in plan.tasks if not facts.task(task_id).ended)
    else:
        begun.update(event.task_id for event in after if isinstance(event, ev.TaskStart))
    return ev.RunForked(
        parent_id=parent_id,
        checkpoint_id=checkpoint.id,
        current_layer=checkpoint.layer,
        results=results,
        changes=tuple(_bare(change) for change in facts.changes),
        ask=tuple(sorted({task_id for task_id in begun if _external(plan, task_id)}.union(facts.ask))),
    )


def _newest_results(events: Sequence[ev.Event]) -> dict[TaskId, ev.Event]:
    """The result of each task that counts, those that the parent took over from its own parent included."""
    newest: dict[TaskId, ev.Event] = {}
    for event in counting(events):
        results = map(result_from, event.results) if isinstance(event, ev.RunForked) else (event,)
        newest.update((result.task_id, result) for result in results if isinstance(result, RESULTS))
    return newest


def _bare(event: E) -> E:
    return replace(event, seq=0, at=EPOCH, workflow_id=WorkflowId(""))


def _as_raw(event: ev.Event) -> msgspec.Raw:
    body = msgspec.json.encode(_bare(event))
    return msgspec.Raw(b'{"type":"' + event.type.encode() + b'",' + body[1:])


def _rejected_ids(facts: Facts) -> set[str]:
    """Tasks and gates that were answered no. That is not taken along, nor what was skipped for it: a fork asks anew."""
    tasks = {id for id, task in facts.tasks.items() if task.error is not None and task.error.type == "GateRejected"}
    return tasks | {id for id, gate in facts.gates.items() if gate.answer == "rejected"}


def _external(plan: Plan, task_id: TaskId) -> bool:
    task = plan.tasks.get(task_id)
    return task is not None and task.definition.external and task.definition.idempotent != "yes"
