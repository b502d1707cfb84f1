"""Gates, while somebody drives and while nobody does: fail closed, durable, and no agent approves itself."""

from __future__ import annotations

import asyncio
import datetime
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentos import Client, Context, Workflow, resume, run
from agentos.exceptions import CommandRefusedError
from agentos.machine import events as ev
from agentos.machine.commands import Abort, ApprovalResponse, Continue
from agentos.workflow.drive.command_delivery import CommandQueue, send
from agentos.workflow.drive.drive import Drive
from agentos.workflow.place.place import Place
from tests.workflow.support import (
    Killer,
    adrive,
    assert_well_formed,
    drive,
    go_on,
    journal,
    kill,
    of_type,
    python,
    so_far,
    soon,
    status,
    types,
)
from tests.workflow.test_commands import SENDER, from_elsewhere


def shipping(ran: list[str], **approve: Any) -> Workflow:
    flow = Workflow("f")

    async def work(ctx: Context) -> str:
        ran.append(ctx.task_id)
        return ctx.task_id

    flow.add("build", work)
    flow.add("ship", work, needs=["build"], approve={"question": "Ship it?", **approve})
    flow.add("tell", work, needs=["ship"])
    flow.add("other", work, needs=["build"])
    return flow


def say(place: Place, id: str, command: Any, **more: Any) -> Any:
    store = place.open()
    try:
        return send(store, id, command, **more)
    finally:
        store.close()


def yes(gate_id: str = "approve:ship", **more: Any) -> ApprovalResponse:
    return ApprovalResponse(gate_id=gate_id, **{"approved": True, **more})


def test_the_gate_stands_before_what_it_guards_and_the_rest_goes_on(place: Place) -> None:
    ran: list[str] = []
    result = drive(place, shipping(ran), id="w")
    assert result.status == "waiting"
    assert ran == ["build", "other"]
    assert result.gates == {"approve:ship": "Ship it?"}
    [gate] = of_type(journal(place, "w"), ev.DecisionRequired)
    assert (gate.gate_id, gate.task_id, gate.question, gate.layer) == ("approve:ship", "ship", "Ship it?", 1)
    assert gate.command == "agentos approve w approve:ship"
    assert_well_formed(journal(place, "w"))


def test_approve_on_a_run_that_nobody_drives_then_resume(place: Place) -> None:
    ran: list[str] = []
    flow = shipping(ran)
    drive(place, flow, id="w")
    assert say(place, "w", yes(reason="looks good"), author="ann").applied
    assert status(place, "w") == "interrupted"
    assert ran == ["build", "other"], "an answer starts nothing"
    result = go_on(place, "w", flow)
    assert (result.status, ran[2:]) == ("complete", ["ship", "tell"])
    [decision] = result.state.decisions
    assert decision == {
        "gate_id": "approve:ship",
        "kind": "approve",
        "task_id": "ship",
        "answer": "approved",
        "author": "ann",
        "reason": "looks good",
        "layer": 1,
    }


@pytest.mark.parametrize("answered", [True, False])
def test_an_answer_from_another_process_while_the_driver_waits(place: Place, answered: bool) -> None:
    ran: list[str] = []

    async def scenario() -> Any:
        running = asyncio.ensure_future(adrive(place, shipping(ran), id="w", gates="wait"))
        await soon(lambda: "decision_required" in types(so_far(place, "w")) and "other" in ran)
        command = {"type": "approval_response", "gate_id": "approve:ship", "approved": answered, "reason": "r"}
        _, applied = await asyncio.to_thread(from_elsewhere, place, "w", command)
        assert not applied, "the driver applies it"
        return await asyncio.wait_for(running, 20)

    result = asyncio.run(scenario())
    assert result.status == ("complete" if answered else "failed")
    assert sorted(ran) == (["build", "other", "ship", "tell"] if answered else ["build", "other"])
    assert result.state.decisions[0]["author"] == "elsewhere"


def test_reject_fails_the_task_and_no_resume_runs_it(place: Place) -> None:
    ran: list[str] = []
    flow = shipping(ran)
    drive(place, flow, id="w")
    say(place, "w", yes(approved=False, reason="not today"), author="bob")
    assert status(place, "w") == "failed"
    for _ in range(2):
        result = go_on(place, "w", flow)
        assert result.status == "failed"
        assert result.errors == {"ship": "GateRejected: rejected by bob: not today"}
        assert [entry.task_id for entry in result.state.tasks if entry.status == "skipped"] == ["tell"]
    assert ran == ["build", "other"]


