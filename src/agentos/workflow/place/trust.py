"""Whether the user trusts what a repository's settings reach: a server, a command, a model's endpoint.

Settings come with a clone. Those that connect somewhere or run something count only once the user has accepted them,
for this repository and with this content; worktrees of one repository share that. What was accepted is kept in the
user's state folder, one file for each, so that any number of processes write at once without a lock. Whatever cannot
be told (no record, a damaged one, one that others may write) means no.

What the user's own variables say needs no trust: it does not come with the clone.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from agentos import typed
from agentos.exceptions import CommandRefusedError, UntrustedSettingsError, WorkflowConfigurationError
from agentos.store.backends import is_url, without_password
from agentos.store.private_files import replace_private, user_state_folder
from agentos.workflow.place.settings import KINDS, from_variable, read_settings_file
from agentos.worktree.git import Repository, find_repository, one_line

HARMLESS = {"repository", "durability", "keep", "lease_s", "space_warning", "max_concurrency", "gates"}
HARMLESS |= {"secrets", "log_limit", "limits", "prices"}
"""Settings that neither connect nor run anything. Every other one needs trust, one that is new as well."""

_SUFFIX = ".json"
_MAX_BYTES = 4 << 20


class Reaching(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one repository that need trust."""

    root: Path
    repository: str
    """Which repository it is: its git folder, which its worktrees share."""
    file: str
    """Where they stand, for a message."""
    values: Mapping[str, Any]
    """By name, as the file has them."""
    digest: str
    """Of the values, and of files of the repository that their commands name."""

    @property
    def in_force(self) -> tuple[str, ...]:
        """Names of those that no variable of the user's stands in for."""
        return tuple(name for name in self.values if not from_variable(name))

    def lines(self) -> list[str]:
        """Each of them on a line of its own, fit to be printed: passwords are left out."""
        lines = []
        for name, value in self.values.items():
            shown = json.dumps(_without_passwords(value), ensure_ascii=False, default=str)
            lines.append(f"{name} = {one_line(shown)}")
        return lines


