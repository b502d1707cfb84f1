"""Answering through the client: what waits, what was shown, and an answer that waits for its outcome."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from agentos import client
from agentos.client.answers import find_gate, open_gates
from agentos.client.types import Pause
from agentos.client.views import read_run
from agentos.exceptions import CommandRefusedError
from agentos.tasks.process.ancestors import acting_attempt
from tests.workflow.support import soon


@pytest.fixture
def asked(repo: Path) -> Path:
    client.run(client.load("ask"), workflow_id="ask-1")
    return repo


def test_the_inbox_has_what_waits_in_every_worktree(
    asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = client.inbox()
    [gate] = found.gates
    assert (gate.workflow_id, gate.gate_id, gate.question, gate.root) == (
        "ask-1",
        "approve:ship",
        "Ship it?",
        str(asked),
    )
    assert gate.approve.startswith("agentos approve ask-1 approve:ship")
    assert found.problems == []
    assert client.inbox(asked).gates == [gate]


def test_an_answer_waits_for_its_outcome_whether_or_not_somebody_drives(asked: Path) -> None:
    assert client.approve("ask-1", reason="looked at") == "applied"
    [decision] = client.why("ask-1", "ship").decisions
    assert (decision.answer, decision.author.partition("@")[1]) == ("approved", "@")
    client.resume("ask-1")
    assert (asked / "shipped.txt").read_text() == "hello\n"
    begun = client.start_detached("ask", workflow_id="ask-2", gates="wait")
    asyncio.run(soon(lambda: client.view("ask-2").gates))
    assert client.reject("ask-2", "ship", reason="no") == "applied"
    asyncio.run(soon(lambda: client.view("ask-2").status == "failed"))
    assert begun.workflow_id == "ask-2"
    with pytest.raises(CommandRefusedError, match="already answered"):
        client.approve("ask-2", "approve:ship")


def test_a_command_is_delivered_to_its_outcome(repo: Path) -> None:
    client.start_detached("slow", workflow_id="slow-1")
    assert client.deliver("slow-1", Pause(reason="later"), "ada@home") == "applied"
    (repo / "go").touch()
    asyncio.run(soon(lambda: client.view("slow-1").driver is None))


def test_a_gate_shows_what_it_asked_and_the_files_it_opened_on(repo: Path) -> None:
    (repo / "workflows" / "both.yaml").write_text(
        "name: both\n"
        "tasks:\n"
        "  write: {run: 'echo one > one.txt'}\n"
        "  ship: {needs: write, approve: 'Ship it?', run: 'cat one.txt ${{ tasks.write.output.exit_code }}'}\n"
    )
    client.run(client.load("both"), workflow_id="both-1")
    seen = client.gate("both-1")
    assert seen.opened.question == "Ship it?"
    assert list(seen.context.before) == ["write"]
    assert seen.context.command.startswith("cat one.txt")
    assert seen.context.values == {"tasks.write.output.exit_code": "0"}
    snapshots = client.Client().checkpoints("both-1")
    assert seen.snapshot == snapshots[0].snapshot
    assert seen.tree
    assert client.gate("both-1", "ship") == seen, "seen twice, it is the same"


def test_all_that_a_run_asks_is_seen_as_each_of_it_is(repo: Path) -> None:
    (repo / "workflows" / "two.yaml").write_text(
        "name: two\ntasks:\n  a: {approve: 'A?', run: 'cat one.txt'}\n  b: {approve: 'B?', run: 'true'}\n"
    )
    (repo / "one.txt").write_text("one\n")
    client.run(client.load("two"), workflow_id="two-1")
    found = client.find_run("two-1")
    gates = open_gates(found)
    assert gates == [client.gate("two-1", "a"), client.gate("two-1", "b")]
    first = read_run(found, at=gates[0].opened.seq)
    assert [gate.opened.gate_id for gate in open_gates(found, first)] == ["approve:a"], "as of an event"


def test_files_that_changed_since_a_gate_asked_make_it_another_one(repo: Path) -> None:
    (repo / "workflows" / "one.yaml").write_text("name: one\ntasks:\n  a: {approve: 'A?', run: 'cat one.txt'}\n")
    (repo / "one.txt").write_text("one\n")
    client.run(client.load("one"), workflow_id="one-1")
    seen = client.gate("one-1")
    assert seen.changed == ()
    (repo / "one.txt").write_text("two\n")
    assert client.gate("one-1").changed == ("one.txt",)
    with pytest.raises(CommandRefusedError, match="does not ask what was seen"):
        client.approve("one-1", expect=seen.seen)
    (repo / "one.txt").write_text("one\n")
    assert client.approve("one-1", expect=seen.seen) == "applied"


def test_what_speaks_through_a_surface_is_judged_as_the_surface_is(asked: Path) -> None:
    marked = {**os.environ, "AGENTOS_ATTEMPT_ID": "run/task/1"}
    with subprocess.Popen(["sleep", "60"], env=marked) as attempt, subprocess.Popen(["sleep", "60"]) as other:
        try:
            asyncio.run(soon(lambda: acting_attempt(pid=attempt.pid)))
            for peers in ((attempt.pid,), (other.pid, attempt.pid), ()):
                with pytest.raises(CommandRefusedError, match="is for a human"):
                    client.answer("ask-1", approved=True, peers=peers)
            assert client.answer("ask-1", approved=True, peers=(other.pid,)) == "applied"
        finally:
            attempt.kill()
            other.kill()
    sender = client.view("ask-1").gates[0].sender
    assert sender is not None
    assert sender.processes[0] == f"sleep {other.pid}"


def test_an_answer_to_something_else_than_was_seen_is_refused(asked: Path) -> None:
    seen = client.gate("ask-1").seen
    with pytest.raises(CommandRefusedError, match="does not ask what was seen"):
        client.approve("ask-1", expect=f"{seen[:-1]}x")
    client.run(client.load("ask"), {"word": "other"}, "ask-2")
    assert client.gate("ask-2").seen != seen
    with pytest.raises(CommandRefusedError, match="does not ask what was seen"):
        client.reject("ask-2", expect=seen)
    assert client.approve("ask-1", expect=seen) == "applied"
    assert client.answer("ask-2", approved=False, reason="no", expect=client.gate("ask-2").seen) == "applied"


def test_a_gate_is_found_by_its_id_the_beginning_of_it_or_its_task(asked: Path) -> None:
    assert find_gate("ask-1") == find_gate("ask-1", "app") == find_gate("ask-1", "ship") == "approve:ship"
    with pytest.raises(CommandRefusedError, match="no gate 'nonsense' is open"):
        find_gate("ask-1", "nonsense")
