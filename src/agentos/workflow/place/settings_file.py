"""The settings file of a repository: `agentos.toml` at its root, or `[tool.agentos]` in its pyproject.toml.

It comes with the repository, so it is read with care: a real file inside the repository, of sane size, in UTF-8.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any, NamedTuple

from agentos.exceptions import WorkflowConfigurationError
from agentos.worktree.git import one_line

SETTINGS = "agentos.toml"
PYPROJECT = "pyproject.toml"
TABLE = "tool.agentos"

MAX_BYTES = 1 << 20
_CORRECT = "Correct that file."
_AWAY = "Move it out of the way."
_HEADER = re.compile(rb"""^\s*\[\s*["']?tool["']?\s*\.\s*["']?agentos""", re.MULTILINE)


class SettingsFile(NamedTuple):
    """What a repository says about us."""

    path: Path
    table: dict[str, Any]

    @property
    def shown(self) -> str:
        """The file for a message, with the table where it is not ours alone."""
        return f"[{TABLE}] in {one_line(self.path)}" if self.path.name == PYPROJECT else one_line(self.path)


def read_settings_file(root: Path) -> SettingsFile | None:
    """The settings file of `root`, if it has one. WorkflowConfigurationError where it cannot be trusted or read."""
    own, shared = root / SETTINGS, root / PYPROJECT
    table = _in_pyproject(shared)
    if not os.path.lexists(own):
        return None if table is None else SettingsFile(shared, _table(shared, table))
    if table is not None:
        raise WorkflowConfigurationError(
            f"both {one_line(own)} and [{TABLE}] in {one_line(shared)} hold settings",
            next_step="Keep one of them: move the settings into one file and delete the other's.",
        )
    return SettingsFile(own, _parse_toml(own))


def _in_pyproject(path: Path) -> object:
    """What stands there under `tool.agentos`, or None. The file is the project's: without us in it, its faults are not
    ours to tell."""
    contents = _contents(path, ours=False)
    if b"agentos" not in contents:
        return None
    try:
        tool = _parse_toml(path).get("tool")
    except WorkflowConfigurationError:
        if _HEADER.search(contents):
            raise
        return None
    return tool.get("agentos") if isinstance(tool, dict) else None


def _table(path: Path, table: object) -> dict[str, Any]:
    if isinstance(table, dict):
        return table
    raise WorkflowConfigurationError(
        f"{TABLE} in {one_line(path)} is not a table but {table!r}",
        next_step=f"Write [{TABLE}] above the settings.",
    )


def _parse_toml(path: Path) -> dict[str, Any]:
    import tomllib  # here, since most repositories have no such file and every process would pay for it

    try:
        return tomllib.loads(_contents(path, ours=True).decode())
    except (ValueError, RecursionError) as error:  # errors of TOML and of UTF-8 are ValueErrors
        raise WorkflowConfigurationError(f"{one_line(path)} cannot be read: {error}", next_step=_CORRECT) from error


def _contents(path: Path, *, ours: bool) -> bytes:
    """The bytes of the file; none where there is no file, or one of somebody else's that is of no use."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path) and ours:
            raise WorkflowConfigurationError(f"{one_line(path)} is a link to nothing", next_step=_AWAY) from None
        return b""
    except OSError as error:
        raise WorkflowConfigurationError(f"{one_line(path)} cannot be read: {error}", next_step=_CORRECT) from error
    if not ours and (not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES):
        return b""
    _check(path, found)
    try:
        return path.read_bytes()
    except OSError as error:
        raise WorkflowConfigurationError(f"{one_line(path)} cannot be read: {error}", next_step=_CORRECT) from error


def _check(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):  # reading a pipe would wait for ever
        raise WorkflowConfigurationError(f"{one_line(path)} is not a file", next_step=_AWAY)
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(path.parent)):
        raise WorkflowConfigurationError(
            f"{one_line(path)} is a link to a file outside the repository, {one_line(os.path.realpath(path))}",
            next_step="Put the settings themselves there.",
        )
    if found.st_size > MAX_BYTES:
        raise WorkflowConfigurationError(
            f"{one_line(path)} holds {found.st_size} bytes, more than settings ever need ({MAX_BYTES})",
            next_step=_AWAY,
        )