def test_an_answer_must_name_a_gate_that_is_open(place: Place) -> None:
    ran: list[str] = []
    flow = shipping(ran)
    drive(place, flow, id="w")
    with pytest.raises(CommandRefusedError, match="does not exist; open gates: approve:ship"):
        say(place, "w", yes("approve:other"))
    say(place, "w", yes())
    with pytest.raises(CommandRefusedError, match="already answered"):
        say(place, "w", yes(approved=False))
    assert go_on(place, "w", flow).status == "complete"
    assert types(journal(place, "w")).count("command_refused") == 2


@pytest.mark.parametrize("other", [{"type": "continue"}, {"type": "pause"}, {"type": "skip_layer", "layer": 9}])
def test_nothing_but_an_approval_passes_a_gate(place: Place, other: dict[str, Any]) -> None:
    ran: list[str] = []
    flow = shipping(ran)
    drive(place, flow, id="w")
    with suppress(CommandRefusedError):
        say(place, "w", other)
    result = go_on(place, "w", flow)
    assert result.status == "waiting"
    assert ran == ["build", "other"]


def test_abort_works_at_a_gate(place: Place) -> None:
    ran: list[str] = []

    async def scenario() -> Any:
        running = asyncio.ensure_future(adrive(place, shipping(ran), id="w", gates="wait"))
        await soon(lambda: "decision_required" in types(so_far(place, "w")))
        await asyncio.to_thread(say, place, "w", Abort())
        return await asyncio.wait_for(running, 20)

    assert asyncio.run(scenario()).status == "aborted"
    assert "ship" not in ran


def test_gates_reject_for_ci(place: Place) -> None:
    ran: list[str] = []
    result = drive(place, shipping(ran), gates="reject")
    assert result.status == "failed"
    assert "GateRejected" in result.errors["ship"]
    assert "ship" not in ran


# --- time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "final"), [("reject", "failed"), ("approve", "complete")])
def test_a_timeout_acts_as_the_gate_says(place: Place, action: str, final: str) -> None:
    ran: list[str] = []
    result = drive(place, shipping(ran, timeout_s=0.05, on_timeout=action), id="w", gates="wait")
    assert result.status == final
    assert result.state.decisions[0]["author"] == "timeout"
    assert ("ship" in ran) == (action == "approve")


def test_a_deadline_is_durable_and_passes_while_nobody_drives(place: Place) -> None:
    ran: list[str] = []
    flow = shipping(ran, timeout_s=0.05)
    assert drive(place, flow, id="w").status == "waiting"
    [gate] = of_type(journal(place, "w"), ev.DecisionRequired)
    deadline = gate.deadline
    assert deadline is not None

    async def passed() -> None:
        await soon(lambda: datetime.datetime.now(datetime.UTC) > deadline)

    asyncio.run(passed())
    assert go_on(place, "w", flow).status == "failed"
    assert "ship" not in ran


# --- crash --------------------------------------------------------------------------------------------------------


def test_an_open_gate_is_open_after_a_crash_and_a_rejected_one_stays_rejected(place: Place) -> None:
    ran: list[str] = []
    flow, killer = shipping(ran), Killer()

    async def dies() -> None:
        await soon(lambda: killer.drive is not None and killer.drive.facts.open_gates)
        await killer.strike()

    flow.add("dies", dies, needs=["build"])
    kill(place, flow, killer, "w")
    assert status(place, "w") == "interrupted"
    result = go_on(place, "w", flow)
    assert (result.status, result.gates) == ("waiting", {"approve:ship": "Ship it?"})
    assert types(journal(place, "w")).count("decision_required") == 1, "the same gate, not another one"
    assert "ship" not in ran


def test_an_approval_holds_for_what_was_shown(place: Place) -> None:
    """The task's inputs changed after the approval: the gate reopens."""
    flow = Workflow("f")
    amount = [10]
    flow.add("ask", lambda: amount[0])
    flow.add("pay", lambda ask: f"paid {ask}", approve="Pay?")
    drive(place, flow, id="w")
    say(place, "w", yes("approve:pay"))
    amount[0] = 99
    result = go_on(place, "w", flow, rerun=["ask"])
    assert result.status == "waiting"
    assert list(result.gates) == ["approve:pay#2"]
    say(place, "w", yes("approve:pay#2"))
    assert go_on(place, "w", flow).outputs["pay"] == "paid 99"


