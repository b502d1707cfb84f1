"""`agentos show`"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from agentos.cli.options import json_option, repo_option, run_or_newest
from agentos.cli.output import print_json
from agentos.client.answers import choice_argument
from agentos.client.types import events as ev
from agentos.client.views import GateView, RunView, StoredRun, TaskView, money, next_command, read_run, run_view
from agentos.ids import short_id
from agentos.render.text import ago, count, duration, printable, printable_lines, short, short_middle
from agentos.render.value_text import (
    candidate_lines,
    check_lines,
    covers_lines,
    evidence_lines,
    given_lines,
    held_up_text,
    output_in_short,
    raised_lines,
    usage_text,
    verified_in_short,
    waiting_text,
)

OUTPUT = RunView

MOST_TASKS = 200
"""So many tasks of a layer are shown to people; programs get all."""
MOST_LINES = 8
"""So many lines of an error are; `agentos why` has more, and `agentos logs` what was printed."""


@click.command(
    "show",
    help="""\b
A run as it stands: tasks, gates, checkpoints, and what to type next.

\b
Examples:
  agentos show                  the run that is being driven here, or the newest one
  agentos show 0198c2
  agentos show nightly --json | jq '.tasks[] | select(.status == "failed")'

RUN is an id or the beginning of one; a run that is not of this worktree is looked for in every worktree known on this
machine. Nothing is written, and the workflow's file is not needed.
""",
)
@run_or_newest
@json_option
@repo_option
def command(run: str | None, as_json: bool, repo: Path | None) -> None:
    journal = read_run(run, repo, whole=as_json)
    view = run_view(journal, values=as_json)
    if as_json:
        print_json(view)
        return
    for line in _lines(view, journal, datetime.now(UTC)):
        click.echo(printable(line))  # whatever a journal says, an imported one included


def _lines(view: RunView, journal: StoredRun, now: datetime) -> Iterator[str]:
    yield f"{printable(view.workflow_id)}  {printable(view.name)}  {view.status}"
    yield f"  began {ago(view.created_at, now)}, last event {ago(view.updated_at, now)}"
    host = f" on {printable(view.host)}" if view.host not in ("", platform.node()) else ""
    yield f"  in {printable(view.root)}{host}"
    if view.own_worktree:
        yield f"  works in {printable(view.own_worktree)}"
    if view.driver:
        yield f"  driven by {printable(view.driver)}"
    if view.waiting is not None:
        yield f"  {waiting_text(view.waiting, now)}"
        if view.waiting.commit:
            yield f"  submitted from commit {view.waiting.commit[:12]}"
    if view.parent_id:
        yield f"  forked from {printable(view.parent_id)}"
    if view.labels:
        yield f"  labels {', '.join(map(printable, view.labels))}"
    if view.selection:
        yield f"  selected {printable(view.selection)}"
    if view.usage.calls:
        paid = usage_text(view.usage, at_least=view.usage_at_least)
        yield f"  models were paid {paid}, {count(view.usage.calls, 'call')}"
    yield from _layers(view, journal, now)
    if view.gates:
        yield from ("", "Gates")
        for gate in view.gates:
            yield from _gate(gate, now)
    if journal.checkpoints:
        yield from ("", "Checkpoints")
        for cut in journal.checkpoints:
            left = "  (rolled back)" if cut.abandoned else ""
            files = f"  files {cut.snapshot[:12]}" if cut.snapshot else ""
            yield f"  {cut.id}  layer {cut.layer + 1}  {ago(cut.timestamp, now)}{files}{left}"
    if following := next_command(view, journal.checkpoints):
        yield from ("", f"Next: {printable(following)}")


def _layers(view: RunView, journal: StoredRun, now: datetime) -> Iterator[str]:
    by_layer: dict[int, list[TaskView]] = {}
    for task in view.tasks:
        by_layer.setdefault(task.layer, []).append(task)
    width = min(max((len(task.id) for task in view.tasks), default=0), 40)
    for layer, tasks in by_layer.items():
        yield from ("", f"Layer {layer + 1}")
        for task in tasks[:MOST_TASKS]:
            yield from _task(view, task, output_in_short(journal, task, 70), width, now)
        if len(tasks) > MOST_TASKS:
            run = shlex.quote(short_id(view.workflow_id))
            yield f"  … and {len(tasks) - MOST_TASKS} more: agentos show {run} --json"


def _task(view: RunView, task: TaskView, output: str, width: int, now: datetime) -> Iterator[str]:
    status = "interrupted" if view.is_cut_off(task) else task.status
    notes = [status.ljust(11)]
    if task.attempts > 1:
        notes.append(f"attempt {task.attempts}")
    if task.execution_time_ms is not None and task.attempts:
        notes.append(duration(task.execution_time_ms / 1000))
    elif status == "running" and task.started_at:
        notes.append(f"for {duration((now - task.started_at).total_seconds())}")
    if held_up := held_up_text(task, now):
        notes.append(held_up)
    if isinstance(task.usage, ev.Usage):
        paid = money(task.usage.cost_usd) if task.usage.cost_usd else f"{task.usage.tokens:,} tokens"
        notes.append(f"at least {paid}" if task.usage_at_least is True else paid)
    if isinstance(task.verified, ev.Verification):
        notes.append(verified_in_short(task.verified))
    if output:
        notes.append(output)
    yield f"  {short_middle(printable(task.id), 40).ljust(width)}  {'  '.join(notes)}".rstrip()
    if isinstance(task.candidates, list):
        yield from (f"  {' ' * width}  {line}" for line in candidate_lines(task.candidates))
    if isinstance(task.error, msgspec.Struct):
        lines = [short(line, 160) for line in printable_lines(f"{task.error.type}: {task.error.text}")]
        if len(lines) > MOST_LINES:
            lines = [lines[0], "…", *lines[-MOST_LINES + 2 :]]
        lines += [short(line, 160) for line in raised_lines(task.error, MOST_LINES)]
        yield from (f"  {' ' * width}  {line}" for line in lines)


def _gate(gate: GateView, now: datetime) -> Iterator[str]:
    question = short(printable(gate.question), 200)
    if gate.open:
        until = f", until {ago(gate.deadline, now)}" if gate.deadline else ""
        yield f"  {printable(gate.id)}  open, asked {ago(gate.opened_at, now)}{until}: {question}"
        for line in given_lines(gate.inputs):
            yield f"        {line}"
        for line in (*covers_lines(gate.covers, gate.again), *check_lines(gate.verified)):
            yield f"        {line}"
        for line in evidence_lines(gate.evidence) if gate.evidence is not None else ():
            yield f"        {line}"
        if gate.file:
            yield f"        about the file {printable(gate.file)}"
        # With choices, the command names the first of them: one line for each.
        arguments = [choice_argument(gate.kind, choice) for choice in gate.choices]
        bare = gate.command.removesuffix(arguments[0] if arguments else "")
        for argument in arguments or [""]:
            yield f"      {printable(bare + argument)}"
    elif gate.held:
        yield f"  {printable(gate.id)}  not asked while what it is about runs again: {question}"
    elif gate.answer:
        reason = f": {short(printable(gate.reason), 120)}" if gate.reason else ""
        answer = printable(gate.choice or gate.answer)
        yield f"  {printable(gate.id)}  {answer} by {printable(gate.author or '')}{reason}"
        if gate.sender is not None:
            yield f"        sent by {short(printable(str(gate.sender)), 200)}"
    else:
        yield f"  {printable(gate.id)}  needs no answer any more: {question}"
