"""The adapters on what real agents said: every case was recorded by tests/agents/record.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentos.dag.define import model_calls
from agentos.dag.define.model_calls import AgentWork, agent_problems
from agentos.machine.events import AgentSession, Usage
from agentos.tasks.agents.adapters.adapter import (
    AgentExit,
    AgentVerdict,
    Ask,
    StreamUpdate,
    outcome_of_status,
    outcome_of_text,
    tool_line,
)
from agentos.tasks.agents.adapters.known import AGENTS
from agentos.tasks.agents.adapters.opencode import find_session
from agentos.tasks.agents.performer import prompt_for
from agentos.tasks.llm.answer_schemas import json_text
from tests.agents.record import STREAMS

RECORDED = sorted(path.relative_to(STREAMS).with_suffix("").as_posix() for path in STREAMS.glob("*/*.json"))
REAL = ("claude", "codex", "gemini", "opencode", "copilot")

OUTCOMES = {
    "edits": "ok",
    "denied": "ok",
    "auth": "api_auth",
    "rate": "api_rate",
    "server": "api_5xx",
    "garbage": "api_5xx",
    "cut_off": "api_5xx",
}


class Read(NamedTuple):
    heard: list[StreamUpdate]
    verdict: AgentVerdict

    @property
    def shown(self) -> list[str]:
        return [line for one in self.heard for line in one.shown]

    @property
    def used(self) -> Usage:
        heard = sum((one.used for one in self.heard if one.used is not None), Usage())
        return heard if self.verdict.used is None else heard + self.verdict.used.beyond(heard)


def read(case: str, *, lines: list[str] | None = None, status: int | None = -1, stderr: str | None = None) -> Read:
    recorded: dict[str, Any] = json.loads((STREAMS / f"{case}.json").read_text())
    reader = AGENTS[Path(case).parent.name].reader()
    heard = [reader.line(line) for line in (recorded["lines"] if lines is None else lines)]
    ended = AgentExit(
        status=recorded["status"] if status == -1 else status,
        stderr=recorded["stderr"] if stderr is None else stderr,
        left=recorded["left"],
    )
    return Read(heard, reader.verdict(ended))


@pytest.mark.parametrize("case", RECORDED)
def test_every_recorded_attempt_has_its_outcome(case: str) -> None:
    verdict = read(case).verdict
    assert verdict.outcome == OUTCOMES[Path(case).name], verdict
    assert bool(verdict.why) == (verdict.outcome != "ok")
    assert not verdict.session_lost


@pytest.mark.parametrize("agent", REAL)
def test_an_edit_is_told_as_answer_turns_and_tokens(agent: str) -> None:
    done = read(f"{agent}/edits")
    assert done.verdict.text == "All done."
    assert "All done." in done.shown
    assert any("new.txt" in line and line.startswith("[") for line in done.shown)
    assert any(one.turn for one in done.heard)
    assert done.verdict.turns == 2
    assert (done.used.input_tokens, done.used.output_tokens, done.used.calls) == (20, 10, 2)


@pytest.mark.parametrize("agent", REAL)
def test_the_session_is_heard(agent: str) -> None:
    assert [one.session for one in read(f"{agent}/edits").heard if one.session]


def test_claude_tells_its_cost_and_what_it_was_denied() -> None:
    done = read("claude/denied")
    assert done.verdict.cost_usd
    assert done.verdict.denials == ("[Bash] curl http://127.0.0.1:9",)
    assert read("copilot/denied").verdict.denials == ("[bash] curl http://127.0.0.1:9",)


@pytest.mark.parametrize("agent", REAL)
def test_a_stream_that_stops_before_its_end_is_no_success(agent: str) -> None:
    whole = json.loads((STREAMS / agent / "edits.json").read_text())["lines"]
    for end in range(len(whole) - 1):
        verdict = read(f"{agent}/edits", lines=whole[:end], status=0, stderr="").verdict
        assert verdict.outcome in ("no_result", "api_5xx"), (end, verdict)


@pytest.mark.parametrize("agent", REAL)
@pytest.mark.parametrize(
    "line",
    ["", "null", "[1, 2]", '"text"', "{", '{"type": 7}', '{"type": "result"}', "\x1b[31mError\x1b[0m", "[" * 99_999],
)
def test_lines_that_mean_nothing_are_passed_over(agent: str, line: str) -> None:
    reader = AGENTS[agent].reader()
    for recorded in json.loads((STREAMS / agent / "edits.json").read_text())["lines"]:
        for key in re.findall(r'"(\w+)":', recorded)[:40]:  # every field may be of another type one day
            reader.line(re.sub(rf'"{key}":("[^"]*"|[\w.]+|\{{|\[)', f'"{key}":[7],"_":\\1', recorded, count=1))
    assert reader.line(line).session == ""


@pytest.mark.parametrize(
    ("agent", "stderr"),
    [
        ("claude", "Error: Session ID 15d4e660-1af6-46c1-930a-c9bdf2f87146 is already in use."),
        ("claude", "No conversation found with session ID: 0dfc6244-350e-4453-a470-0442036bc57a"),
        ("codex", "Error: thread/resume: thread/resume failed: no rollout found for thread id a746b846 (code -32600)"),
        ("gemini", 'Error starting session: Session ID "2445bcbe" already exists. Use --resume to resume it.'),
        ("gemini", 'Error resuming session: Invalid session identifier "070607f7".'),
        ("opencode", "Error: Session not found"),
    ],
)
def test_a_session_that_cannot_be_used_is_told_as_such(agent: str, stderr: str) -> None:
    verdict = AGENTS[agent].reader().verdict(AgentExit(status=1, stderr=stderr))
    assert verdict.session_lost
    assert verdict.outcome != "ok"


@pytest.mark.parametrize(
    ("agent", "status", "stderr"),
    [
        ("gemini", 41, "When using Gemini API, you must specify the GEMINI_API_KEY environment variable."),
        ("copilot", 1, "Error: No authentication information found."),
        ("codex", 1, "Error: unexpected status 401 Unauthorized"),
    ],
)
def test_an_agent_nobody_logged_in_to_says_so(agent: str, status: int, stderr: str) -> None:
    assert AGENTS[agent].reader().verdict(AgentExit(status=status, stderr=stderr)).outcome == "api_auth"


def test_claude_says_when_nobody_logged_in() -> None:
    reader = AGENTS["claude"].reader()
    reader.line('{"type":"result","subtype":"success","is_error":true,"result":"Not logged in · Please run /login"}')
    assert reader.verdict(AgentExit(status=1)).outcome == "api_auth"


@pytest.mark.parametrize(
    ("subtype", "outcome"),
    [("error_max_turns", "turn_limit"), ("error_max_budget_usd", "budget"), ("error_during_execution", "agent_error")],
)
def test_claude_keeps_to_limits_by_itself(subtype: str, outcome: str) -> None:
    reader = AGENTS["claude"].reader()
    result = {"type": "result", "subtype": subtype, "is_error": True, "errors": ["so it is"], "total_cost_usd": 0.5}
    reader.line(json.dumps(result))
    verdict = reader.verdict(AgentExit(status=1))
    assert (verdict.outcome, verdict.why) == (outcome, "so it is")
    assert verdict.cost_usd == 0.5


def test_statuses_and_texts_of_services_have_one_meaning() -> None:
    assert [outcome_of_status(status) for status in (400, 401, 403, 408, 429, 500, 529)] == [
        "bad_input", "api_auth", "api_auth", "api_5xx", "api_rate", "api_5xx", "api_5xx"
    ]  # fmt: skip
    assert outcome_of_text("You've hit your usage limit. Try again at 5 pm.") == "api_rate"
    assert outcome_of_text("prompt is too long: 250000 tokens > 200000 maximum") == "bad_input"
    assert outcome_of_text("the tests do not pass") == "agent_error"


def test_what_definitions_are_checked_against_is_what_the_adapters_can() -> None:
    assert set(AGENTS) == set(model_calls.AGENTS)
    for agent, module in AGENTS.items():
        tools = list(agent_problems(_work(agent, allowed_tools=("x",))))
        assert bool(tools) == (not module.TRAITS.takes_tools), agent
        forks = list(agent_problems(_work(agent, on_resume="fork")))
        assert bool(forks) == (not module.TRAITS.forks), agent


def _work(agent: str, **settings: Any) -> AgentWork:
    return AgentWork(agent=agent, prompt="p", command=("x",) if agent == "command" else (), **settings)


# --- how they are called -------------------------------------------------------------------------------------------


def argv_of(agent: str, **ask: Any) -> str:
    return " ".join(AGENTS[agent].call(Ask(session="S", folder="/private", **ask)).argv)


@pytest.mark.parametrize("agent", REAL)
def test_full_permissions_must_be_asked_for(agent: str) -> None:
    dangerous = {
        "claude": "bypassPermissions",
        "codex": "danger-full-access",
        "gemini": "yolo",
        "copilot": "--allow-all",
        "opencode": '"*": "allow"',
    }[agent]

    def told(**ask: Any) -> str:
        call = AGENTS[agent].call(Ask(session="S", **ask))
        return " ".join((*call.argv, *call.env.values()))

    assert dangerous in told(permissions="full")
    assert dangerous not in told()
    assert dangerous not in told(permissions="read")
    assert len({told(permissions=word) for word in ("read", "edit", "full")}) == 3


@pytest.mark.parametrize("agent", REAL)
def test_a_prompt_is_never_an_argument(agent: str) -> None:
    call = AGENTS[agent].call(Ask(session="S", model="m", folder="/private", schema={"type": "object"}))
    assert "prompt" not in call.argv
    assert "m" in call.argv


def test_sessions_go_on_in_a_fork_where_the_agent_can() -> None:
    assert "--resume OLD --fork-session --session-id S" in argv_of("claude", goes_on="OLD")
    assert argv_of("codex", goes_on="OLD").startswith("codex exec fork ")
    assert argv_of("codex", goes_on="OLD").endswith(" OLD -")
    assert "--session OLD --fork" in argv_of("opencode", goes_on="OLD")
    assert "--resume OLD" in argv_of("gemini", goes_on="OLD")
    assert "--session-id OLD" in argv_of("copilot", goes_on="OLD")
    for agent in REAL:
        assert AGENTS[agent].TRAITS.forks == (agent in ("claude", "codex", "opencode"))


def test_allowed_tools_widen_what_is_denied_otherwise() -> None:
    assert "--disallowedTools Edit,NotebookEdit,Write --allowedTools Bash(git log *)" in argv_of(
        "claude", permissions="read", allowed_tools=("Bash(git log *)",)
    )
    assert "--strict-mcp-config" not in argv_of("claude", allowed_tools=("mcp__x__y",))
    assert "--deny-tool=shell" not in argv_of("copilot", permissions="read", allowed_tools=("shell(git:*)",))
    rules = AGENTS["opencode"].call(Ask(session="S", allowed_tools=("bash(git *)", "webfetch"))).env
    assert json.loads(rules["OPENCODE_PERMISSION"])["bash"] == {"*": "deny", "git *": "allow"}


def test_an_answer_by_schema_may_stand_in_a_fence() -> None:
    assert json_text('{"a": 1}', in_prose=True) == '{"a": 1}'
    assert json_text('Here it is:\n```json\n{"a": 1}\n```\nBye.', in_prose=True).strip() == '{"a": 1}'


def test_who_goes_on_is_told_the_task_again() -> None:
    session = AgentSession(agent="claude")
    told = prompt_for("Do it.", earlier=session, schema={"type": "object"})
    assert told.index("interrupted") < told.index("Do it.") < told.index('{"type": "object"}')
    assert "was undone" in prompt_for("Do it.", earlier=session, how="fork")
    assert prompt_for("Do it.") == "Do it."


def test_who_did_not_do_enough_is_told_why_and_the_task_again_only_where_nobody_knows_it() -> None:
    session = AgentSession(agent="claude", ended="rejected", feedback="2 tests failed")
    told = prompt_for("Do it.", earlier=session)
    assert "2 tests failed" in told
    assert "Do it." not in told
    lost = prompt_for("Do it.", earlier=session, known=False)
    assert lost.index("Do it.") < lost.index("2 tests failed")
    interrupted = prompt_for("Do it.", earlier=AgentSession(agent="claude", feedback="2 tests failed"))
    assert interrupted.index("interrupted") < interrupted.index("Do it.") < interrupted.index("2 tests failed")


def test_a_session_is_found_by_its_title() -> None:
    listed = json.dumps([{"id": "ses_1", "title": "other"}, {"id": "ses_2", "title": "mine"}])
    assert find_session(listed, "mine") == "ses_2"
    assert find_session(listed, "nobody's") == ""
    assert find_session("No sessions found", "mine") == ""


def test_a_tool_is_shown_on_one_short_line() -> None:
    assert tool_line("Bash", {"command": "a\nb", "description": "d"}) == "[Bash] a b"
    assert len(tool_line("Bash", {"command": "x" * 9_999})) < 250
    assert tool_line("odd", {"k": 1}) == '[odd] {"k": 1}'


@pytest.mark.parametrize(
    ("agent", "lines", "turns"),
    [
        (
            "claude",
            [
                {"type": "assistant", "message": {"content": [{"type": "tool_use", "id": "1"}]}},
                {"type": "assistant", "message": {"content": [{"type": "tool_use", "id": "2"}]}},
                {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "2"}]}},
                {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "1"}]}},
            ],
            [False, False, False, True],
        ),
        (
            "codex",
            [
                {"type": "item.started", "item": {"id": "1", "type": "command_execution"}},
                {"type": "item.started", "item": {"id": "2", "type": "command_execution"}},
                {"type": "item.completed", "item": {"id": "2", "type": "command_execution"}},
                {"type": "item.completed", "item": {"id": "1", "type": "command_execution"}},
            ],
            [False, False, False, True],
        ),
    ],
)
def test_a_turn_is_over_when_all_its_tools_are_done(agent: str, lines: list[Any], turns: list[bool]) -> None:
    reader = AGENTS[agent].reader()
    assert [reader.line(json.dumps(line)).turn for line in lines] == turns
