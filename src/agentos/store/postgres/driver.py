"""The one place that touches the manners of the driver: lost connections, waiting for the server, and its errors."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import psycopg

from agentos.exceptions import (
    AgentosError,
    CheckpointCorruptedError,
    StoreUnavailableError,
    ValueEncodingError,
    WorkflowConfigurationError,
)

PATIENCE_S = 30.0
"""How long a verb tries to reach a server that is gone (restarted, failed over, cut off) before it gives up."""
BRIEFLY_S = 5.0
"""The same for what is asked again anyway, or may be left out: a run that has to stop is not to hang on it."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0

_PASSING = ("08", "40", "57P", "25P03", "53300", "55P03")
"""Beginnings of codes that say nothing about what was asked: connection lost, deadlock, shutdown, server too busy."""
_HOPELESS = ("authentication failed", "no pg_hba.conf entry", "does not exist", "no password supplied", "invalid ")
"""What a server says that is there and will not have us. It has no code while connecting, and may speak another
language: then it is tried for longer, which costs seconds."""

P = ParamSpec("P")
T = TypeVar("T")


class Driven(Protocol):
    """What has verbs that talk to PostgreSQL."""

    shown: str
    patience_s: float


S = TypeVar("S", bound=Driven)


def verb(method: Callable[Concatenate[S, P], T], /) -> Callable[Concatenate[S, P], T]:
    """Makes a method, which must be safe to repeat, outlive lost connections, and raise our errors only."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return insist(lambda: method(self, *args, **kwargs), self.shown, self.patience_s)

    return call


def brief_verb(method: Callable[Concatenate[S, P], T], /) -> Callable[Concatenate[S, P], T]:
    """As `verb`, and gives up sooner."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return insist(lambda: method(self, *args, **kwargs), self.shown, min(self.patience_s, BRIEFLY_S))

    return call


def insist(act: Callable[[], T], shown: str, patience_s: float) -> T:
    """Do it, again after growing pauses while the server cannot be reached, for `patience_s` at most."""
    deadline = time.monotonic() + patience_s
    pause = FIRST_PAUSE_S
    while True:
        try:
            return act()
        except (psycopg.Error, UnicodeError) as error:
            if not is_passing(error) or time.monotonic() + pause >= deadline:
                raise translated(error, shown) from error
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (only to break step with the others)
        pause = min(pause * 2, LONGEST_PAUSE_S)


def is_passing(error: Exception) -> bool:
    """Whether the same may succeed in a moment."""
    if not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return False
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_PASSING)
    return not any(words in str(error) for words in _HOPELESS)


def translated(error: Exception, shown: str) -> AgentosError:
    """The error of ours that says what the driver's means, and what to do."""
    if isinstance(error, UnicodeError) or (isinstance(error, psycopg.DataError) and "NUL" in str(error)):
        return ValueEncodingError("$", f"an id or name holds what PostgreSQL takes for no text: {error}")
    code = (error.sqlstate or "") if isinstance(error, psycopg.Error) else ""
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if code.startswith(("28", "3D")) or (not code and any(words in said for words in _HOPELESS)):
        return WorkflowConfigurationError(
            f"the database {shown} cannot be used: {said}",
            next_step="Check the URL: user, password, host, database; and pg_hba.conf on the server.",
        )
    if code == "42501":
        return WorkflowConfigurationError(
            f"the user of {shown} may not do this: {said}",
            next_step="Grant it the schema (docs: postgres.md has the statements). Nothing was written.",
        )
    if code.startswith(("42", "3F", "XX")):
        # Our statements are always the same: one that makes no sense has met a schema that is not ours any more.
        step = "Nothing was changed. Put the schema back from a backup, or name another one (?schema=name)."
        return CheckpointCorruptedError(f"database {shown}", said, next_step=step)
    for beginning, (why, next_step) in _UNAVAILABLE.items():
        if code.startswith(beginning):
            return StoreUnavailableError(f"the database {shown} {why}: {said}", next_step=next_step)
    return StoreUnavailableError(
        f"the database {shown} cannot be reached: {said}",
        next_step="See whether the server runs and can be reached from here. Nothing stored was lost.",
    )


_UNAVAILABLE = {
    "53100": ("has no room left", "Free some space on the server and try again. Nothing stored was lost."),
    "53300": ("has no connection free", "Raise max_connections, or try again when others are done."),
    "25006": ("can only be read (a standby?)", "Name the primary server. Nothing was written."),
    "57014": ("stopped a statement that took too long", "Raise statement_timeout for this user, and try again."),
}
