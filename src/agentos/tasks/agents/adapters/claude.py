"""Claude Code: `claude -p --output-format stream-json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from agentos.machine.events import Usage
from agentos.tasks.agents.adapters.adapter import (
    NOTHING_HEARD,
    AgentExit,
    AgentInvocation,
    AgentOutcome,
    AgentVerdict,
    Ask,
    KeptFolder,
    MessageTally,
    SignIn,
    StreamUpdate,
    Traits,
    TranscriptLocation,
    count,
    document,
    number,
    outcome_of_status,
    outcome_of_text,
    part,
    tool_line,
)


def _messages(line: dict[str, Any]) -> Iterator[tuple[str, Usage]]:
    message = part(line, "message")
    if line.get("type") == "assistant" and (used := _usage(part(message, "usage"))).tokens:
        yield str(message.get("id")), used


_FIXED = ("settings.json", "settings.local.json", "CLAUDE.md", "hooks", "commands", "agents", "skills", "plugins")
TRAITS = Traits(
    program="claude",
    package="@anthropic-ai/claude-code",
    provider="anthropic",
    forks=True,
    tells_cost=True,
    counts_turns=True,
    takes_schema=True,
    transcript=TranscriptLocation("CLAUDE_CONFIG_DIR", ".claude", "projects/*/{id}.jsonl"),
    tokens_of=lambda: MessageTally(_messages),
    sign_in=SignIn(("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"), ".credentials.json"),
    keeps=(KeptFolder("CLAUDE_CONFIG_DIR", ".claude", fixed=_FIXED),),
    home_files=(".claude.json",),
    variables=("ANTHROPIC_", "CLAUDE_", "DISABLE_", "IS_SANDBOX"),
)

_MODES = {"read": "dontAsk", "edit": "acceptEdits", "full": "bypassPermissions"}
_CHANGING = ("Bash", "Edit", "NotebookEdit", "Write")
_LOST = ("No conversation found", "is already in use")


def call(ask: Ask) -> AgentInvocation:
    argv = ["claude", "-p", "--output-format", "stream-json", "--verbose"]
    argv += ["--permission-mode", _MODES[ask.permissions]]
    if ask.permissions == "read":
        # A rule of the user's own settings may allow them: only what is disallowed outright stays so.
        named = {tool.partition("(")[0] for tool in ask.allowed_tools}
        if denied := [tool for tool in _CHANGING if tool not in named]:
            argv += ["--disallowedTools", ",".join(denied)]
    if ask.allowed_tools:
        argv += ["--allowedTools", ",".join(ask.allowed_tools)]
    if not any(tool.startswith("mcp__") for tool in ask.allowed_tools):
        argv.append("--strict-mcp-config")
    if ask.model:
        argv += ["--model", ask.model]
    if ask.max_turns is not None:
        argv += ["--max-turns", str(ask.max_turns)]
    if ask.budget_usd is not None:
        argv += ["--max-budget-usd", f"{ask.budget_usd:f}"]
    if ask.schema is not None:
        argv += ["--json-schema", json.dumps(ask.schema)]
    if ask.goes_on:
        argv += ["--resume", ask.goes_on, "--fork-session"]
    argv += ["--session-id", ask.session]
    # By default it tries ten times, for minutes, even where the key is wrong.
    return AgentInvocation(argv=tuple(argv), env={"CLAUDE_CODE_MAX_RETRIES": "2", "DISABLE_AUTOUPDATER": "1"})


class ClaudeReader:
    """Counts tokens message by message; the result at the end has the cost and all that was used."""

    def __init__(self) -> None:
        self._counted: set[str] = set()
        self._at_work: set[str] = set()
        """Tools that were called and have not answered: only then is a turn over."""
        self._result: dict[str, Any] = {}
        self._resets_at: float | None = None
        self._message = ""
        self._answer: list[str] = []

    def line(self, text: str) -> StreamUpdate:
        event = document(text)
        match event.get("type"):
            case "system" if event.get("subtype") == "init":
                return StreamUpdate(session=str(event.get("session_id") or ""), model=str(event.get("model") or ""))
            case "assistant":
                return self._assistant(part(event, "message"), own=not event.get("parent_tool_use_id"))
            case "user":
                content = part(event, "message").get("content")
                blocks = content if isinstance(content, list) else []
                results = [block for block in blocks if part(block).get("type") == "tool_result"]
                self._at_work -= {str(block.get("tool_use_id")) for block in results}
                return StreamUpdate(turn=bool(results) and not self._at_work, goes_on=bool(results) or None)
            case "rate_limit_event" if part(event, "rate_limit_info").get("status") == "rejected":
                self._resets_at = number(part(event, "rate_limit_info").get("resetsAt"))
            case "result":
                self._result = event
        return NOTHING_HEARD

    def _assistant(self, message: dict[str, Any], *, own: bool) -> StreamUpdate:
        blocks = message.get("content")
        shown: list[str] = []
        goes_on = False
        if own and message.get("id") != self._message:
            self._message, self._answer = str(message.get("id")), []
        for block in blocks if isinstance(blocks, list) else ():
            if part(block).get("type") == "text":
                shown += str(block.get("text", "")).splitlines()
                self._answer += [str(block.get("text", ""))] * own
            elif part(block).get("type") == "tool_use":
                shown.append(tool_line(block.get("name"), block.get("input")))
                goes_on = True
                if block.get("id"):
                    self._at_work.add(str(block["id"]))
        # One message arrives in several events, each with the same numbers.
        id, used = str(message.get("id")), _usage(part(message, "usage"))
        if id in self._counted or not used.tokens:
            return StreamUpdate(shown=tuple(shown), goes_on=goes_on)
        self._counted.add(id)
        return StreamUpdate(shown=tuple(shown), used=used, goes_on=goes_on)

    def verdict(self, ended: AgentExit) -> AgentVerdict:
        result = self._result
        if not result:
            lost = any(text in ended.stderr for text in _LOST)
            word = outcome_of_text(ended.stderr) if ended.stderr.strip() and ended.status else "no_result"
            return AgentVerdict(outcome="bad_input" if lost else word, why=ended.stderr.strip(), session_lost=lost)
        errors = result.get("errors")
        why = "; ".join(map(str, errors)) if isinstance(errors, list) and errors else str(result.get("result") or "")
        # An answer that came to its end and only went beyond the dollars counts: claude calls that an error.
        over = result.get("subtype") == "error_max_budget_usd" and result.get("stop_reason") == "end_turn"
        answer = "".join(self._answer) if over else ""
        failed = not answer and (bool(result.get("is_error")) or result.get("subtype") != "success")
        denials = result.get("permission_denials")
        return AgentVerdict(
            outcome=self._outcome(why) if failed else "ok",
            text="" if failed else answer or str(result.get("result") or ""),
            why=why if failed else "",
            json=result.get("structured_output"),
            turns=count(result.get("num_turns")),
            used=_used_by_models(result),
            cost_usd=number(result.get("total_cost_usd")),
            denials=tuple(
                tool_line(part(one).get("tool_name"), part(one).get("tool_input"))
                for one in (denials if isinstance(denials, list) else ())
            ),
            resets_at=self._resets_at if failed else None,
            session_lost=failed and any(text in why for text in _LOST),
        )

    def _outcome(self, why: str) -> AgentOutcome:
        match self._result.get("subtype"):
            case "error_max_turns":
                return "turn_limit"
            case "error_max_budget_usd":
                return "budget"
        status = self._result.get("api_error_status")
        if isinstance(status, int):
            return outcome_of_status(status, why)
        word = outcome_of_text(why)
        return "api_5xx" if word == "agent_error" and why.startswith("API Error") else word


reader = ClaudeReader


def _used_by_models(result: dict[str, Any]) -> Usage:
    """By all of them, also in answers that no message told of. Which calls those were is not told."""
    models = part(result, "modelUsage").values()
    total = Usage()
    for model in models:
        numbers = part(model)
        read, written = count(numbers.get("cacheReadInputTokens")), count(numbers.get("cacheCreationInputTokens"))
        total += Usage(
            input_tokens=count(numbers.get("inputTokens")) + read + written,
            output_tokens=count(numbers.get("outputTokens")),
            cached_tokens=read,
        )
    return total if models else msgspec.structs.replace(_usage(part(result, "usage")), calls=0)


def _usage(numbers: dict[str, Any]) -> Usage:
    read, written = count(numbers.get("cache_read_input_tokens")), count(numbers.get("cache_creation_input_tokens"))
    return Usage(
        input_tokens=count(numbers.get("input_tokens")) + read + written,
        output_tokens=count(numbers.get("output_tokens")),
        cached_tokens=read,
        calls=1,
    )
