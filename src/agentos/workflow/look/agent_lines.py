"""What agents printed, as people read it: what they say, the tools they use, what it cost. Of old logs, too.

An agent prints events of its own kind, and the log of its attempt keeps them as they came. They are read here as they
were when they came, so that a log shows what the terminal of the driver showed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agentos.machine.events import Usage
from agentos.tasks.agents.adapters.adapter import Reader, count, document, number, part
from agentos.tasks.agents.adapters.known import AGENTS
from agentos.workflow.drive.logs import LogLine

BEGAN, _ENDED = '{"agent_started"', '{"agent_ended"'


class _AgentAtWork:
    def __init__(self, agent: str, reader: Reader) -> None:
        self.agent, self.reader, self.used = agent, reader, Usage()


class AgentLines:
    """Makes readable lines of the lines of logs, given in order. Lines of anything but agents stay as they are."""

    def __init__(self) -> None:
        self._at_work: dict[tuple[str, int], _AgentAtWork] = {}

    def read(self, line: LogLine) -> list[LogLine]:
        """What there is to read in this line; nothing, perhaps."""
        key = line.task_id, line.attempt
        if line.stream == "progress" and line.text.startswith(BEGAN):
            session = part(document(line.text), "agent_started", "session")
            agent = str(session.get("agent"))
            if agent in AGENTS:
                self._at_work[key] = _AgentAtWork(agent, AGENTS[agent].reader())
                return _with_texts(
                    line, f"{agent} begins" + (f", session {session['id']}" if session.get("id") else "")
                )
        at_work = self._at_work.get(key)
        if at_work is None:
            return [line]
        if line.stream == "progress" and line.text.startswith(_ENDED):
            del self._at_work[key]  # what follows was printed by `verify`
            return _with_texts(line, _ending(at_work, part(document(line.text), "agent_ended")))
        if line.stream != "out":
            return [line]
        heard = at_work.reader.line(line.text)
        at_work.used += heard.used or Usage()
        return _with_texts(line, *heard.shown)


def _with_texts(line: LogLine, *texts: str) -> list[LogLine]:
    return [msgspec.structs.replace(line, text=text) for text in texts]


def _ending(at_work: _AgentAtWork, ended: dict[str, Any]) -> str:
    rest = part(ended, "used")
    into, out = (count(rest.get(name)) for name in ("input_tokens", "output_tokens"))
    into, out = into + at_work.used.input_tokens, out + at_work.used.output_tokens
    cost = number(ended.get("cost_usd"))
    told = [str(ended.get("outcome") or "unknown")]
    if turns := count(ended.get("turns")):
        told.append("1 turn" if turns == 1 else f"{turns} turns")
    told += [f"{into:,} tokens in, {out:,} out"] if into or out else []
    told += [f"${cost:.4f}"] if cost is not None else []
    return f"{at_work.agent} ended: {', '.join(told)}"
