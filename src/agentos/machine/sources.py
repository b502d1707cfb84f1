"""Whether what a task depends on (`sources`) is still what it was when its newest attempt began. Looks at no file."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from agentos.machine.events import SourcesRecord

MOST_NAMED = 100
"""So many files are noted one by one; more are put together by folders."""
_SHOWN = 3
_ROOT = "./"

UNRECORDED = "what its sources were is not on record"


class SourcesNow(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of a task as they are."""

    files: Mapping[str, str]
    """By path from the root, each with a digest of its content."""
    digest: str
    """Of all of them: `files_digest`."""
    variables: Mapping[str, str] = {}
    """By name, each with a salted digest of its value; empty for one that is not set."""


def files_digest(files: Mapping[str, str]) -> str:
    """Equal for equal files at equal paths."""
    listed = "\0".join(f"{path}\0{files[path]}" for path in sorted(files))
    return blake2b(listed.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def named_files(files: Mapping[str, str]) -> dict[str, str]:
    """Enough to name what changed later: a short digest for each file, or for each folder where there are many."""
    if len(files) <= MOST_NAMED:
        return {path: digest[:8] for path, digest in files.items()}
    depth = max(path.count("/") for path in files)
    while depth and len({_folder(path, depth) for path in files}) > MOST_NAMED:
        depth -= 1
    return _by_folder(files, depth)


def changes_since(record: SourcesRecord | None, names: Mapping[str, str] | None, now: SourcesNow) -> tuple[str, ...]:
    """What differs from the record, by name; empty where nothing does. `names` are the `named_files` of then."""
    if record is None:
        return (UNRECORDED,)
    if (record.digest, record.variables) == (now.digest, now.variables):
        return ()
    both = {*record.variables, *now.variables}
    variables = tuple(f"${name}" for name in sorted(both) if record.variables.get(name) != now.variables.get(name))
    if record.digest == now.digest:
        return variables
    then = names or {}
    folders = [0 if name == _ROOT else name.count("/") for name in then if name.endswith("/")]
    files = _by_folder(now.files, max(folders)) if folders else {path: one[:8] for path, one in now.files.items()}
    changed = sorted(name for name in {*then, *files} if then.get(name) != files.get(name))
    return (*(changed if names is not None and changed else ("files",)), *variables)


def reason_of(changes: tuple[str, ...]) -> str:
    """Why a task is not reused, in the words of a verdict: `sources changed: src/a.py, 2 more`."""
    if changes == (UNRECORDED,):
        return UNRECORDED
    more = len(changes) - _SHOWN
    return f"sources changed: {', '.join(changes[:_SHOWN])}{f', {more} more' if more > 0 else ''}"


def _folder(path: str, depth: int) -> str:
    parts = path.split("/")
    return path if len(parts) <= depth else "/".join([*parts[:depth], ""]) or _ROOT


def _by_folder(files: Mapping[str, str], depth: int) -> dict[str, str]:
    inside: dict[str, dict[str, str]] = {}
    for path, digest in files.items():
        inside.setdefault(_folder(path, depth), {})[path] = digest
    return {name: files_digest(below)[:8] if name.endswith("/") else files[name][:8] for name, below in inside.items()}
