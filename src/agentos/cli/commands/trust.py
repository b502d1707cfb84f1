"""`agentos trust`"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, say
from agentos.client.places import find_root
from agentos.client.upkeep import (
    Reaching,
    Trusted,
    find_reaching,
    list_trusted,
    revoke_trust,
    trust_settings,
    trusted_since,
)
from agentos.render.text import printable


class TrustRow(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a repository that need trust, as `trust --json` prints them."""

    root: str
    """The repository or worktree in which they were shown."""
    settings: tuple[str, ...]
    """Each as `name = value`, passwords left out."""
    trusted: bool
    """Whether you accepted exactly these."""
    since: str
    """When you did; empty where you did not."""


OUTPUT = list[TrustRow]


@click.command(
    "trust",
    help="""\b
Accept what this repository's settings connect to and run.

\b
Examples:
  agentos trust              show it, and ask
  agentos trust --yes        accept it, as in CI
  agentos trust --list       whatever you have accepted, anywhere
  agentos trust --revoke     take it back for this repository

agentos.toml comes with a clone, and may name a PostgreSQL server, hooks (on_wait, on_end) and where models are asked
with which key ([llm]). None of these is used before you accept it: a command that needs one refuses and shows it, and
no other database is used in its place. What you accept holds for this repository in this place, its worktrees included,
and for this content: a change of one of these settings, or of a file in the repository that a command among them
names, is asked about again. What your own variables say (AGENTOS_WORKFLOW_DB, …) needs no trust.

At a terminal it asks; elsewhere it needs --yes. Inside a task it is refused.

\b
Exit codes:
  0  accepted, or nothing here needs it
  1  the settings cannot be read, or your trust cannot be stored
  2  not accepted, or refused inside a task
""",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--list", "lists", is_flag=True, help="Show what you have accepted, in every repository.")
@click.option("--revoke", is_flag=True, help="Take back what you have accepted for this repository.")
@json_option
@repo_option
def command(yes: bool, lists: bool, revoke: bool, as_json: bool, repo: Path | None) -> int:
    if lists + revoke + yes > 1:
        raise click.UsageError("--list, --revoke and --yes exclude each other.")
    if lists:
        return _show_all(as_json)
    if revoke:
        gone = revoke_trust(find_root(repo))
        if as_json:
            print_json([msgspec.structs.replace(_row(one), trusted=False) for one in gone])
        say("Taken back: it is asked again." if gone else "Nothing was accepted for this repository.")
        return 0
    reaching = find_reaching(find_root(repo))
    if reaching is None:
        if as_json:
            print_json([])
        say("Nothing in the settings here needs your trust.")
        return 0
    since = trusted_since(reaching)
    accepted = since is not None or _accepts(reaching, yes=yes, quiet=as_json)
    if accepted and since is None:
        since = trust_settings(reaching).at
    if as_json:
        root, lines = str(reaching.root), tuple(reaching.lines())
        print_json([TrustRow(root=root, settings=lines, trusted=accepted, since=since or "")])
    elif since is not None:
        say(f"Trusted since {since}. It is asked again when these settings change; --revoke takes it back.")
    if not accepted:
        say("Not trusted: nothing was changed.")
    return 0 if accepted else 2


def _accepts(reaching: Reaching, *, yes: bool, quiet: bool) -> bool:
    """Show the settings, and ask whether they are meant."""
    if not quiet:
        click.echo(f"{printable(reaching.file)} says:")
        for line in reaching.lines():
            click.echo(f"  {printable(line)}")
    if yes:
        return True
    if not sys.stdin.isatty():
        say("There is no terminal to ask at: say --yes.")
        return False
    return click.confirm("AgentOS would connect to these servers and run these commands as you. Trust this?", err=True)


def _show_all(as_json: bool) -> int:
    found = list_trusted()
    if as_json:
        print_json([_row(one) for one in found])
        return 0
    for one in found:
        click.echo(f"{printable(one.root)}, since {printable(one.at)}")
        for line in one.settings:
            click.echo(f"  {printable(line)}")
    if not found:
        say("You have accepted no settings of any repository.")
    return 0


def _row(record: Trusted) -> TrustRow:
    return TrustRow(root=record.root, settings=record.settings, trusted=True, since=record.at)
