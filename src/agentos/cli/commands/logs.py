"""`agentos logs`"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import click
import msgspec

from agentos.cli import shell_completion
from agentos.cli.options import json_option, repo_option, run_or_newest
from agentos.cli.output import say
from agentos.client.task_logs import LogLine, RunLogs
from agentos.render.text import escape_json, local, printable

OUTPUT = LogLine
"""One object for each line."""


@click.command(
    "logs",
    help="""\b
What tasks printed, also while they print it.

\b
Examples:
  agentos logs                              of the run that is being driven here, or the newest one
  agentos logs 01985c                       everything the run's tasks printed, in the order of time
  agentos logs 01985c build --tail 20       the end of what one task printed
  agentos logs 01985c -f                    go on until the run stops
  agentos logs 01985c fix --raw             an agent's events, as it printed them
  agentos logs 01985c --json | jq -r 'select(.stream == "err") | .text'

Shell commands, and Python functions with `isolation: process`, are kept line by line, with secrets masked; of
other Python functions what they report with `ctx.progress`; of agents what they say, the tools they use and what it
cost, or their events as they printed them with --raw. A fan-out or a repeated task stands for all its
items and rounds. Of a task that was tried more than once, each attempt begins with a line that dates it.
""",
)
@run_or_newest
@click.argument("task", metavar="[TASK]", required=False, shell_complete=shell_completion.tasks)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is printed from now on, until the drive ends.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Only this attempt.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines.")
@click.option("-t", "--times", is_flag=True, help="Put the time before each line.")
@click.option("--raw", is_flag=True, help="Of agents: the lines as they printed them.")
@json_option
@repo_option
def command(
    run: str | None,
    task: str | None,
    follow: bool,
    attempt: int | None,
    tail: int | None,
    times: bool,
    raw: bool,
    as_json: bool,
    repo: Path | None,
) -> None:
    logs = RunLogs(run, task, attempt=attempt, raw=raw, repo=repo)
    several = task is None and len(logs.task_ids) > 1

    shown: dict[str, int] = {}
    """The attempt whose lines were shown last, for each task."""

    def show(line: LogLine) -> str:
        if as_json:
            return escape_json(msgspec.json.encode(line)).decode()
        before, shown[line.task_id] = shown.get(line.task_id), line.attempt
        tries = max(line.attempt, logs.attempts.get(line.task_id, 0))
        heading = f"{_heading(line)}\n" if attempt is None and tries > 1 and before != line.attempt else ""
        again = f" ({line.attempt})" if line.attempt > 1 else ""
        label = f"{line.task_id}{again} | " if several else ""
        return heading + printable(f"{line.at} {label}{line.text}" if times else f"{label}{line.text}")

    def print_lines(lines: Iterable[LogLine]) -> int:
        """Print the lines, and how many they were. All of them are out on return: somebody may be watching."""
        printed = 0
        for line in lines:
            sys.stdout.write(show(line) + "\n")
            printed += 1
        if printed:
            sys.stdout.flush()
        return printed

    if follow:
        import asyncio  # who only reads back needs no event loop

        async def follow_lines() -> int:
            return sum([print_lines(lines) async for lines in logs.follow(tail)])

        printed = asyncio.run(follow_lines())
    else:
        printed = print_lines(logs.read(tail))
    if not printed and tail != 0:
        say(_nothing(logs.workflow_id, task, attempt))


def _heading(line: LogLine) -> str:
    """Stands before the first line of an attempt, where there is more than one."""
    try:
        at = local(datetime.fromisoformat(line.at))
    except ValueError:  # a damaged log
        at = line.at or "at an unknown time"
    return printable(f"--- {line.task_id}, attempt {line.attempt}, {at} ---")


def _nothing(workflow_id: str, task: str | None, attempt: int | None) -> str:
    who = "No task of this run printed anything" if task is None else f"Task {printable(task)} printed nothing"
    when = f" in attempt {attempt}" if attempt is not None else ""
    how = ["why", workflow_id, task] if task is not None else ["show", workflow_id]
    return (
        f"{who} that was kept{when}. How it ended: {printable(shlex.join(['agentos', *how]))}\n"
        "(Python functions print to the terminal of the process that runs them, unless they have "
        "`isolation: process`; ctx.progress is kept.)"
    )
