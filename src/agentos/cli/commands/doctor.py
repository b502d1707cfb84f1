"""`agentos doctor`"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from agentos.cli.boundary import Exit
from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, print_table, say
from agentos.client import upkeep
from agentos.client.upkeep import Checkup
from agentos.render.text import count, printable

OUTPUT = Checkup

SIZES = ("space_warning", "log_limit")


@click.command(
    "doctor",
    help="""\b
Check this place, its settings and its runs, and say how to mend what is wrong.

\b
Examples:
  agentos doctor
  agentos doctor --deep
  agentos doctor --set-aside
  agentos doctor --tidy      also remove temporary folders that killed processes left

Shows versions, which agents are installed, whether tasks can have a sandbox, where state lives and why, and each
setting with where it came from. Looks for wrong permissions, a full disk, damage, interrupted runs, stale leases, and
what dead processes left behind. By itself it changes nothing; it runs no hooks.

\b
Exit codes:
  0   all is sound; there may be notes
  1   something is wrong
  6   the database, or a run in it, is damaged or of a newer AgentOS
  75  --set-aside: the database is in use
""",
)
@click.option("--deep", is_flag=True, help="Read every record of every run, and check its digests.")
@click.option("--set-aside", "aside", is_flag=True, help="Move a damaged database to a dated name beside it.")
@click.option("--tidy", is_flag=True, help="Remove temporary folders of attempts whose driver is dead.")
@json_option
@repo_option
def command(deep: bool, aside: bool, tidy: bool, as_json: bool, repo: Path | None) -> int:
    if aside:
        moved = upkeep.set_aside(repo)
        if as_json:
            print_json(msgspec.structs.replace(upkeep.doctor(repo, deep=deep), moved=moved))
        for before, after in moved.items():
            say(f"{printable(before)} is now {printable(after)}")
        say("Nothing was deleted. The next run makes a new database.")
        return Exit.COMPLETE
    removed = upkeep.tidy() if tidy else ()
    checkup = msgspec.structs.replace(upkeep.doctor(repo, deep=deep), removed=removed)
    if as_json:
        print_json(checkup)
    else:
        _show(checkup, deep=deep)
        for folder in removed:
            say(f"Removed {printable(folder)}")
    match checkup.severity:
        case "damage":
            return Exit.INTEGRITY
        case "wrong":
            return Exit.FAILED
    return Exit.COMPLETE


def _show(checkup: Checkup, *, deep: bool) -> None:
    click.echo(f"agentos   {checkup.agentos}")
    click.echo(f"python    {checkup.python}")
    click.echo(f"sqlite    {checkup.sqlite}")
    click.echo(f"git       {checkup.git or 'none'}")
    found = (agent for agent in checkup.agents if agent.path)
    agents = ", ".join(f"{agent.agent} {printable(agent.version) or 'of unknown version'}" for agent in found)
    click.echo(f"agents    {agents or 'none'}")
    sandbox = checkup.sandbox
    can = f"bubblewrap {sandbox.version}" if not sandbox.problem else f"none: {sandbox.problem}. {sandbox.remedy}"
    click.echo(f"sandbox   {printable(can)}")
    if checkup.database:
        size = (
            f"{checkup.database_bytes:,} bytes, {count(checkup.runs, 'run')}"
            if checkup.database_bytes
            else "not made yet"
        )
        where = " on this host" if upkeep.find_backend(checkup.database).is_shared else ""
        free = f"{checkup.free_disk // 1_000_000:,} MB free{where}"
        click.echo(f"database  {printable(checkup.database)} ({size}; {free})")
        click.echo(f"          because {checkup.because}")
    if checkup.settings:
        click.echo("")
        rows = [(setting.name, _value(setting.name, setting.value), setting.source) for setting in checkup.settings]
        print_table(("SETTING", "VALUE", "FROM"), rows, empty="")
    if checkup.trust is not None:
        since = f"accepted {checkup.trust.since}" if checkup.trust.since else "not accepted: agentos trust"
        click.echo(f"\ntrust     {since}")
        for line in checkup.trust.settings:
            click.echo(f"          {printable(line)}")
    for severity, title in (("damage", "Damaged"), ("wrong", "Wrong"), ("note", "Good to know")):
        findings = [finding for finding in checkup.findings if finding.severity == severity]
        if findings:
            click.echo(f"\n{title}:")
        for finding in findings:
            first, *more = finding.what.splitlines() or [""]
            lines = (f"  - {first}", *(f"    {line}" for line in more))
            for line in (*lines, *(f"      {line}" for line in finding.mend.splitlines())):
                click.echo(printable(line))
    if checkup.sound:
        say("All is sound." if deep else "All is sound, as far as a quick look tells; --deep reads every record.")


def _value(name: str, value: Any) -> str:
    """A value as one would write it into the settings file."""
    if value is None:
        return "-"
    if name in SIZES and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value >> 20} MiB"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple | list):
        return " ".join(printable(str(word)) for word in value) or "-"
    if isinstance(value, msgspec.Struct | Mapping):
        return printable(_table(value)) or "-"
    return printable(str(value))


def _table(value: Any) -> str:
    """A table of the settings file in one line, without what has its default."""
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_table(one)}" for name, one in value.items())
    default = msgspec.structs.fields(value)
    given = {one.name: getattr(value, one.name) for one in default if getattr(value, one.name) != one.default}
    return ", ".join(f"{name} {_value(name, one)}" for name, one in given.items())
