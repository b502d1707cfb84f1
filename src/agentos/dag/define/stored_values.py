"""Values inside a definition, in the form the journal keeps them: plain JSON types, tagged where JSON lacks one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentos.dag.define.task import TaskDef
from agentos.dag.language.references import resolve
from agentos.exceptions import EvaluationError
from agentos.values import decode_value, encode_value

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def to_stored(value: Any) -> Any:
    """The stored form. ValueEncodingError names the part that has none."""
    if type(value) is str and value.isascii() and "\0" not in value:
        return value
    return _decode(encode_value(value))


def from_stored(tree: Any) -> Any:
    """A fresh value from its stored form."""
    return tree if type(tree) is str else decode_value(_encode(tree))


def resolve_inputs(definition: TaskDef, scope: Mapping[str, Any]) -> dict[str, Any]:
    """The task's inputs with every reference looked up. EvaluationError where a path is missing."""
    inputs: dict[str, Any] = resolve(from_stored(definition.inputs), scope)
    return inputs


def resolve_items(definition: TaskDef, scope: Mapping[str, Any]) -> list[Any]:
    """The list a `for_each` task runs over. EvaluationError where it is no list."""
    if definition.for_each is None:
        raise ValueError(f"task {definition.id!r} has no for_each")
    items = resolve(from_stored(definition.for_each.items), scope)
    if not isinstance(items, (list, tuple)):
        kind = "null" if items is None else type(items).__name__
        raise EvaluationError(f"for_each needs a list, {definition.for_each.items} is {kind}")
    return list(items)
