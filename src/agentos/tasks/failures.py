"""Errors as data: type, text and the user's own part of the traceback, whatever the exception does."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import FrameType

from agentos import values
from agentos.exceptions import AgentosError
from agentos.machine.events import TaskFailure

MAX_TEXT = 16_000
MAX_TRACEBACK = 32_000
MAX_FRAMES = 2_000
LEFT_OUT = "\n[… {} characters left out …]\n"
"""Stands where the middle of a text was."""

_OWN_FOLDER = str(Path(__file__).parent)
_OWN_FILES = frozenset({values.__file__})


def failure_of(error: BaseException) -> TaskFailure:
    """What is stored of an exception. Never raises, and its size is bounded."""
    if isinstance(error, SystemExit):
        text = f"the task tried to exit the interpreter (status {error.code!r})"
    else:
        try:
            text = str(error)
        except BaseException:  # a __str__ may raise anything at all
            text = f"<{type(error).__name__} whose text cannot be made>"
    return TaskFailure(
        type=limit_text(type(error).__name__, 200),
        text=limit_text(text, MAX_TEXT),
        traceback=limit_text(_traceback(error), MAX_TRACEBACK),
    )


def plain_failure(error: AgentosError, where: str = "") -> TaskFailure:
    """An error of ours, whose traceback would tell a user nothing. `where` may show what the user's code was doing."""
    return TaskFailure(
        type=type(error).__name__, text=limit_text(str(error), MAX_TEXT), traceback=limit_text(where, MAX_TRACEBACK)
    )


def limit_text(text: str, limit: int) -> str:
    """Text that any store takes, its middle left out where it is too long."""
    if len(text) > limit:
        dropped = len(text) - limit
        text = f"{text[: limit // 2]}{LEFT_OUT.format(dropped)}{text[-(limit // 2) :]}"
    # Lone surrogates cannot be written as UTF-8 and NUL cannot be stored in PostgreSQL.
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def stack_of(frame: FrameType | None) -> str:
    """Where a thread is just now, without our own frames."""
    if frame is None:
        return ""
    return "".join(_users_part(traceback.extract_stack(frame, limit=MAX_FRAMES)).format())


def _traceback(error: BaseException) -> str:
    try:
        shown = traceback.TracebackException.from_exception(error, limit=-MAX_FRAMES, compact=True)
        left, seen = [shown], set()
        while left:
            one = left.pop()
            if id(one) not in seen:
                seen.add(id(one))
                one.stack = _users_part(one.stack)
                related = (one.__cause__, one.__context__, *(one.exceptions or ()))
                left.extend(other for other in related if other is not None)
        return "".join(shown.format())
    except BaseException:  # hostile __str__, __cause__, __notes__, source files
        stack = _users_part(traceback.extract_tb(error.__traceback__, limit=-MAX_FRAMES))
        return "".join(stack.format()) + f"{type(error).__name__}: <text cannot be made>\n"


def _users_part(stack: traceback.StackSummary) -> traceback.StackSummary:
    others = [frame for frame in stack if not frame.filename.startswith(_OWN_FOLDER)]
    return traceback.StackSummary.from_list([frame for frame in others if frame.filename not in _OWN_FILES])
