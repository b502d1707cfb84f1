"""Leases by clocks that cannot be compared: another boot, another machine, a date that was set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from agentos.exceptions import LeaseHeldError
from agentos.store.holder import current_holder
from agentos.store.port import Holder
from agentos.store.sqlite.database import open_store
from agentos.store.sqlite.leases import FOREIGN_MARGIN_S, Clock
from agentos.store.sqlite.store import SqliteStore
from tests.contract.journals import RUN, create

LEASE_S = 15.0
OTHER = msgspec.structs.replace(current_holder(), host="elsewhere", boot="another boot", pid=4711)


class Times:
    """What the clocks of a machine say."""

    def __init__(self, boot: str, *, wall: float, since_boot: float = 100.0) -> None:
        self.boot, self.wall, self.since_boot = boot, wall, since_boot

    def clock(self) -> Clock:
        return Clock(lambda: self.boot, lambda: self.since_boot, lambda: self.wall, lambda holder: None)


Open = Callable[[Times], SqliteStore]


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Open]:
    """The database as a machine with these clocks sees it; of no holder can it be told whether it lives."""
    opened: list[SqliteStore] = []

    def open_with(times: Times) -> SqliteStore:
        opened.append(open_store(tmp_path / "runs.db", clock=times.clock()))
        return opened[-1]

    yield open_with
    for store in opened:
        store.close()


def is_held(store: SqliteStore) -> bool:
    try:
        store.release_lease(store.take_lease(RUN, OTHER, LEASE_S))
    except LeaseHeldError:
        return True
    return False


def test_a_lease_of_another_boot_is_given_a_margin(at: Open) -> None:
    """Its boot clock says nothing here, and wall clocks differ: by less than the margin nobody is taken over."""
    create(at(Times("one", wall=1_000.0)), lease_s=LEASE_S)
    here = Times("two", wall=1_000.0 + LEASE_S + 1)
    store = at(here)
    assert is_held(store), "its clock may be a second behind"
    here.wall = 1_000.0 + LEASE_S + 59
    assert is_held(store), "or nearly a minute"
    here.wall = 1_000.0 + LEASE_S + FOREIGN_MARGIN_S + 1
    assert not is_held(store)


@pytest.mark.parametrize("since_boot", [0.0, 1e9])
def test_the_boot_clock_of_another_boot_says_nothing(at: Open, since_boot: float) -> None:
    create(at(Times("one", wall=1_000.0)), lease_s=LEASE_S)
    assert is_held(at(Times("two", wall=1_001.0, since_boot=since_boot)))
    assert not is_held(at(Times("two", wall=1_000.0 + 1e6, since_boot=since_boot)))


@pytest.mark.parametrize("wall", [0.0, 1e9])
def test_the_date_says_nothing_of_a_lease_of_this_boot(at: Open, wall: float) -> None:
    """Somebody may set it."""
    times = Times("one", wall=1_000.0)
    create(at(times), lease_s=LEASE_S)
    times.wall = wall
    times.since_boot += LEASE_S - 0.1
    assert is_held(at(times))
    times.since_boot += 0.2
    assert not is_held(at(times))


def test_a_holder_of_whom_nothing_can_be_told_keeps_its_lease(at: Open) -> None:
    def alive(known: bool | None) -> Callable[[Holder], bool | None]:
        return lambda holder: known

    times = Times("one", wall=1_000.0)
    create(at(times), lease_s=LEASE_S)
    store = at(times)
    for known, held in ((None, True), (True, True), (False, False)):
        store._clock = times.clock()._replace(alive=alive(known))
        assert is_held(store) is held, known
