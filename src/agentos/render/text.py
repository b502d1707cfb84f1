"""Text that came out of workflows, made fit for a terminal; and times as people read them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from datetime import datetime

_OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Controls in Unicode: C1, and those that change the order of reading."""
_JOINER = "\u200d"
"""Holds the parts of one emoji together; harmless."""
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def printable(text: str) -> str:
    """The text on one line, with everything a terminal would obey instead of show written out as an escape.

    A task's id, question or output must not be able to clear the screen, fake a prompt, or change its reading order.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_printable_character, text))


def printable_lines(text: str) -> list[str]:
    """As `printable`, line by line."""
    return [printable(line) for line in text.splitlines()] or [""]


def _printable_character(character: str) -> str:
    if character == "\t" or unicodedata.category(character) == "Zs":
        return " "
    if character.isprintable() or character == _JOINER:
        return character
    return character.encode("unicode_escape", "backslashreplace").decode()


def escape_json(data: bytes) -> bytes:
    """The same JSON, with what a terminal may obey written as an escape. JSON itself lets C1 controls stand."""
    return data if data.isascii() else _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode()).encode()


def short(text: str, limit: int) -> str:
    """The text, cut with an ellipsis where it is longer than `limit` characters."""
    return text if len(text) <= limit else f"{text[: max(0, limit - 1)]}…"


def short_middle(text: str, limit: int) -> str:
    """As `short`, but both ends are kept: names of a fan-out's items often differ at their end alone."""
    if len(text) <= limit:
        return text
    tail = max(0, limit - 1) // 2
    return f"{text[: max(0, limit - 1 - tail)]}…{text[len(text) - tail :]}"


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


def local(at: datetime) -> str:
    """Date and time where the reader is; programs get ISO 8601 in UTC, from the encoder."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def until(at: datetime, now: datetime) -> str:
    """`in 12s, at 18:04:05`: how long to wait, and until when; the date, too, where it is another day."""
    there, here = at.astimezone(), now.astimezone()
    clock = f"{there:%H:%M:%S}" if there.date() == here.date() else local(at)
    return f"in {duration((at - now).total_seconds())}, at {clock}"


def ago(at: datetime, now: datetime) -> str:
    """`3 min ago`, `2 d ago`, `just now`; `in 5 min` for what is to come."""
    seconds = int((now - at).total_seconds())
    for size, unit in _UNITS:
        if abs(seconds) >= size:
            return f"{seconds // size} {unit} ago" if seconds > 0 else f"in {-seconds // size} {unit}"
    return "just now"


def name_some(names: Sequence[str], most: int) -> str:
    """`a, b, c and 2 more`: the first of some names, printable."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(printable, names[:most])) + more
