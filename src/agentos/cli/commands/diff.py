"""`agentos diff`"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from agentos.cli import shell_completion
from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, say
from agentos.cli.render.file_text import change_lines
from agentos.cli.render.text import count, printable, short
from agentos.exceptions import CheckpointNotFoundError, NotFoundError, RunNotFoundError, RunRefusedError
from agentos.ids import TaskId
from agentos.machine.facts.fold import fold, workflow_state
from agentos.machine.state import WorkflowState
from agentos.workflow.define.plans import plan_of_run
from agentos.workflow.look.file_diffs import FilesDiff, Moment, compare_files, compare_task
from agentos.workflow.look.state_diff import StateChange, StateDifference, diff_states, state_at
from agentos.workflow.place.run_search import FoundRun, find_checkpoint, find_run, reading

WIDEST = 100


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two states."""

    kind: Literal["checkpoint", "run"]
    """`run`: the state of that run as it stands."""
    id: str
    workflow_id: str
    layer: int


class StateDiff(msgspec.Struct, frozen=True, kw_only=True, tag="states", tag_field="kind"):
    """What `diff A B --json` prints: how the second differs from the first."""

    first: Side
    second: Side
    same: bool
    """Neither the state nor, as far as they were compared, the files differ."""
    difference: StateDifference
    files: FilesDiff
    """Of the worktrees; a run stands for the newest snapshot of its files."""
    patch: str | None
    """With --patch."""


class TaskDiff(msgspec.Struct, frozen=True, kw_only=True, tag="task", tag_field="kind"):
    """What `diff RUN TASK --json` prints: what a task did to files."""

    workflow_id: str
    task_id: str
    files: FilesDiff
    others: list[str]
    """Tasks that were at work on files at the same time: what differs may be theirs."""
    patch: str | None
    """With --patch."""


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
    if (task := _task(first, second, repo)) is not None:
        _show_task(task, wanted, as_patch=as_patch, as_json=as_json)
        return
    before, old, files_before = _state(first, repo)
    after, new, files_after = _state(second, repo)
    found = diff_states(old, new)
    files, patch = compare_files(files_before, files_after, wanted)
    if as_json:
        same = found.is_empty and not files.changes
        text = _text(patch) if as_patch else None
        print_json(StateDiff(first=before, second=after, same=same, difference=found, files=files, patch=text))
        return
    if as_patch:
        _print_patch(files, patch)
        return
    for line in (f"- {_describe_side(before)}", f"+ {_describe_side(after)}", *_lines(found), *_file_lines(files)):
        click.echo(printable(line))
    if found.is_empty:
        say("The states are the same.")
    _say_about(files)


def _task(run: str, task: str, repo: Path | None) -> tuple[FoundRun, TaskId] | None:
    """The run and its task, if that is what was typed. The exact id of a run is never taken for a task."""
    try:
        found = find_run(run, repo)
        with reading(found.place) as store:
            if (
                found.record.kind != "workflow"
                or TaskId(task) not in plan_of_run(store, found.record.workflow_id)[0].tasks
            ):
                return None
    except (RunNotFoundError, RunRefusedError):
        return None
    with suppress(NotFoundError, RunRefusedError):
        if find_run(task, repo).record.workflow_id == task:
            return None
    return found, TaskId(task)


def _show_task(meant: tuple[FoundRun, TaskId], paths: list[str], *, as_patch: bool, as_json: bool) -> None:
    found, task_id = meant
    run = found.record.workflow_id
    with reading(found.place) as store:
        events = store.read_events(run)
        plan = plan_of_run(store, run)[0]
    files, patch, others = compare_task(found.place.root, events, plan, task_id, paths)
    if as_json:
        text = _text(patch) if as_patch else None
        print_json(TaskDiff(workflow_id=run, task_id=task_id, files=files, others=list(others), patch=text))
        return
    if as_patch:
        _print_patch(files, patch)
    else:
        for line in change_lines(files.changes):
            click.echo(line)
        _say_about(files)
    if others:
        named = ", ".join(printable(name) for name in others[:10]) + (" …" if len(others) > 10 else "")
        say(f"Other tasks were at work on files at the same time, and some of this may be theirs: {named}")


def _file_lines(files: FilesDiff) -> Iterator[str]:
    if files.changes:
        yield from ("", "Files")
        yield from change_lines(files.changes)


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


def _state(given: str, repo: Path | None) -> tuple[Side, WorkflowState, Moment]:
    try:
        place, checkpoint = find_checkpoint(given, repo)
    except CheckpointNotFoundError:
        return _present_state(given, repo)
    with reading(place) as store:
        state = state_at(store, checkpoint)
        root = store.find_run(checkpoint.workflow_id).root
    files = Moment(root=place.root if place.named or not root else Path(root), snapshot=checkpoint.snapshot)
    side = Side(kind="checkpoint", id=checkpoint.id, workflow_id=checkpoint.workflow_id, layer=checkpoint.layer)
    return side, state, files


def _present_state(given: str, repo: Path | None) -> tuple[Side, WorkflowState, Moment]:
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
    side = Side(kind="run", id=run, workflow_id=run, layer=facts.current_layer)
    point = facts.files
    files = Moment(
        root=found.place.root,
        snapshot=point.snapshot if point is not None else "",
        tree=point.tree if point is not None else "",
    )
    return side, workflow_state(facts), files


def _describe_side(side: Side) -> str:
    if side.kind == "run":
        return f"run {printable(side.id)} as it stands"
    return f"checkpoint {side.id} of run {printable(side.workflow_id)}, layer {side.layer}"


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
