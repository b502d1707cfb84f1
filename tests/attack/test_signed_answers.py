"""Signed answers: nothing but a signature of this answer, by somebody whom the commit of the start names, counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentos.ids import GateId, TaskId, WorkflowId
from agentos.machine.commands import ApprovalResponse, CommandRequest, SignedAnswer
from agentos.machine.events import DecisionMade, DecisionRequired, Event
from agentos.machine.facts.fold import fold
from agentos.machine.inputs import Begin, CommandArrived, Input
from agentos.machine.machine import Machine
from agentos.machine.signed_text import signed_text
from agentos.store.holder import current_holder
from agentos.store.port import PostedCommand
from agentos.workflow.define.plans import decode_plan
from agentos.workflow.drive.journal import progress_of
from agentos.workflow.place.place import find_place
from tests.cli.conftest import SOURCES, Agentos
from tests.cli.signing import (
    SHIP,
    commit_all,
    make_key,
    make_repository,
    name_signers,
    shown_gates,
    sign_text,
    text_to_sign,
    write_flow,
)

pytestmark = pytest.mark.attack


@pytest.fixture
def ada(tmp_path: Path) -> Path:
    return make_key(tmp_path, "ada")


@pytest.fixture
def mallory(tmp_path: Path) -> Path:
    return make_key(tmp_path, "mallory")


@pytest.fixture
def repo(tmp_path: Path, home: Path, ada: Path) -> Path:
    make_repository(tmp_path / "repo", {"ada@example.com": ada})
    return tmp_path / "repo"


def begin(agentos: Agentos, repo: Path, run: str = "r") -> None:
    assert agentos("run", "flow.yaml", "--id", run, cwd=repo).code == 3


def refused(agentos: Agentos, repo: Path, *arguments: str | Path) -> str:
    """What an answer is refused with; nothing has run."""
    done = agentos("approve", *arguments, cwd=repo)
    assert done.code == 2, (done.out, done.err)
    assert not (repo / "shipped").exists()
    return str(done.err)


# --- signatures of something else -----------------------------------------------------------------------------------


def test_a_signature_for_another_run_gate_choice_or_reason_does_not_count(
    agentos: Agentos, repo: Path, ada: Path, tmp_path: Path
) -> None:
    approve = {"question": "Ship it?", "by": "signed", "choices": ["now", "later"]}
    task = {"approve": approve, "run": "./ship.sh"}
    write_flow(repo, {"ship": task, "other": task})
    begin(agentos, repo)
    begin(agentos, repo, "twin")
    ship = ("approve:ship", "--choose", "now")
    right = sign_text(text_to_sign(agentos, repo, *ship), ada, tmp_path)
    for arguments in (
        ("twin", "approve:ship", "--choose", "now"),
        ("r", "approve:other", "--choose", "now"),
        ("r", "approve:ship", "--choose", "later"),
        ("r", "approve:ship", "--choose", "now", "--reason", "as ada said"),
    ):
        said = refused(agentos, repo, *arguments, "--signature", right, "--no-resume")
        assert "it is not over this answer to this gate" in said, arguments
    said_no = sign_text(text_to_sign(agentos, repo, "approve:ship", "--choose", "now"), ada, tmp_path, "git")
    assert "does not count" in refused(agentos, repo, "r", *ship, "--signature", said_no)
    assert agentos("approve", "r", *ship, "--signature", right, "--no-resume", cwd=repo).code == 0


def test_a_signature_does_not_outlive_a_rollback(agentos: Agentos, repo: Path, ada: Path, tmp_path: Path) -> None:
    write_flow(repo, {"a": {"run": "true", "effects": "none"}, "ship": {**SHIP["ship"], "needs": "a"}})
    begin(agentos, repo)
    old = sign_text(text_to_sign(agentos, repo), ada, tmp_path)
    [cut] = json.loads(agentos("checkpoints", "r", "--json", cwd=repo).out)
    assert agentos("send", "r", "rollback", f"checkpoint_id={cut['id']}", cwd=repo).code == 0
    assert agentos("resume", "r", cwd=repo).code == 3
    assert "does not count" in refused(agentos, repo, "r", "--signature", old)
    assert agentos("approve", "r", "--sign", "--key", ada, cwd=repo).code == 0
    assert list(shown_gates(agentos, repo))[-1] == "approve:ship~1"


def test_a_signature_does_not_cover_a_script_that_changed_since(
    agentos: Agentos, repo: Path, ada: Path, tmp_path: Path
) -> None:
    begin(agentos, repo)
    old = sign_text(text_to_sign(agentos, repo), ada, tmp_path)
    (repo / "ship.sh").write_text("#!/bin/sh\necho evil > shipped\n")
    assert agentos("approve", "r", "--signature", old, cwd=repo).code == 3
    assert not (repo / "shipped").exists()
    assert "does not count" in refused(agentos, repo, "r", "approve:ship#2", "--signature", old)


def test_a_signature_does_not_cover_a_question_that_was_edited(
    agentos: Agentos, repo: Path, ada: Path, tmp_path: Path
) -> None:
    begin(agentos, repo)
    old = sign_text(text_to_sign(agentos, repo), ada, tmp_path)
    write_flow(repo, {"ship": {"approve": {"question": "Delete it?", "by": "signed"}, "run": "./ship.sh"}})
    assert agentos("resume", "r", cwd=repo).code == 3
    [gate] = [gate for gate in shown_gates(agentos, repo).values() if gate["open"]]
    assert gate["question"] == "Delete it?"
    assert "does not count" in refused(agentos, repo, "r", "--signature", old)


@pytest.mark.parametrize(
    "text", ["", "no signature", "-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"]
)
def test_what_is_no_signature_does_not_count(agentos: Agentos, repo: Path, tmp_path: Path, text: str) -> None:
    begin(agentos, repo)
    (tmp_path / "none").write_text(text)
    said = refused(agentos, repo, "r", "--signature", tmp_path / "none")
    assert ("does not count" if text else "is not signed") in said


def test_a_command_with_a_huge_signature_is_none(agentos: Agentos, repo: Path) -> None:
    begin(agentos, repo)
    command = {"type": "approval_response", "gate_id": "approve:ship", "approved": True, "signature": "x" * 100_000}
    done = agentos("send", "r", "-", cwd=repo, input=json.dumps(command))
    assert (done.code, "a signature of 100000 characters is none" in done.err) == (2, True), done.err


# --- whoever makes itself a signer ------------------------------------------------------------------------------------


def test_a_task_that_changes_and_commits_the_signers_makes_nobody_a_signer(
    agentos: Agentos, repo: Path, ada: Path, mallory: Path
) -> None:
    public = mallory.with_name(f"{mallory.name}.pub")
    take_over = (
        f"echo ada@example.com $(cut -d' ' -f1,2 {public}) > .agentos-signers;"
        " old=$(git rev-parse HEAD:.agentos-signers);"
        " git add .agentos-signers; git -c user.name=m -c user.email=m@m commit -qm mine;"
        " git replace $old $(git rev-parse HEAD:.agentos-signers); git replace HEAD~1 HEAD"
    )
    write_flow(repo, {"agent": {"run": take_over}, "ship": {**SHIP["ship"], "needs": "agent"}})
    began_at = commit_all(repo)
    begin(agentos, repo)
    replaced = subprocess.run(
        ["git", "-C", repo, "show", f"{began_at}:.agentos-signers"], capture_output=True, text=True
    )
    assert public.read_text().split()[1] in replaced.stdout  # as plain git sees it
    said = refused(agentos, repo, "r", "--sign", "--key", mallory)
    assert "it is of nobody whom .agentos-signers names now" in said
    assert json.loads(agentos("show", "r", "--json", cwd=repo).out)["signers"]["commit"] == began_at
    done = agentos("approve", "r", "--sign", "--key", ada, cwd=repo)
    assert done.code == 0, done.err


def test_a_file_of_the_worktree_that_is_not_committed_names_nobody(agentos: Agentos, repo: Path, mallory: Path) -> None:
    name_signers(repo, {"mallory@example.com": mallory})
    begin(agentos, repo)
    assert "of nobody whom" in refused(agentos, repo, "r", "--sign", "--key", mallory)


def test_a_task_does_not_answer_even_with_the_right_key(agentos: Agentos, repo: Path, ada: Path) -> None:
    answer = f"{sys.executable} -m agentos approve r approve:ship --sign --key {ada} --no-resume > said 2>&1 || true"
    write_flow(repo, {**SHIP, "wait": {"run": f"until test -e go; do sleep 0.02; done; {answer}"}})
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    command = [sys.executable, "-m", "agentos", "run", "flow.yaml", "--id", "r"]
    driver = subprocess.Popen(command, cwd=repo, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while "approve:ship" not in agentos("inbox", cwd=repo).out:
        assert driver.poll() is None
    (repo / "go").touch()
    assert driver.wait() == 3
    assert "is for a human" in (repo / "said").read_text()
    assert not (repo / "shipped").exists()


# --- a plan without the gate ------------------------------------------------------------------------------------------

LOOK = {
    "look": {"approval": {"question": "Ship it?", "by": "signed"}},
    "ship": {"needs": "look", "run": "./ship.sh"},
}


@pytest.mark.parametrize("command", [{"remove": ["look", "ship"]}, {"tasks": {"ship": {"run": "./ship.sh"}}}])
def test_no_command_takes_a_gate_away_or_what_stands_behind_it(
    agentos: Agentos, repo: Path, command: dict[str, Any]
) -> None:
    write_flow(repo, LOOK)
    begin(agentos, repo)
    agentos("send", "r", json.dumps({"type": "replan_dag", **command}), cwd=repo)
    assert agentos("resume", "r", cwd=repo).code == 3
    assert "waits for a signed answer; no command takes that away" in agentos("events", "r", cwd=repo).out
    assert shown_gates(agentos, repo)["approval:look"]["open"]
    assert not (repo / "shipped").exists()


@pytest.mark.parametrize(
    "edited",
    [
        {"look": {"approval": "Ship it?"}, "ship": LOOK["ship"]},
        {"look": LOOK["look"], "ship": {"run": "./ship.sh"}},
        {"ship": {"run": "./ship.sh"}},
    ],
    ids=["a plain question", "no need of it", "no gate"],
)
def test_a_workflow_edited_under_way_needs_the_signature_all_the_same(
    agentos: Agentos, repo: Path, ada: Path, edited: dict[str, Any]
) -> None:
    write_flow(repo, LOOK)
    begin(agentos, repo)
    write_flow(repo, edited)
    done = agentos("resume", "r", cwd=repo)
    assert (done.code, "waited for a signed answer" in done.err) == (2, True), done.err
    assert not (repo / "shipped").exists()
    assert agentos("approve", "r", "--sign", "--key", ada, "--no-resume", cwd=repo).code == 0
    assert agentos("resume", "r", "--as-stored", cwd=repo).code == 0
    assert (repo / "shipped").exists()


def test_a_gate_that_comes_in_under_way_needs_signers_of_the_start(agentos: Agentos, repo: Path) -> None:
    write_flow(repo, {"look": {"approval": "Go on?"}})
    begin(agentos, repo)
    added = {"type": "inject_tasks", "tasks": {"late": {"run": "true", "approve": {"question": "?", "by": "signed"}}}}
    agentos("send", "r", json.dumps(added), cwd=repo)
    agentos("resume", "r", cwd=repo)
    assert "by: signed needs signers, which are those of the start" in agentos("events", "r", cwd=repo).out
    write_flow(repo, {"look": {"approval": "Go on?"}, **SHIP})
    done = agentos("resume", "r", cwd=repo)
    assert (done.code, "the run began without signers" in done.err) == (2, True), done.err


def test_a_run_that_was_killed_before_it_began_takes_its_signers_when_it_does(
    agentos: Agentos, repo: Path, ada: Path
) -> None:
    killed = agentos("run", "flow.yaml", "--id", "r", cwd=repo, env={"AGENTOS_CRASH_AT": "commit.before:1"})
    assert killed.code == -9
    done = agentos("send", "r", "pause", cwd=repo)
    assert (done.code, "who may sign its answers is not known yet" in done.err) == (2, True), done.err
    assert agentos("resume", "r", cwd=repo).code == 3
    assert agentos("approve", "r", "--sign", "--key", ada, cwd=repo).code == 0


# --- rows that somebody else wrote ----------------------------------------------------------------------------------

Forgery = Callable[[Event], Event]


def forge_yes(
    root: Path, signature: str, change: Forgery = lambda event: event, run: str = "r", gate: str = "approve:ship"
) -> None:
    """Write a yes to the journal as a program would that has this package at hand, and the user's rights."""
    workflow_id, now = WorkflowId(run), datetime.now(UTC)
    store = find_place(root).open()
    try:
        facts = fold(workflow_id, store.read_events(workflow_id))
        lease = store.take_lease(workflow_id, current_holder(), 30.0)
        machine = Machine(decode_plan(store.read_plan(workflow_id)), facts, gates="stop", starts=False)
        yes = ApprovalResponse(gate_id=gate, approved=True, signature=signature)
        text = signed_text(facts, yes)
        signed = SignedAnswer(principal="ada@example.com", key="SHA256:x", text=text, signature=signature)
        asked = CommandRequest(command_id="c", author="ada", attempt_id="", at=now, command=yes, signed=signed)
        given: list[Input] = [Begin(holder=str(current_holder()), token=lease.token), CommandArrived(asked=asked)]
        events = [change(event) for event in machine.steps(given, now)]
        assert any(isinstance(event, DecisionMade) for event in events)
        store.append(lease, events, progress_of(machine))
        store.release_lease(lease)
    finally:
        store.close()


