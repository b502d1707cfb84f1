"""Work that a model does, as data: an agent at work in the worktree, or one call of a model. And what it may cost."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec

from agentos import typed
from agentos.dag.language.references import OPEN
from agentos.dag.plan.findings import nearest

AGENTS = ("claude", "codex", "gemini", "opencode", "copilot", "command")
"""Agents by name; `command` is any other program."""
_WITHOUT_TOOLS = ("codex",)
_FORKING = ("claude", "codex", "opencode")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
Permissions = Literal["read", "edit", "full"]
OnResume = Literal["continue", "restart", "fork"]


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What may be spent; None: as much as it takes."""

    cost_usd: float | None = None
    tokens: int | None = None

    def __bool__(self) -> bool:
        return self.cost_usd is not None or self.tokens is not None

    @property
    def used_up(self) -> bool:
        """Of what is left of one: nothing."""
        return (self.cost_usd is not None and self.cost_usd <= 0) or (self.tokens is not None and self.tokens <= 0)


NO_BUDGET = Budget()
"""The one that stands for none wherever there is none: a default takes no bytes only where it is the same value."""


class AgentWork(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent is to do, headless, in the worktree."""

    agent: str
    prompt: str
    model: str = ""
    """Empty: the agent's own choice."""
    permissions: Permissions = "edit"
    allowed_tools: tuple[str, ...] = ()
    max_turns: int | None = None
    verify: str | tuple[str, ...] = ""
    """A command that must succeed after the agent has: its word alone is not taken."""
    on_resume: OnResume = "continue"
    """What an attempt that was interrupted becomes: the same session goes on, a new one begins, or a copy goes on."""
    command: tuple[str, ...] = ()
    """Of `agent: command`: what to run. The prompt is on its stdin, the answer on its stdout."""
    schema: Mapping[str, Any] | None = None
    """JSON Schema of the final answer."""


class LlmWork(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a model behind an OpenAI-compatible endpoint."""

    model: str
    prompt: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The conversation so far, each `{role, content}`; `prompt` follows it as the user's."""
    system: str = ""
    base_url: str = ""
    """Empty: what the settings say."""
    key_name: str = ""
    """The NAME of the environment variable that holds the key."""
    key_command: tuple[str, ...] = ()
    """A command that prints the key."""
    schema: Mapping[str, Any] | None = None
    """JSON Schema of the answer."""
    max_tokens: int | None = None
    temperature: float | None = None


Work = AgentWork | LlmWork
WORK_OF: Mapping[str, type[AgentWork] | type[LlmWork]] = {"agent": AgentWork, "llm": LlmWork}
_WORDS = ("allowed_tools", "command", "key_command", "messages")
"""Settings that take a list."""


def read_work_setting(kind: str, name: str, value: Any) -> Any:
    """One setting of such a task as it is kept. ValueError says what was expected."""
    fields = {field.name: field.type for field in msgspec.structs.fields(WORK_OF[kind])}
    if name in _WORDS and isinstance(value, (str, Mapping)):
        raise ValueError(f"{name} takes a list, not {value!r}")
    if get_origin(fields[name]) is Literal and value not in (words := get_args(fields[name])):
        raise ValueError(f"{name} is one of {', '.join(words)}, not {value!r}{nearest(str(value), words)}")
    try:
        return typed.convert(value, fields[name])
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {error}") from None


def read_budget(value: Any) -> Budget:
    """A number is dollars. ValueError says what was expected."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Budget(cost_usd=float(value))
    if isinstance(value, Budget):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"budget takes a number (US dollars), or a map of cost_usd and tokens, not {value!r}")
    for key in value:
        if key not in Budget.__struct_fields__:
            raise ValueError(f"unknown key {key!r} in budget{nearest(str(key), Budget.__struct_fields__)}")
    try:
        return typed.convert(value, Budget)
    except msgspec.ValidationError as error:
        raise ValueError(f"budget: {error}") from None


def budget_problems(budget: Budget) -> Iterator[str]:
    if budget.cost_usd is not None and not 0 < budget.cost_usd < math.inf:
        yield f"budget: cost_usd must be more than 0, not {budget.cost_usd}"
    if budget.tokens is not None and budget.tokens < 1:
        yield f"budget: tokens must be 1 or more, not {budget.tokens}"


def agent_problems(work: AgentWork) -> Iterator[str]:
    """What is wrong with what an agent is to do."""
    if work.agent not in AGENTS:
        yield f"agent is one of {', '.join(AGENTS)}, not {work.agent!r}{nearest(work.agent, AGENTS)}"
    if not work.prompt.strip():
        yield "agent tasks need a prompt"
    if work.agent == "command" and not (work.command and work.command[0]):
        yield "agent 'command' needs `command`: the program and its arguments, as a list"
    if work.agent != "command" and work.command:
        yield f"`command` is for agent 'command', not for {work.agent!r}"
    if work.allowed_tools and work.agent in _WITHOUT_TOOLS:
        yield f"{work.agent} takes no list of allowed tools: `permissions` says what it may do"
    if work.on_resume == "fork" and work.agent in AGENTS and work.agent not in _FORKING:
        yield f"{work.agent} cannot copy a session: `on_resume` is continue or restart"
    if work.max_turns is not None and work.max_turns < 1:
        yield f"max_turns must be 1 or more, not {work.max_turns}"


def llm_problems(work: LlmWork) -> Iterator[str]:
    """What is wrong with a call of a model."""
    if not work.model.strip():
        yield "say which model: `llm: MODEL`"
    if not work.prompt.strip() and not work.messages:
        yield "llm tasks need a prompt, or messages"
    for message in work.messages:
        if not isinstance(message.get("role"), str) or "content" not in message:
            yield f"messages takes maps of role and content, not {message!r}"
    if work.base_url and OPEN not in work.base_url and not work.base_url.startswith(("https://", "http://")):
        yield f"base_url begins with https:// or http://, not as {work.base_url!r} does"
    if work.key_name and OPEN not in work.key_name and not _VARIABLE.fullmatch(work.key_name):
        yield "key_name is the NAME of a variable, as OPENAI_API_KEY; the key itself is never written down"
    if work.key_name and work.key_command:
        yield "key_name and key_command: give one of them"
    if work.max_tokens is not None and work.max_tokens < 1:
        yield f"max_tokens must be 1 or more, not {work.max_tokens}"
    if work.temperature is not None and not 0 <= work.temperature < math.inf:
        yield f"temperature must be 0 or more, not {work.temperature}"
