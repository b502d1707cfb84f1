"""Codex: `codex exec --json`."""

from __future__ import annotations

import json
from typing import Any

from msgspec import structs

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
    outcome_of_text,
    part,
    tool_line,
)


def tokens_of(line: str) -> Usage | None:
    """What a line of a rollout says that the thread has used so far."""
    if '"token_count"' not in line:
        return None
    total = part(document(line), "payload", "info", "total_token_usage")
    return _usage(total) if total else None


def _usage(numbers: dict[str, Any]) -> Usage:
    return Usage(
        input_tokens=count(numbers.get("input_tokens")),
        output_tokens=count(numbers.get("output_tokens")),
        cached_tokens=count(numbers.get("cached_input_tokens")),
    )


TRAITS = Traits(
    program="codex",
    package="@openai/codex",
    provider="openai",
    names_session=False,
    forks=True,
    counts_session=True,
    takes_tools=False,
    takes_schema=True,
    transcript=TranscriptLocation("CODEX_HOME", ".codex", "sessions/*/*/*/rollout-*-{id}.jsonl"),
    tokens_of=lambda: tokens_of,
    sign_in=SignIn(("OPENAI_API_KEY", "CODEX_API_KEY"), "auth.json"),
    keeps=(KeptFolder("CODEX_HOME", ".codex", fixed=("config.toml", "AGENTS.md", "prompts", "rules", "skills")),),
    variables=("CODEX_", "OPENAI_"),
    own_sandbox=True,
)

_SANDBOXES = {"read": "read-only", "edit": "workspace-write", "full": "danger-full-access"}
_LOST = "no rollout found"
_SCHEMA = "schema.json"


def call(ask: Ask) -> AgentInvocation:
    argv = ["codex", "exec"]
    if ask.goes_on:
        argv.append("fork")
    # Set as configuration: `fork` knows no `--sandbox`.
    argv += ["--json", "--skip-git-repo-check", "--ignore-rules"]
    argv += ["-c", f'sandbox_mode="{_SANDBOXES[ask.permissions]}"', "-c", 'approval_policy="never"']
    if ask.model:
        argv += ["--model", ask.model]
    files = {}
    if ask.schema is not None:
        files[_SCHEMA] = json.dumps(ask.schema)
        argv += ["--output-schema", f"{ask.folder}/{_SCHEMA}"]
    if ask.goes_on:
        argv.append(ask.goes_on)
    return AgentInvocation(argv=(*argv, "-"), files=files)


class CodexReader:
    """It counts tokens over the whole thread and tells them once, at the end of what was asked; its rollout has them
    after each answer."""

    def __init__(self) -> None:
        self._text = ""
        self._error = ""
        self._turns = 0
        self._usage: dict[str, Any] = {}
        self._complete = False
        self._at_work: set[str] = set()
        """Items that have begun and not ended: only then is a turn over."""

    def line(self, text: str) -> StreamUpdate:
        event = document(text)
        match event.get("type"):
            case "thread.started":
                return StreamUpdate(session=str(event.get("thread_id") or ""))
            case "turn.started":
                self._complete = False
            case "item.started":
                shown = _tool_of(part(event, "item"))
                if shown and part(event, "item").get("id"):
                    self._at_work.add(str(part(event, "item")["id"]))
                return StreamUpdate(shown=shown, goes_on=bool(shown) or None)
            case "item.completed":
                return self._item(part(event, "item"))
            case "turn.completed":
                self._complete, self._usage = True, part(event, "usage")
                return StreamUpdate(turn=True)
            case "turn.failed":
                self._error = str(part(event, "error").get("message") or "the turn failed")
            case "error":
                self._error = self._error or str(event.get("message") or "")
        return NOTHING_HEARD

    def _item(self, item: dict[str, Any]) -> StreamUpdate:
        match item.get("type"):
            case "agent_message":
                self._text = str(item.get("text") or "")
                return StreamUpdate(shown=tuple(self._text.splitlines()), goes_on=False)
            case "command_execution" | "file_change" | "mcp_tool_call":
                self._turns += 1
                self._at_work.discard(str(item.get("id")))
                shown = () if "command" in item else _tool_of(item)
                return StreamUpdate(turn=not self._at_work, shown=shown, goes_on=True)
            case "error":
                return StreamUpdate(shown=(f"codex: {item.get('message')}",))
        return NOTHING_HEARD

    def verdict(self, ended: AgentExit) -> AgentVerdict:
        if self._complete and (ended.status == 0 or ended.stopped):
            return AgentVerdict(outcome="ok", text=self._text, turns=self._turns + 1, used=self._parse_usage())
        why = self._error or ended.stderr.strip()
        return AgentVerdict(
            outcome="no_result" if not self._error and ended.status == 0 else outcome_of_text(why),
            why=why,
            turns=self._turns,
            used=self._parse_usage() if self._usage else None,
            session_lost=_LOST in ended.stderr,
        )

    def _parse_usage(self) -> Usage:
        return structs.replace(_usage(self._usage), calls=self._turns + 1)


reader = CodexReader


def _tool_of(item: dict[str, Any]) -> tuple[str, ...]:
    match item.get("type"):
        case "command_execution":
            return (tool_line("shell", str(item.get("command") or "")),)
        case "file_change":
            changes = item.get("changes")
            paths = [str(part(one).get("path")) for one in changes] if isinstance(changes, list) else []
            return (tool_line("edit", " ".join(paths)),)
        case "mcp_tool_call":
            return (tool_line(item.get("tool"), item.get("arguments")),)
    return ()
