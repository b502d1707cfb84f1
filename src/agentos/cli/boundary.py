"""The one place where errors become text and exit codes. Scripts rely on the codes: they are documented, and do
not change."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

from agentos.cli.output import forget, say
from agentos.exceptions import (
    AgentosError,
    ExpressionError,
    FilesChangedError,
    IntegrityError,
    NotFoundError,
    RunRefusedError,
    TryAgainError,
    WorkflowDefinitionError,
)
from agentos.render.text import printable, printable_lines

if TYPE_CHECKING:
    from agentos.client.places import PlaceProblem


class Exit(IntEnum):
    """How a command ended; MEANINGS says it in words."""

    COMPLETE = 0
    FAILED = 1
    USAGE = 2
    WAITING = 3
    ABORTED = 4
    INTEGRITY = 6
    TRY_AGAIN = 75
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    Exit.COMPLETE: "complete: what was asked is done",
    Exit.FAILED: "the run failed, or there is no place for its state",
    Exit.USAGE: "wrong usage, no such id, or a workflow that cannot be run as it is",
    Exit.WAITING: "waiting for a decision, or paused",
    Exit.ABORTED: "aborted",
    Exit.INTEGRITY: "a record is damaged or of a newer AgentOS, or the database was taken away under a run",
    Exit.TRY_AGAIN: "try again later: another process drives it, or the disk is full",
    Exit.INTERRUPTED: "stopped by Ctrl-C (SIGINT), in order",
    Exit.TERMINATED: "stopped by SIGTERM, in order",
}
"""What each code means, for the documents."""

OF_STATUS = {
    "complete": Exit.COMPLETE,
    "failed": Exit.FAILED,
    "waiting": Exit.WAITING,
    "paused": Exit.WAITING,
    "aborted": Exit.ABORTED,
}
"""What a drive that ended with this status exits with."""


def exit_of_signal(received: int) -> Exit:
    """What a program exits with that this signal stopped in order."""
    return Exit.INTERRUPTED if received == signal.SIGINT else Exit.TERMINATED


_CODES: tuple[tuple[type[AgentosError], Exit], ...] = (
    (WorkflowDefinitionError, Exit.USAGE),
    (ExpressionError, Exit.USAGE),
    (RunRefusedError, Exit.USAGE),
    (NotFoundError, Exit.USAGE),
    (IntegrityError, Exit.INTEGRITY),
    (TryAgainError, Exit.TRY_AGAIN),
    (FilesChangedError, Exit.WAITING),
)

LONGEST = 1_500
"""Characters of a line of a message; an id or a file's name that was typed can have a hundred thousand."""


def exit_code(error: AgentosError) -> Exit:
    """What the program exits with where this error ends it."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.FAILED)


def say_problems(problems: Iterable[PlaceProblem]) -> int:
    """Tell what could not be looked at, beside what could; the exit code for that."""
    code = 0
    for problem in problems:
        say("\n".join([f"{printable(problem.where)}:", *printable_lines(str(problem.error))]))
        code = max(code, exit_code(problem.error))
    return code


def run_and_exit(program: Callable[[], int]) -> NoReturn:
    """Run the program and exit with what it gives. Whatever it raises is told in one message, never as a traceback.

    A bug is the exception: that one is told with its traceback, since there is nothing the user could do about it.
    """
    try:
        code = program()
        if sys.stdout is not None:  # closed by the caller: `agentos list >&-`
            sys.stdout.flush()
    except BrokenPipeError:
        forget(sys.stdout)
        code = Exit.COMPLETE  # the reader had enough: `agentos list | head -1`
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except AgentosError as error:
        print_error(str(error))
        code = exit_code(error)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        print_error(printable(f"agentos: {error.strerror or error}{where}"))
        forget(sys.stdout)  # it may be what could not be written: a full disk behind `> file`
        code = Exit.FAILED
    except Exception as error:  # noqa: BLE001 - the last boundary
        # Python has no exception of its own for a thread that the system refuses.
        if isinstance(error, MemoryError) or str(error) == "can't start new thread":
            print_error(
                "agentos: there is not enough memory, or room for another thread.\nFree some, or raise the limits "
                "(`ulimit -v`, `ulimit -u`), and try again. What was written is kept: `agentos resume` goes on."
            )
            sys.exit(Exit.TRY_AGAIN)
        import traceback

        say(_mask_secrets(traceback.format_exc()))
        say("agentos: this is a bug in AgentOS; please report the lines above.")
        code = Exit.FAILED
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:  # the terminal was closed; Python would flush once more at exit, and make it 120
        forget(sys.stderr)
    # It has ended: one more Ctrl-C while the interpreter shuts down is no reason for a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def print_error(text: str) -> None:
    """An error's text, fit for a terminal whatever it quotes: no secret, no control sequence, no endless line."""
    lines = printable_lines(_mask_secrets(text))
    say("\n".join(line if len(line) <= LONGEST else f"{line[: LONGEST - 200]} … {line[-190:]}" for line in lines))


def _mask_secrets(text: str) -> str:
    """An error may quote what a workflow or a file says; no secret is shown because of it."""
    from agentos.secrets import Masker  # few commands end with an error

    return Masker.for_run().text(text)
