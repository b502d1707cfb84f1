"""Sleeps, waits and steps inside a task: given these events, when this input, then these events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.plan import compile_plan
from agentos.dag.plan.selection import Selection
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.inputs import CaptureEnded, Input, SleepAsked, StepBegan, StepEnded, StopAsked, WaitAsked
from agentos.machine.resume import ResumeOptions, plan_resume
from agentos.machine.rules.gates import is_held
from agentos.values import decode_value
from agentos.workflow.files.decisions import decide
from tests.unit.machine.harness import Run, ended, failed, flow_of, nothing, raw

A = TaskId("a")


def sleep(run: Run, seconds: float, number: int = 0, inputs: str = "i") -> SleepAsked:
    return SleepAsked(task_id=A, attempt=run.attempt("a"), number=number, inputs=inputs, seconds=seconds)


def wait(run: Run, number: int = 0, inputs: str = "i", question: str = "ok?", **more: Any) -> WaitAsked:
    return WaitAsked(task_id=A, attempt=run.attempt("a"), number=number, inputs=inputs, question=question, **more)


def began(run: Run, number: int = 0, name: str = "charge") -> StepBegan:
    return StepBegan(task_id=A, attempt=run.attempt("a"), number=number, name=name, inputs="i")


def made(run: Run, number: int = 0, output: Any = None, name: str = "charge") -> StepEnded:
    return StepEnded(task_id=A, attempt=run.attempt("a"), number=number, name=name, inputs="i", output=raw(output))


def suspended(run: Run, *waits: int) -> Input:
    return ended("a", run.attempt("a"), suspended=waits)


def steps(run: Run) -> list[tuple[int, str, Any]]:
    return [(step.number, step.name, decode_value(step.output)) for step in run.task("a").steps]


def external(**settings: Any) -> Workflow:
    flow = Workflow("flow")
    flow.add("a", nothing, effects="external", **settings)
    return flow


# --- sleeps -----------------------------------------------------------------------------------------------------------


def test_a_task_that_sleeps_has_no_attempt_until_it_is_due() -> None:
    run = Run(flow_of({"a": []})).begin()
    assert run.give(sleep(run, 60)) == ["task_sleep"]
    assert run.give(suspended(run, 0)) == ["task_suspended"]
    assert run.status("a") == "waiting"
    assert not run.running
    assert run.later(59) == []
    assert run.later(1) == ["task_step", "task_start a#2"]
    assert steps(run) == [(0, "ctx.sleep", None)]
    assert run.ok("a")[0] == "task_complete a"


def test_a_task_that_sleeps_leaves_its_slot_to_others() -> None:
    flow = Workflow("flow", max_concurrency=1)
    for name in ("a", "b"):
        flow.add(name, nothing, concurrency={"group": "g", "slots": 1})
    run = Run(flow).begin()
    assert run.running == ["a"]
    run.give(sleep(run, 60))
    assert run.give(suspended(run, 0)) == ["task_suspended", "task_start b#1"]
    assert run.later(60) == ["task_step"], "it has no slot yet"
    assert "task_start a#2" in run.ok("b")


def test_a_sleep_that_an_attempt_comes_back_to_is_the_same_sleep() -> None:
    run = Run(flow_of({"a": []})).begin()
    run.give(sleep(run, 60))
    run.later(10)
    run.resume()
    assert run.running == ["a"], "it was cut off between falling asleep and ending"
    assert run.give(sleep(run, 60)) == []
    run.give(suspended(run, 0))
    assert run.later(49) == []
    assert run.later(1) == ["task_step", "task_start a#3"]


def test_killed_asleep_it_sleeps_what_is_left() -> None:
    run = Run(flow_of({"a": []})).begin()
    run.give(sleep(run, 60))
    run.give(suspended(run, 0))
    run.later(50)
    assert run.resume() == ["resume_planned", "layer_start 0"]
    assert run.later(9) == []
    assert run.later(1) == ["task_step", "task_start a#2"]


def test_a_clock_that_was_ahead_makes_no_sleep_longer() -> None:
    run = Run(flow_of({"a": []})).begin()
    run.give(sleep(run, 60))
    run.give(suspended(run, 0))
    run.later(-3600)
    run.resume()
    run.later(60)
    assert run.running == ["a"]


def test_a_sleep_uses_up_no_retry() -> None:
    flow = Workflow("flow")
    flow.add("a", nothing, retries={"retries": 1, "backoff_s": 0})
    run = Run(flow).begin()
    for number in range(3):
        run.give(sleep(run, 1, number))
        run.give(suspended(run, number))
        run.later(1)
    assert run.task("a").tries == 0
    assert run.fail("a")[0] == "task_retry a#4"
    assert len(run.task("a").steps) == 3, "a retry takes them over"


def test_of_a_sleep_and_an_answer_the_first_lets_it_go_on_and_the_gate_goes_with_the_task() -> None:
    run = Run(flow_of({"a": []})).begin()
    run.give(wait(run, 0))
    run.give(sleep(run, 60, 1))
    run.give(suspended(run, 0, 1))
    assert run.later(60) == ["task_step", "task_start a#2"]
    assert run.open_gates == ["wait:a"], "it may still be waited for"
    assert run.give(wait(run, 0)) == []
    run.ok("a")
    assert run.open_gates == []
    assert run.facts.status == "complete"


def test_what_came_while_the_attempt_ended_lets_it_go_on_at_once() -> None:
    run = Run(flow_of({"a": []})).begin()
    run.give(wait(run))
    run.answer("wait:a")
    assert run.running == ["a"]
    assert run.give(suspended(run, 0)) == ["task_suspended", "task_start a#2"]


def test_a_stop_while_it_sleeps_is_in_order_and_a_resume_sleeps_on() -> None:
    run = Run(flow_of({"a": []})).begin()
    run.give(sleep(run, 60))
    run.give(suspended(run, 0))
    assert run.give(StopAsked()) == ["workflow_paused stopped"]
    run.resume()
    assert not run.running
    run.later(60)
    assert run.running == ["a"]


def test_a_sleep_of_an_attempt_that_no_longer_counts_is_none() -> None:
    run = Run(flow_of({"a": []})).begin()
    late = sleep(run, 60)
    run.resume()
    assert run.give(late) == []


# --- waits ------------------------------------------------------------------------------------------------------------


def test_a_task_that_waits_goes_on_with_the_answer() -> None:
    run = Run(flow_of({"a": []})).begin()
    assert run.give(wait(run, choices=("now", "later"))) == ["decision_required wait:a"]
    assert run.status("a") == "running"
    assert run.give(suspended(run, 0)) == ["task_suspended", "workflow_paused waiting"]
    run.resume(gates="wait")
    assert not run.running
    run.answer("wait:a", choice="now", reason="why not")
    assert run.running == ["a"]
    answer = {"approved": True, "choice": "now", "reason": "why not", "author": "me"}
    assert steps(run) == [(0, "ctx.wait_for", answer)]
    assert [row["kind"] for row in run.state.decisions] == ["wait"]


def test_a_no_is_given_to_the_function_which_fails_of_it() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]}), gates="wait").begin()
    run.give(wait(run))
    run.give(suspended(run, 0))
    run.answer("wait:a", approved=False)
    assert run.running == ["a"]
    assert steps(run)[0][2]["approved"] is False
    run.give(failed("a", 2, "rejected by me", type="GateRejected", retryable=False))
    assert run.status("a", "b") == "failed skipped"
    assert run.planned().counts == {"reuse": 2}, "no resume runs it"


def test_nothing_but_an_answer_lets_it_go_on() -> None:
    run = Run(flow_of({"a": []})).begin()
    run.give(wait(run))
    run.give(suspended(run, 0))
    for _ in range(3):
        run.resume(gates="wait")
        assert not run.running
        assert run.open_gates == ["wait:a"]
    run.answer("wait:a", attempt_id="run/b/1")
    assert "for a human" in run.refusal()
    assert not run.running


def test_an_answered_wait_is_not_asked_again_after_a_kill() -> None:
    run = Run(flow_of({"a": []}), gates="wait").begin()
    run.give(wait(run))
    run.give(suspended(run, 0))
    run.answer("wait:a")
    run.resume()
    assert run.running == ["a"]
    assert len(run.all(ev.DecisionRequired)) == 1
    assert steps(run)[0][2]["approved"] is True


def test_a_deadline_is_a_no() -> None:
    run = Run(flow_of({"a": []}), gates="wait").begin()
    run.give(wait(run, timeout_s=5))
    run.give(suspended(run, 0))
    run.later(5)
    assert steps(run)[0][2] == {
        "approved": False,
        "choice": "",
        "reason": "nobody answered in time",
        "author": "timeout",
    }


@pytest.mark.parametrize("changed", [{"inputs": "j"}, {"question": "really?"}])
def test_with_other_inputs_or_another_question_it_is_asked_anew(changed: dict[str, Any]) -> None:
    run = Run(flow_of({"a": []}), gates="wait").begin()
    run.give(wait(run))
    run.resume()
    assert run.give(wait(run, **changed)) == ["withdrawn wait:a", "decision_required wait:a#2"]
    assert run.open_gates == ["wait:a#2"]


def test_a_sleep_that_became_a_question_is_over_and_the_other_way_round() -> None:
    run = Run(flow_of({"a": []}), gates="wait").begin()
    run.give(sleep(run, 3600))
    run.resume()
    run.give(wait(run))
    run.give(suspended(run, 0))
    assert run.machine.wake_at is None
    assert run.open_gates == ["wait:a"]
    run.resume(rerun=[])
    run.answer("wait:a")
    other = Run(flow_of({"a": []}), gates="wait").begin()
    other.give(wait(other))
    other.resume()
    assert other.give(sleep(other, 5)) == ["withdrawn wait:a", "task_sleep"]


def test_with_other_inputs_it_sleeps_anew() -> None:
    run = Run(flow_of({"a": []})).begin()
    run.give(sleep(run, 60))
    run.later(59)
    run.resume()
    run.give(sleep(run, 60, inputs="j"))
    run.give(suspended(run, 0))
    assert run.later(59) == []
    assert run.later(1) == ["task_step", "task_start a#3"]


def test_rerun_forgets_what_it_waits_for() -> None:
    run = Run(flow_of({"a": []}), gates="wait").begin()
    run.give(made(run, 0), wait(run, 1))
    run.give(suspended(run, 1))
    run.resume(rerun=["a"])
    assert run.running == ["a"]
    assert run.open_gates == []
    assert not run.task("a").steps


def test_a_run_that_is_driven_for_an_answer_alone_goes_on_in_the_next_drive() -> None:
    run = Run(flow_of({"a": []})).begin()
    run.give(wait(run))
    run.give(suspended(run, 0))
    run.resume(starts=False, first=({"type": "approval_response", "gate_id": "wait:a", "approved": True},))
    assert run.facts.status == "interrupted"
    run.resume()
    assert run.running == ["a"]


# --- steps that may not be repeated -----------------------------------------------------------------------------------


def test_only_the_step_that_had_begun_is_asked_about() -> None:
    run = Run(external()).begin()
    run.give(began(run, 0), made(run, 0, "paid"))
    run.give(began(run, 1, "mail"))
    run.resume()
    assert run.verdicts() == {"a": "ask"}
    assert run.open_gates == ["ask:a"]
    asked = run.gate("ask:a")
    assert asked.step == 1
    assert "Step 2, 'mail', of task 'a'" in asked.question


def test_it_happened_gives_the_step_its_result_and_the_task_goes_on() -> None:
    run = Run(external(), gates="wait").begin()
    run.give(began(run, 0))
    run.resume()
    run.answer("ask:a", answer="happened", output={"id": 7})
    assert run.running == ["a"]
    assert steps(run) == [(0, "charge", {"id": 7})]


def test_run_again_makes_the_step_again_and_a_no_fails_the_task() -> None:
    for approved in (True, False):
        run = Run(external(), gates="wait").begin()
        run.give(began(run, 0))
        run.resume()
        run.answer("ask:a", approved=approved, **({"choice": "run-again"} if approved else {}))
        assert run.status("a") == ("running" if approved else "failed")
        assert steps(run) == []
        assert not run.facts.ask


def test_of_steps_side_by_side_each_is_asked_about() -> None:
    run = Run(external(), gates="wait").begin()
    run.give(began(run, 0), began(run, 1))
    run.resume()
    run.answer("ask:a", answer="happened", output=1)
    assert not run.running
    assert run.open_gates == ["ask:a#2"]
    run.agree("ask:a#2")
    assert run.running == ["a"]
    assert steps(run) == [(0, "charge", 1)]


def test_cut_off_between_steps_nothing_is_asked() -> None:
    run = Run(external()).begin()
    run.give(began(run, 0), made(run, 0))
    run.resume()
    assert run.verdicts() == {"a": "rerun"}
    assert [row.reason for row in run.last(ev.ResumePlanned).verdicts] == ["was interrupted; goes on after 1 step"]
    assert run.running == ["a"]


def test_cut_off_before_its_first_step_the_task_is_asked_about() -> None:
    run = Run(external()).begin()
    run.resume()
    assert run.verdicts() == {"a": "ask"}
    assert run.gate("ask:a").step is None


def test_without_its_steps_the_task_is_asked_about() -> None:
    run = Run(external()).begin()
    run.give(began(run, 0), made(run, 0))
    run.resume(rerun=["a"])
    assert run.verdicts() == {"a": "ask"}
    assert run.gate("ask:a").step is None


def test_a_timeout_asks_about_the_step_that_was_under_way_and_about_nothing_else() -> None:
    run = Run(external(), gates="wait").begin()
    run.give(began(run, 0))
    run.fail("a", type="TaskTimeoutError", cut_off=True)
    assert run.gate("ask:a").step == 0
    between = Run(external()).begin()
    between.give(began(between, 0), made(between, 0))
    between.fail("a", type="TaskTimeoutError", cut_off=True)
    assert between.status("a") == "failed"
    assert not between.open_gates


def test_a_stop_that_cut_a_step_off_asks_about_it() -> None:
    run = Run(external()).begin()
    run.give(began(run, 0), made(run, 0))
    run.give(began(run, 1))
    run.give(StopAsked())
    run.fail("a", type="TaskCancelledError", cancelled=True, retryable=False)
    run.resume()
    assert run.gate("ask:a").step == 1
    assert len(run.task("a").steps) == 1


def test_a_step_that_raised_is_over() -> None:
    run = Run(external(retries={"retries": 1, "backoff_s": 0})).begin()
    run.give(began(run, 0))
    run.fail("a")
    assert run.running == ["a"]
    assert not run.task("a").pending


# --- steps that change files ------------------------------------------------------------------------------------------


def test_the_files_after_a_step_are_on_record_with_it_and_what_a_kill_goes_back_to() -> None:
    flow = Workflow("flow")
    flow.add("a", nothing, effects="files")
    run = Run(flow, captures=True).begin()
    run.give(CaptureEnded(why="attempt", snapshot="s0", tree="t0", task_id="a"))
    after = CaptureEnded(why="attempt", snapshot="s1", tree="t1", task_id="a")
    assert run.give(replace(made(run, 0), captured=after)) == ["files_captured", "task_step"]
    decided = decide(run.facts, run.machine.plan, (), "ask", "run", before=run.machine.plan)
    assert (decided.target, decided.restored_to) == ("s1", run.task("a").files_seq)
    run.resume_with(decided)
    assert run.verdicts() == {"a": "rerun"}
    assert len(run.task("a").steps) == 1


def test_steps_whose_files_are_put_back_are_forgotten() -> None:
    flow = Workflow("flow")
    flow.add("a", nothing, effects="files")
    run = Run(flow, captures=True).begin()
    run.give(CaptureEnded(why="attempt", snapshot="s0", tree="t0", task_id="a"))
    before = run.facts.sequence
    run.give(replace(made(run, 0), captured=CaptureEnded(why="attempt", snapshot="s1", tree="t1", task_id="a")))
    run.resume(files="restored", restored_to=before)
    assert not run.task("a").steps


# --- whatever happens -------------------------------------------------------------------------------------------------


@given(
    acts=st.lists(st.sampled_from(["sleep", "wait", "step", "suspend", "later", "yes", "no", "kill", "fail", "rerun"]))
)
def test_whatever_happens_it_ends_once_all_it_waits_for_has_come(acts: list[str]) -> None:
    """After each act the harness folds anew, asks for the invariants, and compares with a machine made afresh."""
    run = Run(external(retries={"retries": 2, "backoff_s": 1}), gates="wait").begin()
    for number, act in enumerate(acts):
        _do(run, act, number)
    for _ in range(100):
        if run.task("a").ended:
            break
        for gate in run.open_gates:
            run.agree(gate)
        if run.running:
            run.ok("a")
        else:
            run.later(60)
    assert run.task("a").ended
    assert not run.open_gates
    assert run.machine.wake_at is None


def _do(run: Run, act: str, number: int) -> None:
    waits = [step.number for step in run.task("a").pending if step.is_waited_for]
    if run.machine.over:
        return
    if act == "kill":
        run.resume()
    elif act == "rerun":
        run.resume(rerun=["a"])
    elif act == "later":
        run.later(7)
    elif act in ("yes", "no") and run.open_gates:
        gate = run.open_gates[0]
        run.agree(gate) if act == "yes" else run.answer(gate, approved=False)
    elif not run.running:
        return
    elif act == "sleep":
        run.give(sleep(run, 10, number))
    elif act == "wait":
        run.give(wait(run, number))
    elif act == "step":
        run.give(began(run, number))
        if number % 2:
            run.give(made(run, number))
    elif act == "suspend" and waits:
        run.give(suspended(run, waits[0]))
    elif act == "fail":
        run.fail("a", retryable=number % 2 == 0)


# --- a selection ------------------------------------------------------------------------------------------------------


def select(run: Run, *until: str) -> None:
    """What the next resume is to run."""
    run.base = replace(run.base, selection=Selection(until=tuple(map(TaskId, until))))


def pair() -> Workflow:
    flow = Workflow("flow", schedule="layers")
    flow.add("a", nothing, effects="external")
    flow.add("b", nothing)
    return flow


def test_a_task_that_sleeps_and_is_left_out_keeps_its_steps_until_it_is_selected() -> None:
    run = Run(pair()).begin()
    run.give(began(run, 0), made(run, 0, "paid"))
    run.give(sleep(run, 60, 1))
    run.give(suspended(run, 1))
    select(run, "b")
    run.resume()
    assert run.status("a") == "skipped"
    run.ok("b")
    assert run.facts.status == "complete"
    select(run)
    run.resume()
    assert steps(run) == [(0, "charge", "paid")]
    run.later(60)
    assert run.running == ["a"]
    assert steps(run) == [(0, "charge", "paid"), (1, "ctx.sleep", None)]


def test_a_task_that_waits_and_is_left_out_asks_anew_once_it_is_selected() -> None:
    run = Run(pair(), gates="wait").begin()
    run.give(began(run, 0), made(run, 0, "paid"))
    run.give(wait(run, 1))
    run.give(suspended(run, 1))
    assert run.open_gates == ["wait:a"]
    select(run, "b")
    run.resume()
    assert run.open_gates == []
    run.ok("b")
    select(run)
    run.resume()
    assert run.running == ["a"]
    assert steps(run) == [(0, "charge", "paid")]
    run.give(wait(run, 1))
    assert run.open_gates == ["wait:a#2"]


def test_a_step_that_was_cut_off_and_left_out_is_asked_about_once_it_is_selected() -> None:
    run = Run(pair(), gates="wait").begin()
    run.give(began(run, 0), made(run, 0, "paid"))
    run.give(began(run, 1, "mail"))
    select(run, "b")
    run.resume()
    assert run.status("a") == "skipped"
    assert run.open_gates == []
    run.ok("b")
    select(run)
    run.resume()
    assert run.verdicts()["a"] == "ask"
    assert run.gate("ask:a").step == 1
    run.answer("ask:a", choice="it-ran", output="sent")
    assert run.running == ["a"]
    assert steps(run) == [(0, "charge", "paid"), (1, "mail", "sent")]


# --- asked for again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stands", ["asleep", "failed", "retrying"])
def test_steps_with_an_effect_are_made_again_only_after_a_question(stands: str) -> None:
    run = Run(external(retries={"retries": int(stands == "retrying"), "backoff_s": 60}), gates="wait").begin()
    run.give(began(run, 0), made(run, 0, "paid"))
    if stands == "asleep":
        run.give(sleep(run, 60, 1))
        run.give(suspended(run, 1))
    else:
        run.fail("a", retryable=True)
    run.resume(rerun=["a"])
    assert run.verdicts()["a"] == "ask"
    assert run.gate("ask:a").step is None, "it is about the whole task, which begins without its steps"
    assert not run.running
    run.answer("ask:a", choice="run-again")
    assert run.running == ["a"]
    assert steps(run) == []


def test_an_edit_of_what_is_left_out_forgets_no_steps() -> None:
    run = Run(pair()).begin()
    run.give(began(run, 0), made(run, 0, "paid"))
    run.give(sleep(run, 60, 1))
    run.give(suspended(run, 1))
    select(run, "b")
    edited = Workflow("flow", schedule="layers")
    edited.add("a", nothing, effects="external", env={"A": "1"})
    edited.add("b", nothing)
    facts, before = run.facts, run.base
    plan = replace(compile_plan(edited), selection=before.selection)
    planned = plan_resume(before, plan, facts, ResumeOptions(rerun=frozenset({"changed"})))
    assert planned.changed == (A,)
    assert planned.steps_forgotten == ()


def test_a_question_about_a_step_that_is_forgotten_becomes_one_about_the_task() -> None:
    run = Run(external(), gates="wait").begin()
    run.give(began(run, 0), made(run, 0, "paid"))
    run.give(began(run, 1, "mail"))
    run.resume()
    assert run.gate("ask:a").step == 1
    run.resume(rerun=["a"])
    assert run.open_gates == ["ask:a#2"]
    assert run.gate("ask:a#2").step is None
    run.answer("ask:a#2", choice="it-ran", output="all of it")
    assert (run.status("a"), run.output("a")) == ("complete", "all of it")


def test_a_question_of_a_function_is_not_asked_while_what_it_was_given_runs_again() -> None:
    run = Run(flow_of({"n": [], "a": ["n"]}), gates="wait").begin()
    run.ok("n", 1)
    run.give(wait(run))
    run.give(suspended(run, 0))
    gate = run.gate("wait:a")
    assert not is_held(run.machine.plan, run.facts, gate)
    run.resume(rerun=["n"])
    assert run.running == ["n"]
    assert is_held(run.machine.plan, run.facts, gate)
    run.ok("n", 1)
    assert not is_held(run.machine.plan, run.facts, gate)
    assert run.open_gates == ["wait:a"]
