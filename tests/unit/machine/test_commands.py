"""Commands: each is applied or refused on the record, at once or at the next boundary."""

from __future__ import annotations

from typing import Any

import pytest

from agentos.dag.define.workflow import Workflow
from agentos.exceptions import CommandRefusedError
from agentos.machine import commands as cmd
from agentos.machine import events as ev
from agentos.machine.commands import command_to_data, parse_command
from agentos.machine.inputs import Begin, CommandUnreadable
from tests.unit.machine.harness import Run, ended, flow_of, nothing, take

CHAIN = {"a": [], "b": ["a"], "c": ["b"]}
NEW = {"python": "tests.unit.machine.harness:nothing"}


def chain(**settings: Any) -> Run:
    return Run(flow_of(CHAIN, **settings)).begin()


# --- shapes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        {"type": "continue"},
        {"type": "abort", "reason": "enough"},
        {"type": "pause"},
        {"type": "approval_response", "gate_id": "g", "approved": False},
        {"type": "approval_response", "gate_id": "g", "approved": True, "answer": "happened", "output": [1]},
        {"type": "inject_tasks", "tasks": {"x": {"run": "true"}}},
        {"type": "skip_layer", "layer": 0},
        {"type": "modify_args", "task_id": "a", "updates": {"value": 1}},
        {"type": "replan_dag", "remove": ["a"]},
        {"type": "rollback", "checkpoint_id": "x"},
    ],
)
def test_a_command_survives_being_stored(data: dict[str, Any]) -> None:
    command = parse_command(data)
    assert parse_command(command_to_data(command)) == command
    assert command_to_data(command)["type"] == data["type"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "type"),
        ({"type": "dance"}, "dance"),
        ({"type": "pause", "why": "x"}, "why"),
        ({"type": "pause", "reason": 3}, "reason"),
        ({"type": "approval_response", "approved": True}, "gate_id"),
        ({"type": "approval_response", "gate_id": "g"}, "approved"),
        ({"type": "approval_response", "gate_id": "g", "approved": "yes"}, "approved"),
        ({"type": "approval_response", "gate_id": "g", "approved": True, "answer": "maybe"}, "answer"),
        (
            {"type": "approval_response", "gate_id": "g", "approved": False, "answer": "happened"},
            "needs approved: true",
        ),
        ({"type": "inject_tasks"}, "tasks"),
        ({"type": "inject_tasks", "tasks": {}}, "without tasks"),
        ({"type": "inject_tasks", "tasks": {"x": 1}}, "tasks"),
        ({"type": "skip_layer", "layer": -1}, "below 0"),
        ({"type": "skip_layer", "layer": "one"}, "layer"),
        ({"type": "modify_args", "task_id": "a", "updates": {}}, "without updates"),
        ({"type": "replan_dag"}, "changes nothing"),
        ({"type": "rollback"}, "checkpoint_id"),
    ],
)
def test_a_malformed_command_is_refused_with_what_is_wrong(data: dict[str, Any], says: str) -> None:
    with pytest.raises(CommandRefusedError, match=says):
        parse_command(data)


def test_what_cannot_be_read_is_refused_on_the_record() -> None:
    run = chain()
    given = CommandUnreadable(command_id="c", author="me", command={"type": "dance"}, why="no such command")
    assert run.give(given) == ["command_refused dance"]
    refused = run.last(ev.CommandRefused)
    assert (refused.command_id, refused.author, refused.why) == ("c", "me", "no such command")
    assert run.running == ["a"]


# --- abort and pause ------------------------------------------------------------------------------------------------


def test_abort_is_applied_at_once_and_final() -> None:
    run = Run(flow_of({"a": [], "b": [], "c": ["a"]})).begin()
    assert run.say({"type": "abort", "reason": "enough"}) == ["command_applied abort"]
    assert run.machine.stopping
    assert run.facts.stopping == "abort"
    assert run.fail("a", cancelled=True) == ["cancelled a: Boom"]
    assert run.ok("b") == ["task_complete b", "workflow_aborted"]
    assert run.last(ev.WorkflowAborted).reason == "enough"
    assert run.facts.status == "aborted"
    assert run.machine.over
    assert run.give(ended("a")) == []


def test_abort_of_a_waiting_run() -> None:
    flow = Workflow("w")
    flow.add("ship", nothing, approve="Ship?")
    run = Run(flow, gates="wait").begin()
    assert run.say({"type": "abort"}) == ["command_applied abort", "workflow_aborted"]


