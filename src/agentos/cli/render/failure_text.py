"""Errors of tasks, and where in the user's own code they were raised."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from agentos.cli.render.text import count, printable_lines
from agentos.client.definitions import path_from_here
from agentos.client.types import events as ev

_FRAME = re.compile(r'(?P<before>[\s|+]*)File "(?P<file>.+)", line (?P<line>\d+)(?P<rest>, in .+)?')
_HEADER = "Traceback (most recent call last):"
_BETWEEN = ("The above exception was", "During handling of the above")
_OF_LIBRARIES = re.compile(r"/(?:site|dist)-packages/|/lib/python3[.\d]*/|^<frozen ")


def failure_text(error: ev.TaskFailure) -> str:
    """Type and first line, and the place in the user's code: `ValueError: no port (flow.py:12)`."""
    own = [frame for frame in map(_FRAME.fullmatch, error.traceback.splitlines()) if frame and not _is_foreign(frame)]
    return f"{error.in_short} ({_place(own[-1])}:{own[-1]['line']})" if own else error.in_short


def traceback_lines(error: ev.TaskFailure, *, verbose: bool = False) -> Iterator[str]:
    """The traceback with its causes and source lines; frames of libraries are only counted, unless `verbose`.

    Frames of AgentOS are not even stored.
    """
    hidden = 0
    margin: int | None = None
    """Deeper lines belong to a frame that is hidden."""
    for line in printable_lines(error.traceback) if error.traceback else ():
        frame = _FRAME.fullmatch(line)
        if frame is None and margin is not None and len(line) - len(line.lstrip(" |")) > margin:
            continue
        margin = None
        if frame is not None and _is_foreign(frame) and not verbose:
            hidden, margin = hidden + 1, len(frame["before"])
            continue
        if hidden:
            yield f"  … {count(hidden, 'frame')} of libraries"
            hidden = 0
        yield line if frame is None else line.replace(frame["file"], _place(frame), 1)


def raised_lines(error: ev.TaskFailure, most: int) -> list[str]:
    """Where it was raised, for under its text: the last frames, and in a line what caused it."""
    *before, last = "\n".join(traceback_lines(error)).rpartition(f"{_HEADER}\n")
    lines = list(takewhile(lambda line: line.startswith(" "), last.splitlines()))  # then comes the error itself
    causes = [line for line in "".join(before).splitlines() if line and not line.startswith((" ", *_BETWEEN, _HEADER))]
    return [*_last_frames(lines, most), *(f"  after {cause}" for cause in causes[-1:])]


def _last_frames(lines: list[str], most: int) -> list[str]:
    """The last lines, beginning with a frame: what is left of one without its place says nothing."""
    last = lines[-most:]
    begins = next((index for index, line in enumerate(last) if _FRAME.fullmatch(line)), 0)
    return last[begins:] if len(lines) > most else last


def _is_foreign(frame: re.Match[str]) -> bool:
    return _OF_LIBRARIES.search(frame["file"]) is not None


def _place(frame: re.Match[str]) -> str:
    return path_from_here(Path(frame["file"])) if frame["file"].startswith("/") else frame["file"]
