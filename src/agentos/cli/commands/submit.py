"""`agentos submit`"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from agentos.cli import shell_completion
from agentos.cli.boundary import Exit
from agentos.cli.options import json_option, label_option, repo_option
from agentos.cli.output import print_json, say
from agentos.client.definitions import find_workflow, parse_params, with_types
from agentos.client.places import find_run
from agentos.client.queue.submission import Waiting, submit_in
from agentos.client.runs import resolve_drive_options
from agentos.client.views import waiting_view
from agentos.render.text import printable
from agentos.render.value_text import waiting_text

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")
_UNITS = (86_400, 3_600, 60, 1)


class SubmittedRow(msgspec.Struct, frozen=True, kw_only=True):
    """What `submit --json` prints."""

    workflow_id: str
    name: str
    """Of the workflow."""
    status: str
    """`pending` until a worker takes it."""
    existed: bool
    """It was on record before, with the same definition and parameters: nothing was changed."""
    queue: str
    """Empty: any worker without --queue takes it."""
    priority: int
    ready_at: datetime | None
    """No worker takes it before; null once it has begun."""


OUTPUT = SubmittedRow


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _DURATION.fullmatch(str(value)) if value else None
        if found is None or not any(found.groups()):
            self.fail(f"{value!r} is no duration: write 90s, 30m, 2h, 1d or 1h30m.", param, ctx)
        return float(sum(int(part or 0) * unit for part, unit in zip(found.groups(), _UNITS, strict=True)))


class _Time(click.ParamType[datetime]):
    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return datetime.fromisoformat(str(value)).astimezone()  # without a zone: that of this host
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time: write 2030-01-31T06:00, or with a zone 2030-01-31T06:00Z.", param, ctx)


@click.command(
    "submit",
    help="""\b
Write a run down for a worker to take.

\b
Examples:
  agentos submit flow.yaml
  agentos submit flow.yaml --id nightly --param target=src --priority 5
  agentos submit train.py --queue gpu         for `agentos worker --queue gpu` alone
  agentos submit report.yaml --in 2h          or --at 2030-01-31T06:00
  agentos submit flow.yaml --wait             and wait for its end

It is durable on return, and pending: `agentos worker` takes runs by priority, then age. Nothing else drives it, unless
you name it to `agentos resume`. With the --id of a run that exists, of the same definition and parameters, nothing is
written. What `agentos run` would refuse is refused. docs/queue.md tells the rest.

\b
Exit codes:
  0   submitted, or on record already; with --wait as `agentos run`
  2   wrong usage or definition, or a run of this --id with another one
  75  the workflow limits how many of its runs there are, and has one more refused
""",
)
@click.argument("file", metavar="FILE", shell_complete=shell_completion.workflows)
@click.option("--id", "workflow_id", metavar="ID", help="The run's id (default: a new one).")
@click.option("-p", "--param", "params", multiple=True, metavar="K=V", help="A parameter of the run; repeatable.")
@click.option(
    "--params", "params_file", type=click.Path(path_type=Path), metavar="FILE", help="Parameters from a file."
)
@click.option("--queue", metavar="NAME", default="", help="Reserve it for workers that name this queue.")
@click.option("--priority", type=int, default=0, metavar="N", help="Higher goes first. [default: 0]")
@click.option("--at", type=_Time(), metavar="TIME", help="Not before this time; without a zone it is this host's.")
@click.option("--in", "delay_s", type=_Duration(), metavar="DURATION", help="Not before so long from now: 90s, 2h, 1d.")
@label_option("A word to find the run by: `list --label`, `worker --label`; repeatable.")
@click.option("--wait", is_flag=True, help="Wait for the end of the run, whoever drives it.")
@json_option
@repo_option
def command(
    file: str,
    workflow_id: str | None,
    params: tuple[str, ...],
    params_file: Path | None,
    queue: str,
    priority: int,
    at: datetime | None,
    delay_s: float | None,
    labels: tuple[str, ...],
    wait: bool,
    as_json: bool,
    repo: Path | None,
) -> int:
    if at is not None and delay_s is not None:
        raise click.UsageError("--at and --in exclude each other.")
    place, options = resolve_drive_options(repo)
    workflow = find_workflow(file, place.root)
    values = with_types(parse_params(params, params_file), params, workflow)
    waiting = Waiting(queue=queue, priority=priority, ready_at=at, delay_s=delay_s or 0.0)
    handle = submit_in(place, options, workflow, values, workflow_id, waiting=waiting, labels=labels)
    record = find_run(handle.workflow_id, place.root).record
    if as_json:
        found = record.waiting or Waiting()
        print_json(
            SubmittedRow(
                workflow_id=record.workflow_id,
                name=record.name,
                status=record.status,
                existed=handle.existed,
                queue=found.queue,
                priority=found.priority,
                ready_at=found.ready_at,
            )
        )
    elif handle.existed:
        click.echo(f"{printable(record.workflow_id)} exists already, and is {record.status}")
    else:
        click.echo(record.workflow_id)
        if (view := waiting_view(record)) is not None:
            say(f"It {waiting_text(view, datetime.now(UTC))}. Next: {view.command}")
    if not wait:
        return Exit.COMPLETE
    result = handle.wait(check=False)
    say(f"{printable(record.workflow_id)} is {result.status}")
    return {"complete": Exit.COMPLETE, "aborted": Exit.ABORTED}.get(result.status, Exit.FAILED)
