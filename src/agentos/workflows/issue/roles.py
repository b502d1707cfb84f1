"""Who drafts, who reviews, and what files: as typed (`agent:claude`, `llm:MODEL`, `command:PROGRAM …`) and as meant."""

from __future__ import annotations

import shlex
from typing import Literal

import msgspec

from agentos.dag.define.model_calls import AGENTS
from agentos.dag.plan.findings import nearest
from agentos.exceptions import RunRefusedError

RoleKind = Literal["command", "llm", "agent"]
_FORMS = "agent:NAME[:MODEL], llm:MODEL or command:PROGRAM [ARGUMENT …]"
_NAMES = tuple(name for name in AGENTS if name != "command")
"""Any other program is a role by itself, not an agent."""


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """A drafter or reviewer."""

    kind: RoleKind
    name: str = ""
    """Of the agent or the model."""
    model: str = ""
    """Of an agent (`agent:claude:opus`); empty: its own choice."""
    argv: tuple[str, ...] = ()
    """Of a program; a relative one is looked for in the root."""


class Filer(msgspec.Struct, frozen=True, kw_only=True):
    """What creates the issue."""

    kind: Literal["gh", "command", "none"]
    argv: tuple[str, ...] = ()


def parse_role(text: str, option: str) -> Role:
    """The role that was typed. RunRefusedError, naming the option, where it is none."""
    kind, colon, rest = text.partition(":")
    if not colon or not rest.strip():
        raise _option_refusal(option, _FORMS, text)
    match kind:
        case "command":
            return Role(kind="command", argv=_words(rest, option))
        case "llm":
            return Role(kind="llm", name=rest.strip())
        case "agent":
            name, _, model = rest.strip().partition(":")
            if name not in _NAMES:
                raise _option_refusal(option, f"one of the agents {', '.join(_NAMES)}", name, nearest(name, _NAMES))
            return Role(kind="agent", name=name, model=model)
    raise _option_refusal(option, _FORMS, text)


def parse_filer(text: str, option: str = "--file-with") -> Filer:
    """The filer that was typed."""
    if text in ("gh", "none"):
        return Filer(kind=text)  # type: ignore[arg-type]  # told apart above
    kind, _, rest = text.partition(":")
    if kind != "command" or not rest.strip():
        raise _option_refusal(option, "gh, none or command:PROGRAM [ARGUMENT …]", text)
    return Filer(kind="command", argv=_words(rest, option))


def _words(text: str, option: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise _option_refusal(option, f"words as a shell would take them apart ({error})", text) from error


def _option_refusal(option: str, takes: str, text: str, hint: str = "") -> RunRefusedError:
    step = "`agentos issue --help` has examples."
    return RunRefusedError(f"{option} takes {takes}, not {text!r}{hint}", next_step=step)
