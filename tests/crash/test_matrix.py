"""The kill matrix: every named point, in every scenario that passes it, once and once more while it is resumed.

`make test` plays a sample that holds every scenario with each point and with each second kill; `make matrix` plays all
of it. What is left out, and what no scenario reaches, stands in the summary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from agentos.crashpoints import POINTS
from tests.crash import matrix
from tests.crash.harness import Theatre
from tests.crash.matrix import MIGRATION, RESUMING, Case
from tests.crash.playing import Kill, Reference, play, play_undisturbed, state_of

pytestmark = pytest.mark.timeout(300)  # a busy machine is no failure

PRELUDE = "attempt.after"
"""Killed here first where a case is about a resume: half of the work is done, one result was lost."""

CASES = matrix.chosen()
SAMPLE = frozenset(matrix.sample(matrix.every_case()))


def marked(case: Case) -> ParameterSet:
    return pytest.param(case, id=str(case), marks=() if case in SAMPLE else pytest.mark.matrix)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reference]:
    """How a scenario ends that nobody disturbs; played once for each worker."""
    known: dict[str, Reference] = {}

    def of(scenario: str) -> Reference:
        if scenario not in known:
            theatre = Theatre.of_scenario(tmp_path_factory.mktemp(scenario), scenario)
            known[scenario] = play_undisturbed(theatre)
        return known[scenario]

    return of


@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_a_run_killed_and_resumed_ends_as_if_it_had_not_been(
    case: Case, tmp_path: Path, reference: Callable[[str], Reference]
) -> None:
    scenario = "chain" if case.scenario == MIGRATION else case.scenario
    undisturbed = reference(scenario)
    kills = left = kills_of(case, undisturbed)
    for fewer in range(kills[0].n):
        theatre = Theatre.of_scenario(tmp_path / f"try{fewer}", scenario, str(case))
        theatre.migrates = case.scenario == MIGRATION
        # Results that are ready together share a commit: there may be fewer of them than in the undisturbed run.
        left = play(theatre, [kills[0]._replace(n=kills[0].n - fewer), *kills[1:]])
        assert state_of(theatre) == undisturbed.state
        if len(left) < len(kills):
            break
    assert not left, f"not reached: {', '.join(map(str, left))}"


def kills_of(case: Case, undisturbed: Reference) -> list[Kill]:
    """Where this case kills: at a pass of the undisturbed run, and then wherever the resumed one gets to first."""
    if case.scenario == MIGRATION or (case.point in RESUMING and not undisturbed.passes(case.point)):
        kills = [undisturbed.kill(PRELUDE, "middle"), Kill(case.point)]
    else:
        kills = [undisturbed.kill(case.point, case.when)]
    return [*kills, Kill(case.second)] if case.second else kills


@pytest.mark.parametrize("scenario", matrix.SCENARIOS)
def test_a_scenario_passes_the_points_the_matrix_says(scenario: str, reference: Callable[[str], Reference]) -> None:
    passed = set().union(*reference(scenario).steps)
    assert passed | set(RESUMING) == set(matrix.reachable(scenario))


def test_every_point_is_killed_at_in_some_scenario() -> None:
    played = Counter(case.point for case in CASES if not case.second)
    assert set(played) == set(POINTS)


@pytest.mark.parametrize("scenario", [*matrix.SCENARIOS, MIGRATION])
def test_what_the_matrix_leaves_out(scenario: str) -> None:
    """Not a test: the summary shows the reason of a skip, also where the work is spread over processes."""
    every = [case for case in matrix.every_case() if case.scenario == scenario]
    played = [case for case in CASES if case.scenario == scenario]
    unplayed = Counter(case.point for case in every if case not in played)
    left_out = f"{len(every) - len(played)} of {len(every)} cases left out" if unplayed else "nothing left out"
    by_point = ", ".join(f"{point} {count}" for point, count in unplayed.items())
    missed = ", ".join(matrix.not_reached()[scenario])
    pytest.skip(f"kill matrix, {scenario}: {left_out}{f' ({by_point})' if by_point else ''}; never reached: {missed}")
