"""Schedules: a slot is decided and its run submitted at once, by one of all who try."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from agentos.dag.define.cron import Cron
from agentos.exceptions import NotFoundError
from agentos.ids import WorkflowId
from agentos.machine.slots import Passed, ScheduleState, SlotSpan
from agentos.store.port import ScheduleRecord, StorePort, Waiting
from tests.contract.backends import Backend
from tests.contract.journals import NOON, create, new_run

SLOT = "nightly@20261116T0300Z"


def schedule(name: str = "nightly", **more: Any) -> ScheduleRecord:
    settings: dict[str, Any] = {
        "version": 0,
        "cron": Cron(at="0 3 * * *", zone="Europe/Berlin", overlap="queue", catch_up="all"),
        "state": ScheduleState(upto=NOON),
        "run": new_run("", plan=b"", labels=("cron", "night")),
        "waiting": Waiting(queue="slow", priority=7),
        "files": "abc",
        "changed_at": NOON,
    }
    return ScheduleRecord(name=name, **(settings | more))


def add(store: StorePort, **more: Any) -> ScheduleRecord:
    assert store.write_schedule(schedule(**more), plan=b"the plan")
    return next(one for one in store.read_schedules() if one.name == more.get("name", "nightly"))


def fired(record: ScheduleRecord) -> ScheduleRecord:
    return msgspec.structs.replace(record, state=ScheduleState(upto=NOON + timedelta(days=1), fired=NOON))


def statuses(store: StorePort) -> dict[str, str]:
    return {record.workflow_id: record.status for record in store.list_runs()}


def test_a_schedule_is_read_as_it_was_written(store: StorePort) -> None:
    span = SlotSpan(after=NOON, upto=NOON + timedelta(hours=1))
    passed = Passed(first=NOON, last=NOON, count=3, why="overlap")
    state = ScheduleState(upto=NOON, waiting=(span,), fired=NOON, passed=(passed,))
    record = add(store, state=state)
    assert record == schedule(state=state, version=1)
    assert store.read_schedule_plan("nightly") == b"the plan"
    assert store.list_runs() == []


def test_there_are_none_before_one_is_added(store: StorePort) -> None:
    assert store.read_schedules() == []
    with pytest.raises(NotFoundError, match="no schedule 'nightly'"):
        store.read_schedule_plan("nightly")


def test_a_name_is_added_once(store: StorePort) -> None:
    add(store)
    assert not store.write_schedule(schedule(files="other"), plan=b"other")
    assert [one.files for one in store.read_schedules()] == ["abc"]


def test_it_is_changed_in_the_place_of_the_version_that_was_read(store: StorePort) -> None:
    record = add(store)
    assert store.write_schedule(msgspec.structs.replace(record, files="new"))
    assert not store.write_schedule(msgspec.structs.replace(record, files="late"), plan=b"late")
    [now] = store.read_schedules()
    assert (now.version, now.files, store.read_schedule_plan("nightly")) == (2, "new", b"the plan")
    assert store.write_schedule(now, plan=b"new plan")
    assert store.read_schedule_plan("nightly") == b"new plan"


def test_a_slot_is_decided_together_with_its_run(store: StorePort) -> None:
    record = add(store)
    assert store.write_schedule(fired(record), fire=new_run(SLOT, labels=("cron",)))
    assert store.read_schedules() == [msgspec.structs.replace(fired(record), version=2)]
    run = store.find_run(SLOT)
    assert (run.status, run.holder, run.labels) == ("pending", None, ("cron",))
    assert run.waiting is not None
    assert (run.waiting.queue, run.waiting.priority) == ("slow", 7)
    assert store.read_plan(WorkflowId(SLOT)) == new_run().plan


def test_where_somebody_else_decided_nothing_is_fired(store: StorePort) -> None:
    record = add(store)
    assert store.write_schedule(fired(record))
    assert not store.write_schedule(fired(record), fire=new_run(SLOT))
    assert statuses(store) == {}


def test_a_run_of_that_id_is_left_as_it_is(store: StorePort) -> None:
    store.release_lease(create(store, SLOT, name="by hand"))
    record = add(store)
    assert store.write_schedule(fired(record), fire=new_run(SLOT))
    assert store.find_run(SLOT).name == "by hand"
    assert store.read_schedules()[0].state.fired == NOON


def test_how_far_it_came_outlives_its_runs_and_itself(store: StorePort) -> None:
    record = add(store)
    assert store.write_schedule(fired(record), fire=new_run(SLOT))
    assert store.delete_runs([store.find_run(SLOT)]) == [SLOT]
    [record] = store.read_schedules()
    assert store.write_schedule(msgspec.structs.replace(record, is_active=False))
    [record] = store.read_schedules()
    assert (record.is_active, record.state, statuses(store)) == (False, fired(record).state, {})


def test_its_clock_is_that_of_the_database(backend: Backend, store: StorePort) -> None:
    first, second = store.now(), store.now()
    assert first <= second
    if backend.name != "sqlite":
        [(server,)] = backend.query("SELECT clock_timestamp()")
        assert abs(server - second) < timedelta(seconds=60)


def test_of_many_that_fire_a_slot_one_does(backend: Backend, store: StorePort) -> None:
    add(store)
    with ExitStack() as stack:
        children = [stack.enter_context(backend.child("fire", SLOT)) for _ in range(6)]
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.tell()
        heard = Counter(child.hear() for child in children)
    assert heard == {True: 1, False: 5}
    assert statuses(store) == {SLOT: "pending"}
