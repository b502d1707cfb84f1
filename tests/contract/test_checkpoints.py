"""Cuts in the journal: written with their event, found by sequence, pruned without touching an event."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.exceptions import AgentosError, RunNotFoundError, RunRefusedError
from agentos.ids import WorkflowId
from agentos.machine import events as ev
from agentos.store.port import Lease, StorePort
from tests.contract.backends import Backend
from tests.contract.journals import RUN, RUNNING, Journal, create


def cuts(store: StorePort, lease: Lease, journal: Journal, count: int) -> list[ev.Checkpointed]:
    made = []
    for layer in range(count):
        journal.start(f"t{layer}", layer)
        made.append(journal.cut(layer, snapshot=f"tree{layer}"))
        store.append(lease, journal.take(), RUNNING)
    return made


def kept(store: StorePort) -> list[int]:
    return [record.sequence for record in store.list_checkpoints(RUN)]


def test_a_checkpoint_is_found_as_it_was_cut(store: StorePort) -> None:
    first, second = cuts(store, create(store), Journal(), 2)
    record = store.find_checkpoint(second.checkpoint_id)
    assert record is not None
    assert (record.id, record.workflow_id, record.layer, record.sequence) == (second.checkpoint_id, RUN, 1, second.seq)
    assert (record.timestamp, record.snapshot, record.abandoned) == (second.at, "tree1", False)
    assert [record.id for record in store.list_checkpoints(RUN)] == [first.checkpoint_id, second.checkpoint_id]
    assert store.list_checkpoints(WorkflowId("nobody")) == []


def test_a_unique_prefix_names_a_checkpoint(store: StorePort) -> None:
    first, second = cuts(store, create(store), Journal(), 2)
    common = 0
    while first.checkpoint_id[common] == second.checkpoint_id[common]:
        common += 1
    found = store.find_checkpoint(second.checkpoint_id[: common + 1])
    assert found is not None
    assert found.id == second.checkpoint_id
    with pytest.raises(RunRefusedError, match="several checkpoints"):
        store.find_checkpoint(second.checkpoint_id[:common])
    for missing in ("", "zzz", "\udcff"):
        assert store.find_checkpoint(missing) is None


def test_the_newest_are_kept_by_sequence_and_the_count_is_real(store: StorePort) -> None:
    made = cuts(store, create(store), Journal(), 8)
    assert store.prune(RUN, 5) == 3
    assert kept(store) == [cut.seq for cut in made[3:]]
    assert store.prune(RUN, 5) == 0
    assert store.prune(RUN, 1) == 4
    assert len(store.read_events(RUN)) == 16
    assert store.find_checkpoint(made[0].checkpoint_id) is None


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_none_is_an_error(store: StorePort, keep: int) -> None:
    cuts(store, create(store), Journal(), 2)
    with pytest.raises(AgentosError, match="at least 1"):
        store.prune(RUN, keep)
    assert len(kept(store)) == 2


def test_pruning_a_run_that_does_not_exist_is_an_error(store: StorePort) -> None:
    with pytest.raises(RunNotFoundError):
        store.prune(WorkflowId("nobody"), 5)


def test_pruning_one_run_leaves_the_others(store: StorePort) -> None:
    other = Journal("other")
    lease = create(store, "other")
    other.cut()
    store.append(lease, other.take(), RUNNING)
    cuts(store, create(store), Journal(), 3)
    assert store.prune(RUN, 1) == 2
    assert len(store.list_checkpoints(WorkflowId("other"))) == 1


def test_a_rollback_leaves_checkpoints_behind_but_never_loses_the_head(store: StorePort) -> None:
    lease, journal = create(store), Journal()
    made = cuts(store, lease, journal, 5)
    back = {"checkpoint_id": made[1].checkpoint_id, "to_seq": made[1].seq, "layer": 1, "epoch": 1}
    journal.add(ev.RolledBack, **back)
    store.append(lease, journal.take(), RUNNING)
    assert [record.abandoned for record in store.list_checkpoints(RUN)] == [False, False, True, True, True]
    assert store.prune(RUN, 2) == 1
    assert kept(store) == [made[0].seq, made[1].seq, made[3].seq, made[4].seq]
    later = journal.cut(2)
    store.append(lease, journal.take(), RUNNING)
    assert store.prune(RUN, 1) == 4
    assert kept(store) == [later.seq]


def test_what_a_rollback_left_behind_does_not_count_among_those_kept(store: StorePort) -> None:
    lease, journal = create(store), Journal()
    made, left = cuts(store, lease, journal, 4), list[ev.Checkpointed]()
    for epoch in range(1, 4):  # again and again: what is left behind does not grow without end
        back = {"checkpoint_id": made[3].checkpoint_id, "to_seq": made[3].seq, "layer": 3, "epoch": epoch}
        journal.add(ev.RolledBack, **back)
        left = [journal.cut(4), journal.cut(5)]
        store.append(lease, journal.take(), RUNNING)
        store.prune(RUN, 5)
    rows = store.list_checkpoints(RUN)
    assert [row.sequence for row in rows if not row.abandoned] == [cut.seq for cut in (*made, *left)][-5:]
    assert len([row for row in rows if row.abandoned]) == 4


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_any_mix_of_saves_and_prunes_keeps_what_was_promised(keeps: list[int]) -> None:
    import tempfile
    from pathlib import Path

    from tests.contract.backends import ADDRESS, KINDS

    for name in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            backend = Backend(name, ADDRESS[name](Path(folder) if name == "sqlite" else Path("mix")))
            store = backend.open(durability="process")
            backend.empty()
            lease, journal = create(store), Journal()
            sequences: list[int] = []
            for layer, keep in enumerate(keeps):
                sequences.append(journal.cut(layer).seq)
                store.append(lease, journal.take(), RUNNING)
                expected = sequences[-keep:]
                assert store.prune(RUN, keep) == len(sequences) - len(expected)
                sequences = expected
                assert kept(store) == sequences
            store.close()
