"""What a resume does with files that a task was changing when it was interrupted: the question at a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import click
import msgspec

from agentos.cli.exits import Exit
from agentos.cli.output import say
from agentos.cli.render.text import printable_lines
from agentos.cli.terminal.gate_prompt import is_interactive
from agentos.cli.terminal.session import Manner, drive_here
from agentos.exceptions import FilesChangedError
from agentos.workflow.files.decisions import FilesChoice
from agentos.workflow.place.place import Place
from agentos.workflow.start.ready_run import DriveOptions, Finished, Ready


def drive_with_files(
    prepare: Callable[[DriveOptions], Ready | Finished], place: Place, options: DriveOptions, manner: Manner
) -> int:
    """As `drive_here`; where somebody else changed files meanwhile, whoever sits at the terminal is asked.

    FilesChangedError where nobody does.
    """
    try:
        return drive_here(lambda: prepare(options), place, manner)
    except FilesChangedError as error:
        if manner.show == "json" or not is_interactive():
            raise
        choice = _ask_about_files(error)
    if choice is None:
        say("Left as it is: nothing was touched or run.")
        return Exit.WAITING
    chosen = msgspec.structs.replace(options, files=choice)
    return drive_here(lambda: prepare(chosen), place, manner)


def _ask_about_files(error: FilesChangedError) -> FilesChoice | None:
    for line in printable_lines(error.message):
        say(line)
    say("")
    say("  restore  put back what the task began with; what is there now is kept for `agentos undo`")
    say("  keep     run the task on the files as they are")
    say("  leave    do nothing now")
    answer: Literal["restore", "keep", "leave"] = click.prompt(
        "What shall become of the files?",
        type=click.Choice(["restore", "keep", "leave"]),
        default="leave",
        show_choices=True,
        err=True,
    )
    return None if answer == "leave" else answer
