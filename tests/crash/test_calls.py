"""Killed around a call of a model: what was recorded is not asked again, and what is asked again has the same key."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from agentos import Client
from agentos.crashpoints import CALL_POINTS
from tests.crash.matrix import ASKED
from tests.marks import quick_first
from tests.models.flows import crowd, keys, reviewing
from tests.models.server import ModelServer

EVERY = [*CALL_POINTS, "attempt.before", "attempt.after", "commit.before:2", "commit.inside:2", "commit.before:3"]
"""The first commit begins the run, the second holds what the draft has used, the third its answer."""
PLAYED = EVERY if ASKED else ["call.answered", "call.recorded"]
PUT_OFF = ["attempt.after:3", "gate.opened"]
"""Two calls are paid for, and the third attempt is put off: before that is written down, and after."""
NOT_ASKED = ("call.before", "attempt.before")
PAID_TWICE = ("call.recorded", "attempt.after", "commit.before:3")


@pytest.mark.parametrize("point", quick_first(PLAYED))
def test_killed_anywhere_a_call_is_repeated_only_where_its_answer_was_lost(
    tmp_git_repo: Path, model_server: ModelServer, point: str
) -> None:
    place = reviewing(tmp_git_repo, model_server)
    killed = place.agentos("run", "flow", "--id", "r", AGENTOS_CRASH_AT=point)
    assert killed.code == -signal.SIGKILL
    done = place.agentos("resume", "r")
    assert done.code == 0, done.err
    drafts = keys(model_server, "m1")
    assert len(drafts) == (1 if point in NOT_ASKED else 2)
    assert len(set(drafts)) == 1
    assert len(keys(model_server, "m2")) == 1
    paid = [task for task, _, _ in place.usage() if task == "draft"]
    assert len(paid) == (2 if point in PAID_TWICE else 1)


@pytest.mark.parametrize("point", quick_first(PUT_OFF))
def test_killed_around_an_attempt_that_is_put_off_nothing_is_paid_without_a_yes(
    tmp_git_repo: Path, model_server: ModelServer, point: str
) -> None:
    place = crowd(tmp_git_repo, model_server, 3)
    killed = place.agentos("run", "flow", "--id", "r", AGENTOS_CRASH_AT=point)
    assert killed.code == -signal.SIGKILL
    asks = place.agentos("resume", "r")
    assert asks.code == 3, asks.err
    assert len(keys(model_server, "m1")) == 2
    [gate] = Client(place.root).show("r").gates
    done = place.agentos("approve", "r", gate)
    assert done.code == 0, done.err
    asked = keys(model_server, "m1")
    assert (len(asked), len(set(asked))) == (3, 3)
    assert [calls for _, calls, _ in place.usage()] == [1, 1, 1]


def test_what_the_matrix_leaves_out() -> None:
    """Not a test: the summary shows the reason of a skip."""
    left_out = [point for point in EVERY if point not in PLAYED]
    pytest.skip(f"kills around calls of models: left out {', '.join(left_out) or 'nothing'}")
