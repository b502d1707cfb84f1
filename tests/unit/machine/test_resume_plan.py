"""What a resume keeps, repeats and asks, and how the fold goes on after a rollback or in a fork."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.plan import compile_plan
from agentos.dag.plan.selection import EVERY_TASK, Selection
from agentos.exceptions import RunRefusedError
from agentos.ids import CheckpointId, TaskId, WorkflowId
from agentos.machine import events as ev
from agentos.machine.facts.fold import Facts, counting, fold, result_from, workflow_state
from agentos.machine.inputs import Begin, CaptureEnded
from agentos.machine.resume import ResumeOptions, ResumePlan, plan_resume
from agentos.machine.rules.plan_changes import current_plan
from tests.unit.machine.harness import Run, flow_of, nothing, raw, take

MORE = {"python": "tests.unit.machine.harness:nothing"}


def chain(**settings: Any) -> Workflow:
    """`a`, then `b` with its output, then `c` with that of `b`; `settings` are those of `b`."""
    flow = Workflow("w")
    flow.add("a", nothing)
    flow.add("b", take, inputs={"value": "${{ tasks.a.output }}"}, **settings)
    flow.add("c", take, inputs={"value": "${{ tasks.b.output }}"})
    return flow


def finished(flow: Workflow | None = None) -> Run:
    run = Run(flow or chain()).begin()
    for name, output in (("a", 1), ("b", 2), ("c", 3)):
        run.ok(name, output)
    assert run.facts.status == "complete"
    return run


def reasons(run: Run) -> dict[str, str]:
    assert run.resumed is not None
    return {row.task_id: row.reason for row in run.resumed.verdicts}


# --- verdicts -------------------------------------------------------------------------------------------------------


def test_reuse_of_a_complete_run_does_nothing() -> None:
    run = finished()
    assert run.resume() == ["resume_planned", "workflow_complete"]
    assert run.verdicts() == dict.fromkeys("abc", "reuse")
    planned = run.last(ev.ResumePlanned)
    assert planned.skipped_layers == 3
    assert planned.counts == {"reuse": 3}
    assert planned.verdicts == ()


def test_completed_layers_are_skipped_and_the_broken_one_is_kept() -> None:
    run = Run(flow_of({"a": [], "b": ["a"], "c": ["a"], "d": ["b"]})).begin()
    run.ok("a")
    run.ok("b")
    events = run.resume()
    assert events == ["resume_planned", "layer_start 1", "task_start c#2"]
    assert run.verdicts() == {"a": "reuse", "b": "reuse", "c": "rerun", "d": "run"}
    assert reasons(run)["c"] == "was interrupted"
    assert reasons(run)["d"] == "not yet run"
    planned, start = run.last(ev.ResumePlanned), run.last(ev.WorkflowStart)
    assert planned.skipped_layers == 1
    assert (start.resumed_from, start.drive) == (0, 2)
    assert [row.task_id for row in planned.verdicts] == ["c"]
    assert run.last(ev.LeaseTaken).taken_from == "me"


def test_a_crash_before_the_first_checkpoint_starts_anew() -> None:
    run = Run(flow_of({"a": [], "b": []})).begin()
    run.ok("a")
    run.resume()
    assert run.last(ev.WorkflowStart).resumed_from is None
    assert run.running == ["b"]


def test_a_changed_definition_is_kept_and_told() -> None:
    run = finished()
    run.resume(chain(env={"A": "1"}))
    assert run.verdicts() == {"a": "reuse", "b": "reuse, changed", "c": "reuse"}
    assert "--rerun changed" in reasons(run)["b"]
    assert "code" in reasons(run)["b"]
    assert run.facts.status == "complete"


def test_the_reason_says_what_was_compared() -> None:
    def shell(run: str) -> Workflow:
        flow = Workflow("w")
        flow.add("b", "shell", run=run)
        return flow

    run = Run(shell("one")).begin()
    run.ok("b")
    run.resume(shell("two"))
    assert "its definition changed since" in reasons(run)["b"]


def test_cosmetic_settings_do_not_count() -> None:
    run = finished()
    run.resume(chain(description="other", timeout_s=3, retries=4))
    assert run.verdicts()["b"] == "reuse"


def test_rerun_changed() -> None:
    run = finished()
    run.resume(chain(env={"A": "1"}), rerun={"changed"})
    assert run.verdicts() == {"a": "reuse", "b": "rerun", "c": "reuse"}
    assert run.running == ["b"]
    run.ok("b", "other")
    assert run.running == ["c"]


def test_not_yet_run_but_changed_says_so() -> None:
    run = Run(chain()).begin()
    run.resume(chain(env={"A": "1"}))
    assert reasons(run)["b"] == "not yet run; its definition changed since"


def test_cut_off_or_failed_but_changed_says_so() -> None:
    run = Run(chain()).begin()
    run.ok("a")
    run.resume(chain(env={"A": "1"}))
    assert reasons(run)["b"] == "was interrupted; its definition changed since"
    run.fail("b")
    run.resume(chain(env={"A": "2"}))
    assert reasons(run)["b"] == "failed; its definition changed since"


def test_rerun_with_another_result_runs_dependants_again() -> None:
    run = finished()
    run.resume(rerun={"a"})
    assert run.verdicts() == {"a": "rerun", "b": "reuse", "c": "reuse"}
    assert reasons(run)["a"] == "asked for"
    events = run.ok("a", 10)
    assert events[:2] == ["task_complete a", "resume_planned"]
    assert run.last(ev.ResumePlanned).verdicts[0].reason == "a ran again with another result"
    assert run.running == ["b"]
    run.ok("b", 2)  # equal: c is kept
    assert run.facts.status == "complete"
    assert run.task("c").attempts == 1


def test_rerun_with_an_equal_result_keeps_dependants() -> None:
    run = finished()
    run.resume(rerun={"a"})
    run.ok("a", 1)
    assert run.facts.status == "complete"
    assert run.task("b").attempts == 1


def test_another_result_goes_on_through_a_crash() -> None:
    run = finished()
    run.resume(rerun={"a"})
    run.resume()
    run.ok("a", 10)
    assert run.running == ["b"]
    run.resume()
    assert run.running == ["b"]
    run.ok("b", 20)
    assert run.running == ["c"]


def test_a_skipped_dependant_is_decided_anew_when_its_need_gives_another_result() -> None:
    flow = Workflow("w")
    flow.add("a", nothing)
    flow.add("b", nothing, needs=["a"], if_="tasks.a.output == 2")
    run = Run(flow).begin()
    run.ok("a", 1)
    assert run.status("b") == "skipped"
    run.resume(rerun={"a"})
    if run.running == ["a"]:
        run.ok("a", 2)
    assert run.running == ["b"]


def test_a_dependant_with_an_effect_is_asked_about_before_it_repeats() -> None:
    run = finished(chain(effects="external"))
    run.resume(rerun={"a"}, gates="wait")
    run.ok("a", 10)
    assert run.open_gates == ["ask:b"]
    assert run.running == []
    run.answer("ask:b", answer="happened", output=2)
    assert run.facts.status == "complete"


def test_rerun_of_an_effect_asks() -> None:
    run = finished(chain(effects="external"))
    run.resume(rerun={"b"}, gates="wait")
    assert run.verdicts()["b"] == "ask"
    assert "may not be repeated unasked" in reasons(run)["b"]
    assert run.open_gates == ["ask:b"]


def test_rerun_of_a_stranger_is_refused() -> None:
    with pytest.raises(RunRefusedError, match="not in the workflow: nowhere, other"):
        finished().planned(rerun={"other", "nowhere", "a", "changed"})


def test_what_it_produces_is_gone() -> None:
    run = finished(chain(produces="out.txt"))
    run.resume(missing={TaskId("b"): ["out.txt"]})
    assert run.verdicts()["b"] == "rerun"
    assert reasons(run)["b"] == "something it produces is gone (out.txt)"
    assert run.running == ["b"]


def test_failed_runs_again_and_what_was_skipped_because_of_it() -> None:
    run = Run(flow_of({"a": [], "x": [], "b": ["a"], "c": ["b"], "d": ["x"]})).begin()
    run.ok("x")
    run.fail("a")
    run.ok("d")
    run.resume()
    assert run.verdicts() == {"a": "rerun", "x": "reuse", "b": "run", "d": "reuse", "c": "run"}
    assert reasons(run)["a"] == "failed"
    assert reasons(run)["c"] == "was skipped because of a, which is decided anew"
    run.ok("a")
    run.ok("b")
    assert run.running == ["c"]
    assert run.ok("c")[-1] == "workflow_complete"


def test_failed_safe_is_finished() -> None:
    run = Run(chain(continue_on_error=True)).begin()
    run.ok("a")
    run.fail("b")
    assert run.planned().verdicts[1].verdict == "reuse"


def test_skipped_by_its_condition_stays() -> None:
    flow = Workflow("w")
    flow.add("a", nothing, if_="false")
    flow.add("b", nothing, needs=["a"])
    run = Run(flow).begin()
    run.resume()
    assert reasons(run) == {"a": "skipped by its condition", "b": "skipped because of a"}
    assert run.verdicts() == {"a": "reuse", "b": "reuse"}


def test_tasks_that_refer_to_a_changed_parameter_count_as_changed() -> None:
    flow = Workflow("w", params={"x": 1, "y": 1})
    flow.add("direct", take, inputs={"value": "${{ params.x }}"})
    flow.add("whole", take, inputs={"value": ["${{ params }}"]})
    flow.add("other", take, inputs={"value": "${{ params.y }}"})
    flow.add("guarded", nothing, if_="params.x == 2")
    flow.add("behind", nothing, needs=["guarded"])
    run = Run(flow).begin()
    for name in ("direct", "whole", "other"):
        run.ok(name)
    old, new = compile_plan(flow), compile_plan(flow, {"x": 2})
    assert old.fingerprint == new.fingerprint
    changed = "reuse, changed"

    def verdicts(plan: ResumePlan) -> dict[str, str]:
        return {row.task_id: row.verdict for row in plan.verdicts}

    planned = plan_resume(old, new, run.facts, ResumeOptions())
    assert verdicts(planned) == {
        "direct": changed, "whole": changed, "other": "reuse", "guarded": changed, "behind": "reuse",
    }  # fmt: skip
    assert planned.verdicts[0].reason == "finished, but its parameter 'x' changed since; --rerun changed runs it"
    assert planned.reset == ()
    again = plan_resume(old, new, run.facts, ResumeOptions(rerun=frozenset({"changed"})))
    assert verdicts(again) == {"direct": "rerun", "whole": "rerun", "other": "reuse", "guarded": "run", "behind": "run"}
    with pytest.raises(RunRefusedError, match="direct changed; whole changed; guarded changed"):
        plan_resume(old, new, run.facts, ResumeOptions(strict=True))


def test_a_parameter_in_the_environment_of_all_tasks_changes_them_all() -> None:
    flow = Workflow("w", params={"x": 1}, env={"X": "${{ params.x }}"})
    flow.add("a", nothing)
    run = Run(flow).begin()
    run.ok("a")
    planned = plan_resume(compile_plan(flow), compile_plan(flow, {"x": 2}), run.facts, ResumeOptions())
    assert [row.verdict for row in planned.verdicts] == ["reuse, changed"]


def test_a_failure_handler_is_decided_anew() -> None:
    flow = Workflow("w")
    flow.add("a", nothing)
    flow.add("cry", nothing, needs=["a"], if_="failure()")
    run = Run(flow).begin()
    run.fail("a")
    run.ok("cry")
    run.resume()
    assert run.running == ["a"]
    assert run.ok("a")[-1] == "workflow_complete"


def test_rejected_stays_rejected() -> None:
    flow = Workflow("w")
    flow.add("ship", nothing, approve="Ship?")
    run = Run(flow, gates="reject").begin()
    run.resume()
    assert reasons(run)["ship"] == "rejected at its gate; a fork asks anew"


def test_waiting_and_retrying_are_told() -> None:
    flow = Workflow("w")
    flow.add("ship", nothing, approve="Ship?")
    flow.add("a", nothing, retries=1)
    run = Run(flow).begin()
    run.fail("a")
    run.resume()
    assert reasons(run) == {"ship": "waits at its gate", "a": "waits for its next attempt"}


def test_new_and_orphan() -> None:
    run = Run(flow_of({"a": [], "b": [], "c": ["a"]}, max_concurrency=1)).begin()
    run.ok("a")
    assert run.running == ["b"]
    edited = flow_of({"a": [], "c": ["a"], "d": []})
    run.resume(edited)
    assert run.verdicts() == {"a": "reuse", "d": "new", "c": "run", "b": "orphan"}
    assert run.running == ["d"]
    run.ok("d")
    assert run.running == ["c"]
    assert run.ok("c")[-1] == "workflow_complete"


def test_a_new_task_in_a_finished_layer_runs() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]})).begin()
    run.ok("a")
    run.resume(flow_of({"a": [], "b": ["a"], "n": []}))
    assert "n" in run.running
    for name in list(run.running):
        run.ok(name)
    while run.running:
        run.ok(run.running[0])
    assert run.facts.status == "complete"
    assert run.status("a", "b", "n") == "complete complete complete"


@pytest.mark.parametrize(
    ("edited", "says"),
    [
        (flow_of({"a": [], "b": ["a"], "n": []}), "n is new"),
        (flow_of({"a": []}), "b is gone"),
        (flow_of({"a": [], "b": []}), "b changed"),
    ],
)
def test_strict_refuses_any_difference(edited: Workflow, says: str) -> None:
    run = Run(flow_of({"a": [], "b": ["a"]})).begin()
    run.ok("a")
    with pytest.raises(RunRefusedError, match=says):
        run.planned(edited, strict=True)
    run.planned(strict=True)


def test_a_cut_off_orphan_runs_no_more() -> None:
    run = Run(flow_of({"a": [], "b": []})).begin()
    run.resume(flow_of({"b": []}))
    assert run.running == ["b"]
    assert run.last(ev.ResumePlanned).cut_off == ("b", "a")
    assert run.ok("b")[-1] == "workflow_complete"


def test_an_item_says_how_its_fan_out_stands() -> None:
    flow = Workflow("w", max_concurrency=1)
    flow.add("each", take, for_each=[1, 2], inputs={"value": "${{ item }}"})
    run = Run(flow).begin()
    run.ok("each[0]")
    run.resume()
    assert reasons(run)["each"] == "its items are looked at one by one"


# --- fan-outs made anew ---------------------------------------------------------------------------------------------


def spread() -> Workflow:
    flow = Workflow("w")
    flow.add("list", nothing)
    flow.add("each", take, for_each="${{ tasks.list.output }}", inputs={"value": "${{ item }}"})
    flow.add("after", take, inputs={"value": "${{ tasks.each.output }}"})
    return flow


def spread_out() -> Run:
    run = Run(spread()).begin()
    run.ok("list", [1, 2])
    for index in range(2):
        run.ok(f"each[{index}]", index)
    run.ok("after")
    return run


def test_a_fan_out_asked_for_again_counts_its_items_for_nothing() -> None:
    planned = spread_out().planned(rerun={"each"})
    assert planned.regrown == ("each",)
    assert {str(row.task_id): row.reason for row in planned.verdicts}["each[0]"] == "the list of each is made anew"


def test_a_fan_out_asked_for_again_runs_all_its_items() -> None:
    run = spread_out()
    run.resume(rerun={"each"})
    assert run.running == ["each[0]", "each[1]"]
    run.ok("each[0]", 0)
    run.ok("each[1]", 5)
    assert run.output("each") == [0, 5]
    assert run.running == ["after"]


def test_another_list_makes_the_fan_out_anew() -> None:
    run = spread_out()
    run.resume(rerun={"list"})
    run.ok("list", [3])
    assert run.running == ["each[0]"]
    run.ok("each[0]", 3)
    assert run.output("each") == [3]
    assert run.running == ["after"]


def test_an_item_asked_for_again_changes_the_output_of_the_whole() -> None:
    run = spread_out()
    run.resume(rerun={"each[1]"})
    run.ok("each[1]", 9)
    assert run.output("each") == [0, 9]
    assert run.running == ["after"]


# --- gates of tasks that are no longer there ------------------------------------------------------------------------


def two() -> Workflow:
    flow = Workflow("w")
    flow.add("ship", nothing, approve="Ship?")
    flow.add("other", nothing)
    return flow


def test_a_removed_task_leaves_no_open_gate() -> None:
    run = Run(two()).begin()
    run.say({"type": "replan_dag", "remove": ["ship"]})
    assert run.ok("other")[-1] == "workflow_complete"


def test_a_skipped_task_leaves_no_open_gate() -> None:
    flow = Workflow("w")
    flow.add("ship", nothing, approve="Ship?")
    run = Run(flow, gates="wait").begin()
    assert run.say({"type": "skip_layer", "layer": 0})[-1] == "workflow_complete"


def test_an_orphan_leaves_no_open_gate() -> None:
    run = Run(two()).begin()
    run.resume(flow_of({"other": []}))
    assert run.ok("other")[-1] == "workflow_complete"


# --- changes applied again ------------------------------------------------------------------------------------------


def test_changes_are_applied_again_on_an_edited_workflow() -> None:
    run = Run(chain()).begin()
    run.say({"type": "modify_args", "task_id": "c", "updates": {"value": 7}})
    run.say({"type": "inject_tasks", "tasks": {"x": {**MORE, "needs": "a"}}})
    run.say({"type": "replan_dag", "tasks": {"y": {**MORE, "needs": "x"}}})
    run.ok("a")
    edited = chain(env={"A": "1"})
    edited.add("z", nothing)
    run.resume(edited)
    assert run.problems == []
    assert run.verdicts()["z"] == "new"
    assert {"x", "y"} <= set(run.machine.plan.tasks)
    assert dict(run.machine.plan.tasks[TaskId("c")].definition.inputs) == {"value": 7}
    while run.running:
        run.ok(run.running[0])
    assert run.facts.status == "complete"


def test_changes_that_no_longer_fit_are_told() -> None:
    run = Run(flow_of({"a": [], "b": ["a"], "c": ["a"]})).begin()
    run.say({"type": "inject_tasks", "tasks": {"x": {**MORE, "needs": "b"}}})
    run.say({"type": "modify_args", "task_id": "b", "updates": {"value": 1}})
    run.say({"type": "replan_dag", "remove": ["c"]})
    run.ok("a")
    run.resume(flow_of({"a": []}))
    assert [problem.partition(" no longer fits")[0] for problem in run.problems] == [
        "inject of x",
        "modify_args of b",
        "replan of a removal",
    ]
    assert run.facts.status == "complete"


def test_a_fan_out_is_applied_again_from_what_was_stored() -> None:
    run = spread_out()
    plan, problems = current_plan(compile_plan(spread()), run.facts.changes)
    assert problems == []
    assert plan.layers == run.machine.plan.layers
    assert plan.fingerprint == run.machine.plan.fingerprint


# --- rollback -------------------------------------------------------------------------------------------------------


def test_a_rollback_folds_from_the_checkpoint_in_a_new_epoch() -> None:
    run = finished()
    before = run.checkpoint(0)
    resumed = Run(chain())
    resumed.journal = list(run.journal)
    facts = fold(run.workflow_id, run.journal)
    resumed.machine.facts = facts
    resumed.machine.derive()
    events = resumed.give(Begin(holder="me", token=3, rollback=before))
    assert events == ["rolled_back"]
    assert resumed.last(ev.WorkflowStart).resumed_from == 0
    assert resumed.go_back() == ["resume_planned", "layer_start 1", "task_start b#1"]
    assert resumed.facts.epoch == 1
    assert resumed.status("a", "c") == "complete pending"
    assert set(resumed.facts.cuts) == {before}
    resumed.ok("b", 5)
    resumed.ok("c", 6)
    assert resumed.facts.status == "complete"
    assert [row.output for row in resumed.state.tasks] == [1, 5, 6]


@pytest.mark.parametrize("idempotent", ["keyed", False])
def test_external_effects_since_the_checkpoint_are_asked_about(idempotent: Any) -> None:
    run = Run(chain(effects="external", idempotent=idempotent), gates="wait").begin()
    run.ok("a", 1)
    run.ok("b", 2)
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0)})
    run.ok("c", 3)
    assert run.last(ev.RolledBack).ask == ("b",)
    run.go_back()
    assert run.open_gates == ["ask:b~1"]
    assert reasons(run)["b"] == "its effect may have happened (rolled back)"
    run.answer("ask:b~1", answer="happened", output=2)
    assert run.running == ["c"]


def test_what_is_idempotent_is_not_asked_about() -> None:
    run = Run(chain(effects="external", idempotent=True)).begin()
    run.ok("a", 1)
    run.ok("b", 2)
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0)})
    run.ok("c", 3)
    assert run.last(ev.RolledBack).ask == ()


def test_a_rollback_takes_changes_of_the_plan_back() -> None:
    run = Run(chain()).begin()
    run.ok("a", 1)
    run.say({"type": "inject_tasks", "tasks": {"x": MORE}})
    run.ok("b", 2)
    assert "x" in run.machine.plan.tasks
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0)})
    run.ok("c")
    run.ok("x")
    run.go_back()
    assert "x" not in run.machine.plan.tasks
    assert run.facts.changes == ()


def test_events_between_a_rollback_and_its_checkpoint_do_not_count() -> None:
    run = finished()
    cut = next(event for event in run.journal if isinstance(event, ev.Checkpointed))
    back = ev.RolledBack(seq=len(run.journal) + 1, checkpoint_id=cut.checkpoint_id, to_seq=cut.seq, layer=0, epoch=1)
    kept = counting([*run.journal, back])
    assert [event.seq for event in kept] == [*range(1, cut.seq + 1), back.seq]


def test_two_rollbacks() -> None:
    run = Run(chain()).begin()
    run.ok("a", 1)
    first = run.checkpoint(0)
    for epoch in (1, 2):
        run.say({"type": "rollback", "checkpoint_id": first})
        run.ok("b", epoch)
        run.go_back()
        assert run.facts.epoch == epoch
    run.ok("b", 9)
    run.ok("c")
    assert run.output("b") == 9


# --- forks ----------------------------------------------------------------------------------------------------------


def result(event: ev.Event) -> msgspec.Raw:
    """The event as a fork's first event holds it."""
    fields = msgspec.json.decode(msgspec.json.encode(event), type=dict[str, msgspec.Raw])
    return msgspec.Raw(msgspec.json.encode({"type": event.type, **fields}))


