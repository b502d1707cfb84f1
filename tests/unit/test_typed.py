"""Structs are read through `agentos.typed` alone: it is what keeps two threads from looking at one at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import agentos
from agentos import typed

SOURCES = Path(agentos.__file__).parent
PLAIN = {"dict", "list", "tuple", "str", "object", "Any", "Raw", "None"}
"""Types that msgspec has nothing to look at."""


def readings(tree: ast.AST) -> Iterator[tuple[int, ast.expr]]:
    """Where msgspec itself is told a type to read, and the type."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            said = ast.unparse(node.func)
            if said == "msgspec.convert":
                yield node.lineno, node.args[1]
            elif said in ("msgspec.json.Decoder", "msgspec.msgpack.Decoder") and node.args:
                yield node.lineno, node.args[0]
            elif said in ("msgspec.json.decode", "msgspec.msgpack.decode"):
                yield from ((node.lineno, word.value) for word in node.keywords if word.arg == "type")


def test_no_other_module_has_msgspec_look_at_a_struct() -> None:
    found = [
        f"{path.relative_to(SOURCES)}:{line}"
        for path in SOURCES.rglob("*.py")
        if path.name != "typed.py"
        for line, kind in readings(ast.parse(path.read_text()))
        if {name.id for name in ast.walk(kind) if isinstance(name, ast.Name)} - PLAIN
    ]
    assert found == [], "use agentos.typed"


class Point(msgspec.Struct):
    x: int


def test_what_is_read_is_what_msgspec_reads() -> None:
    assert typed.decode(b'{"x":1}', Point) == Point(1)
    assert typed.decoder(Point).decode(b'{"x":2}') == Point(2)
    assert typed.convert({"x": "3"}, Point, strict=False) == Point(3)
    unhashable: Any = Annotated[int, msgspec.Meta(extra={"a": []})]
    assert typed.convert(4, unhashable) == 4
    with pytest.raises(msgspec.ValidationError):
        typed.convert({"x": "y"}, Point)
