"""The kill matrix: a run killed at any pass of any point and resumed ends as if it had not been.

What it did to the files is compared byte for byte. A few cases of each scenario are drawn by lot, in `make test` for
the first four and in `make test-rest` for the others; the seed stands in the report's header. `make matrix` plays all.
"""

from __future__ import annotations

from collections import Counter

import pytest

from agentos.crashpoints import CALL_POINTS, FILE_POINTS, ISOLATION_POINTS, POINTS, QUEUE_POINTS
from tests.crash import matrix
from tests.marks import quick_first

pytestmark = pytest.mark.timeout(3600 if matrix.ASKED else 300)  # a busy machine is no failure


@pytest.mark.parametrize(("store", "scenario", "share"), quick_first(matrix.played(), quick=4))
def test_a_run_killed_and_resumed_ends_as_if_it_had_not_been(store: str, scenario: str, share: int) -> None:
    cases = matrix.cases(store, scenario, share)
    if not cases:
        pytest.skip(f"no case of this share is {matrix.ASKED!r}")
    wrong = matrix.play_cases(cases)
    assert not wrong, f"{len(wrong)} went wrong:\n" + "\n".join(wrong)


@pytest.mark.skipif(matrix.ASKED != "full", reason="`make matrix`: whether every point is killed at")
def test_every_point_is_killed_at_in_some_scenario() -> None:
    cases = [case for scenario in matrix.NAMES for case in matrix.every_case("sqlite", scenario)]
    played = Counter(kill.point for case in cases for kill in case.kills)
    assert {*POINTS, *FILE_POINTS, *ISOLATION_POINTS, *QUEUE_POINTS} - set(played) == set()
    assert not set(CALL_POINTS) & set(played), "these are killed at in test_calls.py"
