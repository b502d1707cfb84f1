"""`agentos diff`"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from agentos.cli import completing
from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, say
from agentos.cli.text import count, printable, short
from agentos.exceptions import CheckpointNotFoundError, NotFoundError, RunNotFoundError
from agentos.run.facts import fold, workflow_state
from agentos.run.state import WorkflowState
from agentos.workflow.comparing import Change, Difference, difference, state_at
from agentos.workflow.finding import find_checkpoint, find_run, reading

WIDEST = 100


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two states."""

    kind: Literal["checkpoint", "run"]
    """`run`: the state of that run as it stands."""
    id: str
    workflow_id: str
    layer: int


class StateDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What `diff --json` prints. Files are not compared yet."""

    first: Side
    second: Side
    same: bool
    difference: Difference


OUTPUT = StateDiff


@click.command(
    "diff",
    help="""\b
What differs between the states of two checkpoints or runs.

\b
Examples:
  agentos diff 0198c2a1 0198c2b7
  agentos diff 0198c2a1 nightly --json | jq .difference.tasks

A and B are ids of checkpoints, of one run or of two, or ids of runs, which stand for their state as it is now. The
state is compared by task, context, messages and decisions; how long tasks took does not count. Files are not compared:
checkpoints do not hold them yet.

\b
Exit codes:
  0  compared, whether or not something differs
  2  there is no such checkpoint or run
""",
)
@click.argument("first", metavar="A", shell_complete=completing.checkpoints)
@click.argument("second", metavar="B", shell_complete=completing.checkpoints)
@json_option
@repo_option
def command(first: str, second: str, as_json: bool, repo: Path | None) -> None:
    before, old = _state(first, repo)
    after, new = _state(second, repo)
    found = difference(old, new)
    if as_json:
        print_json(StateDiff(first=before, second=after, same=found.is_empty, difference=found))
        return
    for line in (f"- {_shown(before)}", f"+ {_shown(after)}", *_lines(found)):
        click.echo(printable(line))
    if found.is_empty:
        say("The states are the same.")
    say("Files are not compared: checkpoints do not hold them yet.")


def _state(given: str, repo: Path | None) -> tuple[Side, WorkflowState]:
    try:
        place, checkpoint = find_checkpoint(given, repo)
    except CheckpointNotFoundError:
        return _present_state(given, repo)
    with reading(place) as store:
        state = state_at(store, checkpoint)
    side = Side(kind="checkpoint", id=checkpoint.id, workflow_id=checkpoint.workflow_id, layer=checkpoint.layer)
    return side, state


def _present_state(given: str, repo: Path | None) -> tuple[Side, WorkflowState]:
    try:
        found = find_run(given, repo)
    except RunNotFoundError as error:
        raise NotFoundError(
            f"no checkpoint and no run {short(given, 100)!r}",
            next_step="`agentos list` shows the runs, `agentos checkpoints RUN` what they keep.",
        ) from error
    run = found.record.workflow_id
    with reading(found.place) as store:
        facts = fold(run, store.read_events(run))
    return Side(kind="run", id=run, workflow_id=run, layer=facts.current_layer), workflow_state(facts)


def _shown(side: Side) -> str:
    if side.kind == "run":
        return f"run {printable(side.id)} as it stands"
    return f"checkpoint {side.id} of run {printable(side.workflow_id)}, layer {side.layer}"


def _lines(found: Difference) -> Iterator[str]:
    yield from _section("Tasks", found.tasks)
    yield from _section("Context", found.context)
    messages = found.messages
    if messages.added or messages.removed:
        yield from ("", f"Messages ({count(messages.same, 'message')} the same before)")
        yield from (f"- {_value(message)}" for message in messages.removed)
        yield from (f"+ {_value(message)}" for message in messages.added)
    yield from _section("Decisions", found.decisions)


def _section(title: str, changes: list[Change]) -> Iterator[str]:
    if changes:
        yield from ("", title)
    for change in changes:
        name = short(printable(change.id), WIDEST)
        if change.change == "changed":
            yield f"! {name}"
            yield from _fields(change.before, change.after)
        elif change.change == "removed":
            yield f"- {name}  {_value(change.before)}"
        else:
            yield f"+ {name}  {_value(change.after)}"


def _fields(before: Any, after: Any) -> Iterator[str]:
    if not isinstance(before, dict) or not isinstance(after, dict):
        yield f"    {_value(before)} -> {_value(after)}"
        return
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield f"    {printable(name)}: {_value(before.get(name))} -> {_value(after.get(name))}"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        value = {name: item for name, item in value.items() if name not in ("task_id", "gate_id") and item is not None}
    return short(printable(msgspec.json.encode(value).decode()), WIDEST)
