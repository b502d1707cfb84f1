"""Patterns of paths, as in `sources`: `src/**`, `*.toml`, `docs/index.md`.

Relative to the root, with `/` between the parts. `*` and `?` stand for characters of one part, `[ab]` for one of these,
`**` for any number of folders. A pattern without any of them names a file, or a folder with all that is below it.
"""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

_WILD = re.compile(r"[*?\[]")
_IN_BRACKETS = re.compile(r"([\\\[\]^&~|])")


@lru_cache(maxsize=4096)
def pattern_problem(pattern: str) -> str:
    """What is wrong with a pattern; empty where nothing is."""
    if not pattern.strip():
        return "a path is empty"
    if "\0" in pattern:
        return f"{pattern!r} holds NUL"
    if pattern.startswith("/"):
        return f"{pattern!r} is absolute: paths are relative to the root"
    parts = _parts(pattern)
    if ".." in parts:
        return f"{pattern!r} leads out of the root: leave out `..`"
    if "" in parts or "." in parts:
        return f"{pattern!r} has an empty part: write `src/a.py`, and `**` for all that is in the root"
    if parts[0] in (".git", ".agentos"):
        return f"{pattern!r} lies in {parts[0]}, which no task depends on"
    try:
        if "[" in pattern:
            _expression(pattern)
    except re.error as error:
        return f"{pattern!r} cannot be read: {error}"
    return ""


@lru_cache(maxsize=4096)
def is_literal(pattern: str) -> bool:
    """Whether it names one path, or a folder."""
    return _WILD.search(pattern) is None


@lru_cache(maxsize=4096)
def fixed_part(pattern: str) -> str:
    """The folders that everything it matches lies in; a literal pattern as a whole."""
    if is_literal(pattern):
        return "/".join(_parts(pattern))
    parts = _parts(pattern)
    wild = next(index for index, part in enumerate(parts) if not is_literal(part))
    return "/".join(parts[:wild])


def matching(pattern: str, names: Sequence[str]) -> Sequence[str]:
    """Those of `names`, which are in order, that the pattern matches. Looks at no more than its fixed part allows."""
    start = fixed_part(pattern)
    below = names[bisect_left(names, f"{start}/") : bisect_left(names, f"{start}0")] if start else names
    if is_literal(pattern):
        at = bisect_left(names, start)
        return [*names[at : at + 1], *below] if names[at : at + 1] == [start] else below
    if pattern in ("**", f"{start}/**"):  # what most people write
        return below
    matches = _expression(pattern).fullmatch
    return [name for name in below if matches(name)]


def overlaps(pattern: str, path: str) -> bool:
    """Whether the pattern surely matches the path, or something below it."""
    path = posixpath.normpath(path)
    return _expression(pattern).fullmatch(path) is not None or f"{fixed_part(pattern)}/".startswith(f"{path}/")


def _parts(pattern: str) -> list[str]:
    return pattern.removeprefix("./").removesuffix("/").split("/")


@lru_cache(maxsize=4096)
def _expression(pattern: str) -> re.Pattern[str]:
    parts, found = _parts(pattern), ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            found += ".+" if last else "(?:.+/)?"
        else:
            found += _part_expression(part) + ("" if last else "/")
    if is_literal(pattern):
        found += "(?:/.+)?"
    return re.compile(found, re.DOTALL)


def _part_expression(part: str) -> str:
    found, at = "", 0
    while at < len(part):
        character = part[at]
        at += 1
        closed = part.find("]", at + 1 + part.startswith("!", at)) if character == "[" else -1
        if closed > 0:
            inside = part[at:closed]
            negated = inside.startswith("!")
            listed = _IN_BRACKETS.sub(r"\\\1", inside.removeprefix("!"))
            found += f"(?!/)[{'^' if negated else ''}{listed}]"
            at = closed + 1
        else:
            found += {"*": "[^/]*", "?": "[^/]"}.get(character) or re.escape(character)
    return found
