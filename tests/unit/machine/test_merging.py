"""Merging what isolated tasks did: what is decided, and when; the merging itself is somebody else's."""

from __future__ import annotations

from typing import Any

import pytest

from agentos.dag.define.workflow import Workflow
from agentos.dag.language.references import resolve
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.inputs import CaptureEnded, MergeEnded, StopAsked
from agentos.machine.rules.merges import CUT_SHORT, Choice, choices, parse_choice
from tests.unit.machine.harness import Run, nothing

CONFLICT = ev.MergeConflict(path="x", sides=("worktree", "task:a", "task:b"), mark="1")


def isolated() -> Workflow:
    flow = Workflow("flow")
    for name in ("a", "b"):
        flow.add(name, nothing, isolation="worktree", effects="files")
    flow.add("c", nothing, needs=["a", "b"])
    return flow


def left(name: str) -> ev.TaskFiles:
    return ev.TaskFiles(base="base", snapshot=f"files of {name}")


def merged(**more: Any) -> MergeEnded:
    return MergeEnded(**{"layer": 0, "tasks": (TaskId("a"), TaskId("b")), "before": "now", **more})


def both_done(**more: Any) -> Run:
    run = Run(isolated(), captures=True, **more).begin()
    run.ok("b", files=left("b"))
    run.ok("a", files=left("a"))
    assert run.machine.capture_wanted == 0
    return run


WRITTEN = CaptureEnded(why="merge", layer=0, snapshot="s", tree="t")


def test_a_layer_is_not_finished_before_what_its_tasks_did_is_written() -> None:
    run = both_done()
    assert run.running == []
    assert run.give(merged(tree="t", snapshot="s")) == ["files_merged"]
    assert run.machine.capture_wanted == 0  # now it is written
    assert run.give(WRITTEN) == ["files_captured", "checkpoint 0", "layer_start 1", "task_start c#1"]
    assert not run.facts.unmerged
    assert run.last(ev.Checkpointed).snapshot == "s"
    run.ok("c")
    assert run.machine.capture_wanted == 1


def test_tasks_that_changed_nothing_are_not_merged() -> None:
    run = Run(isolated(), captures=True).begin()
    run.ok("a")
    assert run.ok("b") == ["task_complete b", "checkpoint 0", "layer_start 1", "task_start c#1"]


@pytest.mark.parametrize("after", ["complete", "merged"])
def test_a_dead_driver_leaves_the_rest_to_the_next(after: str) -> None:
    run = both_done()
    if after == "merged":
        run.give(merged(tree="t", snapshot="s"))
    run.resume()
    assert run.verdicts()["a"] == "reuse"
    assert run.machine.capture_wanted == 0
    assert (run.facts.merge is not None) == (after == "merged")
    run.give(merged(tree="t", snapshot="s"))
    assert run.give(WRITTEN)[-1] == "task_start c#1"


def test_a_conflict_asks_and_what_is_answered_is_used() -> None:
    run = both_done(gates="wait")
    assert run.give(merged(conflicts=(CONFLICT,), text="both")) == ["files_merged", "decision_required merge:0"]
    assert run.machine.capture_wanted is None
    assert run.last(ev.DecisionRequired).inputs == "both"
    run.answer("merge:0", output={"x": "task:a"})
    assert run.machine.capture_wanted == 0
    assert choices(run.facts, 0) == {"x": Choice("task", "a")}
    run.give(merged(tree="t", snapshot="s", conflicts=(CONFLICT,)))
    assert run.give(WRITTEN)[-1] == "task_start c#1"