def forked(**more: Any) -> ev.RunForked:
    return ev.RunForked(parent_id=WorkflowId("parent"), checkpoint_id=CheckpointId("x"), **more)


def test_a_fork_begins_from_what_it_took_along() -> None:
    parent = Run(chain()).begin()
    parent.ok("a", 1)
    complete = parent.last(ev.TaskComplete)
    fork = Run(chain(), workflow_id="fork")
    fork.give(Begin(holder="me", token=1, forked=forked(current_layer=0, results=(result(complete),))))
    assert fork.last(ev.WorkflowStart).resumed_from == 0
    assert fork.running == ["b"]
    assert fork.output("a") == 1
    assert workflow_state(fork.facts).tasks[0].output == 1
    fork.ok("b")
    assert fork.ok("c")[-1] == "workflow_complete"


def test_a_fork_takes_errors_skips_changes_and_questions_along() -> None:
    parent = Run(chain()).begin()
    parent.say({"type": "inject_tasks", "tasks": {"x": MORE}})
    parent.ok("a", 1)
    change = parent.last(ev.PlanChanged)
    error = ev.TaskError(
        task_id=TaskId("b"), layer=1, place="000001", error=ev.TaskFailure(type="Boom", text="no"), status="failed"
    )
    skipped = ev.TaskSkipped(task_id=TaskId("c"), layer=2, place="000002", because="b")
    start = forked(
        seq=1,
        current_layer=0,
        results=(result(parent.all(ev.TaskComplete)[0]), result(error), result(skipped)),
        changes=(change,),
        ask=(TaskId("x"),),
    )
    facts = fold(WorkflowId("fork"), [start])
    assert facts.sequence == 1
    assert facts.finished_layer == 0
    assert [change.origin for change in facts.changes] == ["inject"]
    assert [facts.task(TaskId(name)).status for name in "abcx"] == ["complete", "failed", "skipped", "pending"]
    assert dict(facts.ask) == {"x": "the parent run had begun it"}
    plan, _ = current_plan(compile_plan(chain()), facts.changes)
    planned = plan_resume(plan, plan, facts, ResumeOptions())
    assert {row.task_id: row.verdict for row in planned.verdicts} == {
        "a": "reuse",
        "b": "rerun",
        "c": "run",
        "x": "ask",
    }


