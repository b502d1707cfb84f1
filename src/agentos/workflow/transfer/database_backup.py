"""A database copied into one file while runs go on, and put back from it.

A copy is made aside, looked through record by record, and only then gets its name. What a restore replaces keeps a
dated name. Snapshots of files are not in a database: a restore says which ones its runs need and the worktree lacks.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agentos.exceptions import (
    CheckpointCorruptedError,
    ForeignDatabaseError,
    NotFoundError,
    RunRefusedError,
    StoreUnavailableError,
    WorkflowConfigurationError,
)
from agentos.machine.facts.fold import fold
from agentos.machine.rules.files import snapshots_in_use
from agentos.store.port import UNFINISHED
from agentos.store.private_files import SQLITE_FILES, link_private, make_private, remove_database
from agentos.workflow.files.retention import unknown_snapshots
from agentos.workflow.place.inspection import damage, refuse_used
from agentos.workflow.place.location import Location, prepare
from agentos.workflow.place.place import find_place
from agentos.worktree.git import one_line
from agentos.worktree.snapshots.retention import purged_ids
from agentos.worktree.snapshots.snapshots import snapshot_refs
from agentos.worktree.snapshots.store import known_worktree

if TYPE_CHECKING:
    from agentos.store.sqlite.copies import CopiedRun, DatabaseCopy

Progress = Callable[[str, int, int], None]
"""Is told what is done now, how far it is, and of how much."""
IN_USE_S = 5.0
"""So long a restore waits for others to close the database: a worker opens it for each look."""


class BackedUp(msgspec.Struct, frozen=True, kw_only=True):
    """A copy that was made."""

    path: str
    """The database."""
    file: str
    """The copy of it."""
    bytes: int
    runs: int
    schema: int


class LackingRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a restored database that names snapshots of files which are not there."""

    workflow_id: str
    snapshots: list[str]
    checkpoints: list[str]
    """Those of its checkpoints that name one of them: their files cannot be put back."""


class RestoredDatabase(msgspec.Struct, frozen=True, kw_only=True):
    """A database that was put back from a copy."""

    path: str
    file: str
    """The copy; it is unchanged."""
    kept: dict[str, str]
    """What was there before: each path with the one it has now. Empty where nothing was."""
    runs: int
    schema: int
    lacking: list[LackingRun]
    """Runs whose snapshots of files are not here, in part or all."""
    elsewhere: list[str]
    """Unfinished runs of folders that are not here: nothing can be said of their snapshots."""
    left_over: dict[str, int]
    """Runs that this worktree has snapshots of and the database does not know, with how many: as a rule, newer ones."""


def back_up(location: Location, file: Path, *, force: bool, progress: Progress) -> BackedUp:
    """Copy the database into `file`, for this user alone. What is committed now is in it; runs are not held up.

    RunRefusedError where something has that name already, unless `force`; StoreUnavailableError where there is no
    room; IntegrityError where a record is damaged. Then nothing has the name, or what had it has it still.
    """
    copies = location.backend.copies(location.database)
    if location.backend.is_shared:
        raise _by_other_tools(location, copies.backup_command(location.database, file), "copied", "")
    database = Path(location.database)
    file = Path(os.path.abspath(file))
    _refuse_target(database, file, force=force)
    with _made_beside(file) as copy:
        copies.copy_database(database, copy, lambda done, total: progress("copied", done, total), live=True)
        with copies.DatabaseCopy(copy, of=database) as looked:
            runs, schema = looked.verify(lambda done, total: progress("checked", done, total)), looked.schema
        if force:
            _refuse_target(database, file, force=True)
            os.replace(copy, file)
            _sync_folder(file.parent)
        elif not link_private(copy, file, lambda _: False):
            raise _existing_file_error(file)
    return BackedUp(path=str(database), file=str(file), bytes=file.stat().st_size, runs=len(runs), schema=schema)