def change_decision(**fields: Any) -> Forgery:
    return lambda event: replace(event, **fields) if isinstance(event, DecisionMade) else event


def test_a_yes_that_somebody_wrote_into_the_journal_without_a_signature_runs_nothing(
    agentos: Agentos, repo: Path
) -> None:
    begin(agentos, repo)
    forge_yes(repo, "x", change_decision(signed=None, author="ada@example.com"))
    for command in (["resume", "r"], ["resume", "r", "--as-stored"], ["run", "flow.yaml", "--id", "r"]):
        done = agentos(*command, cwd=repo)
        assert (done.code, "was approved by ada@example.com, and that does not hold" in done.err) == (2, True), done.err
        assert "it has no signature" in done.err
    assert not (repo / "shipped").exists()


def test_a_yes_in_the_journal_with_the_signature_of_a_stranger_runs_nothing(
    agentos: Agentos, repo: Path, mallory: Path, tmp_path: Path
) -> None:
    begin(agentos, repo)
    forge_yes(repo, sign_text(text_to_sign(agentos, repo), mallory, tmp_path).read_text())
    done = agentos("resume", "r", cwd=repo)
    assert (done.code, "it is of nobody whom .agentos-signers names" in done.err) == (2, True), done.err
    assert not (repo / "shipped").exists()


