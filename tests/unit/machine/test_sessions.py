"""An agent's session is known while its attempt is under way, and goes on only where its files are still its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.plan import compile_plan
from agentos.dag.plan.selection import Selection
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.facts.fold import fold
from agentos.machine.inputs import CaptureEnded, SessionKnown, StopAsked, UsageKnown
from agentos.machine.resume import MAX_CUTS
from agentos.machine.rules.files import snapshots_in_use
from agentos.workflow.drive.attempt_specs import attempt_spec
from agentos.workflow.files.decisions import Decided, FilesChoice, decide
from tests.unit.machine.harness import Run, nothing

A = TaskId("a")


def agents(*names: str, **settings: Any) -> Workflow:
    flow = Workflow("w")
    for name in names or ("a",):
        flow.add(name, "agent", **{"agent": "claude", "prompt": "do it", **settings})
    flow.add("z", nothing, needs=list(names or ("a",)))
    return flow


def at_work(flow: Workflow, *, turn: bool = True, base: str = "") -> Run:
    """`a` is at work: captured before, in a session, and captured again."""
    run = Run(flow, captures=True).begin()
    run.give(CaptureEnded(why="attempt", snapshot="before", tree="t0", task_id="a"))
    run.give(SessionKnown(task_id=A, attempt=1, session=ev.AgentSession(agent="claude", id="s1")))
    if turn:
        run.give(CaptureEnded(why="turn", snapshot="later", tree="t1", task_id="a", base=base))
    return run


def resumed(run: Run, choice: FilesChoice = "ask", flow: Workflow | None = None) -> Decided:
    before = run.machine.plan
    plan = before if flow is None else compile_plan(flow)
    files = decide(run.facts, plan, (), choice, run.workflow_id, before=before)
    run.resume_with(files, flow)
    return files


def test_one_that_was_alone_goes_on_from_its_last_turn() -> None:
    run = at_work(agents())
    files = resumed(run)
    assert (files.files, files.target) == ("restored", "later")
    assert run.facts.sessions[A].id == "s1"
    assert "goes on in its session" in run.last(ev.ResumePlanned).verdicts[0].reason


def test_without_a_turn_it_starts_anew_from_the_files_it_began_with() -> None:
    run = at_work(agents(), turn=False)
    assert resumed(run).target == "before"
    assert A not in run.facts.sessions


def test_a_turn_moves_no_point_that_others_go_back_to() -> None:
    run = at_work(agents(on_resume="restart"))
    assert run.facts.files is not None
    assert run.facts.files.snapshot == "before"
    assert resumed(run).target == "before"
    assert A not in run.facts.sessions


def test_a_fork_goes_on_with_the_session_and_without_the_edits() -> None:
    run = at_work(agents(on_resume="fork"))
    assert resumed(run).target == "before"
    assert run.facts.sessions[A].id == "s1"


def test_in_company_it_starts_anew_and_says_why() -> None:
    run = at_work(agents("a", "b"))
    assert resumed(run).target == "before"
    assert not run.facts.sessions
    assert "others changed files" in run.last(ev.ResumePlanned).verdicts[0].reason


def test_one_that_changes_no_files_goes_on() -> None:
    run = at_work(agents(effects="none", permissions="read"), turn=False)
    assert resumed(run).target == ""
    assert run.facts.sessions[A].id == "s1"


def test_an_isolated_one_goes_on_whoever_else_was_at_work() -> None:
    flow = agents("a", isolation="worktree")
    flow.add("b", "shell", run="true")
    run = Run(flow, captures=True).begin()
    run.give(SessionKnown(task_id=A, attempt=1, session=ev.AgentSession(agent="claude", id="s1")))
    run.give(CaptureEnded(why="turn", snapshot="later", tree="t1", task_id="a", base="base"))
    files = resumed(run)
    assert files.target != "later", "its files are put into a worktree of its own, not into everybody's"
    assert run.facts.turns[A].base == "base"
    assert run.facts.sessions[A].id == "s1"


def test_files_that_are_kept_are_its_own_still() -> None:
    run = at_work(agents(), turn=False)
    assert resumed(run, "keep").target == ""
    assert run.facts.sessions[A].id == "s1"


def test_files_that_were_kept_are_not_put_back_behind_that_later() -> None:
    """Cut off, resumed on the files as they are (a human's edits among them), and cut off before another turn."""
    run = at_work(agents())
    resumed(run, "keep")
    run.give(CaptureEnded(why="attempt", snapshot="kept", tree="t2", task_id="a"))
    files = resumed(run)
    assert (files.files, files.target) == ("restored", "kept")
    assert run.facts.sessions[A].id == "s1"


def test_an_agent_that_was_asked_something_else_starts_anew() -> None:
    run = at_work(agents())
    assert resumed(run, flow=agents(prompt="do something else")).target == "before"
    assert A not in run.facts.sessions


def test_one_that_is_asked_about_first_starts_anew_from_the_files_it_began_with() -> None:
    run = at_work(agents(effects=["files", "external"]))
    assert resumed(run).target == "before"
    assert run.open_gates == ["ask:a"]
    assert A not in run.facts.sessions


def test_one_that_was_cut_off_too_often_starts_anew_from_the_files_it_began_with() -> None:
    run = at_work(agents(), turn=False)
    for _ in range(MAX_CUTS - 1):
        resumed(run)
        run.give(CaptureEnded(why="attempt", snapshot="before", tree="t0", task_id="a"))
    attempt = run.attempt("a")
    run.give(SessionKnown(task_id=A, attempt=attempt, session=ev.AgentSession(agent="claude", id="s1")))
    run.give(CaptureEnded(why="turn", snapshot="later", tree="t1", task_id="a"))
    assert resumed(run).target == "before"
    assert run.open_gates == ["ask:a"]


def test_one_whose_run_goes_back_starts_anew_from_the_files_it_began_with() -> None:
    run = at_work(agents())
    assert decide(run.facts, run.machine.plan, (), "ask", run.workflow_id, before=None).target == "before"


def test_a_session_ends_with_the_success_of_its_task() -> None:
    run = at_work(agents())
    run.ok("a", captured=LEFT)
    assert not run.facts.sessions
    assert not run.facts.turns


# --- one whose attempt has ended --------------------------------------------------------------------------------------

LEFT = CaptureEnded(why="task", snapshot="left", tree="t2", task_id="a")
STOPPED: dict[str, Any] = {"type": "TaskCancelledError", "cancelled": True, "retryable": False, "captured": LEFT}


def stopped(flow: Workflow, *, turn: bool = True) -> Run:
    run = at_work(flow, turn=turn)
    run.give(StopAsked(reason="Ctrl-C"))
    run.fail("a", **STOPPED)
    assert run.last(ev.WorkflowPaused).reason == "stopped"
    return run


def reason(run: Run) -> str:
    return next(row.reason for row in run.last(ev.ResumePlanned).verdicts if row.task_id == "a")


def test_one_that_a_stop_cut_off_goes_on_from_its_last_turn() -> None:
    run = stopped(agents())
    assert run.last(ev.TaskError).agent == "cut_off"
    files = resumed(run)
    assert (files.files, files.target, files.as_left) == ("restored", "later", "left")
    assert reason(run) == "was cancelled; its agent goes on in its session, from the files of its last turn"
    assert run.last(ev.ResumePlanned).continued == (A,)
    assert run.facts.sessions[A].id == "s1"
    assert run.running == ["a"]


def test_snapshots_of_one_that_may_go_on_are_kept() -> None:
    assert {"before", "later", "left"} <= snapshots_in_use(stopped(agents()).facts)


def test_one_that_a_stop_cut_off_goes_on_with_files_that_are_kept() -> None:
    run = stopped(agents())
    assert resumed(run, "keep").files == "kept"
    assert reason(run) == "was cancelled; its agent goes on in its session; files stay as they are"
    assert run.facts.sessions[A].id == "s1"


@pytest.mark.parametrize("how", [{"on_resume": "restart"}, {"prompt": "do something else"}, {"rerun": True}])
def test_one_that_was_stopped_and_is_to_begin_anew_begins_with_the_files_it_began_with(how: dict[str, Any]) -> None:
    run, plan = stopped(agents()), compile_plan(agents(**{k: v for k, v in how.items() if k != "rerun"}))
    rerun = ("a",) if "rerun" in how else ()
    files = decide(run.facts, plan, (), "ask", run.workflow_id, before=run.machine.plan, rerun=rerun)
    assert files.target == "before"
    assert not files.continues


def test_one_that_was_stopped_without_a_turn_starts_anew() -> None:
    run = stopped(agents(), turn=False)
    assert run.last(ev.TaskError).agent == ""
    assert resumed(run).target == "before"
    assert not run.facts.sessions


def test_one_that_was_stopped_beside_another_starts_anew() -> None:
    run = at_work(agents("a", "b"))
    run.give(StopAsked(reason="Ctrl-C"))
    together = (TaskId("a"), TaskId("b"))
    run.fail("b", type="TaskCancelledError", cancelled=True, retryable=False)
    run.fail("a", **{**STOPPED, "captured": structs.replace(LEFT, together=together)})
    assert resumed(run).target == "before"
    assert not run.facts.sessions


def test_with_more_turns_the_session_goes_on() -> None:
    run = at_work(agents(max_turns=2))
    run.fail("a", retryable=False, captured=LEFT)
    assert run.last(ev.TaskError).agent == "ended"
    files = resumed(run, flow=agents(max_turns=9))
    assert files.target == "", "nothing is put back after one that ended by itself"
    assert "its agent goes on in its session; files stay as they are" in reason(run)
    assert run.facts.sessions[A].id == "s1"


def test_one_that_was_killed_itself_goes_on_from_its_last_turn_in_a_resume() -> None:
    run = at_work(agents())
    run.fail("a", cut_off=True, captured=LEFT)
    files = resumed(run)
    assert (files.target, files.as_left) == ("later", "left")
    assert run.facts.sessions[A].id == "s1"


def test_a_retry_goes_on_and_is_told_what_was_said_about_its_work() -> None:
    run = at_work(agents(retries=2))
    run.fail("a", "2 tests failed", agent="rejected", captured=LEFT)
    retry = run.last(ev.TaskRetry)
    assert (retry.agent, retry.put_off) == ("rejected", False)
    session = run.facts.sessions[A]
    assert (session.id, session.ended, session.feedback) == ("s1", "rejected", "2 tests failed")
    run.later(60)
    run.give(CaptureEnded(why="attempt", snapshot="later", tree="t1", task_id="a"))
    run.fail("a", cut_off=True, captured=LEFT)
    session = run.facts.sessions[A]
    assert (session.ended, session.feedback) == ("cut_off", "2 tests failed")


def test_a_retry_that_another_driver_makes_goes_on_from_the_last_turn() -> None:
    run = at_work(agents(retries=1))
    run.fail("a", cut_off=True, captured=LEFT)
    files = resumed(run)
    assert (files.target, files.as_left) == ("later", "left")
    assert run.facts.sessions[A].id == "s1"


def test_a_retry_of_one_that_another_driver_finds_edited_starts_anew() -> None:
    run = at_work(agents(retries=1))
    run.fail("a", cut_off=True, captured=LEFT)
    assert resumed(run, flow=agents(retries=1, prompt="do something else")).target == "before"
    assert run.last(ev.ResumePlanned).sessions_forgotten == (A,)
    assert not run.facts.sessions


def test_where_its_budget_is_used_up_it_is_put_off_and_goes_on_after_a_yes() -> None:
    run = at_work(agents(budget={"tokens": 10}))
    run.give(UsageKnown(task_id=A, attempt=1, usage=ev.Usage(input_tokens=12, calls=1)))
    said = run.fail("a", cut_off=True, paused=True, captured=LEFT)
    assert "task_retry a#1" in said
    assert run.open_gates == ["budget:a"]
    assert run.facts.task(A).tries == 0
    files = decide(run.facts, run.machine.plan, (), "ask", run.workflow_id, before=run.machine.plan)
    assert (files.target, files.as_left) == ("later", "left")
    yes = {"type": "approval_response", "gate_id": "budget:a", "approved": True}
    run.resume(first=(yes,), files=files.files, restored_to=files.restored_to, continues=files.continues)
    assert run.running == ["a"]
    assert run.facts.sessions[A].ended == "cut_off"


def test_one_that_cannot_go_on_fails_where_its_budget_is_used_up() -> None:
    """A yes would buy the same beginning again: that is for a retry, or a resume."""
    run = at_work(agents(budget={"tokens": 10}, on_resume="restart"))
    run.give(UsageKnown(task_id=A, attempt=1, usage=ev.Usage(input_tokens=12, calls=1)))
    assert "failed a: Boom" in run.fail("a", cut_off=True, paused=True, captured=LEFT)


def test_journals_of_earlier_versions_have_no_session_that_goes_on() -> None:
    run = stopped(agents())
    run.journal = [
        structs.replace(event, agent="") if isinstance(event, ev.TaskError) else event for event in run.journal
    ]
    facts = fold(run.workflow_id, run.journal)
    assert not facts.sessions
    assert decide(facts, run.machine.plan, (), "ask", "run", before=run.machine.plan).target == "before"


def test_going_back_forgets_sessions() -> None:
    flow = Workflow("w")
    flow.add("first", nothing)
    flow.add("a", "agent", agent="claude", prompt="x", needs=["first"])
    run = Run(flow, captures=True).begin()
    run.ok("first")
    run.give(SessionKnown(task_id=A, attempt=1, session=ev.AgentSession(agent="claude", id="s1")))
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0)})
    run.ok("a")
    run.go_back()
    assert not run.facts.sessions


