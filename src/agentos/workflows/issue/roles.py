"""Who drafts, who reviews, and what files: as typed (`agent:claude`, `llm:MODEL`, `command:PROGRAM …`) and as meant."""

from __future__ import annotations

import shlex
from typing import Literal

import msgspec

from agentos.exceptions import RunRefusedError

RoleKind = Literal["command", "llm", "agent"]
_FORMS = "agent:NAME[:MODEL], llm:MODEL or command:PROGRAM [ARGUMENT …]"


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
        raise RunRefusedError(f"{option} takes {_FORMS}, not {text!r}")
    match kind:
        case "command":
            return Role(kind="command", argv=_words(rest, option))
        case "llm":
            return Role(kind="llm", name=rest.strip())
        case "agent":
            name, _, model = rest.strip().partition(":")
            return Role(kind="agent", name=name, model=model)
    raise RunRefusedError(f"{option} takes {_FORMS}, not {text!r}")


def parse_filer(text: str, option: str = "--file-with") -> Filer:
    """The filer that was typed."""
    if text in ("gh", "none"):
        return Filer(kind=text)  # type: ignore[arg-type]  # told apart above
    kind, _, rest = text.partition(":")
    if kind != "command" or not rest.strip():
        raise RunRefusedError(f"{option} takes gh, none or command:PROGRAM [ARGUMENT …], not {text!r}")
    return Filer(kind="command", argv=_words(rest, option))


def _words(text: str, option: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise RunRefusedError(f"{option}: {text!r} cannot be taken apart into words: {error}") from error