def test_only_what_is_not_settled_is_asked_and_the_command_names_all_of_it() -> None:
    run = both_done(gates="wait")
    settled = ev.MergeConflict(path="y", sides=("worktree", "task:a"), mark="2", chosen=("task:a",), settled=True)
    odd = ev.MergeConflict(path="two words", sides=("worktree", "task:a"), mark="3")
    run.give(merged(conflicts=(CONFLICT, settled, odd)))
    command = "agentos approve run merge:0 --use x=task:b --use 'two words=task:a'"
    assert run.last(ev.DecisionRequired).command == command
    assert run.answer("merge:0", output={"x": "task:a"}) == ["command_refused approval_response"]
    assert run.answer("merge:0", output={"x": "task:a", "y": "task:a", "two words": "worktree"})[0].startswith(
        "command_r"
    )
    run.answer("merge:0", output={"x": "task:a", "two words": "worktree"})
    assert run.machine.capture_wanted == 0


def test_with_nobody_to_ask_it_waits_and_the_answer_is_kept() -> None:
    run = both_done()
    assert run.give(merged(conflicts=(CONFLICT,)))[-1] == "workflow_paused waiting"
    run.resume(starts=False, first=({"type": "approval_response", "gate_id": "merge:0", "approved": True,
                                     "output": {"x": "worktree"}},))  # fmt: skip
    assert run.out[-1].type == "workflow_paused"  # whoever only answers does not merge
    run.resume()
    assert run.machine.capture_wanted == 0
    assert choices(run.facts, 0) == {"x": Choice("worktree")}


