"""Giving space back without being asked: at the end of a run, when enough has gathered, and never for long."""

from __future__ import annotations

import os

import msgspec

from agentos.exceptions import GitError, WorktreeBusyError
from agentos.worktree.snapshots.retention import collect
from agentos.worktree.snapshots.store import Worktree

SECONDS = 5.0
"""The end of a run waits at most so long for it."""


class Loose(msgspec.Struct, frozen=True, kw_only=True):
    """Objects that were written since the last collection, each in a file of its own."""

    files: int
    total_bytes: int


PAYS = Loose(files=4000, total_bytes=256 << 20)
"""With as many files, or as many bytes: below that looking costs more than is won."""


def collect_if_it_pays(worktree: Worktree, *, pays: Loose = PAYS, seconds: float = SECONDS) -> bool:
    """Collect, if enough has gathered and nobody uses the store at this moment; whether it was done.

    What cannot be done within `seconds` is given up, with nothing lost, and not tried again before twice as much has
    gathered; `collect` takes as long as it needs.
    """
    found = loose_objects(worktree)
    given_up = worktree.store.parent / "collecting-took-too-long"
    try:
        tried = int(given_up.read_text())
    except (OSError, ValueError):
        tried = 0
    if found.files < 2 * tried or (found.files < pays.files and found.total_bytes < pays.total_bytes):
        return False
    try:
        collect(worktree, patience_s=0, seconds=seconds)
    except WorktreeBusyError:
        return False  # whoever uses it ends after us
    except GitError as error:
        if error.status is None:  # the time was up
            given_up.write_text(str(found.files))
        raise
    given_up.unlink(missing_ok=True)
    return True


def loose_objects(worktree: Worktree) -> Loose:
    """How much has gathered. Looks at names and sizes alone."""
    files = total = 0
    for name in (f"{byte:02x}" for byte in range(256)):
        try:
            with os.scandir(worktree.store / "objects" / name) as entries:
                for entry in entries:
                    files, total = files + 1, total + entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue  # the folder is not there yet, or an object went while we looked
    return Loose(files=files, total_bytes=total)
