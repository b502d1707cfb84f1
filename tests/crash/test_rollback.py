"""Killed while a run goes back to an older checkpoint, or while a fork begins."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from agentos.machine.events import RolledBack
from tests.crash import checks
from tests.crash.harness import Theatre
from tests.crash.playing import state_of
from tests.marks import quick_first

pytestmark = pytest.mark.timeout(300)  # a busy machine is no failure

BACK_TO = "3"
AGAIN = ("five", "six", "seven")
"""The tasks of the layers behind that checkpoint."""

POINTS = (
    "lease.after",
    "resume.planned",
    "commit.before:1",
    "commit.inside:1",
    "commit.after:1",
    "commit.before:2",
    "commit.after:2",
    "resume.started",
    "attempt.before:2",
    "attempt.after:2",
    "release.before",
)


def went_wrong(theatre: Theatre, *arguments: str, at: str) -> None:
    assert theatre.play("-m", "tests.crash.children.witness", *arguments, at=at).killed, f"not reached: {at}"


@pytest.fixture
def theatre(tmp_path: Path) -> Theatre:
    """The chain, complete."""
    made = Theatre.of_scenario(tmp_path, "chain")
    assert made.run().said == {"status": "complete"}
    return made


@pytest.mark.parametrize("at", quick_first(POINTS))
def test_a_run_killed_while_it_goes_back_ends_as_one_that_was_not(theatre: Theatre, at: str) -> None:
    before = state_of(theatre)
    went_wrong(theatre, "rollback", BACK_TO, at=at)
    went_back = any(isinstance(event, RolledBack) for event in theatre.journal())
    record = theatre.record()
    assert record is not None
    assert record.status in (("interrupted", "complete") if went_back else ("complete",))
    resumed = theatre.resume()  # goes on in the new epoch, or has nothing to do
    assert resumed.said == {"status": "complete"}
    assert state_of(theatre) == before
    if went_back:
        assert theatre.facts().epoch == 1
    executed = Counter(line["task"] for line in theatre.trace())
    assert all(executed[task] == 1 for task in executed if task not in AGAIN)
    # One of them may have been cut off in the second epoch as well.
    assert sum(executed[task] for task in AGAIN) - 3 in ((3, 4) if went_back else (0,))
    checks.check_file(theatre.database)


@pytest.mark.parametrize(
    "at", quick_first(["lease.before", "create.inside", "lease.after", "commit.inside:1", "commit.after:1"])
)
def test_a_fork_killed_as_it_begins_can_be_made_again_or_resumed(theatre: Theatre, at: str) -> None:
    before = theatre.journal()
    went_wrong(theatre, "fork", BACK_TO, at=at)
    fork = theatre.record("fork-1")
    again = theatre.play("-m", "tests.crash.children.witness", "fork", BACK_TO)
    if fork is None:
        assert again.said == {"status": "complete"}
    else:
        assert again.said["error"] == "RunRefusedError"
    assert [event.seq for event in theatre.journal()] == [event.seq for event in before]
