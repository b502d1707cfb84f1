"""Deleting gives space back; many processes in one database do not get in each other's way."""

from __future__ import annotations

import random
from contextlib import ExitStack
from datetime import timedelta

import pytest

from agentos.exceptions import AgentosError, RunNotFoundError
from agentos.ids import WorkflowId
from agentos.machine import events as ev
from agentos.store.holder import current_holder
from agentos.store.port import Lease, PostedCommand, StorePort
from tests.contract.backends import Backend
from tests.contract.journals import NOON, RUN, RUNNING, Journal, create


def filled(store: StorePort, name: str, shared: bytes) -> Journal:
    lease, journal = create(store, name), Journal(name)
    chance = random.Random(name)  # PostgreSQL would make nothing of what repeats itself
    for number in range(50):
        journal.complete(f"t{number}", b'"%s %d"' % (chance.randbytes(10_000).hex().encode(), number))
    journal.complete("large", shared)
    journal.complete("own", shared.replace(b"y", name[-1].encode()))
    journal.cut()
    store.append(lease, journal.take(), RUNNING, plan=b"second")
    command = PostedCommand(id="c", author="me", posted_at=NOON, command={})
    store.post_command(lease.workflow_id, command)
    return journal


def test_deleting_a_run_gives_its_space_back_and_leaves_the_others(backend: Backend) -> None:
    store = backend.open(blob_limit=30_000)
    empty = store.size()
    shared = b'"' + b"y" * 50_000 + b'"'
    filled(store, "run-1", shared)
    filled(store, "run-2", shared)
    full = store.size()
    store.release_lease(create(store, "other"))
    for name, blobs in (("run-1", 2), ("run-2", 0)):
        held = store.find_run(name)
        assert held.holder == current_holder()
        assert store.delete_runs([held]) == []  # somebody drives it
        store.release_lease(_lease(name))
        assert store.delete_runs([store.find_run(name)]) == [name]
        with pytest.raises(RunNotFoundError):
            store.find_run(name)
        assert backend.query("SELECT count(*) FROM blob") == [(blobs,)]
        if name == "run-1":
            assert len(store.read_events(WorkflowId("run-2"))) == 53
            backend.tidy()
            assert store.size() < 0.75 * full
    backend.tidy()
    assert store.size() < empty + 200_000
    for table in ("event", "plan", "checkpoint", "inbox"):
        [(left,)] = backend.query(f"SELECT count(*) FROM {table}")  # noqa: S608
        assert left == (1 if table == "plan" else 0)  # of `other`
    store.close()


def _lease(name: str) -> Lease:
    return Lease(workflow_id=WorkflowId(name), token=1, lease_s=15.0)


def test_a_deleted_run_can_be_made_again(store: StorePort) -> None:
    store.release_lease(create(store))
    store.delete_runs([store.find_run(RUN)])
    lease, journal = create(store), Journal()
    journal.start("a")
    store.append(lease, journal.take(), RUNNING)
    assert len(store.read_events(RUN)) == 1


def test_of_many_runs_only_those_go_that_stand_as_they_were_listed(store: StorePort) -> None:
    for name in ("driven", "written", "made-anew", "old", "older"):
        store.release_lease(create(store, name))
    listed = store.list_runs()
    driver = store.take_lease(WorkflowId("driven"), current_holder(), 15.0)
    lease, journal = store.take_lease(WorkflowId("written"), current_holder(), 15.0), Journal("written")
    journal.start("a")
    store.append(lease, journal.take(), RUNNING)
    store.release_lease(lease)
    store.delete_runs([store.find_run("made-anew")])
    store.release_lease(create(store, "made-anew", created_at=NOON + timedelta(seconds=1)))
    gone = store.delete_runs(listed)
    assert sorted(gone) == ["old", "older"]
    assert sorted(run.workflow_id for run in store.list_runs()) == ["driven", "made-anew", "written"]
    store.renew_lease(driver)
    # Whoever asks again, because the answer was lost, learns the same.
    assert sorted(store.delete_runs(listed)) == ["old", "older"]
    assert len(store.read_events(WorkflowId("written"))) == 1


def test_one_whose_driver_is_dead_can_be_deleted(backend: Backend, store: StorePort) -> None:
    with backend.child("hold", "left", 15.0) as child:
        child.hear()
        assert store.delete_runs([store.find_run("left")]) == []
    assert store.delete_runs([store.find_run("left")]) == ["left"]


def test_the_checkpoints_of_many_runs_are_pruned_as_those_of_one_are(store: StorePort) -> None:
    for name, cuts in (("few", 2), ("many", 7), ("rolled-back", 6)):
        lease, journal = create(store, name), Journal(name)
        for _ in range(cuts):
            journal.cut()
        if name == "rolled-back":
            journal.add(ev.RolledBack, checkpoint_id="c", to_seq=2, layer=0, epoch=1)
        store.append(lease, journal.take(), RUNNING)
    names = [WorkflowId(name) for name in ("few", "many", "nobody", "rolled-back")]
    pruned = {one.workflow_id: (one.deleted, one.kept) for one in store.prune_runs(names, 2)}
    assert pruned == {"few": (0, 2), "many": (5, 2), "rolled-back": (2, 4)}
    for name, (_, kept) in pruned.items():
        assert len(store.list_checkpoints(name)) == kept
    assert {one.deleted for one in store.prune_runs(names, 2)} == {0}
    assert store.prune_runs([], 2) == []
    with pytest.raises(AgentosError, match="cannot keep 0"):
        store.prune_runs(names, 0)


def test_many_processes_make_and_fill_one_database_at_once(backend: Backend) -> None:
    many = 50 if backend.name == "sqlite" else 20  # where one file is locked by all of them it matters more
    with ExitStack() as stack:
        names = [f"run-{number:02d}" for number in range(many)]
        children = [stack.enter_context(backend.child("write", name, 10)) for name in names]
        for child in children:
            child.tell()
        assert [child.hear() for child in children] == ["done"] * many
    store = backend.open()
    runs = store.list_runs()
    assert sorted(run.workflow_id for run in runs) == names
    for run in runs:
        assert run.sequence == len(store.read_events(run.workflow_id)) == 30
        assert len(store.list_checkpoints(run.workflow_id)) == 5
    store.close()
