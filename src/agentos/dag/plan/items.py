"""The items of a fan-out: one task for each, named by its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentos.dag.define.stored_values import to_stored
from agentos.dag.define.task import TaskDef
from agentos.dag.language.references import resolve
from agentos.dag.plan.checks import id_problem, key_template
from agentos.exceptions import EvaluationError
from agentos.ids import TaskId

if TYPE_CHECKING:
    from agentos.dag.plan.plan import Plan


def item_tasks(
    plan: Plan,
    parent_id: TaskId,
    items: Sequence[Any],
    scope: Mapping[str, Any] | None = None,
    *,
    keys: Sequence[TaskId] | None = None,
) -> list[TaskDef]:
    """A task `id[key]` for each item, in order. EvaluationError where keys are missing, alike or no text.

    What is settled once for all items stays with the task itself: its `if`, its `approve`, and the fan-out. References
    to the item stay references, so that no item can be mistaken for one. `keys` gives the ids where they were settled
    before.
    """
    definition = plan.tasks[parent_id].definition
    ids = keys if keys is not None else [f"{parent_id}[{key}]" for key in item_keys(definition, items, scope or {})]
    base = msgspec.structs.replace(definition, for_each=None, approve=None, condition="")
    return [
        msgspec.structs.replace(base, id=TaskId(task_id), item=to_stored(item))
        for task_id, item in zip(ids, items, strict=True)
    ]


def item_keys(definition: TaskDef, items: Sequence[Any], scope: Mapping[str, Any]) -> list[str]:
    """The key of each item: its index, or what `key` makes of it."""
    for_each = definition.for_each
    if for_each is None:
        raise ValueError(f"task {definition.id!r} has no for_each")
    if for_each.key is None:
        return [str(index) for index in range(len(items))]
    template = key_template(for_each)
    seen: dict[str, int] = {}
    for index, item in enumerate(items):
        key = _key_text(resolve(template, {**scope, for_each.as_: item}), index)
        if problem := id_problem(f"{definition.id}[{key}]"):
            raise EvaluationError(f"for_each: the key of item {index} makes no good id: {problem}")
        if key in seen:
            raise EvaluationError(
                f"for_each: items {seen[key]} and {index} have the same key {key!r}",
                next_step="Choose a `key` that tells the items apart, or leave it out to count them.",
            )
        seen[key] = index
    return list(seen)


def _key_text(value: Any, index: int) -> str:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise EvaluationError(f"for_each: the key of item {index} is {value!r}, not a text or a whole number")
