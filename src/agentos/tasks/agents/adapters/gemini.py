"""Gemini CLI: `gemini --output-format stream-json`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
    outcome_of_text,
    part,
    tool_line,
)


def _messages(line: dict[str, Any]) -> Iterator[tuple[str, Usage]]:
    """A message by itself, or several that a line sets."""
    several = part(line, "$set").get("messages")
    for message in several if isinstance(several, list) else [line]:
        tokens = part(message, "tokens")
        used = Usage(
            input_tokens=count(tokens.get("input")),
            output_tokens=count(tokens.get("output")) + count(tokens.get("thoughts")),
            cached_tokens=count(tokens.get("cached")),
            calls=1,
        )
        if used.tokens:
            yield str(message.get("id")), used


TRAITS = Traits(
    program="gemini",
    package="@google/gemini-cli",
    provider="gcp.gemini",
    transcript=TranscriptLocation("GEMINI_CLI_HOME", "", ".gemini/tmp/*/chats/session-*-{short}.json*"),
    tokens_of=lambda: MessageTally(_messages),
    sign_in=SignIn(("GEMINI_API_KEY", "GOOGLE_API_KEY"), ".gemini/oauth_creds.json"),
    keeps=(
        KeptFolder("GEMINI_CLI_HOME", "", ".gemini", fixed=("settings.json", "GEMINI.md", "commands", "extensions")),
    ),
    variables=("GEMINI_", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "GOOGLE_GENAI_USE_VERTEXAI"),
)

_MODES = {"read": "plan", "edit": "auto_edit", "full": "yolo"}
_LOST = ("already exists", "Invalid session identifier", "No previous sessions")
_EXITS: dict[int, AgentOutcome] = {41: "api_auth", 42: "bad_input", 53: "turn_limit", 145: "api_auth", 173: "api_rate"}
"""Of its own; an HTTP status it exits with comes out modulo 256."""


def call(ask: Ask) -> AgentInvocation:
    argv = ["gemini", "--output-format", "stream-json", "--approval-mode", _MODES[ask.permissions], "--skip-trust"]
    for tool in ask.allowed_tools:
        argv += ["--allowed-tools", tool]
    if ask.model:
        argv += ["--model", ask.model]
    argv += ["--resume", ask.goes_on] if ask.goes_on else ["--session-id", ask.session]
    return AgentInvocation(argv=tuple(argv))


class GeminiReader:
    """It tells what it used once, with its result. The answer arrives in pieces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._partial = ""
        self._turns = 0
        self._tools: dict[str, str] = {}
        self._denials: list[str] = []
        self._result: dict[str, Any] = {}

    def line(self, text: str) -> StreamUpdate:
        event = document(text)
        match event.get("type"):
            case "init":
                return StreamUpdate(session=str(event.get("session_id") or ""), model=str(event.get("model") or ""))
            case "message" if event.get("role") == "assistant":
                piece = str(event.get("content") or "")
                self._pieces.append(piece)
                *lines, self._partial = (self._partial + piece).split("\n")
                return StreamUpdate(shown=tuple(lines), goes_on=False)
            case "tool_use":
                self._pieces.clear()  # what it said before using a tool is not its answer
                told = tool_line(event.get("tool_name"), event.get("parameters"))
                self._tools[str(event.get("tool_id"))] = told
                return StreamUpdate(shown=(*self._flush(), told), goes_on=True)
            case "tool_result":
                self._turns += 1
                if part(event, "error").get("type") in ("policy_violation", "permission_denied"):
                    self._denials.append(self._tools.get(str(event.get("tool_id")), "a tool"))
                return StreamUpdate(turn=True, goes_on=True)
            case "result":
                self._result = event
                return StreamUpdate(shown=self._flush())
        return NOTHING_HEARD

    def _flush(self) -> tuple[str, ...]:
        lines = (self._partial,) if self._partial else ()
        self._partial = ""
        return lines

    def verdict(self, ended: AgentExit) -> AgentVerdict:
        result = self._result
        if result.get("status") == "success":
            turns, text = self._turns + 1, "".join(self._pieces)
            return AgentVerdict(
                outcome="ok", text=text, turns=turns, used=self._parse_usage(), denials=tuple(self._denials)
            )
        why = str(part(result, "error").get("message") or "") or ended.stderr.strip()
        known = _EXITS.get(ended.status or 0)
        told = outcome_of_text(why) if why and (result or ended.status) else "no_result"
        return AgentVerdict(
            outcome=known if known is not None and told in ("agent_error", "no_result") else told,
            why=why,
            turns=self._turns,
            used=self._parse_usage() if result else None,
            denials=tuple(self._denials),
            session_lost=not result and any(text in ended.stderr for text in _LOST),
        )

    def _parse_usage(self) -> Usage:
        stats = part(self._result, "stats")
        return Usage(
            input_tokens=count(stats.get("input_tokens")),
            output_tokens=count(stats.get("output_tokens")),
            cached_tokens=count(stats.get("cached")),
            calls=self._turns + 1,
        )


reader = GeminiReader