def test_an_answer_in_the_last_layer_does_not_end_the_run_unmerged() -> None:
    flow = Workflow("flow")
    flow.add("a", nothing, isolation="worktree", effects="files")
    run = Run(flow, captures=True).begin()
    run.ok("a", files=left("a"))
    run.give(merged(tasks=(TaskId("a"),), conflicts=(CONFLICT,)))
    run.resume(starts=False, first=({"type": "approval_response", "gate_id": "merge:0", "approved": True,
                                     "output": {"x": "worktree"}},))  # fmt: skip
    assert run.facts.status == "interrupted"
    run.resume()
    run.give(merged(tasks=(TaskId("a"),), tree="t", snapshot="s"))
    assert run.give(WRITTEN)[-1] == "workflow_complete"


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (None, "For example: agentos approve run merge:0 --use x=task:b"),
        ("agent:claud", "the agent is one of claude, codex, gemini, opencode, copilot, not 'claud' (did you mean"),
        ({"x": "task:c"}, "no version"),
        ({"x": 1}, "no version"),
        ({"y": "worktree"}, "not in conflict"),
        ({}, "no version was chosen"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(output: Any, why: str) -> None:
    run = both_done(gates="wait")
    run.give(merged(conflicts=(CONFLICT,)))
    assert run.answer("merge:0", output=output) == ["command_refused approval_response"]
    assert why in run.last(ev.CommandRefused).why
    assert run.open_gates == ["merge:0"]


def test_no_ends_the_run_and_merges_nothing() -> None:
    run = both_done(gates="wait")
    run.give(merged(conflicts=(CONFLICT,)))
    assert run.answer("merge:0", approved=False)[-1] == "workflow_failed"
    assert run.status("c") == "skipped"
    assert run.machine.capture_wanted is None
    run.resume()
    assert run.facts.status == "failed"
    assert run.machine.capture_wanted is None


def test_rejecting_gates_merges_nothing() -> None:
    run = both_done(gates="reject")
    assert run.give(merged(conflicts=(CONFLICT,)))[-1] == "workflow_failed"


def test_what_cannot_be_merged_is_asked_about() -> None:
    run = both_done(gates="wait")
    assert run.give(merged(problem="the disk is full")) == ["decision_required merge:0"]
    assert "the disk is full" in run.last(ev.DecisionRequired).question
    run.answer("merge:0")
    assert run.machine.capture_wanted == 0
    assert run.give(merged(problem="the disk is full")) == ["decision_required merge:0#2"]


def test_a_question_about_results_that_do_not_count_any_more_is_withdrawn() -> None:
    run = both_done()
    run.give(merged(conflicts=(CONFLICT,)))
    run.resume(rerun=frozenset({"a"}))
    assert run.open_gates == []
    assert run.running == ["a"]
    run.ok("a", files=left("a again"))
    assert run.machine.capture_wanted == 0
    assert run.facts.merge is None


def test_a_merge_of_other_results_counts_for_nothing() -> None:
    run = both_done()
    assert run.give(merged(tasks=(TaskId("a"),), tree="t", snapshot="s")) == []
    assert run.give(CaptureEnded(why="merge", layer=0, snapshot="s", tree="t")) == []


def test_a_stop_waits_for_the_merge() -> None:
    run = both_done()
    assert run.give(StopAsked()) == []
    run.give(merged(tree="t", snapshot="s"))
    assert run.give(WRITTEN)[-1] == "workflow_paused stopped"
    assert not run.facts.unmerged


def test_a_task_cut_off_needs_no_answer() -> None:
    run = Run(isolated(), captures=True).begin()
    run.resume()
    assert run.verdicts() == {"a": "rerun", "b": "rerun", "c": "run"}
    assert run.running == ["a", "b"]


def test_a_layer_that_is_finished_late_is_merged_before_one_whose_merge_is_on_record() -> None:
    """`c` failed and runs again, while what `b` of the next layer did waits for an answer."""
    flow = Workflow("flow")
    flow.add("a", nothing)
    flow.add("c", nothing, isolation="worktree", effects="files")
    flow.add("b", nothing, needs=["a"], isolation="worktree", effects="files")
    flow.add("d", nothing, needs=["c"])
    run = Run(flow, captures=True).begin()
    run.ok("a")
    run.fail("c")
    run.ok("b", files=left("b"))
    run.give(of("b", layer=1, conflicts=(CONFLICT,)))
    assert run.open_gates == ["merge:1"]
    run.resume()
    assert run.running == ["c"]
    assert run.ok("c", files=left("c"))[0] == "task_complete c"
    assert run.running == [], "what c did is not in the worktree"
    assert run.machine.capture_wanted == 0
    run.give(of("c", tree="t", snapshot="s"))
    assert run.give(WRITTEN)[-1] == "task_start d#1"
    run.ok("d")
    run.give(of("b", layer=1, tree="t", snapshot="s"))
    assert run.give(CaptureEnded(why="merge", layer=1, snapshot="s", tree="t"))[-1] == "workflow_complete"


# --- schedule: ready ------------------------------------------------------------------------------------------------


def chains(**more: Any) -> Run:
    """`a` has ended and its dependant could go, while `b`, of the same layer, is at work."""
    flow = Workflow("flow", schedule="ready")
    flow.add("a", nothing, isolation="worktree", effects="files")
    flow.add("b", nothing, isolation="worktree", effects="files")
    flow.add("c", nothing, needs=["a"], isolation="worktree", effects="files")
    flow.add("d", nothing, needs=["b", "c"])
    run = Run(flow, captures=True, **more).begin()
    assert run.ok("a", files=left("a")) == ["task_complete a"]
    assert run.running == ["b"]
    return run


def of(*names: str, **more: Any) -> MergeEnded:
    return merged(tasks=tuple(map(TaskId, names)), **more)


def test_what_finished_is_merged_before_a_task_of_a_later_layer_starts() -> None:
    run = chains()
    assert run.machine.capture_wanted == 0
    assert run.give(of("a", tree="t", snapshot="s")) == ["files_merged"]
    assert run.give(WRITTEN) == ["files_captured", "layer_start 1", "task_start c#1"]
    assert run.machine.capture_wanted is None
    run.ok("c", files=left("c"))
    assert run.machine.capture_wanted is None  # nobody needs it yet
    assert run.ok("b", files=left("b")) == ["task_complete b"]
    assert run.give(of("b", "c", tree="t", snapshot="s")) == ["files_merged"]
    assert run.give(WRITTEN) == ["files_captured", "checkpoint 0", "layer_start 2", "task_start d#1"]
    assert run.machine.capture_wanted == 1  # a layer's end is captured as ever


def test_one_that_ends_while_others_are_merged_comes_next() -> None:
    run = chains()
    run.give(of("a", tree="t", snapshot="s"))
    run.ok("b", files=left("b"))
    assert run.facts.merge is not None
    assert run.give(WRITTEN) == ["files_captured"]
    assert run.machine.capture_wanted == 0
    run.give(of("b", tree="t", snapshot="s2"))
    assert run.give(WRITTEN) == ["files_captured", "checkpoint 0", "layer_start 1", "task_start c#1"]


def test_one_that_ends_while_they_are_looked_at_makes_it_begin_anew() -> None:
    run = chains()
    run.ok("b", files=left("b"))
    assert run.give(of("a", tree="t", snapshot="s")) == []
    assert run.machine.capture_wanted == 0
    assert run.give(of("a", "b", tree="t", snapshot="s")) == ["files_merged"]


def test_an_open_conflict_holds_back_what_comes_after_and_what_runs_goes_on() -> None:
    run = chains(gates="stop")
    assert run.give(of("a", conflicts=(CONFLICT,))) == ["files_merged", "decision_required merge:0"]
    assert run.ok("b", files=left("b"))[-1] == "workflow_paused waiting"
    run.resume(gates="wait")
    assert run.open_gates == ["merge:0"]
    run.answer("merge:0", output={"x": "task:a"})
    assert run.machine.capture_wanted == 0
    assert run.give(of("a", tree="t", snapshot="s", conflicts=(CONFLICT,))) == ["files_merged"]
    run.give(WRITTEN)
    run.give(of("b", tree="t", snapshot="s2"))
    assert run.give(WRITTEN)[-1] == "task_start c#1"


def test_after_a_no_what_runs_ends_and_nothing_else_begins() -> None:
    run = chains(gates="wait")
    run.give(of("a", conflicts=(CONFLICT,)))
    run.answer("merge:0", approved=False)
    assert (run.status("c"), run.status("d")) == ("skipped", "skipped")
    assert run.running == ["b"]
    assert run.ok("b", files=left("b"))[-1] == "workflow_failed"


def test_a_dead_driver_leaves_the_merge_of_a_chain_to_the_next() -> None:
    run = chains()
    run.give(of("a", tree="t", snapshot="s"))
    run.resume()
    assert run.machine.capture_wanted == 0
    assert run.facts.merge is not None
    assert run.running == ["b"]
    assert run.give(WRITTEN)[-1] == "task_start c#1"


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("worktree", Choice("worktree")),
        ("task:worktree", Choice("task", "worktree")),
        ("task:a:b", Choice("task", "a:b")),
        ("file:/tmp/x", Choice("file", "/tmp/x")),
        ("task:", None),
        ("a", None),
        (None, None),
    ],
)
def test_choices_as_they_are_written(text: object, choice: Choice | None) -> None:
    assert parse_choice(text) == choice


