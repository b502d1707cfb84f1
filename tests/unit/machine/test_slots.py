"""What becomes of due slots: each is decided once, whatever the clocks say, and as the schedule says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agentos.dag.define.cron import Cron, read_cron, slots_between
from agentos.machine.slots import (
    LATE,
    ScheduleState,
    changed_state,
    decide_slots,
    missed_slots,
    next_slot,
    slot_id,
    waiting_slots,
)

HOURLY = "0 * * * *"
BEGIN = datetime(2026, 11, 19, 0, 30, tzinfo=UTC)


def hour(number: int, minute: int = 0, second: int = 0) -> datetime:
    return datetime(2026, 11, 19, number, minute, second, tzinfo=UTC)


def hourly(**more: Any) -> Cron:
    return read_cron({"at": HOURLY, **more})


class Looks:
    """Somebody looks at a schedule, again and again."""

    def __init__(self, cron: Cron, begin: datetime = BEGIN) -> None:
        self.cron = cron
        self.state = ScheduleState(upto=begin)
        self.fired: list[datetime] = []

    def look(self, now: datetime, *, busy: bool = False) -> datetime | None:
        self.state, slot = decide_slots(self.cron, self.state, now, busy=busy)
        if slot is not None:
            self.fired.append(slot)
        return slot

    @property
    def passed(self) -> list[tuple[int, int, str]]:
        return [(one.first.hour, one.count, one.why) for one in self.state.passed]


def test_a_slot_is_fired_once_it_is_due_and_once_only() -> None:
    looks = Looks(hourly())
    assert looks.look(hour(0, 59, 59)) is None
    assert looks.state == ScheduleState(upto=BEGIN)
    assert looks.look(hour(1)) == hour(1)
    assert looks.look(hour(1, 0, 2)) is None
    assert looks.look(hour(0, 59)) is None, "a clock that goes back brings nothing back"
    assert looks.look(hour(2)) == hour(2)
    assert looks.passed == []


def test_nothing_is_to_be_stored_where_nothing_is_due() -> None:
    looks = Looks(hourly())
    looks.look(hour(1))
    before = looks.state
    looks.look(hour(1, 59), busy=True)
    assert looks.state is before


def test_of_the_slots_that_nobody_was_there_for_the_last_is_made_up_for() -> None:
    looks = Looks(hourly(catch_up="last"))
    assert looks.look(hour(5, 30)) == hour(5)
    assert looks.passed == [(1, 4, "missed")]
    assert looks.look(hour(5, 31)) is None


def test_none_is_where_none_shall_be() -> None:
    looks = Looks(hourly(catch_up="none"))
    assert looks.look(hour(5, 30)) is None
    assert looks.passed == [(1, 5, "missed")]
    assert looks.look(hour(6, 0, 59)) == hour(6), "in time"
    assert looks.look(hour(7, 1, 1)) is None, "too late"


def test_a_slot_that_has_just_come_is_the_last_one() -> None:
    for catch_up in ("none", "last"):
        looks = Looks(hourly(catch_up=catch_up))
        assert looks.look(hour(5, 0, 30)) == hour(5)
        assert looks.passed == [(1, 4, "missed")]


def test_all_are_made_up_for_one_after_the_other() -> None:
    looks = Looks(hourly(catch_up="all"))
    assert looks.look(hour(5, 30)) == hour(1)
    assert looks.look(hour(5, 30), busy=True) is None
    assert waiting_slots(looks.cron, looks.state) == [hour(number) for number in (2, 3, 4, 5)]
    assert [looks.look(hour(6, 30)) for _ in range(6)] == [*map(hour, (2, 3, 4, 5, 6)), None]
    assert looks.passed == []


def test_while_a_run_goes_on_slots_are_skipped() -> None:
    looks = Looks(hourly(overlap="skip"))
    looks.look(hour(1))
    assert [looks.look(hour(number), busy=True) for number in (2, 3)] == [None, None]
    assert looks.passed == [(2, 2, "overlap")]
    assert looks.look(hour(3, 30)) is None
    assert looks.look(hour(4)) == hour(4)


def test_or_they_wait_for_it() -> None:
    looks = Looks(hourly(overlap="queue"))
    looks.look(hour(1))
    assert [looks.look(hour(number), busy=True) for number in (2, 3)] == [None, None]
    assert len(looks.state.waiting) == 1, "what waits takes no more room with each slot"
    assert [looks.look(hour(3, 30)) for _ in range(3)] == [hour(2), hour(3), None]


def test_what_waits_is_not_lost_where_nobody_is_there_for_a_while() -> None:
    looks = Looks(hourly(overlap="queue", catch_up="last"))
    looks.look(hour(1))
    looks.look(hour(2), busy=True)
    looks.look(hour(8, 30), busy=True)
    assert looks.passed == [(3, 5, "missed")]
    assert [looks.look(hour(8, 40)) for _ in range(3)] == [hour(2), hour(8), None]


def test_other_times_hold_from_now_on() -> None:
    looks = Looks(hourly(overlap="queue"))
    looks.look(hour(1))
    looks.look(hour(3), busy=True)
    state = changed_state(looks.state, hour(5, 30))
    assert (state.upto, state.waiting, state.fired) == (hour(5, 30), (), hour(1))
    assert changed_state(state, hour(2)).upto == hour(5, 30), "a clock that goes back brings nothing back"


def test_what_is_shown_of_a_schedule() -> None:
    cron, state = hourly(), ScheduleState(upto=BEGIN)
    assert next_slot(cron, state, hour(2, 30)) == hour(3)
    assert next_slot(cron, msgspec.structs.replace(state, upto=hour(9)), hour(2, 30)) == hour(10)
    assert missed_slots(cron, state, hour(2, 0, 30)) == [hour(1)], "that of 2 may still be fired in time"
    assert slot_id("nightly", hour(3)) == "nightly@20261119T0300Z"


def test_it_is_stored_and_read_again() -> None:
    looks = Looks(hourly(overlap="queue"))
    looks.look(hour(1))
    looks.look(hour(8, 30), busy=True)
    assert msgspec.json.decode(msgspec.json.encode(looks.state), type=ScheduleState) == looks.state


CRONS = st.builds(
    lambda written, overlap, catch_up: read_cron(
        {**written, "overlap": "queue" if catch_up == "all" else overlap, "catch_up": catch_up}
    ),
    st.sampled_from(
        (
            {"every": "15m"},
            {"at": HOURLY},
            {"at": "*/7 1-3 * * *", "zone": "Europe/Berlin"},
            {"at": "15 2 * * *", "zone": "Europe/Berlin"},
        )
    ),
    st.sampled_from(("skip", "queue")),
    st.sampled_from(("none", "last", "all")),
)
STEPS = st.lists(st.tuples(st.integers(-400, 5_000), st.booleans()), max_size=40)
"""Seconds until somebody looks the next time, by a clock that may be behind; and whether a run goes on then."""
STARTS = st.sampled_from((BEGIN, datetime(2026, 3, 28, 20, tzinfo=UTC), datetime(2026, 10, 24, 20, tzinfo=UTC)))


@given(CRONS, STARTS, STEPS)
def test_every_slot_is_fired_waits_or_passes_and_none_twice(
    cron: Cron, begin: datetime, steps: list[tuple[int, bool]]
) -> None:
    looks, now = Looks(cron, begin), begin
    for seconds, busy in steps:
        now += timedelta(seconds=seconds)
        before = looks.state
        late = [slot for slot in slots_between(cron, before.upto, now) if slot < now - LATE]
        fired = looks.look(now, busy=busy)
        assert looks.state.upto >= before.upto
        assert fired is None or not busy
        if cron.catch_up == "none" and not before.waiting:
            assert fired not in late
    assert looks.fired == sorted(set(looks.fired))
    every = list(slots_between(cron, begin, looks.state.upto))
    waiting = waiting_slots(cron, looks.state)
    assert set(looks.fired).isdisjoint(waiting)
    assert {*looks.fired, *waiting} <= set(every)
    if cron.catch_up == "all":
        assert [*looks.fired, *waiting] == every
    elif len(looks.state.passed) < 10:
        assert len(looks.fired) + len(waiting) + sum(one.count for one in looks.state.passed) == len(every)
    if cron.overlap == "skip":
        assert not waiting


@given(CRONS, st.lists(st.integers(0, 59), min_size=60, max_size=200))
def test_who_is_always_there_misses_nothing(cron: Cron, seconds: list[int]) -> None:
    looks, now = Looks(cron, BEGIN), BEGIN
    for step in seconds:
        now += timedelta(seconds=step)
        looks.look(now)
    assert looks.fired == list(slots_between(cron, BEGIN, now))
