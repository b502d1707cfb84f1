"""A systemd user unit that keeps a program going: its text, its place, and whether systemd takes it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentos.exceptions import RunRefusedError, WorkflowConfigurationError

MARK = "# Written by `agentos worker install`; `agentos worker install --remove` takes it away."
STOP_S = 90
"""Draining takes 5 seconds; a full disk or a server that is away may keep the end of it waiting for longer."""
RESTART_S = 30
_ASK_S = 60.0
_UNSAFE_NAME = re.compile(r"""["'\\\x00-\x1f\x7f]""")
"""What systemd allows in no program's path."""
_UNIT = """\
{mark}
[Unit]
Description=AgentOS worker

[Service]
Type=exec
ExecStart=:{command}
{environment}Restart=on-failure
RestartSec={restart_s}
# Wrong usage, and a database that is damaged or of a newer version, do not pass by themselves.
RestartPreventExitStatus=2 6
# SIGTERM drains: tasks get 5 seconds, then their runs are left in order. Tasks themselves get no signal from systemd.
KillMode=mixed
TimeoutStopSec={stop_s}
# A task that the kernel kills for its memory has failed; the worker goes on.
OOMPolicy=continue
# Prompts and secrets are in memory. More would keep tasks from what they may do at a terminal.
LimitCORE=0

[Install]
WantedBy=default.target
"""


def unit_text(argv: Sequence[str], *, environment: Mapping[str, str], environment_file: Path, needed: bool) -> str:
    """The unit that runs this very command. A file of variables that is `needed` must be there for it to start."""
    words = argv if not _UNSAFE_NAME.search(argv[0]) else ("/bin/sh", "-c", 'exec "$0" "$@"', *argv)
    lines = [f"Environment={_quote(f'{name}={value}')}\n" for name, value in environment.items()]
    lines.append(f"EnvironmentFile={'' if needed else '-'}{_raw_path(environment_file)}\n")
    return _UNIT.format(
        mark=MARK,
        command=" ".join(map(_quote, words)),
        environment="".join(lines),
        restart_s=RESTART_S,
        stop_s=STOP_S,
    )


def _quote(word: str) -> str:
    """One word of a unit's line. `%` would begin a specifier; `$` means nothing, as the line begins with a colon."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{"".join(one if one.isprintable() else _escape(one) for one in escaped)}"'


def _escape(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode())


def _raw_path(path: Path) -> str:
    """A path that stands for itself to the end of the line."""
    text = str(path)
    if not text.isprintable() or text != text.strip() or text.endswith("\\"):
        raise WorkflowConfigurationError(
            f"systemd cannot be told of {text!r}", next_step="Set XDG_CONFIG_HOME to a folder with a plain name."
        )
    return text.replace("%", "%%")


def config_folder() -> Path:
    """$XDG_CONFIG_HOME, or what stands for it."""
    asked = os.environ.get("XDG_CONFIG_HOME", "").strip()
    return Path(asked if os.path.isabs(asked) else os.path.expanduser("~/.config"))


def unit_path(name: str) -> Path:
    return config_folder() / "systemd" / "user" / f"{name}.service"


def refuse_foreign(path: Path) -> None:
    """RunRefusedError where a unit of this name was not written by us, or is a link."""
    try:
        ours = not path.is_symlink() and path.read_text(encoding="utf-8", errors="replace").startswith(MARK)
    except FileNotFoundError:
        return
    if not ours:
        raise RunRefusedError(
            f"{path} was not written by AgentOS, and is left as it is", next_step="Choose another name with --name."
        )


def write_unit(path: Path, text: str) -> None:
    """Durable or not at all: systemd must never read half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def has_systemd() -> bool:
    """Whether the user's service manager is there to be told."""
    if shutil.which("systemctl") is None:
        return False
    try:
        asked = ["systemctl", "--user", "show-environment"]
        return subprocess.run(asked, capture_output=True, check=False, timeout=_ASK_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def tell_systemd(commands: Sequence[Sequence[str]]) -> None:
    """Run each. WorkflowConfigurationError with what the first that fails says."""
    for argv in commands:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, timeout=_ASK_S)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise WorkflowConfigurationError(
                f"`{' '.join(argv)}` failed: {said or f'exit code {done.returncode}'}",
                next_step=f"See `systemctl --user status {argv[-1]}` and `journalctl --user --unit {argv[-1]}`.",
            )


def names_in(file: Path) -> set[str]:
    """The variables that a file of them sets; none where it is not there."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    return set(re.findall(r"^\s*([A-Za-z_][A-Za-z0-9_]*)=", text, re.MULTILINE))
