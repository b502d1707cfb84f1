"""The same question to several places, where one that cannot answer must not hide what the others say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from agentos.cli.boundary import exit_code
from agentos.cli.output import say
from agentos.cli.render.text import printable, printable_lines
from agentos.exceptions import AgentosError
from agentos.workflow.place.place import Place

T = TypeVar("T")


def survey(asked: Sequence[Place], question: Callable[[Place], Iterable[T]]) -> tuple[list[tuple[Place, T]], int]:
    """Every answer with its place, and the exit code: that of the last place that could not answer, else 0.

    A place that is asked alone raises; one among several is told on stderr.
    """
    answers: list[tuple[Place, T]] = []
    code = 0
    for place in asked:
        try:
            answers += [(place, answer) for answer in question(place)]
        except AgentosError as error:
            if len(asked) == 1:
                raise
            say("\n".join([f"{printable(str(place.root))}:", *printable_lines(str(error))]))
            code = exit_code(error)
    return answers, code
