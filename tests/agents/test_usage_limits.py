"""What agents say at a limit: all of it is known as one, with the time at which it is over."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from agentos.tasks.agents.adapters.adapter import AgentExit, outcome_of_status, outcome_of_text
from agentos.tasks.agents.adapters.known import AGENTS
from agentos.tasks.agents.adapters.usage_limits import FARTHEST, reset_time
from tests.agents.limit_messages import MESSAGES, NOW, OTHERS, UNKNOWN, ZONE, LimitMessage


def over_at(text: str) -> datetime | None:
    at = reset_time(text, NOW)
    return at.astimezone(ZONE).replace(second=0) if at is not None else None


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: f"{one.agent}-{one.text[-40:]!r}")
def test_each_message_is_a_limit_and_says_when_it_is_over(message: LimitMessage) -> None:
    assert outcome_of_text(message.text) == "api_rate"
    full = message.over_at if message.over_at.count("-") != 1 else f"2026-{message.over_at}"
    expected = datetime.strptime(full, "%Y-%m-%d %H:%M").replace(tzinfo=ZONE) if full else None
    assert over_at(message.text) == expected


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: f"{one.agent}-{one.text[-40:]!r}")
def test_an_agent_that_ends_with_it_has_reached_a_limit(message: LimitMessage) -> None:
    verdict = AGENTS[message.agent].reader().verdict(AgentExit(1, stderr=message.text))
    assert verdict.outcome == "api_rate"


@pytest.mark.parametrize("text", UNKNOWN)
def test_words_that_nobody_has_seen_yet_are_a_limit_as_well(text: str) -> None:
    assert outcome_of_text(text) == "api_rate"


def test_a_service_that_wants_money_is_a_limit_whatever_its_status_and_a_wrong_key_is_none() -> None:
    assert outcome_of_status(402) == "api_rate"
    assert outcome_of_status(401, "Insufficient balance. Manage your billing here") == "api_rate"
    assert outcome_of_status(401, "Invalid API key · check your usage limits") == "api_auth"
    assert outcome_of_status(403, "not authenticated") == "api_auth"


@pytest.mark.parametrize("text", OTHERS)
def test_other_limits_are_none_to_wait_for(text: str) -> None:
    assert outcome_of_text(text) != "api_rate"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resets 11:59am", NOW),  # a minute that has just passed, on a clock that is a little behind
        ("resets 11:50am", NOW + timedelta(days=1, minutes=-9)),
        ("resets Jan 3, 5am", None),  # too far away
        ("try again in 9 days", None),
        ("resets Feb 31, 5am", None),
        ("resets 99:99pm", None),
        ("resets 2pm (Nowhere/Atall)", NOW + timedelta(hours=2, minutes=1)),
        ("2026-04-14T11:59:59Z ERROR the request failed, try again later", None),  # of a log, not of a reset
        ("try again in " + "9" * 400 + " days", None),
        ("|9999999999", None),
    ],
)
def test_a_time_that_cannot_be_is_not_believed(text: str, expected: datetime | None) -> None:
    assert reset_time(text, NOW) == expected


def test_a_limit_told_in_december_may_end_in_january() -> None:
    december = datetime(2026, 12, 30, 12, 0, tzinfo=ZONE)
    assert reset_time("resets Jan 2, 5am", december) == datetime(2027, 1, 2, 5, 1, tzinfo=ZONE)
    assert timedelta(days=7) < FARTHEST, "a week's limit is believed"
