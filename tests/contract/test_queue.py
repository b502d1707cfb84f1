"""Runs that are submitted, and workers that take them: in order, each by one, never more than a limit allows."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from agentos.exceptions import LeaseHeldError, LeaseLostError, QueueFullError, RunRefusedError
from agentos.ids import WorkflowId
from agentos.store.holder import current_holder
from agentos.store.port import Progress, RunFilter, RunLimit, RunStatus, StorePort, TakenRun, Waiting
from tests.contract.backends import Backend
from tests.contract.journals import NOON, RUN, RUNNING, Journal, create, new_run

ONE = RunLimit(key="deploy", limit=1)
TWO = RunLimit(key="deploy", limit=2)


def submit(store: StorePort, workflow_id: str = RUN, *, refuse_full: bool = False, **more: Any) -> None:
    about = {
        name: more.pop(name) for name in ("queue", "priority", "ready_at", "delay_s", "submitted_from") if name in more
    }
    store.submit_run(new_run(workflow_id, **more), Waiting(**about), refuse_full=refuse_full)


def take(store: StorePort, most: int = 10, **wanted: Any) -> list[str]:
    """The ids of the runs taken."""
    return [one.record.workflow_id for one in taken(store, most, **wanted)]


def taken(store: StorePort, most: int = 10, **wanted: Any) -> list[TakenRun]:
    return store.take_runs(RunFilter(**wanted), current_holder(), 15.0, most)


def begin(store: StorePort, one: TakenRun) -> None:
    """Its first event."""
    journal = Journal(one.record.workflow_id)
    journal.start("a")
    store.append(one.lease, journal.take(), RUNNING)


def test_a_submitted_run_is_pending_and_nobody_holds_it(store: StorePort) -> None:
    submit(store, queue="gpu", priority=7, labels=("x",), limit=ONE, submitted_from='{"commit":"c"}')
    record = store.find_run(RUN)
    assert (record.status, record.holder, record.sequence, record.labels) == ("pending", None, 0, ("x",))
    waiting = record.waiting
    assert waiting is not None
    assert (waiting.queue, waiting.priority, waiting.limit, waiting.submitted_from) == (
        "gpu",
        7,
        ONE,
        '{"commit":"c"}',
    )
    assert store.read_plan(RUN) == b'{"plan":1}'
    assert [one.waiting for one in store.list_runs(statuses={"pending"})] == [waiting]
    assert store.list_runs(statuses={"interrupted"}) == []
    store.verify(RUN)


def test_an_id_is_given_once(store: StorePort) -> None:
    submit(store)
    with pytest.raises(RunRefusedError, match="exists already"):
        submit(store)
    with pytest.raises(RunRefusedError, match="exists already"):
        create(store)


def test_runs_go_by_priority_and_then_by_age(store: StorePort) -> None:
    for number, priority in enumerate((0, 5, 0, 5, -1)):
        submit(store, f"run-{number}", priority=priority, created_at=NOON - timedelta(hours=number))
    assert take(store, 3) == ["run-3", "run-1", "run-2"]
    assert take(store) == ["run-0", "run-4"]
    assert take(store) == []


def test_a_taken_run_is_under_a_lease_and_goes_on_as_any_other(store: StorePort) -> None:
    submit(store)
    [one] = taken(store)
    assert (one.lease.token, one.lease.taken_from, one.record.status) == (1, None, "pending")
    assert one.record.waiting is not None
    with pytest.raises(LeaseHeldError):
        store.take_lease(RUN, current_holder(), 15.0)
    begin(store, one)
    assert (store.find_run(RUN).status, store.find_run(RUN).waiting) == ("running", None)
    store.release_lease(one.lease)
    assert store.find_run(RUN).status == "interrupted"


def test_a_run_that_was_let_go_before_it_began_is_pending_again(store: StorePort) -> None:
    submit(store)
    [one] = taken(store)
    store.return_lease(one)
    assert (store.find_run(RUN).status, store.find_run(RUN).holder) == ("pending", None)
    [again] = taken(store)
    assert again.lease.token == 2
    store.release_lease(again.lease)
    assert take(store) == [RUN]


def test_a_run_whose_taker_was_killed_before_it_began_is_taken_again(backend: Backend, store: StorePort) -> None:
    submit(store)
    with backend.child("take", 3600, 1) as child:
        assert child.hear() == [RUN]
        assert take(store) == []
        os.kill(child.process.pid, signal.SIGKILL)
        child.process.wait()
        assert store.find_run(RUN).status == "pending"
        assert take(store) == [RUN]


def test_interrupted_runs_are_taken_with_those_that_wait(backend: Backend, store: StorePort) -> None:
    with backend.child("hold", "old", 3600) as child:
        child.hear()
        submit(store, "new", created_at=NOON + timedelta(hours=1))
        submit(store, "urgent", priority=1, created_at=NOON + timedelta(hours=1))
        assert take(store, 1) == ["urgent"]
        child.process.kill()
        child.process.wait()
        found = taken(store)
        assert [one.record.workflow_id for one in found] == ["old", "new"]
        assert (found[0].record.status, found[0].record.sequence, found[0].lease.token) == ("interrupted", 1, 2)
        assert found[0].lease.taken_from is not None
        assert (found[0].lease.taken_from.pid, found[0].lease.taken_alive) == (child.process.pid, False)


def test_what_could_not_be_gone_on_with_is_left_as_it_was_found(backend: Backend, store: StorePort) -> None:
    """Who held it last, and until when, says what may have been cut off, and when files were last its own."""
    with backend.child("hold", RUN, 3600) as child:
        child.hear()
        child.process.kill()
        child.process.wait()
        before = store.find_run(RUN)
        [one] = taken(store)
        assert store.find_run(RUN).holder is not None
        store.return_lease(one)
        assert store.find_run(RUN) == before
        lease = store.take_lease(RUN, current_holder(), 15.0)
        assert lease.token == 3
        assert lease.taken_from is not None
        assert lease.taken_from.pid == child.process.pid


def test_a_run_that_was_left_in_order_is_taken(store: StorePort) -> None:
    lease, journal = create(store, "left"), Journal("left")
    journal.start("a")
    store.append(lease, journal.take(), Progress(status="interrupted", layer=0, layers=1, epoch=0))
    store.release_lease(lease)
    assert take(store) == ["left"]


def test_what_waits_paused_or_has_ended_is_not_taken(store: StorePort) -> None:
    ended: tuple[RunStatus, ...] = ("waiting", "paused", "complete", "failed", "aborted")
    for status in ended:
        lease, journal = create(store, status), Journal(status)
        journal.start("a")
        store.append(lease, journal.take(), Progress(status=status, layer=0, layers=1, epoch=0))
        store.release_lease(lease)
    create(store, "driven")
    store.release_lease(create(store, "saved", kind="states", plan=b""))
    assert take(store) == []


def test_a_queue_is_reserved_for_the_workers_that_name_it(store: StorePort) -> None:
    submit(store, "open")
    submit(store, "gpu", queue="gpu")
    submit(store, "tpu", queue="tpu")
    assert take(store) == ["open"]
    assert take(store, queues=("gpu",)) == ["gpu"]
    assert take(store, queues=("gpu", "tpu")) == ["tpu"]


def test_an_interrupted_run_stays_in_its_queue(store: StorePort) -> None:
    submit(store, queue="gpu", priority=2)
    [one] = taken(store, queues=("gpu",))
    begin(store, one)
    store.release_lease(one.lease)
    assert take(store) == []
    assert take(store, queues=("gpu",)) == [RUN]


def test_labels_and_workflows_pick_runs(store: StorePort) -> None:
    submit(store, "a", labels=("nightly", "x"))
    submit(store, "b", labels=("y",), name="other")
    submit(store, "c")
    assert take(store, labels=("x", "z")) == ["a"]
    assert take(store, workflows=("other",)) == ["b"]
    assert take(store, workflows=("none",)) == []
    assert take(store) == ["c"]


def test_a_run_is_passed_over_until_something_is_written_to_it(store: StorePort) -> None:
    submit(store)
    assert take(store, passed_over={RUN: 0}) == []
    [one] = taken(store, passed_over={RUN: 1})
    begin(store, one)
    store.release_lease(one.lease)
    assert take(store, passed_over={RUN: 1}) == []
    assert take(store, passed_over={RUN: 0}) == [RUN]


def test_a_delayed_run_is_not_taken_before_its_time(backend: Backend, store: StorePort) -> None:
    submit(store, "delayed", delay_s=3600.0, priority=9)
    submit(store, "at", ready_at=NOON + timedelta(days=20_000), priority=9)
    submit(store, "past", ready_at=NOON - timedelta(days=365))
    assert take(store) == ["past"]
    waiting = store.find_run("at").waiting
    assert waiting is not None
    assert waiting.ready_at == NOON + timedelta(days=20_000)
    backend.query("UPDATE run SET ready_at = ready_at - 3600000000 WHERE id = 'delayed'")  # an hour later
    assert take(store) == ["delayed"]


# --- limits -----------------------------------------------------------------------------------------------------------


def test_no_more_runs_of_a_key_are_taken_than_its_limit(store: StorePort) -> None:
    for number in range(4):
        submit(store, f"run-{number}", limit=TWO, created_at=NOON + timedelta(seconds=number))
    submit(store, "other", limit=RunLimit(key="build", limit=1), created_at=NOON + timedelta(hours=1))
    submit(store, "free", created_at=NOON + timedelta(hours=2))
    first = taken(store)
    assert [one.record.workflow_id for one in first] == ["run-0", "run-1", "other", "free"]
    assert take(store) == []
    begin(store, first[1])
    store.release_lease(first[1].lease)
    [next_one] = taken(store, passed_over={"run-1": 1})
    assert next_one.record.workflow_id == "run-2"
    assert take(store) == []
    store.return_lease(next_one)
    assert take(store) == ["run-1"]  # interrupted, and older


def test_many_that_wait_for_their_turn_do_not_hide_what_may_go(store: StorePort) -> None:
    for number in range(30):
        submit(store, f"blocked-{number}", limit=ONE, priority=1)
    submit(store, "free")
    assert take(store, 2) == ["blocked-0", "free"]
    submit(store, "free-2")
    assert take(store, 2) == ["free-2"]


def test_a_run_that_begins_at_once_obeys_its_limit(store: StorePort) -> None:
    lease = create(store, "first", limit=ONE)
    with pytest.raises(QueueFullError, match=r"'deploy' allows 1 run at a time: first \(process \d+ on") as refused:
        create(store, "second", limit=ONE)
    assert [run for run, _ in refused.value.holders] == ["first"]
    assert [one.workflow_id for one in store.list_runs()] == ["first"]
    submit(store, "third", limit=ONE)
    assert take(store) == []
    with pytest.raises(QueueFullError):
        store.take_lease(WorkflowId("third"), current_holder(), 15.0)
    answering = store.take_lease(WorkflowId("third"), current_holder(), 15.0, drives=False)
    store.release_lease(answering)
    store.release_lease(lease)
    create(store, "second", limit=ONE)


def test_a_run_that_nobody_drives_does_not_count(store: StorePort) -> None:
    """It may wait for an answer for days. Gone on with, it needs a place again."""
    lease = create(store, "first", limit=ONE)
    store.release_lease(lease)
    other = create(store, "second", limit=ONE)
    with pytest.raises(QueueFullError):
        store.take_lease(WorkflowId("first"), current_holder(), 15.0)
    assert take(store) == []
    store.release_lease(other)
    store.take_lease(WorkflowId("first"), current_holder(), 15.0)
    assert take(store) == []


def test_a_dead_driver_does_not_keep_its_place(backend: Backend, store: StorePort) -> None:
    submit(store, "first", limit=ONE)
    submit(store, "second", limit=ONE, created_at=NOON + timedelta(hours=1))
    with backend.child("take", 3600, 1) as child:
        assert child.hear() == ["first"]
        assert take(store) == []
        os.kill(child.process.pid, signal.SIGKILL)
        child.process.wait()
        assert take(store) == ["first"]
        assert take(store) == []


def test_a_driver_that_sleeps_past_its_lease_loses_its_place_and_writes_nothing(
    backend: Backend, store: StorePort
) -> None:
    with backend.child("hold", "sleeper", 0, 1) as child:
        child.hear()
        create(store, "next", limit=ONE)
        child.tell()
        assert [child.hear(), child.hear()] == ["LeaseLostError", "LeaseLostError"]


def test_a_driver_that_sleeps_past_its_lease_goes_on_where_nobody_took_its_place(backend: Backend) -> None:
    with backend.child("hold", RUN, 0, 1) as child:
        child.hear()
        child.tell()
        assert [child.hear(), child.hear()] == ["written", "written"]


def test_a_submit_may_be_refused_where_the_limit_is_reached(store: StorePort) -> None:
    submit(store, "first", limit=TWO, refuse_full=True)
    create(store, "second", limit=TWO)
    with pytest.raises(QueueFullError) as refused:
        submit(store, "third", limit=TWO, refuse_full=True)
    assert sorted(run for run, _ in refused.value.holders) == ["first", "second"]
    submit(store, "third", limit=TWO)


# --- many workers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 7])
def test_of_many_workers_each_run_is_taken_by_one(backend: Backend, store: StorePort, most: int) -> None:
    for number in range(60):
        submit(store, f"run-{number}")
    found = _race(backend, workers=4, most=most)
    assert Counter(found) == {f"run-{number}": 1 for number in range(60)}


def test_many_workers_never_take_more_than_a_limit_allows(backend: Backend, store: StorePort) -> None:
    for number in range(40):
        submit(store, f"a-{number}", limit=RunLimit(key="a", limit=3))
        submit(store, f"b-{number}", limit=RunLimit(key="b", limit=1))
    found = _race(backend, workers=4, most=4)
    assert Counter(name[0] for name in found) == {"a": 3, "b": 1}
    assert len(set(found)) == 4


def _race(backend: Backend, *, workers: int, most: int) -> list[str]:
    """What some processes take together, until nothing is left for any."""
    with ExitStack() as stack:
        children = [stack.enter_context(backend.child("take_all", most)) for _ in range(workers)]
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.tell()
        return [name for child in children for name in child.hear()]


# --- elsewhere --------------------------------------------------------------------------------------------------------


def test_the_view_shows_what_waits_as_pending(backend: Backend, store: StorePort) -> None:
    submit(store, queue="gpu", priority=3, ready_at=NOON)
    [row] = backend.query("SELECT status, queue, priority, ready_at FROM runs")
    assert row[:3] == ("pending", "gpu", 3)
    assert str(row[3]).startswith("2026-11-15")


def test_a_copy_of_a_run_that_waits_waits_too(backend: Backend, store: StorePort) -> None:
    submit(store, queue="gpu", priority=3, ready_at=NOON)
    copy = store.read_copy(RUN)
    assert store.delete_runs([store.find_run(RUN)]) == [RUN]
    store.insert_copy(copy)
    waiting = store.find_run(RUN).waiting
    assert waiting is not None
    assert (waiting.queue, waiting.priority, waiting.ready_at) == ("gpu", 3, NOON)
    assert take(store, queues=("gpu",)) == [RUN]


def test_a_lost_lease_returns_nothing(store: StorePort) -> None:
    submit(store)
    [one] = store.take_runs(RunFilter(), current_holder(), 0.0, 1)
    again = store.take_lease(RUN, current_holder(), 60.0)
    store.return_lease(one)
    with pytest.raises(LeaseLostError):
        store.renew_lease(one.lease)
    store.renew_lease(again)