def test_an_aborted_task_is_not_tried_again() -> None:
    flow = Workflow("w")
    flow.add("a", nothing, retries=5)
    run = Run(flow).begin()
    run.say({"type": "abort"})
    assert run.fail("a") == ["failed a: Boom", "checkpoint 0", "workflow_aborted"]


def test_pause_drains_and_the_next_drive_goes_on() -> None:
    run = Run(flow_of({"a": [], "b": [], "c": ["a"]}, max_concurrency=1)).begin()
    assert run.say({"type": "pause"}) == ["command_applied pause"]
    assert run.ok("a") == ["task_complete a", "workflow_paused asked"]
    assert run.facts.status == "paused"
    assert run.resume()[:2] == ["resume_planned", "layer_start 0"]
    assert run.running == ["b"]
    assert run.facts.stopping == ""


def test_pause_waits_for_no_retry() -> None:
    flow = Workflow("w")
    flow.add("a", nothing, retries=1)
    run = Run(flow).begin()
    run.say({"type": "pause"})
    assert run.fail("a") == ["task_retry a#1", "workflow_paused asked"]
    run.resume()
    assert run.running == []
    run.later(60)
    assert run.running == ["a"]


def test_pause_that_comes_too_late_leaves_a_complete_run() -> None:
    run = Run(flow_of({"a": []})).begin()
    run.say({"type": "pause"})
    assert run.ok("a") == ["task_complete a", "checkpoint 0", "workflow_complete"]


def test_pause_cuts_a_layer_that_is_finished() -> None:
    run = chain()
    run.say({"type": "pause"})
    assert run.ok("a") == ["task_complete a", "checkpoint 0", "workflow_paused asked"]


# --- boundaries -----------------------------------------------------------------------------------------------------


def test_a_command_is_received_at_once_and_applied_at_the_boundary() -> None:
    run = Run(flow_of({"a": [], "b": [], "c": ["a"]})).begin()
    assert run.say({"type": "skip_layer", "layer": 1}) == ["command_received skip_layer"]
    assert run.ok("a") == ["task_complete a"]
    assert run.ok("b") == [
        "task_complete b",
        "checkpoint 0",
        "command_applied skip_layer",
        "task_skipped c (skip_layer 1)",
        "checkpoint 1",
        "workflow_complete",
    ]


def test_commands_are_settled_in_the_order_they_came() -> None:
    run = chain()
    run.say({"type": "replan_dag", "remove": ["c"]})
    run.say({"type": "skip_layer", "layer": 2})
    events = run.ok("a")
    assert [line for line in events if line.startswith("command")] == [
        "command_applied replan_dag",
        "command_refused skip_layer",
    ]


def test_a_command_that_comes_with_the_start_counts_first() -> None:
    run = Run(flow_of(CHAIN))
    events = run.give(Begin(holder="me", token=1), run.asked({"type": "skip_layer", "layer": 0}))
    assert events[:3] == ["command_received skip_layer", "command_applied skip_layer", "task_skipped a (skip_layer 0)"]
    assert run.status("a", "b") == "skipped skipped"


def test_commands_survive_a_crash() -> None:
    run = Run(flow_of({"a": [], "b": [], "c": ["a"]})).begin()
    run.ok("a")
    run.say({"type": "skip_layer", "layer": 1})
    assert [waiting.command_id for waiting in run.facts.commands] == ["c6"]
    events = run.resume()
    # A crash moves no boundary: the broken layer is finished first.
    assert "command_applied skip_layer" not in events
    assert run.running == ["b"]
    assert "command_applied skip_layer" in run.ok("b")
    assert run.status("c") == "skipped"
    assert run.facts.commands == ()


def test_commands_survive_a_crash_after_the_boundary_was_reached() -> None:
    run = chain()
    run.say({"type": "skip_layer", "layer": 1})
    cut = next(index for index, line in enumerate(run.journal) if isinstance(line, ev.CommandReceived))
    run.ok("a")
    run.journal = run.journal[: cut + 2]  # a's result is durable, the checkpoint is not
    assert isinstance(run.journal[-1], ev.TaskComplete)
    events = run.resume()
    assert "command_applied skip_layer" in events
    assert run.status("b", "c") == "skipped skipped"


def test_a_command_when_only_a_gate_is_open_is_applied_at_once() -> None:
    flow = Workflow("w", schedule="layers")
    flow.add("ship", nothing, approve="Ship?")
    run = Run(flow, gates="wait").begin()
    events = run.say({"type": "inject_tasks", "tasks": {"x": NEW}})
    assert events == ["command_received inject_tasks", "command_applied inject_tasks", "plan_changed inject"]
    assert run.answer("approve:ship") == [
        "command_applied approval_response",
        "approved approve:ship",
        "task_start ship#1",
    ]


