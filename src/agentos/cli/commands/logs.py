"""`agentos logs`"""

from __future__ import annotations

import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
import msgspec

from agentos.cli import shell_completion
from agentos.cli.options import json_option, repo_option, run_or_newest
from agentos.cli.output import say
from agentos.cli.render.text import escape_json, printable
from agentos.dag.plan.findings import nearest
from agentos.exceptions import NotFoundError
from agentos.machine.facts.fold import fold
from agentos.store.port import StorePort
from agentos.workflow.define.plans import decode_plan
from agentos.workflow.drive.logs import LogFollower, LogLine, is_selected, log_files, read_logs
from agentos.workflow.place.run_search import find_run, reading

OUTPUT = LogLine
"""One object for each line."""

LOOK_S = 0.1
DRIVER_S = 0.5
"""How often a follower looks for new lines, and whether anybody still drives the run."""


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
  agentos logs 01985c --json | jq -r 'select(.stream == "err") | .text'

Shell commands, and Python functions with `isolation: process`, are kept line by line, with secrets masked; of
other Python functions what they report with `ctx.progress`. A fan-out or a repeated task stands for all its
items and rounds.
""",
)
@run_or_newest
@click.argument("task", metavar="[TASK]", required=False, shell_complete=shell_completion.tasks)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is printed from now on, until the drive ends.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Only this attempt.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines.")
@click.option("-t", "--times", is_flag=True, help="Put the time before each line.")
@json_option
@repo_option
def command(
    run: str | None,
    task: str | None,
    follow: bool,
    attempt: int | None,
    tail: int | None,
    times: bool,
    as_json: bool,
    repo: Path | None,
) -> None:
    found = find_run(run, repo)
    workflow_id, database = found.record.workflow_id, found.place.kept_beside
    with reading(found.place) as store:
        task_ids = _tasks(store, workflow_id)
        _refuse_unknown(task, task_ids, workflow_id)
        several = task is None and len(task_ids) > 1
        show: Callable[[LogLine], str] = _as_json if as_json else _as_text(several=several, times=times)
        printed = 0
        if follow:
            follower = LogFollower(database, workflow_id)
            for lines in _follow_logs(follower, store, workflow_id, task_ids, task, attempt, tail):
                printed += _print(lines, show)
        else:
            files = [file for file in log_files(database, workflow_id, task_ids) if is_selected(file, task, attempt)]
            printed = _print(_last(read_logs(files), tail), show)
    if not printed and tail != 0:
        say(_nothing(workflow_id, task, attempt))


def _follow_logs(
    follower: LogFollower,
    store: StorePort,
    workflow_id: str,
    task_ids: list[str],
    task: str | None,
    attempt: int | None,
    tail: int | None,
) -> Iterator[Iterable[LogLine]]:
    def look() -> list[LogLine]:
        return follower.look(task_ids, task_id=task, attempt=attempt)

    def so_far() -> Iterator[LogLine]:
        while lines := look():
            yield from lines

    yield _last(so_far(), tail)
    look_at = 0.0
    while True:
        if time.monotonic() >= look_at:
            # Asked before the last look: what was printed is in the logs before the lease is let go.
            over = store.find_run(workflow_id).holder is None
            while lines := look():
                yield lines
            if over:
                yield follower.rest()
                return
            look_at = time.monotonic() + DRIVER_S
        time.sleep(LOOK_S)
        yield look()


def _last(lines: Iterator[LogLine], tail: int | None) -> Iterable[LogLine]:
    return lines if tail is None else deque(lines, maxlen=tail)


def _print(lines: Iterable[LogLine], show: Callable[[LogLine], str]) -> int:
    """Print the lines, and how many they were. All of them are out on return: somebody may be watching."""
    printed = 0
    for line in lines:
        sys.stdout.write(show(line) + "\n")
        printed += 1
    if printed:
        sys.stdout.flush()
    return printed


def _as_json(line: LogLine) -> str:
    return escape_json(msgspec.json.encode(line)).decode()


def _as_text(*, several: bool, times: bool) -> Callable[[LogLine], str]:
    def render_line(line: LogLine) -> str:
        again = f" ({line.attempt})" if line.attempt > 1 else ""
        label = f"{line.task_id}{again} | " if several else ""
        return printable(f"{line.at} {label}{line.text}" if times else f"{label}{line.text}")

    return render_line


def _tasks(store: StorePort, workflow_id: str) -> list[str]:
    record = store.find_run(workflow_id)
    planned = decode_plan(store.read_plan(record.workflow_id)).tasks if record.kind == "workflow" else ()
    begun = fold(record.workflow_id, store.read_events(record.workflow_id)).tasks
    return list(dict.fromkeys((*planned, *begun)))


def _refuse_unknown(task: str | None, known: list[str], workflow_id: str) -> None:
    if task is not None and task not in known:
        raise NotFoundError(
            f"run {workflow_id} has no task {task!r}{nearest(task, known)}",
            next_step=f"`agentos show {shlex.quote(workflow_id)}` lists its tasks.",
        )


def _nothing(workflow_id: str, task: str | None, attempt: int | None) -> str:
    who = "No task of this run printed anything" if task is None else f"Task {printable(task)} printed nothing"
    when = f" in attempt {attempt}" if attempt is not None else ""
    how = ["why", workflow_id, task] if task is not None else ["show", workflow_id]
    return (
        f"{who} that was kept{when}. How it ended: {printable(shlex.join(['agentos', *how]))}\n"
        "(Python functions print to the terminal of the process that runs them, unless they have "
        "`isolation: process`; ctx.progress is kept.)"
    )
