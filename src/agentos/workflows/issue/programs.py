"""Programs in a role: `command:PROGRAM` reads a prompt on stdin and prints its answer.

These functions run in a process of their own, as tasks with `isolation: process`: a timeout and a stop really end the
program, and a resume ends one that outlived its driver.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from agentos import Context
from agentos.exceptions import AttemptError, TryAgainError

TRY_AGAIN = 75
"""EX_TEMPFAIL: nothing is wrong, but it does not work now."""
_SHOWN = 2_000


def ask_program(argv: Sequence[str], prompt: str, ctx: Context) -> str:
    """What the program answers to a prompt. TryAgainError where it exits with 75."""
    answer = call_program(argv, prompt, ctx.root)
    if not answer.strip():
        raise AttemptError(f"{argv[0]} printed nothing")
    return answer


def call_program(argv: Sequence[str], text: str, root: Path, *, quiet: bool = False) -> str:
    """Run a program in the root with a text on its stdin; what it prints. Its stderr is shown live, unless `quiet`."""
    try:
        done = subprocess.run(
            list(argv),
            input=text.encode(errors="replace"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if quiet else None,
            cwd=root,
            check=False,
        )
    except OSError as error:
        raise AttemptError(
            f"{argv[0]} cannot be started: {error.strerror or error}", next_step="Mend that, then resume the run."
        ) from error
    if done.returncode == TRY_AGAIN:
        raise TryAgainError(f"{argv[0]} asks to be tried again later", next_step="Resume the run then.")
    if done.returncode:
        said = (done.stderr or b"").decode(errors="replace").strip()[-_SHOWN:]
        raise AttemptError(f"{argv[0]} ended with {done.returncode}{f': {said}' if said else ''}")
    return done.stdout.decode(errors="replace")


def is_there(program: str, root: Path) -> bool:
    """Whether this program could be started from the root."""
    places = [root] if os.sep in program else map(Path, os.get_exec_path())
    return any((place / program).is_file() and os.access(place / program, os.X_OK) for place in places)
