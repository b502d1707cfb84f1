"""Gates stand before what they guard, and only an explicit approval passes one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from agentos.dag.define.workflow import Workflow
from agentos.exceptions import WorkflowDefinitionError
from agentos.ids import GateId
from agentos.machine import events as ev
from agentos.machine.frontier import Frontier
from agentos.machine.inputs import GatesLeft, StopAsked
from agentos.machine.rules.gates import is_held, may_be_asked
from tests.unit.machine.harness import START, Run, flow_of, nothing, take


def ship(**settings: Any) -> Workflow:
    """`build`, then `ship` behind a gate, then `tell`, one layer after the other."""
    flow = Workflow("w", schedule="layers")
    flow.add("build", nothing)
    flow.add("ship", take, inputs={"value": "${{ tasks.build.output }}"}, **{"approve": "Ship?", **settings})
    flow.add("tell", nothing, needs=["ship"])
    return flow


def at_gate(flow: Workflow | None = None, *, gates: Any = "wait", output: Any = 1) -> Run:
    run = Run(flow or ship(), gates=gates).begin()
    run.ok("build", output)
    return run


# --- gates that nobody answers now ---------------------------------------------------------------------------------


def test_gates_that_are_left_end_a_drive_that_would_wait_for_them() -> None:
    run = at_gate(gates="wait")
    assert not run.machine.over
    assert run.give(GatesLeft(gates=frozenset(run.machine.facts.open_gates))) == ["workflow_paused waiting"]
    assert run.open_gates == ["approve:ship"], "it stays open for an answer from elsewhere"


def test_gates_that_are_left_hold_up_nothing_else() -> None:
    flow = ship()
    flow.add("slow", nothing)
    flow.add("late", nothing, needs=["slow"], approve="And this?")
    run = Run(flow, gates="wait").begin()
    run.ok("build")
    run.ok("slow")
    assert run.give(GatesLeft(gates=frozenset({GateId("approve:ship")}))) == []
    assert not run.machine.over, "the other gate was not left"
    run.answer("approve:late")
    run.ok("late")
    assert not run.machine.over
    run.give(GatesLeft(gates=frozenset({GateId("approve:ship")})))
    assert run.facts.status == "waiting"


# --- questions about a task that runs again ------------------------------------------------------------------------


def test_a_question_is_held_while_the_task_it_quotes_runs_again() -> None:
    run = at_gate(gates="stop")
    run.resume(rerun=frozenset({"build"}))
    assert is_held(run.base, run.facts, run.gate("approve:ship"))
    run.ok("build", 1)
    assert not is_held(run.base, run.facts, run.gate("approve:ship"))
    assert may_be_asked(run.base, run.facts, run.facts.gates[GateId("approve:ship")])
    assert run.open_gates == ["approve:ship"], "the same result: the same question"


def test_a_question_is_asked_anew_once_the_task_it_quotes_gave_something_else() -> None:
    run = at_gate(gates="stop")
    run.resume(rerun=frozenset({"build"}))
    run.ok("build", 2)
    made = run.last(ev.DecisionMade)
    assert (made.gate_id, made.answer) == ("approve:ship", "withdrawn")
    assert made.reason == "asked anew, since what it was about has changed"
    assert run.open_gates == ["approve:ship#2"]
    assert not may_be_asked(run.base, run.facts, run.facts.gates[GateId("approve:ship")]), "it was about another result"
    run.resume(gates="wait")
    run.answer("approve:ship#2")
    assert run.running == ["ship"]


def test_a_question_about_other_results_is_not_held() -> None:
    flow = ship()
    flow.add("other", nothing)
    run = Run(flow, gates="stop").begin()
    run.ok("build")
    run.ok("other")
    run.resume(rerun=frozenset({"other"}))
    assert run.open_gates == ["approve:ship"]
    assert not is_held(run.base, run.facts, run.gate("approve:ship"))


def test_a_decision_point_is_held_while_a_layer_before_it_runs_again() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]}, decision_points="per_layer"), gates="stop").begin()
    run.ok("a")
    run.resume(rerun=frozenset({"a"}))
    assert is_held(run.base, run.facts, run.gate("layer:1"))
    run.ok("a")
    assert not is_held(run.base, run.facts, run.gate("layer:1"))


# --- before a task --------------------------------------------------------------------------------------------------


def test_a_gate_stands_before_the_task() -> None:
    run = at_gate()
    assert run.open_gates == ["approve:ship"]
    assert run.running == []
    assert run.status("ship") == "waiting"
    question = run.gate("approve:ship")
    assert (question.kind, question.task_id, question.layer, question.by) == ("approve", "ship", 1, "human")
    assert question.question == "Ship?"
    assert question.inputs == '{"value":1}'
    assert question.command == "agentos approve run approve:ship"
    assert question.deadline is None


def test_an_approval_lets_it_start() -> None:
    run = at_gate()
    assert run.answer("approve:ship", reason="fine", author="alice") == [
        "command_applied approval_response",
        "approved approve:ship",
        "task_start ship#1",
    ]
    assert run.state.decisions == (
        {
            "gate_id": "approve:ship",
            "kind": "approve",
            "task_id": "ship",
            "answer": "approved",
            "author": "alice",
            "reason": "fine",
            "layer": 1,
        },
    )


def test_a_rejection_fails_the_task_and_the_run_and_no_resume_runs_it() -> None:
    run = at_gate()
    assert run.answer("approve:ship", False, reason="no", author="bob") == [
        "command_applied approval_response",
        "rejected approve:ship",
        "failed ship: GateRejected",
        "checkpoint 1",
        "layer_start 2",
        "task_skipped tell (ship)",
        "checkpoint 2",
        "workflow_failed",
    ]
    assert run.task("ship").error == ev.TaskFailure(type="GateRejected", text="rejected by bob: no")
    assert run.last(ev.WorkflowFailed).failed == ("ship",)
    assert run.resume()[-1] == "workflow_failed"
    assert run.verdicts() == {"build": "reuse", "ship": "reuse", "tell": "reuse"}
    assert run.status("ship", "tell") == "failed skipped"


def test_a_rejected_task_stays_rejected_even_if_continue_on_error() -> None:
    run = at_gate(ship(continue_on_error=True))
    run.answer("approve:ship", False)
    assert run.status("ship", "tell") == "failed skipped"
    assert run.facts.status == "failed"


def test_independent_tasks_run_on() -> None:
    flow = ship()
    flow.add("other", nothing, needs=["build"])
    run = at_gate(flow, gates="stop")
    assert run.running == ["other"]
    assert run.ok("other") == ["task_complete other", "workflow_paused waiting"]
    assert run.last(ev.WorkflowPaused).gates == ("approve:ship",)
    assert run.facts.status == "waiting"


def test_an_answer_while_others_run() -> None:
    flow = ship()
    flow.add("other", nothing, needs=["build"])
    run = at_gate(flow)
    run.answer("approve:ship")
    assert run.running == ["other", "ship"]


def test_an_approval_task_completes_with_the_answer() -> None:
    flow = Workflow("w")
    flow.add("ok", "approval", question="Go on with ${{ params.what }}?")
    flow.add("after", nothing, needs=["ok"])
    run = Run(flow, gates="wait", params={"what": "it"}).begin()
    assert run.open_gates == ["approval:ok"]
    assert run.gate("approval:ok").question == "Go on with it?"
    events = run.answer("approval:ok", reason="yes", author="alice")
    assert events[1:3] == ["approved approval:ok", "task_complete ok"]
    assert run.output("ok") == {"approved": True, "author": "alice", "reason": "yes"}
    assert run.running == ["after"]


def test_a_rejected_approval_task_skips_its_dependants() -> None:
    flow = Workflow("w")
    flow.add("ok", "approval", question="Go on?")
    flow.add("after", nothing, needs=["ok"])
    flow.add("later", nothing, needs=["after"])
    run = Run(flow, gates="wait").begin()
    events = run.answer("approval:ok", False)
    assert "failed ok: GateRejected" in events
    assert "task_skipped after (ok)" in events
    assert "task_skipped later (ok)" in events
    assert events[-1] == "workflow_failed"


def test_a_gate_whose_question_cannot_be_made_fails_its_task() -> None:
    run = at_gate(ship(approve="Ship ${{ tasks.build.output.name }}?"), output={})
    assert run.status("ship", "tell") == "failed skipped"
    assert run.open_gates == []


def test_a_long_input_is_cut_short_for_people() -> None:
    run = at_gate(output="x" * 5000)
    text = run.gate("approve:ship").inputs
    assert len(text) == 2000
    assert text.endswith("…")


def test_a_gate_before_a_fan_out_without_a_reference_to_the_item() -> None:
    flow = Workflow("w")
    flow.add("each", nothing, for_each=[1, 2], approve="All?")
    run = Run(flow, gates="wait").begin()
    run.answer("approve:each")
    assert run.running == ["each[0]", "each[1]"]


def test_a_gate_for_each_task_not_for_each_item() -> None:
    flow = Workflow("w")
    flow.add("each", take, for_each=[1, 2], inputs={"value": "${{ item }}"}, approve="All?")
    run = Run(flow, gates="wait").begin()
    assert run.open_gates == ["approve:each"]
    run.answer("approve:each")
    assert run.running == ["each[0]", "each[1]"]


def test_a_retry_does_not_ask_again() -> None:
    run = at_gate(ship(retries=1))
    run.answer("approve:ship")
    run.fail("ship")
    run.later(120)
    assert run.running == ["ship"]
    assert len(run.all(ev.DecisionRequired)) == 1


def test_a_condition_is_decided_before_anybody_is_asked() -> None:
    flow = Workflow("w")
    flow.add("ship", nothing, approve="Ship?", if_="false")
    run = Run(flow).begin()
    assert run.all(ev.DecisionRequired) == []
    assert run.status("ship") == "skipped"


# --- who may answer, and when ---------------------------------------------------------------------------------------


def test_an_agent_does_not_approve_itself() -> None:
    run = at_gate()
    assert run.answer("approve:ship", attempt_id="run/build#1") == ["command_refused approval_response"]
    said = "gate 'approve:ship' is for a human; the answer came from attempt run/build#1 of an agent"
    assert (run.refusal() or "").splitlines()[0].startswith(said)
    assert run.open_gates == ["approve:ship"]


def test_an_agent_answers_a_gate_that_is_for_agents() -> None:
    run = at_gate(ship(approve={"question": "Ship?", "by": "agent"}))
    run.answer("approve:ship", attempt_id="run/build#1")
    assert run.running == ["ship"]


def test_a_second_answer_is_refused() -> None:
    run = at_gate()
    run.answer("approve:ship", author="alice")
    assert run.answer("approve:ship", False) == ["command_refused approval_response"]
    assert run.refusal() == "gate 'approve:ship' was already answered (approved by alice); open gates: none"
    assert run.running == ["ship"]


def test_an_answer_to_no_gate_is_refused() -> None:
    run = at_gate()
    run.answer("approve:build")
    assert run.refusal() == "gate 'approve:build' does not exist; open gates: approve:ship"


@pytest.mark.parametrize("answer", ["rerun", "happened"])
def test_an_answer_of_another_kind_is_refused(answer: str) -> None:
    run = at_gate()
    run.answer("approve:ship", answer=answer)
    assert run.refusal() == f"gate 'approve:ship' takes approve or reject, not '{answer}'"


# --- an approval holds for what was shown ---------------------------------------------------------------------------


def test_a_gate_reopens_where_the_fingerprint_changed() -> None:
    run = at_gate()
    run.answer("approve:ship")
    run.fail("ship")
    edited = ship()
    edited.drafts[1].fields["env"] = {"A": "1"}
    assert "decision_required approve:ship#2" in run.resume(edited)
    assert run.running == []
    run.answer("approve:ship")
    assert "was already answered" in run.refusal()
    run.answer("approve:ship#2")
    assert run.running == ["ship"]


def test_the_command_that_would_run_is_shown() -> None:
    flow = Workflow("w")
    flow.add("build", take, inputs={"value": 1})
    flow.add("ship", "shell", run="upload ${{ tasks.build.output }}", approve="Ship?")
    flow.add("sign", "approval", question="Sign?", needs=["build"])
    run = Run(flow).begin()
    run.ok("build", "a.zip")
    assert run.gate("approve:ship").inputs == (
        '{"run":"upload ${{ tasks.build.output }}","tasks.build.output":"a.zip"}'
    )
    assert run.gate("approval:sign").inputs == ""


def test_a_gate_reopens_where_the_inputs_changed() -> None:
    run = at_gate()
    run.answer("approve:ship")
    run.fail("ship")
    assert "task_start build#2" in run.resume(rerun={"build"})
    run.ok("build", 2)
    assert run.open_gates == ["approve:ship#2"]
    assert run.gate("approve:ship#2").inputs == '{"value":2}'
    assert run.running == []


@pytest.mark.parametrize("work", [("agent", {"agent": "claude"}), ("llm", {"model": "m"})], ids=["agent", "llm"])
def test_a_gate_reopens_where_what_a_model_is_told_changed(work: tuple[str, dict[str, Any]]) -> None:
    flow = Workflow("w")
    flow.add("build", nothing)
    flow.add("ship", work[0], prompt="Ship ${{ tasks.build.output }}", approve="Ship?", **work[1])
    run = at_gate(flow, output="a.zip")
    assert '"prompt":"Ship ${{ tasks.build.output }}","tasks.build.output":"a.zip"' in run.gate("approve:ship").inputs
    run.answer("approve:ship")
    run.fail("ship")
    run.resume(rerun={"build"})
    run.ok("build", "b.zip")
    assert run.running == []
    assert run.open_gates == ["approve:ship#2"]


@pytest.mark.parametrize("asked", ["question", "file"])
def test_a_gate_reopens_where_the_question_reads_otherwise(asked: str) -> None:
    flow = Workflow("w")
    flow.add("build", nothing)
    question = {"question": "Good?", "choices": ["yes", "maybe"], asked: "${{ tasks.build.output }}"}
    flow.add("ship", "approval", question=question, needs=["build"])
    run = at_gate(flow, output="a.md")
    run.answer("approval:ship", choice="yes")
    assert run.output("ship")["choice"] == "yes"
    run.resume(rerun={"build"})
    run.ok("build", "b.md")
    assert run.open_gates == ["approval:ship#2"]
    run.answer("approval:ship#2", choice="maybe")
    assert run.output("ship")["choice"] == "maybe"


def test_a_gate_does_not_reopen_where_they_are_equal() -> None:
    run = at_gate()
    run.answer("approve:ship")
    run.fail("ship")
    run.resume(rerun={"build"})
    run.ok("build", 1)
    assert run.open_gates == []
    assert run.running == ["ship"]


def test_an_answer_that_came_before_a_modification_does_not_count() -> None:
    flow = Workflow("w")
    flow.add("a", nothing)
    flow.add("ship", take, inputs={"value": 1}, approve="Ship?")
    run = Run(flow, gates="wait").begin()
    run.say({"type": "modify_args", "task_id": "ship", "updates": {"value": 2}})
    run.answer("approve:ship")
    # The change comes at the boundary, after the task that was approved has started.
    assert run.running == ["a", "ship"]
    run.ok("a")
    run.ok("ship")
    assert "has started" in run.all(ev.CommandRefused)[0].why


def test_a_modification_while_the_gate_is_open_asks_about_the_new_inputs() -> None:
    """The gate shows 1; it is approved; the task would start with 2: it must not."""
    flow = Workflow("w")
    flow.add("ship", take, inputs={"value": 1}, approve="Ship?")
    run = Run(flow, gates="wait").begin()
    run.say({"type": "modify_args", "task_id": "ship", "updates": {"value": 2}})
    run.answer("approve:ship")
    assert run.running == []
    assert run.open_gates == ["approve:ship#2"]
    run.answer("approve:ship#2")
    assert run.running == ["ship"]


def test_an_approval_task_that_reopened_takes_the_newest_answer() -> None:
    flow = Workflow("w")
    flow.add("a", nothing)
    names = [f"ok{number}" for number in range(16)]  # many, for which of two gates comes first varies with the hashes
    for name in names:
        flow.add(name, "approval", question="Go?", inputs={"value": "${{ tasks.a.output }}"})
    flow.add("z", nothing, needs=names)
    run = Run(flow, gates="wait").begin()
    run.ok("a", 1)
    for name in names:
        run.answer(f"approval:{name}", author="first")
    run.resume(rerun={"a"})
    run.ok("a", 2)
    for name in names:
        run.answer(f"approval:{name}#2", author="second")
    assert {run.output(name)["author"] for name in names} == {"second"}


def test_an_approval_does_not_cross_into_a_new_epoch() -> None:
    run = at_gate()
    run.answer("approve:ship")
    run.ok("ship")
    run.say({"type": "rollback", "checkpoint_id": run.checkpoint(0)})
    run.ok("tell")
    run.go_back()
    assert run.open_gates == ["approve:ship~1"]
    run.answer("approve:ship")
    assert "open gates: approve:ship~1" in run.refusal()
    run.answer("approve:ship~1")
    assert run.running == ["ship"]


# --- timeouts -------------------------------------------------------------------------------------------------------


def test_a_timeout_rejects() -> None:
    run = at_gate(ship(approve={"question": "Ship?", "timeout_s": 60}))
    assert run.gate("approve:ship").deadline == START + timedelta(seconds=60)
    assert run.machine.wake_at == START + timedelta(seconds=60)
    assert run.later(59) == []
    events = run.later(1)
    assert events[:2] == ["rejected approve:ship", "failed ship: GateRejected"]
    assert run.last(ev.DecisionMade).author == "timeout"


def test_a_timeout_approves_where_the_gate_says_so() -> None:
    run = at_gate(ship(approve={"question": "Ship?", "timeout_s": 60, "on_timeout": "approve"}))
    assert run.later(60) == ["approved approve:ship", "task_start ship#1"]


def test_a_deadline_is_absolute_and_survives_a_crash() -> None:
    run = at_gate(ship(approve={"question": "Ship?", "timeout_s": 60}))
    run.now += timedelta(seconds=50)
    run.resume()
    assert run.gate("approve:ship").deadline == START + timedelta(seconds=60)
    assert run.machine.wake_at == START + timedelta(seconds=60)
    assert "rejected approve:ship" in run.later(10)


def test_a_deadline_that_passed_while_nobody_drove() -> None:
    run = at_gate(ship(approve={"question": "Ship?", "timeout_s": 60}), gates="stop")
    run.now += timedelta(days=1)
    assert "rejected approve:ship" in run.resume()
    assert run.facts.status == "failed"


def test_an_answer_in_time_makes_the_deadline_void() -> None:
    run = at_gate(ship(approve={"question": "Ship?", "timeout_s": 60}))
    run.answer("approve:ship")
    assert run.later(100) == []
    assert run.running == ["ship"]


# --- decision points ------------------------------------------------------------------------------------------------


def test_per_layer_asks_before_each_layer_but_the_first() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]}, decision_points="per_layer"), gates="stop").begin()
    assert run.running == ["a"]
    assert run.ok("a") == ["task_complete a", "checkpoint 0", "decision_required layer:1", "workflow_paused waiting"]
    assert run.gate("layer:1").question == "Layer 1 is finished. Start layer 2?"
    run.resume(gates="wait")
    assert run.open_gates == ["layer:1"]
    run.answer("layer:1")
    assert run.running == ["b"]


def test_a_rejected_layer_fails_the_run_and_skips_the_rest() -> None:
    run = Run(flow_of({"a": [], "b": ["a"], "c": ["b"]}, decision_points="per_layer"), gates="wait").begin()
    run.ok("a")
    events = run.answer("layer:1", False)
    assert "task_skipped b (layer:1)" in events
    assert "task_skipped c (layer:1)" in events
    assert events[-1] == "workflow_failed"
    assert run.last(ev.WorkflowFailed).reason == "rejected at layer:1"
    run.resume()
    assert run.facts.status == "failed"
    assert run.status("b", "c") == "skipped skipped"


def test_on_error_asks_only_after_a_failure() -> None:
    run = Run(flow_of({"a": [], "x": [], "b": ["a"], "c": ["b"]}, decision_points="on_error"), gates="wait").begin()
    run.ok("a")
    assert run.fail("x") == ["failed x: Boom", "checkpoint 0", "decision_required error:1"]
    assert run.gate("error:1").question == "x failed in layer 1. Go on with layer 2?"
    run.say({"type": "continue"})
    assert run.running == ["b"]
    run.ok("b")
    assert run.running == ["c"]
    assert run.ok("c")[-1] == "workflow_failed"


# --- asked about an effect that may have happened -------------------------------------------------------------------


ASKED = ("it-ran", "did-not-run", "run-again")


def mailer(**settings: Any) -> Workflow:
    flow = Workflow("w")
    flow.add("mail", nothing, effects="external", **settings)
    flow.add("log", take, inputs={"value": "${{ tasks.mail.output }}"})
    return flow


def cut_off() -> Run:
    run = Run(mailer(), gates="wait").begin()
    assert run.running == ["mail"]
    assert run.resume()[-1] == "decision_required ask:mail"
    return run


def test_an_external_effect_cut_off_asks() -> None:
    run = cut_off()
    assert run.resumed is not None
    assert run.verdicts()["mail"] == "ask"
    assert "external effect that is not idempotent" in run.resumed.verdicts[0].reason
    assert "may have taken effect" in run.gate("ask:mail").question
    assert run.running == []


@pytest.mark.parametrize("said", [{"choice": "run-again"}, {"choice": "did-not-run"}, {"answer": "rerun"}])
def test_asked_and_run_again(said: dict[str, Any]) -> None:
    run = cut_off()
    events = run.answer("ask:mail", **said)
    assert events == ["command_applied approval_response", "rerun ask:mail", "task_start mail#2"]
    assert run.state.decisions[0]["choice"] == said.get("choice", "run-again")
    run.resume()  # cut off once more: asked once more
    assert run.open_gates == ["ask:mail#2"]


@pytest.mark.parametrize("earlier", [False, True])
def test_a_plain_yes_is_no_answer_to_whether_a_task_ran(earlier: bool) -> None:
    run = cut_off()
    if earlier:  # its journal names no choices
        run.journal[:] = [replace(e, choices=()) if isinstance(e, ev.DecisionRequired) else e for e in run.journal]
        run.resume()
    assert run.answer("ask:mail") == ["command_refused approval_response"]
    (refused,) = (event for event in run.journal if isinstance(event, ev.CommandRefused))
    commands = [f"agentos approve {run.workflow_id} ask:mail --choose {choice}" for choice in ASKED]
    assert [line.strip().removesuffix(" --output TEXT") for line in refused.why.splitlines()[-3:]] == commands
    assert run.gate("ask:mail").command == f"agentos approve {run.workflow_id} ask:mail"
    assert (run.open_gates, run.running) == (["ask:mail"], [])


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"choice": "approve"}, "is none of the choices"),
        ({"choice": "did-not-run", "output": 1}, "goes with 'it-ran' alone"),
        ({"choice": "run-again", "output": 1}, "goes with 'it-ran' alone"),
        ({"answer": "rerun", "output": 1}, "goes with 'it-ran' alone"),
    ],
)
def test_an_unclear_answer_to_whether_a_task_ran(said: dict[str, Any], says: str) -> None:
    run = cut_off()
    assert run.answer("ask:mail", **said) == ["command_refused approval_response"]
    assert says in next(event.why for event in run.journal if isinstance(event, ev.CommandRefused))
    assert (run.open_gates, run.running) == (["ask:mail"], [])


@pytest.mark.parametrize(
    ("given", "output"),
    [
        ("paid\n", {"stdout": "paid", "stderr": "", "exit_code": 0}),
        ('{"json": "as text"}', {"stdout": '{"json": "as text"}', "stderr": "", "exit_code": 0}),
        (None, {"stdout": "", "stderr": "", "exit_code": 0}),
        ({"values": {"id": 7}}, {"stdout": "", "stderr": "", "exit_code": 0, "values": {"id": 7}}),
        ({"id": 7}, None),
        ({"stdout": 7}, None),
        ({"exit_code": 1}, None),
        (7, None),
    ],
)
def test_what_a_command_printed_is_stored_in_its_shape(given: Any, output: Any) -> None:
    flow = Workflow("w")
    flow.add("pay", "shell", run="./pay", effects="external")
    run = Run(flow, gates="wait").begin()
    run.resume()
    events = run.answer("ask:pay", choice="it-ran", output=given)
    if output is None:
        assert (events, run.open_gates) == (["command_refused approval_response"], ["ask:pay"])
    else:
        assert run.output("pay") == output


def test_a_document_that_a_command_printed_is_stored_as_it_is() -> None:
    flow = Workflow("w")
    flow.add("pay", "shell", run="./pay", output="json", effects="external")
    run = Run(flow, gates="wait").begin()
    run.resume()
    run.answer("ask:pay", choice="it-ran", output={"id": 7})
    assert run.output("pay") == {"id": 7}


@pytest.mark.parametrize("said", [{"choice": "it-ran"}, {"answer": "happened"}])
def test_asked_and_it_happened(said: dict[str, Any]) -> None:
    run = cut_off()
    events = run.answer("ask:mail", **said, output={"id": 7})
    assert events[1:3] == ["happened ask:mail", "task_complete mail"]
    assert run.output("mail") == {"id": 7}
    assert run.running == ["log"]
    assert run.state.decisions[0]["answer"] == "happened"


def test_asked_and_rejected() -> None:
    run = cut_off()
    events = run.answer("ask:mail", False)
    assert events[1:3] == ["rejected ask:mail", "failed mail: GateRejected"]
    assert run.status("log") == "skipped"
    assert run.resume()[-1] == "workflow_failed"


def test_the_question_survives_a_crash() -> None:
    run = cut_off()
    run.resume()
    assert run.open_gates == ["ask:mail"]
    assert run.verdicts()["mail"] == "ask"
    run.answer("ask:mail", choice="run-again")
    assert run.running == ["mail"]


@pytest.mark.parametrize("idempotent", [True, "keyed"])
def test_an_idempotent_effect_is_repeated_unasked(idempotent: Any) -> None:
    run = Run(mailer(idempotent=idempotent)).begin()
    run.resume()
    assert run.running == ["mail"]


def test_files_cut_off_ask_too() -> None:
    flow = Workflow("w")
    flow.add("write", "shell", run="make")
    run = Run(flow).begin()
    run.resume()
    assert run.open_gates == ["ask:write"]


def test_ask_and_approve_one_after_the_other() -> None:
    run = Run(mailer(approve="Mail?"), gates="wait").begin()
    run.answer("approve:mail")
    run.resume()
    assert run.open_gates == ["ask:mail"]
    run.answer("ask:mail", choice="run-again")
    assert run.running == ["mail"]


# --- nobody to ask --------------------------------------------------------------------------------------------------


def test_gates_reject() -> None:
    flow = ship()
    flow.add("also", nothing, approve="Also?", needs=["build"])
    run = at_gate(flow, gates="reject")
    assert run.status("ship", "also", "tell") == "failed failed skipped"
    assert [made.author for made in run.all(ev.DecisionMade)] == ["--gates reject"] * 2
    assert run.facts.status == "failed"


def test_gates_reject_only_when_nothing_else_can_go_on() -> None:
    flow = ship()
    flow.add("other", nothing, needs=["build"])
    run = at_gate(flow, gates="reject")
    assert run.status("ship") == "waiting"
    run.ok("other")
    assert run.status("ship") == "failed"


def test_a_drive_that_only_answers_starts_nothing() -> None:
    run = at_gate(gates="stop")
    command = {"type": "approval_response", "gate_id": "approve:ship", "approved": True}
    events = run.resume(starts=False, first=(command,))
    assert events[-3:] == ["approved approve:ship", "layer_start 1", "workflow_paused answered"]
    assert run.running == []
    run.resume()
    assert run.running == ["ship"]


def test_a_drive_that_only_answers_tells_which_gates_are_left() -> None:
    flow = ship()
    flow.add("also", nothing, approve="Also?", needs=["build"])
    run = at_gate(flow, gates="stop")
    command = {"type": "approval_response", "gate_id": "approve:ship", "approved": True}
    assert run.resume(starts=False, first=(command,))[-1] == "workflow_paused waiting"
    assert run.last(ev.WorkflowPaused).gates == ("approve:also",)


def test_an_answer_leaves_a_run_that_was_paused_as_it_is() -> None:
    flow = ship()
    flow.add("also", nothing, approve="Also?", needs=["build"])
    run = at_gate(flow, gates="stop")
    answers = [
        {"type": "approval_response", "gate_id": gate, "approved": True} for gate in ("approve:ship", "approve:also")
    ]
    assert run.resume(starts=False, first=({"type": "pause"},))[-1] == "workflow_paused asked"
    for answer in answers:
        assert run.resume(starts=False, first=(answer,))[-1] == "workflow_paused asked"
        assert run.facts.status == "paused"
    run.resume()
    assert run.running == ["also", "ship"]


def test_an_answer_decides_nothing_about_tasks_that_a_stop_cancelled() -> None:
    flow = ship()
    flow.add("beside", nothing, needs=["build"])
    flow.add("last", nothing, needs=["ship", "beside"])
    run = at_gate(flow)
    run.give(StopAsked(reason="Ctrl-C"))
    run.fail("beside", type="TaskCancelledError", cancelled=True, retryable=False)
    command = {"type": "approval_response", "gate_id": "approve:ship", "approved": True}
    assert run.resume(starts=False, first=(command,))[-2:] == ["approved approve:ship", "workflow_paused asked"]
    assert run.status("ship", "last") == "pending pending"
    run.resume()
    assert run.running == ["beside", "ship"]


def test_who_answers_the_last_gate_and_goes_on_with_nothing_leaves_the_run_to_anybody() -> None:
    run = at_gate(gates="stop")
    run.resume(starts=False, first=({"type": "approval_response", "gate_id": "approve:ship", "approved": True},))
    assert (run.facts.status, run.facts.stood) == ("interrupted", "waiting")
    refused = {"type": "approval_response", "gate_id": "approve:ship", "approved": True}
    run.resume(starts=False, first=(refused,))  # answered already
    assert run.facts.status == "interrupted"


def test_a_drive_that_only_rejects_ends_the_run() -> None:
    run = at_gate(gates="stop")
    command = {"type": "approval_response", "gate_id": "approve:ship", "approved": False}
    assert run.resume(starts=False, first=(command,))[-1] == "workflow_failed"


def test_a_drive_that_only_answers_leaves_a_retry_for_later() -> None:
    flow = Workflow("w")
    flow.add("a", nothing, retries=1)
    flow.add("ship", nothing, approve="Ship?")
    run = Run(flow).begin()
    run.fail("a")
    command = {"type": "approval_response", "gate_id": "approve:ship", "approved": True}
    assert run.resume(starts=False, first=(command,))[-1] == "workflow_paused answered"
    run.resume()
    assert run.running == ["ship"]


def test_a_drive_that_only_aborts() -> None:
    run = at_gate(gates="stop")
    assert run.resume(starts=False, first=({"type": "abort"},))[-1] == "workflow_aborted"


def test_a_task_whose_gate_is_open_may_go_from_the_workflow() -> None:
    flow = Workflow("w")
    flow.add("ship", nothing, approve="Ship?")
    flow.add("stay", nothing, approve="Stay?")
    run = Run(flow).begin()
    edited = Workflow("w")
    edited.add("stay", nothing, approve="Stay?")
    run.resume(edited, gates="wait")
    assert run.verdicts() == {"stay": "run", "ship": "orphan"}
    assert run.answer("approve:ship") == ["command_refused approval_response"]
    assert run.open_gates == ["approve:stay"]
    run.answer("approve:stay")
    assert run.running == ["stay"]
    assert Frontier(run.machine.plan, run.facts).unmet == {"stay": 0}


def test_the_refusal_of_a_gate_that_was_closed_says_so() -> None:
    flow = Workflow("w")
    flow.add("ship", nothing, approve="Ship?")
    flow.add("other", nothing)
    run = Run(flow).begin()
    run.resume(flow_of({"other": []}))
    run.answer("approve:ship")
    assert "is no longer open" in run.refusal()


def test_a_gate_may_go_from_the_workflow() -> None:
    flow = Workflow("w")
    flow.add("ship", nothing, approve="Ship?")
    run = Run(flow).begin()
    run.resume(flow_of({"ship": []}))
    assert run.running == ["ship"]
    assert run.ok("ship")[-1] == "workflow_complete"


@pytest.mark.parametrize("points", ["per_layer", "on_error"])
def test_decision_points_under_ready_are_kept_or_refused(points: str) -> None:
    try:
        run = Run(flow_of({"a": [], "x": [], "b": ["a"]}, schedule="ready", decision_points=points)).begin()
    except WorkflowDefinitionError:
        return  # refused, with the reason
    run.fail("x")
    run.ok("a")
    assert run.running == []
    assert run.open_gates


def test_a_layer_that_was_skipped_has_no_decision_point() -> None:
    run = Run(flow_of({"a": [], "b": ["a"], "c": ["a"], "d": []}, decision_points="per_layer"), gates="wait").begin()
    run.say({"type": "skip_layer", "layer": 1})
    run.ok("a")
    assert "decision_required layer:1" not in run.ok("d")
    assert run.facts.status == "complete"


def test_a_layer_that_is_skipped_while_it_is_asked_about_leaves_no_open_gate() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]}, decision_points="per_layer"), gates="wait").begin()
    run.ok("a")
    assert run.open_gates == ["layer:1"]
    run.say({"type": "skip_layer", "layer": 1})
    assert run.open_gates == []
    assert run.facts.status == "complete"


def test_a_layer_that_was_removed_leaves_no_open_gate() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]}, decision_points="per_layer"), gates="wait").begin()
    run.ok("a")
    run.say({"type": "replan_dag", "remove": ["b"]})
    assert run.open_gates == []
    assert run.facts.status == "complete"


def test_an_approval_of_a_fan_out_holds_for_all_its_inputs() -> None:
    def both(value: int, what: int) -> None: ...

    flow = Workflow("w")
    flow.add("build", nothing)
    inputs = {"value": "${{ item }}", "what": "${{ tasks.build.output }}"}
    flow.add("ship", both, for_each=[1], inputs=inputs, approve="Ship?")
    run = Run(flow, gates="wait").begin()
    run.ok("build", 1)
    run.answer("approve:ship")
    run.fail("ship[0]")
    run.resume(rerun={"build"})
    run.ok("build", 2)
    assert run.running == []
    assert run.open_gates == ["approve:ship#2"]


def test_what_a_rejected_layer_skipped_stays_skipped() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]}, decision_points="per_layer"), gates="wait").begin()
    run.ok("a", 1)
    run.answer("layer:1", False)
    run.resume(rerun={"a"})
    run.ok("a", 2)
    assert run.facts.status == "failed"
    assert run.status("b") == "skipped"


def test_a_layer_that_comes_back_is_asked_about_again() -> None:
    """Its decision point closed with it; it must neither pass by itself nor be left out of a `complete` run."""
    whole = flow_of({"a": [], "b": ["a"]}, decision_points="per_layer")
    run = Run(whole).begin()
    run.ok("a")
    assert run.open_gates == ["layer:1"]
    run.resume(flow_of({"a": []}, decision_points="per_layer"))
    assert run.facts.status == "complete"
    run.resume(whole, gates="wait")
    assert run.running == []
    assert len(run.open_gates) == 1
    run.say({"type": "continue"})
    assert run.running == ["b"]


# --- gates with choices ---------------------------------------------------------------------------------------------


def looked_at(**settings: Any) -> Workflow:
    """`look` asks, with choices; `send` runs if that was chosen, `again` otherwise."""
    flow = Workflow("w", schedule="layers")
    flow.add("draft", nothing)
    asked = {"question": "Good?", "choices": ["send", "revise"], **settings}
    flow.add("look", "approval", question=asked, needs=["draft"])
    flow.add("send", nothing, needs=["look"], if_="tasks.look.output.choice == 'send'")
    flow.add("again", nothing, needs=["look"], if_="tasks.look.output.choice == 'revise'")
    return flow


def at_choices(**settings: Any) -> Run:
    run = Run(looked_at(**settings), gates="wait").begin()
    run.ok("draft")
    return run


def test_a_gate_with_choices_tells_them_and_how_to_answer() -> None:
    run = at_choices(file="docs/draft.md")
    opened = run.gate("approval:look")
    assert opened.choices == ("send", "revise")
    assert opened.file == "docs/draft.md"
    assert opened.command == "agentos approve run approval:look --choose send"


def test_the_choice_and_its_reason_are_the_output_and_conditions_see_them() -> None:
    run = at_choices()
    assert run.answer("approval:look", choice="revise", reason="too long", author="ada")[1:] == [
        "approved approval:look",
        "task_complete look",
        "checkpoint 1",
        "layer_start 2",
        "task_skipped send ()",
        "task_start again#1",
    ]
    assert run.output("look") == {"approved": True, "choice": "revise", "author": "ada", "reason": "too long"}
    [decision] = run.state.decisions
    assert (decision["choice"], decision["reason"], decision["author"]) == ("revise", "too long", "ada")


def test_a_yes_without_a_choice_is_refused_and_lists_them() -> None:
    run = at_choices()
    assert run.answer("approval:look") == ["command_refused approval_response"]
    why = run.last(ev.CommandRefused).why
    assert "names a choice: send, revise" in why
    assert "agentos approve run approval:look --choose send" in why
    assert run.answer("approval:look", choice="ship") == ["command_refused approval_response"]
    assert "'ship' is none of the choices: send, revise" in run.last(ev.CommandRefused).why
    assert run.open_gates == ["approval:look"]


def test_a_gate_without_choices_takes_none() -> None:
    run = at_gate()
    assert run.answer("approve:ship", choice="send") == ["command_refused approval_response"]
    assert "has no choices" in run.last(ev.CommandRefused).why


def test_a_gate_with_choices_is_rejected_as_any_other() -> None:
    run = at_choices()
    run.answer("approval:look", False, reason="no")
    assert run.status("look", "send", "again") == "failed skipped skipped"


def test_a_gate_before_a_task_may_have_choices_too() -> None:
    run = at_gate(ship(approve={"question": "Where to?", "choices": ["staging", "production"]}))
    assert run.answer("approve:ship") == ["command_refused approval_response"]
    assert run.answer("approve:ship", choice="staging")[-1] == "task_start ship#1"
    assert run.state.decisions[0]["choice"] == "staging"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"choices": ["send"]}, "two or more different words"),
        ({"choices": ["send", "Send"]}, "two or more different words"),
        ({"choices": ["send", "send it"]}, "a choice is one word"),
        ({"choices": ["send", "leave"]}, "'leave' cannot be a choice"),
        ({"on_timeout": "approve", "timeout_s": 5}, "a timeout can only reject"),
        ({"choices": "send"}, "choices"),
        ({"file": "${{ tasks.nobody.output }}"}, "nobody"),
    ],
)
def test_choices_that_make_no_sense(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(WorkflowDefinitionError, match=problem):
        Run(looked_at(**settings))
