"""`agentos inbox`"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import click
import msgspec

from agentos.cli.boundary import exit_code
from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, say
from agentos.cli.places import survey
from agentos.cli.render.report import approval_arguments
from agentos.cli.render.text import printable, printable_lines, short
from agentos.cli.render.times import ago
from agentos.cli.render.value_text import covers_lines, given_lines
from agentos.exceptions import AgentosError, NotFoundError
from agentos.machine.events import DecisionRequired
from agentos.machine.facts.fold import Facts, fold
from agentos.store.port import UNDER_WAY, RunRecord, StorePort
from agentos.workflow.place.place import Place, is_home, scope_now
from agentos.workflow.place.run_search import own_store, places, reading


class InboxGate(msgspec.Struct, frozen=True, kw_only=True):
    """A gate that waits for an answer."""

    workflow_id: str
    name: str
    """Of the workflow."""
    root: str
    """The worktree the run belongs to."""
    gate_id: str
    kind: str
    task_id: str | None
    question: str
    inputs: str
    """What the task would be given, as JSON, cut short: its inputs; a command as `run`, with what it refers to."""
    covers: tuple[str, ...] | None
    """Files that the command names: an approval is about these as they were when it asked. None: nobody looked."""
    again: str
    """Why it asks again, where files that an earlier approval was about have changed."""
    by: str
    """human or agent: who may answer."""
    opened_at: datetime
    deadline: datetime | None
    status: str
    """Of the run: other tasks may still be going."""
    choices: tuple[str, ...]
    """An approval names one of these with --choose, where there are some."""
    file: str
    """A file to look at before answering, relative to the root; empty where there is none."""
    approve: str
    """What to type to say yes, or to take the first of the choices; works from anywhere."""
    reject: str
    """What to type to say no."""


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
    trouble: list[int] = []
    asked = places(everywhere=repo is None, repo=repo)
    found, code = survey(asked, lambda place: _open_gates(place, trouble, len(asked) > 1))
    gates = sorted((gate for _, gate in found), key=lambda gate: gate.opened_at, reverse=True)
    if as_json:
        print_json(gates)
    elif not gates:
        say("Nothing waits for an answer.")
    else:
        for place, gate in enumerate(gates):
            if place:
                click.echo("")
            _print_for_people(gate, datetime.now(UTC))
    return max([code, *trouble])


def _open_gates(place: Place, trouble: list[int], one_of_several: bool) -> list[InboxGate]:
    remembered = cache(scope_now)

    def where(record: RunRecord) -> str:
        """Which run is meant, where another worktree may keep one of the same id."""
        if place.is_shared:
            root = record.root if is_home(record, remembered) else ""
        elif record.root not in ("", str(place.root)):  # who names another root says that the run has moved there
            root = ""
        else:  # whether --repo leads to this very database
            root = str(place.root) if one_of_several and Path(place.database).is_relative_to(place.root) else ""
        return f" --repo {shlex.quote(root)}" if root else ""

    try:
        with reading(place) as store:
            runs = store.list_runs(statuses=UNDER_WAY)
            return [
                _gate(place, record, facts, facts.gates[gate_id].opened, where(record))
                for record in runs
                for facts in _facts(place, store, record, trouble)
                for gate_id in facts.open_gates
            ]
    except NotFoundError:  # nothing was ever kept here
        return []


def _facts(place: Place, store: StorePort, record: RunRecord, trouble: list[int]) -> Iterator[Facts]:
    """What is known of a run that may ask something."""
    if record.kind == "states":
        return
    try:
        with own_store(place, store, record) as own:
            events = own.read_events(record.workflow_id)
        yield fold(record.workflow_id, events)
    except AgentosError as error:  # one damaged run must not hide what the others ask
        about = f"run {printable(record.workflow_id)} in {printable(record.root)}:"
        say("\n".join([about, *printable_lines(str(error))]))
        trouble.append(exit_code(error))


def _gate(place: Place, record: RunRecord, facts: Facts, opened: DecisionRequired, where: str) -> InboxGate:
    answer = f"{shlex.quote(record.workflow_id)} {shlex.quote(opened.gate_id)}{where}"
    return InboxGate(
        workflow_id=record.workflow_id,
        name=record.name,
        root=record.root or str(place.root),
        gate_id=opened.gate_id,
        kind=opened.kind,
        task_id=opened.task_id,
        question=opened.question,
        inputs=opened.inputs,
        covers=None if opened.covers is None else tuple(opened.covers),
        again=opened.again,
        by=opened.by,
        opened_at=opened.at,
        deadline=opened.deadline,
        status=record.status,
        choices=opened.choices,
        file=opened.file,
        approve=f"agentos approve {answer}{approval_arguments(facts, opened)[0]}",
        reject=f"agentos reject {answer}",
    )


def _print_for_people(gate: InboxGate, now: datetime) -> None:
    until = f", until {ago(gate.deadline, now)}" if gate.deadline else ""
    click.echo(short(printable(gate.question), 300))
    click.echo(f"  {printable(gate.name)}, asked {ago(gate.opened_at, now)}{until}, in {printable(gate.root)}")
    for line in given_lines(gate.inputs):
        click.echo(f"    {line}")
    for line in covers_lines(gate.covers, gate.again):
        click.echo(f"    {line}")
    if gate.file:
        click.echo(f"    about the file {printable(gate.file)}")
    click.echo(f"  {printable(gate.approve)}")
    if gate.choices:
        click.echo(f"    or --choose {', --choose '.join(map(printable, gate.choices[1:]))}")
    click.echo(f"  {printable(gate.reject)} --reason TEXT")
