"""A YAML document as plain data that remembers where it was written. Nothing in it is ever executed or imported.

Only what JSON could say as well: maps with text as keys, lists, text, numbers, true, false, null. What a plain scalar
means follows YAML 1.2, not 1.1:

| written                                        | means                                  |
|------------------------------------------------|----------------------------------------|
| `true`, `false` (also `True`, `TRUE`)          | a boolean; `yes`, `no`, `on`, `off` are text |
| `12`, `0x1f`, `0o17`, `1.5`, `1e3`             | a number; `12:30`, `007`, `1_000`, `2026-01-31` are text |
| `null`, `~`, nothing at all                    | null                                   |
| `on:`, `1:`, `true:` (a key)                   | the text as it was written             |

Anchors and aliases work, as long as they stay small when written out. Tags do not, but for `!!str`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, assert_never

import msgspec
import yaml

MAX_BYTES = 8 * 1024 * 1024
MAX_VALUES = 1_000_000
"""Values of one file, with every alias written out."""
MAX_DEPTH = 64
_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{f"{sign}.{word}": float(f"{sign}inf") for sign in ("", "+", "-") for word in ("inf", "Inf", "INF")},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_MANY_DIGITS = 4000
"""Python refuses to read longer numbers, for they take too long."""
# libyaml where PyYAML was built with it: ten times as fast. Only its parser is used, which makes no objects.
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Position(msgspec.Struct, frozen=True):
    """Counted from 1."""

    line: int
    column: int


class Scalar(msgspec.Struct, frozen=True):
    place: Position
    text: str
    plain: bool
    """Written without quotes: it may mean a number, a boolean or null."""


class Items(msgspec.Struct, frozen=True):
    place: Position
    items: list[Node]


class Map(msgspec.Struct, frozen=True):
    place: Position
    entries: dict[str, tuple[Position, Node]]
    """By key: where the key stands, and the value."""


Node = Scalar | Items | Map


class Flaw(msgspec.Struct, frozen=True):
    """Something wrong with the document itself."""

    message: str
    place: Position | None = None


class YamlDocument(msgspec.Struct, frozen=True):
    root: Node | None
    """None where the file cannot be read at all, or holds nothing."""
    flaws: tuple[Flaw, ...] = ()


def read_document(data: bytes) -> YamlDocument:
    """The document. Never raises: what is wrong is in its flaws, all of it where reading can go on."""
    text, flaw = _decode(data)
    if flaw is not None:
        return YamlDocument(None, (flaw,))
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=_PARSER):
            builder.take(event)
    except _Hopeless as stop:
        return YamlDocument(None, (*builder.flaws, stop.flaw))
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: escapes that name no character
        return YamlDocument(None, (*builder.flaws, _syntax_flaw(error, text)))
    if builder.root is None and not builder.flaws:
        return YamlDocument(None, (Flaw("the file is empty"),))
    return YamlDocument(builder.root, tuple(builder.flaws))


def value_of(node: Node) -> Any:
    """The value, made afresh: nothing is shared with another use of the same anchor."""
    match node:
        case Scalar():
            return plain_value(node.text) if node.plain else node.text
        case Items():
            return [value_of(item) for item in node.items]
        case Map():
            return {key: value_of(value) for key, (_, value) in node.entries.items()}
    assert_never(node)


def text_of(node: Node) -> Any:
    """The value where text is wanted: a scalar as it was written (`3.10` stays 3.10), null as nothing."""
    if not isinstance(node, Scalar):
        return value_of(node)
    return "" if node.plain and _WORDS.get(node.text, node.text) is None else node.text


def is_blank(node: Node) -> bool:
    """Nothing at all was written."""
    return isinstance(node, Scalar) and node.plain and not node.text


def plain_value(text: str) -> Any:
    """What a scalar without quotes means."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789" or len(text) > _MANY_DIGITS:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text


def nodes_below(node: Node) -> Iterator[tuple[Position, Node]]:
    """The children of a node, each with the place to point at: that of its key, where it has one."""
    if isinstance(node, Items):
        yield from ((item.place, item) for item in node.items)
    elif isinstance(node, Map):
        yield from node.entries.values()


# --- reading ------------------------------------------------------------------------------------------------------


class _Hopeless(Exception):
    """Reading cannot go on."""

    def __init__(self, flaw: Flaw) -> None:
        self.flaw = flaw


class _Open:
    """A list or map that is being read."""

    def __init__(self, node: Items | Map, anchor: str | None, place: Position) -> None:
        self.node, self.anchor, self.place = node, anchor, place
        self.key: tuple[str, Position] | None = None
        self.awaits_key = isinstance(node, Map)
        self.size, self.height = 1, 1


