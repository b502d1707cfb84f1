"""Sources in the pure machine: what is on record, when that is stale, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agentos.dag.define.workflow import Workflow
from agentos.ids import CheckpointId, TaskId, WorkflowId
from agentos.machine import events as ev
from agentos.machine.inputs import SessionKnown, SourcesChanged, SourcesSeen, StepEnded
from agentos.machine.sources import MOST_NAMED, SourcesNow, changes_since, files_digest, named_files, reason_of
from agentos.store.port import CheckpointRecord
from agentos.workflow.start.new_run import forked_event
from tests.unit.machine.harness import START, Run, nothing, raw

A, B = {"src/a.py": "aaaaaaaa1"}, {"src/a.py": "bbbbbbbb1"}


def now(files: Mapping[str, str], **variables: str) -> SourcesNow:
    return SourcesNow(files=files, digest=files_digest(files), variables=variables)


def seen(run: Run, task: str, files: Mapping[str, str] = A, **variables: str) -> SourcesSeen:
    record = ev.SourcesRecord(digest=files_digest(files), variables=variables)
    return SourcesSeen(task_id=TaskId(task), attempt=run.attempt(task), sources=record, names=named_files(files))


def pipeline() -> Workflow:
    """`gen` makes what `build` depends on; `pack` uses build's result, `docs` stands aside."""
    flow = Workflow("flow")
    flow.add("gen", nothing, effects="files", sources="schema.json")
    flow.add("docs", nothing, sources="docs/**")
    flow.add("build", nothing, needs=["gen"], sources="src/**")
    flow.add("pack", nothing, needs=["build", "docs"])
    return flow


def complete() -> Run:
    run = Run(pipeline()).begin()
    for task in ("gen", "docs", "build"):
        run.give(seen(run, task))
        run.ok(task, 1)
    assert run.ok("pack", 1)[-1] == "workflow_complete"
    return run


# --- the record -----------------------------------------------------------------------------------------------------


def test_what_an_attempt_depends_on_is_on_record_and_named_once() -> None:
    run = Run(pipeline()).begin()
    run.give(seen(run, "gen"))
    run.give(seen(run, "docs"))
    first, second = run.all(ev.TaskSources)
    assert (first.names, second.names) == ({"src/a.py": "aaaaaaaa"}, None)
    assert run.facts.sources[TaskId("docs")].digest == first.sources.digest
    assert run.facts.source_names[second.sources.digest] == {"src/a.py": "aaaaaaaa"}


def test_what_is_seen_of_an_attempt_that_is_over_counts_for_nothing() -> None:
    run = Run(pipeline()).begin()
    late = seen(run, "gen")
    run.ok("gen", 1)
    assert run.give(late) == []


def test_a_task_that_takes_steps_over_from_other_sources_has_no_record() -> None:
    flow = Workflow("flow")
    flow.add("a", nothing, sources="src/**")
    for then, is_known in ((A, True), (B, False)):
        run = Run(flow).begin()
        run.give(seen(run, "a"))
        step = StepEnded(task_id=TaskId("a"), attempt=1, number=0, name="look", inputs="i", output=raw(1))
        run.give(step)
        run.resume()
        run.give(seen(run, "a", then))
        assert (TaskId("a") in run.facts.sources) is is_known
        run.ok("a", 1)
        assert (TaskId("a") in run.facts.sources) is is_known
        run.resume(rerun=["a"])
        run.give(seen(run, "a", B))
        assert run.facts.sources[TaskId("a")].digest == files_digest(B), "it began without steps"


def test_an_agent_that_goes_on_in_its_session_from_other_sources_has_no_record() -> None:
    flow = Workflow("flow")
    flow.add("a", "agent", agent="claude", prompt="look", effects="none", permissions="read", sources="src/**")
    run = Run(flow).begin()
    run.give(seen(run, "a"))
    run.give(SessionKnown(task_id=TaskId("a"), attempt=1, session=ev.AgentSession(agent="claude", id="s1")))
    run.resume(continues={TaskId("a"): "its agent goes on"})
    run.give(seen(run, "a", B))
    assert TaskId("a") not in run.facts.sources