def test_a_yes_in_the_journal_with_a_signature_from_another_run_runs_nothing(
    agentos: Agentos, repo: Path, ada: Path
) -> None:
    begin(agentos, repo, "signed-once")
    assert agentos("approve", "signed-once", "--sign", "--key", ada, cwd=repo).code == 0
    (repo / "shipped").unlink()
    gate = shown_gates(agentos, repo, "signed-once")["approve:ship"]
    copied = SignedAnswer(**gate["signed"])
    begin(agentos, repo)
    forge_yes(repo, copied.signature, change_decision(signed=copied, author=gate["author"]))
    done = agentos("resume", "r", cwd=repo)
    assert (done.code, "of another answer, or of another gate or run" in done.err) == (2, True), done.err
    assert not (repo / "shipped").exists()


def test_who_signed_is_not_rewritten(agentos: Agentos, repo: Path, ada: Path, tmp_path: Path) -> None:
    begin(agentos, repo)
    forge_yes(repo, sign_text(text_to_sign(agentos, repo), ada, tmp_path).read_text(), change_decision(author="bob"))
    done = agentos("resume", "r", cwd=repo)
    assert (done.code, "it is by ada@example.com (signed, SHA256:" in done.err) == (2, True), done.err


def test_a_gate_in_the_journal_that_asks_for_less_lets_nothing_through(agentos: Agentos, repo: Path) -> None:
    """The open gate is withdrawn, and asked and answered again as one for anybody."""
    begin(agentos, repo)
    store = find_place(repo).open()
    [asked] = [event for event in store.read_events(WorkflowId("r")) if isinstance(event, DecisionRequired)]
    lease = store.take_lease(WorkflowId("r"), current_holder(), 30.0)
    facts = fold(WorkflowId("r"), store.read_events(WorkflowId("r")))
    machine = Machine(decode_plan(store.read_plan(WorkflowId("r"))), facts, gates="stop", starts=False)
    events = machine.step(Begin(holder=str(current_holder()), token=lease.token), datetime.now(UTC))
    again = GateId("approve:ship#2")
    made: dict[str, Any] = {
        "kind": "approve",
        "task_id": TaskId("ship"),
        "layer": 0,
        "place": asked.place,
        "author": "ada",
    }
    for event in (
        DecisionMade(gate_id=GateId("approve:ship"), answer="withdrawn", **made),
        replace(asked, gate_id=again, by="human"),
        DecisionMade(gate_id=again, answer="approved", **made),
    ):
        machine.emit(event)
    store.append(lease, events, progress_of(machine))
    store.release_lease(lease)
    store.close()
    done = agentos("resume", "r", cwd=repo)
    assert done.code == 3, done.err
    assert not (repo / "shipped").exists()
    gate = shown_gates(agentos, repo)["approve:ship#3"]
    assert (gate["open"], gate["by"]) == (True, "signed")
    assert "was approved without a signature" in gate["again"]


