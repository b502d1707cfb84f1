"""Where a workflow differs from the plan last accepted, as people read it before anything runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from agentos.client.runs import Comparison
from agentos.render.text import printable, short_middle

NAMED = 5
"""So many tasks of a kind are named; the rest is counted."""
_BECOMES: Mapping[str, str] = {
    "reuse": "kept",
    "reuse, changed": "kept",
    "rerun": "runs again",
    "run": "to run",
    "ask": "asks first",
}


def comparison_lines(compared: Comparison, run: str = "") -> list[str]:
    """`changed: lint (kept) · new: sign · gone: check · parameter defaults ignored: modules`, and what to type.

    Nothing where nothing differs. Without `run`, no command is told.
    """
    changed = (f"{_name(name)} ({_BECOMES[verdict]})" for name, verdict in compared.changed.items())
    parts = [
        _part("changed", len(compared.changed), changed),
        _part("new", len(compared.new), map(_name, compared.new)),
        _part("gone", len(compared.gone), map(_name, compared.gone)),
        _part("parameter defaults ignored", len(compared.ignored_defaults), map(_name, compared.ignored_defaults)),
    ]
    lines = [" · ".join(filter(None, parts))] if any(parts) else []
    if compared.ignored_defaults and run:
        given = f"{shlex.quote(run)} {compared.default_arguments}"
        take = f"To take the new defaults: agentos resume {given}, or in a new run: agentos fork …"
        lines.append(printable(f"The run keeps its parameters. {take}"))
    return lines


def _part(what: str, number: int, names: Iterable[str]) -> str:
    shown: Sequence[str] = list(islice(names, NAMED))
    more = f" and {number - NAMED} more" if number > NAMED else ""
    return f"{what}: {', '.join(shown)}{more}" if number else ""


def _name(name: str) -> str:
    return short_middle(printable(name), 60)
