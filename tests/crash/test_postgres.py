"""The kill matrix on PostgreSQL: a run killed anywhere and resumed ends as if it had not been, on a server too.

`make test` plays a case for a few points, in different scenarios; `make matrix`
plays all. What is left out stands in the summary.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos.crashpoints import POINTS
from tests.crash import matrix
from tests.crash.harness import Theatre
from tests.crash.matrix import MIGRATION, Case
from tests.crash.playing import Reference, play, play_undisturbed, state_of
from tests.crash.test_matrix import kills_of
from tests.postgres.server import fresh_url

pytestmark = pytest.mark.timeout(300)  # a busy machine is no failure

EVERY = matrix.every_case()
FEW = ("lease.after", "commit.inside", "commit.after", "attempt.after", "migrate.inside")
"""Points at which the store has a part; played by `make test`."""


def few() -> list[Case]:
    """A case for each of these points, in another scenario each time if there is one, killed twice if it can be."""
    picked: list[Case] = []
    for point in FEW:
        cases = [case for case in EVERY if case.point == point and case.scenario != "gates"]  # which takes longest
        used = {case.scenario for case in picked}
        picked.append(max(cases, key=lambda case: (case.scenario not in used, bool(case.second))))
    return picked


CASES = EVERY if os.environ.get(matrix.VARIABLE) == "full" else few()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reference]:
    known: dict[str, Reference] = {}

    def of(scenario: str) -> Reference:
        if scenario not in known:
            theatre = Theatre.of_scenario(tmp_path_factory.mktemp(scenario), scenario)
            theatre.use_server(fresh_url())
            known[scenario] = play_undisturbed(theatre)
        return known[scenario]

    return of


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_killed_and_resumed_on_a_server_ends_as_if_it_had_not_been(
    case: Case, tmp_path: Path, reference: Callable[[str], Reference]
) -> None:
    scenario = "chain" if case.scenario == MIGRATION else case.scenario
    undisturbed = reference(scenario)
    kills = left = kills_of(case, undisturbed)
    for fewer in range(kills[0].n):
        theatre = Theatre.of_scenario(tmp_path / f"try{fewer}", scenario, str(case))
        theatre.use_server(fresh_url())
        theatre.migrates = case.scenario == MIGRATION
        left = play(theatre, [kills[0]._replace(n=kills[0].n - fewer), *kills[1:]])
        assert state_of(theatre) == undisturbed.state
        if len(left) < len(kills):
            break
    assert not left, f"not reached: {', '.join(map(str, left))}"


def test_what_the_matrix_leaves_out_on_a_server() -> None:
    """Not a test: the summary shows the reason of a skip."""
    points = sorted(set(POINTS) - {case.point for case in CASES})
    pytest.skip(
        f"kill matrix on PostgreSQL: {len(EVERY) - len(CASES)} of {len(EVERY)} cases left out"
        f"{'; points not killed at: ' + ', '.join(points) if points else ''}"
    )
