"""The parameters of a workflow, for people."""

from __future__ import annotations

import msgspec

from agentos.cli.render.text import printable, short
from agentos.client.definitions import Parameter

_SHOWN = 60


def is_described(parameter: Parameter) -> bool:
    """Whether there is more to tell than a name and a default."""
    return bool(parameter.type or parameter.help or parameter.choices)


def parameter_cells(parameter: Parameter) -> tuple[str, str]:
    """Two columns: `port: integer = 8080`, and what it is for."""
    name = f"{parameter.name}: {parameter.type}" if parameter.type else parameter.name
    default = "(required)" if parameter.required else f"= {as_json_text(parameter.default)}"
    choices = f"One of {', '.join(map(as_json_text, parameter.choices))}." if parameter.choices else ""
    return printable(f"{name} {default}"), printable(" ".join(filter(None, (parameter.help, choices))))


def as_json_text(value: object) -> str:
    return short(msgspec.json.encode(value).decode(), _SHOWN)
