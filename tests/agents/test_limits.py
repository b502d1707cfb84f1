"""Where a budget or a number of turns is reached: who goes on is stopped, and an answer that is there counts."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import agentos
from agentos import Client, Workflow, resume, run
from agentos.dag.define.model_calls import Budget
from agentos.machine.events import DecisionRequired, TaskRetry, TaskStart, TaskUsage, Usage
from agentos.secrets import NO_SECRETS
from agentos.tasks.agents.adapters.adapter import AgentExit, AgentOutcome, Reader
from agentos.tasks.agents.adapters.known import AGENTS
from agentos.tasks.agents.watcher import Follower
from agentos.tasks.llm.model_settings import NO_MODEL_SETTINGS, ModelSettings, Price
from agentos.tasks.process import supervision
from tests.agents.script import RunShell
from tests.agents.support import agent_spec, scripted
from tests.models.replies import Hang, says
from tests.unit.tasks.support import RecordingHost, cancel_when, is_alive, output_of, perform

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
) -> tuple[int | None, AgentOutcome | None]:
    """After how many events, and why, the agent is stopped; None stands for time in which all is written down."""

    async def follow() -> tuple[int | None, AgentOutcome | None]:
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
        ((answers("m1", TEXT), None, answers("m1", TOOL), None, TOOL_DONE, None), (5, "budget")),
        ((answers("m1", TEXT), answers("m1", TOOL), None, TOOL_DONE, None), (4, "budget")),
        ((answers("m1", TOOL), TOOL_DONE, None), (2, "budget")),
        ((answers("m1", TOOL), TOOL_DONE, answers("m2", TEXT), None, RESULT), (None, None)),
        ((answers("m1", TEXT), None, answers("m2", TEXT), None), (2, "budget")),
        ((answers("m1", TOOL), None, answers("m2", TOOL), None), (2, "budget")),
    ],
    ids=[
        "answer",
        "answer-at-once",
        "tool-later",
        "tool-at-once",
        "tool-done-at-once",
        "answer-after-a-tool",
        "another-message",
        "another-tool",
    ],
)
def test_beyond_its_budget_an_agent_is_stopped_where_it_goes_on_after_the_tools_of_what_was_paid(
    said: Sequence[dict[str, Any] | None], expected: tuple[int | None, AgentOutcome | None]
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
    said: Sequence[dict[str, Any]], expected: tuple[int | None, AgentOutcome | None]
) -> None:
    assert stopped_after("codex", *said, max_turns=1) == expected


@pytest.mark.parametrize(
    ("agent", "lines", "done"),
    [
        ("claude", [answers("m1", TEXT), RESULT], True),
        ("codex", [CODEX_ANSWER, CODEX_DONE], True),
        ("codex", [CODEX_ANSWER], False),
        ("codex", [CODEX_ANSWER, CODEX_DONE, {"type": "turn.started"}], False),
        ("copilot", [{"type": "result", "exitCode": 0}], True),
        ("copilot", [{"type": "abort"}, {"type": "result", "exitCode": 0}], False),
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
    assert (reader.verdict(AgentExit(-15, stopped=True)).outcome == "ok") == done


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
    verdict = reader.verdict(AgentExit(1))
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
        f"signal.signal(signal.SIGINT, end)\nsay({list(lines)!r})\n"
        # Many short sleeps: a signal that comes right before a long one is handled after it.
        f"while {bool(when_stopped)}: time.sleep(0.01)\n"
    )
    program.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_an_answer_that_comes_while_the_agent_is_being_stopped_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "GRACE_S", 60.0)  # as long as it takes here
    path = plays_claude(tmp_path, answers("m1", TOOL), TOOL_DONE, when_stopped=[answers("m2", TEXT), RESULT])
    host = Poor(10)
    outcome = perform(agent_spec(tmp_path, "claude", env={"PATH": path}), host)

    assert output_of(outcome)["text"] == "All done."
    assert sum(host.usages, Usage()).cost_usd == 0.5
    assert not is_alive(host.children[0].pid)


def test_an_answer_that_was_not_given_does_not_count(tmp_path: Path) -> None:
    path = plays_claude(tmp_path, answers("m1", TOOL), TOOL_DONE, when_stopped=[answers("m2", TEXT)])
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


# --- dollars that an agent has not told yet -------------------------------------------------------------------------

MODEL = "claude-sonnet-4-5"
PRICED = f'[prices."{MODEL}"]\ninput_per_million = 1000\noutput_per_million = 2000\n'
"""By this, an answer of the stand-in costs two cents."""
PRICES = ModelSettings(prices={MODEL: Price(input_per_million=1000, output_per_million=2000)})


@pytest.mark.parametrize("result", [RESULT, {**RESULT, "total_cost_usd": 0.001}], ids=["more", "less"])
def test_what_was_reckoned_before_its_end_is_settled_with_what_the_agent_says_then(
    result: dict[str, Any], tmp_path: Path
) -> None:
    path = plays_claude(tmp_path, answers("m1", TOOL), TOOL_DONE, answers("m2", TEXT), result)
    host = RecordingHost()
    outcome = perform(agent_spec(tmp_path, "claude", env={"PATH": path}, models=PRICES), host)

    told = result["total_cost_usd"]
    assert host.usages[0].cost_usd > 0, "a kill would not lose it"
    assert sum(host.usages, Usage()).cost_usd == pytest.approx(told)
    assert sum(host.usages, Usage()).tokens == 30
    *turns, correction = host.calls
    assert [(turn.provider, turn.model, turn.agent) for turn in turns if turn is not None] == [
        ("anthropic", MODEL, "claude")
    ] * len(turns)
    assert correction is None
    started = [turn.started for turn in turns if turn is not None]
    assert started == sorted(set(started)), "a turn begins after the one before"
    assert output_of(outcome)["usage"]["cost_usd"] == pytest.approx(told)


@pytest.mark.parametrize("named", [True, False])
def test_an_agent_that_never_tells_has_cost_what_the_settings_say(named: bool, tmp_path: Path) -> None:
    """By the model of the task; where it names none, by the one that the agent says it uses."""
    silent = {name: value for name, value in RESULT.items() if name != "total_cost_usd"}
    init = {"type": "system", "subtype": "init", "session_id": "s", "model": MODEL}
    path = plays_claude(tmp_path, init, answers("m1", TEXT), {**silent, "usage": {"input_tokens": 20}})
    host = RecordingHost()
    perform(agent_spec(tmp_path, "claude", env={"PATH": path}, models=PRICES, model=MODEL if named else ""), host)
    assert sum(host.usages, Usage()).cost_usd == pytest.approx(0.03)


def hangs(folder: Path) -> str:
    """A claude that tells what it used, and nothing more."""
    return plays_claude(folder, answers("m1", TEXT), when_stopped=[{"type": "nothing"}])


def test_an_agent_that_is_cut_off_before_it_tells_has_used_up_its_dollars(
    tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path
) -> None:
    monkeypatch.setenv("PATH", hangs(tmp_path))
    (tmp_git_repo / "agentos.toml").write_text(PRICED)
    flow = Workflow("hanging")
    how: dict[str, Any] = {"retries": {"retries": 2, "backoff_s": 0}, "timeout_s": 3, "budget": 0.015}
    flow.add("work", "agent", agent="claude", model=MODEL, prompt="Do it.", effects="none", **how)
    waits = run(flow, workflow_id="w1", repo=tmp_git_repo)

    assert waits.status == "waiting"
    events = Client(tmp_git_repo).events("w1")
    assert [event.usage.cost_usd for event in events if isinstance(event, TaskUsage)] == [pytest.approx(0.02)]
    assert sum(isinstance(event, TaskStart) for event in events) == 1
    [gate] = [event for event in events if isinstance(event, DecisionRequired)]
    assert "has spent $0.02 and 15 tokens" in gate.question


def test_a_driver_killed_before_the_agent_tells_finds_its_dollars_used_up(
    tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path
) -> None:
    monkeypatch.setenv("PATH", hangs(tmp_path))
    (tmp_git_repo / "agentos.toml").write_text(PRICED)
    (tmp_git_repo / "flow.yaml").write_text(
        f"name: flow\ntasks:\n  work: {{agent: claude, model: {MODEL}, prompt: Do it., budget: 0.015, effects: none}}\n"
    )
    client = Client(tmp_git_repo)
    env = {**os.environ, "PYTHONPATH": str(Path(agentos.__file__).parents[1])}
    command = [sys.executable, "-m", "agentos"]
    driver = subprocess.Popen(
        [*command, "run", "flow.yaml", "--id", "w1"], cwd=tmp_git_repo, env=env, stdout=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 60
        while not (client.list_runs() and any(isinstance(event, TaskUsage) for event in client.events("w1"))):
            assert driver.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        driver.kill()
        driver.wait()
    show = [*command, "show", "w1"]
    shown = subprocess.run(show, cwd=tmp_git_repo, env=env, capture_output=True, text=True, check=True).stdout
    assert "models were paid at least $0.02, 10 tokens in, 5 out" in shown
    told = json.loads(subprocess.run([*show, "--json"], cwd=tmp_git_repo, env=env, capture_output=True).stdout)
    assert (told["usage_at_least"], told["tasks"][0]["usage_at_least"]) == (True, True)
    resumed = subprocess.run([*command, "resume", "w1"], cwd=tmp_git_repo, env=env, capture_output=True, text=True)
    assert resumed.returncode == 3, resumed.stderr
    assert "Models were paid at least $0.02" in resumed.stderr
    assert sum(isinstance(event, TaskStart) for event in client.events("w1")) == 1


def test_dollars_that_nobody_knows_are_warned_about(tmp_path: Path) -> None:
    path = plays_claude(tmp_path, answers("m1", TEXT))
    host = RecordingHost()
    host.budget = Budget(cost_usd=0.05)
    outcome = perform(agent_spec(tmp_path, "claude", env={"PATH": path}, model="unlisted"), host)

    assert outcome.error is not None
    [warning] = outcome.warnings
    assert warning.startswith("nobody knows what the 15 tokens of claude cost: limits in dollars do not count them")
    assert '[prices."unlisted"]' in warning
    free = ModelSettings(prices={"unlisted": Price(input_per_million=0, output_per_million=0)})
    assert (
        perform(agent_spec(tmp_path, "claude", env={"PATH": path}, models=free, model="unlisted"), host).warnings == ()
    )


@pytest.mark.full
def test_dollars_of_a_real_agent_that_is_cut_off_count_and_those_of_one_that_ends_are_what_it_says(
    tmp_git_repo: Path, home: Path
) -> None:
    used = []
    with scripted("claude", home, RunShell("true"), Hang()) as model:
        cut_off = RecordingHost()
        spec = agent_spec(tmp_git_repo, "claude", env=model.env, models=PRICES)
        asyncio.run(cancel_when(spec, cut_off, lambda: bool(cut_off.usages)))
        for models in (PRICES, NO_MODEL_SETTINGS):
            model.script.then(RunShell("true"), says("All done."))
            outcome = perform(agent_spec(tmp_git_repo, "claude", env=model.env, models=models))
            used.append(output_of(outcome)["usage"])

    assert sum(cut_off.usages, Usage()).cost_usd > 0.01
    assert used[0].pop("cost_usd") == pytest.approx(used[1].pop("cost_usd"))
    assert used[0] == used[1]


@pytest.mark.full
@pytest.mark.parametrize("budget", [Budget(cost_usd=0.00001), Budget(tokens=1)], ids=["dollars", "tokens"])
def test_the_last_answer_of_a_real_agent_counts_though_it_went_beyond(
    budget: Budget, tmp_git_repo: Path, home: Path
) -> None:
    class Spent(RecordingHost):
        def allowance(self) -> Budget:
            return Budget(cost_usd=0.0, tokens=0) if self.usages else budget

    # On a busy machine it asks once more before it is stopped: that is not answered.
    with scripted("claude", home, RunShell("true"), Hang()) as model:
        refused = perform(agent_spec(tmp_git_repo, "claude", env=model.env), Spent())
        model.script.then(says("All done."))
        host = Spent()
        outcome = perform(agent_spec(tmp_git_repo, "claude", env=model.env), host)

    assert refused.error is not None
    assert "(budget)" in refused.error.text
    assert output_of(outcome)["text"] == "All done."
    assert sum(host.usages, Usage()).cost_usd > 0
