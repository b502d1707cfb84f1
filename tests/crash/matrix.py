"""The kill matrix: which point, in which scenario, killed how often; what can be reached, and what is played."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet

from agentos.crashpoints import POINTS

VARIABLE = "AGENTOS_MATRIX"

SCENARIOS = ("chain", "wide", "gates", "retries", "fan_out", "replan")
MIGRATION = "migration"
"""The chain, cut off under one schema and resumed under the next: the only one that passes a migration."""

UNBORN = ("plan.after", "lease.before", "create.inside")
"""Killed here for the first time, nothing of the run is on disk."""
BEGINNING = ("plan.after", "create.inside", "run.started")
"""Passed by the first drive of a run only."""
RESUMING = ("resume.planned", "resume.started")
"""Passed by later drives only: in most scenarios somebody has to be killed before."""
ONLY_IN = {"prune.inside": "chain", "process.before": "wide", "gate.opened": "gates", "migrate.inside": MIGRATION}
MANY = ("commit.before", "commit.inside", "commit.after", "attempt.before", "attempt.inside", "attempt.after")
"""Passed several times in every scenario."""


class Case(NamedTuple):
    """A way to die. `when`: which of the passes over the point; `second`: where the resume is killed."""

    scenario: str
    point: str
    when: str = "first"
    second: str = ""

    def __str__(self) -> str:
        return f"{self.scenario}-{self.point}-{self.when}" + (f"-then-{self.second}" if self.second else "")


def reachable(scenario: str) -> tuple[str, ...]:
    """The points that this scenario passes, those of a resume included."""
    if scenario == MIGRATION:
        return ("migrate.inside",)
    return tuple(point for point in POINTS if ONLY_IN.get(point, scenario) == scenario)


def not_reached() -> dict[str, list[str]]:
    """By scenario: the points it never passes."""
    return {name: [point for point in POINTS if point not in reachable(name)] for name in (*SCENARIOS, MIGRATION)}


def every_case() -> list[Case]:
    return [*once(), *twice()]


def once() -> Iterator[Case]:
    for scenario in (*SCENARIOS, MIGRATION):
        for point in reachable(scenario):
            yield Case(scenario, point)
            if point in MANY:
                yield Case(scenario, point, "middle")
            if point in MANY or (scenario == "gates" and point not in BEGINNING):
                yield Case(scenario, point, "last")


def twice() -> Iterator[Case]:
    for scenario in (*SCENARIOS, MIGRATION):
        for point in reachable(scenario):
            for second in POINTS:
                case = Case(scenario, point, _when(point, second), second)
                if _possible(case):
                    yield case


def _when(point: str, second: str) -> str:
    """Late enough to have something to keep, early enough to leave something to be killed at."""
    early = second in (*BEGINNING, "process.before", "gate.opened")
    return "middle" if point in MANY and not early else "first"


def _possible(case: Case) -> bool:
    scenario, point, _, second = case
    if scenario == MIGRATION:
        return second in ("migrate.inside", "lease.after", "commit.inside", "resume.started", "attempt.after")
    if ONLY_IN.get(second, scenario) != scenario:
        return False
    if point == "release.before" and scenario != "gates":
        return False  # it was over, and nothing is left to be killed at
    if second in BEGINNING:
        first_commit = point in ("lease.after", "commit.before", "commit.inside") and second == "run.started"
        return point in UNBORN or first_commit
    if second in RESUMING:
        # The run was not made yet, or made and nothing of it written: the next drive is its first.
        return point not in UNBORN and (point, second) != ("lease.after", "resume.started")
    if second == "process.before" and point in RESUMING:
        return False  # the command had ended by then
    # The gate was opened by then; the one behind it is opened by whoever answers, who drives nothing.
    return second != "gate.opened" or point not in (*RESUMING, "gate.opened", "release.before")


def sample(cases: Iterable[Case]) -> list[Case]:
    """As few cases as hold every scenario with each point and with each second kill, and each pass of each point.

    Greedy and without chance: the same cases every time. Of equals the scenario that has had fewest comes first.
    """
    cases = list(cases)
    left = {pair for case in cases for pair in _pairs(case)}
    played: Counter[str] = Counter()
    picked: list[Case] = []
    while left:
        best = max(cases, key=lambda case: (len(left & _pairs(case)), -played[case.scenario]))
        picked.append(best)
        played[best.scenario] += 2 if best.scenario == "gates" else 1  # whose answers are processes too
        left -= _pairs(best)
    return sorted(picked, key=cases.index)


def _pairs(case: Case) -> set[tuple[str, str, str]]:
    return {
        ("scenario, point", case.scenario, case.point),
        ("scenario, second", case.scenario, case.second),
        ("point, when", case.point, case.when),
        ("point, once or twice", case.point, str(bool(case.second))),
    }


def chosen() -> list[Case]:
    """What this session plays: all of it if AGENTOS_MATRIX=full says so."""
    cases = every_case()
    return cases if os.environ.get(VARIABLE) == "full" else sample(cases)


def pairs_of_kills(firsts: Sequence[str], seconds: Sequence[str]) -> list[ParameterSet]:
    """Pairs of kills: all of them with AGENTOS_MATRIX=full, else each second kill once, the first ones in turn.

    The last one only says what is left out: the summary shows the reason of a skip.
    """
    every = [(first, second) for second in seconds for first in firsts]
    played = [(firsts[place % len(firsts)], second) for place, second in enumerate(seconds)]
    if os.environ.get(VARIABLE) == "full":
        return [pytest.param(*pair) for pair in every]
    left_out = f"{len(every) - len(played)} of {len(every)} pairs of kills left out: make matrix plays all"
    return [*(pytest.param(*pair) for pair in played), pytest.param("", "", marks=pytest.mark.skip(left_out))]
