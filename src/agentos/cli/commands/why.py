"""`agentos why`"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from agentos.cli import shell_completion
from agentos.cli.options import json_option, repo_option, run_argument
from agentos.cli.output import print_json
from agentos.client.views import AttemptView, Explanation, why
from agentos.render.text import duration, local, printable, printable_lines, short
from agentos.render.value_text import candidate_lines, traceback_lines

OUTPUT = Explanation


@click.command(
    "why",
    help="""\b
Why a task ran, was kept, was skipped, waits, failed, or has not run yet.

\b
Examples:
  agentos why nightly ship
  agentos why nightly 'each[3]' --json | jq .attempts

Tells what the last resume decided of the task and what it compared for that, how each attempt ended, what the task
needs, and what to type next. TASK is an id or the beginning of one.
""",
)
@run_argument
@click.argument("task", metavar="TASK", shell_complete=shell_completion.tasks)
@click.option("-v", "--verbose", is_flag=True, help="Show a traceback's frames in libraries, too.")
@json_option
@repo_option
def command(run: str, task: str, verbose: bool, as_json: bool, repo: Path | None) -> None:
    told = why(run, task, repo)
    if as_json:
        print_json(told)
        return
    for line in _lines(told, verbose=verbose):
        click.echo(printable(line))


def _lines(told: Explanation, *, verbose: bool) -> Iterator[str]:
    yield f"{printable(told.task_id)} of run {printable(told.workflow_id)}: {told.status}, layer {told.layer + 1}"
    yield f"  {short(printable(told.why), 400)}"
    if told.needs:
        yield "  needs " + printable(", ".join(f"{need} ({status})" for need, status in told.needs.items()))
    if told.gates:
        yield f"  gates {printable(', '.join(told.gates))}"
    for decision in told.decisions:
        sent = f", sent by {decision.sender}" if decision.sender is not None else ""
        at = f" on {local(decision.at)}" if decision.at is not None else ""
        reason = f": {decision.reason}" if decision.reason else ""
        text = f"{decision.gate_id}: {decision.choice or decision.answer} by {decision.author}{at}{reason}{sent}"
        yield f"    {short(printable(text), 300)}"
    if told.candidates:
        yield from ("", *(f"  {line}" for line in candidate_lines(told.candidates)))
    if told.resume is not None:
        who = "The drive" if told.resume.under_way else "The last resume"
        yield from ("", f"{who} ({local(told.resume.at)}) decided: {told.resume.verdict}")
        yield f"  because: {printable(told.resume.reason)}"
        yield f"  compared: {printable(told.resume.compared)}"
    if told.attempts:
        yield from ("", "Attempts")
        for attempt in told.attempts:
            yield from _attempt(attempt, verbose=verbose)
    if told.command:
        yield from ("", f"Next: {printable(told.command)}")


def _attempt(attempt: AttemptView, *, verbose: bool) -> Iterator[str]:
    ended: str = "interrupted" if attempt.end == "cut off" else attempt.end  # when it was interrupted is not known
    if attempt.ended_at is not None and attempt.end != "cut off":
        ended += f" after {duration((attempt.ended_at - attempt.started_at).total_seconds())}"
    yield f"  {attempt.attempt}  {local(attempt.started_at)}  {ended}"
    if attempt.error is not None:
        raised = list(traceback_lines(attempt.error, verbose=verbose))  # ends with the error itself
        for line in raised or printable_lines(f"{attempt.error.type}: {attempt.error.text}")[:10]:
            yield f"       {short(line, 160)}"
