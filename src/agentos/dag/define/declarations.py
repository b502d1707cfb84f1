"""Parameters of a run as a workflow declares them: a default alone, or a map of type, default, help and choices.

| written for a parameter                                | is                                                       |
|--------------------------------------------------------|----------------------------------------------------------|
| nothing (`msgspec.UNSET`), or its name in a list        | a parameter that every run must give                     |
| a map of these four keys alone, not of `default` alone  | a declaration                                            |
| anything else, other maps included                      | the default                                              |

A map that looks like a declaration and has another key is refused: as a default it would hide a misspelt key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from agentos.dag.plan.findings import nearest
from agentos.excerpts import shorten

KEYS = ("type", "default", "help", "choices")
TYPES: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "string": ("a string", (str,)),
    "integer": ("an integer", (int,)),
    "number": ("a number", (int, float)),
    "boolean": ("a boolean, true or false", (bool,)),
    "list": ("a list", (list, tuple)),
    "object": ("an object, a map", (Mapping,)),
}
"""By the word of a file: how it is said, and what Python has for it."""
_SHOWN = 60


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """What a workflow says of one parameter."""

    type: str = ""
    """One of TYPES; empty: anything."""
    default: Any = msgspec.UNSET
    """UNSET: every run must give it. Null is a default of every type."""
    help: str = ""
    choices: tuple[Any, ...] = ()
    """The values it may have; empty: any of its type."""

    def problem(self, value: object) -> str:
        """What speaks against the value: `takes an integer, not 'abc'`; empty where nothing does."""
        if value is None and self.default is None:
            return ""
        if self.type and not _has_type(value, self.type):
            is_unquoted = self.type == "string" and isinstance(value, (int, float))
            hint = ": write it in quotes" if is_unquoted else ""
            return f"takes {TYPES[self.type][0]}, not {_shown(value)}{hint}"
        if self.choices and not any(_is_same(value, choice) for choice in self.choices):
            return f"takes one of {', '.join(map(_shown, self.choices))}, not {_shown(value)}"
        return ""


def is_declaration(written: object) -> bool:
    """Whether this declares a parameter; else it is the default itself."""
    if not isinstance(written, Mapping):
        return False
    own = [key for key in KEYS if key in written]
    return own not in ([], ["default"]) and (len(own) == len(written) or _is_misspelt(written, own))


def declarations(params: object) -> dict[Any, Declaration]:
    """What `Workflow.params` says of parameters, by name, mistakes left out; a list of names says nothing of them."""
    written = params if isinstance(params, Mapping) else {}
    return {name: read_declaration(one)[0] for name, one in written.items()}


def read_declaration(written: Any) -> tuple[Declaration, list[str]]:
    """The declaration of a parameter, and what is wrong with it."""
    if not is_declaration(written):
        return Declaration(default=written), []
    problems = [
        f"a declaration has {', '.join(KEYS)}, and no {shorten(str(key), _SHOWN)!r}{nearest(str(key), KEYS)}; "
        "a map that is the default itself is written {type: object, default: {…}}"
        for key in written
        if key not in KEYS
    ]
    kind, about = written.get("type", ""), written.get("help", "")
    if "type" in written and (not isinstance(kind, str) or kind not in TYPES):
        hint = nearest(kind, TYPES) if isinstance(kind, str) else ""
        problems.append(f"type is one of {', '.join(TYPES)}, not {_shown(kind)}{hint}")
        kind = ""
    if not isinstance(about, str):
        problems.append(f"help takes text, not {_shown(about)}")
        about = ""
    choices = written.get("choices", ())
    if "choices" in written and (not isinstance(choices, (list, tuple)) or not choices):
        problems.append(f"choices takes a list of values, not {_shown(choices)}")
        choices = ()
    of_type = Declaration(type=kind)
    problems += [f"a choice {problem}" for choice in choices if (problem := of_type.problem(choice))]
    read = Declaration(type=kind, default=written.get("default", msgspec.UNSET), help=about, choices=tuple(choices))
    if read.default is not msgspec.UNSET and (problem := read.problem(read.default)):
        problems.append(f"the default does not fit: it {problem}")
    return read, problems


def _is_misspelt(written: Mapping[Any, Any], own: Iterable[str]) -> bool:
    """Whether a map with keys of its own was meant as a declaration; a JSON Schema as a default was not."""
    kind = written.get("type")
    strangers = [str(key) for key in written if key not in KEYS]
    return isinstance(kind, str) and kind in TYPES and (own != ["type"] or any(nearest(key, KEYS) for key in strangers))


def _has_type(value: object, kind: str) -> bool:
    # To Python true is the integer 1, to everybody else it is not.
    return isinstance(value, TYPES[kind][1]) and (kind == "boolean" or not isinstance(value, bool))


def _is_same(value: object, choice: object) -> bool:
    return value == choice and isinstance(value, bool) == isinstance(choice, bool)


def _shown(value: object) -> str:
    return shorten(repr(value), _SHOWN)
