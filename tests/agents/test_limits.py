"""Where a budget or a number of turns is reached: who goes on is stopped, and an answer that is there counts."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentos import Client, Workflow, resume, run
from agentos.dag.models import Budget
from agentos.run.events import DecisionRequired, TaskRetry, Usage
from agentos.secrets import NO_SECRETS
from agentos.tasks import supervise
from agentos.tasks.agents.adapter import Ended, Reader, Word
from agentos.tasks.agents.following import Follower
from agentos.tasks.agents.known import AGENTS
from tests.agents.script import RunShell
from tests.agents.support import agent_spec, scripted
from tests.models.replies import says
from tests.unit.tasks.support import RecordingHost, is_alive, output_of, perform

USAGE = {"input_tokens": 10, "output_tokens": 5}


class Poor(RecordingHost):
    """May spend so many tokens."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens

    def allowance(self) -> Budget:
        return Budget(tokens=max(0, self.tokens - sum(usage.tokens for usage in self.usages)))


def answers(id: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"type": "assistant", "message": {"id": id, "usage": USAGE, "content": list(blocks)}}


TEXT = {"type": "text", "text": "All done."}
TOOL = {"type": "tool_use", "name": "Bash", "input": {"command": "true"}}
TOOL_DONE = {"type": "user", "message": {"content": [{"type": "tool_result"}]}}
RESULT = {"type": "result", "subtype": "success", "result": "All done.", "num_turns": 1, "total_cost_usd": 0.5}
OVER_BUDGET = {"type": "result", "subtype": "error_max_budget_usd", "is_error": True, "errors": ["Reached maximum"]}

CODEX_TOOL = {"type": "command_execution", "command": "true"}
CODEX_ANSWER = {"type": "item.completed", "item": {"type": "agent_message", "text": "All done."}}
CODEX_DONE = {"type": "turn.completed", "usage": USAGE}
CODEX_WORKS = ({"type": "item.started", "item": CODEX_TOOL}, {"type": "item.completed", "item": CODEX_TOOL})


def stopped_after(
    agent: str, *said: dict[str, Any] | None, tokens: int = 1_000, max_turns: int | None = None
) -> tuple[int | None, Word | None]:
    """After how many events, and why, the agent is stopped; None stands for time in which all is written down."""

    async def follow() -> tuple[int | None, Word | None]:
        async def known(_: str) -> None:
            pass

        reader: Reader = AGENTS[agent].reader()
        follower = Follower(reader, Poor(tokens), masker=NO_SECRETS, log=None, on_session=known, max_turns=max_turns)
        writing = asyncio.create_task(follower.write_down())
        at: int | None = None
        for place, event in enumerate(said):
            if event is None:
                for _ in range(20):
                    await asyncio.sleep(0)
            else:
                follower.feed(json.dumps(event).encode() + b"\n")
            if follower.stop.done() and at is None:
                at = place
        follower.close()
        await writing
        return at, follower.stop.result() if at is not None else None

    return asyncio.run(follow())


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ((answers("m1", TEXT), None, RESULT, None), (None, None)),
        ((answers("m1", TEXT), RESULT, None), (None, None)),
        ((answers("m1", TEXT), None, answers("m1", TOOL), None), (2, "budget")),
        ((answers("m1", TEXT), answers("m1", TOOL), None, RESULT), (2, "budget")),
        ((answers("m1", TOOL), TOOL_DONE, answers("m2", TEXT), None, RESULT), (None, None)),
        ((answers("m1", TEXT), None, answers("m2", TEXT), None), (2, "budget")),
    ],
    ids=["answer", "answer-at-once", "tool-later", "tool-at-once", "answer-after-a-tool", "another-message"],
)
def test_beyond_its_budget_an_agent_is_stopped_where_it_goes_on(
    said: Sequence[dict[str, Any] | None], expected: tuple[int | None, Word | None]
) -> None:
    assert stopped_after("claude", *said, tokens=15) == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ((*CODEX_WORKS, CODEX_ANSWER, CODEX_DONE), (None, None)),
        ((*CODEX_WORKS, CODEX_ANSWER, *CODEX_WORKS), (3, "turn_limit")),
    ],
)
def test_beyond_its_turns_an_agent_is_stopped_where_it_goes_on(
    said: Sequence[dict[str, Any]], expected: tuple[int | None, Word | None]
) -> None:
    assert stopped_after("codex", *said, max_turns=1) == expected


@pytest.mark.parametrize(
    ("agent", "lines", "done"),
    [
        ("claude", [answers("m1", TEXT), RESULT], True),
        ("codex", [CODEX_ANSWER, CODEX_DONE], True),
        ("codex", [CODEX_ANSWER], False),
        ("codex", [CODEX_ANSWER, CODEX_DONE, {"type": "turn.started"}], False),
        ("opencode", [{"type": "step_start"}, {"type": "step_finish", "part": {"reason": "stop"}}], True),
        ("opencode", [{"type": "step_finish", "part": {"reason": "stop"}}, {"type": "step_start"}], False),
    ],
)
def test_the_status_of_an_agent_that_we_stopped_says_nothing(
    agent: str, lines: list[dict[str, Any]], done: bool
) -> None:
    reader = AGENTS[agent].reader()
    for line in lines:
        reader.line(json.dumps(line))
    assert (reader.verdict(Ended(-15, stopped=True)).outcome == "ok") == done