def test_a_result_reads_back_as_the_event_it_was() -> None:
    event = ev.TaskComplete(task_id=TaskId("a"), layer=0, place="000000", output=raw({"x": 1}), seq=5)
    again = result_from(result(event), seq=7)
    assert again == msgspec.structs.replace(event, seq=7)


def test_a_fold_of_nothing() -> None:
    assert fold(WorkflowId("w"), []) == Facts(workflow_id=WorkflowId("w"))


# --- another result, in whatever way it comes about -----------------------------------------------------------------


def pair(**settings: Any) -> Workflow:
    """`a` with these settings, then `b`."""
    flow = Workflow("w")
    flow.add("a", nothing, **settings)
    flow.add("b", nothing, needs=["a"])
    return flow


def test_a_task_that_had_failed_safe_and_completes_is_another_result() -> None:
    run = Run(pair(continue_on_error=True)).begin()
    run.fail("a")
    run.ok("b")
    run.resume(rerun={"a"})
    run.ok("a", 5)
    assert run.running == ["b"]


def test_a_task_that_had_completed_and_fails_safe_is_another_result() -> None:
    run = Run(pair(continue_on_error=True)).begin()
    run.ok("a", 5)
    run.ok("b")
    run.resume(rerun={"a"})
    run.fail("a")
    assert run.running == ["b"]