def test_a_rollback_goes_back_to_the_record_of_then() -> None:
    run = complete()
    then = run.facts.sources[TaskId("build")]
    run.resume(rerun={"build"})
    run.give(seen(run, "build", B))
    run.ok("build", 2)
    run.ok("pack", 2)
    assert run.facts.sources[TaskId("build")] != then
    run.resume(first=({"type": "rollback", "checkpoint_id": str(run.checkpoint(1))},))
    run.go_back()
    assert run.facts.sources[TaskId("build")] == then


def test_a_fork_takes_the_record_along() -> None:
    run = complete()
    cut = CheckpointRecord(
        id=CheckpointId(str(run.checkpoint(1))),
        workflow_id=run.workflow_id,
        layer=1,
        sequence=run.facts.sequence,
        timestamp=START,
        snapshot="",
    )
    forked = forked_event(WorkflowId("run"), cut, run.journal, [], run.base)
    fork = Run(run.base, workflow_id="fork").begin(forked=forked)
    assert fork.facts.sources == run.facts.sources
    assert fork.facts.source_names == run.facts.source_names


# --- what changed ---------------------------------------------------------------------------------------------------


def record(files: Mapping[str, str], **variables: str) -> tuple[ev.SourcesRecord, dict[str, str]]:
    return ev.SourcesRecord(digest=files_digest(files), variables=variables), named_files(files)


def test_nothing_changed_where_files_and_variables_are_the_same() -> None:
    assert changes_since(*record(A, MODE="1"), now(A, MODE="1")) == ()
    assert changes_since(*record({}), now({})) == ()


@pytest.mark.parametrize(
    ("then", "files", "names"),
    [
        (A, B, ("src/a.py",)),
        (A, {}, ("src/a.py",)),
        ({}, A, ("src/a.py",)),
        (A, {"src/b.py": "aaaaaaaa1"}, ("src/a.py", "src/b.py")),
        (A, {"src/a.py": "aaaaaaaa2"}, ("files",)),  # short digests only name what changed; the whole one decides
    ],
)
def test_each_file_that_changed_is_named(then: dict[str, str], files: dict[str, str], names: tuple[str, ...]) -> None:
    assert changes_since(*record(then), now(files)) == names


def test_variables_are_named_and_one_that_is_not_set_is_another_than_an_empty_one() -> None:
    assert changes_since(*record(A, MODE="1"), now(A, MODE="2")) == ("$MODE",)
    assert changes_since(*record(A, MODE=""), now(A, MODE="0f")) == ("$MODE",)
    assert changes_since(*record(A), now(A, MODE="")) == ("$MODE",)  # added to the sources since
    assert changes_since(*record(A, MODE="1"), now(B, MODE="2")) == ("src/a.py", "$MODE")


def test_without_a_record_it_is_stale() -> None:
    assert reason_of(changes_since(None, None, now(A))) == "what its sources were is not on record"


def test_many_files_are_kept_by_folders_and_a_few_are_named() -> None:
    many = {f"src/p{number // 10:02}/f{number % 10}.py": "aaaaaaaa" for number in range(400)}
    digest, names = record(many)
    assert len(names) == 40 <= MOST_NAMED
    assert changes_since(digest, names, now({**many, "src/p07/f3.py": "b"})) == ("src/p07/",)
    grown = {**many, **{f"new/{number}.py": "a" for number in range(5)}}
    assert changes_since(digest, names, now(grown)) == ("new/0.py", "new/1.py", "new/2.py", "new/3.py", "new/4.py")
    assert reason_of(changes_since(digest, names, now(grown))) == (
        "sources changed: new/0.py, new/1.py, new/2.py, 2 more"
    )
    flat = {f"{number}.py": "a" for number in range(MOST_NAMED + 1)}
    assert len(named_files(flat)) == 1
    assert changes_since(*record(flat), now({**flat, "7.py": "b"})) == ("./",)


