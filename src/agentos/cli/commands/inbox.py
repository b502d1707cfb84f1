"""`agentos inbox`"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from agentos.cli.boundary import say_problems
from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, say
from agentos.client.answers import choice_argument
from agentos.client.waiting import InboxGate, inbox
from agentos.render.text import ago, printable, short
from agentos.render.value_text import check_lines, covers_lines, evidence_lines, given_lines

OUTPUT = list[InboxGate]


@click.command(
    "inbox",
    help="""\b
What waits for your answer, in every worktree known, newest first.

\b
Examples:
  agentos inbox
  agentos inbox --json | jq -r '.[0].approve'

Each gate is shown with the commands that answer it. They work from any directory.

\b
Exit codes:
  0  shown (also where nothing waits)
  6  a record is damaged or was written by a newer AgentOS; the others are shown
""",
)
@json_option
@repo_option
def command(as_json: bool, repo: Path | None) -> int | None:
    found = inbox(repo)
    code = say_problems(found.problems)
    if as_json:
        print_json(found.gates)
    elif not found.gates:
        say("Nothing waits for an answer.")
    for number, gate in enumerate(() if as_json else found.gates):
        if number:
            click.echo("")
        _print_for_people(gate, datetime.now(UTC))
    return code


def _print_for_people(gate: InboxGate, now: datetime) -> None:
    until = f", until {ago(gate.deadline, now)}" if gate.deadline else ""
    click.echo(short(printable(gate.question), 300))
    click.echo(f"  {printable(gate.name)}, asked {ago(gate.opened_at, now)}{until}, in {printable(gate.root)}")
    for line in given_lines(gate.inputs):
        click.echo(f"    {line}")
    for line in (*covers_lines(gate.covers, gate.again), *check_lines(gate.verified)):
        click.echo(f"    {line}")
    for line in evidence_lines(gate.evidence) if gate.evidence is not None else ():
        click.echo(f"    {line}")
    if gate.file:
        click.echo(f"    about the file {printable(gate.file)}")
    if gate.kind == "ask":
        for choice in gate.choices:
            click.echo(f"  {printable(gate.approve + choice_argument(gate.kind, choice))}")
    else:
        click.echo(f"  {printable(gate.approve)}")
    if gate.choices and gate.kind != "ask":
        click.echo(f"    or --choose {', --choose '.join(map(printable, gate.choices[1:]))}")
    click.echo(f"  {printable(gate.reject)} --reason TEXT")
