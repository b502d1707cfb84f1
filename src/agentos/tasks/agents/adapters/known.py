"""The agents that are known by name."""

from __future__ import annotations

from collections.abc import Mapping

from agentos.tasks.agents.adapters import claude, codex, command, copilot, gemini, opencode
from agentos.tasks.agents.adapters.adapter import Agent

AGENTS: Mapping[str, Agent] = {
    "claude": claude,
    "codex": codex,
    "gemini": gemini,
    "opencode": opencode,
    "copilot": copilot,
    "command": command,
}
