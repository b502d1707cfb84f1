"""Attempts that end without a result, and the files they leave: what the next attempt begins with."""

from __future__ import annotations

import pytest

from agentos.dag.define.workflow import Workflow
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.inputs import Begin, CaptureEnded, StopAsked
from agentos.machine.machine import Machine
from agentos.machine.rules.files import snapshots_in_use
from agentos.workflow.files.decisions import Decided, FilesChoice, decide
from tests.unit.machine.harness import Run, nothing

BEFORE = CaptureEnded(why="attempt", task_id="a", snapshot="before", tree="t0")
AFTER = CaptureEnded(why="task", task_id="a", snapshot="after", tree="t1")


def at_work(*, retries: int = 0) -> Run:
    """`a` is at work on files; `z` comes after it."""
    flow = Workflow("flow")
    flow.add("a", nothing, effects="files", retries=retries)
    flow.add("z", nothing, effects="files", needs=["a"])
    run = Run(flow, captures=True).begin()
    run.give(BEFORE)
    return run


def decided(run: Run, choice: FilesChoice = "ask") -> Decided:
    return decide(run.facts, run.machine.plan, (), choice, run.workflow_id, before=run.machine.plan)


def reason(run: Run, files: Decided) -> str:
    planned = run.planned(files=files.files, restored_to=files.restored_to)
    return next(f"{row.verdict}: {row.reason}" for row in planned.verdicts if row.task_id == "a")


def test_what_an_attempt_left_is_on_record_with_its_end() -> None:
    run = at_work()
    assert run.ok("a", captured=AFTER)[:2] == ["files_captured", "task_complete a"]
    assert run.facts.files is not None
    assert (run.facts.files.snapshot, run.facts.files.open) == ("after", False)


def test_captured_and_without_an_end_it_goes_back_to_the_files_before_it() -> None:
    """As journals of builds have it that wrote the two apart."""
    run = at_work()
    run.give(AFTER)
    files = decided(run)
    assert (files.files, files.target, files.as_left) == ("restored", "before", "")
    assert reason(run, files) == "rerun: was interrupted; the files it began with are put back first"


def test_the_edits_of_a_try_that_failed_are_undone_by_whoever_makes_the_next() -> None:
    run = at_work(retries=1)
    run.fail("a", captured=AFTER)
    files = decided(run)
    assert (files.files, files.target, files.as_left) == ("restored", "before", "after")
    assert reason(run, files) == "run: waits for its next attempt; the files it began with are put back first"
    assert {"before", "after"} <= snapshots_in_use(run.facts)


def test_they_are_undone_too_where_the_next_try_was_on_record_and_had_not_begun() -> None:
    run = at_work(retries=1)
    run.fail("a", captured=AFTER)
    run.later(60)
    assert run.running == ["a"]
    assert decided(run).target == "before"
    run.give(CaptureEnded(why="attempt", task_id="a", snapshot="again", tree="t0"))
    assert decided(run).target == "again"


def test_a_task_that_failed_for_good_leaves_its_files_to_the_user() -> None:
    run = at_work()
    run.fail("a", captured=AFTER)
    assert decided(run).target == ""


def test_a_try_that_failed_beside_another_task_is_not_undone() -> None:
    flow = Workflow("flow")
    flow.add("a", nothing, effects="files", retries=1)
    flow.add("b", nothing, effects="files")
    run = Run(flow, captures=True).begin()
    run.give(BEFORE)
    run.ok("b")
    together = (TaskId("a"), TaskId("b"))
    run.fail("a", captured=CaptureEnded(why="task", task_id="a", snapshot="after", tree="t1", together=together))
    assert decided(run).target == ""


def stopped() -> Run:
    run = at_work()
    run.give(StopAsked(reason="Ctrl-C"))
    run.fail("a", type="TaskCancelledError", cancelled=True, retryable=False, captured=AFTER)
    assert run.journal[-1].type == "workflow_paused"
    return run


def test_what_a_stop_cut_off_is_put_back_and_nobody_is_asked() -> None:
    run = stopped()
    files = decided(run)
    assert (files.target, files.as_left) == ("before", "after")
    assert reason(run, files) == "rerun: was cancelled; the files it began with are put back first"
    assert {"before", "after"} <= snapshots_in_use(run.facts)


