"""`agentos diff`"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from agentos.cli import shell_completion
from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, say
from agentos.client import diffs
from agentos.client.diffs import FilesDiff, Side, StateDiff, TaskDiff
from agentos.client.places import FoundRun
from agentos.render.difference_text import difference_lines
from agentos.render.text import printable
from agentos.render.value_text import change_lines

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
    for line in (*sides, *difference_lines(shown.difference), *changes):
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
