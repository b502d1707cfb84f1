"""What there is to do, as counts: the same on every store as its lists say, and told without reading a journal."""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta
from typing import Any

import msgspec

from agentos.store.backends import find_backend
from agentos.store.port import HERE, RunStatus, StorePort, Waiting
from agentos.store.stats import Workload
from tests.contract.backends import Backend
from tests.contract.journals import NOON, RUNNING, Journal, create, new_run


def workload(backend: Backend) -> Workload:
    return find_backend(backend.address).statistics(backend.address).workload(backend.address, HERE)


def stands(store: StorePort, name: str, status: RunStatus, *, driven: bool, minutes: int = 0, **more: Any) -> None:
    lease = create(store, name, created_at=NOON + timedelta(minutes=minutes), **more)
    if status != "pending":
        journal = Journal(name)
        journal.start("a")
        store.append(lease, journal.take(), msgspec.structs.replace(RUNNING, status=status))
    if not driven:
        store.release_lease(lease)


def test_counts_are_those_of_the_list(backend: Backend, store: StorePort) -> None:
    assert workload(backend) == Workload(runs={}, due={"": 0})
    stands(store, "driven", "running", driven=True)
    stands(store, "asks", "waiting", driven=True)
    stands(store, "new", "pending", driven=True)
    stands(store, "left", "running", driven=False, minutes=7)
    stands(store, "early", "pending", driven=False, minutes=5)
    stands(store, "states", "running", driven=False, minutes=1, kind="states")
    over: tuple[RunStatus, ...] = ("complete", "complete", "failed", "aborted", "paused", "waiting")
    for number, status in enumerate(over):
        stands(store, f"over-{number}", status, driven=False)
    found = workload(backend)
    assert found.runs == Counter(record.status for record in store.list_runs())
    assert found.due == {"": 2}  # what a CheckpointManager keeps is not gone on with
    assert found.oldest_due == NOON + timedelta(minutes=5)
    assert (found.leases, found.overdue_s) == (3, 0.0)


def test_submitted_runs_are_due_by_queue_once_their_time_has_come(backend: Backend, store: StorePort) -> None:
    for number, (queue, delay_s) in enumerate((("", 0.0), ("gpu", 0.0), ("gpu", 0.0), ("gpu", 3600.0))):
        store.submit_run(new_run(f"waits-{number}"), Waiting(queue=queue, delay_s=delay_s))
    found = workload(backend)
    assert found.runs == {"pending": 4}
    assert found.due == {"": 1, "gpu": 2}


def test_a_run_whose_holder_died_is_due(backend: Backend, store: StorePort) -> None:
    with backend.child("hold", "held", 0.3) as child:
        child.hear()
        child.process.kill()
        child.process.wait()
    until = time.monotonic() + 30
    while (found := workload(backend)).overdue_s <= 0:
        assert time.monotonic() < until
    assert found.runs == {"interrupted": 1}
    assert (found.due, found.leases) == ({"": 1}, 0)
