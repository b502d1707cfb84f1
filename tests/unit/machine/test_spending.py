"""What models cost is counted from the journal, and nothing but an answer lets a run spend more than it may."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from agentos.dag.define.model_calls import Budget
from agentos.dag.define.workflow import Workflow
from agentos.ids import GateId, TaskId
from agentos.machine import events as ev
from agentos.machine.inputs import SessionKnown, StopAsked, UsageKnown
from agentos.machine.rules.budgets import money, remaining_budget
from tests.unit.machine.harness import Run, nothing


def asking(*, tasks: int = 2, budget: Any = None, each: Any = None) -> Workflow:
    """Model calls `a`, `b`, … one after the other."""
    flow = Workflow("w", budget=budget)
    names = "abcdef"[:tasks]
    for index, name in enumerate(names):
        flow.add(name, "llm", model="m", prompt="?", needs=list(names[:index][-1:]), budget=each)
    return flow


def paid(run: Run, task: str, *, cost: float = 0.0, tokens: int = 0, attempt: int | None = None) -> list[str]:
    usage = ev.Usage(input_tokens=tokens, cost_usd=cost, calls=1)
    return run.give(
        UsageKnown(task_id=TaskId(task), attempt=attempt if attempt is not None else run.attempt(task), usage=usage)
    )


def left(run: Run, task: str) -> Budget:
    return remaining_budget(run.machine.plan, run.facts, run.machine.plan.tasks[TaskId(task)])


def test_a_run_that_has_spent_its_budget_asks_before_the_next_call() -> None:
    run = Run(asking(budget=1.0), gates="wait").begin()
    paid(run, "a", cost=1.25)
    assert run.ok("a")[-1] == "decision_required budget:b"
    assert "$1.25" in run.gate("budget:b").question
    assert "another $1.00" in run.gate("budget:b").question
    assert run.running == []


def test_a_question_about_less_than_a_cent_says_how_much() -> None:
    run = Run(asking(budget=0.004), gates="wait").begin()
    paid(run, "a", cost=0.00412)
    run.ok("a")
    question = run.gate("budget:b").question
    assert "has spent $0.0041 and" in question
    assert "another $0.004?" in question


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0, "$0.00"),
        (12.5, "$12.50"),
        (1234.567, "$1234.57"),
        (0.1, "$0.10"),
        (0.05, "$0.05"),
        (0.0149, "$0.015"),
        (0.0996, "$0.10"),
        (0.004, "$0.004"),
        (0.00999, "$0.01"),
        (0.000105, "$0.00011"),
        (1e-300, "$0.00"),
        (-0.0041, "-$0.0041"),
    ],
)
def test_money_is_shown_to_the_cent_or_with_two_digits_that_count(usd: float, text: str) -> None:
    assert money(usd) == text


def test_an_answer_allows_it_once_more_and_not_for_ever() -> None:
    run = Run(asking(tasks=3, budget=1.0), gates="wait").begin()
    paid(run, "a", cost=1.25)
    run.ok("a")
    run.answer("budget:b")
    assert run.running == ["b"]
    assert left(run, "b") == Budget(cost_usd=1.0), "as much again as was asked for, beyond what was spent"
    paid(run, "b", cost=1.0)
    assert run.ok("b")[-1] == "decision_required budget:c"


def test_one_yes_is_enough_however_far_a_call_went_beyond() -> None:
    run = Run(asking(budget=1.0), gates="wait").begin()
    paid(run, "a", cost=50.0)
    run.ok("a")
    run.answer("budget:b")
    assert run.running == ["b"]
    run.resume()
    assert (run.running, left(run, "b")) == (["b"], Budget(cost_usd=1.0))


def test_a_no_fails_the_task_and_costs_nothing() -> None:
    run = Run(asking(budget=1.0), gates="wait").begin()
    paid(run, "a", cost=1.0)
    run.ok("a")
    assert run.answer("budget:b", approved=False)[-1] == "workflow_failed"
    assert run.task("b").attempts == 0
    error = run.task("b").error
    assert error is not None
    assert error.type == "GateRejected"


def test_the_budget_of_a_task_counts_all_its_attempts() -> None:
    flow = Workflow("w")
    flow.add("a", "llm", model="m", prompt="?", budget={"tokens": 100}, retries={"retries": 5, "backoff_s": 0})
    run = Run(flow, gates="wait").begin()
    paid(run, "a", tokens=60)
    run.fail("a")
    run.later(1)
    assert left(run, "a") == Budget(tokens=40)
    paid(run, "a", tokens=60)
    run.fail("a")
    run.later(1)
    assert run.open_gates == ["budget:a"]
    assert run.gate("budget:a").question.startswith("Task 'a' has spent")


def test_what_a_task_without_a_budget_spends_counts_for_the_run() -> None:
    run = Run(asking(budget={"cost_usd": 2, "tokens": 1000}, each={"tokens": 900})).begin()
    paid(run, "a", tokens=200, cost=0.5)
    assert left(run, "a") == Budget(cost_usd=1.5, tokens=700)
    assert left(run, "b") == Budget(cost_usd=1.5, tokens=800)


@pytest.mark.parametrize("crash", [False, True])
def test_each_gate_is_waited_for_though_another_was_answered(crash: bool) -> None:
    """Both ask for the run: a yes to one lets the other task begin neither now nor after a crash."""
    flow = Workflow("w", budget=1.0)
    flow.add("a", "llm", model="m", prompt="?")
    for name in "bc":
        flow.add(name, "llm", model="m", prompt="?", needs=["a"])
    run = Run(flow, gates="wait").begin()
    paid(run, "a", cost=1.0)
    run.ok("a")
    assert run.open_gates == ["budget:b", "budget:c"]
    run.answer("budget:b")
    if crash:
        run.resume()
    assert run.running == ["b"]
    assert run.open_gates == ["budget:c"]
    run.answer("budget:c")
    assert run.running == ["b", "c"]
    assert left(run, "b") == Budget(cost_usd=2.0), "each allowed it once more"


def test_a_budget_that_was_raised_needs_no_answer() -> None:
    run = Run(asking(budget=1.0)).begin()
    paid(run, "a", cost=1.0)
    run.ok("a")
    assert run.facts.status == "waiting"
    run.resume(asking(budget=5.0))
    assert run.running == ["b"]
    assert run.open_gates == []


def test_a_resume_resets_nothing() -> None:
    run = Run(asking(budget=1.0), gates="wait").begin()
    paid(run, "a", cost=1.25)
    run.resume()
    assert run.running == [], "the attempt that was interrupted is not repeated unasked: its money is spent"
    assert run.open_gates == ["budget:a"]


def test_going_back_brings_no_money_back() -> None:
    run = Run(asking(tasks=3, budget=10.0)).begin()
    paid(run, "a", cost=1.0)
    run.ok("a")
    paid(run, "b", cost=2.0)
    run.ok("b")
    run.ok("c")
    run.resume(rerun=["c"])
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0)})
    run.ok("c")
    run.go_back()
    assert run.facts.spent_in_all.cost_usd == 3.0
    assert run.facts.spent[TaskId("b")].cost_usd == 2.0


def test_what_an_attempt_paid_that_no_longer_counts_is_counted() -> None:
    run = Run(asking()).begin()
    run.ok("a")
    paid(run, "a", cost=0.5, attempt=1)
    assert run.facts.spent_in_all == ev.Usage(cost_usd=0.5, calls=1)


def test_tasks_that_pay_nobody_are_not_asked_about() -> None:
    flow = asking(tasks=1, budget=1.0)
    flow.add("z", nothing, needs=["a"])
    run = Run(flow).begin()
    paid(run, "a", cost=5.0)
    assert "task_start z#1" in run.ok("a")


def test_what_several_answers_allow_does_not_depend_on_the_order_of_a_map() -> None:
    names = [f"t{number}" for number in range(9)]
    flow = Workflow("w", budget=1.0)
    for place, name in enumerate(names):
        flow.add(name, "llm", model="m", prompt="?", needs=names[max(0, place - 1) : place])
    run = Run(flow, gates="wait").begin()
    spent = 0.0
    for name, following in pairwise(names):
        paid(run, name, cost=2.5)  # each time more than the answer before had allowed
        spent += 2.5
        run.ok(name)
        run.answer(f"budget:{following}")
        assert left(run, following) == Budget(cost_usd=1.0), f"after ${spent}"


# --- put off: nothing is left when the call is about to be made -----------------------------------------------------


def side_by_side(**settings: Any) -> Workflow:
    """Model calls `a` and `b`, at once."""
    flow = Workflow("w", budget={"tokens": 100})
    for name in "ab":
        flow.add(name, "llm", model="m", prompt="?", **settings)
    return flow


def test_an_attempt_that_finds_nothing_left_waits_at_the_gate_and_has_not_failed() -> None:
    run = Run(side_by_side(retries={"retries": 1, "backoff_s": 5}), gates="wait").begin()
    paid(run, "a", tokens=150)
    assert run.fail("b", put_off=True) == ["task_retry b#1", "decision_required budget:b"]
    assert run.last(ev.TaskRetry).put_off
    assert "has spent $0.00 and 150 tokens" in run.gate("budget:b").question
    assert (run.status("b"), run.running) == ("waiting", ["a"])

    assert run.answer("budget:b")[-1] == "task_start b#2"
    assert (run.task("b").tries, run.task("b").settled) == (0, 0), "its key, and all its retries, are left"
    assert run.fail("b") == ["task_retry b#2"]
    assert not run.last(ev.TaskRetry).put_off
    assert "task_start b#3" in run.later(10)
    assert run.fail("b") == ["failed b: Boom"]


def test_an_attempt_that_was_put_off_begins_again_at_once_where_somebody_has_allowed_more() -> None:
    run = Run(side_by_side(), gates="wait").begin()
    paid(run, "a", tokens=150)
    run.fail("a", put_off=True)
    run.answer("budget:a")  # after the other one had looked, and before it is heard of
    assert run.fail("b", put_off=True) == ["task_retry b#1", "task_start b#2"]
    assert run.open_gates == []


def test_a_no_to_what_was_put_off_fails_the_task() -> None:
    run = Run(side_by_side(), gates="wait").begin()
    paid(run, "a", tokens=150)
    run.fail("b", put_off=True)
    assert run.answer("budget:b", approved=False)[-1] == "failed b: GateRejected"


@pytest.mark.parametrize("heard_of", [False, True])
def test_killed_before_or_after_it_was_put_off_a_resume_asks_first(heard_of: bool) -> None:
    run = Run(side_by_side(), gates="wait").begin()
    paid(run, "a", tokens=150)
    run.ok("a")
    if heard_of:
        run.fail("b", put_off=True)
    run.resume()
    assert (run.running, run.open_gates) == ([], ["budget:b"])
    assert run.answer("budget:b")[-1] == "task_start b#2"
    assert run.ok("b")[-1] == "workflow_complete"


def test_what_was_put_off_while_the_run_stops_is_left_for_the_resume() -> None:
    run = Run(side_by_side(), gates="wait").begin()
    paid(run, "a", tokens=150)
    run.ok("a")
    run.give(StopAsked(reason="enough"))
    assert run.fail("b", put_off=True) == ["task_retry b#1", "workflow_paused stopped"]
    run.resume()
    assert run.open_gates == ["budget:b"]


def test_an_agent_that_was_put_off_still_has_what_it_was_to_go_on_with() -> None:
    flow = Workflow("w", budget={"tokens": 100})
    flow.add("a", "agent", agent="claude", prompt="?")
    run = Run(flow, gates="wait").begin()
    session = ev.AgentSession(agent="claude", id="s")
    run.give(SessionKnown(task_id=TaskId("a"), attempt=1, session=session))
    run.fail("a", put_off=True)
    assert run.facts.sessions[TaskId("a")] == session
    run.fail("a")
    assert TaskId("a") not in run.facts.sessions


def test_items_that_are_put_off_leave_their_place_to_others_and_end_with_their_answers() -> None:
    flow = Workflow("w", budget={"tokens": 100})
    group = {"group": "g", "slots": 1}
    flow.add("each", "llm", model="m", prompt="?", for_each=[1, 2, 3], concurrency=group)
    run = Run(flow, gates="wait").begin()
    paid(run, "each[0]", tokens=100)
    run.give(StopAsked(reason="enough"))
    run.ok("each[0]")
    run.resume()
    assert run.open_gates == ["budget:each[1]", "budget:each[2]"]
    for item in ("each[1]", "each[2]"):
        run.answer(f"budget:{item}")
    assert run.running == ["each[1]"]
    paid(run, "each[1]", tokens=500)
    assert run.fail("each[1]", put_off=True) == [
        "task_retry each[1]#1", "decision_required budget:each[1]#2", "decision_required budget:each[2]#2",
    ]  # fmt: skip
    for item in ("each[2]", "each[1]"):
        run.answer(f"budget:{item}#2")
        run.ok(item)
    assert run.facts.status == "complete"


def test_what_was_allowed_before_a_rollback_pays_for_nothing_after_it() -> None:
    """An allowance is an approval, and no approval crosses into a new epoch: not even one that the rollback leaves."""
    run = Run(asking(tasks=3, budget=1.0), gates="wait").begin()
    paid(run, "a", cost=1.25)
    run.ok("a")
    run.answer("budget:b")
    run.ok("b")
    assert run.running == ["c"], "it was allowed another dollar"
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(1)})
    run.ok("c")
    run.go_back()
    assert run.facts.gates[GateId("budget:b")].answer == "approved", "the yes lies before the checkpoint"
    assert (run.running, run.open_gates) == ([], ["budget:c~1"])