def restore(location: Location, file: Path, *, moved: bool, progress: Progress) -> RestoredDatabase:
    """Put a copy in the place of the database, which keeps a dated name beside it.

    RunRefusedError where the copy is of another worktree, unless it has `moved`; LeaseHeldError or
    StoreUnavailableError while somebody uses the database; IntegrityError where the copy is damaged or of a newer
    version, ForeignDatabaseError where it is none. Then nothing has changed.
    """
    copies = location.backend.copies(location.database)
    if location.backend.is_shared:
        raise _by_other_tools(
            location, copies.restore_command(location.database, file), "put back", " while no run is driven"
        )
    database = Path(location.database)
    file = Path(os.path.realpath(file))
    _refuse_same(database, file)
    if not os.path.lexists(file):
        raise NotFoundError(f"there is no file {one_line(file)}", next_step="Name one that `agentos db backup` made.")
    prepare(location)
    sound = _is_sound(location)
    with _made_beside(database) as copy:
        copies.copy_database(file, copy, lambda done, total: progress("copied", done, total), live=False)
        with copies.DatabaseCopy(copy, of=file) as looked:
            runs, schema = looked.verify(lambda done, total: progress("checked", done, total)), looked.schema
            root = find_place(location.root).root
            if not moved:
                _refuse_foreign_runs(runs, root, file)
            lacking, elsewhere = _lacking_snapshots(looked, runs, root if moved else None)
        with _nobody_else(location):
            kept = copies.put_in_place(copy, database, sound=sound)
        _sync_folder(database.parent)
    return RestoredDatabase(
        path=str(database),
        file=str(file),
        kept=kept,
        runs=len(runs),
        schema=schema,
        lacking=lacking,
        elsewhere=elsewhere,
        left_over=unknown_snapshots(find_place(location.root)),
    )


def _by_other_tools(location: Location, command: str, done: str, when: str) -> RunRefusedError:
    return RunRefusedError(
        f"{location.shown} is {done} by {location.backend.title}'s own tools, not by AgentOS: nothing was done",
        next_step=f"Type this{when}; the password is taken from PGPASSWORD or ~/.pgpass:\n  {command}",
    )


# --- the file of a copy ---------------------------------------------------------------------------------------------


def _refuse_target(database: Path, file: Path, *, force: bool) -> None:
    _refuse_same(database, file)
    try:
        found = os.lstat(file)
    except FileNotFoundError:
        if not file.parent.is_dir():
            raise WorkflowConfigurationError(
                f"there is no folder {one_line(file.parent)}", next_step="Make it, or name another file."
            ) from None
        return
    except OSError as error:
        raise _unwritable(file, error) from error
    if not stat.S_ISREG(found.st_mode):
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else kind
        raise RunRefusedError(f"{one_line(file)} is {kind}: nothing was written", next_step="Name a file.")
    if not force:
        raise _existing_file_error(file)
    if used := [end for end in SQLITE_FILES[1:] if os.path.lexists(f"{file}{end}")]:
        raise RunRefusedError(
            f"{one_line(file)} is a database that somebody uses: {file.name}{used[0]} lies beside it",
            next_step="Name another file.",
        )


def _existing_file_error(file: Path) -> RunRefusedError:
    return RunRefusedError(
        f"{one_line(file)} is there already, and was left as it is", next_step="Name another file, or say --force."
    )


def _refuse_same(database: Path, file: Path) -> None:
    own = {os.path.realpath(f"{database}{end}") for end in SQLITE_FILES}
    same = os.path.realpath(file) in own
    with suppress(OSError):
        same = same or os.path.samefile(database, file)
    if same:
        raise RunRefusedError(f"{one_line(file)} is the database itself", next_step="Name another file.")


@contextmanager
def _made_beside(file: Path) -> Iterator[Path]:
    """An empty private file in the same folder, which goes at the end whatever happens."""
    try:
        copy = make_private(file)
    except OSError as error:
        raise _unwritable(file, error) from error
    try:
        yield copy
    except OSError as error:  # giving it its name failed
        raise _unwritable(file, error) from error
    finally:
        remove_database(copy)


