"""A finding: one problem of a definition, told so that it can be fixed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Literal

import msgspec

Problem = Literal[
    "unknown need",
    "duplicate id",
    "self-loop",
    "cycle",
    "bad reference",
    "bad argument",
    "bad setting",
    "parameter and task",
    "bad id",
]

_MANY = 200


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    problem: Problem
    task_id: str = ""
    message: str = ""

    def __str__(self) -> str:
        where = f"task {self.task_id!r}: " if self.task_id else ""
        return f"{where}{self.problem}: {self.message}"


def nearest(word: str, known: Collection[str]) -> str:
    """` (did you mean 'x'?)` where something known is spelt like the word; else nothing."""
    # Imported here: only a workflow with a mistake in it needs it.
    from difflib import get_close_matches

    if len(known) > _MANY:
        # A close look at thousands of names for each of thousands of mistakes would take minutes.
        alike = (name for name in known if name[:2] == word[:2] and abs(len(name) - len(word)) < 3)
        known = list(islice(alike, _MANY))
    close = get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def listed(names: Iterable[str], limit: int = 10) -> str:
    """The first few names of many, as text."""
    quoted = [repr(name) for name in names]
    more = f" and {len(quoted) - limit} more" if len(quoted) > limit else ""
    return ", ".join(quoted[:limit]) + more
