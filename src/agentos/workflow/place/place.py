"""The place a run is kept in: which store, which worktree it works on, and whose runs a shared database shows here.

Every clone of a repository has to come to the same scope on every host, or a run could not be taken over elsewhere.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from agentos.exceptions import (
    RunNotFoundError,
    RunRefusedError,
    SnapshotError,
    TryAgainError,
    WorkflowConfigurationError,
)
from agentos.ids import MAX_ID
from agentos.store.backends import Backend, find_backend
from agentos.store.port import Durability, RunRecord, Scope, StorePort
from agentos.workflow.place.location import (
    DATABASE,
    FOLDER,
    LocationSource,
    asked_directory,
    check_private,
    find_location,
    location_error,
    make_private,
    prepare,
)
from agentos.workflow.place.settings import load_settings
from agentos.worktree.git import Repository, common_dir, find_origin, find_repository, one_line

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?:[^/@]*@)?(?P<host>\[[^]/]+\]|[^/:]+)(?::(?P<port>\d*))?/(?P<path>.+)",
    re.IGNORECASE,
)
_SCP = re.compile(r"(?:[^/@:]*@)?(?P<host>[^/:@]+):(?P<path>(?!//).+)")
_USUAL_PORTS = {"http": 80, "https": 443, "ssh": 22, "git+ssh": 22, "ssh+git": 22, "git": 9418, "ftp": 21, "ftps": 990}


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A settled location. Opening a store in it is cheap: each thread that needs one opens its own."""

    database: str
    root: Path
    named: bool = False
    """The user named this root: a run that was begun elsewhere has moved here."""
    durability: Durability = "full"
    scope: Scope | None = None
    """Whose runs are meant, where the database is shared; None: those of the root."""
    everywhere: bool = False
    """All runs of a shared database, for reading."""
    home: Path | None = None
    """The worktree that the run belongs to, where it works in one of its own, which is the root then."""

    @property
    def backend(self) -> Backend:
        """Which kind of store it is."""
        return find_backend(self.database)

    @property
    def is_shared(self) -> bool:
        """Whether the database is a server's, which other hosts and repositories use as well."""
        return self.backend.is_shared

    def of(self, scope: Scope) -> Place:
        """The same database, seen from one scope: ids name one run there, as they need not among all."""
        return msgspec.structs.replace(self, scope=scope, everywhere=False) if self.is_shared else self

    @property
    def kept_beside(self) -> str:
        """The path beside which files are kept that stay on this host, as logs: the database where it is one."""
        return str(self.belongs_to / FOLDER / DATABASE) if self.is_shared else self.database

    @property
    def belongs_to(self) -> Path:
        """The worktree that runs of this place belong to, wherever they work."""
        return self.home or self.root

    def own_folder(self, workflow_id: str) -> Path:
        """Where a worktree of this run alone is, if it has one."""
        return self.belongs_to / FOLDER / "runs" / quote(workflow_id, safe="")

    def exists(self) -> bool:
        """Whether anything was ever kept here."""
        return self.is_shared or Path(self.database).exists()

    def open(self, *, create: bool = False, readonly: bool = False) -> StorePort:
        """A store of this place. WorkflowConfigurationError where there is none and `create` is False."""
        around: dict[str, Any] = {}
        if self.is_shared:
            around["scope"] = None if self.everywhere else self.scope or scope_now(self.belongs_to)
        else:
            folder, git = Path(self.database).parent, self.belongs_to / ".git"
            around["make_folder"] = lambda: make_private(folder)
            around["repository"] = git if folder.is_relative_to(self.belongs_to) and os.path.lexists(git) else None
        return self.backend.open(self.database, durability=self.durability, create=create, readonly=readonly, **around)


def find_place(repo: str | Path | None = None, *, durability: Durability = "full", make: bool = True) -> Place:
    """Where runs of this worktree (default: the current directory's) are kept.

    The folder is made, unless `make` is False: who only looks writes nothing, and may look at a read-only tree.
    UntrustedSettingsError where the settings name a server that the user has not accepted.
    """
    location = find_location(Path(repo) if repo is not None else None)
    for path in (location.root, location.database):
        try:
            str(path).encode()  # runs note where they belong, and databases hold text
        except UnicodeEncodeError as error:
            step = "Rename it, or work in another directory."
            raise location_error(f"the path {one_line(path)} is not UTF-8", step) from error
    if location.source is LocationSource.SETTINGS and location.backend.is_shared:
        from agentos.workflow.place.trust import refuse_untrusted  # most settings name no server

        refuse_untrusted(location.root, "database")
    if make:
        prepare(location)
    root, repository = location.root, None
    if location.source is LocationSource.VARIABLE or location.backend.is_shared:
        # The variable says where state lives and git was not asked; tasks still work on the worktree they are in.
        with suppress(WorkflowConfigurationError):
            repository = find_repository(root)
            root = repository.root
    place = Place(database=location.database, root=root, named=repo is not None, durability=durability)
    if not place.is_shared:
        return place
    if make and repository is not None:  # for what stays on this host: logs, isolated worktrees
        with suppress(WorkflowConfigurationError):  # a read-only tree has no logs, and no other need of a folder
            check_private(place.root / FOLDER / DATABASE, place.root, repository)
            make_private(place.root / FOLDER)
    return msgspec.structs.replace(place, scope=_scope_of(root, repository, load_settings(root).repository))


