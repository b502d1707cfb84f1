"""`agentos send`"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import click
import msgspec

from agentos.cli import shell_completion
from agentos.cli.options import author_option, json_option, repo_option
from agentos.cli.output import print_json, print_table, say_outcome
from agentos.client.answers import Became, author_of, deliver
from agentos.client.places import find_run
from agentos.client.types import Command, parse_command


class CommandField(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a command."""

    name: str
    required: bool
    form: str
    """What it takes: text, true or false, a number, JSON."""


class CommandShape(msgspec.Struct, frozen=True, kw_only=True):
    """A command that can be sent."""

    name: str
    summary: str
    fields: list[CommandField]


class SentCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command. One that is refused is an error, and ends with exit code 2."""

    workflow_id: str
    command: str
    author: str
    became: Became


OUTPUT = SentCommand | list[CommandShape]
"""A list with `--list`."""

_KINDS: dict[str, Any] = {str(kind.__struct_config__.tag): kind for kind in get_args(Command)}


@click.command(
    "send",
    help="""\b
Give a run any command.

\b
Examples:
  agentos send --list
  agentos send nightly skip_layer layer=2         the third one: commands count from 0
  agentos send nightly modify_args task_id=ship 'updates={"channel": "beta"}'
  agentos send nightly '{"type": "rollback", "checkpoint_id": "0198c2…"}'
  agentos send nightly - < command.json

A command is JSON, or a name with key=value pairs: a value is taken as text where the field is text, else as JSON. It is
kept until the process that drives the run, or the next resume, takes it up; abort, pause and answers to gates act at
once. Whether it was applied or refused, and why, is in the run's events.

\b
Exit codes:
  0   applied, or kept for the process that drives the run
  2   it is malformed, was refused, or there is no such run
  75  try again later: the database cannot be written now
""",
)
@click.argument("run", metavar="RUN", required=False, shell_complete=shell_completion.runs)
@click.argument("words", metavar="COMMAND [KEY=VALUE]...", nargs=-1)
@click.option("--list", "listing", is_flag=True, help="Show every command with its fields.")
@author_option
@json_option
@repo_option
def command(
    run: str | None, words: tuple[str, ...], listing: bool, author: str | None, as_json: bool, repo: Path | None
) -> None:
    if listing:
        _show_list(as_json)
        return
    if run is None or not words:
        raise click.UsageError("Name a run and a command; `agentos send --list` shows the commands.")
    parsed = parse_command(_command_in(words))
    found = find_run(run, repo)
    name, by = str(type(parsed).__struct_config__.tag), author_of(author)
    became = deliver(found, parsed, by)
    if as_json:
        print_json(SentCommand(workflow_id=found.record.workflow_id, command=name, author=by, became=became))
    else:
        say_outcome(found, f"{name} sent", became)


def _command_in(words: Sequence[str]) -> dict[str, Any]:
    first, *pairs = words
    if first == "-" or first.lstrip().startswith("{"):
        if pairs:
            raise click.UsageError("A command in JSON stands alone, without key=value pairs.")
        text = sys.stdin.buffer.read() if first == "-" else first.encode(errors="surrogateescape")
        try:
            return msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise click.UsageError(f"The command is not a JSON object: {error}") from error
    kind = _KINDS.get(first)
    if kind is None:
        raise click.UsageError(f"There is no command {first!r}: one of {', '.join(_KINDS)}.")
    forms = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    made: dict[str, Any] = {"type": first}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"{pair!r} is not key=value.")
        if key not in forms:
            raise click.UsageError(f"{first} has no field {key!r}: {', '.join(forms)}.")
        made[key] = value if _form(forms[key]) == "text" else _json_or_text(value)
    return made


def _json_or_text(value: str) -> Any:
    try:
        return msgspec.json.decode(value.encode(errors="surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return value


def _form(kind: Any) -> str:
    if kind is str or (get_origin(kind) is not None and all(isinstance(part, str) for part in get_args(kind))):
        return "text"  # plain, or one of several words
    return {bool: "true or false", int: "a number"}.get(kind, "JSON")


def _show_list(as_json: bool) -> None:
    shapes = [
        CommandShape(
            name=name,
            summary=str(kind.__doc__).partition("\n")[0],
            fields=[
                CommandField(name=field.encode_name, required=field.required, form=_form(field.type))
                for field in msgspec.structs.fields(kind)
            ],
        )
        for name, kind in _KINDS.items()
    ]
    if as_json:
        print_json(shapes)
        return
    print_table(
        ("COMMAND", "FIELDS", "WHAT IT DOES"),
        [
            (shape.name, " ".join(f.name if f.required else f"[{f.name}]" for f in shape.fields), shape.summary)
            for shape in shapes
        ],
        empty="",
    )
