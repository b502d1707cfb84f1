"""Patches for reading: by file, each line with what it is, and never more of them than people read."""

from __future__ import annotations

import re
from itertools import islice

import msgspec

from agentos.render.text import short

MOST_FILES, MOST_LINES, MOST_IN_ALL, WIDTH = 50, 300, 60_000, 400
"""Files; lines of each; characters of all together; and of one line."""
_KINDS = {"+": "add", "-": "del", "@": "hunk", "\\": "quiet"}
_BEGINS = re.compile(rb"^diff --git ", re.MULTILINE)


class FilePatch(msgspec.Struct, frozen=True, kw_only=True):
    """What changed in one file."""

    path: str
    added: int
    removed: int
    lines: list[tuple[str, str]]
    """Each with its kind: `add`, `del`, `hunk`, `quiet`, or empty."""
    left_out: int = 0
    """Lines that are not shown."""


class PatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A patch, as much of it as is shown."""

    files: list[FilePatch]
    left_out: int = 0
    """Files that are not shown."""


def read_patch(patch: bytes) -> PatchView:
    """A patch of git, by file. Lines that are not shown are counted."""
    starts = [found.start() for found in _BEGINS.finditer(patch)]
    ends = [*starts[1:], len(patch)]
    files: list[FilePatch] = []
    left = MOST_IN_ALL
    for start, end in islice(zip(starts, ends, strict=False), MOST_FILES):
        files.append(one := _read_file(patch[start:end], left))
        left -= sum(len(text) for text, _ in one.lines)
    return PatchView(files=files, left_out=len(starts) - len(files))


def _read_file(patch: bytes, most_in_all: int) -> FilePatch:
    head, at, body = patch.partition(b"\n@@ ")
    rows = (at[1:] + body).split(b"\n") if at else []
    rows = rows[:-1] if rows and not rows[-1] else rows
    lines = _lines(rows[:MOST_LINES], most_in_all) if at else [(line, "quiet") for line in _notes(head)]
    return FilePatch(
        path=_path(head.decode("utf-8", "replace").split("\n")),
        added=sum(row.startswith(b"+") for row in rows),
        removed=sum(row.startswith(b"-") for row in rows),
        lines=lines,
        left_out=max(0, len(rows) - len(lines)),
    )


def _lines(rows: list[bytes], most_in_all: int) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for row in rows:
        text = short(row[: 4 * WIDTH].decode("utf-8", "replace"), WIDTH)
        most_in_all -= len(text)
        if most_in_all < 0:
            break
        lines.append((text, _KINDS.get(text[:1], "")))
    return lines


def _notes(head: bytes) -> list[str]:
    """What is said of a file that has no lines: a new mode, a binary, an empty one."""
    lines = head.decode("utf-8", "replace").split("\n")[1:]
    told = ("new file", "deleted file", "old mode", "new mode", "Binary files", "GIT binary", "rename ", "similarity ")
    return [line[:WIDTH] for line in lines if line.startswith(told)]


def _path(head: list[str]) -> str:
    for line in (*(line for line in head if line.startswith("+++ ")), *(x for x in head if x.startswith("--- "))):
        name = line[4:].rstrip("\t").strip('"')
        if name != "/dev/null":
            return name[2:]
    names = head[0].removeprefix("diff --git ")  # both the same: nothing was renamed
    return names[len(names) // 2 + 1 :].strip('"')[2:]
