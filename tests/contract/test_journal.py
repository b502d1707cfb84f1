"""What append promises: all or nothing, in order, by the holder of the lease alone; and what comes back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.exceptions import CheckpointCorruptedError, CheckpointCutError, LeaseLostError, RunNotFoundError
from agentos.ids import WorkflowId
from agentos.machine import events as ev
from agentos.store import codec
from agentos.store.holder import current_holder
from agentos.store.port import Lease, StorePort
from tests.contract.backends import Backend
from tests.contract.journals import NOON, RUN, RUNNING, Journal, bodies, create

FAILURE = ev.TaskFailure(type="ValueError", text="bad", traceback="Traceback …")
SAMPLES: dict[type[ev.Event], dict[str, Any]] = {
    ev.WorkflowStart: {"name": "demo", "total_layers": 3, "resumed_from": 1},
    ev.LeaseTaken: {"token": 2, "holder": "process 1 on here"},
    ev.ResumePlanned: {"plan_revision": 1, "counts": {"reuse": 2}, "reset": ("a",), "regrown": ("b",)},
    ev.WorkflowFailed: {"reason": "a failed", "failed": ("a",)},
    ev.WorkflowAborted: {"reason": "asked"},
    ev.WorkflowPaused: {"reason": "waiting", "gates": ("g",)},
    ev.LayerStart: {"layer": 0, "tasks": 2},
    ev.TaskStart: {"task_id": "a", "layer": 0, "attempt": 1},
    ev.TaskProcess: {"task_id": "a", "layer": 0, "attempt": 1, "pid": 7, "pgid": 7, "started": 1.25},
    ev.TaskRetry: {"task_id": "a", "layer": 0, "attempt": 1, "not_before": NOON, "error": FAILURE},
    ev.TaskComplete: {"task_id": "a", "layer": 0, "place": "000000", "output": msgspec.Raw(b'{"n":1.0}')},
    ev.TaskError: {"task_id": "a", "layer": 0, "place": "000000", "error": FAILURE, "status": "failed_safe"},
    ev.TaskSkipped: {"task_id": "b", "layer": 1, "place": "000001", "because": "a"},
    ev.TaskWarning: {"message": "careful"},
    ev.StateUpdated: {"layer": 0, "tasks": 1},
    ev.Checkpointed: {"layer": 0, "snapshot": "abc"},
    ev.CheckpointFailed: {"layer": 0, "error": FAILURE},
    ev.FilesCaptured: {"snapshot": "abc", "tree": "def", "why": "attempt", "task_id": "a", "partial": ("big",)},
    ev.TaskSession: {"task_id": "a", "layer": 0, "attempt": 1, "session": ev.AgentSession(agent="claude", id="s")},
    ev.TaskSources: {
        "task_id": "a",
        "layer": 0,
        "attempt": 1,
        "sources": ev.SourcesRecord(digest="0f", variables={"MODE": "1e"}, salt="run"),
        "names": {"src/a.py": "0f"},
    },
    ev.TaskStep: {
        "task_id": "a",
        "layer": 0,
        "attempt": 1,
        "number": 2,
        "name": "charge",
        "inputs": "0f",
        "output": msgspec.Raw(b"[1]"),
    },
    ev.TaskStepStarted: {"task_id": "a", "layer": 0, "attempt": 1, "number": 2, "name": "charge", "inputs": "0f"},
    ev.TaskSleep: {
        "task_id": "a",
        "layer": 0,
        "attempt": 1,
        "number": 2,
        "inputs": "0f",
        "until": NOON,
        "seconds": 1.5,
    },
    ev.TaskPlaced: {"task_id": "a", "layer": 0, "attempt": 1, "runner": "dask", "handle": "0f1e"},
    ev.TaskSuspended: {"task_id": "a", "layer": 0, "attempt": 1, "waits": (2, 3)},
    ev.TaskUsage: {"task_id": "a", "layer": 0, "attempt": 1, "usage": ev.Usage(input_tokens=3, cost_usd=0.25)},
    ev.CoverChanged: {"gate_id": "approve:a", "task_id": "a", "files": {"ship.sh": "0" * 32}},
    ev.FilesMerged: {
        "layer": 1,
        "tasks": ("a", "b"),
        "before": "abc",
        "tree": "def",
        "snapshot": "fed",
        "conflicts": (ev.MergeConflict(path="x", sides=("worktree", "task:a"), mark="00"),),
    },
    ev.FilesRestored: {"snapshot": "abc", "tree": "def", "undo": "fed", "paths": ("a",), "count": 1},
    ev.DecisionRequired: {"gate_id": "g", "kind": "approve", "layer": 0, "question": "Ship?", "deadline": NOON},
    ev.DecisionMade: {"gate_id": "g", "kind": "approve", "layer": 0, "answer": "approved", "author": "me"},
    ev.CommandReceived: {"command_id": "c", "author": "me", "command": {"type": "pause"}},
    ev.CommandApplied: {"command_id": "c", "author": "me", "command": {"type": "pause"}},
    ev.CommandRefused: {"command_id": "c", "author": "me", "command": {"type": "pause"}, "why": "no"},
    ev.PlanChanged: {"origin": "for_each", "parent": "a", "items": msgspec.Raw(b"[1,2]"), "children": ("a[0]", "a[1]")},
    ev.RolledBack: {"checkpoint_id": "x", "to_seq": 1, "layer": 0, "epoch": 1},
    ev.RunForked: {
        "parent_id": "p",
        "checkpoint_id": "x",
        "current_layer": 0,
        "results": (msgspec.Raw(b'{"type":"task_skipped","task_id":"a","layer":0,"place":"0"}'),),
    },
    ev.StateSaved: {"current_layer": 2, "messages": msgspec.Raw(b"[1]"), "context_removed": ("k",)},
}


def test_every_kind_of_event_comes_back_equal(store: StorePort) -> None:
    lease = create(store)
    journal = Journal()
    for kind in ev.JOURNALED:
        journal.add(kind, **SAMPLES.get(kind, {}))
    events = journal.take()
    store.append(lease, events, RUNNING)
    back = store.read_events(RUN)
    assert bodies(back) == bodies(events)
    assert [event.at for event in back] == [event.at for event in events]


def test_a_stretch_of_the_journal_can_be_read(store: StorePort) -> None:
    lease = create(store)
    journal = Journal()
    for number in range(10):
        journal.start(f"t{number}")
    store.append(lease, journal.take(), RUNNING)
    assert [event.seq for event in store.read_events(RUN, after=3, upto=6)] == [4, 5, 6]
    assert [event.seq for event in store.read_events(RUN, after=8)] == [9, 10]
    assert store.read_events(RUN, after=10) == store.read_events(RUN, after=99) == store.read_events(RUN, upto=0) == []
    with pytest.raises(RunNotFoundError):
        store.read_events(WorkflowId("nobody"))


def test_an_append_that_does_not_follow_the_head_is_refused(store: StorePort) -> None:
    lease = create(store)
    journal = Journal()
    journal.start("a")
    store.append(lease, journal.take(), RUNNING)
    for sequence in (0, 2):
        stray = Journal(sequence=sequence)
        stray.start("b")
        with pytest.raises(LeaseLostError):
            store.append(lease, stray.take(), RUNNING)
    assert store.find_run(RUN).sequence == 1


def test_an_older_token_writes_nothing_at_all(backend: Backend, store: StorePort) -> None:
    stale = create(store, lease_s=0.0)
    second = backend.open()
    lease = second.take_lease(RUN, current_holder(), 15.0)
    assert (lease.token, lease.taken_from) == (2, current_holder())
    journal = Journal()
    journal.start("a")
    journal.cut()
    with pytest.raises(LeaseLostError):
        store.append(stale, journal.take(), RUNNING, plan=b"stale", consumed=["c"])
    with pytest.raises(LeaseLostError):
        store.renew_lease(stale)
    store.release_lease(stale)
    record = second.find_run(RUN)
    assert (record.sequence, record.plan_revision, record.holder) == (0, 1, current_holder())
    assert second.list_checkpoints(RUN) == []
    second.close()


def test_a_deleted_run_cannot_be_written_to_nor_one_made_after_it(backend: Backend, store: StorePort) -> None:
    stale = create(store, lease_s=0.0)
    second = backend.open()
    assert second.delete_runs([second.find_run(RUN)]) == [RUN]
    create(second, "another")
    journal = Journal()
    journal.start("a")
    with pytest.raises(LeaseLostError):
        store.append(stale, journal.take(), RUNNING)
    assert second.find_run("another").sequence == 0
    second.close()


def test_a_lease_that_was_let_go_writes_nothing(store: StorePort) -> None:
    lease = create(store)
    store.release_lease(lease)
    journal = Journal()
    journal.start("a")
    with pytest.raises(LeaseLostError):
        store.append(lease, journal.take(), RUNNING)
    with pytest.raises(LeaseLostError):
        store.renew_lease(lease)


def test_a_store_that_never_saw_the_run_can_write_with_its_lease(backend: Backend, store: StorePort) -> None:
    lease = create(store)
    other = backend.open()
    journal = Journal()
    journal.start("a")
    other.append(lease, journal.take(), RUNNING)
    journal.start("b")
    store.append(lease, journal.take(), RUNNING)
    assert len(other.read_events(RUN)) == 2
    other.close()


def test_a_failed_append_leaves_nothing_behind(store: StorePort) -> None:
    lease = create(store)
    journal = Journal()
    journal.cut()
    store.append(lease, journal.take(), RUNNING)
    journal.start("a")
    journal.add(ev.Checkpointed, layer=-1, checkpoint_id="impossible")
    broken = journal.take()
    with pytest.raises(CheckpointCutError, match=r"layer >= 0"):
        store.append(lease, broken, RUNNING, plan=b"new")
    assert (store.find_run(RUN).sequence, store.find_run(RUN).plan_revision) == (1, 1)
    again = Journal(sequence=1)
    again.start("a")
    store.append(lease, again.take(), RUNNING)
    assert len(store.read_events(RUN)) == 2


@pytest.mark.parametrize("limit", [10, 1 << 20])
def test_large_outputs_come_back_in_place(backend: Backend, limit: int) -> None:
    store = backend.open(blob_limit=limit)
    lease = create(store)
    journal = Journal()
    large = b'"' + b"x" * 50 + b'"'
    journal.complete("a", large)
    journal.complete("b", large)
    journal.complete("c", b"1")
    journal.add(ev.PlanChanged, origin="for_each", parent="d", items=msgspec.Raw(b"[" + large + b"]"))
    made = SAMPLES[ev.DecisionMade] | {"output": msgspec.Raw(large)}
    journal.add(ev.DecisionMade, **made)
    events = journal.take()
    store.append(lease, events, RUNNING)
    assert bodies(store.read_events(RUN)) == bodies(events)
    blobs = backend.query("SELECT count(*), count(DISTINCT digest) FROM blob")
    assert blobs == ([(2, 2)] if limit == 10 else [(0, 0)])
    store.close()


def test_of_large_outputs_only_the_beginning_is_read_where_that_is_enough(backend: Backend) -> None:
    store = backend.open(blob_limit=2000)
    lease = create(store)
    journal = Journal()
    large = '"' + "ä€😀" * 1000 + '"'
    items = msgspec.Raw(msgspec.json.encode(["x" * 3000]))
    journal.complete("a", large.encode())
    journal.complete("b", b'"small"')
    journal.add(ev.PlanChanged, origin="for_each", parent="d", items=items)
    made = SAMPLES[ev.DecisionMade] | {"output": msgspec.Raw(large.encode())}
    journal.add(ev.DecisionMade, **made)
    store.append(lease, journal.take(), RUNNING)
    read = store.read_events(RUN, whole=False)
    shown = [bytes(event.output).decode() for event in read if isinstance(event, (ev.TaskComplete, ev.DecisionMade))]
    assert shown == [large[: codec.EXCERPT], '"small"', large[: codec.EXCERPT]]
    assert [event.items for event in read if isinstance(event, ev.PlanChanged)] == [items]  # folded, so needed
    backend.query("DELETE FROM blob")
    with pytest.raises(CheckpointCorruptedError, match="is missing"):
        store.read_events(RUN, whole=False)
    store.close()


def test_text_that_is_no_text_does_not_stop_a_run(store: StorePort) -> None:
    lease = create(store)
    journal = Journal()
    odd = ev.TaskFailure(type="OSError", text="caf\udce9 \0")
    journal.add(ev.TaskError, task_id="a", layer=0, place="0", error=odd)
    store.append(lease, journal.take(), RUNNING)
    [back] = store.read_events(RUN)
    assert isinstance(back, ev.TaskError)
    assert back.error.text == "caf\\udce9 \0"


def test_two_runs_do_not_mix(store: StorePort) -> None:
    journals = {name: Journal(name) for name in ("x", "y")}
    leases: dict[str, Lease] = {name: create(store, name) for name in journals}
    for name, journal in (list(journals.items())) * 2:
        journal.start(f"task of {name}")
        store.append(leases[name], journal.take(), RUNNING)
    for name in journals:
        events = store.read_events(WorkflowId(name))
        assert [(event.seq, event.workflow_id) for event in events] == [(1, name), (2, name)]


@given(st.lists(st.integers(1, 4), max_size=6))
def test_digests_do_not_depend_on_how_events_were_batched(sizes: list[int]) -> None:
    journal = Journal()
    for number in range(sum(sizes)):
        journal.start(f"t{number}")
    events = journal.take()
    whole, _ = codec.encode_events(events, codec.first_digest(RUN))
    parts: list[codec.EventRow] = []
    for size in sizes:
        before = parts[-1].digest if parts else codec.first_digest(RUN)
        parts += codec.encode_events(events[len(parts) : len(parts) + size], before)[0]
    assert parts == whole
