"""What a setting may be: read from TOML or from the text of a variable, into one checked value."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta

from agentos import typed
from agentos.excerpts import shorten

_UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_MOST = (1 << 63) - 1
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

    type: Any
    """What TOML gives is converted to this, and checked."""
    allowed: str
    """What may be written, for a message."""
    from_text: Callable[[str], object] = str.strip
    """What TOML would give, from a variable's text; left as it is where it makes no sense."""
    prepare: Callable[[Any], object] = lambda value: value
    """What TOML gives, as the type takes it. ValueError where it is not allowed."""
    is_table: bool = False

    def read(self, value: object) -> Any:
        """The checked value. ValueError where it is not allowed."""
        return typed.convert(self.prepare(value), self.type)  # its errors are ValueErrors

    def faults(self, value: object) -> Iterable[Fault]:
        """Of a value that is not allowed: each thing that is wrong in it."""
        if self.is_table:
            return _faults(self.type, value, "")
        return (Fault("", f"is {shorten(repr(value))}", shows_value=True),)


def text(allowed: str) -> Kind:
    """Any text but an empty one; somebody else looks closer."""
    return Kind(Annotated[str, Meta(pattern=r"\S")], allowed)


def choice(*words: str) -> Kind:
    """One of the words."""
    return Kind(Literal[words], " or ".join(f'"{word}"' for word in words))


def whole(*, at_least: int) -> Kind:
    """A whole number."""
    return Kind(Annotated[int, Meta(ge=at_least, le=_MOST)], f"a whole number, {at_least} or more", _number)


def seconds(*, at_least: float, at_most: float) -> Kind:
    """A time in seconds."""
    allowed = f"seconds, from {at_least:g} to {at_most:g}"
    return Kind(Annotated[float, Meta(ge=at_least, le=at_most)], allowed, _number)


def size() -> Kind:
    """Bytes, with or without a unit."""
    allowed = 'a number of bytes, or text as "100 MB" (kB, MB, GB; KiB, MiB, GiB)'
    return Kind(
        Annotated[int, Meta(ge=0, le=_MOST)],
        allowed,
        prepare=lambda value: parse_size(value) if isinstance(value, str) else value,
    )


def names() -> Kind:
    """Names of environment variables, each once."""
    return Kind(
        tuple[Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")], ...],
        'a list of names of variables, as ["DEPLOY_TOKEN"]; in a variable, with commas between',
        lambda text: [name for part in text.split(",") if (name := part.strip())],
        lambda value: (
            [one for place, one in enumerate(value) if one not in value[:place]] if isinstance(value, list) else value
        ),
    )


def arguments() -> Kind:
    """A program and its arguments; none where the list is empty."""

    def prepare(value: object) -> object:
        if isinstance(value, list) and value and not str(value[0]).strip():
            raise ValueError
        return value

    # A text is refused: nobody should have to wonder whether a shell sees it.
    words = tuple[Annotated[str, Meta(pattern=r"^[^\0]*\Z")], ...]
    return Kind(words, 'an argument list, as ["notify-send", "AgentOS"]; no shell is used', _words, prepare)


def table(type: Any, allowed: str) -> Kind:
    """A table, or tables by name, of that type."""
    return Kind(type, f"{allowed}; in a variable, the same as JSON", _json, is_table=True)


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


def parse_size(text: str) -> int:
    """Bytes of `100 MB` and the like. ValueError where it is none."""
    found = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(found[2].lower()) if found is not None else None
    if found is None or unit is None or float(found[1]) * unit > _MOST:
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
