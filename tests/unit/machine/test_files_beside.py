"""File tasks that overlap: which of them a restore takes something away from, as far as the journal tells."""

from __future__ import annotations

from agentos.dag.define.workflow import Workflow
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.inputs import CaptureEnded
from tests.unit.machine.harness import Run, nothing

A, B = TaskId("a"), TaskId("b")
BEFORE = CaptureEnded(why="attempt", task_id="a", snapshot="s", tree="t")
KEPT = CaptureEnded(why="task", task_id="a", snapshot="s", tree="t", beside=(B,))


def both_at_work() -> Run:
    flow = Workflow("flow")
    flow.add("a", nothing, effects="files", retries=1)
    flow.add("b", nothing, effects="files")
    run = Run(flow, captures=True).begin()
    run.give(BEFORE)
    return run


def verdicts(run: Run) -> tuple[dict[str, str], tuple[TaskId, ...]]:
    """What a resume would do that puts the files back to those from before both."""
    assert run.facts.files is not None
    planned = run.planned(files="restored", restored_to=run.facts.files.seq)
    return {row.task_id: row.verdict for row in planned.verdicts}, planned.undone


def test_one_after_which_nothing_had_changed_is_kept() -> None:
    run = both_at_work()
    assert run.give(KEPT) == ["files_captured"]
    run.ok("a")
    assert run.facts.files is not None
    assert run.facts.files.open  # the other may still change something
    assert verdicts(run) == ({"a": "reuse", "b": "rerun"}, ())


def test_one_of_which_nothing_is_known_is_undone() -> None:
    run = both_at_work()
    run.ok("a")
    assert verdicts(run) == ({"a": "rerun", "b": "rerun"}, (A,))


def test_an_attempt_that_changed_nothing_says_nothing_about_the_next() -> None:
    run = both_at_work()
    run.give(KEPT)
    run.fail("a")
    run.later(60)
    assert "a" in run.running
    run.ok("a")
    assert verdicts(run) == ({"a": "rerun", "b": "rerun"}, (A,))


def test_what_changed_while_both_were_at_work_is_told_once_with_both() -> None:
    run = both_at_work()
    run.ok("a")
    ended = CaptureEnded(why="task", task_id="b", snapshot="s2", tree="t2", together=(A, B), changed=("x", "y"))
    assert run.give(ended) == ["task_warning a", "files_captured"]
    assert run.last(ev.TaskWarning).message.startswith("a, b were at work at the same time")
    run.ok("b")
    assert run.facts.files is not None
    assert not run.facts.files.open
