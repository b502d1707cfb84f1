"""How ages are written, which runs go together in a batch, and what the setting says."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.ids import EPOCH, WorkflowId
from agentos.store.port import RunRecord
from agentos.workflow.expiry.rules import Retention, age_text, parse_age
from agentos.workflow.expiry.run_deletion import MOST_EVENTS, MOST_RUNS, batches


@given(st.integers(0, 99_999), st.sampled_from("smhdw"))
def test_an_age_reads_as_it_is_written(number: int, unit: str) -> None:
    age = parse_age(f"{number}{unit}")
    assert parse_age(age_text(age)) == age
    assert msgspec.convert({"complete": f"{number}{unit}"}, Retention).expiry.ages == {"complete": age}


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1.5d", "30 d", "30D", "1000000d", "30d12h", "\u0663d"])
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no age"):
        parse_age(text)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"complete": text}, Retention)


def test_a_setting_that_names_nothing_means_no_run() -> None:
    assert not Retention().expiry
    assert not Retention(keep_last=3).expiry
    assert str(Retention(failed="14d", keep_last=3).expiry) == "failed after 14d, but the newest 3 of each workflow"
    assert parse_age("2w") == timedelta(days=14)


@given(st.lists(st.integers(0, 3 * MOST_EVENTS), max_size=600))
def test_batches_hold_every_run_once_in_order_and_little_each(lengths: list[int]) -> None:
    runs = [_record(number, length) for number, length in enumerate(lengths)]
    made = list(batches(runs))
    assert [run for batch in made for run in batch] == runs
    for batch in made:
        assert 0 < len(batch) <= MOST_RUNS
        assert len(batch) == 1 or sum(run.sequence for run in batch) <= MOST_EVENTS


def _record(number: int, events: int) -> RunRecord:
    return RunRecord(
        workflow_id=WorkflowId(f"r{number}"),
        name="n",
        kind="workflow",
        status="complete",
        layer=0,
        layers=1,
        created_at=EPOCH,
        updated_at=EPOCH,
        sequence=events,
        epoch=0,
        source="",
        root="",
        fingerprint="",
        parent_id=None,
        plan_revision=1,
        holder=None,
    )
