"""Changes of files, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from agentos.cli.output import say
from agentos.cli.render.text import count, printable
from agentos.client.files import FileChange, LeftAlone, RestoreReport

MOST = 200
"""So many paths are shown to people; programs get all."""

_SIGNS = {"added": "A", "deleted": "D", "modified": "M", "retyped": "T"}


def change_lines(changes: Sequence[FileChange], most: int = MOST) -> Iterator[str]:
    """A line for each path, as `git diff --name-status` has it."""
    for change in changes[:most]:
        yield f"{_SIGNS[change.change]}  {printable(change.path)}"
    if len(changes) > most:
        yield f"… and {len(changes) - most:,} more (--json shows all)"


def show_put_back(shown: RestoreReport, source: str) -> None:
    """What a restore did, or would do: the paths to stdout, the rest to stderr."""
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
    for row in rows[:MOST]:
        say(f"{what}: {printable(row.path)} ({printable(row.why)})")
    if len(rows) > MOST:
        say(f"{what}: {len(rows) - MOST:,} more")


def _head(branch: str | None, commit: str | None) -> str:
    name = printable(branch.removeprefix("refs/heads/")) if branch else "no branch"
    return f"{name} ({commit[:12] if commit else 'no commit'})"
