"""`agentos diff`"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from agentos.cli import shell_completion
from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, say
from agentos.cli.render.text import count, printable, short, short_middle
from agentos.cli.render.value_text import change_lines
from agentos.client import diffs
from agentos.client.diffs import FilesDiff, Side, StateChange, StateDiff, StateDifference, TaskDiff
from agentos.client.places import FoundRun

WIDEST = 100
LEAD = 20
"""So many characters are shown before the first one that differs."""


OUTPUT = StateDiff | TaskDiff


@click.command(
    "diff",
    help="""\b
What differs between two checkpoints or runs, or what a task did to files.

\b
Examples:
  agentos diff 0198c2a1 0198c2b7
  agentos diff 0198c2a1 0198c2b7 --patch --path src | git apply --check
  agentos diff nightly build            what the task `build` of that run did to files
  agentos diff 0198c2a1 nightly --json | jq .difference.tasks

A and B are ids of checkpoints, of one run or of two, or ids of runs, which stand for their state as it is now. The
state is compared by task, context, messages and decisions; how long tasks took does not count. Files are compared where
both have a snapshot of them, in one repository: A(dded), D(eleted), M(odified), T(ype changed).

Where B is a task of the run A, only files are compared: before and after its newest attempt. Snapshots that no
checkpoint names are let go of when a run ends, and may be gone.

\b
Exit codes:
  0  compared, whether or not something differs
  2  there is no such checkpoint, run or task
""",
)
@click.argument("first", metavar="A", shell_complete=shell_completion.checkpoints)
@click.argument("second", metavar="B|TASK", shell_complete=shell_completion.checkpoints)
@click.option(
    "-p", "--patch", "as_patch", is_flag=True, help="Print the files that differ as a patch, and nothing else."
)
@click.option("--path", "paths", multiple=True, metavar="PATH", help="Only this file or folder; repeatable.")
@json_option
@repo_option
def command(first: str, second: str, as_patch: bool, paths: tuple[str, ...], as_json: bool, repo: Path | None) -> None:
    wanted = [path.strip("/") for path in paths]
    if (found := diffs.run_with_task(first, second, repo)) is not None:
        _show_task(found, second, wanted, as_patch=as_patch, as_json=as_json)
        return
    shown, patch = diffs.diff(first, second, paths=wanted, repo=repo)
    if as_json:
        print_json(msgspec.structs.replace(shown, patch=_text(patch) if as_patch else None))
        return
    if as_patch:
        _print_patch(shown.files, patch)
        return
    sides = f"- {_describe_side(shown.first)}", f"+ {_describe_side(shown.second)}"
    changes = ("", "Files", *change_lines(shown.files.changes)) if shown.files.changes else ()
    for line in (*sides, *_lines(shown.difference), *changes):
        click.echo(printable(line))
    if shown.difference.is_empty:
        say("The states are the same.")
    _say_about(shown.files)


def _show_task(run: FoundRun, task: str, paths: list[str], *, as_patch: bool, as_json: bool) -> None:
    shown, patch = diffs.task_diff(run, task, paths=paths)
    if as_json:
        print_json(msgspec.structs.replace(shown, patch=_text(patch) if as_patch else None))
        return
    if as_patch:
        _print_patch(shown.files, patch)
    else:
        for line in change_lines(shown.files.changes):
            click.echo(line)
        _say_about(shown.files)
    if others := shown.others:
        named = ", ".join(printable(name) for name in others[:10]) + (" …" if len(others) > 10 else "")
        say(f"Other tasks were at work on files at the same time, and some of this may be theirs: {named}")


def _say_about(files: FilesDiff) -> None:
    if not files.compared:
        say(f"Files are not compared: {printable(files.why)}.")
    elif not files.changes:
        say("No file differs.")


def _print_patch(files: FilesDiff, patch: bytes) -> None:
    if sys.stdout.isatty():
        for line in _text(patch).splitlines():
            click.echo(printable(line))
    else:
        click.echo(patch, nl=False)
    _say_about(files)


def _text(patch: bytes) -> str:
    return patch.decode(errors="backslashreplace")


def _describe_side(side: Side) -> str:
    if side.kind == "run":
        return f"run {printable(side.id)} as it stands"
    return f"checkpoint {side.id} of run {printable(side.workflow_id)}, layer {side.layer + 1}"


def _lines(found: StateDifference) -> Iterator[str]:
    yield from _section("Tasks", found.tasks)
    yield from _section("Context", found.context)
    messages = found.messages
    if messages.added or messages.removed:
        yield from ("", f"Messages ({count(messages.same, 'message')} the same before)")
        yield from (f"- {_value(message)}" for message in messages.removed)
        yield from (f"+ {_value(message)}" for message in messages.added)
    yield from _section("Decisions", found.decisions)


def _section(title: str, changes: list[StateChange]) -> Iterator[str]:
    if changes:
        yield from ("", title)
    for change in changes:
        name = short_middle(printable(change.id), WIDEST)
        if change.change == "changed":
            yield f"! {name}"
            yield from _fields(change.before, change.after)
        elif change.change == "removed":
            yield f"- {name}  {_value(change.before)}"
        else:
            yield f"+ {name}  {_value(change.after)}"


def _fields(before: Any, after: Any) -> Iterator[str]:
    if not isinstance(before, dict) or not isinstance(after, dict):
        yield f"    {_difference(before, after)}"
        return
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield f"    {printable(name)}: {_difference(before.get(name), after.get(name))}"


def _difference(before: Any, after: Any) -> str:
    """Both values; of long ones the part from a little before the first difference on."""
    old, new = _json(before), _json(after)
    pairs = enumerate(zip(old, new, strict=False))
    same = next((place for place, (one, other) in pairs if one != other), min(len(old), len(new)))
    begin = same - LEAD if max(len(old), len(new)) > WIDEST and same > 2 * LEAD else 0
    where = f"  (the same up to character {same:,})" if begin else ""
    return f"{_excerpt(old, begin)} -> {_excerpt(new, begin)}{where}"


def _excerpt(text: str, begin: int) -> str:
    return short(f"…{text[begin:]}" if begin else text, WIDEST)


def _value(value: Any) -> str:
    return short(_json(value), WIDEST)


def _json(value: Any) -> str:
    if isinstance(value, dict):
        value = {name: item for name, item in value.items() if name not in ("task_id", "gate_id") and item is not None}
    return printable(msgspec.json.encode(value).decode())
