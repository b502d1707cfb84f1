"""Where state lives, settled once, before anything is read or run.

    AGENTOS_WORKFLOW_DB  ->  settings file of the root  ->  .agentos/ of the git root or worktree  ->  an error

`find_location` decides and checks, and writes nothing; `prepare` makes the folder. What lies inside a repository may
have come with a clone, and a clone must not bring its own runs: there the folder, its .gitignore and the database have
to be real (no links), owned by this user and unknown to git.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import msgspec

from agentos.exceptions import WorkflowConfigurationError
from agentos.store.backends import URL_KINDS, Backend, find_backend, is_url, without_password
from agentos.store.private_files import SQLITE_FILES, make_folders
from agentos.workflow.place.settings import DATABASE_VARIABLE, SETTINGS, from_variable, read_settings_file
from agentos.worktree import git
from agentos.worktree.git import one_line

FOLDER = ".agentos"
DATABASE = "issue_workflow.db"
OLD_DATABASE = "~/.agentos/issue_workflow.db"

_ELSEWHERE = (
    f"{DATABASE_VARIABLE}=/path/to/file.db chooses another place; "
    f"{DATABASE_VARIABLE}={OLD_DATABASE} goes on with the old global database."
)
_OWN_FOLDER = f'Write a path in a folder of its own, as in database = "{FOLDER}/{DATABASE}", or a {URL_KINDS} URL.'
_MOVE_AWAY = "Find out where it came from, and move it out of the way."


class LocationSource(StrEnum):
    """What decided where state lives."""

    VARIABLE = "variable"
    SETTINGS = "settings"
    REPOSITORY = "repository"


class Location(msgspec.Struct, frozen=True, kw_only=True):
    database: str
    """Absolute path of the database file, which need not exist yet, or the URL of a server."""
    source: LocationSource
    root: Path
    """Root of the repository or worktree. Under the variable git is not asked: the directory that was asked about."""
    settings: str = SETTINGS
    """The settings file that names it, where one does."""

    @property
    def backend(self) -> Backend:
        """Which kind of store it is."""
        return find_backend(self.database)

    @property
    def shown(self) -> str:
        """`database` as it may be printed: a URL without its password."""
        return without_password(self.database) if self.backend.is_shared else one_line(self.database)

    @property
    def why(self) -> str:
        """Why this place and no other, to stand after "because"."""
        match self.source:
            case LocationSource.VARIABLE:
                return f"{DATABASE_VARIABLE} is set"
            case LocationSource.SETTINGS:
                return f"{one_line(self.root / self.settings)} names it"
            case LocationSource.REPOSITORY:
                return f"{one_line(self.root)} is the root of this git repository or worktree"


def find_location(target: Path | None = None) -> Location:
    """Where the state of work on `target` (default: the current directory) lives. Writes nothing.

    Raises WorkflowConfigurationError where no place can be settled, or where the place is not to be trusted.
    """
    directory = asked_directory(target)
    if value := from_variable("database"):
        return Location(database=_named_by_variable(value), source=LocationSource.VARIABLE, root=directory)
    with _about_location(f", and {DATABASE_VARIABLE} is not set"):
        repository = git.find_repository(directory)
    root = repository.root
    with _about_location():
        file = read_settings_file(root)
    database, source, settings = str(root / FOLDER / DATABASE), LocationSource.REPOSITORY, SETTINGS
    if file is not None and (named := file.table.get("database")) is not None:
        if not (isinstance(named, str) and named.strip()):
            raise location_error(f"`database` in {file.shown} is neither a path nor a {URL_KINDS} URL", _OWN_FOLDER)
        source, settings = LocationSource.SETTINGS, file.path.name
        database = _check_url(named, settings) if is_url(named) else _inside(root, named, settings)
    if not is_url(database):
        check_private(Path(database), root, repository)
    return Location(database=database, source=source, root=root, settings=settings)


def prepare(location: Location) -> Location:
    """Make the folder of the database, not the database. Safe to repeat, and to race with other processes."""
    if location.backend.is_shared:
        return location
    database = Path(location.database)
    if location.source is LocationSource.VARIABLE:
        with _explain_os_errors("make the directory", database.parent):
            make_folders(database.parent)
    else:
        make_private(database.parent)
    with _explain_os_errors("write in", database.parent):
        effective = os.access in os.supports_effective_ids
        writable = os.access(database.parent, os.W_OK | os.X_OK, effective_ids=effective)
        if not writable and not database.exists():  # one that exists may well be read in a read-only tree
            read_only = os.statvfs(database.parent).f_flag & os.ST_RDONLY
            raise OSError(errno.EROFS if read_only else errno.EACCES, "not writable", str(database.parent))
    return location


def unused_old_database(database: str) -> Path | None:
    """The global database of earlier releases, if there is one and `database` is another. It is not opened."""
    old = _old_database()
    return old if old is not None and os.path.lexists(old) and str(old) != database else None


def asked_directory(target: Path | None) -> Path:
    """The directory that is asked about, absolute and without links."""
    what = "the current directory" if target is None else one_line(target)
    try:
        directory = Path(os.path.realpath(os.getcwd() if target is None else target, strict=True))
    except FileNotFoundError as error:
        raise location_error(f"{what} does not exist", "Go to a directory that exists, or name one.") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise location_error(f"{what} cannot be entered: {error}", "Name another directory.") from error
    if not directory.is_dir():
        raise location_error(f"{what} is not a directory", "Name the directory of a repository.")
    return directory


def location_error(why: str, fix: str) -> WorkflowConfigurationError:
    """The one text for all that can be wrong with the place."""
    return WorkflowConfigurationError(
        f"Cannot determine checkpoint database location: {why}.", next_step=f"{fix}\n{_ELSEWHERE}"
    )


@contextmanager
def _about_location(more: str = "") -> Iterator[None]:
    """What is wrong with the repository or its settings is told as what it is here."""
    try:
        yield
    except WorkflowConfigurationError as error:
        raise location_error(f"{error.message}{more}", error.next_step) from error


def _named_by_variable(value: str) -> str:
    if is_url(value.strip()):
        return _check_url(value.strip(), DATABASE_VARIABLE)
    fix = f"Name a file in {DATABASE_VARIABLE}, or unset it."
    try:
        path = Path(os.path.realpath(Path(value).expanduser()))
    except RuntimeError as error:
        raise location_error(f"{DATABASE_VARIABLE} is {value!r}, and that home directory is not known", fix) from error
    with _explain_os_errors(f"look at what {DATABASE_VARIABLE} names,", path):
        if value.endswith("/") or path.is_dir():
            raise location_error(f"{DATABASE_VARIABLE} names a directory, {one_line(path)}", fix)
        _check_ours(path, stat.S_IFREG)
    return str(path)


def _check_url(url: str, where: str) -> str:
    try:
        backend = find_backend(url)
    except KeyError as error:
        scheme = url.partition("://")[0]
        raise location_error(
            f"{where} names a kind of URL that is not supported, {scheme}://", f"Use {URL_KINDS} or a path."
        ) from error
    if "://" not in url:
        raise location_error(f"{where} is meant as a URL and lacks its slashes", f"Write {backend.example}.")
    return url


def _inside(root: Path, named: str, where: str) -> str:
    """The path that the settings name: below the root, in a folder of its own."""
    path = Path(os.path.normpath(root / named))
    if not path.is_relative_to(root) or named.startswith("~"):
        raise location_error(f"{where} names {named!r}, which is not inside {one_line(root)}", _OWN_FOLDER)
    with _explain_os_errors(f"look at what {where} names,", path):
        if named.endswith("/") or path.is_dir():
            raise location_error(f"{where} names a directory, {one_line(path)}", _OWN_FOLDER)
        parts = [part.lower() for part in path.relative_to(root).parts]
        folder, alone = path.parent, len(parts) >= 2 and ".git" not in parts
        if alone and folder.name != FOLDER and folder.is_dir():
            # With other files it is the user's: our .gitignore with `*` would hide from git what they keep there.
            others = any(not name.startswith(path.name) for name in os.listdir(folder))
            alone = not others or _hides_all(_read_gitignore(folder / ".gitignore"))
        if not alone:
            raise location_error(f"{where} names {named!r}, which is not in a folder of its own", _OWN_FOLDER)
    return str(path)


def _old_database() -> Path | None:
    try:
        return Path(os.path.realpath(Path(OLD_DATABASE).expanduser()))
    except RuntimeError:  # no home directory, so nothing in it
        return None


def check_private(database: Path, root: Path, repository: git.Repository | None) -> None:
    """Refuse links, files of another kind or owner, tracked ones and nested repositories, from `root` to `database`."""
    if database == _old_database():
        raise location_error(
            f"{one_line(database)} is the old global database, which is left alone unless {DATABASE_VARIABLE} names it",
            "Work in a repository below your home directory, not in the home directory itself.",
        )
    folder = database.parent
    inside = folder.relative_to(root)
    with _explain_os_errors("look into", folder):
        for depth in range(1, len(inside.parts) + 1):
            _check_ours(root.joinpath(*inside.parts[:depth]), stat.S_IFDIR)
        for name in (".gitignore", *(database.name + suffix for suffix in SQLITE_FILES)):
            _check_ours(folder / name, stat.S_IFREG)
    with _about_location():
        tracked = repository is not None and git.is_tracked(repository, inside)
    if tracked:
        raise location_error(
            f"{one_line(folder)} is tracked by git, and a clone must not bring its own runs",
            f"Take it out of git (`git rm -r --cached {inside}`), and remove what you did not make yourself.",
        )
    for depth in range(1, len(inside.parts) + 1):
        part = Path(*inside.parts[:depth])
        with _about_location():
            # A submodule that was taken out of the worktree has left no `.git`; its name is in the index all the same.
            nested = os.path.lexists(root / part / ".git") or (
                depth < len(inside.parts) and repository is not None and git.is_entry(repository, part)
            )
        if nested:
            raise location_error(
                f"{one_line(root / part)} is a repository of its own, which could bring its own runs",
                "Keep runs outside of it.",
            )


def _check_ours(path: Path, kind: int) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    wanted = "a directory" if kind == stat.S_IFDIR else "a regular file"
    if stat.S_ISLNK(found.st_mode):
        raise location_error(f"{one_line(path)} is a symbolic link, not {wanted}", _MOVE_AWAY)
    if stat.S_IFMT(found.st_mode) != kind:
        raise location_error(f"{one_line(path)} is not {wanted}", _MOVE_AWAY)
    if found.st_uid != os.geteuid():
        raise location_error(f"{one_line(path)} belongs to user {found.st_uid}, and you are {os.geteuid()}", _MOVE_AWAY)


def make_private(folder: Path) -> None:
    """`folder` with mode 0700 and a .gitignore that hides all of it. What a kill left half done is completed."""
    with _explain_os_errors("make the directory", folder):
        make_folders(folder)
        # Through a descriptor that follows no link: nobody can put another folder in its place between two steps.
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(opened).st_mode & 0o077:
                os.fchmod(opened, 0o700)
            _hide_from_git(opened)
        finally:
            os.close(opened)


def _hide_from_git(folder: int) -> None:
    present = _read_gitignore(".gitignore", folder)
    if _hides_all(present):
        return
    star = b"*\n" if not present or present.endswith(b"\n") else b"\n*\n"
    file = os.open(".gitignore", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        # Every racer puts the same bytes in the same place, and a kill just before leaves what the next call repairs:
        # there is no temporary file to rename, or to leave behind.
        os.pwrite(file, star, len(present))
    finally:
        os.close(file)


def _read_gitignore(name: str | Path, folder: int | None = None) -> bytes:
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError:
        return b""
    with open(file, "rb") as opened:
        return opened.read()


def _hides_all(ignored: bytes) -> bool:
    return any(line.strip() == b"*" for line in ignored.splitlines())


@contextmanager
def _explain_os_errors(doing: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"{doing} {one_line(path)}"
        match error.errno:
            case errno.EROFS:
                why, fix = "the file system is read-only", "Make it writable."
            case errno.EACCES | errno.EPERM:
                fix = "Get the permission, or work in a copy of your own."
                raise location_error(f"no permission to {what}", fix) from error
            case errno.ENOSPC | errno.EDQUOT:
                why, fix = "the disk is full", "Free some space."
            case errno.ENOTDIR | errno.EEXIST:
                why, fix = "a file is in the way", "Move that file, or name another place."
            case _:
                why, fix = error.strerror or str(error), "Repair that, or name another place."
        raise location_error(f"cannot {what}: {why}", fix) from error
