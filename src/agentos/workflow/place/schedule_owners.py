"""Which worktree of a repository owns a schedule, where each keeps its runs in a database of its own.

The owners of all schedules stand in one file in the git directory that the worktrees share: so two of them never fire
the same one. On a server the database itself knows. Without a repository there is one database, which knows as well.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from agentos import typed
from agentos.exceptions import AgentosError, NotFoundError, WorkflowConfigurationError
from agentos.store.private_files import make_folders, make_private
from agentos.workflow.place.place import Place
from agentos.workflow.place.run_search import reading
from agentos.worktree.git import common_dir, find_repository, one_line
from agentos.worktree.snapshots.store import FOLDER, lock_file

_FILE = "schedules.json"


class ScheduleOwner(msgspec.Struct, frozen=True, kw_only=True):
    """A worktree, and the database that its runs are in."""

    root: str
    database: str


class ScheduleOwners:
    """The owners of the schedules of one repository, as seen from one worktree of it."""

    def __init__(self, place: Place) -> None:
        self._us = ScheduleOwner(root=str(place.root), database=place.database)
        self._common = None if place.is_shared else _common_dir(place.root)

    def others(self) -> Mapping[str, ScheduleOwner]:
        """Schedules, by name, that belong to another worktree."""
        read = self._read() if self._common is not None else {}
        return {name: owner for name, owner in read.items() if owner != self._us and self._is_alive(name, owner)}

    @contextmanager
    def adding(self) -> Iterator[None]:
        """No other worktree of the repository adds a schedule meanwhile: a claim holds once the schedule is stored."""
        if self._common is None:
            yield
            return
        folder = self._common / FOLDER
        with ExitStack() as held:
            try:
                make_folders(folder)
                held.enter_context(lock_file(folder / "schedules.lock"))
            except OSError as error:
                raise _cannot_write(folder, error) from error
            yield

    def claim(self, name: str) -> ScheduleOwner | None:
        """Make this worktree the owner: None. Or the other one that is, as long as it is there and has the schedule.

        Safe with any number of processes at once.
        """
        if self._common is None or self._read().get(name) == self._us:
            return None
        with self._changing() as owners:
            owner = owners.get(name)
            if owner is not None and owner != self._us and self._is_alive(name, owner):
                return owner
            owners[name] = self._us
        return None

    def release(self, name: str) -> None:
        """This worktree owns it no more."""
        if self._common is None or self._read().get(name) != self._us:
            return
        with self._changing() as owners:
            owners.pop(name, None)

    def _is_alive(self, name: str, owner: ScheduleOwner) -> bool:
        """Whether that worktree is still one of this repository, and its database has the schedule.

        A copy of a repository brings this file along: what it says of the original does not count there.
        """
        root = Path(owner.root)
        if not root.is_dir() or _common_dir(root) != self._common:
            return False
        try:
            with reading(Place(database=owner.database, root=root)) as store:
                return any(one.name == name and one.is_active for one in store.read_schedules())
        except NotFoundError:
            return False
        except AgentosError:  # it cannot be told now: then nobody else fires it
            return True

    def _read(self) -> dict[str, ScheduleOwner]:
        assert self._common is not None
        file = self._common / FOLDER / _FILE
        try:
            return typed.decode(file.read_bytes(), dict[str, ScheduleOwner])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise WorkflowConfigurationError(
                f"which worktree owns which schedule cannot be read: {one_line(file)}: {error}",
                next_step="Repair or remove the file, and add the schedules again where they belong.",
            ) from error

    @contextmanager
    def _changing(self) -> Iterator[dict[str, ScheduleOwner]]:
        """The owners, to be changed: written when this is left, and nobody else changes them meanwhile."""
        assert self._common is not None
        folder = self._common / FOLDER
        try:
            make_folders(folder)
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX)
                owners = self._read()
                yield owners
                os.replace(make_private(folder / _FILE, msgspec.json.encode(owners)), folder / _FILE)
                os.fsync(opened)
            finally:
                os.close(opened)
        except OSError as error:
            raise _cannot_write(folder, error) from error


def _cannot_write(folder: Path, error: OSError) -> WorkflowConfigurationError:
    return WorkflowConfigurationError(
        f"which worktree owns a schedule cannot be written down in {one_line(folder)}: {error.strerror}",
        next_step="Make git's own folder writable, or free some space.",
    )


def _common_dir(root: Path) -> Path | None:
    try:
        return Path(os.path.realpath(common_dir(find_repository(root))))
    except WorkflowConfigurationError:
        return None