def test_another_result_counts_even_after_a_failed_rerun() -> None:
    run = Run(pair()).begin()
    run.ok("a", 1)
    run.ok("b")
    run.resume(rerun={"a"})
    run.fail("a")
    assert run.facts.status == "failed"
    run.resume()
    run.ok("a", 2)
    assert run.running == ["b"]


def test_another_result_counts_after_a_retry() -> None:
    run = Run(pair(retries=1)).begin()
    run.ok("a", 1)
    run.ok("b")
    run.resume(rerun={"a"})
    run.fail("a")
    run.later(60)
    run.ok("a", 2)
    assert run.running == ["b"]


def test_another_result_counts_where_somebody_says_it_happened() -> None:
    run = Run(pair(effects="external"), gates="wait").begin()
    run.ok("a", 1)
    run.ok("b")
    run.resume(rerun={"a"})
    run.answer("ask:a", answer="happened", output=2)
    assert run.running == ["b"]


# --- ready and rollback ---------------------------------------------------------------------------------------------


def ready_mail() -> Run:
    """`mail` starts before the checkpoint of layer 0 is cut."""
    flow = Workflow("w", schedule="ready")
    flow.add("a", nothing)
    flow.add("slow", nothing)
    flow.add("mail", nothing, needs=["a"], effects="external")
    flow.add("end", nothing, needs=["mail"])
    run = Run(flow, gates="wait").begin()
    run.ok("a")
    assert run.ok("slow") == ["task_complete slow", "checkpoint 0"]
    assert run.running == ["mail"]
    return run


