"""Whatever order things happen in, and wherever the driver dies: the run ends in the same state, and by the rules."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.plan import compile_plan
from agentos.machine import commands as cmd
from agentos.machine import events as ev
from agentos.machine.facts.fold import Facts
from agentos.machine.inputs import AttemptEnded, AttemptResult, Begin
from agentos.machine.machine import Machine
from agentos.machine.resume import ResumeOptions
from tests.unit.machine.checks import comparable
from tests.unit.machine.world import RUN, START, Limits, Play, Tape, asked, setting_from, tapes

written = st.binary(min_size=200, max_size=200).map(Tape)
deaths = st.lists(st.integers(0, 40), max_size=4)
thorough = settings(max_examples=settings().max_examples * 2)


@thorough
@given(written, tapes())
def test_any_order_of_events_ends_in_an_equal_state(workflow: Tape, order: Tape) -> None:
    setting = setting_from(workflow)
    first = Play(setting).run()
    other = Play(setting, order, checked=True).run()
    assert comparable(other.facts) == comparable(first.facts)


@thorough
@given(written, tapes(), deaths)
def test_any_crash_ends_in_an_equal_state(workflow: Tape, order: Tape, crashes: list[int]) -> None:
    setting = setting_from(workflow)
    first = Play(setting).run()
    other = Play(setting, order, crashes, checked=True).run()
    assert comparable(other.facts) == comparable(first.facts)


@thorough
@given(written, tapes(), deaths)
def test_the_same_commands_at_the_same_boundaries_end_in_an_equal_state(
    workflow: Tape, order: Tape, crashes: list[int]
) -> None:
    # What failed runs again after a crash: then the boundaries are no longer the same.
    setting = setting_from(workflow, Limits(schedules=("layers",), failures=False, commands=True))
    first = Play(setting).run()
    other = Play(setting, order, crashes, checked=True).run()
    assert comparable(other.facts) == comparable(first.facts)


@thorough
@given(written, tapes(), deaths)
def test_pausing_and_stopping_at_any_moment_changes_nothing(workflow: Tape, order: Tape, crashes: list[int]) -> None:
    setting = setting_from(workflow)
    first = Play(setting).run()
    other = Play(setting, order, crashes, stops=True, checked=True).run()
    assert comparable(other.facts) == comparable(first.facts)


@thorough
@given(written, tapes(), deaths)
def test_a_run_that_stops_at_its_gates_ends_like_one_that_waits_at_them(
    workflow: Tape, order: Tape, crashes: list[int]
) -> None:
    setting = setting_from(workflow)
    first = Play(setting).run()
    other = Play(setting, order, crashes, gates="stop", checked=True).run()
    assert comparable(other.facts) == comparable(first.facts)


@thorough
@given(written, tapes(), tapes(10), deaths)
def test_tasks_that_run_again_with_other_results_end_in_the_state_of_a_run_that_always_had_them(
    workflow: Tape, order: Tape, chosen: Tape, crashes: list[int]
) -> None:
    setting = setting_from(workflow, Limits(gates=False, failures=False, injects=False, rounds=False))
    again = {name: 1 for name in sorted(setting.plan.tasks) if chosen.once_in(3)}
    otherwise = replace(setting, world=replace(setting.world, salt=again))
    always = Play(otherwise).run()
    # Where a task fails instead, its dependants keep what they made of its earlier result until it succeeds.
    assume(always.facts.status == "complete")
    play = Play(setting).run()
    play.world, play.tape, play.checked = otherwise.world, order, True
    play.crashes = frozenset(len(play.batches) + crash for crash in crashes)
    play.resume(ResumeOptions(rerun=frozenset(again)))
    play.go_on()
    assert comparable(play.facts) == comparable(always.facts)


@thorough
@given(written, tapes(), tapes(10), deaths)
def test_going_back_to_any_checkpoint_ends_in_an_equal_state(
    workflow: Tape, order: Tape, chosen: Tape, crashes: list[int]
) -> None:
    setting = setting_from(workflow)
    play = Play(setting, order).run()
    first = comparable(play.facts, decisions=False)
    play.checked = True
    for _ in range(1 + chosen.below(2)):
        cuts = sorted(play.facts.cuts, key=lambda checkpoint: play.facts.cuts[checkpoint])
        play.crashes = frozenset(len(play.batches) + crash for crash in crashes)
        play.resume(rollback=chosen.pick(cuts))
        play.go_on()
        assert comparable(play.facts, decisions=False) == first


@thorough
@given(written, tapes(), st.integers(0, 30))
def test_after_an_abort_nothing_starts_and_the_run_is_aborted_for_good(
    workflow: Tape, order: Tape, moment: int
) -> None:
    play = Play(setting_from(workflow), order, checked=True)
    play.begin()
    while len(play.batches) < moment and not play.machine.over:
        play.happens()
    if play.machine.over:
        return
    before = len(play.journal)
    play.give(asked(cmd.Abort(reason="enough"), "abort", play.now))
    if chosen := play.tape.below(2):
        play.resume()  # the driver died before it could say so
    play.go_on()
    started = [event.task_id for event in play.journal[before:] if isinstance(event, ev.TaskStart)]
    assert started == []
    assert play.facts.status == "aborted"
    assert len(play.drives) == 1 + chosen


@thorough
@given(written, tapes(), deaths)
def test_every_drive_ends_with_exactly_one_terminal_event(workflow: Tape, order: Tape, crashes: list[int]) -> None:
    play = Play(setting_from(workflow), order, crashes).run()
    for number, drive in enumerate(play.drives, 1):
        terminal = [event for event in drive if isinstance(event, ev.TERMINAL)]
        assert isinstance(drive[0], ev.WorkflowStart)
        assert drive[0].drive == number
        assert len(terminal) <= 1
        assert not terminal or drive[-1] is terminal[0]
    assert isinstance(play.drives[-1][-1], ev.TERMINAL)
    assert [event.seq for event in play.journal] == list(range(1, len(play.journal) + 1))


# --- the cost of an event -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["wide", "chain", "one group", "gates", "fan-out", "injecting"])
def test_the_cost_of_an_event_does_not_grow_with_the_run(shape: str) -> None:
    """Counted in Python calls, not timed: ten times as many tasks, and one more result costs hardly more."""
    few, many = Costs(shape, 200), Costs(shape, 2000)
    assert many.middle <= 1.5 * few.middle + 20
    if shape != "fan-out":  # the last item's result gathers those of all
        assert many.last <= 1.5 * few.last + 20


class Costs:
    """How many calls it takes to take a result in: the median in the middle of a run, and the last."""

    def __init__(self, shape: str, size: int) -> None:
        flow = Workflow("w", max_concurrency=4)
        for index in range(size if shape != "fan-out" else 1):
            settings: dict[str, Any] = {"call": "m:f", "needs": [f"t{index - 1}"] if shape == "chain" and index else []}
            settings |= {"concurrency": "g"} if shape == "one group" else {}
            settings |= {"approve": "?"} if shape == "gates" and index % 2 else {}
            settings |= {"for_each": list(range(size))} if shape == "fan-out" else {}
            flow.add(f"t{index}", "python", **settings)
        self.machine = Machine(compile_plan(flow), Facts(workflow_id=RUN), gates="wait")
        self.injecting = shape == "injecting"
        self.machine.step(Begin(holder="h", token=1), START)
        costs = [self.one_more() for _ in iter(lambda: bool(self.machine.facts.running), False)]
        assert len(costs) >= size // 2
        self.middle = sorted(costs[len(costs) // 4 : len(costs) // 2])[len(costs) // 8]
        self.last = costs[-1]

    def one_more(self) -> int:
        task_id, attempt = min(self.machine.facts.running.items())
        more = ((f"{task_id}x", {"python": "m:x"}),) if self.injecting and not task_id.endswith("x") else ()
        calls = 0

        def count(frame: object, what: str, argument: object) -> None:
            nonlocal calls
            calls += what in ("call", "c_call")

        given = AttemptEnded(task_id=task_id, attempt=attempt, result=AttemptResult(output=Raw(b"1"), injected=more))
        sys.setprofile(count)
        try:
            self.machine.step(given, START)
        finally:
            sys.setprofile(None)
        return calls
