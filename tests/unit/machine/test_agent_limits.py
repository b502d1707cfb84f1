"""An agent at a limit of its service waits, goes on as another one, or asks: that is no failure, whoever dies."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agentos.dag.define.workflow import Workflow
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.inputs import LimitReached, SessionKnown
from agentos.machine.resume import unfinished_reason
from agentos.workflow.drive.attempt_specs import attempt_spec
from tests.unit.machine.harness import START, Run, nothing, told
from tests.unit.machine.test_sessions import resumed

A = TaskId("a")
HOUR = timedelta(hours=1)


def agent(schedule: str = "layers", **settings: Any) -> Workflow:
    flow = Workflow("w", schedule=schedule)
    flow.add("a", "agent", agent="claude", prompt="do it", effects="none", permissions="read", **settings)
    flow.add("z", nothing, needs=["a"])
    return flow


def at_work(flow: Workflow, **more: Any) -> Run:
    run = Run(flow, **more).begin()
    run.give(SessionKnown(task_id=A, attempt=1, session=ev.AgentSession(agent="claude", id="s1")))
    return run


def reaches(run: Run, *, in_s: float | None = None, task: str = "a", **more: Any) -> list[str]:
    until = run.now + timedelta(seconds=in_s) if in_s is not None else None
    return run.fail(task, "too much", limit=LimitReached(until=until), retryable=True, **more)


@pytest.mark.parametrize("schedule", ["layers", "ready"])
def test_it_waits_until_the_limit_is_over_and_goes_on_in_its_session(schedule: str) -> None:
    run = at_work(agent(schedule))
    assert reaches(run, in_s=3600) == ["task_retry a#1"]
    assert run.machine.wake_at == START + HOUR
    assert run.task("a").tries == 0, "that uses up no retry"
    assert run.later(3599) == []
    assert run.later(1) == ["task_start a#2"]
    assert run.facts.sessions[A].id == "s1"
    assert run.ok("a")
    assert run.running == ["z"]


def test_a_driver_that_dies_meanwhile_changes_nothing_but_who_waits() -> None:
    run = at_work(agent())
    reaches(run, in_s=3600)
    run.now += timedelta(seconds=600)
    resumed(run)
    assert "came to a limit" in run.last(ev.TaskWarning).message
    assert unfinished_reason(run.task("a")) == "waits for the end of a limit, until 2026-01-01 01:00:00 UTC"
    assert run.machine.wake_at == START + HOUR
    assert run.running == []
    assert run.later(3000) == ["task_start a#2"]
    assert run.facts.sessions[A].id == "s1"


def test_one_that_is_resumed_after_the_limit_begins_at_once() -> None:
    run = at_work(agent())
    reaches(run, in_s=3600)
    run.now += 2 * HOUR
    resumed(run)
    assert "task_start a#2" in told(run.out)


def test_it_holds_no_slot_while_it_waits() -> None:
    flow = Workflow("w", max_concurrency=1)
    for name in "ab":
        flow.add(name, "agent", agent="claude", prompt="p", effects="none", permissions="read", concurrency="one")
    run = Run(flow).begin()
    assert reaches(run, in_s=3600) == ["task_retry a#1", "task_start b#1"]
    run.ok("b")
    assert run.later(3600) == ["task_start a#2"]


def test_a_service_that_always_says_at_once_is_asked_less_and_less_often() -> None:
    run = at_work(agent())
    waits = []
    for _ in range(10):
        reaches(run, in_s=0)
        wake_at = run.machine.wake_at
        assert wake_at is not None
        waits.append((wake_at - run.now).total_seconds())
        run.later(waits[-1])
    assert waits == [5, 10, 20, 40, 80, 160, 320, 600, 600, 600]
    run.fail("a")
    assert run.status("a") == "failed", "another error is an error"


# --- nobody knows when it is over -----------------------------------------------------------------------------------


def test_a_limit_without_an_end_is_asked_about_once_its_retries_are_used_up() -> None:
    run = at_work(agent(retries={"retries": 1, "backoff_s": 10, "jitter": 0}), gates="wait")
    assert reaches(run) == ["task_retry a#1"]
    assert run.later(10) == ["task_start a#2"]
    assert reaches(run) == ["task_retry a#2", "decision_required limit:a"]
    assert "too much" in run.gate("limit:a").question
    assert run.status("a") == "waiting"


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(("choice", "wait_s"), [("try-now", 0), ("wait-1h", 3600), ("wait-90m", 5400)])
def test_it_goes_on_when_somebody_says(choice: str, wait_s: int, crash: bool) -> None:
    run = at_work(agent(), gates="wait")
    reaches(run)
    if crash:
        resumed(run)
        assert run.open_gates == ["limit:a"]
    run.answer("limit:a", choice=choice)
    if crash and wait_s:
        resumed(run)
    if wait_s:
        assert (run.running, run.status("a")) == ([], "retrying")
        assert run.later(wait_s - 1) == []
        run.later(1)
    assert run.running == ["a"]
    assert run.facts.sessions[A].id == "s1"
    assert reaches(run)[-1] == "decision_required limit:a#2", "asked anew at the next limit"


def test_an_answer_that_is_none_is_refused() -> None:
    run = at_work(agent(), gates="wait")
    reaches(run)
    for choice in ("", "wait", "wait-0m", "wait--1h", "wait-99999h", "later"):
        run.answer("limit:a", choice=choice)
        assert "limit:a" in run.refusal()
    assert run.open_gates == ["limit:a"]


@pytest.mark.parametrize("answer", [{"choice": "fail"}, {"approved": False}])
def test_it_fails_where_somebody_says_so_and_a_resume_goes_on(answer: dict[str, Any]) -> None:
    run = at_work(agent(), gates="wait")
    reaches(run)
    assert run.answer("limit:a", **answer)[-1] == "workflow_failed"
    assert run.status("a") == "failed"
    error = run.task("a").error
    assert error is not None
    assert error.text == "too much"
    resumed(run)
    assert run.running == ["a"]
    assert run.facts.sessions[A].id == "s1"


def test_a_run_without_anybody_to_ask_stops_there() -> None:
    run = at_work(agent())
    assert reaches(run)[-1] == "workflow_paused waiting"
    assert run.open_gates == ["limit:a"]


# --- otherwise ------------------------------------------------------------------------------------------------------


def test_one_that_is_to_fail_there_fails() -> None:
    run = at_work(agent(on_limit="fail"))
    assert reaches(run, in_s=3600)[:1] == ["failed a: Boom"]


def agent_of(run: Run) -> tuple[str, str]:
    spec = attempt_spec(run.machine.plan, run.facts, run.machine.plan.tasks[A], run.attempt("a"), {}, Path())
    assert spec.agent is not None
    return spec.agent.agent, spec.agent.model


def test_it_goes_on_as_another_one_at_once_and_stays_that() -> None:
    run = at_work(agent(on_limit={"switch": {"agent": "codex", "model": "gpt-5"}}))
    assert agent_of(run) == ("claude", "")
    assert reaches(run, in_s=3600) == ["task_retry a#1", "task_start a#2"]
    assert agent_of(run) == ("codex", "gpt-5")
    assert run.facts.sessions[A].agent == "claude", "whose work it takes over"
    reaches(run, in_s=60)
    assert run.running == [], "at the limit of both it waits"
    resumed(run)
    run.later(60)
    assert agent_of(run) == ("codex", "gpt-5")
    resumed(run)
    assert agent_of(run) == ("codex", "gpt-5"), "nor does a driver's death change that"


def test_one_that_was_edited_since_is_what_the_workflow_says_now() -> None:
    run = at_work(agent(on_limit={"switch": {"agent": "codex"}}))
    reaches(run, in_s=3600)
    resumed(run, flow=agent(on_limit={"switch": {"model": "haiku"}}))
    assert agent_of(run) == ("claude", "")
    reaches(run, in_s=3600)
    assert agent_of(run) == ("claude", "haiku")


def test_an_abort_waits_for_no_limit() -> None:
    run = at_work(agent())
    run.say({"type": "abort", "reason": "enough"})
    reaches(run, in_s=3600)
    assert run.facts.status == "aborted"