# --- decision points ----------------------------------------------------------------------------------------------


def test_per_layer_decision_points_and_continue(place: Place) -> None:
    ran: list[str] = []
    flow = Workflow("f", decision_points="per_layer")

    async def work(ctx: Context) -> None:
        ran.append(ctx.task_id)

    for number in range(3):
        flow.add(f"t{number}", work, needs=[f"t{number - 1}"] if number else [])
    assert drive(place, flow, id="w").status == "waiting"
    assert ran == ["t0"]
    say(place, "w", Continue())
    assert go_on(place, "w", flow).status == "waiting"
    assert ran == ["t0", "t1"]
    say(place, "w", yes("layer:2", approved=False))
    result = go_on(place, "w", flow)
    assert (result.status, ran) == ("failed", ["t0", "t1"])
    assert len(result.state.decisions) == 2


def test_two_decisions_for_one_task_break_no_invariant(place: Place) -> None:
    """The original's rule «tasks ≥ decisions» killed such a run."""
    flow = Workflow("f", decision_points="per_layer")
    flow.add("a", lambda: 1)
    flow.add("b", lambda a: a, approve="B?")
    drive(place, flow, id="w")
    say(place, "w", Continue())
    go_on(place, "w", flow)
    say(place, "w", yes("approve:b"))
    result = go_on(place, "w", flow)
    assert result.status == "complete"
    assert len(result.state.decisions) == len(result.state.tasks) == 2


# --- an agent does not approve itself -----------------------------------------------------------------------------


ANSWER = json.dumps({"type": "approval_response", "gate_id": "approve:ship", "approved": True})
SURFACES = {
    "send": [SENDER],
    "client": ["import sys\nfrom agentos import Client\nClient().approve(sys.argv[2])"],
    "queue": [
        "import json, sys\nfrom pathlib import Path\nfrom agentos.workflow.place.place import Place\n"
        "from agentos.workflow import CommandQueue\nstore = Place(database=sys.argv[1], root=Path('.')).open()\n"
        "CommandQueue.of_run(store, sys.argv[2]).send(json.loads(sys.argv[3]))"
    ],
}


@pytest.mark.parametrize("surface", SURFACES)
def test_a_process_that_carries_an_attempt_cannot_answer_a_human_gate(
    tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch, surface: str
) -> None:
    monkeypatch.chdir(tmp_git_repo)
    ran: list[str] = []
    flow = shipping(ran)
    run(flow, workflow_id="w")
    database = Client().place.database
    # As a real attempt has them: by these its processes are found, so that nobody else's resume ends ours.
    carried = {"AGENTOS_ATTEMPT_ID": "w/build/1", "AGENTOS_ROOT": str(tmp_git_repo)}
    done = python("-c", *SURFACES[surface], database, "w", ANSWER, cwd=tmp_git_repo, env=carried)
    if surface == "queue":  # durable, and refused by whoever reads it
        assert done.returncode == 0, done.stderr
    else:
        assert "is for a human; the answer came from attempt w/build/1 of an agent" in done.stderr
    result = resume("w", workflow=flow)
    assert result.status == "waiting"
    assert "ship" not in ran
    [refused] = of_type(Client().events("w"), ev.CommandRefused)
    assert "is for a human" in refused.why
    Client().approve("w")
    assert resume("w", workflow=flow).status == "complete"


