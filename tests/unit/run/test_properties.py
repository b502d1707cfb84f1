"""What holds for every run, whatever its shape, the order things happen in, and where it is killed."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.ids import TaskId
from agentos.run import events as ev
from agentos.run.facts import fold
from agentos.run.frontier import Frontier
from agentos.run.inputs import Input
from agentos.run.machine import Machine
from agentos.run.state import ENDED
from tests.unit.run.world import Play, Scene, Shape, played, scenes

orders = st.integers(0, 2**32)


crashing = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), max_size=4)
"""After how many steps each crash comes, and how many batches it takes with it."""


def by(seed: int) -> random.Random:
    return random.Random(seed)


@given(scenes(), orders, orders)
@settings(max_examples=300)
def test_every_interleaving_ends_in_an_equal_state(scene: Scene, one: int, other: int) -> None:
    assert played(scene, by(one).randrange).outcome() == played(scene, by(other).randrange).outcome()


@given(scenes(external=True), orders, crashing)
@settings(max_examples=400)
def test_every_crash_ends_in_an_equal_state(scene: Scene, seed: int, crashes: list[tuple[int, int]]) -> None:
    expected = played(scene, by(seed + 1).randrange).outcome()
    play = Play(scene)
    choose = by(seed).randrange
    play.begin()
    for steps, lost in crashes:
        play.go_on(choose, steps=steps)
        if play.machine.over:
            break
        play.crash(min(lost, len(play.batches)))
        play.resume()
    play.go_on(choose)

    assert play.outcome() == expected


@given(scenes(external=True), orders, crashing)
@settings(max_examples=300)
def test_the_journal_of_every_run_keeps_its_promises(scene: Scene, seed: int, crashes: list[tuple[int, int]]) -> None:
    play = Play(scene)
    choose = by(seed).randrange
    play.begin()
    for steps, lost in crashes:
        play.go_on(choose, steps=steps)
        if play.machine.over:
            break
        play.crash(min(lost, len(play.batches)))
        play.resume()
    play.go_on(choose)

    journal = play.journal
    assert [event.seq for event in journal] == list(range(1, len(journal) + 1)), "sequence without holes"
    _one_terminal_event(journal)
    _nothing_starts_too_early(play, journal)
    _limits_are_honoured(play, journal)
    _gates_hold(play, journal)
    _nothing_finished_is_repeated(journal)


def _one_terminal_event(journal: Sequence[ev.Event]) -> None:
    drives: list[list[ev.Event]] = []
    for event in journal:
        if isinstance(event, ev.WorkflowStart):
            drives.append([])
        drives[-1].append(event)
    terminals = [[event for event in drive if isinstance(event, ev.TERMINAL)] for drive in drives]
    assert len(terminals[-1]) == 1
    assert isinstance(drives[-1][-1], ev.TERMINAL)
    assert all(not killed for killed in terminals[:-1])


def _nothing_starts_too_early(play: Play, journal: Sequence[ev.Event]) -> None:
    ended: set[str] = set()
    for event in journal:
        if isinstance(event, ev.TaskStart):
            needs = play.machine.plan.tasks[event.task_id].definition.needs
            assert set(needs) <= ended, f"{event.task_id} started before {set(needs) - ended}"
        if isinstance(event, (ev.TaskComplete, ev.TaskError, ev.TaskSkipped)):
            ended.add(event.task_id)


def _limits_are_honoured(play: Play, journal: Sequence[ev.Event]) -> None:
    running: set[TaskId] = set()
    for event in journal:
        if isinstance(event, ev.TaskStart):
            running.add(event.task_id)
            grouped = [name for name in running if play.machine.plan.tasks[name].definition.concurrency is not None]
            assert len(running) <= play.scene.max_concurrency
            assert len(grouped) <= 1
        elif isinstance(event, (ev.TaskComplete, ev.TaskError, ev.TaskRetry)):
            running.discard(event.task_id)
        elif isinstance(event, ev.ResumePlanned):
            running -= set(event.cut_off)


def _gates_hold(play: Play, journal: Sequence[ev.Event]) -> None:
    approved: set[str] = set()
    rejected: set[str] = set()
    for event in journal:
        if isinstance(event, ev.DecisionMade) and event.kind == "approve":
            (approved if event.answer == "approved" else rejected).add(event.gate_id)
        if isinstance(event, ev.TaskStart):
            guarded = play.shapes[event.task_id.partition("[")[0]]
            if guarded.gate:
                assert f"approve:{guarded.id}" in approved, f"{event.task_id} started without approval"
                assert f"approve:{guarded.id}" not in rejected


def _nothing_finished_is_repeated(journal: Sequence[ev.Event]) -> None:
    finished: set[str] = set()
    for event in journal:
        if isinstance(event, ev.ResumePlanned):
            finished -= set(event.reset)
        elif isinstance(event, (ev.TaskComplete, ev.TaskError, ev.TaskSkipped)):
            assert event.task_id not in finished, f"{event.task_id} ended twice"
            finished.add(event.task_id)
        elif isinstance(event, ev.TaskStart):
            assert event.task_id not in finished, f"{event.task_id} ran again"


@given(scenes(external=True), orders)
@settings(max_examples=150)
def test_what_is_kept_up_to_date_equals_what_is_derived_afresh(scene: Scene, seed: int) -> None:
    def check(play: Play, given: Input, events: list[ev.Event]) -> None:
        machine = play.machine
        assert machine.facts == fold(machine.facts.workflow_id, play.journal)
        fresh = Frontier(machine.plan, machine.facts)
        assert machine.frontier.left == fresh.left
        assert machine.frontier.unmet == fresh.unmet
        assert dict(machine.frontier.slots) | {"group": 0} == dict(fresh.slots) | {"group": 0} or fresh.slots == {
            key: count for key, count in machine.frontier.slots.items() if count
        }
        for parent, left in fresh.items_left.items():
            assert machine.frontier.items_left[parent] == left

    play = Play(scene)
    play.check = check
    play.begin()
    play.go_on(by(seed).randrange)


@given(scenes(external=True), orders, st.integers(0, 15))
@settings(max_examples=200)
def test_the_pure_face_decides_the_same_results_as_the_machine_under_way(scene: Scene, seed: int, steps: int) -> None:
    """A machine built from plan and facts alone takes an attempt's end as the one under way does.

    Which layers were announced in this drive is all that the one under way knows beyond the facts.
    """
    play = Play(scene)
    play.begin()
    play.go_on(by(seed).randrange, steps=steps)
    if play.machine.over or not play.machine.facts.running:
        return
    given_input = play.ending(sorted(play.machine.facts.running)[0])
    fresh = Machine(play.machine.plan, play.machine.facts, gates="wait")
    now = play.now.replace(year=2027)

    def results(events: Sequence[ev.Event]) -> list[tuple[str, str]]:
        kinds = (ev.TaskComplete, ev.TaskError, ev.TaskRetry, ev.TaskSkipped, *ev.TERMINAL)
        return [(event.type, getattr(event, "task_id", "")) for event in events if isinstance(event, kinds)]

    under_way = Machine.step(play.machine, given_input, now)
    assert results(fresh.step(given_input, now)) == results(under_way)


@pytest.mark.parametrize("wide", [True, False])
def test_the_cost_of_an_event_does_not_grow_with_the_run(wide: bool) -> None:
    assert _calls(2000, wide=wide) <= _calls(200, wide=wide) * 1.5 + 50


def _calls(size: int, *, wide: bool) -> int:
    """Python calls that one more result costs in the middle of a run of this size: counted, not timed."""
    shapes = tuple(
        Shape(id=f"t{index}", needs=() if wide or index == 0 else (f"t{index - 1}",)) for index in range(size)
    )
    play = Play(Scene(shapes=shapes, max_concurrency=4))
    play.begin()
    for _ in range(size // 2):
        play.step(play.ending(min(play.machine.facts.running)))
    given_input = play.ending(min(play.machine.facts.running))
    calls = 0

    def count(frame: object, what: str, argument: object) -> None:
        nonlocal calls
        calls += what in ("call", "c_call")

    sys.setprofile(count)
    try:
        play.machine.step(given_input, play.now)
    finally:
        sys.setprofile(None)
    return calls


def test_every_status_a_task_can_end_in_is_one_that_ends() -> None:
    assert {"complete", "failed", "failed_safe", "skipped", "cancelled"} == ENDED
