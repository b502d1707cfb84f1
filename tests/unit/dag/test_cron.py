"""When a workflow runs by itself: what may be written, and which slots it means."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import pytest
from cronsim import CronSimError
from hypothesis import given
from hypothesis import strategies as st

from agentos.dag.define.cron import Cron, find_zone, last_slot, read_cron, slots_after, slots_between
from agentos.dag.define.readers import BadSetting

BERLIN = "Europe/Berlin"
ZONES = ("UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Cairo", "Pacific/Apia")


def at(expression: str, zone: str = "UTC") -> Cron:
    return read_cron({"at": expression, "zone": zone})


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def times(slots: Iterable[datetime], zone: str = "UTC", most: int = 4) -> list[str]:
    return [slot.astimezone(find_zone(zone)).strftime("%m-%d %H:%M") for slot in islice(slots, most)]


def test_an_expression_alone_is_in_utc_and_makes_up_for_the_last_slot() -> None:
    assert read_cron("0 3 * * 1-5") == Cron(at="0 3 * * 1-5", zone="UTC", overlap="skip", catch_up="last")
    assert str(read_cron("0 3 * * 1-5")) == "0 3 * * 1-5"
    assert str(at("0 3 * * *", BERLIN)) == "0 3 * * * (Europe/Berlin)"


def test_what_was_read_is_read_again_as_it_is() -> None:
    for written in ("0 3 * * *", {"every": "2h", "overlap": "queue"}, {"at": "0 3 * * *", "catch_up": "all"}):
        assert read_cron(read_cron(written)) == read_cron(written)


def test_slots_that_are_all_made_up_for_wait_for_each_other() -> None:
    assert read_cron({"every": "1h", "catch_up": "all"}).overlap == "queue"
    with pytest.raises(BadSetting, match="`catch_up: all` needs `overlap: queue`"):
        read_cron({"every": "1h", "catch_up": "all", "overlap": "skip"})


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (3, "an expression such as"),
        ("", "it has five fields"),
        ("@daily", "it has five fields"),
        ("0 3 * * * *", "it has five fields"),
        ("60 3 * * *", "its minute is wrong"),
        ("0 3 * * MOO", "its day of week is wrong"),
        ("0 0 30 2 *", "no such month has that day"),
        ("0 0 31 4,6,9,11 *", "no such month has that day"),
        ({}, "`at` or `every`"),
        ({"at": "0 3 * * *", "every": "1h"}, "`at` or `every`"),
        ({"at": 3}, "at takes text"),
        ({"at": "0 3 * * *", "zon": "UTC"}, r"unknown key 'zon' \(did you mean 'zone'"),
        ({"at": "0 3 * * *", "zone": "Europe/Berln"}, "no time zone 'Europe/Berln' .did you mean 'Europe/Berlin'"),
        ({"at": "0 3 * * *", "zone": "../etc/passwd"}, "no time zone"),
        ({"at": "0 3 * * *", "zone": "Europe"}, "no time zone"),
        ({"at": "0 3 * * *", "zone": "a\0b"}, "no time zone"),
        ({"at": "0 3 * * *", "overlap": "kill"}, "overlap takes 'skip', 'queue'"),
        ({"at": "0 3 * * *", "catch_up": "some"}, "catch_up takes 'none', 'last', 'all'"),
        ({"every": "90s"}, "whole minutes"),
        ({"every": 15}, "whole minutes"),
        ({"every": "0m"}, "whole minutes"),
        ({"every": "53w"}, "up to a year"),
        ({"every": "1h", "zone": BERLIN}, "`zone` is for `at`"),
    ],
)
def test_what_cannot_be_meant_is_told(written: Any, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        read_cron(written)


def test_the_29_of_february_comes_in_leap_years() -> None:
    slots = islice(slots_after(at("0 0 29 2 *"), utc("2095-01-01")), 3)
    assert [slot.year for slot in slots] == [2096, 2104, 2108]


def test_a_day_of_the_month_or_of_the_week_is_enough_where_both_are_named() -> None:
    assert times(slots_after(at("0 0 30 2 1"), utc("2026-02-01"))) == [f"02-{day:02} 00:00" for day in (2, 9, 16, 23)]


def test_intervals_are_counted_from_1970_whenever_one_looks() -> None:
    every = read_cron({"every": "6h"})
    for start in ("2026-11-19T00:00:00", "2026-11-19T03:41:07.5", "2026-11-19T05:59:59"):
        assert times(slots_after(every, utc(start)), most=2) == ["11-19 06:00", "11-19 12:00"]
    assert times(slots_after(every, utc("2026-11-19T06:00:00")), most=1) == ["11-19 12:00"]


@pytest.mark.parametrize(
    ("expression", "spring", "autumn"),
    [  # by the clock of Berlin, from the evening before it is put forward at 2, and back at 3
        ("30 2 * * *", ["03-29 03:00", "03-30 02:30"], ["10-25 02:30", "10-26 02:30"]),
        ("15,45 2 * * *", ["03-29 03:00", "03-30 02:15"], ["10-25 02:15", "10-25 02:45", "10-26 02:15"]),
        ("30 2,3 * * *", ["03-29 03:00", "03-29 03:30"], ["10-25 02:30", "10-25 03:30"]),
        ("0 3 * * *", ["03-29 03:00", "03-30 03:00"], ["10-25 03:00", "10-26 03:00"]),
        ("*/30 2 * * *", ["03-30 02:00", "03-30 02:30"], ["10-25 02:00", "10-25 02:30", "10-25 02:00", "10-25 02:30"]),
        (
            "30 0-3/1 * * *",
            ["03-29 00:30", "03-29 01:30", "03-29 03:00"],
            ["10-25 00:30", "10-25 01:30", "10-25 02:30"],
        ),
        ("0 * * * *", ["03-29 00:00", "03-29 01:00", "03-29 03:00"], ["10-25 00:00", "10-25 01:00"]),
    ],
)
def test_where_the_clock_is_changed(expression: str, spring: list[str], autumn: list[str]) -> None:
    cron = at(expression, BERLIN)
    assert times(slots_after(cron, utc("2026-03-28T22:30:00")), BERLIN, len(spring)) == spring
    assert times(slots_after(cron, utc("2026-10-24T21:30:00")), BERLIN, len(autumn)) == autumn


def test_every_hour_comes_twice_where_the_clock_shows_it_twice() -> None:
    slots = list(slots_between(at("0 * * * *", BERLIN), utc("2026-10-24T21:30:00"), utc("2026-10-25T03:00:00")))
    assert slots == [utc("2026-10-24T22:00:00") + timedelta(hours=hour) for hour in range(6)]


def test_a_fixed_time_comes_once_also_for_who_looks_in_the_hour_that_comes_twice() -> None:
    cron = at("15 2 * * *", BERLIN)
    for looked in ("2026-10-25T00:15:00", "2026-10-25T00:50:00", "2026-10-25T01:10:00", "2026-10-25T01:20:00"):
        assert times(slots_after(cron, utc(looked)), BERLIN, 1) == ["10-26 02:15"]


def test_a_day_that_a_zone_left_out_has_its_slot_at_the_next_midnight() -> None:
    slots = slots_after(at("0 12 * * *", "Pacific/Apia"), utc("2011-12-29T00:00:00"))
    assert times(slots, "Pacific/Apia", 3) == ["12-29 12:00", "12-31 00:00", "12-31 12:00"]


def test_the_last_slot_is_found_without_walking_through_all() -> None:
    begin, end = utc("1990-01-01"), utc("2026-11-19T03:41:07")
    assert last_slot(at("* * * * *"), begin, end) == utc("2026-11-19T03:41:00")
    assert last_slot(at("0 0 29 2 *"), begin, end) == utc("2024-02-29")
    assert last_slot(at("0 3 * * *"), utc("2026-11-19T03:00:00"), end) is None


FIELD = st.sampled_from(("*", "*/7", "0", "30", "1,2", "1-3"))
MINUTES = st.sampled_from(("0", "30", "*", "*/20", "5,35", "59"))
HOURS = st.sampled_from(("*", "2", "*/3", "0,2,23", "1-4"))
DAYS = st.sampled_from(("*", "L", "1", "29", "*/2", "28-31"))
WEEKDAYS = st.sampled_from(("*", "1-5", "0", "SUN#2", "5L"))
EXPRESSIONS = st.tuples(MINUTES, HOURS, DAYS, st.sampled_from(("*", "3,10,11", "2")), WEEKDAYS).map(" ".join)
MOMENTS = st.datetimes(datetime(2011, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(EXPRESSIONS, st.sampled_from(ZONES), MOMENTS, st.integers(0, 5_000))
def test_slots_are_whole_minutes_in_order_and_the_same_wherever_one_begins(
    expression: str, zone: str, begin: datetime, minutes: int
) -> None:
    cron = at(expression, zone)
    slots = list(islice(slots_between(cron, begin, begin + timedelta(days=40)), 300))
    assert all(one < other for one, other in pairwise(slots))
    assert all(slot > begin and (slot.second, slot.microsecond) == (0, 0) for slot in slots)
    if zone == "Australia/Lord_Howe":  # changes by half an hour, which cronsim's steps of an hour can step over
        return
    later = begin + timedelta(minutes=minutes)
    from_later = islice(slots_after(cron, later), len([slot for slot in slots if slot > later]))
    assert list(from_later) == [slot for slot in slots if slot > later]


@given(EXPRESSIONS, st.sampled_from(ZONES[:-4]), MOMENTS, st.timedeltas(timedelta(0), timedelta(days=30)))
def test_the_last_slot_is_that_of_all(expression: str, zone: str, begin: datetime, span: timedelta) -> None:
    cron = at(expression, zone)
    every = list(slots_between(cron, begin, begin + span))
    assert last_slot(cron, begin, begin + span) == (every[-1] if every else None)


@given(st.text("0123456789*,-/#LW MONJANſ@?", max_size=30) | st.text(max_size=30))
def test_whatever_is_written_is_a_schedule_or_told(written: str) -> None:
    try:
        cron = read_cron(written)
    except BadSetting:
        return
    except CronSimError as error:  # pragma: no cover
        raise AssertionError(written) from error
    assert next(slots_after(cron, utc("2026-01-01"))) > utc("2026-01-01")
