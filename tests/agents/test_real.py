"""Real agents, each performing attempts against a scripted model that speaks its protocol."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from agentos.dag.define.model_calls import Budget
from agentos.machine.events import AgentSession
from agentos.tasks.agents.adapters.adapter import AgentExit
from agentos.tasks.agents.adapters.known import AGENTS
from agentos.tasks.agents.assignment import SUFFIX
from agentos.tasks.llm.model_settings import ModelSettings, Price
from tests.agents.programs import KEY, MODELS
from tests.agents.record import CASES, record
from tests.agents.script import RunShell, WriteFile
from tests.agents.support import FULL, REAL, agent_spec, need, scripted
from tests.agents.test_command import Log
from tests.agents.test_streams import OUTCOMES, RECORDED
from tests.models.replies import Failure, Hang, says, unauthorised
from tests.unit.tasks.support import RecordingHost, is_alive, output_of, perform

pytestmark = pytest.mark.full  # real agents, from npm


@pytest.mark.parametrize("agent", REAL)
def test_an_agent_edits_a_file_and_everything_is_on_record(agent: str, tmp_git_repo: Path, home: Path) -> None:
    new = tmp_git_repo / "new.txt"
    with scripted(agent, home, WriteFile(str(new), "hello"), says("All done.")) as model:
        host, log = RecordingHost(), Log()
        outcome = perform(agent_spec(tmp_git_repo, agent, env=model.env, prompt="-Write it.\nPlease.", log=log), host)

    assert outcome.error is None, outcome.error
    assert new.read_text() == "hello"
    output = output_of(outcome)
    assert (output["text"], output["agent"], output["turns"]) == ("All done.", agent, 2)
    assert output["usage"]["input_tokens"] == 20
    assert output["session"]
    assert output["session"] == host.sessions[-1].id
    assert host.sessions[-1].version[0].isdigit()
    assert Path(host.sessions[-1].program).name == agent
    assert sum(usage.input_tokens for usage in host.usages) == 20
    assert "All done." in host.lines("stdout")
    assert len(model.script.calls) == 2
    assert "-Write it.\\nPlease." in model.script.calls[0].text
    assert all(call.key == KEY for call in model.script.calls)
    if agent == "opencode":
        assert log.beside == {}
    else:
        transcript = log.beside[SUFFIX].decode()
        assert all(text in transcript for text in ("-Write it.\\nPlease.", "All done.", output["session"]))
        assert [json.loads(line) for line in transcript.splitlines()]
    assert log.synced >= 1, "with its turns"


@pytest.mark.parametrize("case", RECORDED if FULL else [f"codex/{case}" for case in ("rate", "garbage", "cut_off")])
def test_the_programs_still_end_as_they_did_when_they_were_recorded(case: str) -> None:
    agent, name = case.split("/")
    need(agent)
    said = record(agent, CASES[name])
    reader = AGENTS[agent].reader()
    for line in said["lines"]:
        reader.line(line)
    verdict = reader.verdict(AgentExit(said["status"], said["stderr"], said["left"]))
    assert verdict.outcome == OUTCOMES[name], verdict


@pytest.mark.parametrize("agent", ["claude", "codex"])
def test_a_wrong_key_fails_at_once_and_is_not_tried_again(agent: str, tmp_git_repo: Path, home: Path) -> None:
    with scripted(agent, home, *[unauthorised()] * 20) as model:
        outcome = perform(agent_spec(tmp_git_repo, agent, env=model.env, timeout_s=60))

    assert outcome.error is not None
    assert outcome.error.type == "AgentFailed"
    assert "(api_auth)" in outcome.error.text
    assert "agentos doctor" in outcome.error.text
    assert not outcome.retryable
    assert len(model.script.calls) <= 3


def test_a_service_in_trouble_may_be_tried_again(tmp_git_repo: Path, home: Path) -> None:
    with scripted("codex", home, Failure(status=503)) as model:
        outcome = perform(agent_spec(tmp_git_repo, "codex", env=model.env))

    assert outcome.error is not None
    assert "(api_5xx)" in outcome.error.text
    assert outcome.retryable


@pytest.mark.parametrize("agent", ["claude", "codex"])
def test_an_agent_that_may_read_cannot_write(agent: str, tmp_git_repo: Path, home: Path) -> None:
    new = tmp_git_repo / "new.txt"
    with scripted(agent, home, WriteFile(str(new), "hello"), says("I may not.")) as model:
        outcome = perform(agent_spec(tmp_git_repo, agent, env=model.env, permissions="read"))

    assert outcome.error is None
    assert not new.exists()


def test_an_agent_that_gets_no_answer_runs_out_of_time(tmp_git_repo: Path, home: Path) -> None:
    with scripted("codex", home, Hang()) as model:
        host, log = RecordingHost(), Log()
        outcome = perform(agent_spec(tmp_git_repo, "codex", env=model.env, timeout_s=3, log=log), host)

    assert outcome.error is not None
    assert outcome.error.type == "TaskTimeoutError"
    assert outcome.retryable
    assert not is_alive(host.children[0].pid)
    assert host.sessions[-1].id, "its session was known while it hung"
    assert host.sessions[-1].id.encode() in log.beside[SUFFIX]


def test_an_agent_that_counts_no_turns_is_stopped_by_us(tmp_git_repo: Path, home: Path) -> None:
    with scripted("codex", home, *[RunShell("true")] * 9) as model:
        outcome = perform(agent_spec(tmp_git_repo, "codex", env=model.env, max_turns=2))

    assert outcome.error is not None
    assert "(turn_limit)" in outcome.error.text
    assert 2 <= len(model.script.calls) < 9


def test_an_agent_whose_dollars_are_used_up_is_stopped_by_us(tmp_git_repo: Path, home: Path) -> None:
    class Poor(RecordingHost):
        def allowance(self) -> Budget:
            return Budget(cost_usd=max(0, 0.00001 - sum(usage.cost_usd for usage in self.usages)))

    with scripted("claude", home, *[RunShell("sleep 0.3")] * 30) as model:
        host = Poor()
        outcome = perform(agent_spec(tmp_git_repo, "claude", env=model.env), host)

    assert outcome.error is not None
    assert "(budget)" in outcome.error.text
    assert len(model.script.calls) < 30
    assert sum(usage.cost_usd for usage in host.usages) > 0


def test_an_agent_whose_tokens_are_used_up_is_stopped_by_us(tmp_git_repo: Path, home: Path) -> None:
    class Poor(RecordingHost):
        def allowance(self) -> Budget:
            return Budget(tokens=max(0, 20 - sum(usage.tokens for usage in self.usages)))

    with scripted("claude", home, *[RunShell("sleep 0.3")] * 30) as model:
        outcome = perform(agent_spec(tmp_git_repo, "claude", env=model.env), Poor())

    assert outcome.error is not None
    assert "(budget)" in outcome.error.text
    assert len(model.script.calls) < 30


def test_what_an_agent_does_not_tell_is_priced_by_the_settings(tmp_git_repo: Path, home: Path) -> None:
    prices = ModelSettings(prices={MODELS["codex"]: Price(input_per_million=1_000, output_per_million=2_000)})
    with scripted("codex", home, says("Done.")) as model:
        host = RecordingHost()
        host.budget = Budget(cost_usd=5)
        refused = perform(agent_spec(tmp_git_repo, "codex", env=model.env, model="unlisted"), host)
        assert model.script.calls == []
        outcome = perform(agent_spec(tmp_git_repo, "codex", env=model.env, models=prices), host)

    assert refused.error is not None
    assert "codex does not tell what it costs" in refused.error.text
    assert output_of(outcome)["usage"]["cost_usd"] == pytest.approx(10 * 0.001 + 5 * 0.002)
    assert host.usages[0].cost_usd == pytest.approx(0.02)


@pytest.mark.parametrize("agent", ["claude", "codex"])
def test_a_session_goes_on_in_a_fork(agent: str, tmp_git_repo: Path, home: Path) -> None:
    with scripted(agent, home, says("So far.")) as model:
        first = RecordingHost()
        perform(agent_spec(tmp_git_repo, agent, env=model.env, prompt="THE TASK"), first)
        model.script.then(says("All of it."))
        second = RecordingHost()
        spec = agent_spec(tmp_git_repo, agent, env=model.env, prompt="THE TASK", session=first.sessions[-1])
        outcome = perform(spec, second)

    assert output_of(outcome)["text"] == "All of it."
    asked = model.script.calls[-1].text
    assert "So far." in asked, "the conversation goes on"
    assert "You were interrupted" in asked
    old, new = first.sessions[-1].id, second.sessions[-1].id
    assert old != new
    assert second.sessions[-1].forked_from == old
    assert outcome.warnings == ()


def test_where_a_session_is_lost_a_new_one_begins_once(tmp_git_repo: Path, home: Path) -> None:
    gone = AgentSession(agent="claude", id=str(uuid.uuid4()))
    with scripted("claude", home, says("Done anew.")) as model:
        host = RecordingHost()
        outcome = perform(agent_spec(tmp_git_repo, "claude", env=model.env, prompt="THE TASK", session=gone), host)

    assert output_of(outcome)["text"] == "Done anew."
    assert len(model.script.calls) == 1
    assert "THE TASK" in model.script.calls[0].text
    assert any("a new one was begun" in warning for warning in outcome.warnings)
    assert [session.forked_from for session in host.sessions] == [gone.id, ""]
