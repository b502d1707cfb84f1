"""Text that came out of workflows, made fit for a terminal; and times as people read them."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import msgspec

from agentos.run.events import Usage
from agentos.run.spending import money
from agentos.values import decode_value

_OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Controls in Unicode: C1, and those that change the order of reading."""
_JOINER = "\u200d"
"""Holds the parts of one emoji together; harmless."""


SHELL_OUTPUT = {"stdout", "stderr", "exit_code"}
MOST_LINES = 8
"""So many more lines of a value of several are shown."""


def printable(text: str) -> str:
    """The text on one line, with everything a terminal would obey instead of show written out as an escape.

    A task's id, question or output must not be able to clear the screen, fake a prompt, or change its reading order.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def printable_lines(text: str) -> list[str]:
    """As `printable`, line by line."""
    return [printable(line) for line in text.splitlines()] or [""]


def _shown(character: str) -> str:
    if character == "\t" or unicodedata.category(character) == "Zs":
        return " "
    if character.isprintable() or character == _JOINER:
        return character
    return character.encode("unicode_escape", "backslashreplace").decode()


def shown_json(data: bytes) -> bytes:
    """The same JSON, with what a terminal may obey written as an escape. JSON itself lets C1 controls stand."""
    return data if data.isascii() else _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode()).encode()


def short(text: str, limit: int) -> str:
    """The text, cut with an ellipsis where it is longer than `limit` characters."""
    return text if len(text) <= limit else f"{text[: max(0, limit - 1)]}…"


def told(value: Any) -> Any:
    """Of what a command gave what it printed; of everything else all."""
    return value["stdout"] if isinstance(value, dict) and set(value) == SHELL_OUTPUT else value


def value_in_short(stored: msgspec.Raw, limit: int = 200) -> str:
    """A stored value for people: text as it is, everything else as compact JSON, on one line and cut short."""
    if len(bytes(stored)) > 1 << 20:
        return f"{len(bytes(stored)):,} bytes"
    value = told(decode_value(stored))
    text = value if isinstance(value, str) else bytes(stored).decode(errors="replace")
    return short(printable(text.strip()), limit)


def given_lines(inputs: str) -> list[str]:
    """What a gate's task would be given, as `name = value` lines; nothing where it takes nothing."""
    try:
        given = msgspec.json.decode(inputs) if inputs else {}
    except msgspec.DecodeError:  # cut short when it was stored
        given = inputs
    if not isinstance(given, dict):
        return [short(printable(inputs), 300)]
    lines: list[str] = []
    for name, value in given.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        first, *rest = (short(line, 300) for line in printable_lines(text))
        lines += [f"{printable(name)} = {first}", *(f"  {line}" for line in rest[:MOST_LINES])]
        lines += ["  …"] if len(rest) > MOST_LINES else []
    return lines


def duration(seconds: float) -> str:
    """`0.4s`, `12s`, `3m20s`, `2h05m`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def count(number: int, noun: str) -> str:
    """`1 task`, `3 tasks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def usage_text(usage: Usage) -> str:
    """What models were paid for, in short."""
    cost = f"{money(usage.cost_usd)}, " if usage.cost_usd else ""
    return f"{cost}{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
