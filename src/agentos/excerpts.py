"""Texts and lists for messages, cut where they would be too long."""

from __future__ import annotations

from collections.abc import Iterable


def shorten(text: str, most: int = 80) -> str:
    """The text; of one with more characters than `most` the beginning."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shorten_command(command: str, most: int = 80) -> str:
    """A command on one line."""
    first, *more = command.splitlines() or [""]
    return shorten(f"{first} …" if more else first, most)


def list_some(names: Iterable[object], most: int = 5) -> str:
    """The first few names of many."""
    listed = list(map(str, names))
    return ", ".join(listed[:most]) + (", …" if len(listed) > most else "")