class Trusted(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that the user has accepted: a file of the state folder."""

    version: int = 1
    repository: str
    digest: str
    root: str
    """The worktree in which they were shown."""
    settings: tuple[str, ...]
    """As they were shown."""
    at: str
    """When."""


def find_reaching(root: Path) -> Reaching | None:
    """The settings of `root` that need trust; None where it has none. WorkflowConfigurationError where the file cannot
    be read."""
    file = read_settings_file(root)
    if file is None:
        return None
    values: dict[str, Any] = {}
    for name, value in file.table.items():
        # A path of a database has to lie inside the repository, where `location` looks at it.
        is_path = name == "database" and isinstance(value, str) and not is_url(value)
        if name in KINDS and name not in HARMLESS and not is_path and (value or name == "database"):
            values[name] = value
    if not values:
        return None
    if "database" in values and "repository" in file.table:  # whose runs on that server are meant
        values["repository"] = file.table["repository"]
    try:
        files = {word: told for word in set(_words(values)) if (told := _digest_of_file(root, word))}
        whole = json.dumps([values, files], sort_keys=True, default=str)
    except RecursionError as error:
        raise WorkflowConfigurationError(
            f"{file.shown} cannot be read: it is nested too deeply", next_step="Correct that file."
        ) from error
    digest = blake2b(whole.encode(), digest_size=32, person=b"agentos-trust").hexdigest()
    return Reaching(root=root, repository=_identity(root), file=file.shown, values=values, digest=digest)


def refuse_untrusted(root: Path, *names: str) -> None:
    """UntrustedSettingsError, which shows them, where one of these settings comes from the file and is not trusted."""
    reaching = find_reaching(root)
    if reaching is not None and set(names).intersection(reaching.in_force) and trusted_since(reaching) is None:
        raise untrusted_error(reaching)


def untrusted_error(reaching: Reaching) -> UntrustedSettingsError:
    """What to say of settings that are not trusted."""
    listed = "".join(f"\n  {line}" for line in reaching.lines())
    try:
        is_here = Path.cwd().is_relative_to(reaching.root)
    except OSError:  # the current directory is gone
        is_here = False
    command = "agentos trust" if is_here else f"agentos trust --repo {shlex.quote(str(reaching.root))}"
    return UntrustedSettingsError(
        f"{reaching.file} connects to servers or runs commands, and you have not accepted that:{listed}",
        next_step=f"Read it. If you want it: `{command}`. Changed settings are asked about again.",
    )


def trusted_since(reaching: Reaching) -> str | None:
    """When the user accepted exactly these; None where they did not."""
    try:
        record = _read(_folder(reaching.root) / _name(reaching.repository, reaching.digest))
    except (OSError, WorkflowConfigurationError):
        return None
    return None if record is None else record.at


def trust_settings(reaching: Reaching) -> Trusted:
    """Accept these for the repository. CommandRefusedError inside an attempt: a task does not trust for its user."""
    _refuse_attempts()
    record = Trusted(
        repository=reaching.repository,
        digest=reaching.digest,
        root=str(reaching.root),
        settings=tuple(reaching.lines()),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    try:
        folder = _folder(reaching.root)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_private(folder / _name(record.repository, record.digest), msgspec.json.encode(record))
    except (OSError, ValueError) as error:
        raise WorkflowConfigurationError(
            f"your trust cannot be stored: {error}",
            next_step="Make that folder writable, or set XDG_STATE_HOME to another one.",
        ) from error
    for file, gone in _records():  # of repositories that are gone: another one may come to lie there
        if not os.path.lexists(gone.root):
            with suppress(OSError):
                file.unlink(missing_ok=True)
    if trusted_since(reaching) is None:
        raise WorkflowConfigurationError(
            f"{one_line(folder)} can be written by others, so nothing in it is trusted",
            next_step=f"Make it yours alone: chmod 700 {shlex.quote(str(folder))}",
        )
    return record


def revoke_trust(root: Path) -> list[Trusted]:
    """Take back whatever was ever accepted for this repository; what that was."""
    _refuse_attempts()
    identity = _identity(root)
    gone = []
    for file, record in _records():
        if record.repository == identity:
            file.unlink(missing_ok=True)
            gone.append(record)
    return gone


def list_trusted() -> list[Trusted]:
    """Everything the user has accepted, by repository."""
    return sorted((record for _, record in _records()), key=lambda record: (record.repository, record.at))


# --- what needs trust ---------------------------------------------------------------------------------------------


def _without_passwords(value: object) -> object:
    if isinstance(value, str):
        return without_password(value)
    if isinstance(value, Mapping):
        return {name: _without_passwords(one) for name, one in value.items()}
    return [_without_passwords(one) for one in value] if isinstance(value, list) else value


def _words(value: object) -> Iterator[str]:
    """Every text in the settings, and its words: each may be an argument of a command, or a script for a shell."""
    if isinstance(value, str):
        from agentos.machine.rules.gates import words_in  # few repositories need trust

        yield from filter(None, words_in(value))
    elif isinstance(value, Mapping | list):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _words(one)


def _digest_of_file(root: Path, word: str) -> str:
    """Of a file of the repository that a command names; empty where it names none.

    `on_end = ["./tell"]` says nothing as long as anybody may push another ./tell.
    """
    try:
        path = Path(os.path.realpath(root / word))
        # Files outside are the user's own; a link from inside leads to where it led when it was shown.
        if not Path(os.path.normpath(root / word)).is_relative_to(root):
            return ""
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError):  # no file; too long a name, or a NUL in it
        return ""
    with open(opened, "rb") as file:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            return ""
        contents = blake2b(os.fsencode(os.path.relpath(path, root)) + b"\0", digest_size=32)
        while part := file.read(1 << 20):
            contents.update(part)
        return contents.hexdigest()


# --- which repository it is ---------------------------------------------------------------------------------------


def _identity(root: Path) -> str:
    """The git folder that all worktrees share, where that folder itself knows this root as one of them.

    A folder may claim to be a worktree of any repository with a `.git` file of its own: then it is known by both.
    """
    try:
        repository = find_repository(root)
    except WorkflowConfigurationError:  # the variable names the database, and there need not be a repository
        return os.path.realpath(root)
    try:
        named = (repository.git_dir / "commondir").read_text().strip()
    except OSError:
        named = ""
    common = os.path.realpath(repository.git_dir / named)
    return common if _is_worktree_of(repository, common) else f"{common}\0{os.path.realpath(root)}"


def _is_worktree_of(repository: Repository, common: str) -> bool:
    own = repository.root / ".git"
    if not own.is_symlink() and own.is_dir():
        return os.path.realpath(own) == common
    git_dir = os.path.realpath(repository.git_dir)
    try:
        back = (repository.git_dir / "gitdir").read_text().strip()
    except OSError:
        return False
    registered = os.path.dirname(git_dir) == os.path.join(common, "worktrees")
    return registered and os.path.realpath(repository.git_dir / back) == os.path.realpath(own)


# --- what was accepted --------------------------------------------------------------------------------------------


def _refuse_attempts() -> None:
    from agentos.tasks.process.ancestors import acting_attempt  # for those who change something

    if attempt := acting_attempt():
        raise CommandRefusedError(
            f"this comes from inside a run ({attempt}): only its user may trust settings",
            next_step="Type it in a terminal of your own.",
        )


def _folder(root: Path) -> Path:
    """Where it is kept. WorkflowConfigurationError where that is inside the repository, which could bring its own."""
    folder = user_state_folder() / "trust"
    if not folder.is_absolute() or Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(root)):
        raise WorkflowConfigurationError(
            f"your state folder {one_line(folder)} is inside this repository, which could bring its own trust",
            next_step="Set XDG_STATE_HOME to a folder elsewhere, with its whole path.",
        )
    return folder


def _name(repository: str, digest: str) -> str:
    return blake2b(f"{repository}\0{digest}".encode(errors="surrogateescape"), digest_size=16).hexdigest() + _SUFFIX


def _records() -> Iterable[tuple[Path, Trusted]]:
    folder = user_state_folder() / "trust"
    files = sorted(folder.glob(f"*{_SUFFIX}")) if folder.is_absolute() else []
    return [(file, record) for file in files if (record := _read(file)) is not None]


def _read(file: Path) -> Trusted | None:
    """The record, if file and folder are real and this user's alone, and it says what its name says."""
    try:
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        opened = os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        with open(opened, "rb") as reading:
            about = os.fstat(opened)
            if not (_is_ours_alone(os.fstat(folder)) and _is_ours_alone(about) and stat.S_ISREG(about.st_mode)):
                return None
            record = typed.decode(reading.read(_MAX_BYTES), Trusted)
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
    finally:
        os.close(folder)
    return record if record.version == 1 and _name(record.repository, record.digest) == file.name else None


def _is_ours_alone(about: os.stat_result) -> bool:
    return about.st_uid == os.geteuid() and not about.st_mode & 0o022