def test_an_effect_that_began_before_the_checkpoint_was_cut_is_asked_about() -> None:
    run = ready_mail()
    run.ok("mail")
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0)})
    run.ok("end")
    run.go_back()
    assert run.open_gates == ["ask:mail~1"]
    assert run.running == []


def test_nothing_follows_a_rollback_in_its_step() -> None:
    run = ready_mail()
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0)})
    assert run.ok("mail")[-1] == "rolled_back"


def spread_edited(work: Any = nothing, **settings: Any) -> Workflow:
    """`spread()` with `each` no longer a fan-out."""
    flow = Workflow("w")
    flow.add("list", nothing)
    flow.add("each", work, needs=["list"], **settings)
    flow.add("after", take, inputs={"value": "${{ tasks.each.output }}"})
    return flow


def test_a_fan_out_that_became_a_plain_task_runs_as_one() -> None:
    run = Run(spread()).begin()
    run.ok("list", [1, 2])
    run.ok("each[0]", 1)
    run.resume(spread_edited())
    assert run.running == ["each"]
    run.ok("each", 5)
    assert run.output("each") == 5
    assert run.running == ["after"]


def test_an_empty_fan_out_that_became_a_plain_task_runs_again() -> None:
    """It must not end complete with a task that never ran."""
    run = Run(spread()).begin()
    run.ok("list", [])
    run.ok("after")
    run.resume(spread_edited(), rerun={"changed"})
    assert run.running == ["each"]


