"""What differs between two states of a run, line by line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from agentos.client.diffs import StateChange, StateDifference
from agentos.render.text import count, printable, short, short_middle

WIDEST = 100
LEAD = 20
"""So many characters are shown before the first one that differs."""


def difference_lines(found: StateDifference) -> Iterator[str]:
    """By section, empty lines before: `!` what changed, `-` what went, `+` what came; each on a line, cut short."""
    yield from _section("Tasks", found.tasks)
    yield from _section("Context", found.context)
    messages = found.messages
    if messages.added or messages.removed:
        yield from ("", f"Messages ({count(messages.same, 'message')} the same before)")
        yield from (f"- {_value(message)}" for message in messages.removed)
        yield from (f"+ {_value(message)}" for message in messages.added)
    yield from _section("Decisions", found.decisions)


def _section(title: str, changes: list[StateChange]) -> Iterator[str]:
    if changes:
        yield from ("", title)
    for change in changes:
        name = short_middle(printable(change.id), WIDEST)
        if change.change == "changed":
            yield f"! {name}"
            yield from _fields(change.before, change.after)
        elif change.change == "removed":
            yield f"- {name}  {_value(change.before)}"
        else:
            yield f"+ {name}  {_value(change.after)}"


def _fields(before: Any, after: Any) -> Iterator[str]:
    if not isinstance(before, dict) or not isinstance(after, dict):
        yield f"    {_difference(before, after)}"
        return
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield f"    {printable(name)}: {_difference(before.get(name), after.get(name))}"


def _difference(before: Any, after: Any) -> str:
    """Both values; of long ones the part from a little before the first difference on."""
    old, new = _json(before), _json(after)
    pairs = enumerate(zip(old, new, strict=False))
    same = next((place for place, (one, other) in pairs if one != other), min(len(old), len(new)))
    begin = same - LEAD if max(len(old), len(new)) > WIDEST and same > 2 * LEAD else 0
    where = f"  (the same up to character {same:,})" if begin else ""
    return f"{_excerpt(old, begin)} -> {_excerpt(new, begin)}{where}"


def _excerpt(text: str, begin: int) -> str:
    return short(f"…{text[begin:]}" if begin else text, WIDEST)


def _value(value: Any) -> str:
    return short(_json(value), WIDEST)


def _json(value: Any) -> str:
    if isinstance(value, dict):
        value = {name: item for name, item in value.items() if name not in ("task_id", "gate_id") and item is not None}
    return printable(msgspec.json.encode(value).decode())
