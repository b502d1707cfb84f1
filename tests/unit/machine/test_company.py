"""Tasks beside other tasks: who is told, who wins, who waits, and in which order."""

from __future__ import annotations

import pytest

from agentos.dag.define.workflow import Workflow
from agentos.machine import events as ev
from tests.unit.machine.harness import Run, flow_of, nothing, take


@pytest.mark.parametrize(
    ("condition", "because"),
    [
        ("success()", "a"),
        ("success() == true", "a"),
        ("not failure()", ""),
        ("(failure() or always()) and false", ""),
        ("tasks.a.status == 'complete'", "a"),
    ],
)
def test_the_cause_is_told_unless_the_task_asked_about_failures_itself(condition: str, because: str) -> None:
    flow = flow_of({"a": []})
    flow.add("b", nothing, needs=["a"], if_=condition)
    run = Run(flow).begin()
    run.fail("a")
    assert run.last(ev.TaskSkipped).because == because


def test_too_many_failures_that_are_allowed_end_a_fan_out_safely() -> None:
    flow = Workflow("w", max_concurrency=1)
    flow.add("each", take, for_each=[1, 2, 3], inputs={"value": "${{ item }}"}, max_failures=1, continue_on_error=True)
    flow.add("after", nothing, needs=["each"])
    run = Run(flow).begin()
    run.fail("each[0]")
    assert run.status("each", "each[0]", "each[1]", "each[2]") == "failed_safe failed_safe skipped skipped"
    assert run.task("each").error is not None
    assert run.running == ["after"]


def test_too_many_failures_skip_what_waits_for_an_answer() -> None:
    flow = Workflow("w")
    flow.add("each", take, for_each=[1, 2], inputs={"value": "${{ item }}"}, max_failures=1, effects="external")
    run = Run(flow, gates="wait").begin()
    run.resume()  # both were cut off
    run.answer("ask:each[0]", choice="run-again")
    run.fail("each[0]")
    assert run.status("each", "each[1]") == "failed skipped"
    assert run.open_gates == []


def test_a_rejected_file_task_never_began_and_halts_nothing() -> None:
    flow = Workflow("w")
    flow.add("write", nothing, effects="files", approve="?")
    flow.add("other", nothing)
    flow.add("next", nothing, needs=["other"])
    run = Run(flow, gates="wait").begin()
    run.ok("other")
    run.answer("approve:write", False)
    assert run.running == ["next"]


def test_an_always_task_after_a_halt_waits_for_what_it_needs() -> None:
    flow = Workflow("w")
    flow.add("write", nothing, effects="files")
    flow.add("next", nothing, needs=["write"])
    flow.add("clean", nothing, needs=["next"], if_="always()")
    flow.add("each", take, for_each=[1], inputs={"value": "${{ item }}"}, needs=["next"], if_="always()")
    run = Run(flow).begin()
    run.fail("write")
    assert run.status("next") == "skipped"
    assert run.running == ["clean", "each[0]"]


def test_a_halt_is_asked_about_where_a_layer_is_opened_for_what_always_runs() -> None:
    flow = Workflow("w", decision_points="per_layer")
    flow.add("write", nothing, effects="files")
    flow.add("clean", nothing, needs=["write"], if_="always()")
    run = Run(flow, gates="wait").begin()
    run.fail("write")
    assert run.running == []
    run.answer("layer:1")
    assert run.running == ["clean"]


def test_the_warning_names_who_wins_whoever_finished_first() -> None:
    run = Run(flow_of({"a": [], "b": [], "c": []})).begin()
    run.ok("b", context={"k": "b"})
    run.ok("c", context={"k": "c"})
    run.ok("a", context={"k": "a"})
    assert [event.message for event in run.all(ev.TaskWarning)] == [
        "context key 'k' is also set by 'b'; 'c', later in the plan, wins",
        "context key 'k' is also set by 'c'; 'c', later in the plan, wins",
    ]
    assert run.state.context == {"k": "c"}


def test_a_key_that_nobody_sets_any_more_is_free_again() -> None:
    run = Run(flow_of({"a": [], "b": ["a"], "c": ["a"]})).begin()
    run.ok("a", 1)
    run.ok("b", context={"k": "b"})
    run.ok("c")
    run.resume(rerun={"a"})
    run.ok("a", 2)  # b and c run again
    run.ok("c", context={"k": "c"})
    assert run.all(ev.TaskWarning) == []


def test_the_layer_of_the_state_does_not_go_back() -> None:
    flow = flow_of({"a": [], "b": ["a"]}, schedule="ready", max_concurrency=1)
    flow.add("skipped", nothing, if_="false")
    flow.add("soon", nothing, needs=["skipped"], if_="always()")
    run = Run(flow).begin()
    seen = [run.state.current_layer]
    while run.running:
        run.ok(run.running[0])
        seen.append(run.state.current_layer)
    assert seen == sorted(seen)
    assert seen[-1] == 1


def test_a_checkpoint_is_cut_before_what_it_does_not_hold_begins() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]}, schedule="ready")).begin()
    assert run.ok("a") == ["task_complete a", "checkpoint 0", "layer_start 1", "task_start b#1"]


def test_what_a_layer_added_is_counted_over_a_crash_and_without_what_ran_again() -> None:
    run = Run(flow_of({"a": [], "b": [], "c": []})).begin()
    run.ok("a", messages=["m"], context={"k": 1})
    run.fail("b")
    run.resume()
    run.ok("b", messages=["m", "n"])
    run.ok("c")
    updated = run.last(ev.StateUpdated)
    assert (updated.tasks, updated.messages, updated.context_keys) == (3, 3, 1)


def test_a_retry_whose_time_has_come_waits_for_a_place() -> None:
    flow = Workflow("w", max_concurrency=1)
    flow.add("a", nothing, retries={"retries": 1, "backoff_s": 1, "jitter": 0})
    flow.add("b", nothing)
    run = Run(flow).begin()
    run.fail("a")
    assert run.running == ["b"]
    assert run.later(5) == []
    assert run.machine.wake_at is None  # it is b that a waits for now
    assert run.ok("b") == ["task_complete b", "task_start a#2"]


def test_a_deadline_of_a_gate_that_was_answered_wakes_nobody() -> None:
    flow = Workflow("w")
    flow.add("a", nothing, approve={"question": "?", "timeout_s": 60})
    run = Run(flow, gates="wait").begin()
    assert run.machine.wake_at is not None
    run.answer("approve:a")
    assert run.machine.wake_at is None


def test_a_group_gives_its_slot_to_the_next_in_plan_order() -> None:
    flow = Workflow("w")
    for name in ("a", "b", "c", "d"):
        flow.add(name, nothing, concurrency="g")
    run = Run(flow).begin()
    order = []
    while run.running:
        (name,) = run.running
        order.append(name)
        run.ok(name)
    assert order == ["a", "b", "c", "d"]


def test_a_slot_is_not_lost_with_a_task_that_was_skipped_while_it_waited_for_it() -> None:
    flow = Workflow("w")
    flow.add("a", nothing, concurrency="g")
    flow.add("each", take, for_each=[1, 2], inputs={"value": "${{ item }}"}, concurrency="g", max_failures=1)
    flow.add("z", nothing, concurrency="g")
    run = Run(flow).begin()
    run.ok("a")
    assert run.running == ["each[0]"]
    run.fail("each[0]")  # each[1] waits for the slot, and is skipped
    assert run.running == ["z"]