def test_a_fan_out_that_became_an_approval_asks() -> None:
    run = Run(spread(), gates="wait").begin()
    run.ok("list", [1, 2])
    run.resume(spread_edited("approval", question="Go?"))
    assert run.running == []
    assert run.open_gates == ["approval:each"]


def test_a_plain_task_that_became_a_fan_out_takes_no_slot() -> None:
    def flow(**settings: Any) -> Workflow:
        flow = Workflow("w")
        flow.add("each", nothing, concurrency="db", **settings)
        return flow

    run = Run(flow()).begin()
    run.fail("each")
    run.resume(flow(for_each=[1, 2]))
    assert run.running == ["each[0]"]
    run.resume()
    assert run.running == ["each[0]"]


def test_a_crash_right_after_a_rollback() -> None:
    run = Run(chain()).begin()
    run.ok("a", 1)
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0)})
    assert run.ok("b", 2)[-1] == "rolled_back"
    run.resume()
    assert run.facts.epoch == 1
    assert run.status("a", "c") == "complete pending"
    assert run.running == ["b"]


def test_a_task_that_left_files_as_they_were_is_kept_only_where_they_are_put_back_to_those() -> None:
    """Beside `b`, `a` changed nothing; what it would do to the files of an older checkpoint nobody knows."""
    flow = Workflow("w")
    flow.add("a", nothing, effects="files")
    flow.add("b", nothing, effects="files")
    run = Run(flow, captures=True).begin()
    run.give(CaptureEnded(why="attempt", snapshot="s", tree="t", task_id="a"))
    run.give(CaptureEnded(why="task", snapshot="s", tree="t", task_id="a", beside=(TaskId("b"),)))
    run.ok("a")
    point = run.facts.files
    assert point is not None
    verdicts = [
        {row.task_id: row.verdict for row in run.planned(files="restored", restored_to=seq).verdicts}[TaskId("a")]
        for seq in (point.seq, point.seq - 1)
    ]
    assert verdicts == ["reuse", "rerun"]