# --- continue -------------------------------------------------------------------------------------------------------


def test_continue_passes_the_decision_point() -> None:
    run = Run(flow_of(CHAIN, decision_points="per_layer"), gates="wait").begin()
    run.ok("a")
    assert run.open_gates == ["layer:1"]
    assert run.say({"type": "continue", "reason": "fine"}) == [
        "command_applied continue",
        "approved layer:1",
        "layer_start 1",
        "task_start b#1",
    ]
    assert run.last(ev.DecisionMade).reason == "fine"


def test_continue_is_refused_without_a_decision_point() -> None:
    flow = Workflow("w")
    flow.add("ship", nothing, approve="Ship?")
    run = Run(flow, gates="wait").begin()
    assert run.say({"type": "continue"}) == ["command_refused continue"]
    assert "no decision point is open" in run.refusal()
    assert run.open_gates == ["approve:ship"]


def test_an_agent_may_not_continue() -> None:
    run = Run(flow_of(CHAIN, decision_points="per_layer"), gates="wait").begin()
    run.ok("a")
    assert run.say({"type": "continue"}, attempt_id="run/a#1") == ["command_refused continue"]
    assert "is for a human" in run.refusal()


# --- inject_tasks ---------------------------------------------------------------------------------------------------


def test_an_injected_task_runs() -> None:
    run = chain()
    run.say({"type": "inject_tasks", "tasks": {"x": {**NEW, "needs": ["a"]}}})
    assert run.ok("a") == [
        "task_complete a",
        "checkpoint 0",
        "command_applied inject_tasks",
        "plan_changed inject",
        "layer_start 1",
        "task_start b#1",
        "task_start x#1",
    ]


def test_an_injected_task_runs_even_at_the_very_end() -> None:
    flow = Workflow("w")
    flow.add("a", nothing)
    flow.add("ship", "approval", question="Ship?", needs=["a"])
    run = Run(flow, gates="wait").begin()
    run.ok("a")
    run.say({"type": "inject_tasks", "tasks": {"late": {**NEW, "needs": "a"}}})
    events = run.answer("approval:ship")
    assert "task_complete ship" in events
    assert run.running == ["late"]
    assert run.ok("late")[-1] == "workflow_complete"


def test_injected_tasks_may_need_each_other() -> None:
    run = Run(flow_of({"a": []})).begin()
    run.say({"type": "inject_tasks", "tasks": {"y": {**NEW, "needs": "x"}, "x": NEW}})
    run.ok("a")
    assert run.running == ["x"]
    run.ok("x")
    assert run.running == ["y"]


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ({"a": NEW}, "another task has this id"),
        ({"x": {**NEW, "needs": ["nowhere"]}}, "nowhere"),
        ({"x": {}}, "nothing says what it does"),
        ({"x": {**NEW, "needs": ["y"]}, "y": {**NEW, "needs": ["x"]}}, "cycle"),
        ({"": NEW}, "id"),
    ],
)
def test_an_injection_that_does_not_fit_is_refused(tasks: dict[str, Any], says: str) -> None:
    run = chain()
    run.say({"type": "inject_tasks", "tasks": tasks})
    assert "command_refused inject_tasks" in run.ok("a")
    assert says in run.refusal()
    assert run.running == ["b"]


# --- skip_layer -----------------------------------------------------------------------------------------------------


def test_a_skipped_layer_skips_what_depends_on_it() -> None:
    run = chain()
    run.say({"type": "skip_layer", "layer": 1})
    assert run.ok("a")[-3:] == ["task_skipped c (skip_layer 1)", "checkpoint 2", "workflow_complete"]


def test_a_layer_may_be_skipped_long_before() -> None:
    run = chain()
    run.say({"type": "skip_layer", "layer": 2})
    run.ok("a")
    assert run.status("c") == "skipped"
    assert run.ok("b")[-1] == "workflow_complete"


@pytest.mark.parametrize(
    ("layer", "says"),
    [(0, "layer 0, counted from 0, has begun: a"), (9, "there is no layer 9, counted from 0; the last one is 2")],
)
def test_a_layer_that_cannot_be_skipped(layer: int, says: str) -> None:
    run = chain()
    run.say({"type": "skip_layer", "layer": layer})
    run.ok("a")
    assert run.refusal() == says


