"""opencode: `opencode run --format json`."""

from __future__ import annotations

import json
from typing import Any

from agentos.machine.events import Usage
from agentos.tasks.agents.adapters.adapter import (
    NOTHING_HEARD,
    AgentExit,
    AgentInvocation,
    AgentVerdict,
    Ask,
    KeptFolder,
    StreamUpdate,
    Traits,
    count,
    document,
    number,
    outcome_of_status,
    outcome_of_text,
    part,
    seconds,
    tool_line,
)

TRAITS = Traits(
    program="opencode",
    package="opencode-ai",
    names_session=False,
    titled=True,
    forks=True,
    tells_cost=True,
    keeps=(
        KeptFolder("XDG_DATA_HOME", ".local/share", "opencode"),
        KeptFolder("XDG_STATE_HOME", ".local/state", "opencode"),
        KeptFolder("XDG_CONFIG_HOME", ".config", "opencode", read_only=True),
    ),
    variables=("OPENCODE_", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"),
)

_PERMISSIONS: dict[str, dict[str, Any]] = {
    "read": {"edit": "deny", "bash": "deny", "external_directory": "deny"},
    "edit": {"edit": "allow", "bash": "deny", "external_directory": "deny"},
    "full": {"*": "allow"},
}
LISTING = ("session", "list", "--format", "json")
"""Arguments with which it lists its sessions."""
_LOST = "Session not found"
_DENIED = ("rejected permission", "prevents you from using")


def call(ask: Ask) -> AgentInvocation:
    argv = ["opencode", "run", "--format", "json"]
    if ask.model:
        argv += ["--model", ask.model]
    argv += ["--session", ask.goes_on, "--fork"] if ask.goes_on else ["--title", ask.session]
    rules = dict(_PERMISSIONS[ask.permissions])
    for tool in ask.allowed_tools:
        name, _, pattern = tool.removesuffix(")").partition("(")
        if not pattern:
            rules[name] = "allow"
        else:
            before = rules.get(name, "ask")
            rules[name] = {**(before if isinstance(before, dict) else {"*": before}), pattern: "allow"}
    env = {"OPENCODE_PERMISSION": json.dumps(rules), "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    return AgentInvocation(argv=tuple(argv), env=env)


def find_session(listed: str, title: str) -> str:
    """The id of the session with this title; empty where there is none."""
    try:
        sessions = json.loads(listed)
    except (ValueError, RecursionError):
        return ""
    found = [part(one) for one in sessions if part(one).get("title") == title] if isinstance(sessions, list) else []
    return str(found[0].get("id") or "") if found else ""


class OpencodeReader:
    """It tells tokens and cost of each step."""

    def __init__(self) -> None:
        self._text = ""
        self._turns = 0
        self._finished = ""
        self._at_work = False
        self._error: dict[str, Any] = {}
        self._denials: list[str] = []

    def line(self, text: str) -> StreamUpdate:
        event = document(text)
        session, piece = str(event.get("sessionID") or ""), part(event, "part")
        match event.get("type"):
            case "step_start":
                self._at_work = True
                return StreamUpdate(session=session)
            case "text":
                self._text = str(piece.get("text") or "")
                return StreamUpdate(session=session, shown=tuple(self._text.splitlines()), goes_on=False)
            case "tool_use":
                state = part(piece, "state")
                told = tool_line(piece.get("tool"), state.get("input"))
                if any(text in str(state.get("error") or "") for text in _DENIED):
                    self._denials.append(told)
                return StreamUpdate(session=session, shown=(told,), goes_on=True)
            case "step_finish":
                self._turns += 1
                self._finished = str(piece.get("reason") or "")
                self._at_work = False
                goes_on = self._finished == "tool-calls"
                return StreamUpdate(session=session, used=_parse_usage(piece), turn=True, goes_on=goes_on)
            case "error":
                self._error = part(event, "error")
                return StreamUpdate(session=session)
        return NOTHING_HEARD

    def verdict(self, ended: AgentExit) -> AgentVerdict:
        denials = tuple(self._denials)
        done = self._finished == "stop" and not self._at_work and not self._error
        if done and (ended.status == 0 or ended.stopped):
            return AgentVerdict(outcome="ok", text=self._text, turns=self._turns, denials=denials)
        data = part(self._error, "data")
        why = str(data.get("message") or self._error.get("name") or "") or ended.stderr.strip()
        status = data.get("statusCode")
        if isinstance(status, int):
            word = outcome_of_status(status, why)
        elif self._error or ended.status:
            word = outcome_of_text(why)
        else:
            # Its last step neither ended nor failed: the answer of the model was interrupted or not to be read.
            word = "api_5xx" if self._finished else "no_result"
        return AgentVerdict(
            outcome=word,
            why=why or "its last step did not come to an end",
            turns=self._turns,
            denials=denials,
            retry_after_s=seconds(part(data, "responseHeaders").get("retry-after")),
            session_lost=_LOST in ended.stderr,
        )


reader = OpencodeReader


def _parse_usage(piece: dict[str, Any]) -> Usage | None:
    tokens, cache = part(piece, "tokens"), part(piece, "tokens", "cache")
    read = count(cache.get("read"))
    used = Usage(
        input_tokens=count(tokens.get("input")) + read + count(cache.get("write")),
        output_tokens=count(tokens.get("output")) + count(tokens.get("reasoning")),
        cached_tokens=read,
        cost_usd=number(piece.get("cost")) or 0.0,
        calls=1,
    )
    return used if used.tokens else None
