"""Which worktrees of this machine have runs: a small index in the user's state folder.

It is a convenience: `list --all`, `inbox` and `resume --all` find runs with it from anywhere. Nothing depends on it; a
lost or damaged entry is written again by the next run there. One file for each worktree, so that any number of
processes write at once without a lock.
"""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from hashlib import blake2b
from pathlib import Path

import msgspec

from agentos import typed
from agentos.exceptions import AgentosError, WorkflowConfigurationError
from agentos.store.backends import find_backend, without_password
from agentos.store.port import RunRecord
from agentos.store.private_files import make_folders, replace_private, user_state_folder
from agentos.workflow.place.location import check_private
from agentos.workflow.place.place import Place, is_home, scope_now, was_begun_here
from agentos.workflow.place.run_moves import renamed_since

log = logging.getLogger("agentos")

_SUFFIX = ".json"
_MAX_BYTES = 64 * 1024


class KnownWorktree(msgspec.Struct, frozen=True, kw_only=True):
    """A worktree that had runs, and the database they are in."""

    root: Path
    database: str


class _IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the index."""

    version: int = 1
    root: str
    database: str
    at: str = ""


class InterruptedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that nobody drives and that has not ended; `resume --all` goes on with it."""

    worktree: KnownWorktree
    run: RunRecord


class LookupProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A database that could not be read, or a run that this host has under another name."""

    text: str
    error: AgentosError | None = None
    """What kept the database from being read."""


class Interrupted(msgspec.Struct, frozen=True, kw_only=True):
    """What a look into every known worktree found."""

    runs: tuple[InterruptedRun, ...]
    """Oldest first: what began first goes on first."""
    problems: tuple[LookupProblem, ...]
    """What was left out."""


def remember(root: Path, database: str) -> None:
    """Note that `root` has runs in `database`. Never raises; without a state folder to write to, nothing is noted."""
    if find_backend(
        database
    ).is_shared:  # would put a password into the index; a server's runs are found through the server
        return
    entry = _IndexEntry(root=str(root), database=database)
    try:
        folder = index_folder()
        file = folder / _name(entry)
        if _read(file) is not None:
            return
        make_folders(folder)
        for ours in (folder.parent, folder):  # earlier releases left the first to the umask
            if ours.stat().st_mode & 0o077:
                ours.chmod(0o700)
        # The last of several writers wins, and all write the same.
        now = datetime.now(UTC).isoformat(timespec="seconds")
        replace_private(file, msgspec.json.encode(msgspec.structs.replace(entry, at=now)))
        for gone, known in _entries():  # one that is only not mounted comes back with its next run
            if not os.path.lexists(known.root):
                with suppress(OSError):
                    gone.unlink(missing_ok=True)
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: no text in UTF-8; RuntimeError: no home folder
        log.debug("worktree %s is not in the index: %s", root, error)


def list_known_worktrees() -> list[KnownWorktree]:
    """The worktrees of the index that still exist with their database. Reads only; never raises."""
    found = []
    for _, entry in _entries():
        root, database = Path(entry.root), Path(entry.database)
        try:
            if not root.is_dir() or not database.is_file():
                continue
            if database.is_relative_to(root):  # it may have been swapped for a link since
                check_private(database, root, None)
        except (OSError, WorkflowConfigurationError):
            continue
        found.append(KnownWorktree(root=root, database=entry.database))
    return sorted(found, key=lambda one: (str(one.root), one.database))


def interrupted_runs(server: Place | None = None) -> Interrupted:
    """Every interrupted run of every known worktree; of a `server`, of those that this host has. Reads only."""
    runs: list[InterruptedRun] = []
    problems: list[LookupProblem] = []
    if server is not None:
        try:
            remembered = cache(scope_now)
            for record in filter(was_begun_here, _list_interrupted(msgspec.structs.replace(server, everywhere=True))):
                if is_home(record, remembered):
                    known = KnownWorktree(root=Path(record.root), database=server.database)
                    runs.append(InterruptedRun(worktree=known, run=record))
                else:  # this host has it under another name
                    problems.append(LookupProblem(text=str(renamed_since(record))))
        except AgentosError as error:
            problems.append(LookupProblem(text=f"{without_password(server.database)}: {error.message}", error=error))
    for worktree in list_known_worktrees():
        try:
            records = _list_interrupted(Place(database=worktree.database, root=worktree.root))
        except AgentosError as error:
            problems.append(LookupProblem(text=f"{worktree.root}: {error.message}", error=error))
            continue
        runs += [
            InterruptedRun(worktree=worktree, run=record)
            for record in records
            # One database may serve several worktrees: each run is told once, by its own.
            if record.root == str(worktree.root)
        ]
    runs.sort(key=lambda one: one.run.created_at)
    return Interrupted(runs=tuple(runs), problems=tuple(problems))


def _list_interrupted(place: Place) -> list[RunRecord]:
    store = place.open(readonly=True)
    try:
        return [record for record in store.list_runs(statuses={"interrupted"}) if record.kind == "workflow"]
    finally:
        store.close()


def index_folder() -> Path:
    """Where the index is kept: $XDG_STATE_HOME/agentos/worktrees, or what the platform has instead."""
    return user_state_folder() / "worktrees"


def _name(entry: _IndexEntry) -> str:
    return blake2b(f"{entry.root}\0{entry.database}".encode(), digest_size=16).hexdigest() + _SUFFIX


def _entries() -> list[tuple[Path, _IndexEntry]]:
    try:
        files = sorted(index_folder().glob(f"*{_SUFFIX}"))
    except (OSError, RuntimeError):
        return []
    return [(file, entry) for file in files if (entry := _read(file)) is not None]


def _read(file: Path) -> _IndexEntry | None:
    """The entry, if the file is real, ours, small, and says what its name says; None for junk of any kind."""
    try:
        opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            about = os.fstat(opened)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_size > _MAX_BYTES:
                return None
            entry = typed.decode(os.read(opened, _MAX_BYTES), _IndexEntry)
        finally:
            os.close(opened)
        whole = entry.version == 1 and os.path.isabs(entry.root) and os.path.isabs(entry.database)
        return entry if whole and _name(entry) == file.name else None
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