def test_a_layer_with_an_open_gate_may_still_be_skipped() -> None:
    flow = Workflow("w")
    flow.add("ship", nothing, approve="Ship?")
    flow.add("after", nothing, needs=["ship"])
    run = Run(flow, gates="wait").begin()
    events = run.say({"type": "skip_layer", "layer": 0})
    assert "task_skipped ship (skip_layer 0)" in events
    assert run.status("ship", "after") == "skipped skipped"


# --- modify_args ----------------------------------------------------------------------------------------------------


def two_inputs() -> Workflow:
    flow = Workflow("w", params={"n": 1})
    flow.add("a", nothing)
    flow.add("b", take, needs=["a"], inputs={"value": 1})
    flow.add("c", take, inputs={"value": "${{ tasks.b.output }}"})
    return flow


def test_modified_inputs_take_effect() -> None:
    run = Run(two_inputs()).begin()
    run.say({"type": "modify_args", "task_id": "b", "updates": {"value": {"x": [2]}}})
    events = run.ok("a")
    assert events[2:] == ["command_applied modify_args", "plan_changed modify_args", "layer_start 1", "task_start b#1"]
    assert dict(run.machine.plan.tasks["b"].definition.inputs) == {"value": {"x": [2]}}  # type: ignore[index]
    assert run.machine.plan.layers == (("a",), ("b",), ("c",))


def test_modified_inputs_are_still_there_after_a_crash() -> None:
    run = Run(two_inputs()).begin()
    run.say({"type": "modify_args", "task_id": "b", "updates": {"value": 2}})
    run.ok("a")
    run.resume()
    assert dict(run.machine.plan.tasks["b"].definition.inputs) == {"value": 2}  # type: ignore[index]
    assert run.verdicts() == {"a": "reuse", "b": "rerun", "c": "run"}


@pytest.mark.parametrize(
    ("task", "updates", "says"),
    [
        ("nowhere", {"value": 1}, "there is no task 'nowhere' to modify"),
        ("a", {"value": 1}, "task 'a' has started (complete); too late to modify it"),
        ("b", {"value": "${{ tasks.c.output }}"}, "c"),
        ("b", {"value": "${{ tasks.gone.output }}"}, "gone"),
    ],
)
def test_a_modification_that_cannot_be(task: str, updates: dict[str, Any], says: str) -> None:
    run = Run(two_inputs()).begin()
    run.say({"type": "modify_args", "task_id": task, "updates": updates})
    assert "command_refused modify_args" in run.ok("a")
    assert says in run.refusal()


def test_a_running_task_cannot_be_modified() -> None:
    run = Run(flow_of({"a": [], "b": []}, schedule="ready")).begin()
    run.say({"type": "modify_args", "task_id": "b", "updates": {"value": 1}})
    run.ok("a")
    events = run.ok("b")
    assert "command_refused modify_args" in events
    assert "too late" in run.refusal()


# --- replan_dag -----------------------------------------------------------------------------------------------------


def test_a_replan_adds_replaces_and_removes() -> None:
    run = Run(flow_of({"a": [], "b": ["a"], "c": ["b"], "d": ["a"]})).begin()
    run.say(
        {"type": "replan_dag", "tasks": {"b": {**NEW, "needs": ["x"]}, "x": {**NEW, "needs": "a"}}, "remove": ["d"]}
    )
    events = run.ok("a")
    assert "command_applied replan_dag" in events
    assert run.running == ["x"]
    assert "d" not in run.machine.plan.tasks
    run.ok("x")
    assert run.running == ["b"]
    run.ok("b")
    assert run.running == ["c"]
    assert run.ok("c")[-1] == "workflow_complete"


def test_a_replan_forgets_what_waited() -> None:
    flow = Workflow("w")
    flow.add("ship", nothing, approve="Ship?")
    flow.add("other", nothing)
    run = Run(flow).begin()
    assert run.status("ship") == "waiting"
    run.say({"type": "replan_dag", "remove": ["ship"]})
    events = run.ok("other")
    assert "command_applied replan_dag" in events
    assert "ship" not in run.facts.tasks


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ({"remove": ["a"]}, "task 'a' has started (complete); too late to remove it"),
        ({"remove": ["nowhere"]}, "there is no task 'nowhere' to remove"),
        ({"remove": ["b"]}, "needs 'b', which would be removed"),
        ({"tasks": {"a": NEW}}, "too late to remove it"),
        ({"tasks": {"b": {**NEW, "needs": ["c"]}}}, "cycle"),
        ({"tasks": {"x": {"nonsense": 1}}}, "nothing says what it does"),
    ],
)
def test_a_replan_that_cannot_be(command: dict[str, Any], says: str) -> None:
    run = chain()
    run.say({"type": "replan_dag", **command})
    assert "command_refused replan_dag" in run.ok("a")
    assert says in run.refusal()
    assert run.running == ["b"]


