"""Work that a model does, as data: an agent at work in the worktree, or one call of a model. And what it may cost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec

from agentos.dag.define.limits import AT_LEAST_0, AT_LEAST_1, POSITIVE, Limits
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

    cost_usd: Annotated[float | None, POSITIVE] = None
    tokens: Annotated[int | None, AT_LEAST_1] = None

    def __bool__(self) -> bool:
        return self.cost_usd is not None or self.tokens is not None

    @property
    def used_up(self) -> bool:
        """Of what is left of one: nothing."""
        return (self.cost_usd is not None and self.cost_usd <= 0) or (self.tokens is not None and self.tokens <= 0)


NO_BUDGET = Budget()
"""The one that stands for none wherever there is none: a default takes no bytes only where it is the same value."""


class VerifyCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several commands that must succeed after an agent has; text is for a shell, as in a shell task."""

    run: str | tuple[str, ...]


class AgentWork(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent is to do, headless, in the worktree."""

    agent: Annotated[str, Limits(enum=list(AGENTS))]
    prompt: str
    model: str = ""
    """Empty: the agent's own choice."""
    permissions: Permissions = "edit"
    allowed_tools: tuple[str, ...] = ()
    max_turns: Annotated[int | None, AT_LEAST_1] = None
    verify: str | tuple[str | VerifyCommand, ...] = ""
    """A command that must succeed after the agent has: its word alone is not taken. Several are maps in a list: a list
    of words is one command."""
    on_resume: OnResume = "continue"
    """What an attempt that was interrupted becomes: the same session goes on, a new one begins, or a copy goes on."""
    command: tuple[str, ...] = ()
    """Of `agent: command`: what to run. The prompt is on its stdin, the answer on its stdout."""
    schema: Mapping[str, Any] | None = None
    """JSON Schema of the final answer."""


class OnLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What becomes of an agent whose subscription is used up: it waits until that is over, goes on as another agent or
    with another model, or fails."""

    act: Literal["wait", "switch", "fail"] = "wait"
    agent: str = ""
    """With `switch`: empty for the same agent."""
    model: str = ""


WAIT_AT_LIMIT = OnLimit()
"""The one that stands for the default, as `NO_BUDGET` does."""


def switched_work(work: AgentWork, target: OnLimit) -> AgentWork:
    """What the task's agent does once it went on as another one, or with another model."""
    other = target.agent and target.agent != work.agent
    model = target.model or ("" if other else work.model)
    return msgspec.structs.replace(work, agent=target.agent or work.agent, model=model)


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
    max_tokens: Annotated[int | None, AT_LEAST_1] = None
    temperature: Annotated[float | None, AT_LEAST_0] = None
    reasoning_effort: str = ""
    """In the model's own words, as `low` or `high`; empty: its own choice."""
    extra_body: Mapping[str, Any] = {}
    """What else the server is told, by the names it has for it."""
    prompt_file: str = ""
    """A file below the root that holds the prompt. In a plan its content stands in its place, and this is empty."""
    system_file: str = ""


def verify_commands(work: AgentWork) -> tuple[str | tuple[str, ...], ...]:
    """The commands that must succeed after the agent has, in order; none where its word is taken."""
    if isinstance(work.verify, str):
        return (work.verify,) if work.verify else ()
    several = tuple(one.run for one in work.verify if isinstance(one, VerifyCommand))
    return several or ((tuple(map(str, work.verify)),) if work.verify else ())


OWN_BODY = (
    *("model", "messages", "stream", "stream_options", "response_format", "n"),
    *("max_tokens", "temperature", "reasoning_effort"),
)
"""What `extra_body` may not hold: settings say it, or nothing else would be understood."""

Work = AgentWork | LlmWork
WORK_OF: Mapping[str, type[AgentWork] | type[LlmWork]] = {"agent": AgentWork, "llm": LlmWork}


def _word_problems(first: str) -> Iterator[str]:
    if " " in first.strip() and "/" not in first and OPEN not in first:
        yield f"verify: a list of words is one command, and {first!r} is no program; several: [{{run: {first}}}, …]"


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
    if len({type(one) for one in work.verify}) > 1:
        yield "verify is one command, as text or as a list of words, or a list of maps as {run: make test}, not both"
    elif isinstance(work.verify, tuple) and isinstance(first := next(iter(work.verify), None), str):
        yield from _word_problems(first)
    if work.on_resume == "fork" and work.agent in AGENTS and work.agent not in _FORKING:
        yield f"{work.agent} cannot copy a session: `on_resume` is continue or restart"


def on_limit_problems(work: AgentWork, on_limit: OnLimit) -> Iterator[str]:
    """What is wrong with what becomes of an agent at a limit."""
    if on_limit.act != "switch":
        return
    if on_limit.agent == "command" or (on_limit.agent and on_limit.agent not in AGENTS):
        known = [name for name in AGENTS if name != "command"]
        yield f"on_limit: switch to one of {', '.join(known)}, not {on_limit.agent!r}{nearest(on_limit.agent, known)}"
        return
    if switched_work(work, on_limit) == work:
        yield "on_limit: switch names another agent, or another model"
    for problem in agent_problems(switched_work(work, on_limit)):
        yield f"on_limit: {problem}"


def llm_problems(work: LlmWork) -> Iterator[str]:
    """What is wrong with a call of a model."""
    if not work.model.strip():
        yield "say which model: `llm: MODEL`"
    if not work.prompt.strip() and not work.messages and not work.prompt_file:
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
    if own := [name for name in OWN_BODY if name in work.extra_body]:
        yield f"extra_body may not hold {', '.join(own)}: what is asked, and how the answer comes, is not its affair"
    for name in ("prompt_file", "system_file"):
        if getattr(work, name):
            yield f"{name} is read when a workflow is planned; a task that is added later takes the text itself"
