"""Attempts, retries, conditions, fan-out, slots, halting, stopping: what the machine does with tasks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.plan import compile_plan
from agentos.ids import WorkflowId
from agentos.machine import events as ev
from agentos.machine.facts.fold import Facts
from agentos.machine.inputs import Begin, ChildStarted, EffectsHeld, StopAsked
from agentos.machine.machine import Machine, decide
from tests.unit.machine.harness import START, Run, ended, failed, flow_of, nothing, play, take, told


def one(**settings: Any) -> Workflow:
    flow = Workflow("w", schedule="layers")
    flow.add("a", nothing, **settings)
    return flow


def each(items: Any = (1, 2, 3), **settings: Any) -> Workflow:
    flow = Workflow("w")
    flow.add(
        "each",
        take,
        for_each=items if isinstance(items, str) else list(items),
        inputs={"value": "${{ item }}"},
        **settings,
    )
    flow.add("after", take, inputs={"value": "${{ tasks.each.output }}"})
    return flow


# --- a run in order -------------------------------------------------------------------------------------------------


def test_layers_one_after_the_other() -> None:
    run = Run(flow_of({"a": [], "b": [], "c": ["a"]})).begin()
    assert told(run.out) == ["layer_start 0", "task_start a#1", "task_start b#1"]
    assert run.ok("b") == ["task_complete b"]
    assert run.ok("a") == ["task_complete a", "checkpoint 0", "layer_start 1", "task_start c#1"]
    assert run.ok("c") == ["task_complete c", "checkpoint 1", "workflow_complete"]
    assert run.facts.status == "complete"
    start = run.all(ev.WorkflowStart)[0]
    assert (start.total_layers, start.drive, start.resumed_from) == (2, 1, None)


def test_deciding_is_pure() -> None:
    plan = compile_plan(flow_of({"a": [], "b": ["a"]}))
    facts = Facts(workflow_id=WorkflowId("w"))
    begin = Begin(holder="me", token=1, warnings=("mind the gap",))
    first = decide(plan, facts, begin, START)
    assert first == decide(plan, facts, begin, START)
    assert facts == Facts(workflow_id=WorkflowId("w"))
    assert "task_warning None" in told(first)


def test_an_empty_workflow_completes() -> None:
    assert told(Run(Workflow("w")).begin().out) == ["workflow_complete"]


def test_what_a_layer_added_is_counted() -> None:
    run = Run(flow_of({"a": [], "b": []})).begin()
    run.ok("a", messages=[{}, {}], context={"k": 1})
    run.ok("b", context={"l": 1, "m": 2})
    updated = run.last(ev.StateUpdated)
    assert (updated.tasks, updated.messages, updated.context_keys, updated.decisions) == (2, 2, 3, 0)


def test_an_end_of_an_attempt_that_no_longer_counts_is_ignored() -> None:
    run = Run(flow_of({"a": []})).begin()
    assert run.give(ended("a", attempt=7)) == []
    assert run.give(ended("nowhere")) == []
    assert run.running == ["a"]


def test_a_child_process_is_on_the_record() -> None:
    run = Run(flow_of({"a": []})).begin()
    child = ChildStarted(task_id=run.last(ev.TaskStart).task_id, attempt=1, pid=5, pgid=6, started=1.5)
    assert run.give(child) == ["task_process a"]
    event = run.last(ev.TaskProcess)
    assert (event.pid, event.pgid, event.started, event.attempt) == (5, 6, 1.5, 1)
    run.ok("a")
    machine = Run(flow_of({"a": []})).begin().machine
    late = ChildStarted(task_id=event.task_id, attempt=2, pid=5, pgid=6, started=1.5)
    assert play(machine, late) == []


def test_warnings_of_an_attempt_are_told() -> None:
    run = Run(flow_of({"a": []})).begin()
    assert run.ok("a", warnings=("odd",))[0] == "task_warning a"
    assert run.last(ev.TaskWarning).message == "odd"


def test_max_concurrency_is_honoured() -> None:
    run = Run(flow_of({name: [] for name in "abcd"}, max_concurrency=2)).begin()
    assert run.running == ["a", "b"]
    run.ok("b")
    assert run.running == ["a", "c"]


# --- retries --------------------------------------------------------------------------------------------------------


def test_retries_until_the_allowance_is_used_up() -> None:
    run = Run(one(retries={"retries": 2, "backoff_s": 10, "factor": 3, "jitter": 0})).begin()
    assert run.fail("a") == ["task_retry a#1"]
    assert run.last(ev.TaskRetry).not_before == START + timedelta(seconds=10)
    assert run.machine.wake_at == START + timedelta(seconds=10)
    assert run.later(9) == []
    assert run.later(1) == ["task_start a#2"]
    run.fail("a")
    assert run.last(ev.TaskRetry).not_before == run.now + timedelta(seconds=30)
    assert run.later(30) == ["task_start a#3"]
    assert run.fail("a") == ["failed a: Boom", "checkpoint 0", "workflow_failed"]


def test_a_delay_has_a_limit() -> None:
    run = Run(one(retries={"retries": 1, "backoff_s": 100, "max_delay_s": 5, "jitter": 0})).begin()
    run.fail("a")
    assert run.last(ev.TaskRetry).not_before == START + timedelta(seconds=5)


def test_jitter_is_spread_and_stays_the_same_on_replay() -> None:
    def delays(run_id: str) -> list[float]:
        flow = Workflow("w")
        for number in range(20):
            flow.add(f"t{number}", nothing, retries={"retries": 1, "backoff_s": 10, "jitter": 0.25})
        run = Run(flow, workflow_id=run_id)
        run.machine.plan = run.machine.plan
        run.begin()
        for task in run.running:
            run.fail(task)
        return [(retry.not_before - START).total_seconds() for retry in run.all(ev.TaskRetry)]

    first = delays("one")
    assert first == delays("one")
    assert first != delays("two")
    assert len(set(first)) > 10
    assert all(7.5 <= delay <= 12.5 for delay in first)


def test_what_may_not_be_retried_fails_at_once() -> None:
    run = Run(one(retries=5)).begin()
    assert run.fail("a", retryable=False)[0] == "failed a: Boom"


def test_a_resume_of_a_failed_task_has_a_fresh_allowance_and_goes_on_counting() -> None:
    run = Run(one(retries=1)).begin()
    run.fail("a")
    run.later(60)
    run.fail("a")
    assert run.facts.status == "failed"
    run.resume()
    assert run.attempt("a") == 3
    assert run.fail("a") == ["task_retry a#3"]
    run.later(60)
    assert run.fail("a")[0] == "failed a: Boom"


def test_a_retry_waits_on_over_a_crash() -> None:
    run = Run(one(retries={"retries": 1, "backoff_s": 10, "jitter": 0})).begin()
    run.fail("a")
    assert "task_start a#2" not in run.resume()
    assert run.machine.wake_at == START + timedelta(seconds=10)
    assert run.later(10) == ["task_start a#2"]
    assert run.fail("a")[0] == "failed a: Boom"


def test_a_cut_try_uses_up_no_retry() -> None:
    run = Run(one(retries=1)).begin()
    run.resume()
    run.resume()
    assert run.attempt("a") == 3
    assert run.fail("a") == ["task_retry a#3"]
    assert run.task("a").tries == 1


def test_attempts_that_have_ended_are_counted_for_good_and_those_that_were_cut_off_are_not() -> None:
    run = Run(one(retries=1)).begin()
    run.resume()
    assert run.task("a").settled == 0
    run.fail("a")
    run.later(60)
    assert run.task("a").settled == 1
    run.resume()
    run.fail("a")
    assert run.facts.status == "failed"
    run.resume()
    assert run.task("a").settled == 2
    run.ok("a")
    assert run.task("a").settled == 3
    run.resume(rerun=("a",))
    assert (run.running, run.task("a").settled) == (["a"], 3)


def test_three_cuts_in_a_row_ask() -> None:
    run = Run(one(idempotent=True), gates="wait").begin()
    run.resume()
    run.resume()
    assert run.running == ["a"]
    run.resume()
    assert run.open_gates == ["ask:a"]
    assert run.resumed is not None
    assert run.resumed.verdicts[0].reason == "was interrupted 3 times in a row"
    run.answer("ask:a", choice="run-again")
    assert run.attempt("a") == 4
    run.resume()  # counted anew
    assert run.running == ["a"]


def test_a_failure_in_between_makes_cuts_no_row() -> None:
    run = Run(one(retries=9)).begin()
    run.resume()
    run.resume()
    run.fail("a")
    run.later(60)
    run.resume()
    assert run.running == ["a"]


# --- conditions -----------------------------------------------------------------------------------------------------


def test_dependants_of_a_failed_task_are_skipped_for_its_root_cause() -> None:
    run = Run(flow_of({"a": [], "s": [], "b": ["a"], "c": ["b"], "d": ["s"]})).begin()
    run.fail("a")
    run.ok("s")
    assert run.running == ["d"]
    assert run.ok("d")[-1] == "workflow_failed"
    assert [run.task(name).because for name in "bc"] == ["a", "a"]
    assert run.last(ev.WorkflowFailed).failed == ("a",)
    assert run.last(ev.WorkflowFailed).reason == "1 task failed"


@pytest.mark.parametrize(
    ("condition", "after_success", "after_failure"),
    [
        ("success()", "running", "skipped"),
        ("failure()", "skipped", "running"),
        ("always()", "running", "running"),
        ("tasks.a.output == 1", "running", "skipped"),
        ("tasks.a.output != 1", "skipped", "skipped"),
        ("failure() and tasks.a.status == 'failed'", "skipped", "running"),
    ],
)
def test_conditions(condition: str, after_success: str, after_failure: str) -> None:
    flow = Workflow("w")
    flow.add("a", nothing)
    flow.add("b", nothing, needs=["a"], if_=condition)
    good = Run(flow).begin()
    good.ok("a", 1)
    assert good.status("b") == after_success
    bad = Run(flow).begin()
    bad.fail("a")
    assert bad.status("b") == after_failure


def test_a_task_skipped_by_its_own_condition_has_no_cause_and_its_dependants_have_it() -> None:
    flow = Workflow("w")
    flow.add("a", nothing, if_="false")
    flow.add("b", nothing, needs=["a"])
    flow.add("c", nothing, needs=["b"])
    flow.add("d", nothing, needs=["a"], if_="failure()")
    run = Run(flow).begin()
    assert [run.task(name).because for name in "abc"] == ["", "a", "a"]
    assert run.status("d") == "skipped"
    assert run.facts.status == "complete"


def test_failure_looks_through_what_was_skipped() -> None:
    flow = Workflow("w")
    flow.add("a", nothing)
    flow.add("b", nothing, needs=["a"])
    flow.add("c", nothing, needs=["b"], if_="failure()")
    run = Run(flow).begin()
    run.fail("a")
    assert run.running == ["c"]


def test_a_condition_that_cannot_be_decided_fails_the_task() -> None:
    flow = Workflow("w")
    flow.add("a", nothing)
    flow.add("b", nothing, needs=["a"], if_="tasks.a.output.missing == 1")
    run = Run(flow).begin()
    run.ok("a", {})
    assert run.status("b") == "failed"
    assert run.task("b").attempts == 0


def test_continue_on_error_ends_failed_safe_and_dependants_see_it() -> None:
    flow = Workflow("w")
    flow.add("a", nothing, continue_on_error=True)
    flow.add("b", nothing, needs=["a"])
    flow.add("c", nothing, needs=["a"], if_="tasks.a.status == 'failed_safe'")
    flow.add("d", nothing, needs=["a"], if_="failure()")
    run = Run(flow).begin()
    assert run.fail("a")[0] == "failed_safe a: Boom"
    assert run.running == ["b", "c"]
    assert run.status("d") == "skipped"
    run.ok("b")
    assert run.ok("c")[-1] == "workflow_complete"


# --- for_each -------------------------------------------------------------------------------------------------------


def test_a_fan_out() -> None:
    run = Run(each()).begin()
    assert told(run.out) == [
        "layer_start 0",
        "plan_changed for_each",
        "task_start each[0]#1",
        "task_start each[1]#1",
        "task_start each[2]#1",
    ]
    assert run.status("each") == "running"
    run.ok("each[2]", "c")
    run.ok("each[0]", "a")
    assert run.ok("each[1]", "b") == [
        "task_complete each[1]",
        "task_complete each",
        "checkpoint 0",
        "layer_start 1",
        "task_start after#1",
    ]
    assert run.output("each") == ["a", "b", "c"]
    assert run.last(ev.PlanChanged).children == ("each[0]", "each[1]", "each[2]")


def test_an_empty_list_completes() -> None:
    run = Run(each(())).begin()
    assert told(run.out)[:3] == ["layer_start 0", "plan_changed for_each", "task_complete each"]
    assert run.output("each") == []
    assert run.running == ["after"]


def test_items_by_key_from_a_reference() -> None:
    flow = Workflow("w")
    flow.add("list", nothing)
    flow.add(
        "each", take, for_each="${{ tasks.list.output }}", as_="it", key="it.name", inputs={"value": "${{ it.name }}"}
    )
    run = Run(flow).begin()
    run.ok("list", [{"name": "x"}, {"name": "y"}])
    assert run.running == ["each[x]", "each[y]"]


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("no list", "list"),
        ([{"name": "x"}, {"name": "x"}], "same key"),
        ([{"name": None}], "not a text"),
        ([{}], "name"),
    ],
)
def test_a_fan_out_over_something_bad_fails(output: Any, says: str) -> None:
    flow = Workflow("w")
    flow.add("list", nothing)
    flow.add("each", nothing, for_each="${{ tasks.list.output }}", key="item.name")
    run = Run(flow).begin()
    run.ok("list", output)
    assert run.status("each") == "failed"
    error = run.task("each").error
    assert error is not None
    assert says in error.text


def test_failed_items_fail_the_whole_after_all_have_run() -> None:
    run = Run(each()).begin()
    run.fail("each[1]")
    run.ok("each[0]")
    assert run.running == ["each[2]"]
    run.ok("each[2]")
    assert run.status("each", "after") == "failed skipped"
    assert run.task("each").error == ev.TaskFailure(type="ItemsFailed", text="1 of 3 items failed, first 'each[1]'")
    assert run.task("after").because == "each"
    assert run.facts.status == "failed"


def test_max_failures_ends_it_early() -> None:
    flow = each(range(6), max_failures=2)
    flow.max_concurrency = 2
    run = Run(flow).begin()
    run.fail("each[0]")
    run.fail("each[1]")
    assert [run.status(f"each[{index}]") for index in range(6)] == [
        "failed",
        "failed",
        "running",
        "skipped",
        "skipped",
        "skipped",
    ]
    run.ok("each[2]")
    assert run.status("each") == "failed"


def test_max_failures_skips_what_waits_for_a_retry() -> None:
    run = Run(each(range(2), max_failures=1, retries=1)).begin()
    run.fail("each[0]")
    run.fail("each[1]", retryable=False)
    assert run.status("each[0]", "each[1]", "each") == "skipped failed failed"
    assert run.facts.status == "failed"


def test_continue_on_error_holds_for_each_item() -> None:
    run = Run(each(range(2), continue_on_error=True)).begin()
    run.fail("each[0]")
    run.ok("each[1]", 5)
    assert run.status("each[0]", "each") == "failed_safe complete"
    assert run.output("each") == [None, 5]
    assert run.running == ["after"]


def test_items_are_retried_by_themselves() -> None:
    run = Run(each(range(2), retries=1)).begin()
    run.fail("each[0]")
    run.ok("each[1]", 1)
    run.later(60)
    assert run.running == ["each[0]"]
    run.ok("each[0]", 0)
    assert run.output("each") == [0, 1]


def test_a_resume_in_the_middle_of_a_fan_out() -> None:
    flow = each()
    flow.max_concurrency = 1
    run = Run(flow).begin()
    run.ok("each[0]", "a")
    assert run.running == ["each[1]"]
    events = run.resume()
    assert "plan_changed for_each" not in events
    assert run.verdicts() == {
        "each": "run",
        "each[0]": "reuse",
        "each[1]": "rerun",
        "each[2]": "run",
        "after": "run",
    }
    assert run.attempt("each[1]") == 2
    run.ok("each[1]", "b")
    run.ok("each[2]", "c")
    assert run.output("each") == ["a", "b", "c"]


def test_a_resume_after_items_failed_runs_those_alone() -> None:
    run = Run(each()).begin()
    run.ok("each[0]", "a")
    run.fail("each[1]")
    run.ok("each[2]", "c")
    assert run.facts.status == "failed"
    run.resume()
    assert run.running == ["each[1]"]
    run.ok("each[1]", "b")
    assert run.output("each") == ["a", "b", "c"]
    assert run.running == ["after"]


def test_a_resume_of_a_fan_out_whose_failed_item_stays_rejected() -> None:
    run = Run(each(range(2), effects="external"), gates="wait").begin()
    run.ok("each[1]", 1)
    run.resume()
    run.answer("ask:each[0]", False)
    assert run.status("each[0]", "each", "after") == "failed failed skipped"
    run.resume()
    assert run.facts.status == "failed"
    assert run.status("each[0]", "each", "after") == "failed failed skipped"


def test_cancelled_items_cancel_the_whole() -> None:
    run = Run(each(range(2))).begin()
    run.say({"type": "abort"})
    run.fail("each[0]", cancelled=True)
    assert run.fail("each[1]", cancelled=True)[-1] == "workflow_aborted"
    assert run.status("each") == "cancelled"


# --- slots ----------------------------------------------------------------------------------------------------------


def test_a_concurrency_group_has_slots() -> None:
    flow = Workflow("w")
    for name in "abc":
        flow.add(name, nothing, concurrency={"group": "db", "slots": 1})
    flow.add("free", nothing)
    run = Run(flow).begin()
    assert run.running == ["a", "free"]
    run.ok("free")
    assert run.running == ["a"]
    run.ok("a")
    assert run.running == ["b"]
    run.fail("b")
    assert run.running == ["c"]


def test_a_retry_gives_its_slot_up() -> None:
    flow = Workflow("w")
    for name in "ab":
        flow.add(name, nothing, concurrency="db", retries=1)
    run = Run(flow).begin()
    run.fail("a")
    assert run.running == ["b"]
    run.later(100)
    assert run.running == ["b"]
    run.ok("b")
    assert run.running == ["a"]


def test_slots_are_free_again_after_a_crash() -> None:
    flow = Workflow("w")
    for name in "ab":
        flow.add(name, nothing, concurrency="db")
    run = Run(flow).begin()
    run.resume()
    assert run.running == ["a"]
    run.ok("a")
    assert run.running == ["b"]


def test_slots_are_kept_when_the_plan_grows() -> None:
    flow = Workflow("w", schedule="ready")
    for name in "ab":
        flow.add(name, nothing, concurrency="db")
    flow.add("grow", nothing)
    run = Run(flow).begin()
    run.ok("grow", injected=(("x", {"python": "tests.unit.machine.harness:nothing", "concurrency": "db"}),))
    assert run.running == ["a"]
    run.ok("a")
    assert run.running == ["b"]
    run.ok("b")
    assert run.running == ["x"]


# --- files and effects ----------------------------------------------------------------------------------------------


def files_flow(**settings: Any) -> Workflow:
    flow = Workflow("w")
    flow.add("write", nothing, effects="files", **settings)
    flow.add("other", nothing)
    flow.add("next", nothing, needs=["other"])
    flow.add("clean", nothing, needs=["write", "next"], if_="always()")
    return flow


def test_after_a_failed_file_task_no_later_layer_starts_but_always() -> None:
    run = Run(files_flow()).begin()
    run.ok("other")
    assert "task_skipped next (write)" in run.fail("write")
    assert run.running == ["clean"]
    assert run.ok("clean")[-1] == "workflow_failed"
    assert run.status("next") == "skipped"


def test_always_tasks_still_run_after_a_failed_file_task() -> None:
    flow = Workflow("w")
    flow.add("write", nothing, effects="files")
    flow.add("other", nothing)
    flow.add("next", nothing, needs=["other"])
    flow.add("clean", nothing, needs=["write"], if_="always()")
    flow.add("sweep", nothing, needs=["clean"], if_="always()")
    run = Run(flow).begin()
    run.ok("other")
    run.fail("write")
    assert run.running == ["clean"]
    run.ok("clean")
    assert run.running == ["sweep"]
    assert run.ok("sweep")[-1] == "workflow_failed"
    assert run.status("next") == "skipped"


def test_an_isolated_file_task_halts_nothing() -> None:
    run = Run(files_flow(isolation="worktree")).begin()
    run.ok("other")
    run.fail("write")
    assert run.running == ["next"]


def test_a_resume_after_a_halt_runs_what_failed_and_then_the_rest() -> None:
    run = Run(files_flow()).begin()
    run.ok("other")
    run.fail("write")
    run.resume()
    assert run.running == ["write"]
    run.ok("write")
    assert run.running == ["next"]


def test_held_effects_wait_until_the_thread_has_ended() -> None:
    flow = Workflow("w")
    flow.add("write", nothing, effects="files")
    flow.add("mail", nothing, effects="external")
    flow.add("plain", nothing)
    run = Run(flow)
    run.give(Begin(holder="me", token=1), EffectsHeld(held=True))
    assert run.running == ["plain"]
    assert run.ok("plain") == ["task_complete plain"]
    assert not run.machine.over
    run.give(EffectsHeld(held=False))
    assert run.running == ["mail", "write"]


# --- schedule: ready ------------------------------------------------------------------------------------------------


def test_ready_starts_a_task_as_soon_as_its_needs_are_done() -> None:
    run = Run(flow_of({"a": [], "slow": [], "b": ["a"], "c": ["b"]}, schedule="ready")).begin()
    assert run.ok("a") == ["task_complete a", "layer_start 1", "task_start b#1"]
    assert run.ok("b") == ["task_complete b", "layer_start 2", "task_start c#1"]
    assert run.ok("slow") == ["task_complete slow", "checkpoint 0", "checkpoint 1"]
    assert run.ok("c") == ["task_complete c", "checkpoint 2", "workflow_complete"]


def test_ready_goes_on_after_a_crash() -> None:
    run = Run(flow_of({"a": [], "slow": [], "b": ["a"], "c": ["b"]}, schedule="ready")).begin()
    run.ok("a")
    run.resume()
    assert run.running == ["b", "slow"]
    run.ok("b")
    assert run.running == ["c", "slow"]


def test_ready_fans_out() -> None:
    flow = each()
    flow.schedule = "ready"
    run = Run(flow).begin()
    for index in range(3):
        run.ok(f"each[{index}]", index)
    assert run.running == ["after"]


def test_ready_applies_commands_between_layers() -> None:
    run = Run(flow_of({"a": [], "slow": [], "b": ["a"], "c": ["b"]}, schedule="ready")).begin()
    run.ok("a")
    assert run.say({"type": "skip_layer", "layer": 2}) == ["command_received skip_layer"]
    assert run.ok("slow")[-2:] == ["command_applied skip_layer", "task_skipped c (skip_layer 2)"]
    assert run.ok("b")[-1] == "workflow_complete"


# --- a schedule that nobody gave --------------------------------------------------------------------------------------

WRITES = {"run": "make", "effects": "files"}


def unscheduled() -> Run:
    """A chain from `a` to `d`, `c2` beside its `c`, and `slow` beside it all; the workflow names no schedule."""
    needs = {"a": [], "slow": [], "b": ["a"], "c": ["b"], "c2": ["b"], "d": ["c"]}
    run = Run(flow_of(needs, schedule=None)).begin()
    run.ok("a")
    return run


def test_tasks_without_effects_start_as_soon_as_they_can() -> None:
    run = unscheduled()
    assert run.running == ["b", "slow"]
    run.ok("b")
    assert run.running == ["c", "c2", "slow"]


def test_a_file_task_that_comes_in_waits_for_all_layers_before_its_own() -> None:
    run = unscheduled()
    assert run.give(ended("b", injected=(("write", WRITES),))) == ["task_complete b", "plan_changed inject"]
    assert run.running == ["slow"], "from here on it goes by layers"
    told = run.ok("slow")
    assert told[:4] == ["task_complete slow", "checkpoint 0", "checkpoint 1", "layer_start 2"]
    assert run.running == ["c", "c2", "write"]


def test_layers_that_had_begun_go_on_and_begin_no_second_time() -> None:
    run = unscheduled()
    run.ok("b")
    run.ok("c")
    assert run.running == ["c2", "d", "slow"]
    run.give(ended("c2", injected=(("write", WRITES),)))
    assert run.running == ["d", "slow"], "what runs runs on; the file task is of the same layer as d, and waits"
    assert run.ok("d") == ["task_complete d"]
    assert run.ok("slow")[-2:] == ["checkpoint 2", "task_start write#1"]
    run.ok("write")
    assert told(run.journal).count("layer_start 3") == 1
    assert told(run.journal)[-2:] == ["checkpoint 3", "workflow_complete"]


def test_a_file_task_that_was_sent_in_does_the_same_from_the_next_boundary_on() -> None:
    run = unscheduled()
    run.say({"type": "inject_tasks", "tasks": {"write": WRITES, "after": {**MORE, "needs": ["write"]}}})
    assert run.ok("slow")[:3] == ["task_complete slow", "checkpoint 0", "command_applied inject_tasks"]
    assert run.running == ["b", "write"]
    assert run.ok("b") == ["task_complete b"]
    run.ok("write")
    assert run.running == ["after", "c", "c2"]


@pytest.mark.parametrize("kills", [1, 2])
def test_it_still_goes_by_layers_after_a_crash(kills: int) -> None:
    run = unscheduled()
    run.ok("b")
    run.ok("c")
    run.give(ended("c2", injected=(("write", {**WRITES, "idempotent": True}),)))
    for _ in range(kills):
        run.resume()
        assert run.running == ["slow"]
    run.ok("slow")
    assert run.running == ["d", "write"]


def test_where_it_fails_nothing_later_starts() -> None:
    run = unscheduled()
    run.give(ended("b", injected=(("write", WRITES),)))
    run.ok("slow")
    run.ok("c")
    run.ok("c2")
    assert run.fail("write")[-3:] == ["task_skipped d (write)", "checkpoint 3", "workflow_failed"]


def test_ready_as_the_workflow_says_takes_no_file_task() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]}, schedule="ready")).begin()
    run.say({"type": "inject_tasks", "tasks": {"write": WRITES}})
    assert "command_refused inject_tasks" in run.ok("a")


# --- tasks that ask for more ----------------------------------------------------------------------------------------

MORE = {"python": "tests.unit.machine.harness:nothing"}


def test_a_task_asks_for_more_tasks() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]})).begin()
    events = run.ok("a", injected=(("x", MORE), ("y", {**MORE, "needs": ["x"]})))
    assert events[:2] == ["task_complete a", "plan_changed inject"]
    assert run.running == ["b", "x"]
    run.resume()
    assert run.running == ["b", "x"]
    run.ok("x")
    run.ok("b")
    assert run.running == ["y"]
    assert run.ok("y")[-1] == "workflow_complete"


def test_a_task_that_asks_for_nonsense_fails() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]})).begin()
    run.ok("a", injected=(("b", MORE),))
    assert run.status("a", "b") == "failed skipped"
    error = run.task("a").error
    assert error is not None
    assert error.type == "WorkflowDefinitionError"
    other = Run(flow_of({"a": []})).begin()
    other.ok("a", injected=(("x", {}),))
    assert other.status("a") == "failed"


def test_two_tasks_that_set_one_key_are_warned_about() -> None:
    run = Run(flow_of({"a": [], "b": [], "c": ["a"]})).begin()
    run.ok("b", context={"k": "b", "l": 1})
    assert run.ok("a", context={"k": "a"})[0] == "task_warning a"
    assert run.last(ev.TaskWarning).message == "context key 'k' is also set by 'b'; 'b', later in the plan, wins"
    assert run.state.context == {"k": "b", "l": 1}
    run.resume()
    assert run.ok("c", context={"l": 2})[0] == "task_warning c"


# --- rounds ---------------------------------------------------------------------------------------------------------


def rounds(most: int = 3) -> Workflow:
    flow = Workflow("w")
    flow.add("draft", nothing)
    flow.add("review", take, inputs={"value": "${{ tasks.draft.output }}"})
    flow.add("loop", repeat={"tasks": ["draft", "review"], "until": "tasks.review.output == 'good'", "max": most})
    flow.add("end", take, inputs={"value": "${{ tasks.review.output }}"}, needs=["loop"])
    return flow


def test_rounds_until_the_condition_holds() -> None:
    run = Run(rounds()).begin()
    run.ok("draft", 1)
    assert "plan_changed repeat" in run.ok("review", "bad")
    assert run.running == ["draft@2"]
    run.ok("draft@2", 2)
    assert run.running == ["review@2"]
    run.ok("review@2", "good")
    assert run.output("loop") == {"rounds": 2}
    assert run.running == ["end"]
    assert run.ok("end")[-1] == "workflow_complete"


def test_what_a_round_skipped_does_not_skip_the_next_one() -> None:
    flow = Workflow("w")
    flow.add("draft", nothing)
    flow.add("extra", nothing, needs=["draft"], if_="tasks.draft.output.extra")
    flow.add("review", nothing, needs=["extra"], if_="not failure()")
    rounds = {"tasks": ["draft", "extra", "review"], "until": "tasks.review.output.good", "max": 3}
    flow.add("loop", repeat=rounds, if_="not failure()")
    run = Run(flow).begin()
    run.ok("draft", {"extra": False})
    run.ok("review", {"good": False})
    assert (run.status("extra"), run.running) == ("skipped", ["draft@2"])
    run.ok("draft@2", {"extra": True})
    run.ok("extra@2")
    run.ok("review@2", {"good": False})
    run.ok("draft@3", {"extra": False})
    run.ok("review@3", {"good": True})
    assert run.status("extra@3", "loop") == "skipped complete"
    assert run.facts.status == "complete"


def test_what_failed_in_a_round_ends_the_rounds() -> None:
    flow = Workflow("w")
    flow.add("draft", nothing)
    flow.add("review", nothing, needs=["draft"], if_="not failure()")
    rounds = {"tasks": ["draft", "review"], "until": "tasks.review.output.good", "max": 3}
    flow.add("loop", repeat=rounds, if_="not failure()")
    run = Run(flow).begin()
    run.fail("draft")
    assert run.status("draft", "review", "loop") == "failed skipped skipped"


def test_rounds_go_on_after_a_crash() -> None:
    run = Run(rounds()).begin()
    run.ok("draft", 1)
    run.ok("review", "bad")
    run.resume()
    assert run.running == ["draft@2"]
    run.ok("draft@2", 2)
    run.ok("review@2", "good")
    assert run.running == ["end"]


def test_rounds_have_an_end() -> None:
    run = Run(rounds(1)).begin()
    run.ok("draft", 1)
    run.ok("review", "bad")
    error = run.task("loop").error
    assert error is not None
    assert error.type == "RoundsExhausted"
    assert run.facts.status == "failed"


def test_an_until_that_cannot_be_decided_fails() -> None:
    flow = Workflow("w")
    flow.add("draft", nothing)
    flow.add("loop", repeat={"tasks": ["draft"], "until": "tasks.draft.output.good", "max": 2})
    run = Run(flow).begin()
    run.ok("draft", {})
    assert run.status("loop") == "failed"


# --- stopping -------------------------------------------------------------------------------------------------------


def test_a_stop_drains_and_starts_nothing_new() -> None:
    run = Run(flow_of({"a": [], "b": [], "c": ["a"]}, max_concurrency=1)).begin()
    assert run.give(StopAsked()) == []
    assert run.machine.stopping
    assert run.ok("a") == ["task_complete a", "workflow_paused stopped"]
    run.resume()
    assert run.running == ["b"]


def test_a_stop_with_nothing_running_ends_at_once() -> None:
    flow = Workflow("w")
    flow.add("ship", nothing, approve="Ship?")
    run = Run(flow, gates="wait").begin()
    assert run.give(StopAsked(reason="SIGTERM")) == ["workflow_paused stopped"]
    assert run.last(ev.WorkflowPaused).gates == ("approve:ship",)


def test_a_cancelled_task_runs_again_on_resume() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]})).begin()
    run.give(StopAsked())
    assert run.fail("a", cancelled=True) == ["cancelled a: Boom", "workflow_paused stopped"]
    run.resume()
    assert run.verdicts()["a"] == "rerun"
    assert run.running == ["a"]


def test_a_cancelled_effect_asks_on_resume() -> None:
    run = Run(one(effects="external")).begin()
    run.give(StopAsked())
    run.fail("a", cancelled=True)
    run.resume()
    assert run.open_gates == ["ask:a"]


def test_an_effect_that_did_not_end_by_itself_asks_at_once() -> None:
    run = Run(one(effects="external", retries=3, continue_on_error=True)).begin()
    assert run.fail("a", "out of time\nlast words", cut_off=True) == [
        "resume_planned",
        "decision_required ask:a",
        "workflow_paused waiting",
    ]
    assert run.last(ev.ResumePlanned).under_way
    assert "(was interrupted: out of time)" in run.gate("ask:a").question
    assert run.task("a").tries == 0
    run.resume(gates="wait")
    assert (run.verdicts()["a"], run.open_gates, run.running) == ("ask", ["ask:a"], [])
    run.answer("ask:a", choice="run-again")
    assert run.running == ["a"]
    assert run.fail("a", "no") == ["task_retry a#2"], "what fails by itself is retried as ever"


def test_an_effect_that_ran_out_of_time_frees_its_slot_and_holds_up_no_other() -> None:
    flow = Workflow("w")
    for name in ("a", "b"):
        flow.add(name, nothing, effects="external", concurrency="db")
    run = Run(flow, gates="wait").begin()
    run.fail("a", cut_off=True)
    assert (run.open_gates, run.running) == (["ask:a"], ["b"])
    run.answer("ask:a", choice="run-again")
    assert run.running == ["b"], "it waits for the slot"
    run.ok("b")
    assert run.running == ["a"]


def test_an_item_that_ran_out_of_time_is_asked_about() -> None:
    run = Run(each((1, 2), effects="external"), gates="wait").begin()
    run.ok("each[0]")
    run.fail("each[1]", cut_off=True)
    assert run.open_gates == ["ask:each[1]"]
    run.answer("ask:each[1]", answer="happened", output=7)
    assert run.output("each") == [None, 7]


@pytest.mark.parametrize("idempotent", [True, "keyed"])
def test_an_effect_that_may_be_repeated_is_retried_out_of_time(idempotent: bool | str) -> None:
    run = Run(one(effects="external", idempotent=idempotent, retries=1)).begin()
    assert run.fail("a", cut_off=True) == ["task_retry a#1"]


def test_out_of_time_while_stopping_is_left_to_the_resume_and_after_an_abort_to_nobody() -> None:
    run = Run(one(effects="external")).begin()
    run.give(StopAsked())
    assert run.fail("a", cut_off=True) == ["resume_planned", "workflow_paused stopped"]
    run.resume()
    assert run.open_gates == ["ask:a"]

    aborted = Run(one(effects="external", retries=3)).begin()
    aborted.say({"type": "abort"})
    assert aborted.fail("a", cut_off=True) == ["failed a: Boom", "checkpoint 0", "workflow_aborted"]


@pytest.mark.parametrize("retries", [0, 1])
def test_a_journal_from_before_they_were_asked_about_at_once_asks_on_resume(retries: int) -> None:
    run = Run(one(effects="external", retries=retries)).begin()
    run.fail("a", type="TaskTimeoutError")
    assert run.status("a") == ("retrying" if retries else "failed")
    run.resume()
    assert (run.verdicts()["a"], run.open_gates, run.running) == ("ask", ["ask:a"], [])


def test_a_failure_while_stopping_is_kept() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]})).begin()
    run.give(StopAsked())
    assert run.fail("a") == ["failed a: Boom", "checkpoint 0", "workflow_paused stopped"]


def test_nothing_follows_once_it_is_over() -> None:
    run = Run(flow_of({"a": []})).begin()
    run.ok("a")
    assert run.give(StopAsked(), failed("a")) == []
    assert Machine(run.machine.plan, run.facts).wake_at is None


def test_an_effect_that_happened_frees_no_slot() -> None:
    flow = Workflow("w")
    for name in ("mail", "x", "y"):
        flow.add(name, nothing, effects="external", concurrency="db")
    run = Run(flow, gates="wait").begin()
    run.resume()
    assert run.running == ["x"]
    run.answer("ask:mail", answer="happened")
    assert run.running == ["x"]


def test_a_task_that_asked_for_more_may_run_again() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]})).begin()
    run.ok("a", 1, injected=(("x", MORE),))
    run.ok("b")
    run.ok("x")
    run.resume(rerun={"a"})
    run.ok("a", 1, injected=(("x", MORE),))
    assert run.status("a") == "complete"
