"""Any other program: the prompt on its stdin, the answer on its stdout, 0 for success and 75 for try again later."""

from __future__ import annotations

import os

from agentos.tasks.agents.adapters.adapter import AgentExit, AgentInvocation, AgentVerdict, Ask, StreamUpdate, Traits

MAX_ANSWER = 16 << 20
TRAITS = Traits(program="", names_session=False)


def call(ask: Ask) -> AgentInvocation:
    names = {
        "AGENTOS_AGENT_MODEL": ask.model,
        "AGENTOS_AGENT_PERMISSIONS": ask.permissions,
        "AGENTOS_AGENT_TOOLS": ",".join(ask.allowed_tools),
        "AGENTOS_AGENT_MAX_TURNS": "" if ask.max_turns is None else str(ask.max_turns),
    }
    return AgentInvocation(argv=ask.command, env={name: value for name, value in names.items() if value})


class CommandReader:
    """Everything it prints is its answer."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._room = MAX_ANSWER

    def line(self, text: str) -> StreamUpdate:
        self._room -= len(text) + 1
        if self._room >= 0:
            self._lines.append(text)
        return StreamUpdate(shown=(text,))

    def verdict(self, ended: AgentExit) -> AgentVerdict:
        text = "\n".join(self._lines).strip("\n")
        if ended.status == 0 and self._room < 0:
            return AgentVerdict(
                outcome="agent_error", why=f"it printed more than the {MAX_ANSWER} characters of an answer"
            )
        if ended.status == 0:
            return AgentVerdict(outcome="ok", text=text, turns=1)
        why = ended.stderr.strip() or text
        if ended.status == os.EX_TEMPFAIL:
            return AgentVerdict(outcome="api_rate", why=why or "it asks to be tried again later (exit code 75)")
        return AgentVerdict(outcome="agent_error", why=why)


reader = CommandReader