# --- verdicts -------------------------------------------------------------------------------------------------------


def verdicts(run: Run, **options: Any) -> dict[str, str]:
    return {row.task_id: f"{row.verdict}: {row.reason}" for row in run.planned(**options).verdicts}


def test_a_stale_task_runs_again_and_the_others_are_reused_with_what_was_compared() -> None:
    run = complete()
    assert not run.planned().has_work
    assert verdicts(run, stale={TaskId("build"): "sources changed: src/a.py"}) == {
        "gen": "reuse: finished, definition and sources unchanged",
        "docs": "reuse: finished, definition and sources unchanged",
        "build": "rerun: sources changed: src/a.py",
        "pack": "reuse: finished, definition unchanged",
    }


def test_what_depends_on_a_stale_task_runs_only_where_its_result_differs() -> None:
    run = complete()
    stale = {TaskId("build"): "sources changed: src/a.py"}
    assert "task_start build#2" in run.resume(stale=stale)
    assert run.ok("build", 1)[-1] == "workflow_complete"
    run.resume(stale=stale)
    assert "task_start pack#2" in run.ok("build", 2)


def test_a_task_that_was_added_to_a_complete_run_is_work() -> None:
    run, grown = complete(), pipeline()
    grown.add("sign", nothing, needs=["pack"])
    assert run.planned(grown).has_work
    assert "task_start sign#1" in run.resume(grown)
    assert run.ok("sign")[-1] == "workflow_complete"


def test_an_item_whose_sources_changed_runs_again_alone() -> None:
    flow = Workflow("flow")
    flow.add("each", nothing, for_each=["x", "y"], sources="${{ item }}/**")
    run = Run(flow).begin()
    for item in ("each[0]", "each[1]"):
        run.give(seen(run, item))
        run.ok(item, 1)
    run.resume(stale={TaskId("each[1]"): "sources changed: y/a.py"})
    assert run.running == ["each[1]"]
    assert run.verdicts() == {"each": "rerun", "each[0]": "reuse", "each[1]": "rerun"}


# --- files that change under way ------------------------------------------------------------------------------------


def test_finished_tasks_whose_sources_a_rerun_task_changed_run_again_though_its_result_is_the_same() -> None:
    run = complete()
    run.resume(stale={TaskId("gen"): "sources changed: schema.json"})
    assert run.running == ["gen"]
    run.give(SourcesChanged(task_id=TaskId("gen"), stale={TaskId("build"): "sources changed: src/gen.py"}))
    assert run.last(ev.ResumePlanned).verdicts[0].reason == "sources changed: src/gen.py"
    assert "task_start build#2" in run.ok("gen", 1)
    assert run.ok("build", 1)[-1] == "workflow_complete"


def test_only_what_comes_after_it_follows() -> None:
    run = complete()
    run.resume(stale={TaskId("gen"): "sources changed: schema.json"})
    stale = {TaskId("docs"): "sources changed: docs/a.md", TaskId("gen"): "its own"}
    assert run.give(SourcesChanged(task_id=TaskId("gen"), stale=stale)) == []
    assert run.ok("gen", 1)[-1] == "workflow_complete"


def test_a_task_with_an_effect_that_may_not_be_repeated_is_asked_about() -> None:
    flow = Workflow("flow")
    flow.add("ship", nothing, effects="external", sources="dist/**")
    run = Run(flow).begin()
    run.give(seen(run, "ship"))
    run.ok("ship", 1)
    run.resume(stale={TaskId("ship"): "sources changed: dist/x"})
    assert run.verdicts() == {"ship": "ask"}
    assert run.running == []
