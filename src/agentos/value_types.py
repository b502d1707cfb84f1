"""Stored values as the types that parameters are annotated with. The annotation decides, nothing that was stored."""

from __future__ import annotations

import enum
from collections import abc
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from agentos import typed
from agentos.exceptions import AttemptError, ValueEncodingError
from agentos.values import PLAIN, SCALARS, canonical_json, codec_of, is_dataclass, is_named_tuple, is_numpy_scalar

_LISTS = frozenset({list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable})
_SETS = frozenset({set, frozenset, abc.Set, abc.MutableSet})
_MAPS = frozenset({dict, abc.Mapping, abc.MutableMapping})
_HOLDERS = frozenset({Annotated, Union, UnionType}) | _LISTS | _MAPS
_MADE = frozenset({tuple}) | _SETS
_MISFITS = (msgspec.ValidationError, ValueError)
_UNRESOLVED = (NameError, AttributeError, TypeError, SyntaxError, ValueError)
"""What an annotation with a name that nobody knows may raise when it is looked at."""


def convert_to(value: Any, annotation: Any) -> Any:
    """The decoded value as the annotated type, where that has a stored form which is not itself, or holds such.

    Anything else comes back unchanged: annotations are not enforced. AttemptError where a value does not fit.
    """
    try:
        return _convert(value, annotation)
    except _MISFITS as error:
        name = getattr(annotation, "__qualname__", None) or str(annotation)
        raise AttemptError(
            f"{type(value).__name__} does not fit its type {name}: {error}",
            next_step="Change the annotation, or what the task before it returns.",
        ) from error


def converts(annotation: Any) -> bool:
    """Whether `convert_to` may make anything of a value for this annotation."""
    origin = get_origin(annotation)
    if origin in _HOLDERS:
        return any(map(converts, get_args(annotation)))
    if origin is not None:
        return origin in _MADE or _has_known_fields(origin) or (isinstance(origin, type) and bool(codec_of(origin)))
    if isinstance(annotation, type):
        return annotation not in PLAIN
    return (meant := _target_of(annotation)) is not None and converts(meant)


def _convert(value: Any, annotation: Any) -> Any:
    origin = get_origin(annotation)
    if origin is not None:
        return _convert_generic(value, annotation, origin)
    if not isinstance(annotation, type):
        meant = _target_of(annotation)
        return value if meant is None else _convert(value, meant)
    if annotation in PLAIN:
        return value
    if (codec := codec_of(annotation)) is not None:
        return _make_foreign(codec.decode, value)
    if issubclass(annotation, enum.Enum):
        return _member(value, annotation)
    if hasattr(annotation, "model_validate"):
        return _make_foreign(_model, annotation, value)
    if annotation in SCALARS or _has_known_fields(annotation):
        return _by_msgspec(value, annotation)
    if is_typeddict(annotation):
        return _by_keys(value, annotation)
    if issubclass(annotation, PurePath):
        if not isinstance(value, str):
            raise ValueError("a path is text")
        return annotation(value)
    if is_numpy_scalar(annotation):
        return _make_foreign(_numpy_scalar, annotation, value)
    return (
        _make_foreign(annotation, value) if annotation in (tuple, set, frozenset) and isinstance(value, list) else value
    )


def _target_of(annotation: Any) -> Any:
    """What `type X = …` or a NewType stands for; None for anything else."""
    try:
        return getattr(annotation, "__value__", None) or getattr(annotation, "__supertype__", None)
    except _UNRESOLVED:
        return None


def _has_known_fields(kind: Any) -> bool:
    return is_dataclass(kind) or (isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or is_named_tuple(kind)))


def _make_foreign(make: Any, *given: Any) -> Any:
    """What code that is not ours makes of a value. ValueError, whatever it raises."""
    try:
        return make(*given)
    except Exception as error:
        raise ValueError(str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}") from error