class _Builder:
    """Builds the tree from the parser's events, without recursion: nesting is refused long before it could hurt."""

    def __init__(self) -> None:
        self.root: Node | None = None
        self.flaws: list[Flaw] = []
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Node, int, int]] = {}
        """By name: the node, how many values it is, how deep it goes."""
        self._values = 0
        self._documents = 0

    def take(self, event: Any) -> None:
        place = Position(event.start_mark.line + 1, event.start_mark.column + 1)
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise _Hopeless(Flaw("a second document begins here: a workflow file holds one", place))
        elif isinstance(event, yaml.ScalarEvent):
            if event.tag not in _TEXT_TAGS:
                self._check_tag(event.tag, place)
            plain = event.style in (None, "") and event.tag is None
            self._add(Scalar(place, event.value, plain), place, 1, 0, event.anchor)
            self._count(1, place)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(str(event.anchor), place)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._check_tag(event.tag, place)
            node: Items | Map = Map(place, {}) if isinstance(event, yaml.MappingStartEvent) else Items(place, [])
            self._open.append(_Open(node, event.anchor, place))
            self._check_depth(0, place)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            done = self._open.pop()
            self._add(done.node, done.place, done.size, done.height, done.anchor)
            self._count(1, done.place)  # what is inside was counted when it was read

    def _alias(self, name: str, place: Position) -> None:
        found = self._anchors.get(name)
        if found is None:
            around = any(frame.anchor == name for frame in self._open)
            why = "stands inside what it refers to" if around else "refers to nothing above it"
            raise _Hopeless(Flaw(f"the alias *{_shorten(name)} {why}", place))
        node, size, height = found
        self._check_depth(height, place)
        self._count(size, place)
        self._add(node, place, size, height, None)

    def _add(self, node: Node, place: Position, size: int, height: int, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = (node, size, height)
        if not self._open:
            self.root = node
            return
        frame = self._open[-1]
        frame.size += size
        frame.height = max(frame.height, height + 1)
        if isinstance(frame.node, Items):
            frame.node.items.append(node)
        elif frame.awaits_key:
            frame.key = self._key(node, place, frame.node)
            frame.awaits_key = False
        else:
            frame.awaits_key = True
            if frame.key is not None:
                key, where = frame.key
                frame.node.entries[key] = (where, node)

    def _key(self, node: Node, place: Position, into: Map) -> tuple[str, Position] | None:
        """The key to use; None, with a flaw, where its value has to be left out."""
        if not isinstance(node, Scalar) or is_blank(node):
            self.flaws.append(Flaw("a key is text, not a list, a map or nothing", place))
        elif node.plain and node.text == "<<":
            self.flaws.append(Flaw("`<<` is not supported: use `defaults` for what all tasks share", place))
        elif (first := into.entries.get(node.text)) is not None:
            message = f"the key {_shorten(node.text)!r} is here twice: it is in line {first[0].line} already"
            self.flaws.append(Flaw(message, place))
        else:
            return node.text, place
        return None

    def _count(self, values: int, place: Position) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            message = f"the file holds more than {MAX_VALUES:,} values, with its aliases written out"
            raise _Hopeless(Flaw(message, place))

    def _check_tag(self, tag: str | None, place: Position) -> None:
        if tag is not None:
            shown = _shorten(tag.replace("tag:yaml.org,2002:", "!!"))
            self.flaws.append(Flaw(f"the tag {shown} is not allowed: workflow files hold plain data", place))

    def _check_depth(self, height: int, place: Position) -> None:
        if len(self._open) + height > MAX_DEPTH:
            raise _Hopeless(Flaw(f"lists and maps are nested more than {MAX_DEPTH} deep", place))


# --- what goes wrong before that ------------------------------------------------------------------------------------


def _decode(data: bytes) -> tuple[str, Flaw | None]:
    if len(data) > MAX_BYTES:
        return "", Flaw(f"the file has more than {MAX_BYTES // 2**20} MiB, which is too much for a workflow file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if b"\0" in data[:1024]:
            return "", Flaw("this is a binary file, not YAML")
        before = data[: error.start].decode("utf-8", "replace")
        return "", Flaw(f"not UTF-8: the byte 0x{data[error.start]:02x} cannot stand here", _place_after(before))
    return text, Flaw("this is a binary file, not YAML") if "\0" in text else None


def _syntax_flaw(error: Exception, text: str) -> Flaw:
    if isinstance(error, yaml.reader.ReaderError):
        odd = next((found.start() for found in re.finditer(_UNPRINTABLE, text)), None)
        place = _place_after(text[:odd]) if odd is not None else None
        return Flaw("a control character stands here, which YAML does not allow", place)
    mark = isinstance(error, yaml.MarkedYAMLError) and (error.problem_mark or error.context_mark)
    if not isinstance(error, yaml.MarkedYAMLError) or not mark:
        return Flaw(f"not YAML: {_shorten(str(error))}")
    why = _shorten(" ".join(filter(None, (error.context, error.problem))))
    lines = text.split("\n")
    if mark.line >= len(lines):  # the parser counts one line more than there are at the end of a file
        return Flaw(f"not YAML: {why}", _place_after(text))
    line = lines[mark.line]
    if line[mark.column : mark.column + 1] == "\t":
        why = "a tab stands here, indent with spaces"
    if "${{" in line:
        why += " (inside { } and [ ], text with ${{ }} has to stand in quotes)"
    return Flaw(f"not YAML: {why}", Position(mark.line + 1, mark.column + 1))


_UNPRINTABLE = "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


def _place_after(before: str) -> Position:
    return Position(before.count("\n") + 1, len(before) - before.rfind("\n"))


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"
