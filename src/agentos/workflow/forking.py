"""What a fork takes along from its parent: results that count, changes of the plan, and what must be asked."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from agentos.dag.plan import Plan
from agentos.ids import EPOCH, TaskId, WorkflowId
from agentos.run import events as ev
from agentos.run.facts import counting, fold
from agentos.store.port import CheckpointRecord

_RESULTS = (ev.TaskComplete, ev.TaskError, ev.TaskSkipped)


def forked_event(
    parent_id: WorkflowId, checkpoint: CheckpointRecord, events: Sequence[ev.Event], plan: Plan
) -> ev.RunForked:
    """The first event of a fork, made from the parent's journal up to the checkpoint."""
    until = [event for event in events if event.seq <= checkpoint.sequence]
    facts = fold(parent_id, until)
    newest: dict[TaskId, ev.Event] = {}
    for event in counting(until):
        if isinstance(event, ev.RunForked):
            raise_from_fork = {_id_of(raw): raw for raw in event.results}
            newest.update({task_id: _Taken(raw=raw) for task_id, raw in raise_from_fork.items()})
        elif isinstance(event, _RESULTS):
            newest[event.task_id] = event
    results = tuple(
        event.raw if isinstance(event, _Taken) else _as_raw(event)
        for task_id, event in newest.items()
        if facts.task(task_id).ended and not _rejected(event)
    )
    begun = (event.task_id for event in events if isinstance(event, ev.TaskStart) and event.seq > checkpoint.sequence)
    return ev.RunForked(
        parent_id=parent_id,
        checkpoint_id=checkpoint.id,
        current_layer=checkpoint.layer,
        results=results,
        changes=tuple(replace(change, seq=0, at=EPOCH, workflow_id=WorkflowId("")) for change in facts.changes),
        ask=tuple(sorted({task_id for task_id in begun if _external(plan, task_id)})),
    )


class _Taken(ev.Event, frozen=True, kw_only=True):
    """A result that the parent itself had from its own parent, as it stands there."""

    raw: msgspec.Raw


def _id_of(raw: msgspec.Raw) -> TaskId:
    return TaskId(msgspec.json.decode(raw)["task_id"])


def _as_raw(event: ev.Event) -> msgspec.Raw:
    bare = replace(event, seq=0, at=EPOCH, workflow_id=WorkflowId(""))
    body = msgspec.json.encode(bare)
    return msgspec.Raw(b'{"type":"' + event.type.encode() + b'",' + body[1:])


def _rejected(event: ev.Event) -> bool:
    """A rejection is not taken along: a fork asks anew."""
    return isinstance(event, ev.TaskError) and event.error.type == "GateRejected"


def _external(plan: Plan, task_id: TaskId) -> bool:
    task = plan.tasks.get(task_id)
    return task is not None and task.definition.external and task.definition.idempotent != "yes"
