"""A run can be carried from one store to another, byte for byte, and nothing unsound gets in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentos.exceptions import CheckpointCorruptedError, RunNotFoundError, RunRefusedError
from agentos.ids import WorkflowId
from agentos.store.holder import current_holder
from agentos.store.port import PostedCommand, RunCopy, StorePort
from tests.contract.backends import ADDRESS, Backend
from tests.contract.journals import NOON, RUN, RUNNING, Journal, bodies, create


def filled(store: StorePort) -> RunCopy:
    lease, journal = create(store, labels=("gpu", "nightly"), host="box"), Journal()
    journal.start("a")
    journal.complete("a", b'"%s"' % (b"y" * 50_000))
    journal.cut(0)
    journal.complete("b", b'{"small":1}')
    journal.cut(1)
    store.append(lease, journal.take(), RUNNING, plan=b"second")
    store.post_command(RUN, PostedCommand(id="c", author="me", posted_at=NOON, command={}))
    store.release_lease(lease)
    return store.read_copy(RUN)


@pytest.fixture
def elsewhere(backend: Backend, tmp_path: Path) -> StorePort:
    (tmp_path / "elsewhere").mkdir()
    return Backend(name=backend.name, address=ADDRESS[backend.name](tmp_path / "elsewhere")).open()


def test_a_copy_has_all_of_the_run_and_nobody_holds_it(backend: Backend, elsewhere: StorePort) -> None:
    store = backend.open(blob_limit=30_000)
    copy = filled(store)
    elsewhere.insert_copy(copy)
    assert bodies(elsewhere.read_events(RUN)) == bodies(store.read_events(RUN))
    assert [elsewhere.read_plan(RUN, number) for number in (1, 2)] == [b'{"plan":1}', b"second"]
    assert elsewhere.list_checkpoints(RUN) == store.list_checkpoints(RUN)
    assert elsewhere.find_run(RUN) == store.find_run(RUN)
    assert elsewhere.find_run(RUN).status == "interrupted"
    assert elsewhere.read_copy(RUN) == copy
    assert elsewhere.read_inbox(RUN) == []
    elsewhere.verify(RUN)
    journal = Journal(sequence=len(copy.rows))
    journal.start("c")
    lease = elsewhere.take_lease(RUN, current_holder(), 15.0)
    assert lease.token == copy.token + 1
    elsewhere.append(lease, journal.take(), RUNNING)
    store.close()
    elsewhere.close()


def test_a_run_that_is_here_is_not_replaced(store: StorePort) -> None:
    copy = filled(store)
    with pytest.raises(RunRefusedError, match="exists already"):
        store.insert_copy(copy)
    other = msgspec.structs.replace(copy.run, workflow_id=WorkflowId("other"), sequence=0)
    stolen = msgspec.structs.replace(copy, run=other, rows=(), blobs={})
    with pytest.raises(RunRefusedError, match=r"checkpoint .* exists already"):
        store.insert_copy(stolen)
    with pytest.raises(RunNotFoundError):
        store.find_run("other")


def test_what_is_not_sound_is_not_written_at_all(store: StorePort, elsewhere: StorePort) -> None:
    copy = filled(store)
    rows, cuts = copy.rows, copy.checkpoints
    unsound: list[dict[str, Any]] = [
        {"rows": rows[:2] + rows[3:]},
        {"rows": rows[::-1]},
        {"rows": (*rows[:-1], rows[-1]._replace(seq=(1 << 40) + 1))},
        {"rows": (rows[0]._replace(body=b'{"task_id":"x","layer":0,"attempt":1}'), *rows[1:])},
        {"run": msgspec.structs.replace(copy.run, workflow_id=WorkflowId("another"))},
        {"checkpoints": (msgspec.structs.replace(cuts[0], layer=7), *cuts[1:])},
        {"checkpoints": (msgspec.structs.replace(cuts[0], sequence=99), *cuts[1:])},
    ]
    for change in unsound:
        with pytest.raises(CheckpointCorruptedError):
            elsewhere.insert_copy(msgspec.structs.replace(copy, **change))
        assert elsewhere.list_runs() == []
    elsewhere.insert_copy(copy)
    elsewhere.close()


def test_a_copy_without_its_blob_is_refused(backend: Backend, elsewhere: StorePort, tmp_path: Path) -> None:
    store = backend.open(blob_limit=30_000)
    copy = filled(store)
    [digest] = copy.blobs
    for blobs in ({}, {digest: b'"other"'}):
        with pytest.raises(CheckpointCorruptedError, match="blob"):
            elsewhere.insert_copy(msgspec.structs.replace(copy, blobs=blobs))
    assert elsewhere.list_runs() == []
    elsewhere.insert_copy(msgspec.structs.replace(copy, blobs=copy.blobs | {b"of another": b"false"}))
    assert elsewhere.read_copy(RUN).blobs == copy.blobs
    address = ADDRESS[backend.name](tmp_path / "elsewhere")
    assert Backend(name=backend.name, address=address).query("SELECT count(*) FROM blob") == [(1,)]
    store.close()
    elsewhere.close()