@pytest.mark.parametrize("files", ["unknown", "restored", "kept"])
def test_an_effect_beyond_the_files_is_asked_about_wherever_the_files_stand(files: str) -> None:
    """Putting files back takes no e-mail back."""
    run = Run(chain(effects=["files", "external"]), gates="wait").begin()
    run.ok("a", 1)
    assert run.running == ["b"]
    run.resume(files=files, restored_to=run.facts.sequence)
    assert run.verdicts()["b"] == "ask"
    assert run.open_gates == ["ask:b"]
    assert run.running == []


# --- a selection ------------------------------------------------------------------------------------------------------


def selecting(run: Run, selection: Selection) -> None:
    """The next driver is told which tasks are to run."""
    run.base = msgspec.structs.replace(run.base, selection=selection)


def test_tasks_that_are_not_selected_are_skipped_and_can_be_run_later() -> None:
    until = Selection(until=(TaskId("a"),))
    run = Run(msgspec.structs.replace(compile_plan(flow_of({"a": [], "b": ["a"], "c": []})), selection=until)).begin()
    assert run.running == ["a"]
    run.ok("a", 1)
    assert run.facts.status == "complete"
    assert {name: run.facts.task(TaskId(name)).status for name in "abc"} == {
        "a": "complete", "b": "skipped", "c": "skipped",
    }  # fmt: skip
    assert run.facts.task(TaskId("b")).because == "the selection (--until a)"
    run.resume()
    assert run.verdicts() == dict.fromkeys("abc", "reuse")
    assert reasons(run)["b"] == "not selected; it stays skipped"
    selecting(run, EVERY_TASK)
    run.resume()
    assert run.verdicts() == {"a": "reuse", "b": "run", "c": "run"}
    assert reasons(run)["c"] == "was not selected before"


def test_an_attempt_that_was_interrupted_is_put_away_with_its_task() -> None:
    run = Run(flow_of({"a": [], "b": []})).begin()
    run.ok("a")
    assert run.running == ["b"]
    selecting(run, Selection(until=(TaskId("a"),)))
    run.resume()
    assert run.facts.status == "complete"
    assert run.facts.task(TaskId("b")).status == "skipped"
    selecting(run, EVERY_TASK)
    run.resume()
    assert run.running == ["b"]


def test_a_fan_out_that_is_not_selected_takes_its_items_along() -> None:
    flow = Workflow("w")
    flow.add("a", nothing)
    flow.add("each", take, for_each=[1, 2], inputs={"value": "${{ item }}"})
    run = Run(flow).begin()
    run.ok("each[0]", 1)
    selecting(run, Selection(until=(TaskId("a"),)))
    run.resume()
    run.ok("a")
    assert run.facts.status == "complete"
    assert [run.facts.task(TaskId(name)).status for name in ("each", "each[0]", "each[1]")] == [
        "skipped", "complete", "skipped",
    ]  # fmt: skip
    selecting(run, EVERY_TASK)
    run.resume()
    run.ok("each[1]", 2)
    assert run.facts.task(TaskId("each")).output == raw([1, 2])
