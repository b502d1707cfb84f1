"""The stored form of what users' tasks return: JSON, with a tag for what JSON lacks; codecs for classes that have
none."""

from __future__ import annotations

import enum
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from pathlib import PurePath
from types import NoneType
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from agentos.exceptions import CheckpointCorruptedError, NewerSchemaError, ValueEncodingError

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


TAG: Final = "$agentos"
MAX_DEPTH: Final = 200
"""Lists and maps inside each other. An escaped level costs three, and SQLite's JSON functions stop at 1000."""
_ROOM = 20
"""Levels that our own records put around a value: whatever can be stored can be shown, compared and handed on."""
_MAX_BITS = 1024  # the digits stay below every limit of Python (640 at least), msgspec and SQL

_TAG_BYTES = TAG.encode()
_NUL_BYTES = b"\\u0000"
_ordered = msgspec.json.Encoder()
_sorted = msgspec.json.Encoder(order="sorted")
_decode = msgspec.json.Decoder().decode

Path = tuple[str | int, ...]


def encode_value(value: object, *, around: bool = False) -> bytes:
    """The stored form of a value: compact JSON. ValueEncodingError says where the part lies that has none.

    `around`: a record of ours around values that were already found fit, and so may be a few levels deeper.
    """
    return _encode(value, _ordered, 0 if around else _ROOM)


def canonical_json(value: object) -> bytes:
    """Like `encode_value`, with sorted keys: equal values give equal bytes."""
    return _encode(value, _sorted, _ROOM)


def encode_plain(value: object, loose: Iterable[object]) -> bytes | None:
    """The stored form of Structs of ours in one go, where every value users put into them is plain JSON, else None.

    `loose` are those values: everything else inside is known to be text, numbers and the like.
    """
    try:
        if all(_is_plain(part, _ROOM) for part in loose):
            data = _ordered.encode(value)
            if _TAG_BYTES not in data and _NUL_BYTES not in data:
                return data
    except (UnicodeEncodeError, RecursionError):
        pass
    return None


