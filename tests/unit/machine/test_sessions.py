"""An agent's session is known while its attempt is under way, and goes on only where its files are still its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.plan import compile_plan
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.inputs import CaptureEnded, SessionKnown
from agentos.machine.resume import MAX_CUTS
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


@pytest.mark.parametrize("how", ["ok", "fail", "retry"])
def test_a_session_ends_with_its_attempt(how: str) -> None:
    run = at_work(agents(retries=1 if how == "retry" else 0))
    if how == "ok":
        run.ok("a")
    else:
        run.fail("a")
    assert not run.facts.sessions
    assert not run.facts.turns


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