def test_the_user_may_keep_them_and_is_not_asked_again() -> None:
    run = stopped()
    files = decided(run, "keep")
    assert reason(run, files) == "rerun: was cancelled; files stay as they are"
    run.resume_with(files)
    run.give(CaptureEnded(why="start", snapshot="after", tree="t1"))
    assert run.facts.half_done is None
    assert decided(run).target == ""


def test_where_the_files_could_not_be_captured_somebody_is_asked() -> None:
    run = Run(at_work().machine.plan, captures=True).begin()
    run.give(CaptureEnded(why="attempt", task_id="a", problem="no repository"))
    run.give(StopAsked(reason="Ctrl-C"))
    run.fail("a", type="TaskCancelledError", cancelled=True, retryable=False)
    assert reason(run, decided(run)) == "ask: was cancelled while its effect was under way"


def test_one_that_was_cancelled_before_its_first_step_just_runs() -> None:
    flow = Workflow("flow")
    flow.add("a", nothing, effects="files")
    run = Run(flow, captures=True).begin()
    run.give(StopAsked(reason="Ctrl-C"))
    run.fail("a", type="TaskCancelledError", cancelled=True, retryable=False)
    assert reason(run, decided(run)) == "rerun: was cancelled"


def test_files_that_were_put_back_are_not_put_back_again() -> None:
    run = stopped()
    files = decided(run)
    planned = run.planned(files=files.files, restored_to=files.restored_to)
    run.machine = Machine(run.machine.plan, run.facts)
    restored = ev.FilesRestored(snapshot="before", tree="t0", undo="undo")
    run.give(Begin(holder="other", token=2, resume=planned, restored=restored))
    assert run.facts.half_done is None
    assert run.running == ["a"]
    assert decided(run).files == "untouched"


def test_an_answer_while_nobody_drives_leaves_what_was_cut_off_to_the_next_drive() -> None:
    flow = Workflow("flow")
    flow.add("a", nothing, effects="files")
    flow.add("g", nothing, approve="go?")
    run = Run(flow, captures=True).begin()
    run.give(BEFORE)
    answer = {"type": "approval_response", "gate_id": "approve:g", "approved": True}
    assert run.resume(starts=False, first=(answer,))[-1] == "workflow_paused answered"
    assert run.running == ["a"]
    assert not run.all(ev.ResumePlanned)
    assert decided(run).target == "before"


def ran_out_of_time() -> Run:
    flow = Workflow("flow")
    flow.add("a", nothing, effects=["files", "external"])
    run = Run(flow, captures=True).begin()
    run.give(BEFORE)
    run.fail("a", type="TaskTimeoutError", cut_off=True, captured=AFTER)
    assert run.open_gates == ["ask:a"]
    return run


def test_the_edits_of_one_that_is_asked_about_are_undone_by_whoever_runs_it_again() -> None:
    run = ran_out_of_time()
    files = decided(run)
    assert (files.files, files.target, files.as_left) == ("restored", "before", "after")
    assert {"before", "after"} <= snapshots_in_use(run.facts)


@pytest.mark.parametrize(
    ("said", "status"),
    [({"approved": True, "answer": "happened", "output": 1}, "complete"), ({"approved": False}, "failed")],
)
def test_those_of_one_that_is_not_run_again_stay(said: dict[str, object], status: str) -> None:
    run = ran_out_of_time()
    run.resume(starts=False, first=({"type": "approval_response", "gate_id": "ask:a", **said},))
    assert run.status("a") == status
    assert run.facts.half_done is None
    assert decided(run).target == ""


def test_a_task_that_changed_nothing_beside_one_that_a_stop_cut_off_is_kept() -> None:
    """As after a kill."""
    flow = Workflow("flow")
    flow.add("a", nothing, effects="files")
    flow.add("b", nothing, effects="files")
    run = Run(flow, captures=True).begin()
    run.give(BEFORE)
    beside = (TaskId("b"),)
    run.ok("a", captured=CaptureEnded(why="task", task_id="a", snapshot="before", tree="t0", beside=beside))
    run.give(StopAsked(reason="Ctrl-C"))
    together = (TaskId("a"), TaskId("b"))
    left = CaptureEnded(why="task", task_id="b", snapshot="after", tree="t1", together=together)
    run.fail("b", type="TaskCancelledError", cancelled=True, retryable=False, captured=left)
    files = decided(run)
    assert (files.target, files.as_left) == ("before", "after")
    assert reason(run, files) == "reuse: finished, definition unchanged"
