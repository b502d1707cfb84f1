"""Creating, finding and listing runs, and their plans."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from agentos.exceptions import LeaseLostError, NotFoundError, RunNotFoundError, RunRefusedError
from agentos.ids import WorkflowId
from agentos.store.holder import current_holder
from agentos.store.port import HERE, UNFINISHED, Progress, RunRecord, StorePort
from tests.contract.journals import NOON, RUN, RUNNING, Journal, create


def ids(runs: Sequence[RunRecord]) -> list[str]:
    return [run.workflow_id for run in runs]


def test_a_run_is_found_as_it_was_created(store: StorePort) -> None:
    origin: dict[str, Any] = {"source": '{"file":"a.py"}', "root": "/r", "host": "box", "fingerprint": "f1"}
    lease = create(store, **origin, parent_id=WorkflowId("older"))
    assert (lease.workflow_id, lease.token, lease.taken_from) == (RUN, 1, None)
    record = store.find_run(RUN)
    assert (record.name, record.kind, record.created_at, record.updated_at) == ("demo", "workflow", NOON, NOON)
    assert {name: getattr(record, name) for name in origin} == origin
    assert (record.parent_id, record.plan_revision, record.sequence, record.epoch) == ("older", 1, 0, 0)
    assert record.status == "pending"
    assert record.holder == current_holder()


def test_labels_are_found_as_they_were_given(store: StorePort) -> None:
    odd = ("a'); DROP TABLE run; --", 'he said "hi"', "nächtlich")
    create(store, labels=odd)
    create(store, "plain")
    assert store.find_run(RUN).labels == odd
    assert {run.workflow_id: run.labels for run in store.list_runs()} == {RUN: odd, "plain": ()}


def test_an_id_is_used_once(store: StorePort) -> None:
    create(store)
    with pytest.raises(RunRefusedError, match="exists already"):
        create(store, name="another")
    assert store.find_run(RUN).name == "demo"


def test_runs_are_listed_newest_first(store: StorePort) -> None:
    for day, name in enumerate(["b", "c", "a"]):
        create(store, name, created_at=NOON + timedelta(days=day))
    assert [run.workflow_id for run in store.list_runs()] == ["a", "c", "b"]


def test_a_list_can_be_cut_short_and_hold_some_statuses_alone(store: StorePort) -> None:
    for number, status in enumerate(["running", "complete", "failed", "aborted", "waiting", "complete"]):
        lease = create(store, f"r{number}", created_at=NOON + timedelta(seconds=number))
        progress = Progress(status=status, layer=0, layers=1, epoch=0)  # type: ignore[arg-type]
        store.append(lease, [], progress)
    assert ids(store.list_runs(limit=2)) == ["r5", "r4"]
    assert ids(store.list_runs(statuses=UNFINISHED)) == ["r4", "r2", "r0"]
    assert ids(store.list_runs(statuses=UNFINISHED, limit=1)) == ["r4"]
    assert ids(store.list_runs(statuses={"complete", "aborted"}, limit=2)) == ["r5", "r3"]
    assert ids(store.list_runs(statuses={"complete"})) == ["r5", "r1"]
    assert ids(store.list_runs(statuses={"paused"})) == []


def test_a_list_of_what_was_interrupted_is_told_by_the_leases(store: StorePort) -> None:
    for number in range(12):
        lease = create(store, f"r{number:02}", created_at=NOON + timedelta(seconds=number))
        store.append(lease, [], Progress(status="running", layer=0, layers=1, epoch=0))
        if number < 3:
            store.release_lease(lease)
    assert ids(store.list_runs(statuses={"interrupted"})) == ["r02", "r01", "r00"]
    # The newest are being driven: those asked for lie further back than the limit.
    assert ids(store.list_runs(statuses={"interrupted"}, limit=2)) == ["r02", "r01"]
    assert ids(store.list_runs(statuses={"running"}, limit=20)) == [f"r{number:02}" for number in range(11, 2, -1)]
    assert ids(store.list_runs(statuses={"running", "interrupted"}, limit=10)) == [
        f"r{number:02}" for number in range(11, 1, -1)
    ]


def test_runs_of_the_same_moment_are_listed_the_last_first_whatever_their_status(store: StorePort) -> None:
    for number in range(6):
        lease = create(store, f"r{number}")
        status: Any = "complete" if number % 2 else "failed"
        store.append(lease, [], Progress(status=status, layer=0, layers=1, epoch=0))
    assert (
        ids(store.list_runs(statuses={"complete", "failed"}))
        == ids(store.list_runs())
        == [f"r{number}" for number in range(5, -1, -1)]
    )


def test_a_list_can_hold_runs_with_one_of_some_labels_alone(store: StorePort) -> None:
    for number, labels in enumerate([("gpu", "night"), (), ("day",), ("night",)]):
        create(store, f"r{number}", created_at=NOON + timedelta(seconds=number), labels=labels)
    assert ids(store.list_runs(labels=["night"])) == ["r3", "r0"]
    assert ids(store.list_runs(labels=["gpu", "day"], statuses={"pending"})) == ["r2", "r0"]
    assert ids(store.list_runs(labels=["night"], limit=1)) == ["r3"]
    for none in ("gp", "%", "\0", "\ud800", "'); DROP TABLE run; --"):
        assert store.list_runs(labels=[none]) == []


def test_a_unique_prefix_is_enough_and_an_exact_id_wins(store: StorePort) -> None:
    for name in ("abc", "abcd", "b*", "b_"):
        create(store, name)
    assert store.find_run("abc").workflow_id == "abc"
    assert store.find_run("abcd").workflow_id == "abcd"
    assert store.find_run("b*").workflow_id == "b*"
    with pytest.raises(RunRefusedError, match="abc, abcd"):
        store.find_run("ab")
    for missing in ("x", "", "b%", "\ud800"):
        with pytest.raises(RunNotFoundError):
            store.find_run(missing)


def test_progress_shows_in_the_list(store: StorePort) -> None:
    lease = create(store)
    journal = Journal()
    journal.start("a")
    store.append(lease, journal.take(), Progress(status="waiting", layer=2, layers=7, epoch=1))
    record = store.find_run(RUN)
    assert (record.status, record.layer, record.layers, record.epoch, record.sequence) == ("waiting", 2, 7, 1, 1)
    assert record.updated_at == NOON + timedelta(milliseconds=1)


def test_a_run_that_nobody_drives_is_interrupted(store: StorePort) -> None:
    lease = create(store)
    store.append(lease, [], RUNNING)
    assert store.find_run(RUN).status == "running"
    store.release_lease(lease)
    record = store.find_run(RUN)
    assert (record.status, record.holder) == ("interrupted", None)


@pytest.mark.parametrize("status", ["waiting", "paused", "complete", "failed", "aborted"])
def test_other_statuses_need_no_driver(store: StorePort, status: str) -> None:
    lease = create(store)
    store.append(lease, [], Progress(status=status, layer=0, layers=1, epoch=0))  # type: ignore[arg-type]
    store.release_lease(lease)
    assert store.find_run(RUN).status == status


def test_every_plan_revision_is_kept(store: StorePort) -> None:
    lease = create(store)
    store.append(lease, [], RUNNING, plan=b"second")
    assert store.read_plan(RUN) == b"second"
    assert store.read_plan(RUN, 1) == b'{"plan":1}'
    assert store.find_run(RUN).plan_revision == 2
    with pytest.raises(NotFoundError, match="revision 3"):
        store.read_plan(RUN, 3)
    with pytest.raises(RunNotFoundError):
        store.read_plan(WorkflowId("nobody"))


def test_a_run_of_states_has_no_plan(store: StorePort) -> None:
    create(store, kind="states", plan=b"")
    assert store.read_plan(RUN) == b""
    assert store.find_run(RUN).kind == "states"


def test_a_run_moves_to_another_worktree_with_its_holder_alone(store: StorePort) -> None:
    lease = create(store, root="/was", host="one")
    store.move_run(lease, "/is", "two", HERE)
    found = store.find_run(RUN)
    assert (found.root, found.host) == ("/is", "two")
    store.renew_lease(lease)
    store.release_lease(lease)
    with pytest.raises(LeaseLostError):
        store.move_run(lease, "/was", "one", HERE)
    assert store.find_run(RUN) == msgspec.structs.replace(found, holder=None, status="interrupted", lease_until=None)


def test_whoever_drives_a_run_says_where_its_workflow_is_defined(store: StorePort) -> None:
    lease = create(store, source="was")
    store.set_source(lease, "is")
    assert store.find_run(RUN).source == "is"
    store.release_lease(lease)
    with pytest.raises(LeaseLostError):
        store.set_source(lease, "was")
    assert store.find_run(RUN).source == "is"