def scope_now(root: Path) -> Scope:
    """How a shared database would know this worktree today."""
    return find_scope(root, load_settings(root).repository)


def find_scope(root: Path, name: str | None = None) -> Scope:
    """The scope of a worktree, as git tells of it."""
    try:
        repository = find_repository(root)
    except WorkflowConfigurationError:
        repository = None
    return _scope_of(root, repository, name)


def _scope_of(root: Path, repository: Repository | None, name: str | None) -> Scope:
    """The scope: `name` (the setting `repository`), else where `origin` is, else the host and folder."""
    if repository is None:
        return Scope(repository=name or f"{platform.node()}:{root}")
    common = common_dir(repository)
    # The name git gave to a linked worktree; the main one has none.
    worktree = "" if common == repository.git_dir else repository.git_dir.name
    if name:
        return Scope(repository=name, worktree=worktree)
    try:
        origin = find_origin(repository)
    except SnapshotError as error:  # another name would be another repository, with none of its runs
        raise TryAgainError(
            f"cannot tell which repository this is: {error.message}", next_step=error.next_step
        ) from error
    here = f"{platform.node()}:{os.path.realpath(common)}"
    return Scope(repository=normalise_origin(origin) or here, worktree=worktree)


def normalise_origin(origin: str) -> str:
    """Host and path of a remote, whichever way it is reached and whoever asks; empty for one on this host."""
    found = _URL.fullmatch(origin) or _SCP.fullmatch(origin)
    if found is None or origin.startswith("file:"):
        return ""
    path = found["path"].strip("/").removesuffix(".git")
    given = found.groupdict()
    scheme, port = str(given.get("scheme")).lower(), given.get("port")
    # The usual port is left out; on another one another server may well answer, with repositories of its own.
    told = "" if not port or int(port) == _USUAL_PORTS.get(scheme) else f":{int(port)}"
    return f"{found['host'].lower()}{told}/{path}" if path else ""


def is_home(record: RunRecord, name_of: Callable[[Path], Scope] = scope_now) -> bool:
    """Whether this host has the worktree that a run of a shared database belongs to, under the name it had then.

    Git is asked for that name: who looks at many runs gives a `name_of` that remembers.
    """
    try:
        return was_begun_here(record) and name_of(Path(record.root)) == record.scope
    except WorkflowConfigurationError:  # what its settings would call it cannot be read
        return False


def was_begun_here(record: RunRecord) -> bool:
    """Whether this host has the folder that a run of a shared database belongs to, whatever is in there now."""
    return bool(record.root) and record.host in ("", platform.node()) and Path(record.root).is_dir()


def is_of_another_host(place: Place, record: RunRecord) -> bool:
    """Whether a run belongs to another host. A database file is on this one, whatever it was called before."""
    return place.is_shared and record.host not in ("", platform.node())


def find_root(repo: str | Path | None = None) -> Path:
    """The root to look for workflows in: that of the repository or worktree, else the directory. Writes nothing."""
    directory = asked_directory(Path(repo) if repo is not None else None)
    with suppress(WorkflowConfigurationError):
        return find_repository(directory).root
    return directory


def refuse_bad_id(workflow_id: str | None) -> None:
    """RunRefusedError where no run can be called that: nothing, an endless text, or what is no text at all."""
    if workflow_id is None:
        return
    problem = ""
    if not workflow_id.strip():
        problem = "it is empty"
    elif workflow_id.startswith("-"):
        problem = "it begins as an option does, and no command that is printed could name it"
    elif len(workflow_id) > MAX_ID:
        problem = f"it has {len(workflow_id):,} characters, {MAX_ID} are allowed"
    elif any("\ud800" <= character <= "\udfff" for character in workflow_id):
        problem = "it is not UTF-8"
    if problem:
        raise RunRefusedError(
            f"no run can have the id {workflow_id[:20]!r}: {problem}", next_step="Choose another id, or give none."
        )


def known_run(store: StorePort, workflow_id: str) -> RunRecord | None:
    """The run of exactly this id, if there is one; a prefix of others names none."""
    try:
        record = store.find_run(workflow_id)
    except (RunNotFoundError, RunRefusedError):  # none, or several that only begin with it
        return None
    return record if record.workflow_id == workflow_id else None