def test_an_agent_that_waits_to_go_on_starts_anew_where_its_task_was_edited() -> None:
    def given(flow: Workflow) -> ev.AgentSession | None:
        plan = compile_plan(flow)
        return attempt_spec(plan, run.facts, plan.tasks[A], 2, {}, Path()).session

    flow = agents()
    run = at_work(flow)
    about = compile_plan(flow).tasks[A].fingerprint
    run.give(SessionKnown(task_id=A, attempt=1, session=ev.AgentSession(agent="claude", id="s1", task=about)))
    resumed(run)
    assert given(flow) == run.facts.sessions[A]
    assert given(agents(prompt="do something else")) is None


def test_one_that_a_selection_leaves_out_goes_on_in_its_session_once_it_is_selected() -> None:
    flow = agents()
    flow.add("other", nothing)
    run = at_work(flow)
    run.ok("other")
    run.base = structs.replace(run.base, selection=Selection(until=(TaskId("other"),)))
    before = run.machine.plan
    run.resume_with(decide(run.facts, run.base, (), "ask", run.workflow_id, before=before))
    assert run.status("a") == "skipped"
    run.base = structs.replace(run.base, selection=Selection())
    files = resumed(run)
    assert A in files.continues
    assert run.running == ["a"]
    assert run.facts.sessions[A].id == "s1"
    assert "goes on in its session" in reason_of(run, "a")


def reason_of(run: Run, task: str) -> str:
    assert run.resumed is not None
    return next(row.reason for row in run.resumed.verdicts if row.task_id == task)
