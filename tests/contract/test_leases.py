"""One driver for each run: across processes, after deaths, and against holders that wake up late."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from agentos.exceptions import LeaseHeldError, LeaseLostError, RunNotFoundError
from agentos.ids import WorkflowId
from agentos.store.holder import current_holder
from agentos.store.port import Lease, StorePort
from tests.contract.backends import Backend
from tests.contract.journals import RUN, RUNNING, Journal, create


def test_a_live_lease_is_refused_with_who_holds_it(backend: Backend, store: StorePort) -> None:
    with backend.child("hold", RUN, 60) as child:
        assert child.hear() == {"token": 1}
        with pytest.raises(LeaseHeldError, match=f"process {child.process.pid} on"):
            store.take_lease(RUN, current_holder(), 15.0)
        assert store.find_run(RUN).holder is not None


def test_a_free_lease_is_taken_with_the_next_token(store: StorePort) -> None:
    store.release_lease(create(store))
    lease = store.take_lease(RUN, current_holder(), 15.0)
    assert (lease.token, lease.taken_from, lease.taken_alive) == (2, None, False)
    with pytest.raises(RunNotFoundError):
        store.take_lease(WorkflowId("nobody"), current_holder(), 15.0)


def test_a_killed_holder_is_taken_over_at_once(backend: Backend, store: StorePort) -> None:
    with backend.child("hold", RUN, 3600) as child:
        child.hear()
        child.process.kill()
        child.process.wait()
        assert store.find_run(RUN).status == "interrupted"
        lease = store.take_lease(RUN, current_holder(), 15.0)
    assert lease.taken_from is not None
    assert (lease.token, lease.taken_from.pid, lease.taken_alive) == (2, child.process.pid, False)


def test_a_killed_holder_that_nobody_reaped_is_dead(backend: Backend, store: StorePort) -> None:
    with backend.child("hold", RUN, 3600) as child:
        child.hear()
        os.kill(child.process.pid, signal.SIGKILL)  # and no wait(): it stays a zombie
        assert _taken_within(store, seconds=5).taken_alive is False


def test_a_stopped_holder_is_taken_over_when_its_lease_ends_and_writes_nothing_later(
    backend: Backend, store: StorePort
) -> None:
    with backend.child("hold", RUN, 1.0) as child:
        child.hear()
        begun = time.monotonic()
        os.kill(child.process.pid, signal.SIGSTOP)
        with pytest.raises(LeaseHeldError):
            store.take_lease(RUN, current_holder(), 15.0)
        lease = _taken_within(store, seconds=10)
        assert time.monotonic() - begun > 0.5
        assert lease.taken_alive is True
        os.kill(child.process.pid, signal.SIGCONT)
        child.tell()
        assert [child.hear(), child.hear()] == ["LeaseLostError", "LeaseLostError"]
    assert [event.seq for event in store.read_events(RUN)] == [1]


def test_an_expired_lease_that_nobody_took_goes_on(backend: Backend) -> None:
    with backend.child("hold", RUN, 0) as child:
        child.hear()
        child.tell()
        assert [child.hear(), child.hear()] == ["written", "written"]


def test_renewing_pushes_the_expiry_out(store: StorePort) -> None:
    lease = create(store, lease_s=0.0)
    store.renew_lease(Lease(workflow_id=RUN, token=lease.token, lease_s=60.0))
    with pytest.raises(LeaseHeldError):
        store.take_lease(RUN, current_holder(), 15.0)


def test_of_many_that_race_for_a_lease_one_gets_it(backend: Backend, store: StorePort) -> None:
    store.release_lease(create(store))
    with ExitStack() as stack:
        children = [stack.enter_context(backend.child("race", RUN)) for _ in range(6)]
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.tell()
        heard = Counter(str(next(iter(child.hear()))) for child in children)
    assert heard == {"token": 1, "held": 5}


def test_each_change_of_hands_raises_the_token(store: StorePort) -> None:
    lease = create(store)
    journal = Journal()
    for token in range(2, 6):
        store.release_lease(lease)
        lease = store.take_lease(RUN, current_holder(), 15.0)
        assert lease.token == token
        journal.start("a", attempt=token)
        store.append(lease, journal.take(), RUNNING)


def test_two_writers_with_one_token_do_not_write_the_same_place_twice(backend: Backend, store: StorePort) -> None:
    """A process that was copied (fork, a restored image) has the lease as well: what it did not see stays."""
    lease, other = create(store), backend.open()
    try:
        first, second = Journal(), Journal()
        first.start("a")
        second.start("b")
        store.append(lease, first.take(), RUNNING)
        with pytest.raises(LeaseLostError):
            other.append(lease, second.take(), RUNNING)
        third = Journal()
        third.start("c")
        third.start("d")
        written = third.take()
        other.append(lease, written[1:], RUNNING)
        fourth = Journal()
        fourth.start("e")
        fourth.start("f")
        with pytest.raises(LeaseLostError):
            store.append(lease, fourth.take()[1:], RUNNING)
    finally:
        other.close()
    assert [(event.seq, event.task_id) for event in store.read_events(RUN)] == [(1, "a"), (2, "d")]  # type: ignore[attr-defined]


def _taken_within(store: StorePort, seconds: float) -> Lease:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return store.take_lease(RUN, current_holder(), 15.0)
        except LeaseHeldError:
            assert time.monotonic() < deadline, "the lease never became free"
            time.sleep(0.01)  # only the clock can end a lease
