"""Which paths a restore may write: sound ones (an export was made by somebody else), and none that is protected."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agentos.worktree.git import parents, path_text

_GIT, _OURS = ".git", ".agentos"
_SHORT = "git~1"
"""What NTFS calls `.git` for old programs."""
_UNSEEN = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
"""HFS+ leaves these out when it compares names."""

# Over many paths at once: only where one of these is found is each of them looked at.
_SUSPECT = re.compile(rf"[/\0]\.?\.?[/\0]|[/\0](\.git[. :/\0]|git~1|\.agentos[/\0])|{_UNSEEN.pattern}", re.IGNORECASE)

_OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_BRANCH = re.compile(r"refs/(?!.*(\.\.|//|@\{))[^\x00-\x20\x7f~^:?*\[\\]+(?<![/.])")


def unsafe_path(paths: Iterable[str]) -> str | None:
    """The first of `paths` that leads out of the worktree, or into git's folder or ours; None: all are sound."""
    listed = list(paths)
    joined = "\0".join(("", *listed, ""))
    if joined.count("\0") == len(listed) + 1 and not _SUSPECT.search(joined):
        return None
    return next((path for path in listed if not _is_sound(path)), None)


def refuse_unsafe(paths: Iterable[str]) -> None:
    """ValueError for a path that no snapshot may write to."""
    if (path := unsafe_path(paths)) is not None:
        raise ValueError(f"it names the path {path_text(path)!r}, which no snapshot may write to")


def refuse_no_oid(*oids: str | None) -> None:
    """ValueError for what is no id of an object: git would take it for an option, or for the name of something."""
    for oid in oids:
        if oid and not _OID.fullmatch(oid):
            raise ValueError(f"it names {oid[:80]!r}, which is no id of an object")


def refuse_no_branch(ref: str | None) -> None:
    """ValueError for what HEAD cannot point to."""
    if ref is not None and not _BRANCH.fullmatch(ref):
        raise ValueError(f"it names {ref[:80]!r}, which is no branch")


def refuse_outside(paths: Iterable[str]) -> None:
    """ValueError for a path that leads out of the worktree: of those that are only named, and never written to."""
    for path in paths:
        if not path or {"", ".", ".."} & set(path.split("/")):
            raise ValueError(f"it names the path {path_text(path)!r}, which is not in the worktree")


def _is_sound(path: str) -> bool:
    parts = path.split("/")
    if "\0" in path or parts[0].lower() == _OURS or not {"", ".", ".."}.isdisjoint(parts):
        return False
    # NTFS ignores blanks and dots at the end, and takes what follows a colon for a part of the file.
    bare = (_UNSEEN.sub("", part).lower().partition(":")[0].rstrip(" .") for part in parts)
    return not any(part in (_GIT, _SHORT) for part in bare)


class Protection:
    """A set of paths; one that ends in `/`, or names a folder or repository, covers all that lies below it."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = {path.rstrip("/") for path in paths if path.strip("/")}
        self._above = {above for path in self._paths for above in parents(path)}

    def covers(self, path: str) -> bool:
        """Whether `path` is protected, or lies in something that is."""
        return path in self._paths or any(above in self._paths for above in parents(path))

    def lies_below(self, path: str) -> bool:
        """Whether something protected lies below `path`: then no file can take its place."""
        return path in self._above
