"""The samples of docs/howto-steps.md, after tutorials of DBOS and Temporal: killed at every step, to the same end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos import Client, testing
from agentos.ids import GateId
from agentos.machine.commands import ApprovalResponse
from agentos.machine.events import DecisionRequired
from tests.e2e.typing_documents import blocks
from tests.marks import quick_first

PAGE = Path(__file__).parents[2] / "docs" / "howto-steps.md"
MOST = 12
"""Processes until a run must have ended."""

CHECKOUT = ["reserve tea", "tea is packed", "tea is on its way", "tea is there"]
TRANSFER = ["withdraw 250", "deposit 250"]
CHECKOUT_KILLS = [
    *((0, point) for point in ("step.before", "step.after", "gate.opened", "task.suspended")),
    *(
        (1, f"{point}:{n}")
        for n in (1, 2, 3)
        for point in ("step.before", "step.after", "sleep.begun", "task.suspended")
    ),
]
"""In the process that opens the gate, and in the one after the answer."""
TRANSFER_KILLS = [(0, f"{point}:{n}") for n in (1, 2) for point in ("step.begun", "step.before", "step.after")]


@pytest.fixture
def desk(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for block in blocks(PAGE):
        if block.mark.startswith("file="):
            (tmp_git_repo / block.mark.removeprefix("file=")).write_text(block.text)
    monkeypatch.chdir(tmp_git_repo)
    return tmp_git_repo


def play(
    desk: Path, command: str, run_id: str, kill: tuple[int, str], answer: Callable[[DecisionRequired], None]
) -> int:
    """Run and go on until the run is complete, killed once on the way; how often it was killed."""
    (process, at), kills = kill, 0
    for number in range(MOST):
        done = testing.start([sys.executable, *command.split()], cwd=desk, at=at if number == process else None)
        kills += done.returncode == -9
        shown = Client().show(run_id)
        if shown.status == "complete":
            return kills
        asked = {event.gate_id: event for event in Client().events(run_id) if isinstance(event, DecisionRequired)}
        for gate_id in shown.gates if done.returncode != -9 else ():
            answer(asked[GateId(gate_id)])
    raise AssertionError("the run does not come to an end")


@pytest.mark.parametrize(("process", "at"), quick_first(CHECKOUT_KILLS))
def test_a_checkout_killed_anywhere_is_delivered_once(desk: Path, process: int, at: str) -> None:
    def pay(asked: DecisionRequired) -> None:
        assert asked.kind == "wait", asked.question
        Client().approve("order-tea", reason="card")

    assert play(desk, "checkout.py tea", "order-tea", (process, at), pay) == 1
    assert Client().show("order-tea").outputs["checkout"] == "delivered, paid by card"
    log = (desk.parent / "shop.log").read_text().splitlines()
    assert list(dict.fromkeys(log)) == CHECKOUT
    # What gave a result that was not yet written down is called again: these effects may be repeated.
    assert len(log) - len(CHECKOUT) == at.startswith("step.before")
    assert sum(isinstance(event, DecisionRequired) for event in Client().events("order-tea")) == 1


@pytest.mark.parametrize(("process", "at"), quick_first(TRANSFER_KILLS))
def test_a_transfer_killed_anywhere_moves_the_money_once(desk: Path, process: int, at: str) -> None:
    bank = desk.parent / "bank.log"

    def look_at_the_account(asked: DecisionRequired) -> None:
        assert asked.step is not None, "the whole task is asked about"
        booked, effect = bank.read_text().splitlines() if bank.exists() else [], TRANSFER[asked.step]
        answer = ApprovalResponse(gate_id=asked.gate_id, approved=True, choice="did-not-run")
        if effect in booked:
            answer = ApprovalResponse(gate_id=asked.gate_id, approved=True, choice="it-ran", output=effect)
        Client().send("t1", answer, author="me")

    assert play(desk, "transfer.py", "t1", (process, at), look_at_the_account) == 1
    assert bank.read_text().splitlines() == TRANSFER
    asked = [event for event in Client().events("t1") if isinstance(event, DecisionRequired)]
    assert len(asked) == (not at.startswith("step.after"))
