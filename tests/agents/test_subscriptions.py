"""Agents whose subscription is used up: nothing fails, and the run goes on by itself when that is over."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from agentos import Client, Workflow, run
from agentos.dag.define.model_calls import OnLimit
from agentos.machine.events import DecisionRequired, TaskRetry, TaskStart, TaskWarning
from agentos.machine.inputs import AttemptResult
from agentos.tasks.attempt import AttemptSpec
from agentos.tasks.llm.model_settings import CallLimits, ModelSettings
from tests.agents.programs import MODELS, environment
from tests.agents.script import PROTOCOLS, AgentScript
from tests.agents.support import Scripted, agent_spec, scripted
from tests.agents.test_kills import Runs, by, file, runs
from tests.agents.test_limits import TEXT, answers, plays_claude
from tests.models.replies import Body, Failure, Reply, says
from tests.models.server import ModelServer
from tests.unit.tasks.support import RecordingHost, output_of, perform

HOUR_S = 3600
WORDS = "You've hit your session limit · resets 3am"


def limit_of_claude(in_s: float | None, words: str = WORDS) -> list[dict[str, Any]]:
    """What it says at a limit; when that is over it says as a number, too, if it knows."""
    told: dict[str, Any] = {"status": "rejected", "rateLimitType": "five_hour"}
    if in_s is not None:
        told["resetsAt"] = int(time.time() + in_s)
    result = {"type": "result", "subtype": "success", "is_error": True, "api_error_status": 429, "result": words}
    return [{"type": "rate_limit_event", "rate_limit_info": told}, result]


def seconds_left(result: AttemptResult) -> float:
    assert result.limit is not None
    assert result.limit.until is not None
    return (result.limit.until - datetime.now(UTC)).total_seconds()


def with_on_limit(spec: AttemptSpec, on_limit: OnLimit) -> AttemptSpec:
    return structs.replace(spec, definition=structs.replace(spec.definition, on_limit=on_limit))


# --- one attempt ----------------------------------------------------------------------------------------------------


def test_the_number_that_an_agent_tells_counts_more_than_its_words(tmp_path: Path, home: Path) -> None:
    path = plays_claude(tmp_path, *limit_of_claude(HOUR_S))
    outcome = perform(agent_spec(tmp_path, "claude", env={"PATH": path}))
    assert seconds_left(outcome) == pytest.approx(HOUR_S, abs=30)
    assert outcome.error is not None
    assert WORDS in outcome.error.text


def test_a_number_that_cannot_be_is_not_believed(tmp_path: Path, home: Path) -> None:
    path = plays_claude(tmp_path, *limit_of_claude(400 * 24 * HOUR_S, "You've hit your session limit"))
    outcome = perform(agent_spec(tmp_path, "claude", env={"PATH": path}))
    assert outcome.limit is not None
    assert outcome.limit.until is None


def test_who_comes_to_a_limit_that_another_one_met_is_not_started(tmp_path: Path, home: Path) -> None:
    path = plays_claude(tmp_path, *limit_of_claude(HOUR_S))
    patient = ModelSettings(limits={"claude": CallLimits(max_wait_s=9 * HOUR_S)})  # not there: it would hold a slot
    perform(agent_spec(tmp_path, "claude", env={"PATH": path}, models=patient))
    host = RecordingHost()
    outcome = perform(agent_spec(tmp_path, "claude", env={"PATH": path}, models=patient), host)

    assert host.children == []
    assert outcome.put_off
    assert seconds_left(outcome) == pytest.approx(HOUR_S, abs=30)


def test_the_limit_of_one_that_switches_says_nothing_about_others(tmp_path: Path, home: Path) -> None:
    """It may be that of a model."""
    path = plays_claude(tmp_path, *limit_of_claude(HOUR_S))
    spec = agent_spec(tmp_path, "claude", env={"PATH": path})
    perform(with_on_limit(spec, OnLimit(act="switch", model="haiku")))
    plays_claude(tmp_path, answers("m1", TEXT), {"type": "result", "subtype": "success", "result": "All done."})
    outcome = perform(agent_spec(tmp_path, "claude", env={"PATH": path}), RecordingHost())
    assert output_of(outcome)["text"] == "All done."


# --- a run ----------------------------------------------------------------------------------------------------------


def test_a_limit_that_nobody_knows_the_end_of_is_asked_about(
    tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path
) -> None:
    monkeypatch.setenv("PATH", plays_claude(tmp_path, *limit_of_claude(None, "You're out of extra usage")))
    flow = Workflow("one")
    flow.add("work", "agent", agent="claude", prompt="Do it.", effects="none")
    assert run(flow, workflow_id="w1", repo=tmp_git_repo).status == "waiting"

    [gate] = [event for event in Client(tmp_git_repo).events("w1") if isinstance(event, DecisionRequired)]
    assert (gate.kind, gate.gate_id) == ("limit", "limit:work")
    assert "out of extra usage" in gate.question
    assert gate.choices == ("try-now", "wait-1h", "wait-5h", "fail")


def test_another_agent_goes_on_where_one_is_at_its_limit(
    tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path
) -> None:
    path = plays_claude(tmp_path, *limit_of_claude(HOUR_S))
    codex = tmp_path / "codex"
    said = [
        {"type": "thread.started", "thread_id": "0123456789"},
        {"type": "item.completed", "item": {"type": "agent_message", "text": "All done."}},
        {"type": "turn.completed", "usage": {"input_tokens": 10, "output_tokens": 5}},
    ]
    codex.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(map(json.dumps, said)) + "\nEND\n")
    codex.chmod(0o755)
    monkeypatch.setenv("PATH", path)
    flow = Workflow("one")
    flow.add("work", "agent", agent="claude", prompt="Do it.", effects="none", on_limit={"switch": {"agent": "codex"}})
    result = run(flow, workflow_id="w1", repo=tmp_git_repo)

    assert result.status == "complete"
    assert result.outputs["work"]["text"] == "All done."
    events = Client(tmp_git_repo).events("w1")
    assert [event.limit for event in events if isinstance(event, TaskRetry)] == ["switch"]
    assert any("codex goes on where claude stopped" in e.message for e in events if isinstance(e, TaskWarning))


def waits_at_limit(run: Runs) -> bool:
    events = run.client.events("r1") if run.client.list_runs() else []
    return any(isinstance(event, TaskRetry) and event.limit == "wait" for event in events)


def killed_at_limit(repo: Path, folder: Path, home: Path, in_s: float) -> Runs:
    """As with real agents below, with a program that plays one: it runs where none is installed."""
    env = {"PATH": plays_claude(folder, *limit_of_claude(in_s)), "HOME": str(home)}
    (repo / "flow.yaml").write_text("name: flow\ntasks:\n  work: {agent: claude, prompt: Do it., effects: none}\n")
    with ModelServer(PROTOCOLS) as server:  # nobody asks it
        run = Runs(repo, Scripted(AgentScript(server), server, env))
    run.killed_when(lambda: waits_at_limit(run))
    return run


def test_what_waits_at_a_limit_is_shown_with_its_time(tmp_git_repo: Path, tmp_path: Path, home: Path) -> None:
    check_waiting(killed_at_limit(tmp_git_repo, tmp_path, home, HOUR_S))


def test_a_wait_at_a_limit_survives_a_kill(tmp_git_repo: Path, tmp_path: Path, home: Path) -> None:
    run = killed_at_limit(tmp_git_repo, tmp_path, home, 15)
    done = {"type": "result", "subtype": "success", "result": "All done.", "num_turns": 1}
    plays_claude(tmp_path, answers("m1", TEXT), done)
    told = run.finish("resume", "r1")

    assert "came to a limit" in told
    events = run.client.events("r1")
    [retry] = [event for event in events if isinstance(event, TaskRetry)]
    assert retry.put_off
    _, second = [event for event in events if isinstance(event, TaskStart)]
    assert second.at >= retry.not_before, "not before the limit is over"
    assert run.client.show("r1").outputs["work"]["text"] == "All done."


def check_waiting(run: Runs) -> None:
    """Every view says that it waits at a limit, and until when."""
    [task] = [task for task in json.loads(run.finish("show", "r1", "--json"))["tasks"] if task["id"] == "work"]
    assert (task["status"], task["limit"]) == ("retrying", True)
    assert abs(datetime.fromisoformat(task["not_before"]) - datetime.now(UTC)) < timedelta(hours=1, minutes=1)
    assert "waits for the end of a limit, in " in run.finish("show", "r1")
    why = run.finish("why", "r1", "work")
    assert "for the end of a limit" in why
    assert "session limit" in why
    assert "waits for the end of a limit" in run.finish("events", "r1")
    [tried] = json.loads(run.finish("why", "r1", "work", "--json"))["attempts"]
    assert tried["end"] == "limit"


# --- real agents ----------------------------------------------------------------------------------------------------


def limit_reply(agent: str, in_s: float) -> Reply:
    """As the service of a subscription says it."""
    at = int(time.time() + in_s)
    match agent:
        case "claude":
            unified = {"status": "rejected", "reset": str(at), "representative-claim": "five_hour"}
            headers = {f"anthropic-ratelimit-unified-{name}": value for name, value in unified.items()}
            return Failure(status=429, message="no more", headers={**headers, "x-should-retry": "false"})
        case "codex":
            error: dict[str, Any] = {"type": "usage_limit_reached", "plan_type": "plus", "resets_at": at}
            return Body(pieces=(json.dumps({"error": error}).encode(),), status=429)
        case "gemini":
            words = f"You have exhausted your capacity on this model. Your quota will reset after {int(in_s)}s."
            return Failure(status=429, message=words)
        case "copilot":
            words = f"Sorry, you've hit a rate limit. Please try again in {int(in_s) // 60} minutes."
            return Failure(status=429, message=words, headers={"retry-after": str(int(in_s))})
    raise AssertionError(agent)


def subscriber(agent: str, env: dict[str, str]) -> dict[str, str]:
    """Claude tells limits of subscriptions only to those who have one: they sign in with a token, not with a key."""
    return {**env, "ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "token"} if agent == "claude" else env


@pytest.mark.full
@pytest.mark.parametrize("agent", ["claude", "codex", "gemini", "copilot"])
def test_a_real_agent_at_its_limit_tells_until_when(agent: str, tmp_git_repo: Path, home: Path) -> None:
    with scripted(agent, home, *[limit_reply(agent, HOUR_S)] * 9) as model:
        outcome = perform(agent_spec(tmp_git_repo, agent, env=subscriber(agent, model.env)))
    assert HOUR_S - 60 <= seconds_left(outcome) <= HOUR_S + 120, outcome.error


@pytest.mark.full
@pytest.mark.parametrize(("agent", "status"), [("claude", 400), ("codex", 402), ("opencode", 402)])
def test_a_real_agent_whose_credit_is_used_up_is_asked_about(
    agent: str, status: int, tmp_git_repo: Path, home: Path
) -> None:
    reply = Failure(status=status, message="Your credit balance is too low to access the API.")
    with runs(agent, tmp_git_repo, home, "timeout_s: 60", *[reply] * 20) as run:
        told = run.finish("run", "flow.yaml", "--id", "r1", code=3)
    assert "limit:work asks" in told
    assert "nobody knows until when" in told


@pytest.mark.full
def test_a_real_agent_waits_killed_or_not_and_goes_on_in_its_session(tmp_git_repo: Path, home: Path) -> None:
    repo = tmp_git_repo
    with runs("claude", repo, home, "") as run:
        run.env.update(subscriber("claude", {}))
        script = run.model.script
        script.then(file(repo, "a"), limit_reply("claude", 15), file(repo, "b"), says("All done."))
        run.killed_when(lambda: waits_at_limit(run))
        assert run.tree() == by("a")
        check_waiting(run)
        told = run.finish("resume", "r1")

        assert run.tree() == by("a", "b")
        assert len(script.calls) == 4, "it was asked once at the limit, and nothing that was paid for is asked again"
        assert "a by the agent" in script.calls[2].text, "its session went on"
        assert "a new one was begun" not in told
        assert run.paid_tokens() == 30, "as many as the model has counted"


@pytest.mark.full
def test_a_real_agent_takes_over_the_files_of_another(tmp_git_repo: Path, home: Path) -> None:
    repo = tmp_git_repo
    switch = f"on_limit: {{switch: {{agent: codex, model: {MODELS['codex']}}}}}"
    with runs("claude", repo, home, switch) as run, scripted("codex", home) as _:
        run.env.update(environment("codex", run.model.server.url, home), **subscriber("claude", {}))
        script = run.model.script
        script.then(file(repo, "a"), limit_reply("claude", HOUR_S), file(repo, "b"), says("All done."))
        run.finish("run", "flow.yaml", "--id", "r1")

        assert run.tree() == by("a", "b")
        assert len(script.calls) == 4
        assert "Another agent worked on the task below" in script.calls[2].text
        assert run.client.show("r1").outputs["work"]["text"] == "All done."
        assert run.paid_tokens() == 30


@pytest.mark.full
def test_opencode_waits_by_itself_where_its_service_says_how_long(tmp_git_repo: Path, home: Path) -> None:
    """It says so to nobody: not a failure, but no view can tell until when. Here it is only seen to be still there."""
    reply = Failure(status=429, message="Usage limit reached", headers={"retry-after": "3"})
    with scripted("opencode", home, reply, says("All done.")) as model:
        outcome = perform(agent_spec(tmp_git_repo, "opencode", env=model.env))
    assert output_of(outcome)["text"] == "All done."
    assert len(model.script.calls) == 2