def _convert_generic(value: Any, annotation: Any, origin: Any) -> Any:
    args = get_args(annotation)
    if origin is Annotated:
        return _convert(value, args[0])
    if origin is Union or origin is UnionType:
        return _convert_union(value, args)
    if origin in _MAPS and len(args) == 2 and isinstance(value, dict):
        return {_convert(key, args[0]): _convert(item, args[1]) for key, item in value.items()}
    if origin in _LISTS and args and isinstance(value, list):
        return [_convert(item, args[0]) for item in value]
    if origin in _SETS and args and isinstance(value, list):
        return _make_foreign(frozenset if origin is frozenset else set, [_convert(item, args[0]) for item in value])
    if origin is tuple and isinstance(value, list):
        kinds = [args[0]] * len(value) if args[1:] == (...,) else args
        if len(kinds) != len(value):
            raise ValueError(f"expected {len(kinds)} elements, got {len(value)}")
        return tuple(_convert(item, kind) for item, kind in zip(value, kinds, strict=True))
    if isinstance(origin, type) and (codec := codec_of(origin)) is not None:
        return _make_foreign(codec.decode, value)
    return _by_msgspec(value, annotation) if _has_known_fields(origin) else value


def _convert_union(value: Any, arms: tuple[Any, ...]) -> Any:
    if value is None and NoneType in arms:
        return None
    # A value that already is of an arm's type stays as it is: `str | date` does not turn text into a date.
    if any(isinstance(arm, type) and type(value) is arm for arm in arms):
        return value
    failures, fitting, refused = [], [], True
    for arm in arms:
        if arm in PLAIN:
            continue
        try:
            converted = _convert(value, arm)
        except _MISFITS as error:
            failures.append(str(error))
            continue
        if converted is not value:
            fitting.append(converted)
        refused = False
    if refused and failures:
        raise ValueError("; ".join(failures))
    # Of two classes that take it, it was the one that is stored so: the other leaves fields out, or adds some.
    exact = (one for one in fitting if len(fitting) > 1 and _is_stored_as(one, value))
    return next(exact, fitting[0] if fitting else value)


def _is_stored_as(converted: Any, value: Any) -> bool:
    try:
        return canonical_json(converted) == canonical_json(value)
    except ValueEncodingError:
        return False


def _member(value: Any, kind: type[enum.Enum]) -> enum.Enum:
    stored = canonical_json(value)
    for member in kind:
        if canonical_json(member.value) == stored:
            return member
    return kind(value)


def _model(kind: Any, value: Any) -> Any:
    """A pydantic model, in its JSON mode: that takes text for what JSON lacks where a strict model would not."""
    if hasattr(kind, "model_validate_json"):
        from json import dumps

        try:
            return kind.model_validate_json(dumps(value))
        except TypeError:  # dates and the like: not from a model, or from one that an earlier version stored
            pass
    return kind.model_validate(value)


def _numpy_scalar(kind: Any, value: Any) -> Any:
    made = None if value is None else kind(value)
    if not isinstance(made, kind):  # numpy makes a number of None, and an array of a list
        raise ValueError(f"numpy's {kind.__name__} is one number, text or time")
    return made


def _by_msgspec(value: Any, annotation: Any) -> Any:
    try:
        return typed.convert(value, annotation, dec_hook=lambda kind, part: _convert(part, kind), str_keys=True)
    except (TypeError, NameError):  # it does not know a type inside, or how to tell those of a union apart
        return _by_fields(value, annotation)


def _by_keys(value: Any, kind: Any) -> Any:
    """A TypedDict, each key by its own annotation; which keys there are is not enforced."""
    try:
        hints = get_type_hints(kind)
    except _UNRESOLVED:
        return value
    if not isinstance(value, dict):
        return value
    return {key: _convert(item, hints[key]) if key in hints else item for key, item in value.items()}


def _by_fields(value: Any, kind: Any) -> Any:
    """A dataclass or named tuple, each field by its own annotation; as it is stored where that cannot be done."""
    try:
        hints = get_type_hints(kind, include_extras=True)
    except _UNRESOLVED:
        return value
    if is_dataclass(kind) and isinstance(value, dict):
        from dataclasses import fields

        known = [field for field in fields(kind) if field.name in value]
        parts = {field.name: _convert(value[field.name], hints[field.name]) for field in known}
        made = _make_foreign(lambda: kind(**{field.name: parts[field.name] for field in known if field.init}))
        for field in known:
            if not field.init:
                object.__setattr__(made, field.name, parts[field.name])
        return made
    if isinstance(kind, type) and is_named_tuple(kind) and isinstance(value, list):
        kinds = map(hints.get, kind._fields)  # type: ignore[attr-defined]
        parts_in_order = [_convert(*pair) for pair in zip(value, kinds, strict=False)]
        return _make_foreign(kind, *parts_in_order, *value[len(parts_in_order) :])
    return value