# --- an agent resolves conflicts ----------------------------------------------------------------------------------


def asked_about(**more: Any) -> Run:
    run = both_done(gates="wait")
    run.give(merged(conflicts=(CONFLICT,), **{"text": "x: <<<<<<< ${{ secrets.KEY }}", **more}))
    return run


def test_an_agent_may_resolve_a_conflict_and_what_it_did_is_asked_about() -> None:
    run = asked_about()
    done = run.answer("merge:0", output="agent:claude")
    assert done[-2:] == ["plan_changed inject", "task_start merge-0#1"]
    assert run.machine.capture_wanted is None  # while it works nothing is merged
    resolver = run.machine.plan.tasks[TaskId("merge-0")].definition
    assert (resolver.isolation, resolver.agent.agent if resolver.agent else "") == ("worktree", "claude")
    assert resolver.agent is not None
    assert resolve(resolver.agent.prompt, {}).count("${{ secrets.KEY }}") == 1  # as data, not as a reference
    run.ok("merge-0", files=left("merge-0"))
    assert run.machine.capture_wanted == 0
    names = (TaskId("a"), TaskId("b"), TaskId("merge-0"))
    sides = ev.MergeConflict(path="x", sides=("worktree", "task:a", "task:b", "task:merge-0"), mark="2")
    assert run.give(merged(tasks=names, conflicts=(sides,))) == ["files_merged", "decision_required merge:0#2"]
    assert run.last(ev.DecisionRequired).command.endswith("--use x=task:merge-0")
    run.answer("merge:0#2", output={"x": "task:merge-0"})
    run.give(merged(tasks=names, tree="t", snapshot="s"))
    assert run.give(WRITTEN)[-1] == "task_start c#1"


