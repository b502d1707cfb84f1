"""Kinds of classes, as the stored form tells them apart; and codecs for those that have none of their own."""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec

T = TypeVar("T")


class Codec(NamedTuple):
    """To a JSON value, and back."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


PLAIN = frozenset({str, int, float, bool, bytes, list, dict, object, NoneType, Any})
"""Annotations that say nothing beyond what is stored: these are never enforced."""
SCALARS = frozenset({datetime, date, time, timedelta, Decimal, UUID})
_OWN_FORM = PLAIN | SCALARS | {bytearray, tuple, set, frozenset}
_codecs: dict[type, Codec] = {}


def register_codec(kind: type[T], encode: Callable[[T], Any], decode: Callable[[Any], T]) -> None:
    """Let tasks return objects of this class and of those derived from it, and take them where annotated so.

    `encode` gives a JSON value, or anything else that can be stored; `decode` gets that back. Call it in the module
    that defines the tasks, so that a process which resumes the run, or an isolated task, does it too. The last call
    for a class counts. TypeError for a class whose stored form is its fields or its value.
    """
    if not isinstance(kind, type):
        raise TypeError(f"a codec is for a class, not for {kind!r}")
    if kind in _OWN_FORM or is_dataclass(kind) or is_named_tuple(kind) or issubclass(kind, (msgspec.Struct, enum.Enum)):
        raise TypeError(f"{kind.__qualname__} has a stored form already; register the classes of its fields instead")
    _codecs[kind] = Codec(encode, decode)


def codec_of(kind: type) -> Codec | None:
    """The codec of a class, or of the nearest class it derives from."""
    return next((_codecs[base] for base in kind.__mro__ if base in _codecs), None) if _codecs else None


def is_dataclass(kind: Any) -> bool:
    """As `dataclasses.is_dataclass` has it, which takes a millisecond to load: who has none need not wait for it."""
    return hasattr(kind, "__dataclass_fields__")


def is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def is_numpy_scalar(kind: type) -> bool:
    """Without numpy, which is none of our requirements."""
    return any(base.__name__ == "generic" and base.__module__ == "numpy" for base in kind.__mro__)