def _unwritable(file: Path, error: OSError) -> WorkflowConfigurationError:
    return WorkflowConfigurationError(
        f"{one_line(file)} cannot be written: {error.strerror or error}",
        next_step="Check its folder, whether you may write there, and the free space. Nothing was changed.",
    )


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # some file systems have nothing to flush for a folder
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


# --- what a restore replaces ------------------------------------------------------------------------------------------


def _is_sound(location: Location) -> bool:
    """Whether the database that is to be replaced is whole; also where there is none. Refuses what is not ours."""
    place = find_place(location.root, make=False)
    try:
        return not damage(place)
    except NotFoundError:
        return True
    except CheckpointCorruptedError:
        return False
    except ForeignDatabaseError as error:
        raise ForeignDatabaseError(
            error.message, next_step="It was not changed. Move it away, and restore again."
        ) from error


@contextmanager
def _nobody_else(location: Location) -> Iterator[None]:
    """No process has the database open, and none of ours opens it meanwhile."""
    from agentos.store.sqlite.locks import connection_lock

    until = time.monotonic() + IN_USE_S
    while True:
        with connection_lock(Path(location.database)):
            try:
                refuse_used(location)
            except StoreUnavailableError:
                if time.monotonic() > until:
                    raise
            else:
                yield
                return
        time.sleep(0.1)


# --- whose it is, and what its runs need ------------------------------------------------------------------------------


def _refuse_foreign_runs(runs: Sequence[CopiedRun], root: Path, file: Path) -> None:
    roots = {run.root for run in runs if run.root}
    if not roots or str(root) in roots:
        return
    listed = "".join(f"\n  {one_line(one)}" for one in sorted(roots)[:5])
    raise RunRefusedError(
        f"{one_line(file)} holds runs of another worktree than {one_line(root)}:{listed}",
        next_step="Restore it there (--repo PATH). If that worktree was moved here: say --moved.",
    )


def _lacking_snapshots(
    copy: DatabaseCopy, runs: Sequence[CopiedRun], moved_to: Path | None
) -> tuple[list[LackingRun], list[str]]:
    """What runs need and their worktrees do not have; unfinished runs of worktrees that are not here."""
    cuts: dict[str, dict[str, str]] = {}
    for workflow_id, checkpoint, snapshot in copy.checkpoint_snapshots():
        cuts.setdefault(workflow_id, {})[checkpoint] = snapshot
    present = _Present()
    lacking: list[LackingRun] = []
    elsewhere: list[str] = []
    for run in runs:
        named = cuts.get(run.workflow_id, {})
        unfinished = run.status in UNFINISHED
        # Of a run that has ended only checkpoints are gone back to, so that its journal need not be folded.
        needed = set(named.values()) | (
            snapshots_in_use(fold(run.workflow_id, copy.events(run))) if unfinished else set()
        )
        root = moved_to or Path(run.root)
        if not root.is_dir():
            elsewhere += [run.workflow_id] if unfinished else []
        elif gone := needed - present.at(root) if needed else set():
            checkpoints = [checkpoint for checkpoint, snapshot in named.items() if snapshot in gone]
            lacking.append(LackingRun(workflow_id=run.workflow_id, snapshots=sorted(gone), checkpoints=checkpoints))
    return lacking, elsewhere


class _Present:
    """The snapshots that worktrees have, looked up once for each."""

    def __init__(self) -> None:
        self._known: dict[Path, set[str]] = {}

    def at(self, root: Path) -> set[str]:
        if root not in self._known:
            worktree = known_worktree(root)
            self._known[root] = set(snapshot_refs(worktree).values()) if worktree is not None else set()
            if worktree is not None:
                self._known[root] |= {old for old, new in purged_ids(worktree).items() if new in self._known[root]}
        return self._known[root]