CARELESS = """
import sys
from agentos.cli.main import main
from agentos.workflow.place import signatures
signatures.refuse_forged = lambda *given: None
sys.argv = ["agentos", "resume", "r"]
main()
"""


def test_results_behind_a_forged_yes_are_not_taken_into_a_fork(agentos: Agentos, repo: Path) -> None:
    """A driver of somebody's own, that verifies nothing, has gone on with it."""
    write_flow(repo, {"look": LOOK["look"], "ship": {"needs": "look", "approve": "Sure?", "run": "./ship.sh"}})
    begin(agentos, repo)
    forge_yes(repo, "x", change_decision(signed=None), gate="approval:look")
    subprocess.run([sys.executable, "-c", CARELESS], cwd=repo, env={**os.environ, "PYTHONPATH": str(SOURCES)})
    assert shown_gates(agentos, repo)["approve:ship"]["open"]
    for command in ("resume", "fork"):
        done = agentos(command, "r", cwd=repo)
        assert (done.code, "approval:look was approved" in done.err, "it has no signature" in done.err) == (
            2,
            True,
            True,
        )


def test_a_row_in_the_inbox_is_verified_by_whoever_drives(
    agentos: Agentos, repo: Path, ada: Path, mallory: Path, tmp_path: Path
) -> None:
    begin(agentos, repo)
    text = text_to_sign(agentos, repo)
    store = find_place(repo).open()
    for number, fields in enumerate(
        [
            {},
            {"signature": sign_text(text, mallory, tmp_path).read_text()},
            {"signature": sign_text(text, ada, tmp_path, "file").read_text()},
        ]
    ):
        row = {"type": "approval_response", "gate_id": "approve:ship", "approved": True, **fields}
        posted = PostedCommand(id=f"c{number}", author="ada@example.com", command=row, posted_at=datetime.now(UTC))
        store.post_command(WorkflowId("r"), posted)
    store.close()
    assert agentos("resume", "r", cwd=repo).code == 3
    assert not (repo / "shipped").exists()
    kinds = [json.loads(line)["type"] for line in agentos("events", "r", "--json", cwd=repo).out.splitlines()]
    assert kinds.count("command_refused") == 3


