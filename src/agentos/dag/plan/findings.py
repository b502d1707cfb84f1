"""A finding: one problem of a definition, told so that it can be fixed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
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
    "bad file",
]

_MANY = 200
_VERY_MANY = 2000
_LONG = 200


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, with which task and setting, and where that stands in a file as far as it can be known."""

    problem: Problem
    task_id: str = ""
    setting: str = ""
    """The setting it is about: of the task, or of the whole workflow where no task is named."""
    message: str = ""
    parameter: str = ""
    """The run's parameter that was not given, where that is all that is wrong."""
    given: bool = False
    """It is about a parameter that was given for the run: nothing is wrong with the workflow."""
    file: str = ""
    line: int = 0
    """Counted from 1, as is `column`; 0 where the place is not known."""
    column: int = 0
    where: str = ""
    """The path to it in a workflow file: `tasks.ship.needs`."""

    def __str__(self) -> str:
        if self.file:
            place = f"{self.file}:{self.line}:{self.column}: " if self.line else f"{self.file}: "
            problem = "" if self.problem.startswith("bad ") else f"{self.problem}: "
            return f"{place}{f'{self.where}: ' if self.where else ''}{problem}{self.message}"
        where = f"task {self.task_id!r}: " if self.task_id else ""
        return f"{where}{self.problem}: {self.message}"


def locate_findings(findings: Iterable[Finding], locate: Callable[[Finding], Finding]) -> tuple[Finding, ...]:
    """The findings with their places and by their places, each once: a bad default is not told for every task."""
    found: dict[object, Finding] = {}
    for index, finding in enumerate(map(locate, findings)):
        found.setdefault(finding if finding.line else index, finding)
    return tuple(sorted(found.values(), key=lambda finding: (finding.line, finding.column)))


_ELSEWHERE = {
    **dict.fromkeys(("depends_on", "depends", "dependencies", "after", "requires"), "needs"),
    **dict.fromkeys(("when", "condition", "only_if"), "if"),
    **dict.fromkeys(("jobs", "nodes"), "tasks"),
    **dict.fromkeys(("script", "cmd", "command", "shell", "bash"), "run"),
    **dict.fromkeys(("matrix", "with_items", "foreach", "map"), "for_each"),
    **dict.fromkeys(("environment", "variables"), "env"),
    **dict.fromkeys(("working-directory", "working_directory", "workdir", "dir"), "cwd"),
    **dict.fromkeys(("timeout", "timeout-minutes"), "timeout_s"),
    **dict.fromkeys(("continue-on-error", "allow_failure"), "continue_on_error"),
    "steps": "tasks run",
    "retry": "retries",
    "parameters": "params",
    "approval": "approve",
}
"""Words by which other tools call what we have; where that depends on the place, all that it may be."""


def nearest(word: str, known: Collection[str], what: str = "") -> str:
    """` (did you mean 'x'?)` where something known is spelt like the word; else nothing. `what` stands before it."""
    if ours := next((ours for ours in _ELSEWHERE.get(word, "").split() if ours in known), ""):
        return f" (did you mean {what}{ours!r}?)"
    if len(known) > _MANY:
        # A close look at thousands of names for each of thousands of mistakes would take minutes.
        alike = (name for name in islice(known, _VERY_MANY) if name[:2] == word[:2] and abs(len(name) - len(word)) < 3)
        known = list(islice(alike, _MANY))
    close = _nearest(word[:_LONG], tuple(known))
    return f" (did you mean {what}{close!r}?)" if close else ""


@lru_cache(maxsize=256)
def _nearest(word: str, known: tuple[str, ...]) -> str:
    # Imported here: only a workflow with a mistake in it needs it.
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, known, n=1)), "")


def format_names(names: Iterable[str], limit: int = 10) -> str:
    """The first few names of many, as text."""
    quoted = [repr(name) for name in names]
    more = f" and {len(quoted) - limit} more" if len(quoted) > limit else ""
    return ", ".join(quoted[:limit]) + more
