"""The documented shape of what commands print with `--json`, as JSON Schema."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from typing import Any, get_args, get_type_hints

import click
import msgspec

from agentos.cli.main import SECTIONS, module_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its name as typed (`db path`), in the order of the help; groups before what is in them."""
    for name in (name for section in SECTIONS.values() for name in section):
        command: click.Command = import_module(module_of(name)).command
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {part}", command.commands[part]) for part in command.commands)


def prints_json(command: click.Command) -> bool:
    """Whether the command has `--json`."""
    return any("--json" in parameter.opts for parameter in command.params)


def output_type(name: str) -> Any | None:
    """What `NAME --json` prints (each line of it, where it prints lines); None where it is not said."""
    group, _, part = name.partition(" ")
    output = getattr(import_module(module_of(group)), "OUTPUT", None)
    if isinstance(output, dict):  # a group; one that does something itself has the empty name
        return output.get(part)
    return None if part else output


def output_schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of what `NAME --json` prints. LookupError where the command prints no JSON."""
    output = output_type(name)
    if output is None:
        raise LookupError(f"agentos {name} prints no JSON")
    schema = msgspec.json.schema(output)
    for kind in _structs_in(output):
        _describe(schema.get("$defs", {}).get(kind.__name__, {}).get("properties", {}), kind)
    return {"$schema": DIALECT, "title": f"agentos {name} --json", **schema}


def _structs_in(kind: Any) -> set[type[msgspec.Struct]]:
    """Every Struct that a type is made of."""
    found: set[type[msgspec.Struct]] = set()
    left = [kind]
    while left:
        part = left.pop()
        left += get_args(part)
        if isinstance(part, type) and issubclass(part, msgspec.Struct) and part not in found:
            found.add(part)
            left += get_type_hints(part).values()
    return found


def _describe(properties: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    """Put what stands below a field in the source beside it in the schema: msgspec takes the class's text alone."""
    try:
        [declared] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):  # made at run time, as the shapes of events are
        return
    assert isinstance(declared, ast.ClassDef)
    for field, text in pairwise(declared.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as said)):
                if name in properties:
                    properties[name]["description"] = inspect.cleandoc(said).replace("\n", " ")
