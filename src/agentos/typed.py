"""Structs read from data, on any thread.

msgspec looks at what a struct is made of when it first reads one, and runs Python for that: two threads that do so for
the same struct at once crash the process. So it happens here, under one lock, and once for each type.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_looking = threading.Lock()
_known: set[Any] = set()


def decode(data: bytes | bytearray | str, kind: type[T]) -> T:
    """As `msgspec.json.decode` with a type."""
    _look_at(kind)
    return msgspec.json.decode(data, type=kind)


@overload
def convert(value: Any, kind: type[T], **how: Any) -> T: ...
@overload
def convert(value: Any, kind: Any, **how: Any) -> Any: ...
def convert(value: Any, kind: Any, **how: Any) -> Any:
    """As `msgspec.convert`."""
    _look_at(kind)
    return msgspec.convert(value, kind, **how)


@overload
def decoder(kind: type[T], *, strict: bool = True) -> msgspec.json.Decoder[T]: ...
@overload
def decoder(kind: Any, *, strict: bool = True) -> msgspec.json.Decoder[Any]: ...
def decoder(kind: Any, *, strict: bool = True) -> msgspec.json.Decoder[Any]:
    """As `msgspec.json.Decoder`, for what is read often."""
    with _looking:
        return msgspec.json.Decoder(kind, strict=strict)


def _look_at(kind: Any) -> None:
    try:
        if kind in _known:
            return
        remembered = {kind}
    except TypeError:  # an annotation of a user's that cannot be hashed: looked at each time
        remembered = set()
    with _looking:
        msgspec.json.Decoder(kind)
        _known.update(remembered)
