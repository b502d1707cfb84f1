"""Checkpoints that could not be written, and commands that came when all was over: the machine is told, and says so."""

from __future__ import annotations

from agentos.dag.plan.plan import Plan, compile_plan
from agentos.ids import WorkflowId
from agentos.machine import events as ev
from agentos.machine.facts.fold import Facts, fold
from agentos.machine.inputs import Begin, CommandsCameLate, CommandUnreadable, CutFailed, StopAsked
from agentos.machine.machine import Machine
from tests.unit.machine.harness import START, ended, flow_of, play, told

FULL = ev.TaskFailure(type="CheckpointCutError", text="no room")
RUN = WorkflowId("run")


def begun(flow: Plan) -> tuple[Machine, list[ev.Event]]:
    machine = Machine(flow, Facts(workflow_id=RUN))
    return machine, play(machine, Begin(holder="me", token=1))


def chain() -> Plan:
    return compile_plan(flow_of({"a": [], "b": ["a"]}))


def test_a_cut_that_failed_is_told_in_its_place_and_nothing_else_changes() -> None:
    machine, journal = begun(chain())
    before = machine.facts
    decided = play(machine, ended("a"))
    again = play(machine, CutFailed(events=tuple(decided), facts=before, error=FULL, strict=False))
    assert told(decided) == ["task_complete a", "checkpoint 0", "layer_start 1", "task_start b#1"]
    assert told(again) == ["task_complete a", "checkpoint_failed", "layer_start 1", "task_start b#1"]
    assert [event.seq for event in again] == [event.seq for event in decided]
    assert machine.facts == fold(RUN, [*journal, *again])
    assert not machine.facts.cuts
    assert told(play(machine, ended("b"))) == ["task_complete b", "checkpoint 1", "workflow_complete"]


def test_a_cut_may_fail_together_with_the_end_of_the_drive() -> None:
    machine, journal = begun(compile_plan(flow_of({"a": []})))
    before = machine.facts
    decided = play(machine, ended("a"))
    again = play(machine, CutFailed(events=tuple(decided), facts=before, error=FULL, strict=False))
    assert told(again) == ["task_complete a", "checkpoint_failed", "workflow_complete"]
    assert machine.over
    assert machine.facts == fold(RUN, [*journal, *again])


def test_where_the_user_is_strict_nothing_is_told_after_the_cut() -> None:
    machine, journal = begun(chain())
    before = machine.facts
    decided = play(machine, ended("a"))
    again = play(machine, CutFailed(events=tuple(decided), facts=before, error=FULL, strict=True))
    assert told(again) == ["task_complete a", "checkpoint_failed"]
    assert machine.over, "whoever drives begins anew with these facts"
    assert machine.facts == fold(RUN, [*journal, *again])
    stopping = Machine(machine.plan, machine.facts)
    assert told(play(stopping, StopAsked(reason="no checkpoint", uncut=True))) == ["workflow_paused stopped"]


def test_commands_that_came_late_are_refused_in_a_drive_of_their_own() -> None:
    machine, journal = begun(compile_plan(flow_of({"a": []})))
    journal += play(machine, ended("a"))
    late = CommandUnreadable(command_id="1", author="ann", command={"type": "pause"}, why="it came too late")
    machine = Machine(machine.plan, machine.facts)
    said = machine.step(CommandsCameLate(holder="me", token=2, commands=(late,)), START)
    assert told(said) == ["command_refused pause", "workflow_complete"]
    [start, *_] = said
    assert isinstance(start, ev.WorkflowStart)
    assert (start.drive, start.resumed_from) == (2, 0)
    assert machine.facts == fold(RUN, [*journal, *said])
    assert machine.over
