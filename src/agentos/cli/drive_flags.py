"""Options of every command that drives a run, and what follows from them together with the settings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from agentos.cli.output import say
from agentos.cli.terminal.session import Gates, Manner, Show
from agentos.client.places import VARIABLE, unused_old_database
from agentos.client.runs import resolve_drive_options
from agentos.render.text import printable

if TYPE_CHECKING:
    from agentos.client.types import DriveOptions, Place


class DriveFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed; None where the settings of the repository decide."""

    gates: Gates | None = None
    durability: Literal["full", "process"] | None = None
    keep: int | None = None
    max_concurrency: int | None = None
    strict_checkpoints: bool = False
    wait: bool = False
    quiet: bool = False
    verbose: bool = False
    as_json: bool = False

    def resolve(self, repo: Path | None) -> tuple[Place, DriveOptions, Manner]:
        """Where the run is kept, how it is driven and how it is shown. Nothing but settings is read for it."""
        show = self.show
        place, options = resolve_drive_options(
            repo, durability=self.durability, keep=self.keep, max_concurrency=self.max_concurrency
        )
        if not place.exists() and (old := unused_old_database(place.database)) is not None:  # once: it is made now
            name = printable(str(old))
            say(f"The old global database {name} is not used; {VARIABLE}={name} goes on with it.")
        # The setting says what happens where nobody is there; at a terminal somebody is.
        gates = self.gates or ("ask" if options.gates == "stop" else options.gates)
        manner = Manner(show=show, gates=gates, waits=self.wait)
        options = msgspec.structs.replace(options, gates=manner.policy, strict_checkpoints=self.strict_checkpoints)
        return place, options, manner

    @property
    def show(self) -> Show:
        return show_mode(quiet=self.quiet, verbose=self.verbose, as_json=self.as_json)


def show_mode(*, quiet: bool, verbose: bool, as_json: bool) -> Show:
    """Which of the ways to show a drive was asked for; they exclude each other."""
    ways: tuple[tuple[Show, bool], ...] = (("quiet", quiet), ("verbose", verbose), ("json", as_json))
    asked = [name for name, given in ways if given]
    if len(asked) > 1:
        raise click.UsageError(f"--{asked[0]} and --{asked[1]} exclude each other.")
    return asked[0] if asked else "auto"


def drive_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options, and hands them to the command together, as `flags`."""

    @functools.wraps(command)
    def call_with_flags(**given: Any) -> Any:
        flags = DriveFlags(**{name: given.pop(name) for name in DriveFlags.__struct_fields__})
        return command(flags=flags, **given)

    wrapped: Callable[..., Any] = call_with_flags
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


_OPTIONS = (
    click.option(
        "--gates",
        type=click.Choice(["ask", "stop", "wait", "reject"]),
        help="At a gate: ask at this terminal (without one: stop), stop with exit code 3, wait for an answer from "
        "elsewhere, or reject (for CI). [default: ask, or as the settings say]",
    ),
    click.option(
        "--durability",
        type=click.Choice(["full", "process"]),
        help="What results survive: loss of power, or (faster) only a killed process. [default: full]",
    ),
    click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Checkpoints kept; 0 keeps all. [default: 5]"),
    click.option(
        "--max-concurrency",
        type=click.IntRange(min=1),
        metavar="N",
        help="At most so many tasks at once, if the workflow does not ask for fewer.",
    ),
    click.option(
        "--strict-checkpoints", is_flag=True, help="Stop where a checkpoint cannot be cut, instead of going on."
    ),
    click.option("--wait", is_flag=True, help="Where another run changes files in this worktree: wait for its end."),
    click.option("-q", "--quiet", is_flag=True, help="Print errors and the end only."),
    click.option("-v", "--verbose", is_flag=True, help="Print everything, what tasks print included."),
    click.option("--json", "as_json", is_flag=True, help="Print one event per line as JSON; the last one ends it."),
)
