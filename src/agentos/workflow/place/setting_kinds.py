"""What a setting may be: read from TOML or from the text of a variable, into one checked value."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, get_args

import msgspec

from agentos import typed

_UNITS = {
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
"""Keys that TOML takes without quotes."""


class Fault(NamedTuple):
    """Something that is wrong in a value."""

    key: str
    """Where in a table, as `.OPENAI_API_KEY.slots`; empty: the value as a whole."""
    what: str
    """To stand after the name of the setting."""
    shows_value: bool = False
    """Whether the value itself may be shown. Not what a table holds: somebody may have written a key there."""


class Kind(NamedTuple):
    """A kind of value."""

    allowed: str
    """What may be written, for a message."""
    read: Callable[[object], Any]
    """The checked value of what TOML gives. ValueError where it is not allowed."""
    from_text: Callable[[str], object] = str.strip
    """What TOML would give, from a variable's text; left as it is where it makes no sense."""
    faults: Callable[[object], Iterable[Fault]] = lambda value: (Fault("", f"is {short_repr(value)}", True),)
    """Of a value that is not allowed: each thing that is wrong in it."""


def text(allowed: str) -> Kind:
    """Any text but an empty one; somebody else looks closer."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise ValueError
        return value

    return Kind(allowed, read)


def choice(*words: str) -> Kind:
    """One of the words."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError
        return value

    return Kind(" or ".join(f'"{word}"' for word in words), read)


def whole(*, at_least: int) -> Kind:
    """A whole number."""

    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least or value >= 1 << 63:
            raise ValueError
        return value

    return Kind(f"a whole number, {at_least} or more", read, _number)


def seconds(*, at_least: float, at_most: float) -> Kind:
    """A time in seconds."""

    def read(value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not at_least <= value <= at_most:
            raise ValueError
        return float(value)

    return Kind(f"seconds, from {at_least:g} to {at_most:g}", read, _number)


def size() -> Kind:
    """Bytes, with or without a unit."""

    def read(value: object) -> int:
        if isinstance(value, str):
            return parse_size(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
            raise ValueError
        return value

    return Kind('a number of bytes, or text as "100 MB" (kB, MB, GB; KiB, MiB, GiB)', read)


def names() -> Kind:
    """Names of environment variables, each once."""

    def read(value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in value):
            raise ValueError
        return tuple(dict.fromkeys(value))

    return Kind(
        'a list of names of variables, as ["DEPLOY_TOKEN"]; in a variable, with commas between',
        read,
        lambda text: [name for part in text.split(",") if (name := part.strip())],
    )


def arguments() -> Kind:
    """A program and its arguments; none where the list is empty."""

    def read(value: object) -> tuple[str, ...]:
        # A text is refused: nobody should have to wonder whether a shell sees it.
        if not isinstance(value, list) or not all(isinstance(word, str) and "\0" not in word for word in value):
            raise ValueError
        if value and not value[0].strip():
            raise ValueError
        return tuple(value)

    return Kind('an argument list, as ["notify-send", "AgentOS"]; no shell is used', read, _words)


def table(type: Any, allowed: str) -> Kind:
    """A table, or tables by name, of that type."""

    def read(value: object) -> Any:
        read: Any = typed.convert(value, type)  # its errors are ValueErrors
        return read

    return Kind(f"{allowed}; in a variable, the same as JSON", read, _json, lambda value: _faults(type, value, ""))


def _faults(type: Any, value: object, key: str) -> Iterator[Fault]:
    """What is wrong with a table, down to the keys themselves."""
    try:
        typed.convert(value, type)
    except ValueError as error:
        inside = list(_faults_inside(type, value, key)) if isinstance(value, Mapping) else []
        why = str(error).partition(" - at `$")[0]
        yield from inside or [Fault(key, f"is wrong: {why[:1].lower()}{why[1:]}")]


def _faults_inside(type: Any, table: Mapping[str, object], key: str) -> Iterator[Fault]:
    if not hasattr(type, "__struct_fields__"):
        for name, value in table.items():
            yield from _faults(get_args(type)[1], value, f"{key}.{_as_key(name)}")
        return
    known = {field.name: field for field in msgspec.structs.fields(type)}
    for name, value in table.items():
        if name in known:
            yield from _faults(known[name].type, value, f"{key}.{_as_key(name)}")
        else:
            yield Fault(f"{key}.{_as_key(name)}", "is unknown")
    yield from (
        Fault(f"{key}.{name}", "is missing") for name, one in known.items() if one.required and name not in table
    )


def _as_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else f'"{name}"'


def short_repr(value: object) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def parse_size(text: str) -> int:
    """Bytes of `100 MB` and the like. ValueError where it is none."""
    found = _SIZE.fullmatch(text.strip())
    unit = 1 if found is None or not found[2] else _UNITS.get(found[2].lower())
    if found is None or unit is None or float(found[1]) * unit >= 1 << 63:
        raise ValueError(text)
    return int(float(found[1]) * unit)


def _number(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _words(text: str) -> object:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed
        return text
