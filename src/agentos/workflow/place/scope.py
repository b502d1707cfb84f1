"""Whose runs a shared database shows here: the identity of a repository and of a worktree of it.

Every clone of a repository has to come to the same answer on every host, or a run could not be taken over elsewhere.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from agentos.exceptions import SnapshotError, TryAgainError, WorkflowConfigurationError
from agentos.store.port import Scope
from agentos.worktree.git import Git, Repository, clean_env, find_repository

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?:[^/@]*@)?(?P<host>\[[^]/]+\]|[^/:]+)(?::(?P<port>\d*))?/(?P<path>.+)",
    re.IGNORECASE,
)
_SCP = re.compile(r"(?:[^/@:]*@)?(?P<host>[^/:@]+):(?P<path>(?!//).+)")
_USUAL_PORTS = {"http": 80, "https": 443, "ssh": 22, "git+ssh": 22, "ssh+git": 22, "git": 9418, "ftp": 21, "ftps": 990}


def find_scope(root: Path, name: str | None = None) -> Scope:
    """The scope of a worktree, as git tells of it."""
    try:
        repository = find_repository(root)
    except WorkflowConfigurationError:
        repository = None
    return scope_of(root, repository, name)


def scope_of(root: Path, repository: Repository | None, name: str | None) -> Scope:
    """The scope: `name` (the setting `repository`), else where `origin` is, else the host and folder."""
    if repository is None:
        return Scope(repository=name or _here(root))
    return Scope(repository=name or _identity(repository), worktree=_worktree(repository))


def _worktree(repository: Repository) -> str:
    """The name git gave to a linked worktree; empty for the main one."""
    return repository.git_dir.name if (repository.git_dir / "commondir").is_file() else ""


def _identity(repository: Repository) -> str:
    git = Git(cwd=repository.root, env=clean_env(os.environ), timeout_s=10.0)
    try:
        origin = git.run("config", "--get", "remote.origin.url", ok=(0, 1)).stdout
    except SnapshotError as error:  # another name would be another repository, with none of its runs
        raise TryAgainError(
            f"cannot tell which repository this is: {error.message}", next_step=error.next_step
        ) from error
    common = repository.git_dir
    if _worktree(repository):
        common = common / (common / "commondir").read_text().strip()
    return normalise_origin(os.fsdecode(origin).strip()) or _here(Path(os.path.realpath(common)))


def normalise_origin(origin: str) -> str:
    """Host and path of a remote, whichever way it is reached and whoever asks; empty for one on this host."""
    found = _URL.fullmatch(origin) or _SCP.fullmatch(origin)
    if found is None or origin.startswith("file:"):
        return ""
    path = found["path"].strip("/").removesuffix(".git")
    return f"{found['host'].lower()}{_port(found)}/{path}" if path else ""


def _port(found: re.Match[str]) -> str:
    """The port, unless it is the usual one: another server may well answer there, with repositories of its own."""
    given = found.groupdict()
    scheme, port = str(given.get("scheme")).lower(), given.get("port")
    return "" if not port or int(port) == _USUAL_PORTS.get(scheme) else f":{int(port)}"


def _here(path: Path) -> str:
    return f"{platform.node()}:{path}"
