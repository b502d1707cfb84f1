"""What `agentos worker install` does: a unit planned, written, and systemd told of it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import msgspec

from agentos.cli import systemd_unit
from agentos.cli.output import say
from agentos.client import upkeep
from agentos.exceptions import NotFoundError
from agentos.render.text import printable


class InstalledUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A systemd user unit, as `worker install --json` prints it."""

    path: str
    unit: str
    """Its text; with --remove, empty."""
    done: bool
    """Whether it was written, or removed. False: nothing was changed."""
    told: bool
    """Whether systemd was told. False: `commands` are left to type where it is."""
    commands: list[list[str]]
    needs: list[str]
    """Variables that `environment_file` still has to set."""
    environment_file: str


def plan_installation(name: str, argv: list[str], names: tuple[str, ...]) -> InstalledUnit:
    """The unit of this name that runs `agentos worker` with these arguments. Changes nothing."""
    path = systemd_unit.unit_path(name)
    systemd_unit.refuse_foreign(path)
    variables = upkeep.settings_variables()
    environment = {name: value for name, value in variables.items() if value is not None}
    if search := os.environ.get("PATH"):
        environment["PATH"] = search
    by_name = sorted({*names, *(name for name, value in variables.items() if value is None)})
    file = systemd_unit.config_folder() / "agentos" / "worker.env"
    text = systemd_unit.unit_text(
        [sys.executable, "-P", "-m", "agentos", "worker", *argv],
        environment=environment,
        environment_file=file,
        needed=bool(by_name),
    )
    unit = path.name
    start = ["restart"] if path.exists() else ["start"]
    verbs = [["daemon-reload"], ["enable", unit], [*start, unit]]
    return InstalledUnit(
        path=str(path),
        unit=text,
        done=False,
        told=False,
        commands=[["systemctl", "--user", *verb] for verb in verbs],
        needs=[name for name in by_name if name not in systemd_unit.names_in(file)],
        environment_file=str(file),
    )


def plan_removal(name: str) -> InstalledUnit:
    """How the unit of this name goes. Changes nothing."""
    path = systemd_unit.unit_path(name)
    systemd_unit.refuse_foreign(path)
    if not path.exists():
        raise NotFoundError(f"there is no unit at {path}", next_step="Name another one with --name.")
    stop = ["systemctl", "--user", "disable", "--now", path.name]
    return InstalledUnit(
        path=str(path),
        unit="",
        done=False,
        told=False,
        commands=[stop, ["systemctl", "--user", "daemon-reload"]],
        needs=[],
        environment_file="",
    )


def carry_out(planned: InstalledUnit) -> InstalledUnit:
    """Do what was planned. WorkflowConfigurationError where systemd refuses it; then the unit is there all the same."""
    remove = not planned.unit
    path, there = Path(planned.path), systemd_unit.has_systemd()
    stop, rest = (planned.commands[:1], planned.commands[1:]) if remove else ([], planned.commands)
    if there:
        systemd_unit.tell_systemd(stop)
    if remove:
        path.unlink()
    else:
        systemd_unit.write_unit(path, planned.unit)
    # Without its variables it would only fail to start.
    told = there and not planned.needs
    if told:
        systemd_unit.tell_systemd(rest)
    return msgspec.structs.replace(planned, done=True, told=told)


def say_done(done: InstalledUnit) -> None:
    """Tell the person what was done, and what is left to type."""
    remove = not done.unit
    say(f"{'Removed' if remove else 'Wrote'} {printable(done.path)}.")
    if done.needs:
        file = done.environment_file
        say(f"It needs {', '.join(done.needs)}. Write NAME=value, a line for each:")
        say(f"  umask 077; mkdir -p {shlex.quote(os.path.dirname(file))}; ${{EDITOR:-vi}} {shlex.quote(file)}")
    if not done.told:
        typed = "\n".join(f"  {shlex.join(argv)}" for argv in done.commands)
        say(f"{'Then' if done.needs else 'There is no systemd for this user here. Where there is'}, type:\n{typed}")
    elif not remove:
        say(f"It works now: systemctl --user status {Path(done.path).name}")
