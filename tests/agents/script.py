"""What a scripted model says to an agent, in terms of the tools that this agent has.

with ModelServer(PROTOCOLS) as server:
    script = AgentScript(server, WriteFile("a.txt", "hello"), says("Done."))
    ... run an agent against `server.url` ...
    assert len(script.calls) == 2
"""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import structs

from tests.agents.protocols import GenerateContent, Messages, Responses
from tests.models.chat import ChatCompletions
from tests.models.received import Received
from tests.models.replies import Answer, Reply, ToolCall, says
from tests.models.server import ModelServer

PROTOCOLS = (Messages(), Responses(), GenerateContent(), ChatCompletions())


class WriteFile(NamedTuple):
    """Use of whatever tool of the agent's writes a file."""

    path: str
    content: str


class RunShell(NamedTuple):
    """Use of whatever tool of the agent's runs a command."""

    command: str


class UseTool(NamedTuple):
    """Use of a tool of our own server, `agentos mcp`, once the agent has connected to it."""

    tool: str
    arguments: Mapping[str, Any] = {}

    def call(self, tools: frozenset[str]) -> ToolCall | None:
        """None where the agent does not offer it yet. Each has a name of its own for it, which ends as ours does."""
        own = (name for name in tools if "agentos" in name and name.endswith(self.tool))
        if (name := next(own, None)) is not None:
            return ToolCall(name, self.arguments)
        return ToolCall(self.tool, self.arguments, CODEX_SERVER) if CODEX_SERVER in tools else None


CODEX_SERVER = "mcp__agentos"
Step = Reply | WriteFile | RunShell | UseTool


class AgentScript:
    """Answers each call of an agent's conversation with the next step, and with `done` after the last.

    Calls without tools (titles, summaries) are answered by themselves and not counted: agents make them as they like.
    """

    def __init__(self, server: ModelServer, *steps: Step, pause_s: float = 0.0) -> None:
        """`pause_s`: so long it takes over each part of an answer that uses a tool."""
        self._server, self._pause_s = server, pause_s
        self._steps: deque[Step] = deque(steps)
        server.choose(self._choose)

    def then(self, *steps: Step) -> None:
        """What is said from now on; what was left of the script is forgotten."""
        self._steps = deque(steps)

    @property
    def calls(self) -> list[Received]:
        return [request for request in self._server.requests if offered(request)]

    def wait_for_calls(self, count: int, timeout_s: float = 60) -> None:
        """Until so many calls have come, answered or not."""
        self._server.wait_for(lambda: len(self.calls) >= count, timeout_s)

    def _choose(self, request: Received) -> Reply | None:
        tools = offered(request)
        if not tools:
            return says("a title")
        step = self._steps.popleft() if self._steps else says("done")
        if isinstance(step, UseTool):
            if (call := step.call(tools)) is not None:
                return Answer(text="", tool_calls=(call,), finish_reason="tool_calls")
            self._steps.appendleft(step)
            step = WAIT_FOR_SERVERS if "WaitForMcpServers" in tools else RunShell("sleep 1")
        if not isinstance(step, (WriteFile, RunShell)):
            return step
        return structs.replace(with_tool(step, tools), pause_s=self._pause_s)


WAIT_FOR_SERVERS = Answer(
    text="", tool_calls=(ToolCall("WaitForMcpServers", {}),), finish_reason="tool_calls"
)  # claude's


def offered(request: Received) -> frozenset[str]:
    """The tools of the agent that the model may use; none in a request that is not a part of its conversation."""
    if request.method != "POST":
        return frozenset()
    names: set[str] = set()
    for tool in request.json.get("tools") or ():
        declared = tool.get("functionDeclarations")
        for one in (tool.get("function", tool),) if declared is None else declared:
            names.add(one.get("name") or one.get("type", ""))
    return frozenset(names)


def with_tool(step: WriteFile | RunShell, tools: frozenset[str]) -> Answer:
    """An answer that uses the tool which this agent has for it."""
    table: Mapping[str, Callable[..., Mapping[str, Any]]] = _WRITERS if isinstance(step, WriteFile) else _SHELLS
    for name, arguments in table.items():
        if name in tools:
            call = ToolCall(name, arguments(*step))
            return Answer(text="", tool_calls=(call,), finish_reason="tool_calls")
    return says(f"there is no tool for {step!r} among {sorted(tools)}")


_WRITERS: Mapping[str, Callable[[str, str], Mapping[str, Any]]] = {
    "Write": lambda path, content: {"file_path": path, "content": content},  # claude
    "write_file": lambda path, content: {"file_path": path, "content": content},  # gemini
    "write": lambda path, content: {"filePath": path, "content": content},  # opencode
    "create": lambda path, content: {"path": path, "file_text": content},  # copilot
    "exec_command": lambda path, content: {"cmd": _printing(path, content)},  # codex
}
_SHELLS: Mapping[str, Callable[[str], Mapping[str, Any]]] = {
    "Bash": lambda command: {"command": command, "description": "as asked"},
    "run_shell_command": lambda command: {"command": command},
    "exec_command": lambda command: {"cmd": command},
    "bash": lambda command: {"command": command, "description": "as asked"},
}


def _printing(path: str, content: str) -> str:
    return f"printf %s {shlex.quote(content)} > {shlex.quote(path)}"
