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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import msgspec

from agentos.exceptions import WorkflowConfigurationError
from agentos.store.backends import URL_KINDS, Backend, find_backend, is_url, without_password
from agentos.store.private_files import SQLITE_FILES, make_folders
from agentos.workflow.place.settings_file import SETTINGS, SettingsFile, read_settings_file
from agentos.worktree import git
from agentos.worktree.git import one_line

VARIABLE = "AGENTOS_WORKFLOW_DB"
FOLDER = ".agentos"
DATABASE = "issue_workflow.db"
OLD_DATABASE = "~/.agentos/issue_workflow.db"

_ELSEWHERE = (
    f"{VARIABLE}=/path/to/file.db chooses another place; "
    f"{VARIABLE}={OLD_DATABASE} goes on with the old global database."
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
                return f"{VARIABLE} is set"
            case LocationSource.SETTINGS:
                return f"{one_line(self.root / self.settings)} names it"
            case LocationSource.REPOSITORY:
                return f"{one_line(self.root)} is the root of this git repository or worktree"


def find_location(target: Path | None = None) -> Location:
    """Where the state of work on `target` (default: the current directory) lives. Writes nothing.

    Raises WorkflowConfigurationError where no place can be settled, or where the place is not to be trusted.
    """
    directory = asked_directory(target)
    value = os.environ.get(VARIABLE, "")
    if value.strip():
        return Location(database=_named_by_variable(value), source=LocationSource.VARIABLE, root=directory)
    repository = _repository(directory)
    root = repository.root
    file = _settings(root)
    named = None if file is None else _named_by_settings(file)
    if file is None or named is None:
        database = root / FOLDER / DATABASE
        check_private(database, root, repository)
        return Location(database=str(database), source=LocationSource.REPOSITORY, root=root)
    where = file.path.name
    if is_url(named):
        return Location(database=_check_url(named, where), source=LocationSource.SETTINGS, root=root, settings=where)
    database = _inside(root, named, where)
    check_private(database, root, repository)
    return Location(database=str(database), source=LocationSource.SETTINGS, root=root, settings=where)


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
        if not database.exists():  # one that exists may well be read in a read-only tree
            _check_writable(database.parent)
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


def _repository(directory: Path) -> git.Repository:
    try:
        return git.find_repository(directory)
    except WorkflowConfigurationError as error:
        raise location_error(f"{error.message}, and {VARIABLE} is not set", error.next_step) from error


def _named_by_variable(value: str) -> str:
    if is_url(value.strip()):
        return _check_url(value.strip(), VARIABLE)
    fix = f"Name a file in {VARIABLE}, or unset it."
    try:
        path = Path(os.path.realpath(Path(value).expanduser()))
    except RuntimeError as error:
        raise location_error(f"{VARIABLE} is {value!r}, and that home directory is not known", fix) from error
    with _explain_os_errors(f"look at what {VARIABLE} names,", path):
        if value.endswith("/") or path.is_dir():
            raise location_error(f"{VARIABLE} names a directory, {one_line(path)}", fix)
        _check_ours(path, stat.S_IFREG)
    return str(path)


def _settings(root: Path) -> SettingsFile | None:
    try:
        return read_settings_file(root)
    except WorkflowConfigurationError as error:
        raise location_error(error.message, error.next_step) from error


def _named_by_settings(file: SettingsFile) -> str | None:
    named = file.table.get("database")
    if named is not None and not (isinstance(named, str) and named.strip()):
        raise location_error(f"`database` in {file.shown} is neither a path nor a {URL_KINDS} URL", _OWN_FOLDER)
    return named


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


def _inside(root: Path, named: str, where: str) -> Path:
    """The path that the settings name: below the root, in a folder of its own."""
    path = Path(os.path.normpath(root / named))
    if not path.is_relative_to(root) or named.startswith("~"):
        raise location_error(f"{where} names {named!r}, which is not inside {one_line(root)}", _OWN_FOLDER)
    with _explain_os_errors(f"look at what {where} names,", path):
        if named.endswith("/") or path.is_dir():
            raise location_error(f"{where} names a directory, {one_line(path)}", _OWN_FOLDER)
        parts = [part.lower() for part in path.relative_to(root).parts]
        if len(parts) < 2 or ".git" in parts or _holds_other_files(path):
            raise location_error(f"{where} names {named!r}, which is not in a folder of its own", _OWN_FOLDER)
    return path


def _holds_other_files(database: Path) -> bool:
    # Such a folder is the user's: our .gitignore with `*` would hide from git what they keep there.
    folder = database.parent
    if folder.name == FOLDER or not folder.is_dir() or _hides_all(_read_gitignore(folder / ".gitignore")):
        return False
    return any(not name.startswith(database.name) for name in os.listdir(folder))


def _old_database() -> Path | None:
    try:
        return Path(os.path.realpath(Path(OLD_DATABASE).expanduser()))
    except RuntimeError:  # no home directory, so nothing in it
        return None


def check_private(database: Path, root: Path, repository: git.Repository | None) -> None:
    """Refuse links, files of another kind or owner, tracked ones and nested repositories, from `root` to `database`."""
    if database == _old_database():
        raise location_error(
            f"{one_line(database)} is the old global database, which is left alone unless {VARIABLE} names it",
            "Work in a repository below your home directory, not in the home directory itself.",
        )
    folder = database.parent
    inside = folder.relative_to(root)
    with _explain_os_errors("look into", folder):
        for depth in range(1, len(inside.parts) + 1):
            _check_ours(root.joinpath(*inside.parts[:depth]), stat.S_IFDIR)
        for name in (".gitignore", *(database.name + suffix for suffix in SQLITE_FILES)):
            _check_ours(folder / name, stat.S_IFREG)
    if repository is not None and _is_tracked(repository, inside, git.is_tracked):
        raise location_error(
            f"{one_line(folder)} is tracked by git, and a clone must not bring its own runs",
            f"Take it out of git (`git rm -r --cached {inside}`), and remove what you did not make yourself.",
        )
    for depth in range(1, len(inside.parts) + 1):
        part = Path(*inside.parts[:depth])
        # A submodule that was taken out of the worktree has left no `.git`; its name is in the index all the same.
        if os.path.lexists(root / part / ".git") or (
            depth < len(inside.parts) and repository is not None and _is_tracked(repository, part, git.is_entry)
        ):
            raise location_error(
                f"{one_line(root / part)} is a repository of its own, which could bring its own runs",
                "Keep runs outside of it.",
            )


def _is_tracked(repository: git.Repository, folder: Path, is_tracked: Callable[[git.Repository, Path], bool]) -> bool:
    try:
        return is_tracked(repository, folder)
    except WorkflowConfigurationError as error:
        raise location_error(error.message, error.next_step) from error


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


def _check_writable(folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        raise OSError(errno.EROFS if read_only else errno.EACCES, "not writable", str(folder))


@contextmanager
def _explain_os_errors(doing: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise location_error(*_reason(error, doing, one_line(path))) from error


def _reason(error: OSError, doing: str, path: str) -> tuple[str, str]:
    match error.errno:
        case errno.EROFS:
            return f"cannot {doing} {path}: the file system is read-only", "Make it writable."
        case errno.EACCES | errno.EPERM:
            return f"no permission to {doing} {path}", "Get the permission, or work in a copy of your own."
        case errno.ENOSPC | errno.EDQUOT:
            return f"cannot {doing} {path}: the disk is full", "Free some space."
        case errno.ENOTDIR | errno.EEXIST:
            return f"cannot {doing} {path}: a file is in the way", "Move that file, or name another place."
        case _:
            return f"cannot {doing} {path}: {error.strerror or error}", "Repair that, or name another place."
