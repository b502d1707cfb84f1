"""Limits hold across processes, survive their death, and never stop a run."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentos.exceptions import CoolingDownError
from agentos.store.call_book import LEASE_S, Situation, book_in_memory, open_book
from agentos.tasks.llm import limiter as module
from agentos.tasks.llm.limiter import Limiter, Wait, book_path, wait_of
from agentos.tasks.llm.model_settings import CallLimits
from tests.models.caller import Caller

KEY = "SOME_API_KEY"
NOON = 1_768_478_400.0  # of a day in January, UTC


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return tmp_path / "state" / "agentos" / "calls.db"


@pytest.fixture(autouse=True)
def _all_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[Limiter] = []
    opened = Limiter._current_book

    def noted(limiter: Limiter) -> Any:
        made.append(limiter)
        return opened(limiter)

    monkeypatch.setattr(Limiter, "_current_book", noted)
    yield
    for one in made:
        one.close()


@pytest.fixture
def caller(book: Path) -> Iterator[Callable[..., Caller]]:
    started: list[Caller] = []

    def start(limits: CallLimits, *busy: float) -> Caller:
        started.append(Caller(book, KEY, limits, *busy))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.end()


def run(act: Awaitable[Any], timeout_s: float = 20.0) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(act, timeout_s)

    return asyncio.run(bounded())


async def briefly(limiter: Limiter, limits: CallLimits, on_wait: Callable[[str], None] = lambda _: None) -> float:
    """One call that does nothing; how long it had to wait."""
    began = time.monotonic()
    async with limiter.call(KEY, limits, on_wait):
        return time.monotonic() - began


# --- what decides -------------------------------------------------------------------------------------------------


def found(**other: Any) -> Situation:
    nothing = Situation(now=NOON, under_way=0, before=0, starts=(), cool_until=0.0, cap=None, spent_usd=0.0)
    return nothing._replace(**other)


@pytest.mark.parametrize(
    ("limits", "situation"),
    [
        (CallLimits(), found(under_way=99, before=99)),
        (CallLimits(slots=2), found(under_way=1)),
        (CallLimits(slots=3), found(under_way=1, before=1)),
        (CallLimits(per_minute=2), found(starts=(NOON - 1,))),
        (CallLimits(per_day_usd=1), found(spent_usd=0.99)),
        (CallLimits(), found(cool_until=NOON)),
    ],
)
def test_a_call_begins_where_nothing_is_in_its_way(limits: CallLimits, situation: Situation) -> None:
    assert wait_of(situation, limits) is None


@pytest.mark.parametrize(
    ("limits", "situation", "expected"),
    [
        (CallLimits(slots=2), found(under_way=2, before=3), Wait("2 of 2 slots are in use", 0.0, 3)),
        (CallLimits(slots=2), found(under_way=1, before=1), Wait("1 of 2 slots are in use", 0.0, 1)),
        (CallLimits(slots=5), found(under_way=1, cap=1), Wait("1 of 1 slots are in use", 0.0)),
        (CallLimits(), found(under_way=3, cap=3), Wait("3 of 3 slots are in use", 0.0)),
        (CallLimits(per_minute=1), found(starts=(NOON - 20,)), Wait("1 calls a minute", 40.0)),
        (CallLimits(per_minute=2), found(starts=(NOON - 20,), before=1), Wait("2 calls a minute", 0.0, 1)),
        (CallLimits(), found(cool_until=NOON + 7), Wait("the provider asked for a pause", 7.0, is_pause=True)),
        (
            CallLimits(per_day_usd=1),
            found(spent_usd=1.5),
            Wait("$1.50 of $1.00 were spent today (UTC)", 43_200.0, is_pause=True),
        ),
        (
            CallLimits(per_day_usd=0.002),
            found(spent_usd=0.0025),
            Wait("$0.0025 of $0.002 were spent today (UTC)", 43_200.0, is_pause=True),
        ),
    ],
)
def test_a_call_waits_for_what_is_in_its_way(limits: CallLimits, situation: Situation, expected: Wait) -> None:
    assert wait_of(situation, limits) == expected


# --- several processes --------------------------------------------------------------------------------------------


def test_a_slot_taken_in_another_process_is_waited_for_and_that_is_told(book: Path, caller: Any) -> None:
    other = caller(CallLimits(slots=1))
    assert other.hears() == "entered"
    told: list[str] = []

    async def waits() -> None:
        mine = asyncio.create_task(briefly(Limiter(lambda: book), CallLimits(slots=1), told.append))
        while not told:
            await asyncio.sleep(0.01)
        assert not mine.done()
        other.go_on()
        await mine

    run(waits())
    assert told[0] == f"waiting to call with {KEY}: 1 of 1 slots are in use"
    assert other.hears() == "left"


def test_the_slot_of_a_killed_process_is_free_again(book: Path, caller: Any) -> None:
    other = caller(CallLimits(slots=1))
    assert other.hears() == "entered"
    other.kill()
    assert run(briefly(Limiter(lambda: book), CallLimits(slots=1))) < 5


def test_a_killed_process_that_waited_is_not_waited_for(book: Path, caller: Any) -> None:
    limiter, limits = Limiter(lambda: book), CallLimits(slots=1)

    async def waits() -> None:
        async with limiter.call(KEY, limits, lambda _: None):
            other = caller(limits)
            assert "waits" in await asyncio.to_thread(other.hears)
            behind = asyncio.create_task(briefly(limiter, limits))
            await asyncio.sleep(0.1)
            other.kill()
        await asyncio.wait_for(behind, 5)

    run(waits())


def test_never_more_at_once_than_slots_nobody_starves_and_little_time_is_lost(book: Path, caller: Any) -> None:
    slots, processes, times, seconds = 2, 4, 5, 0.1
    callers = [caller(CallLimits(slots=slots), seconds, times) for _ in range(processes)]
    calls = [one.hears() for _ in range(times) for one in callers]
    assert all(one.process.wait(10) == 0 for one in callers)
    edges = sorted([(began, 1) for began, _ in calls] + [(ended, -1) for _, ended in calls])
    at_once, most = 0, 0
    for _, change in edges:
        at_once += change
        most = max(most, at_once)
    assert most == slots
    took = max(ended for _, ended in calls) - min(began for began, _ in calls)
    assert took < 4 * processes * times * seconds / slots  # a crowded machine; a queue that stalls takes far longer


def test_a_pause_of_one_process_holds_for_all(book: Path, caller: Any) -> None:
    limiter = Limiter(lambda: book)

    async def paused() -> float:
        async with limiter.call(KEY, CallLimits(), lambda _: None) as call:
            call.cool_down(1.5)
        other = caller(CallLimits())
        assert "the provider asked for a pause" in (await asyncio.to_thread(other.hears))["waits"]
        other.go_on()
        return await briefly(limiter, CallLimits())

    assert 0.2 < run(paused()) < 4
    assert Limiter(lambda: book).pause_s(KEY, CallLimits()) == 0.0


def test_those_who_come_first_begin_first(book: Path) -> None:
    limiter, limits, order = Limiter(lambda: book), CallLimits(slots=1), list[int]()

    async def one(number: int) -> None:
        async with limiter.call(KEY, limits, lambda _: None):
            order.append(number)

    async def crowd() -> None:
        async with limiter.call(KEY, limits, lambda _: None):
            waiting = [asyncio.create_task(one(number)) for number in range(6)]
            await asyncio.sleep(0.1)
        await asyncio.gather(*waiting)

    run(crowd())
    assert order == list(range(6))


# --- one process, by the clock ------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


def test_calls_a_minute_are_counted_and_forgotten(tmp_path: Path) -> None:
    clock = Clock()
    limiter, limits = Limiter(lambda: tmp_path / "calls.db", clock), CallLimits(per_minute=2)

    async def calls() -> None:
        await briefly(limiter, limits)
        clock.now += 30
        await briefly(limiter, limits)
        third = asyncio.create_task(briefly(limiter, limits))
        await asyncio.sleep(0.2)
        assert not third.done()
        clock.now += 31
        await third

    run(calls())


def test_after_a_429_fewer_run_at_once_for_a_while(tmp_path: Path) -> None:
    clock = Clock()
    book = open_book(tmp_path / "calls.db", clock)
    for _ in range(3):
        assert book.ask(book.enter(KEY), KEY, lambda found: wait_of(found, CallLimits())) is None
    book.cool_down(KEY, 10, cap_for_s=300)
    clock.now += 11
    assert book.situation(KEY).cap == 2
    clock.now += 300
    assert book.situation(KEY).cap is None
    book.close()


def test_a_shorter_pause_does_not_end_a_longer_one_and_a_clock_set_back_does(tmp_path: Path) -> None:
    clock = Clock()
    book = open_book(tmp_path / "calls.db", clock)
    book.cool_down(KEY, 100)
    book.cool_down(KEY, 1)
    assert book.situation(KEY).cool_until == NOON + 100
    clock.now -= 3600
    assert book.situation(KEY).cool_until == 0
    book.close()


def test_the_money_of_a_day_stops_calls_until_the_next(tmp_path: Path) -> None:
    clock = Clock()
    limiter, limits = Limiter(lambda: tmp_path / "calls.db", clock), CallLimits(per_day_usd=1.0)

    async def spend() -> None:
        async with limiter.call(KEY, limits, lambda _: None) as call:
            call.record_cost(0.6)
            call.record_cost(0.0)
        async with limiter.call(KEY, limits, lambda _: None) as call:
            call.record_cost(0.6)
        with pytest.raises(CoolingDownError, match=r"\$1\.20 of \$1\.00") as caught:
            await briefly(limiter, limits)
        assert caught.value.for_s == 43_200
        assert limiter.pause_s(KEY, limits) == 43_200
        clock.now += 43_200
        await briefly(limiter, limits)

    run(spend())


def test_a_long_pause_is_not_waited_for_and_never_longer_than_a_day(tmp_path: Path) -> None:
    limiter = Limiter(lambda: tmp_path / "calls.db", Clock())

    async def pause() -> None:
        async with limiter.call(KEY, CallLimits(), lambda _: None) as call:
            call.cool_down(7 * 86_400)
        with pytest.raises(CoolingDownError) as caught:
            await briefly(limiter, CallLimits(max_wait_s=60))
        assert caught.value.for_s == 86_400

    run(pause())


def test_a_line_not_heard_of_goes_and_one_heard_of_stays(tmp_path: Path) -> None:
    clock = Clock()
    book = open_book(tmp_path / "calls.db", clock)
    silent, heard = book.enter(KEY), book.enter(KEY)
    clock.now += LEASE_S + 1
    book.see(heard, KEY, under_way=True)
    assert book.situation(KEY) == found(now=clock.now, under_way=1)
    book.see(silent, KEY, under_way=False)  # the machine had only slept: it has its old place
    assert book.situation(KEY).before == 1
    book.close()


def test_a_cancelled_wait_and_a_failed_call_leave_nothing_behind(book: Path) -> None:
    limiter, limits = Limiter(lambda: book), CallLimits(slots=1)

    async def fails() -> None:
        async with limiter.call(KEY, limits, lambda _: None):
            waiting = asyncio.create_task(briefly(limiter, limits))
            await asyncio.sleep(0.1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            raise ZeroDivisionError

    async def calls() -> None:
        with pytest.raises(ZeroDivisionError):
            await fails()
        looked = open_book(book)
        assert (looked.situation(KEY).under_way, looked.situation(KEY).before) == (0, 0)
        looked.close()

    run(calls())


def test_a_long_call_is_seen_again_and_again(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEE_S", 0.02)
    clock = Clock()
    limiter = Limiter(lambda: book, clock)

    async def calls() -> None:
        async with limiter.call(KEY, CallLimits(), lambda _: None):
            for _ in range(3):
                clock.now += LEASE_S - 1
                await asyncio.sleep(0.1)
            looked = open_book(book, clock)
            looked.see(looked.enter(KEY), KEY, under_way=False)
            assert looked.situation(KEY).under_way == 1
            looked.close()

    run(calls())


# --- a book that cannot be used -----------------------------------------------------------------------------------


def damaged(path: Path) -> None:
    path.write_bytes(b"no database " * 1000)


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()


def cut_short(path: Path) -> None:
    open_book(path).close()
    os.truncate(path, 5000)


@pytest.mark.parametrize("spoil", [damaged, foreign, cut_short, Path.mkdir, lambda path: path.symlink_to("elsewhere")])
def test_a_book_that_cannot_be_used_is_told_left_alone_and_done_without(
    spoil: Callable[[Path], None], book: Path, caplog: Any
) -> None:
    book.parent.mkdir(parents=True)
    spoil(book)
    before = book.read_bytes() if book.is_file() else None
    limiter, limits = Limiter(lambda: book), CallLimits(slots=1)

    async def calls() -> None:
        async with limiter.call(KEY, limits, lambda _: None) as call:
            call.record_cost(1.0)
            waiting = asyncio.create_task(briefly(limiter, limits))  # limits hold within the process
            await asyncio.sleep(0.2)
            assert not waiting.done()
        await waiting

    run(calls())
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(f"limits are not shared with other processes: {book}: ")
    assert (book.read_bytes() if book.is_file() else None) == before


def test_a_place_that_cannot_be_written_is_done_without(caplog: Any) -> None:
    run(briefly(Limiter(lambda: Path("/proc/agentos/calls.db")), CallLimits(slots=1)))
    assert "not shared" in caplog.text


def test_a_book_damaged_in_the_middle_does_not_stop_the_call(book: Path, caplog: Any) -> None:
    limiter = Limiter(lambda: book)

    async def calls() -> None:
        async with limiter.call(KEY, CallLimits(slots=1), lambda _: None) as call:
            with closing(sqlite3.connect(book, isolation_level=None)) as connection, connection:
                connection.execute("DROP TABLE call")
            connection.close()
            call.cool_down(0.01)
        await briefly(limiter, CallLimits(slots=1))

    run(calls())
    assert "not shared" in caplog.text


def test_the_book_is_for_the_user_alone(book: Path) -> None:
    run(briefly(Limiter(lambda: book), CallLimits()))
    assert stat.S_IMODE(book.stat().st_mode) == 0o600
    assert stat.S_IMODE(book.parent.stat().st_mode) == 0o700
    book.chmod(0o644)
    open_book(book).close()
    assert stat.S_IMODE(book.stat().st_mode) == 0o600


def test_the_book_lies_in_the_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert book_path() == tmp_path / "agentos" / "calls.db"


def test_a_locked_book_is_waited_for(book: Path) -> None:
    limiter = Limiter(lambda: book)

    async def calls() -> None:
        await briefly(limiter, CallLimits())
        with closing(sqlite3.connect(book, isolation_level=None)) as other, other:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.create_task(briefly(limiter, CallLimits()))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            other.execute("COMMIT")
        other.close()
        await waiting

    run(calls())


def test_a_book_in_memory_numbers_its_lines_apart() -> None:
    book = book_in_memory()
    assert book.enter(KEY) > 1 << 40
    book.close()