def test_a_task_of_the_run_cannot_approve_it_through_a_command(place: Place) -> None:
    """A shell task of the very run sends an approval while the driver waits for one."""
    flow = Workflow("f")
    (place.root / "sender.py").write_text(SENDER)
    import sys

    flow.add(
        "agent",
        "shell",
        run=[sys.executable, "sender.py", place.database, "w", ANSWER],
        effects="none",
        env={"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    flow.add("ship", lambda: "shipped", approve="Ship?")
    result = drive(place, flow, id="w")
    assert result.status == "waiting"
    assert "complete" in {entry.status for entry in result.state.tasks if entry.task_id == "agent"}
    refused = of_type(journal(place, "w"), ev.CommandRefused)
    if not refused:  # it was not read before the drive ended: the next one refuses it
        assert go_on(place, "w", flow).status == "waiting"
        refused = of_type(journal(place, "w"), ev.CommandRefused)
    assert "is for a human" in refused[0].why
    assert "decision_made" not in types(journal(place, "w"))


def test_a_gate_for_agents_takes_the_answer_of_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    flow = shipping(ran, by="agent")
    drive(place, flow, id="w")
    monkeypatch.setenv("AGENTOS_ATTEMPT_ID", "w/build/1")
    assert say(place, "w", yes()).applied
    monkeypatch.delenv("AGENTOS_ATTEMPT_ID")
    assert go_on(place, "w", flow).status == "complete"


# --- effects that may have happened -------------------------------------------------------------------------------


def cut_off_payment(place: Place) -> tuple[Workflow, list[str]]:
    flow, killer, paid = Workflow("f"), Killer(), list[str]()

    async def pays(ctx: Context) -> str:
        paid.append(ctx.idempotency_key)
        await killer.strike()
        return "receipt"

    flow.add("pays", pays, effects="external")
    flow.add("after", lambda pays: f"after {pays}")
    kill(place, flow, killer, "w")
    return flow, paid


def test_an_effect_that_was_cut_off_is_asked_about_and_run_again_only_if_told(place: Place) -> None:
    flow, paid = cut_off_payment(place)
    result = go_on(place, "w", flow)
    assert (result.status, list(result.gates), len(paid)) == ("waiting", ["ask:pays"], 1)
    assert go_on(place, "w", flow).status == "waiting", "asked once, and still open"
    say(place, "w", yes("ask:pays", choice="run-again"))
    assert go_on(place, "w", flow).outputs["after"] == "after receipt"
    assert len(paid) == 2
    assert paid[0] == paid[1], "the same key over a crash"


def test_an_effect_that_happened_gives_its_output_by_hand(place: Place) -> None:
    flow, paid = cut_off_payment(place)
    go_on(place, "w", flow)
    say(place, "w", yes("ask:pays", answer="happened", output={"id": 17}))
    result = go_on(place, "w", flow)
    assert result.outputs["after"] == "after {'id': 17}"
    assert len(paid) == 1


def test_an_effect_that_shall_not_be_repeated_fails(place: Place) -> None:
    flow, paid = cut_off_payment(place)
    go_on(place, "w", flow)
    say(place, "w", yes("ask:pays", approved=False))
    assert go_on(place, "w", flow).status == "failed"
    assert len(paid) == 1


@pytest.mark.parametrize("idempotent", [True, "keyed"])
def test_an_idempotent_effect_is_repeated_unasked_with_its_key(place: Place, idempotent: Any) -> None:
    flow, killer, keys = Workflow("f"), Killer(), list[str]()

    async def pays(ctx: Context) -> None:
        keys.append(ctx.idempotency_key)
        await killer.strike()

    flow.add("pays", pays, effects="external", idempotent=idempotent)
    kill(place, flow, killer, "w")
    assert go_on(place, "w", flow).status == "complete"
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_three_attempts_cut_off_in_a_row_open_a_gate(place: Place) -> None:
    flow, killer = Workflow("f"), Killer()

    async def dies() -> str:
        await killer.strike()
        return "lived"

    flow.add("dies", dies)
    kill(place, flow, killer, "w")
    for _ in range(2):
        killer.armed = True
        with pytest.raises(Exception, match="another process has taken run"):
            go_on(place, "w", flow, started=killer)
    result = go_on(place, "w", flow)
    assert (result.status, list(result.gates)) == ("waiting", ["ask:dies"])
    say(place, "w", yes("ask:dies", choice="run-again"))
    assert go_on(place, "w", flow).outputs == {"dies": "lived"}


def test_the_stream_shows_the_gate_before_the_driver_waits(place: Place) -> None:
    """The original blocked inside the gather, so that nobody could ever answer."""
    ran: list[str] = []

    async def scenario() -> Any:
        drives: list[Drive] = []
        running = asyncio.ensure_future(adrive(place, shipping(ran), id="w", gates="wait", started=drives.append))
        await soon(lambda: drives)
        async for event in drives[0].stream.subscribe(0):
            if isinstance(event, ev.DecisionRequired):
                store = place.open()
                CommandQueue.of_run(store, drives[0].facts.workflow_id).send(yes(event.gate_id))
                store.close()
        return await asyncio.wait_for(running, 20)

    assert asyncio.run(scenario()).status == "complete"
