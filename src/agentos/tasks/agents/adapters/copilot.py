"""GitHub Copilot CLI: `copilot --output-format json`."""

from __future__ import annotations

from typing import Any

from agentos.machine.events import Usage
from agentos.tasks.agents.adapters.adapter import (
    NOTHING_HEARD,
    AgentExit,
    AgentInvocation,
    AgentVerdict,
    Ask,
    KeptFolder,
    SignIn,
    StreamUpdate,
    Traits,
    TranscriptLocation,
    count,
    document,
    outcome_of_status,
    outcome_of_text,
    part,
    tool_line,
)

TRAITS = Traits(
    counts_session=True,
    program="copilot",
    package="@github/copilot",
    transcript=TranscriptLocation("COPILOT_HOME", ".copilot", "session-state/{id}/events.jsonl"),
    sign_in=SignIn(("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN"), "config.json"),
    keeps=(KeptFolder("COPILOT_HOME", ".copilot", fixed=("config.json", "mcp-config.json", "agents", "skills")),),
    variables=("COPILOT_",),
)

_FLAGS = {
    "read": ("--deny-tool=write", "--deny-tool=shell"),
    "edit": ("--allow-tool=write",),
    "full": ("--allow-all",),
}
_USAGE = "usage.json"


def call(ask: Ask) -> AgentInvocation:
    argv = ["copilot", "--output-format", "json", "--no-ask-user", "--no-auto-update", "--disable-builtin-mcps"]
    flags = list(_FLAGS[ask.permissions])
    for tool in ask.allowed_tools:
        denied = f"--deny-tool={tool.partition('(')[0]}"
        if denied in flags:  # what is denied stays so, whatever is allowed
            flags.remove(denied)
        flags.append(f"--allow-tool={tool}")
    argv += flags
    if ask.model:
        argv += ["--model", ask.model]
    argv += ["--usage-output-file", f"{ask.folder}/{_USAGE}"]
    # Goes on with the session where there is one of that id, and otherwise begins it.
    argv += ["--session-id", ask.goes_on or ask.session]
    return AgentInvocation(argv=tuple(argv))


class CopilotReader:
    """What it used stands in a file that it leaves at the end."""

    def __init__(self) -> None:
        self._text = ""
        self._turns = 0
        self._error: dict[str, Any] = {}
        self._result: dict[str, Any] = {}
        self._tools: dict[str, str] = {}
        self._denials: list[str] = []

    def line(self, text: str) -> StreamUpdate:
        event = document(text)
        data = part(event, "data")
        match event.get("type"):
            case "session.tools_updated":
                return StreamUpdate(model=str(data.get("model") or ""))
            case "assistant.message":
                self._text = str(data.get("content") or "")
                return StreamUpdate(shown=tuple(self._text.splitlines()), goes_on=bool(data.get("toolRequests")))
            case "tool.execution_start":
                told = tool_line(data.get("toolName"), data.get("arguments"))
                self._tools[str(data.get("toolCallId"))] = told
                return StreamUpdate(shown=(told,), goes_on=True)
            case "tool.execution_complete":
                if part(data, "error").get("code") == "denied":
                    self._denials.append(self._tools.get(str(data.get("toolCallId")), "a tool"))
            case "assistant.turn_end":
                self._turns += 1
                return StreamUpdate(turn=True)
            case "abort" | "agent.interrupted":  # it calls that a success
                self._error = self._error or {"message": "it was interrupted"}
            case "session.error":
                self._error = data
            case "result":
                self._result = event
                return StreamUpdate(session=str(event.get("sessionId") or ""))
        return NOTHING_HEARD

    def verdict(self, ended: AgentExit) -> AgentVerdict:
        used, denials = self._parse_usage(ended), tuple(self._denials)
        if self._result and self._result.get("exitCode") == 0 and not self._error:
            return AgentVerdict(outcome="ok", text=self._text, turns=self._turns, used=used, denials=denials)
        why = str(self._error.get("message") or "") or ended.stderr.strip()
        status = self._error.get("statusCode")
        if isinstance(status, int):
            word = outcome_of_status(status, why)
        else:
            word = outcome_of_text(why) if self._error or ended.status else "no_result"
        return AgentVerdict(outcome=word, why=why, turns=self._turns, used=used, denials=denials)

    def _parse_usage(self, ended: AgentExit) -> Usage | None:
        total = Usage()
        for one in part(document(ended.left.get(_USAGE, "")), "modelMetrics").values():
            numbers = part(one, "usage")
            read = count(numbers.get("cacheReadTokens"))
            total += Usage(
                input_tokens=count(numbers.get("inputTokens")),
                output_tokens=count(numbers.get("outputTokens")),
                cached_tokens=read,
                calls=count(part(one, "requests").get("count")),
            )
        return total if total.calls else None


reader = CopilotReader