@pytest.mark.parametrize(
    ("stop_reason", "blocks", "outcome", "text"),
    [
        ("end_turn", (TEXT,), "ok", "All done."),
        ("tool_use", (TEXT, TOOL), "budget", ""),
        ("end_turn", (), "budget", ""),
    ],
)
def test_claude_calls_an_answer_that_went_beyond_the_dollars_an_error(
    stop_reason: str, blocks: tuple[dict[str, Any], ...], outcome: str, text: str
) -> None:
    reader = AGENTS["claude"].reader()
    for line in (answers("m0", {"type": "text", "text": "First "}), answers("m1", *blocks)):
        reader.line(json.dumps(line))
    reader.line(json.dumps({**OVER_BUDGET, "stop_reason": stop_reason}))
    verdict = reader.verdict(Ended(1))
    assert (verdict.outcome, verdict.text) == (outcome, text)


def plays_claude(folder: Path, *lines: dict[str, Any], when_stopped: Sequence[dict[str, Any]] = ()) -> str:
    """A program of that name; what it says when it is told to end. The PATH that leads to it."""
    (folder / "package.json").write_text('{"bin": {}, "version": "2.1"}')
    program = folder / "claude"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, signal, sys, time\n"
        # Not with print: the signal may come in the middle of one.
        f"def say(lines):\n    for line in lines: os.write(1, json.dumps(line).encode() + b'\\n')\n"
        f"def end(*_):\n    say({list(when_stopped)!r})\n    os._exit(0)\n"
        f"signal.signal(signal.SIGTERM, end)\nsay({list(lines)!r})\n"
        # Many short sleeps: a signal that comes right before a long one is handled after it.
        f"while {bool(when_stopped)}: time.sleep(0.01)\n"
    )
    program.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_an_answer_that_comes_while_the_agent_is_being_stopped_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "GRACE_S", 60.0)  # as long as it takes here
    path = plays_claude(tmp_path, answers("m1", TOOL), when_stopped=[answers("m2", TEXT), RESULT])
    host = Poor(10)
    outcome = perform(agent_spec(tmp_path, "claude", env={"PATH": path}), host)

    assert output_of(outcome)["text"] == "All done."
    assert sum(host.usages, Usage()).cost_usd == 0.5
    assert not is_alive(host.children[0].pid)


def test_an_answer_that_was_not_given_does_not_count(tmp_path: Path) -> None:
    path = plays_claude(tmp_path, answers("m1", TOOL), when_stopped=[answers("m2", TEXT)])
    outcome = perform(agent_spec(tmp_path, "claude", env={"PATH": path}), Poor(10))

    assert outcome.error is not None
    assert "(budget)" in outcome.error.text
    assert outcome.retryable


def test_what_went_beyond_the_budget_is_asked_about_before_the_next_call(
    tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", plays_claude(tmp_path, answers("m1", TEXT), RESULT))
    flow = Workflow("two", budget={"tokens": 10})
    flow.add("one", "agent", agent="claude", prompt="Do it.", effects="none")
    flow.add("two", "agent", agent="claude", prompt="Do it, too.", effects="none", needs=["one"])
    waits = run(flow, workflow_id="w1", repo=tmp_git_repo)

    assert waits.status == "waiting"
    assert waits.outputs["one"]["text"] == "All done."
    [gate] = [event for event in Client(tmp_git_repo).events("w1") if isinstance(event, DecisionRequired)]
    assert (gate.task_id, gate.kind) == ("two", "budget")
    assert gate.spent is not None
    assert gate.spent.tokens == 15
    assert resume("w1", workflow=flow, repo=tmp_git_repo).status == "waiting"


def test_an_agent_that_waited_for_its_slot_is_not_started_once_the_budget_is_used_up(
    tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path
) -> None:
    monkeypatch.setenv("PATH", plays_claude(tmp_path, answers("m1", TEXT), RESULT))
    (tmp_git_repo / "agentos.toml").write_text("[limits.claude]\nslots = 1\n")
    flow = Workflow("three", budget={"tokens": 20})  # each takes 15
    for name in ("one", "two", "three"):
        flow.add(name, "agent", agent="claude", prompt="Do it.", effects="none")
    waits = run(flow, workflow_id="w1", repo=tmp_git_repo)

    assert (waits.status, len(waits.outputs)) == ("waiting", 2)
    events = Client(tmp_git_repo).events("w1")
    [put_off] = [event for event in events if isinstance(event, TaskRetry)]
    [gate] = [event for event in events if isinstance(event, DecisionRequired)]
    assert put_off.put_off
    assert gate.task_id == put_off.task_id
    Client(tmp_git_repo).approve("w1", gate.gate_id)
    assert resume("w1", workflow=flow, repo=tmp_git_repo).status == "complete"


@pytest.mark.parametrize("budget", [Budget(cost_usd=0.00001), Budget(tokens=1)], ids=["dollars", "tokens"])
def test_the_last_answer_of_a_real_agent_counts_though_it_went_beyond(
    budget: Budget, tmp_git_repo: Path, home: Path
) -> None:
    class Spent(RecordingHost):
        def allowance(self) -> Budget:
            return Budget(cost_usd=0.0, tokens=0) if self.usages else budget

    with scripted("claude", home, RunShell("true"), says("never")) as model:
        refused = perform(agent_spec(tmp_git_repo, "claude", env=model.env), Spent())
        model.script.then(says("All done."))
        host = Spent()
        outcome = perform(agent_spec(tmp_git_repo, "claude", env=model.env), host)

    assert refused.error is not None
    assert "(budget)" in refused.error.text
    assert output_of(outcome)["text"] == "All done."
    assert sum(host.usages, Usage()).cost_usd > 0
