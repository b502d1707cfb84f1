"""What runs again, what is asked first and what stays: reruns, rollbacks, forks and refusals, in company."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentos.dag.define.workflow import Workflow
from agentos.ids import CheckpointId, TaskId, WorkflowId
from agentos.machine import events as ev
from agentos.machine.inputs import EffectsHeld, StopAsked
from tests.unit.machine.harness import Run, ended, failed, flow_of, nothing, take

MORE = {"python": "tests.unit.machine.harness:nothing"}


# --- results that change while others use them --------------------------------------------------------------------


def test_a_task_that_runs_while_its_need_gives_another_result_runs_again() -> None:
    run = Run(flow_of({"a": [], "b": ["a"], "c": ["b"], "d": ["c"]}, schedule="ready"), gates="wait").begin()
    run.ok("a", 1)
    run.ok("b", 1)
    run.ok("c", 1)  # d is under way
    run.resume(rerun={"a"})
    assert run.running == ["a", "d"]  # c still counts, as far as anybody knows
    run.ok("a", 2)
    run.ok("b", 2)
    run.ok("c", 2)
    assert run.task("d").outdated
    assert "resume_planned" in run.ok("d", "by the old c")
    assert run.running == ["d"]
    assert run.ok("d", "by the new c")[-1] == "workflow_complete"
    assert run.output("d") == "by the new c"


def test_a_fan_out_under_way_is_made_anew_once_its_items_have_ended() -> None:
    flow = Workflow("w", schedule="ready")
    flow.add("a", nothing)
    flow.add("b", take, inputs={"value": "${{ tasks.a.output }}"})
    flow.add("each", nothing, for_each="${{ tasks.b.output }}")
    run = Run(flow).begin()
    run.ok("a", 1)
    run.ok("b", ["x"])
    run.resume(rerun={"a"})
    assert run.running == ["a", "each[0]"]
    run.ok("a", 2)
    run.ok("b", ["x", "y"])
    assert run.task("each").outdated
    assert run.running == ["each[0]"]
    run.ok("each[0]")
    assert run.running == ["each[0]", "each[1]"]


def test_an_outdated_task_that_fails_runs_again_with_what_holds_now() -> None:
    run = Run(flow_of({"a": [], "b": ["a"], "c": ["b"]}, schedule="ready")).begin()
    run.ok("a", 1)
    run.ok("b", 1)
    run.resume(rerun={"a"})
    run.ok("a", 2)
    run.ok("b", 2)
    assert run.fail("c")[0] == "failed c: Boom"
    assert run.running == ["c"]


def test_an_outdated_task_that_was_cancelled_stays_for_the_next_drive() -> None:
    run = Run(flow_of({"a": [], "b": ["a"], "c": ["b"]}, schedule="ready")).begin()
    run.ok("a", 1)
    run.ok("b", 1)
    run.resume(rerun={"a"})
    run.ok("a", 2)
    run.ok("b", 2)
    run.give(StopAsked())
    assert run.give(failed("c", run.attempt("c"), cancelled=True))[-1] == "workflow_paused stopped"
    run.resume()
    assert run.running == ["c"]


def test_a_failed_dependant_follows_too() -> None:
    run = Run(flow_of({"a": [], "b": ["a"], "c": ["b"]}, schedule="ready")).begin()
    run.ok("a", 1)
    run.ok("b", 1)
    run.fail("c")
    run.resume(rerun={"a"})
    run.fail("c")  # with the old b, before that one runs again
    run.ok("a", 2)
    run.ok("b", 2)
    assert run.running == ["c"]


def test_finished_work_is_kept_while_a_rerun_fails() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]})).begin()
    run.ok("a", 1)
    run.ok("b", "paid for")
    run.resume(rerun={"a"})
    assert run.fail("a")[-1] == "workflow_failed"
    assert run.status("b") == "complete"
    run.resume()
    assert run.ok("a", 1)[-1] == "workflow_complete"
    assert run.output("b") == "paid for"


def test_what_ran_because_of_a_failure_runs_again_once_there_is_none() -> None:
    flow = flow_of({"a": []})
    flow.add("notify", nothing, needs=["a"], if_="always()")
    flow.add("repair", nothing, needs=["a"], if_="failure()")
    run = Run(flow).begin()
    run.fail("a")
    run.ok("notify", "a failed")
    run.ok("repair")
    run.resume()
    run.ok("a")
    assert run.running == ["notify"]
    run.ok("notify", "a is fine")
    assert run.status("repair") == "skipped"


def test_a_regrown_item_goes_on_counting_its_attempts() -> None:
    flow = Workflow("w")
    flow.add("each", take, for_each=[1, 2], inputs={"value": "${{ item }}"})
    run = Run(flow).begin()
    run.ok("each[0]")
    run.ok("each[1]")
    assert "task_start each[0]#2" in run.resume(rerun={"each"})


def test_items_with_effects_are_asked_about_when_their_list_is_made_anew() -> None:
    flow = Workflow("w")
    flow.add("each", take, for_each=[1, 2], inputs={"value": "${{ item }}"}, effects="external")
    run = Run(flow).begin()
    run.ok("each[0]")
    run.ok("each[1]")
    run.resume(rerun={"each"})
    assert run.running == []
    assert run.open_gates == ["ask:each[0]", "ask:each[1]"]
    assert run.verdicts() == {"each": "rerun", "each[0]": "ask", "each[1]": "ask"}


def test_a_list_made_anew_withdraws_the_questions_about_its_items() -> None:
    flow = Workflow("w")
    flow.add("list", nothing)
    flow.add("each", take, for_each="${{ tasks.list.output }}", inputs={"value": "${{ item }}"}, effects="external")
    run = Run(flow).begin()
    run.ok("list", [1, 2])
    run.resume()  # both items were cut off
    assert run.open_gates == ["ask:each[0]", "ask:each[1]"]
    run.resume(rerun={"list"})
    run.ok("list", [3])
    assert run.open_gates == ["ask:each[0]#2"]


def test_a_failed_fan_out_asked_for_makes_its_list_anew() -> None:
    flow = Workflow("w")
    flow.add("each", take, for_each=[1, 2], inputs={"value": "${{ item }}"})
    run = Run(flow).begin()
    run.ok("each[0]")
    run.fail("each[1]")
    run.resume(rerun={"each"})
    assert run.running == ["each[0]", "each[1]"]


# --- orphans and strangers ----------------------------------------------------------------------------------------


def test_a_task_that_comes_back_cannot_be_compared_and_says_so() -> None:
    whole, part = flow_of({"a": [], "b": []}), flow_of({"a": []})
    run = Run(whole).begin()
    run.ok("b", 1)
    run.resume(part)
    assert run.planned(whole).counts == {"rerun": 1, "reuse, changed": 1}


# --- the start of a drive says where it stands --------------------------------------------------------------------


def test_a_resume_tells_from_which_layer_on_it_looks() -> None:
    run = Run(flow_of({"a": [], "b": ["a"], "c": ["b"]})).begin()
    run.ok("a")
    run.fail("b")
    run.resume()
    assert run.last(ev.WorkflowStart).resumed_from == 0
    assert run.last(ev.ResumePlanned).skipped_layers == 1
    run.ok("b")
    run.ok("c")
    run.resume(rerun={"a"})
    assert run.last(ev.WorkflowStart).resumed_from is None
    assert run.last(ev.ResumePlanned).skipped_layers == 0


def test_layers_are_cut_again_after_one_before_them_ran_again() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]})).begin()
    run.ok("a")
    run.ok("b")
    run.resume(rerun={"a"})
    assert run.ok("a") == ["task_complete a", "checkpoint 0", "checkpoint 1", "workflow_complete"]
    assert run.state.current_layer == 1
    assert run.facts.finished_layer == 1


# --- going back ---------------------------------------------------------------------------------------------------


def test_going_back_twice_does_not_forget_an_effect() -> None:
    flow = flow_of({"a": [], "b": ["a"]})
    flow.add("pay", nothing, needs=["b"], effects="external")
    run = Run(flow, gates="wait").begin()
    run.ok("a")
    run.ok("b")
    first, second = run.checkpoint(0), run.checkpoint(1)
    run.ok("pay")
    run.resume(rerun={"b"})  # something to do, so that a command can come
    run.say({"type": "rollback", "checkpoint_id": second})
    run.ok("b")
    run.go_back()
    assert run.open_gates == ["ask:pay~1"]
    run.answer("ask:pay~1", answer="happened", output="once")
    assert run.facts.status == "complete"
    run.resume(rerun={"a"})
    run.say({"type": "rollback", "checkpoint_id": first})
    run.ok("a")
    run.go_back()
    run.ok("b")
    assert run.running == []
    assert run.open_gates == ["ask:pay~2"]


def test_drives_are_counted_on_over_a_rollback() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]})).begin()
    run.ok("a")
    run.resume()
    run.resume()
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0)})
    run.ok("b")
    run.go_back()
    assert run.facts.drives == 3
    run.resume()
    assert run.last(ev.WorkflowStart).drive == 4


def test_the_items_of_a_fan_out_need_their_approval_in_a_new_epoch_too() -> None:
    flow = Workflow("w", schedule="ready")
    flow.add("a", nothing)
    flow.add("slow", nothing)
    flow.add("each", take, for_each=[1, 2], inputs={"value": "${{ item }}"}, needs=["a"], approve="?")
    flow.add("last", nothing, needs=["each"])
    run = Run(flow, gates="wait").begin()
    run.ok("a")
    run.answer("approve:each")
    run.ok("each[0]")
    run.ok("slow")  # the checkpoint is cut while the fan-out is under way
    run.ok("each[1]")
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0)})
    run.ok("last")
    run.go_back()
    assert run.running == []
    assert run.open_gates == ["approve:each~1"]


# --- forks --------------------------------------------------------------------------------------------------------


def fork_of(flow: Workflow, *results: ev.Event, layer: int = 0, **more: Any) -> Run:
    def stored(event: ev.Event) -> msgspec.Raw:
        return msgspec.Raw(b'{"type":"' + event.type.encode() + b'",' + msgspec.json.encode(event)[1:])

    forked = ev.RunForked(
        parent_id=WorkflowId("parent"),
        checkpoint_id=CheckpointId("c"),
        current_layer=layer,
        results=tuple(map(stored, results)),
        **more,
    )
    return Run(flow).begin(forked=forked)


def test_a_fork_runs_what_had_failed() -> None:
    error = ev.TaskFailure(type="Boom", text="no")
    run = fork_of(
        flow_of({"a": [], "b": [], "c": ["b"]}),
        ev.TaskComplete(task_id=TaskId("a"), layer=0, place="000000"),
        ev.TaskError(task_id=TaskId("b"), layer=0, place="000001", error=error),
    )
    assert isinstance(run.journal[0], ev.RunForked)
    assert isinstance(run.journal[1], ev.WorkflowStart)
    assert run.running == ["b"]
    run.ok("b")
    assert run.ok("c")[-1] == "workflow_complete"


def test_a_fork_gathers_a_fan_out_whatever_the_order_of_its_results() -> None:
    flow = Workflow("w")
    flow.add("each", take, for_each=[1, 2], inputs={"value": "${{ item }}"})
    flow.add("after", take, inputs={"value": "${{ tasks.each.output }}"})
    children = (TaskId("each[0]"), TaskId("each[1]"))
    items = msgspec.Raw(b"[1,2]")
    run = fork_of(
        flow,
        ev.TaskComplete(task_id=TaskId("each"), layer=0, place="000000", gathered=True),
        *(
            ev.TaskComplete(task_id=child, layer=0, place=f"000000.00000{index}", output=msgspec.Raw(b"%d" % index))
            for index, child in enumerate(children)
        ),
        changes=(ev.PlanChanged(origin="for_each", parent=TaskId("each"), items=items, children=children),),
    )
    assert run.output("each") == [0, 1]


# --- decision points ----------------------------------------------------------------------------------------------


def refused() -> Run:
    run = Run(flow_of({"a": [], "x": [], "b": ["a"]}, decision_points="on_error"), gates="wait").begin()
    run.ok("a")
    run.fail("x")
    run.answer("error:1", False)
    assert run.facts.status == "failed"
    return run


def test_a_run_that_was_answered_no_runs_nothing_again() -> None:
    run = refused()
    assert run.resume()[-1] == "workflow_failed"
    assert run.running == []
    assert run.verdicts() == {"a": "reuse", "x": "reuse", "b": "reuse"}


def test_what_is_asked_for_by_name_runs_again_and_nothing_behind_the_no() -> None:
    run = refused()
    run.resume(rerun={"x"})
    assert run.running == ["x"]
    assert run.ok("x")[-1] == "workflow_failed"
    assert run.status("b") == "skipped"


@pytest.mark.parametrize(
    "command",
    [{"type": "inject_tasks", "tasks": {"more": MORE}}, {"type": "replan_dag", "tasks": {"more": MORE}}],
    ids=lambda command: command["type"],
)
def test_a_run_that_was_answered_no_takes_no_more_tasks(command: dict[str, Any]) -> None:
    run = refused()
    run.resume(first=(command,))
    assert "the run was rejected at error:1" in run.refusal()


def test_a_no_before_a_layer_leaves_what_runs_again_before_it() -> None:
    flow = flow_of({"a": [], "b": ["a"]}, decision_points="per_layer")
    run = Run(flow, gates="wait").begin()
    run.ok("a")
    run.resume(rerun={"a"})
    run.answer("layer:1", False)
    assert run.running == ["a"]
    assert run.ok("a")[-1] == "workflow_failed"
    assert run.status("a", "b") == "complete skipped"


# --- names --------------------------------------------------------------------------------------------------------


def test_no_answer_fits_two_gates_whatever_tasks_are_called() -> None:
    flow = Workflow("w")
    for name in ("ship", "ship#2", "ship~1"):
        flow.add(name, nothing, approve="?")
    run = Run(flow, gates="wait").begin()
    assert run.open_gates == ["approve:ship", "approve:ship#2", "approve:ship~1"]
    run.say({"type": "modify_args", "task_id": "ship", "updates": {"x": 1}})
    assert run.open_gates == ["approve:ship#2", "approve:ship#3", "approve:ship~1"]
    run.answer("approve:ship#2")
    assert run.running == ["ship#2"]
    run.answer("approve:ship#3")
    assert run.running == ["ship", "ship#2"]


# --- where injected tasks stand -----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_tasks_that_tasks_asked_for_stand_in_plan_order(order: tuple[str, str]) -> None:
    run = Run(flow_of({"a": [], "b": [], "c": ["a"]})).begin()
    for name in order:
        run.give(ended(name, injected=((f"{name}1", MORE), (f"{name}2", MORE))))
    while run.running:
        run.ok(run.running[-1])
    assert [entry.task_id for entry in run.state.tasks] == ["a", "b", "a1", "a2", "b1", "b2", "c"]


def test_a_task_that_runs_again_may_ask_for_one_more() -> None:
    run = Run(flow_of({"a": []})).begin()
    run.give(ended("a", injected=(("x", MORE),)))
    run.ok("x")
    run.resume(rerun={"a"})
    assert "plan_changed inject" in run.give(ended("a", 2, injected=(("x", MORE), ("y", MORE))))
    assert run.running == ["y"]


def test_a_task_may_not_ask_for_another_one_of_the_same_name() -> None:
    run = Run(flow_of({"a": []})).begin()
    run.give(ended("a", injected=(("x", MORE),)))
    run.ok("x")
    run.resume(rerun={"a"})
    told = run.give(ended("a", 2, injected=(("x", {**MORE, "effects": "external"}),)))
    assert told[0] == "failed a: WorkflowDefinitionError"


# --- held effects -------------------------------------------------------------------------------------------------


def test_a_stop_does_not_wait_for_effects_that_are_held() -> None:
    flow = flow_of({"a": []})
    flow.add("pay", nothing, needs=["a"], effects="external")
    run = Run(flow).begin()
    run.give(EffectsHeld(held=True))
    run.ok("a")
    assert run.running == []
    assert run.give(StopAsked()) == ["workflow_paused stopped"]