def test_a_signature_that_waited_in_the_inbox_counts_once_it_is_verified(
    agentos: Agentos, repo: Path, ada: Path, tmp_path: Path
) -> None:
    begin(agentos, repo)
    signature = sign_text(text_to_sign(agentos, repo), ada, tmp_path).read_text()
    row = {"type": "approval_response", "gate_id": "approve:ship", "approved": True, "signature": signature}
    store = find_place(repo).open()
    store.post_command(
        WorkflowId("r"), PostedCommand(id="c", author="somebody", command=row, posted_at=datetime.now(UTC))
    )
    store.close()
    assert agentos("resume", "r", cwd=repo).code == 0
    assert (repo / "shipped").exists()
    assert shown_gates(agentos, repo)["approve:ship"]["author"].startswith("ada@example.com (signed, ")


def test_other_signers_in_the_journal_than_in_the_commit_count_for_nothing(
    agentos: Agentos, repo: Path, ada: Path
) -> None:
    """Of a repository whose objects were changed, or a journal that was: nobody's word is taken."""
    begin(agentos, repo)
    blob = subprocess.run(
        ["git", "-C", repo, "rev-parse", "HEAD:.agentos-signers"], check=True, capture_output=True, text=True
    ).stdout.strip()
    (repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    said = refused(agentos, repo, "r", "--sign", "--key", ada)
    assert "the signature does not count" in said
