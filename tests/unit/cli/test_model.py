"""What a view shows follows from the events alone: any journal, cut anywhere, and a frame of any height."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from agentos.cli.terminal.frame import frame
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.plan import Plan, compile_plan
from agentos.ids import TaskId, WorkflowId
from agentos.machine import events as ev
from agentos.machine.facts.fold import fold
from agentos.machine.inputs import Begin
from agentos.machine.state import ENDED
from agentos.render.text import until
from agentos.workflow.look.run_model import RunModel
from tests.unit.machine.harness import Run, flow_of, nothing
from tests.unit.machine.test_walks import Walk


def model_of(journal: list[ev.Event], plan: Plan | None = None) -> RunModel:
    model = RunModel(WorkflowId("run"), plan)
    for event in journal:
        model.apply(event)
    return model


def check_counts(model: RunModel) -> None:
    facts = model.facts
    counted = [task for name, task in facts.tasks.items() if task.status != "running" or name in facts.running]
    by_layer: dict[int, Counter[str]] = {}
    for task in counted:
        by_layer.setdefault(task.layer, Counter())[task.status] += 1
    assert {layer: +counts for layer, counts in model.layers.items() if +counts} == by_layer
    assert model.done == sum(task.status in ENDED for task in counted)
    assert set(model.failed) == {name for name, task in facts.tasks.items() if task.status in ("failed", "cancelled")}
    assert set(model.started) <= set(facts.running)
    assert set(model.retrying) == {name for name, task in facts.tasks.items() if task.status == "retrying"}


@pytest.mark.parametrize("seed", range(60))
def test_every_prefix_of_any_journal_can_be_shown_and_counts_right(seed: int) -> None:
    walk = Walk(seed)
    plan = walk.run.base
    walk.go()
    model = RunModel(WorkflowId("run"), plan)
    for number, event in enumerate(walk.run.journal, 1):
        model.apply(event)
        check_counts(model)
        for height in (1, 2, 5, 12, 40):
            rows = frame(model, height, event.at + timedelta(seconds=3))
            assert 1 <= len(rows) <= height
        if number % 17 == 0 or number == len(walk.run.journal):
            assert model.facts == fold(WorkflowId("run"), walk.run.journal[:number])


def test_an_event_that_comes_twice_changes_nothing() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]})).begin()
    run.ok("a")
    model = model_of([*run.journal, *run.journal])
    assert model.facts == run.facts
    check_counts(model)


def test_it_shows_what_a_running_task_printed_last_until_it_ends() -> None:
    run = Run(flow_of({"a": []})).begin()
    model = model_of(run.journal)
    model.apply(ev.TaskOutput(task_id=TaskId("a"), layer=0, attempt=1, text="one"))
    model.apply(ev.TaskOutput(task_id=TaskId("a"), layer=0, attempt=1, text="two \x1b[2J[bold]x"))
    row = next(row for row in frame(model, 20, run.now) if row.what == "a")
    assert row.more == "two \\x1b[2J[bold]x"
    run.ok("a")
    for event in run.out:
        model.apply(event)
    assert model.lines == {}


def test_a_retry_counts_down() -> None:
    flow = Workflow("flow")
    flow.add("a", nothing, retries=2)
    run = Run(flow).begin()
    run.fail("a")
    model = model_of(run.journal)
    not_before = model.retrying[TaskId("a")]
    now = not_before - timedelta(seconds=42)
    row = next(row for row in frame(model, 20, now) if row.what == "a")
    assert (row.status, row.figures) == ("retrying", f"attempt 2 {until(not_before, now)}")


def test_a_task_that_ran_again_is_shown_once() -> None:
    run = Run(flow_of({"a": [], "b": []})).begin()
    for again in range(3):
        if again:
            run.resume(rerun=frozenset({"a"}))
        run.ok("a")
        run.fail("b")
    rows = frame(model_of(run.journal, run.base), 20, run.now)
    assert Counter(row.what for row in rows)["a"] == 1


def test_how_long_to_go_comes_from_an_earlier_run() -> None:
    run = Run(flow_of({"a": []})).begin()
    model = model_of(run.journal)
    later = run.now + timedelta(seconds=20)
    row = next(row for row in frame(model, 9, later, usual_ms={"a": 80_000}) if row.what == "a")
    assert row.figures == "20s  about 1m00s to go"
    row = next(row for row in frame(model, 9, later, usual_ms={"a": 5_000}) if row.what == "a")
    assert row.figures == "20s"


def test_ten_thousand_tasks_make_a_frame_of_one_screen() -> None:
    flow = Workflow("wide", max_concurrency=10_000)
    for number in range(10_000):
        flow.add(f"t{number}", "shell", run="true", effects="none")
    flow.add("last", "shell", run="true", effects="none", needs=["t0"])
    plan = compile_plan(flow)
    run = Run(plan)
    events = run.machine.step(Begin(holder="me", token=1), run.now)
    model = model_of(events, plan)
    assert len(model.started) == 10_000
    rows = frame(model, 30, run.now)
    assert len(rows) <= 30
    assert any("more running" in row.what for row in rows)


def test_a_long_chain_is_put_together() -> None:
    flow = Workflow("chain")
    for number in range(500):
        flow.add(f"t{number}", "shell", run="true", effects="none", needs=[f"t{number - 1}"] if number else [])
    run = Run(flow).begin()
    for number in range(250):
        run.ok(f"t{number}")
    rows = frame(model_of(run.journal, run.base), 20, run.now)
    shown = {(row.status, row.what) for row in rows}
    assert ("complete", "layers 1–250") in shown
    assert ("running", "t250") in shown
    assert ("pending", "layers 252–500") in shown
