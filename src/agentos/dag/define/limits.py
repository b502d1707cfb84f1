"""What a value may be beside its type. Editors are told by the schema, people by a finding of the plan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec


class Limits:
    """Stands in the type of a field: `Annotated[int, Limits(minimum=0)]`, in the words of JSON Schema.

    Stored plans are read whatever it says: they were checked when they were made.
    """

    def __init__(self, **schema: Any) -> None:
        self.schema = schema

    def problem(self, value: float) -> str:
        """What is wrong with a number; empty where nothing is."""
        above, minimum, maximum = (self.schema.get(key) for key in ("exclusiveMinimum", "minimum", "maximum"))
        if above is not None:
            good, words = above < value < math.inf, f"more than {above}"
        elif minimum is not None and maximum is not None:
            good, words = minimum <= value <= maximum, f"between {minimum} and {maximum}"
        else:
            good, words = minimum is None or minimum <= value < math.inf, f"{minimum} or more"
        return "" if good else f"must be {words}, not {value}"


POSITIVE = Limits(exclusiveMinimum=0)
AT_LEAST_0 = Limits(minimum=0)
AT_LEAST_1 = Limits(minimum=1)


def limit_problems(struct: msgspec.Struct) -> Iterator[tuple[str, str]]:
    """The fields of a struct, and of those inside it, that are out of range: `retry.factor`, and what is wrong."""
    for name, limits, default in _limited_fields(type(struct)):
        value = getattr(struct, name)
        if value is None or value is default:
            continue
        if isinstance(value, msgspec.Struct):
            yield from ((f"{name}.{inner}", problem) for inner, problem in limit_problems(value))
        elif limits is not None and (problem := limits.problem(value)):
            yield name, problem


@cache
def _limited_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, Limits | None, Any], ...]:
    """Those that have a range, or hold a struct that may have some; each with its default."""
    found = []
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        hint = hints[field.name]
        limits = limits_of(hint)
        ranged = limits is not None and not limits.schema.keys().isdisjoint(("minimum", "exclusiveMinimum"))
        if ranged or any(is_struct(part) for part in (hint, *get_args(hint))):
            found.append((field.name, limits if ranged else None, field.default))
    return tuple(found)


def is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def limits_of(hint: Any) -> Limits | None:
    """Those that stand in a type."""
    if get_origin(hint) is not Annotated:
        return None
    return next((extra for extra in get_args(hint)[1:] if isinstance(extra, Limits)), None)
