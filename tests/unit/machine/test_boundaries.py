"""Commands where something else is going on: an abort, a rollback, a crash, a pause, a deadline."""

from __future__ import annotations

from datetime import timedelta

from agentos.dag.define.workflow import Workflow
from agentos.machine import events as ev
from agentos.machine.inputs import Begin
from agentos.machine.machine import Machine
from tests.unit.machine.harness import Run, flow_of, nothing

MORE = {"python": "tests.unit.machine.harness:nothing"}


def chain() -> Run:
    return Run(flow_of({"a": [], "b": ["a"], "c": ["b"]})).begin()


def test_after_an_abort_every_other_command_is_refused() -> None:
    run = Run(flow_of({"a": [], "b": []})).begin()
    run.say({"type": "abort", "reason": "enough"})
    for command in ({"type": "abort"}, {"type": "pause"}, {"type": "continue"}):
        run.say(command)
        assert run.refusal() == "the run is being aborted"
    run.ok("a")
    run.ok("b")
    assert run.facts.status == "aborted"
    assert run.last(ev.WorkflowAborted).reason == "enough"


def test_what_waits_when_a_run_is_aborted_is_refused() -> None:
    run = chain()
    run.say({"type": "skip_layer", "layer": 2})
    run.say({"type": "abort"})
    run.ok("a")
    assert run.refusal() == "the run was aborted"
    assert run.facts.commands == ()


def test_what_waits_behind_a_rollback_is_refused() -> None:
    run = chain()
    run.ok("a")
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0)})
    run.say({"type": "skip_layer", "layer": 2})
    assert run.ok("b")[-3:] == ["command_applied rollback", "command_refused skip_layer", "rolled_back"]
    assert "send it again" in run.refusal()


def test_a_pause_keeps_what_waits_for_the_next_drive() -> None:
    run = chain()
    run.say({"type": "inject_tasks", "tasks": {"x": MORE}})
    run.say({"type": "pause"})
    assert run.ok("a")[-1] == "workflow_paused asked"
    assert "command_applied inject_tasks" in run.resume()
    assert run.running == ["b", "x"]


def test_a_pause_does_not_end_a_run_for_which_something_waits() -> None:
    run = Run(flow_of({"a": []})).begin()
    run.say({"type": "inject_tasks", "tasks": {"x": MORE}})
    run.say({"type": "pause"})
    assert run.ok("a")[-1] == "workflow_paused asked"
    run.resume()
    assert run.running == ["x"]


def test_a_crash_moves_no_boundary() -> None:
    """A command that came while a layer was under way waits for its end, in the next drive too."""
    run = Run(flow_of({"a": [], "b": [], "c": ["a"]})).begin()
    run.say({"type": "inject_tasks", "tasks": {"x": MORE}})
    run.ok("a")
    assert "command_applied inject_tasks" not in run.resume(first=({"type": "skip_layer", "layer": 1},))
    told = run.ok("b")
    assert told[2:5] == ["command_applied inject_tasks", "plan_changed inject", "command_applied skip_layer"]
    assert run.status("c", "x") == "skipped skipped"


def test_after_an_orderly_stop_commands_need_not_wait() -> None:
    run = Run(flow_of({"a": [], "b": [], "c": ["a"]}, max_concurrency=1)).begin()
    run.say({"type": "pause"})
    run.ok("a")
    change = {"type": "modify_args", "task_id": "b", "updates": {"z": 1}}
    assert run.resume(first=(change,))[:4] == [
        "resume_planned",
        "command_received modify_args",
        "command_applied modify_args",
        "plan_changed modify_args",
    ]


def test_an_injected_task_comes_behind_every_layer_that_has_begun_crashed_or_not() -> None:
    for crashes in (False, True):
        run = Run(flow_of({"a": [], "b": ["a"], "c": ["b"]})).begin()
        run.ok("a")
        run.say({"type": "inject_tasks", "tasks": {"x": MORE}})
        if crashes:
            run.resume()
        run.ok("b")
        assert run.machine.plan.layers[2] == ("c", "x")


def test_a_command_that_this_version_does_not_know_is_refused() -> None:
    run = chain()
    run.machine.emit(ev.CommandReceived(command_id="c", author="me", command={"type": "fold_time"}))
    run.journal.append(run.machine.out[-1])
    run.ok("a")
    assert "not a valid command" in run.refusal()


def test_an_answer_given_after_the_deadline_comes_too_late_whenever_it_is_seen() -> None:
    flow = Workflow("w")
    flow.add("ship", nothing, approve={"question": "?", "timeout_s": 60})
    run = Run(flow).begin()
    run.now += timedelta(seconds=61)
    run.resume(first=({"type": "approval_response", "gate_id": "approve:ship", "approved": True},))
    assert "already answered (rejected by timeout)" in run.refusal()
    assert run.status("ship") == "failed"


def test_an_answer_given_in_time_counts_even_if_it_is_seen_later() -> None:
    flow = Workflow("w")
    flow.add("ship", nothing, approve={"question": "?", "timeout_s": 60})
    run = Run(flow).begin()
    run.now += timedelta(seconds=59)
    in_time = run.asked({"type": "approval_response", "gate_id": "approve:ship", "approved": True})
    run.now += timedelta(seconds=10)
    run.machine = Machine(run.base, run.facts)
    run.give(Begin(holder="h", token=2, resume=run.planned()), in_time)
    assert run.running == ["ship"]


def test_an_agent_may_not_replace_what_a_human_guards() -> None:
    flow = flow_of({"a": []})
    flow.add("ship", nothing, needs=["a"], approve="?")
    run = Run(flow).begin()
    run.say({"type": "replan_dag", "tasks": {"ship": MORE}}, attempt_id="run/a/1")
    run.ok("a")
    assert "task 'ship' waits for a human" in run.refusal()
    assert run.open_gates == ["approve:ship"]


def test_a_modification_by_the_item_is_one_of_that_item() -> None:
    flow = Workflow("w", max_concurrency=1)
    flow.add("other", nothing)
    flow.add("each", nothing, for_each=[1, 2], concurrency="g")
    flow.add("last", nothing, needs=["each"])
    run = Run(flow).begin()
    run.ok("other")
    run.say({"type": "modify_args", "task_id": "last", "updates": {"value": "${{ tasks['each[1]'].output }}"}})
    run.ok("each[0]")
    run.ok("each[1]", 5)
    assert run.running == ["last"]
    assert run.machine.plan.tasks["last"].definition.needs == ("each", "each[1]")  # type: ignore[index]