def test_an_expanded_fan_out_cannot_be_replaced() -> None:
    flow = Workflow("w", max_concurrency=1)
    flow.add("each", take, for_each=[1, 2], inputs={"value": "${{ item }}"})
    flow.add("end", nothing, needs=["each"])
    run = Run(flow).begin()
    run.say({"type": "replan_dag", "tasks": {"each": NEW}})
    run.fail("each[0]")
    run.fail("each[1]")
    assert "has started" in run.all(ev.CommandRefused)[0].why


# --- rollback -------------------------------------------------------------------------------------------------------


def test_a_rollback_is_applied_at_the_boundary_and_makes_the_machine_stale() -> None:
    run = chain()
    run.ok("a")
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0), "reason": "again"})
    assert run.ok("b")[-2:] == ["command_applied rollback", "rolled_back"]
    assert run.machine.over
    event = run.last(ev.RolledBack)
    assert (event.layer, event.epoch, event.reason, event.ask) == (0, 1, "again", ())
    assert run.go_back()[-1] == "task_start b#1"  # attempts are counted by epoch
    assert run.facts.epoch == 1


def test_a_rollback_to_a_stranger_is_refused() -> None:
    run = chain()
    run.say({"type": "rollback", "checkpoint_id": "nowhere"})
    assert "command_refused rollback" in run.ok("a")
    assert "is not one that this run can go back to" in run.refusal()


def test_a_rolled_back_checkpoint_is_none_to_go_back_to() -> None:
    run = chain()
    run.ok("a")
    run.ok("b")
    second = run.checkpoint(1)
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0)})
    run.ok("c")
    run.go_back()
    run.say({"type": "rollback", "checkpoint_id": second})
    run.ok("b")
    assert "is not one" in run.refusal()


def test_commands_after_a_rollback_do_not_count() -> None:
    run = chain()
    run.ok("a")
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0)}, id="one")
    run.say({"type": "skip_layer", "layer": 2}, id="two")
    events = run.ok("b")
    assert events[-1] == "rolled_back"
    run.go_back()
    assert run.facts.commands == ()


def test_rollback_under_ready_waits_until_nothing_runs() -> None:
    run = Run(flow_of({"a": [], "b": ["a"], "slow": ["a"], "c": ["b"]}, schedule="ready")).begin()
    run.ok("a")
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0)})
    assert run.ok("b") == ["task_complete b"]  # and c does not start: it would count for nothing
    assert run.running == ["slow"]
    assert run.ok("slow")[-2:] == ["command_applied rollback", "rolled_back"]
    run.go_back()
    assert run.running == ["b", "slow"]


def test_every_command_has_a_shape_and_an_author_on_the_record() -> None:
    run = chain()
    run.say({"type": "skip_layer", "layer": 2, "reason": "r"}, author="alice", id="one")
    run.ok("a")
    received, applied = run.last(ev.CommandReceived), run.last(ev.CommandApplied)
    assert received.command == applied.command == {"type": "skip_layer", "layer": 2, "reason": "r"}
    assert (applied.author, applied.command_id) == ("alice", "one")
    assert set(cmd.AT_ONCE) == {cmd.Abort, cmd.Pause, cmd.ApprovalResponse, cmd.Continue}


def test_an_abort_survives_a_crash() -> None:
    run = chain()
    assert run.say({"type": "abort", "reason": "enough"}) == ["command_applied abort"]
    events = run.resume()
    assert "task_start a#2" not in events
    assert run.facts.status == "aborted"


def test_a_replan_may_take_the_open_layer_away() -> None:
    flow = Workflow("w")
    flow.add("a", nothing)
    flow.add("ship", nothing, needs=["a"], approve="Ship?")
    run = Run(flow, gates="wait").begin()
    run.ok("a")
    assert run.open_gates == ["approve:ship"]
    assert run.say({"type": "replan_dag", "remove": ["ship"]})[-1] == "workflow_complete"


def test_going_back_does_not_wait_for_a_retry_that_will_not_come() -> None:
    flow = Workflow("w", schedule="ready")
    flow.add("a", nothing)
    flow.add("b", nothing, needs=["a"], retries={"retries": 1, "backoff_s": 60})
    flow.add("c", nothing, needs=["a"])
    run = Run(flow).begin()
    run.ok("a")
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0)})
    run.fail("b")
    assert "rolled_back" in run.ok("c")