def without_surrogates(value: object) -> object:
    """The value with half surrogate pairs in its texts written out (`\\ud800`): no JSON takes them."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    return [without_surrogates(item) for item in value] if isinstance(value, (list, tuple)) else value


def decode_value(data: bytes | bytearray | memoryview | msgspec.Raw) -> Any:
    """A fresh value from its stored form; never shares anything with an earlier one."""
    try:
        plain = _decode(data)
        return _untag(plain) if _TAG_BYTES in bytes(data) else plain
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointCorruptedError("a stored value", str(error)) from error


# --- encoding -----------------------------------------------------------------------------------------------------


def _encode(value: object, encoder: msgspec.json.Encoder, depth: int) -> bytes:
    # Nearly every value is plain JSON: a look at the types is then all it costs. What the look leaves open (NUL, lone
    # surrogates, our tag) shows in the bytes.
    try:
        if _is_plain(value, depth):
            data = encoder.encode(value)
            if _TAG_BYTES not in data and _NUL_BYTES not in data:
                return data
    except (UnicodeEncodeError, RecursionError):
        pass
    try:
        return encoder.encode(_tagged_value(value, (), (0,) * depth, encoder is _sorted))
    except RecursionError:
        raise ValueEncodingError("$", "it is nested too deeply for the stack that is left") from None


def _is_plain(value: object, depth: int) -> bool:
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return True
    if kind is int:
        return value.bit_length() <= _MAX_BITS  # type: ignore[attr-defined, no-any-return]
    if kind is float:
        return value - value == 0.0  # type: ignore[operator, no-any-return]  # NaN and infinities give NaN
    if depth == MAX_DEPTH + _ROOM:
        return False
    if kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str or (type(item) is not str and not _is_plain(item, depth + 1)):
                return False
        return True
    if kind is list or kind is tuple:
        for item in value:  # type: ignore[attr-defined]  # noqa: SIM110 (all() is slower)
            if type(item) is not str and not _is_plain(item, depth + 1):
                return False
        return True
    return False


def _tagged_value(value: object, path: Path, above: tuple[int, ...], sort: bool) -> object:
    """The same value in plain JSON types, tagged where needed. `above` holds the ids of what encloses it."""
    if (codec := codec_of(type(value))) is not None:
        return _tagged_value(_encode_with(codec, value, path), path, _enter(value, path, above), sort)
    match value:
        case enum.Enum():
            return _tagged_value(value.value, path, above, sort)
        case None | bool():
            return value
        case int():
            return int(value) if value.bit_length() <= _MAX_BITS else _tag("int", hex(value))
        case float():
            return float(value) if math.isfinite(value) else _tag("float", repr(float(value)))
        case str():
            return tagged_text(value)
        case bytes() | bytearray():
            return _tag("bytes", b64encode(value).decode())
        case datetime() | date() | time() | timedelta() | Decimal():
            return _tagged_scalar(value, path)
        case PurePath() | UUID():
            return tagged_text(str(value))
        case _ if is_numpy_scalar(type(value)):
            return _tagged_value(_numpy_item(value, path), path, above, sort)
        case _:
            return _tagged_container(value, path, _enter(value, path, above), sort)


def _enter(value: object, path: Path, above: tuple[int, ...]) -> tuple[int, ...]:
    if id(value) in above:
        raise ValueEncodingError(_format_path(path), "it contains itself")
    if len(above) >= MAX_DEPTH + _ROOM:
        raise ValueEncodingError(_format_path(path), f"it is nested more than {MAX_DEPTH} levels deep")
    return (*above, id(value))


def _tagged_container(value: object, path: Path, above: tuple[int, ...], sort: bool) -> object:
    if isinstance(value, (list, tuple)):
        return [_tagged_value(item, (*path, index), above, sort) for index, item in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return sorted((_tagged_value(item, path, above, sort) for item in value), key=_place_in_set)
    if (fields := _fields(value)) is not None:
        return _tagged_map(fields, path, above, sort)
    if callable(getattr(type(value), "model_dump", None)):
        return _tagged_value(_dump_model(value, path), path, above, sort)
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    raise ValueEncodingError(_format_path(path), f"{name} has no stored form")


def _place_in_set(stored: object) -> tuple[int, Any]:
    """Sets have no order; equal sets are stored in one: numbers, then text, then the rest by its JSON."""
    kind = type(stored)
    return (0, stored) if kind is int or kind is float else (1, stored) if kind is str else (2, _sorted.encode(stored))


def _numpy_item(value: Any, path: Path) -> object:
    item = value.item()
    # A time finer than Python's comes as a bare count, a number wider than Python's as itself.
    if is_numpy_scalar(type(item)) or (value.dtype.kind in "mM" and not isinstance(item, (date, timedelta))):
        raise ValueEncodingError(_format_path(path), f"numpy's {value.dtype} has no exact counterpart in Python")
    return item


def _encode_with(codec: Codec, value: object, path: Path) -> object:
    try:
        return codec.encode(value)
    except Exception as error:  # users' code
        raise ValueEncodingError(_format_path(path), f"its codec raised {type(error).__name__}: {error}") from error


def _tag(kind: str, value: object, **more: object) -> dict[str, object]:
    return {TAG: kind, "v": value, **more}


def tagged_text(text: str) -> object:
    """Text as it is, or tagged where it holds NUL or lone surrogates."""
    try:
        clean = "\0" not in text and text.encode()
    except UnicodeEncodeError:
        clean = False
    if clean is False:
        return _tag("text", b64encode(text.encode(errors="surrogatepass")).decode())
    return str.__str__(text)


def _tagged_scalar(value: datetime | date | time | timedelta | Decimal, path: Path) -> object:
    match value:
        case Decimal():
            return _tag("decimal", Decimal.__str__(value))
        case timedelta():
            return _tag("timedelta", [value.days, value.seconds, value.microseconds])
        case datetime() if value != value:  # pandas.NaT calls itself a datetime
            raise ValueEncodingError(_format_path(path), "it is not a time")
        case datetime():
            return _tag("datetime", datetime.isoformat(value), **_zone(value))
        case date():
            return _tag("date", date.isoformat(value))
        case time():
            return _tag("time", time.isoformat(value), **_zone(value))


def _zone(value: datetime | time) -> dict[str, object]:
    zone = getattr(value.tzinfo, "key", None)
    more: dict[str, object] = {"zone": zone} if isinstance(zone, str) else {}
    return more | ({"fold": 1} if value.fold else {})


def _fields(value: object) -> dict[object, object] | None:
    kind: Any = type(value)
    if isinstance(value, dict):
        return value
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        fields: dict[object, object] = {stored: getattr(value, name) for stored, name in names}
        config = value.__struct_config__
        tag = {} if config.tag_field is None else {config.tag_field: config.tag}
        return tag | {name: item for name, item in fields.items() if item is not msgspec.UNSET}
    if is_dataclass(kind):
        from dataclasses import fields as fields_of

        return {field.name: getattr(value, field.name) for field in fields_of(kind)}
    return None


def _dump_model(model: Any, path: Path) -> object:
    try:
        return model.model_dump(mode="json", by_alias=True)
    except Exception as error:  # the model's own code runs here
        raise ValueEncodingError(_format_path(path), f"model_dump raised {type(error).__name__}: {error}") from error


def _tagged_map(source: dict[object, object], path: Path, above: tuple[int, ...], sort: bool) -> object:
    result: dict[object, object] = {}
    escape = False
    for key, item in source.items():
        if not isinstance(key, str):
            raise ValueEncodingError(_format_path(path), f"the key {key!r} is {type(key).__name__}, not text")
        name = str(key.value) if isinstance(key, enum.Enum) else str.__str__(key)
        escape = escape or name == TAG or not isinstance(tagged_text(name), str)
        result[name] = _tagged_value(item, (*path, name), above, sort)
    if not escape:
        return result
    pairs = sorted(result.items(), key=lambda pair: str(pair[0])) if sort else result.items()
    return _tag("dict", [[tagged_text(str(name)), item] for name, item in pairs])


def _format_path(path: Path) -> str:
    return "$" + "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" if step.isidentifier() else f"[{step!r}]" for step in path
    )


# --- decoding -----------------------------------------------------------------------------------------------------


def _untag(value: Any) -> Any:
    if isinstance(value, list):
        return [_untag(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: _untag(item) for key, item in value.items()}
    untag = _UNTAG.get(value[TAG]) if isinstance(value[TAG], str) else None
    if untag is None:
        raise NewerSchemaError(
            f"a stored value is tagged {value[TAG]!r}, which this version does not know",
            next_step="Use the version of AgentOS that wrote it, or a newer one.",
        )
    try:
        return untag(value["v"], value)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise CheckpointCorruptedError("a stored value", f"bad {value[TAG]}: {error!r}") from error


def _in_zone(value: Any, more: dict[str, Any]) -> Any:
    zone = _named_zone(more["zone"]) if "zone" in more else None
    return value.replace(tzinfo=zone or value.tzinfo, fold=more.get("fold", 0))


def _named_zone(name: str) -> tzinfo | None:
    # Imported here: few values need it. A machine without that zone keeps the offset, which names the same instant.
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


_UNTAG: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "bytes": lambda v, _: b64decode(v, validate=True),
    "datetime": lambda v, more: _in_zone(datetime.fromisoformat(v), more),
    "date": lambda v, _: date.fromisoformat(v),
    "time": lambda v, more: _in_zone(time.fromisoformat(v), more),
    "timedelta": lambda v, _: timedelta(*v),
    "decimal": lambda v, _: Decimal(v),
    "float": lambda v, _: float(v),
    "int": lambda v, _: int(v, 16),
    "text": lambda v, _: b64decode(v, validate=True).decode(errors="surrogatepass"),
    "dict": lambda v, _: {_untag(key): _untag(item) for key, item in v},
}
