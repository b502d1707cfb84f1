"""What commands print: data to stdout, messages to stderr; for people in columns, for programs as JSON."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from agentos.exceptions import SnapshotError, TryAgainError
from agentos.ids import short_id
from agentos.render.text import count, escape_json, printable

if TYPE_CHECKING:
    from agentos.client.answers import Became
    from agentos.client.files import LeftAlone, RestoreReport
    from agentos.client.places import FoundRun
    from agentos.client.worktree import Client

MOST_LEFT = 200
"""So many paths that were left alone are shown to people; programs get all."""


def say(text: str) -> None:
    """A message for the person at the terminal. Never data: scripts read stdout alone."""
    if sys.stderr is not None:  # closed by the caller; `print` would then write to stdout
        print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One JSON document, indented for people, its keys in the order of the documented shape."""
    import msgspec  # not for a program that only says something, such as its help

    click.echo(escape_json(msgspec.json.format(msgspec.json.encode(value), indent=2)))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """Aligned columns on stdout; where there is nothing to show, `empty` is said on stderr instead."""
    if not rows:
        say(empty)
        return
    table = [list(header), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    for row in table:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())


def forget(stream: IO[str] | None) -> None:
    """Lead the stream nowhere: Python flushes it once more at exit, and would complain about what is gone."""
    if stream is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def say_outcome(found: FoundRun, what: str, became: Became) -> None:
    """Tell the person how far their command has come."""
    run = printable(found.record.workflow_id)
    match became:
        case "applied":
            say(f"{what}: run {run}.")
        case "received":
            say(f"{what}: run {run} takes it up when its layer is finished.")
        case "kept":
            resume = f"agentos resume {shlex.quote(short_id(run))}"
            say(f"{what}: kept for run {run}, which takes it up when it goes on: {resume}")


def give_space_back(client: Client) -> None:
    """Collect what snapshots that were let go of took. Where that cannot be now, it is said, and is no error."""
    try:
        client.collect()
    except (SnapshotError, TryAgainError) as error:
        say(f"The space of snapshots is given back by a later prune: {printable(error.message)}")


def show_put_back(shown: RestoreReport, source: str) -> None:
    """What a restore did, or would do: the paths to stdout, the rest to stderr."""
    from agentos.render.value_text import change_lines  # not for a program that only says something

    for line in change_lines(shown.changes):
        click.echo(line)
    paths = count(len(shown.changes), "path")
    _say_all("Left as it is", shown.left)
    _say_all("Not in the snapshot", shown.missing)
    if not shown.done:
        say(f"{paths} would be put back to {source}. Nothing was changed.")
        return
    say(f"{paths} put back to {source}." if shown.changes else f"The files are those of {source} already.")
    if shown.head is not None:
        say(f"HEAD is at {_head(shown.head.branch, shown.head.commit)}, it was at "
            f"{_head(shown.head.from_branch, shown.head.from_commit)}.")  # fmt: skip
    if shown.changes:
        say(f"What was there is snapshot {shown.undo}: `agentos undo` brings it back.")


def _say_all(what: str, rows: Sequence[LeftAlone]) -> None:
    for row in rows[:MOST_LEFT]:
        say(f"{what}: {printable(row.path)} ({printable(row.why)})")
    if len(rows) > MOST_LEFT:
        say(f"{what}: {len(rows) - MOST_LEFT:,} more")


def _head(branch: str | None, commit: str | None) -> str:
    name = printable(branch.removeprefix("refs/heads/")) if branch else "no branch"
    return f"{name} ({commit[:12] if commit else 'no commit'})"
