"""What the settings say about tasks with a `sandbox`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

_Path = Annotated[str, Meta(pattern=r"^(/|~/)[^\0]*\Z")]
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")]


class SandboxPaths(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a task in a sandbox gets beside the system, its worktree and its temporary folder."""

    read: tuple[_Path, ...] = ()
    """Files and folders that it may read; `~/` is the user's home. One that does not exist is left out."""
    write: tuple[_Path, ...] = ()
    """Those that it may write as well."""
    env: tuple[_Name, ...] = ()
    """Names of inherited variables that it gets."""


class SandboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the sandboxes of a drive are told."""

    paths: SandboxPaths = SandboxPaths()
    hidden: tuple[str, ...] = ()
    """Folders that hold state of AgentOS, wherever they are."""
    untrusted: str = ""
    """Why `paths` do not count: the user has not accepted what came with the repository."""


NO_SANDBOX_SETTINGS = SandboxSettings()
