"""Rows to events: nothing that was changed, lost or written by a newer version passes unnoticed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.exceptions import CheckpointCorruptedError, NewerSchemaError
from agentos.ids import EPOCH, GateId, TaskId, WorkflowId
from agentos.machine import events as ev
from agentos.machine.commands import EFFECT_ANSWERS
from agentos.store import codec
from tests.contract.journals import RUN, Journal, bodies


def rows_of(count: int = 3) -> tuple[list[codec.EventRow], dict[bytes, bytes]]:
    journal = Journal()
    for number in range(count):
        journal.complete(f"t{number}", b'"' + b"x" * 50 + b'"')
    return codec.encode_events(journal.take(), codec.first_digest(RUN), blob_limit=20)


def decode(rows: list[codec.EventRow], blobs: dict[bytes, bytes], workflow_id: str = RUN) -> list[ev.Event]:
    previous = codec.first_digest(workflow_id)
    events, _ = codec.decode_rows(WorkflowId(workflow_id), rows, after=0, previous=previous, blobs=blobs.get)
    return events


def test_type_codes_never_change() -> None:
    """They stand in databases: a new type goes to the end."""
    assert [kind.type for kind in ev.JOURNALED][:27] == [
        "workflow_start", "lease_taken", "resume_planned", "workflow_complete", "workflow_failed", "workflow_aborted",
        "workflow_paused", "layer_start", "task_start", "task_process", "task_retry", "task_complete", "task_error",
        "task_skipped", "task_warning", "state_updated", "checkpoint", "checkpoint_failed", "decision_required",
        "decision_made", "command_received", "command_applied", "command_refused", "plan_changed", "rolled_back",
        "run_forked", "state_saved",
    ]  # fmt: skip


def test_bodies_hold_nothing_twice() -> None:
    [row], _ = codec.encode_events([Journal().start("a")], b"")
    assert row.body == b'{"task_id":"a","layer":0,"attempt":1}'


@given(st.data())
def test_any_changed_byte_is_noticed(data: st.DataObject) -> None:
    rows, blobs = rows_of()
    number = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.sampled_from(codec.EventRow._fields))
    value: Any = getattr(rows[number], column)
    if isinstance(value, bytes):
        place = data.draw(st.integers(0, len(value) - 1))
        value = value[:place] + bytes([value[place] ^ 1 << data.draw(st.integers(0, 7))]) + value[place + 1 :]
    else:
        value ^= 1 << data.draw(st.integers(0, 14))
    rows[number] = rows[number]._replace(**{column: value})
    with pytest.raises(CheckpointCorruptedError, match=f"run {RUN}"):
        decode(rows, blobs)
    assert codec.sound_upto(WorkflowId(RUN), rows, blobs.get) == number


def test_a_missing_row_is_named() -> None:
    rows, blobs = rows_of()
    with pytest.raises(CheckpointCorruptedError, match="event 2 of run run-1 is damaged: the row is missing"):
        decode([rows[0], rows[2]], blobs)


def test_rows_of_another_run_are_noticed() -> None:
    with pytest.raises(CheckpointCorruptedError, match="digest"):
        decode(*rows_of(), workflow_id="run-2")


@pytest.mark.parametrize("odd", [None, "text", 1.5])
def test_a_column_of_the_wrong_type_is_noticed(odd: Any) -> None:
    rows, blobs = rows_of()
    for column in ("at", "type", "version", "body"):
        with pytest.raises(CheckpointCorruptedError):
            decode([rows[0]._replace(**{column: odd})], blobs)


def test_a_missing_or_changed_blob_is_noticed() -> None:
    rows, blobs = rows_of(1)
    assert len(bodies(decode(rows, blobs))[0][1]) > 50
    with pytest.raises(CheckpointCorruptedError, match=r"blob .* is missing"):
        decode(rows, {})
    with pytest.raises(CheckpointCorruptedError, match=r"blob .* does not match"):
        decode(rows, {digest: body + b" " for digest, body in blobs.items()})


def rehashed(row: codec.EventRow, **changes: Any) -> codec.EventRow:
    """A row that a program with the same digests could have written."""
    row = row._replace(**changes)
    digest = codec._chain_digest(codec.first_digest(RUN), *row[:6])
    return row._replace(digest=digest)


def test_newer_types_and_versions_are_told_apart_from_damage() -> None:
    rows, blobs = rows_of(1)
    for changes in ({"type": len(ev.JOURNALED) + 1}, {"version": codec.VERSION + 1}):
        with pytest.raises(NewerSchemaError, match="newer one"):
            decode([rehashed(rows[0], **changes)], blobs)


def test_an_older_version_is_kept_from_a_gate_that_covers_files_and_from_no_other() -> None:
    """It would read over the files, and run the task on others than were approved."""
    gate = ev.DecisionRequired(
        gate_id=GateId("approve:a"), kind="approve", layer=0, question="Go?", workflow_id=RUN, seq=1, at=EPOCH
    )
    none_there_yet = msgspec.structs.replace(gate, seq=2, covers={})
    covering = msgspec.structs.replace(gate, seq=3, covers={"a.txt": "digest"})
    verified = (ev.ShownCheck(task_id=TaskId("t"), command="make test", exit_code=0, tree="f" * 40),)
    of_all = msgspec.structs.replace(gate, seq=4, covers={ev.ALL_FILES: "digest"}, verified=verified)
    events = [gate, none_there_yet, covering, of_all]
    rows, blobs = codec.encode_events(events, codec.first_digest(RUN))
    assert [row.version for row in rows] == [1, 2, 2, 4]
    assert decode(rows, blobs) == events


def test_a_body_that_is_no_event_is_damage() -> None:
    rows, blobs = rows_of(1)
    for changes in ({"body": b"{"}, {"body": b"{}"}, {"body": b'{"task_id":"\xff"}'}, {"type": 9, "body": b"[]"}):
        with pytest.raises(CheckpointCorruptedError):
            decode([rehashed(rows[0], **changes)], blobs)
    start = rehashed(rows[0], type=9, body=b'{"task_id":"a","layer":0,"attempt":1}')
    with pytest.raises(CheckpointCorruptedError, match="no place for one"):
        decode([start], blobs)


def test_an_older_version_is_kept_from_questions_whose_answers_it_does_not_know() -> None:
    """It would take `--choose it-ran` for a yes, and a yes for a repeat."""
    opened = ev.DecisionRequired(gate_id=GateId("ask:a"), kind="ask", layer=0, question="?", choices=EFFECT_ANSWERS)
    other = msgspec.structs.replace(opened, kind="approve", choices=("now", "later"))
    events = [opened, msgspec.structs.replace(opened, step=0), other]
    rows, _ = codec.encode_events(events, b"")
    assert [row.version for row in rows] == [3, 3, 1]