def test_an_agent_that_fails_leaves_the_question_and_no_failed_run() -> None:
    run = asked_about()
    run.answer("merge:0", output="agent:claude")
    run.fail("merge-0")
    assert run.machine.capture_wanted == 0
    assert run.give(merged(conflicts=(CONFLICT,))) == ["files_merged", "decision_required merge:0#2"]
    run.answer("merge:0#2", output={"x": "task:a"})
    run.give(merged(tree="t", snapshot="s"))
    run.give(WRITTEN)
    run.ok("c")
    assert run.give(CaptureEnded(why="layer", layer=1, snapshot="s", tree="t"))[-1] == "workflow_complete"


def test_a_dead_driver_leaves_the_agent_to_the_next() -> None:
    run = asked_about()
    run.answer("merge:0", output="agent:claude")
    run.resume()
    assert run.machine.capture_wanted is None
    assert run.running == ["merge-0"]
    run.ok("merge-0", files=left("merge-0"))
    run.resume()
    assert run.verdicts()["merge-0"] == "reuse"
    assert run.machine.capture_wanted == 0


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("agent:nobody", "not 'nobody'"),
        ("agent:", "agent is one of"),
        ("agent:command", "not 'command'"),
        ("claude", "for each path"),
    ],
)
def test_an_agent_that_there_is_not_is_refused(output: str, why: str) -> None:
    run = asked_about()
    assert run.answer("merge:0", output=output) == ["command_refused approval_response"]
    assert why in run.last(ev.CommandRefused).why
    assert TaskId("merge-0") not in run.machine.plan.tasks


def test_with_schedule_ready_nothing_is_merged_while_the_agent_works_and_its_version_comes_with_the_rest() -> None:
    run = chains(gates="wait")
    run.give(of("a", conflicts=(CONFLICT,)))
    assert run.answer("merge:0", output="agent:claude")[-1] == "task_start merge-0#1"
    run.ok("b", files=left("b"))
    assert (run.machine.capture_wanted, run.running) == (None, ["merge-0"])
    run.ok("merge-0", files=left("merge-0"))
    assert run.machine.capture_wanted == 0
    assert run.give(of("a", "b", "merge-0", conflicts=(CONFLICT,)))[-1] == "decision_required merge:0#2"
    run.answer("merge:0#2", output={"x": "task:a"})
    run.give(of("a", "b", "merge-0", tree="t", snapshot="s", conflicts=(CONFLICT,)))
    assert run.give(WRITTEN)[-1] == "task_start c#1"


def test_an_agent_is_walled_in_where_one_of_the_tasks_is() -> None:
    flow = Workflow("flow")
    flow.add("a", nothing, isolation="worktree", effects="files")
    flow.add("b", "shell", run="make b", isolation="worktree", sandbox="worktree")
    run = Run(flow, captures=True, gates="wait").begin()
    run.ok("a", files=left("a"))
    run.ok("b", files=left("b"))
    run.give(merged(conflicts=(CONFLICT,)))
    run.answer("merge:0", output="agent:claude")
    resolver = run.machine.plan.tasks[TaskId("merge-0")].definition
    assert resolver.sandbox == "worktree"
    assert resolver.agent is not None
    assert "task:b: make b" in resolver.agent.prompt


def test_an_agent_is_not_asked_about_what_is_cut_short_or_is_no_conflict() -> None:
    run = asked_about(text=f"long{CUT_SHORT}")
    assert run.answer("merge:0", output="agent:claude") == ["command_refused approval_response"]
    run = both_done(gates="wait")
    run.give(merged(problem="no space left"))
    assert run.answer("merge:0", output="agent:claude") == ["command_refused approval_response"]
