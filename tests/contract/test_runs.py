"""Creating, finding and listing runs, and their plans."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from agentos.exceptions import LeaseLostError, NotFoundError, RunNotFoundError, RunRefusedError
from agentos.ids import WorkflowId
from agentos.machine import events as ev
from agentos.store.holder import current_holder
from agentos.store.port import HERE, UNFINISHED, Lease, Progress, RunMark, RunRecord, StorePort
from tests.contract.backends import Backend
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


def test_runs_are_found_by_any_of_their_labels_newest_first_and_each_once(backend: Backend, store: StorePort) -> None:
    def made(name: str, *labels: str, status: str = "complete") -> None:
        lease = create(store, name, labels=labels, created_at=NOON + timedelta(seconds=len(store.list_runs())))
        store.append(lease, [], Progress(status=status, layer=0, layers=1, epoch=0))  # type: ignore[arg-type]
        store.release_lease(lease)

    made("r0", "a")
    made("r1", "a", "b", status="failed")
    made("r2")
    made("r3", "b", "it's")
    made("r4", "a", "b", "it's", status="waiting")

    def listed(*labels: str, **more: Any) -> list[str]:
        return [run.workflow_id for run in store.list_runs(labels=labels, **more)]

    assert listed("a") == ["r4", "r1", "r0"]
    assert listed("a", "b") == listed("b", "a", "b") == ["r4", "r3", "r1", "r0"]
    assert listed("it's") == ["r4", "r3"]
    assert listed("none") == listed("A") == []
    assert listed("a", "b", limit=2) == ["r4", "r3"]
    assert listed("a", "b", before=RunMark(created_at=NOON + timedelta(seconds=3), workflow_id="r3")) == ["r1", "r0"]
    assert listed("a", statuses={"failed", "complete"}) == ["r1", "r0"]
    assert listed("a", statuses={"waiting"}) == listed("a", statuses={"waiting", "paused"}) == ["r4"]
    assert listed("b", text="R3") == ["r3"]
    assert listed("b", name="demo", limit=1) == ["r4"]
    store.delete_runs([store.find_run("r4")])
    assert listed("a", "it's") == ["r3", "r1", "r0"]
    assert backend.query("SELECT count(*) FROM label") == [(5,)]


def asking(store: StorePort, name: str, gates: int, **more: Any) -> tuple[Lease, Journal]:
    """A run that waits with so many questions."""
    lease, journal = create(store, name, **more), Journal(name)
    journal.start("before")
    asked = [
        journal.add(
            ev.DecisionRequired, gate_id=f"g{number}", kind="approve", task_id="t", layer=0, question=f"{name}?"
        ).seq
        for number in range(gates)
    ]
    store.append(lease, journal.take(), Progress(status="waiting", layer=0, layers=1, epoch=0, asked=tuple(asked)))
    return lease, journal


def test_what_runs_ask_is_found_without_their_journals(backend: Backend, store: StorePort) -> None:
    for name, gates in (("none", 0), ("one", 1), ("two", 2), ("unsaid", 1)):
        asking(store, name, gates, created_at=NOON + timedelta(seconds=len(name)))
    create(store, "states", kind="states", plan=b"")

    def questions() -> dict[str, list[tuple[str, str]] | None]:
        return {
            one.run.workflow_id: None if one.asked is None else [(gate.gate_id, gate.question) for gate in one.asked]
            for one in store.open_questions()
        }

    everything = {"unsaid": [("g0", "unsaid?")], "one": [("g0", "one?")], "two": [("g0", "two?"), ("g1", "two?")]}
    assert questions() == everything
    [first, *_] = store.open_questions()
    assert first.asked is not None
    assert (first.run.workflow_id, first.asked[0].seq, first.asked[0].workflow_id) == ("unsaid", 2, "unsaid")
    # An answer, by whoever has the lease now; and one who says nothing of questions changes none.
    lease, journal = Lease(workflow_id=WorkflowId("two"), token=1, lease_s=15.0), Journal("two", 3)
    store.release_lease(lease)
    lease = store.take_lease(WorkflowId("two"), current_holder(), 15.0)
    journal.add(ev.DecisionMade, gate_id="g0", kind="approve", task_id="t", layer=0, answer="approved", author="me")
    store.append(lease, journal.take(), Progress(status="waiting", layer=0, layers=1, epoch=0, asked=(3,)))
    assert questions() == everything | {"two": [("g1", "two?")]}
    store.append(lease, [], Progress(status="waiting", layer=0, layers=1, epoch=0))
    assert questions() == everything | {"two": [("g1", "two?")]}
    # A row that is damaged, or that is no question, is left to whoever reads the journal.
    backend.query("UPDATE event SET digest = ? WHERE type = 19 AND body LIKE ?", b"x" * 16, "%unsaid%")
    assert questions()["unsaid"] is None
    store.append(lease, [], Progress(status="complete", layer=0, layers=1, epoch=0, asked=(), left=()))
    assert set(questions()) == {"one", "unsaid"}
    assert backend.query("SELECT count(*) FROM question") == [(2,)]


def test_what_an_imported_run_asks_is_looked_for_in_its_journal(backend: Backend, store: StorePort) -> None:
    asking(store, "asks", 1)
    copy = store.read_copy(WorkflowId("asks"))
    store.release_lease(Lease(workflow_id=WorkflowId("asks"), token=1, lease_s=15.0))
    store.delete_runs([store.find_run("asks")])
    assert store.open_questions() == []
    store.insert_copy(copy)
    assert [(one.run.workflow_id, one.asked) for one in store.open_questions()] == [("asks", None)]


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


def test_a_list_can_hold_the_runs_of_one_workflow_alone(store: StorePort) -> None:
    for number, name in enumerate(["nightly", "nightly build", "Nightly", "nightly"]):
        create(store, f"r{number}", created_at=NOON + timedelta(seconds=number), name=name)
    assert ids(store.list_runs(name="nightly")) == ["r3", "r0"]
    assert ids(store.list_runs(name="nightly", statuses={"pending"}, limit=1)) == ["r3"]
    for none in ("", "night%", "\0", "\ud800", "'); DROP TABLE run; --"):
        assert store.list_runs(name=none) == []


def test_a_list_can_be_searched_for_a_part_of_an_id_or_a_name_in_either_case(store: StorePort) -> None:
    for number, (id, name) in enumerate([("Fix-7", "repair"), ("b", "prefix_it"), ("c%d", "Änderung"), ("d", "<b>")]):
        create(store, id, created_at=NOON + timedelta(seconds=number), name=name)
    assert ids(store.list_runs(text="FIX")) == ["b", "Fix-7"]
    assert ids(store.list_runs(text="fix", statuses={"pending"}, limit=1)) == ["b"]
    assert ids(store.list_runs(text="x_i")) == ["b"]
    assert ids(store.list_runs(text="%")) == ["c%d"]
    assert ids(store.list_runs(text="Änd")) == ["c%d"]
    assert ids(store.list_runs(text="<B>")) == ["d"]
    assert ids(store.list_runs(text="")) == ["d", "c%d", "b", "Fix-7"]
    for none in ("nowhere", "\0", "\ud800", "x" * 100_000, "'); DROP TABLE run; --"):
        assert store.list_runs(text=none) == []


@pytest.mark.parametrize("statuses", [(), ("complete", "failed", "interrupted"), ("running", "complete", "failed")])
def test_a_list_goes_on_behind_any_of_its_runs_and_gives_each_of_the_rest_once(store: StorePort, statuses: Any) -> None:
    for number in range(12):  # four of each moment
        lease = create(store, f"r{number:02}", created_at=NOON + timedelta(seconds=number // 4))
        status: Any = ("complete", "failed", "running")[number % 3]
        store.append(lease, [], Progress(status=status, layer=0, layers=1, epoch=0))
        if number > 5:
            store.release_lease(lease)
    whole = store.list_runs(statuses=statuses)
    for number, run in enumerate(whole, 1):
        mark = RunMark(created_at=run.created_at, workflow_id=run.workflow_id, scope=run.scope)
        assert store.list_runs(statuses=statuses, before=mark) == whole[number:]
        assert store.list_runs(statuses=statuses, before=mark, limit=2) == whole[number : number + 2]


def test_a_list_goes_on_where_the_run_it_stood_at_is_gone(store: StorePort) -> None:
    for number in range(4):
        create(store, f"r{number}", created_at=NOON + timedelta(seconds=number // 2))
    for gone in ("", "gone", "\ud800", "\0"):
        mark = RunMark(created_at=NOON, workflow_id=gone)
        assert ids(store.list_runs(before=mark)) == ["r1", "r0"]


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
