"""The key of a model server: out of a variable, or printed by a command. It is never stored."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from agentos.exceptions import ModelCallError
from agentos.tasks.process.adoption import start_own
from agentos.tasks.process.exit_texts import describe_status

COMMAND_S = 60.0
MAX_KEY_BYTES = 16_384


def key_from_variable(name: str, environ: Mapping[str, str]) -> str:
    """The value of the variable. ModelCallError where there is none."""
    value = environ.get(name, "").strip()
    if not value:
        state = "is empty" if name in environ else "is not set"
        raise _no_key(f"the variable {name}, which should hold the key, {state}", f"Set it: `export {name}=…`.")
    return _usable(value, f"the variable {name}")


async def key_from_command(argv: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> str:
    """What the command prints. It gets no shell, no input, a minute, and is ended with all that it started."""
    shown = repr(argv[0])
    try:
        child = await start_own(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # it may show the key, which nobody could mask yet
            cwd=cwd,
            env=dict(environ),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise _no_key(f"the command {shown}, which should print the key, could not be started: {error}") from None
    try:
        async with asyncio.timeout(COMMAND_S):
            out, _ = await child.communicate()
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
        if not isinstance(error, TimeoutError):
            raise
        raise _no_key(f"the command {shown}, which should print the key, took longer than {COMMAND_S:g} s") from None
    if child.returncode != 0:
        raise _no_key(
            f"the command {shown}, which should print the key, {describe_status(child.returncode)}",
            "What it says is not shown here, since it may hold the key: run `key_command` by hand, in the root of the "
            "repository and without input, to see it.",
        )
    key = out[: MAX_KEY_BYTES + 1].decode(errors="replace").strip()
    if not key:
        raise _no_key(f"the command {shown}, which should print the key, printed nothing")
    return _usable(key, f"what the command {shown} printed")


def _usable(key: str, whose: str) -> str:
    """A key goes into a header: one line of printable ASCII."""
    if len(key) > MAX_KEY_BYTES or not key.isascii() or not key.isprintable():
        raise _no_key(f"{whose} is no key: it is not one line of ASCII characters")
    return key


def _no_key(why: str, next_step: str = "") -> ModelCallError:
    return ModelCallError(why, kind="auth", retryable=False, next_step=next_step)
