"""Events as programs get them: one JSON object per line, every field always there, values in their stored form."""

from __future__ import annotations

import functools
import operator
from typing import Any, get_args, get_origin

import msgspec

from agentos.client.types import events as ev
from agentos.render.text import escape_json

_COMMON = ("seq", "at", "workflow_id")


def event_json(event: ev.Event) -> bytes:
    """The event as one JSON object, without a line break: type, seq, at, workflow_id, then its own fields.

    Text that is no Unicode, as a task may print it, has its odd parts escaped.
    """
    shape = _SHAPES[type(event)]
    shaped = shape(**{name: getattr(event, name) for name in shape.__struct_fields__})
    try:
        return escape_json(msgspec.json.encode(shaped))
    except UnicodeEncodeError:
        return escape_json(msgspec.json.encode(_encodable(msgspec.to_builtins(shaped, builtin_types=(msgspec.Raw,)))))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, (list, tuple)) else value


def _shape(kind: type[ev.Event]) -> type[msgspec.Struct]:
    """The documented form of an event: as the event, with `type` in it and nothing left out."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    # What is only seen live has no place in the journal.
    common = _COMMON if kind in ev.JOURNALED else _COMMON[1:]
    names = [*common, *(name for name in fields if name not in _COMMON)]
    return msgspec.defstruct(
        kind.__name__,
        [(name, _json_type(fields[name].type)) for name in names],
        frozen=True,
        kw_only=True,
        tag_field="type",
        tag=kind.type,
        namespace={"__doc__": kind.__doc__ if "Struct" not in (kind.__doc__ or "Struct") else None},
    )


def _json_type(kind: Any) -> Any:
    """A value that users made may be any JSON."""
    if kind is msgspec.Raw:
        return Any
    if get_origin(kind) is tuple and msgspec.Raw in get_args(kind):
        return list[Any]
    if get_origin(kind) is tuple and ev.PlanChanged in get_args(kind):  # inside another event it has no type
        return list[dict[str, Any]]
    return kind


_KINDS: tuple[type[ev.Event], ...] = (*ev.JOURNALED, ev.TaskOutput)
_SHAPES = {kind: _shape(kind) for kind in _KINDS}

AnyEvent: Any = functools.reduce(operator.or_, _SHAPES.values())
"""Any event, told apart by `type`; `task_output` is seen live only, and has no `seq`."""
