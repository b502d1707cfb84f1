"""`agentos check`"""

from __future__ import annotations

from pathlib import Path

import click

from agentos.cli.boundary import Exit
from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, say
from agentos.client import definitions
from agentos.client.definitions import CheckedFile, PlannedRow
from agentos.render.text import count, name_some, printable, printable_lines, short
from agentos.render.value_text import as_json_text, is_described, parameter_cells

OUTPUT = list[CheckedFile]


@click.command(
    "check",
    help="""\b
Tell every problem of workflow files, then the plan. Runs no task; imports Python files.

\b
Examples:
  agentos check hello
  agentos check workflows/*.yaml
  agentos check --json release | jq '.[].problems'

AgentOS writes nothing, not even .agentos/. A YAML file is read and its Python functions are looked up in their source,
not imported: that is safe with a file that you do not trust. A Python file is imported, and what stands at its top
level is run: read it first. Parameters need no values here. Outside a repository, workflows/ of the current directory
counts.

Warnings name tasks that may change files at the same time, and what speaks against running a task twice (`>>`,
open(…, "a"), names with the date, git commands that move refs); `agentos prove` tries it. The settings are checked,
too; that the variable of `[llm] key_name` is not set is a warning.

\b
Exit codes:
  0  no problems
  1  the settings cannot be used
  2  problems, or a file that cannot be read
""",
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("-q", "--quiet", is_flag=True, help="Print problems only, no plans.")
@json_option
@repo_option
def command(files: tuple[str, ...], quiet: bool, as_json: bool, repo: Path | None) -> int:
    checked = [definitions.check(file, repo) for file in files]
    if as_json:
        print_json(checked)
    else:
        for one in checked:
            _print_for_people(one, quiet=quiet)
    found = sum(len(one.problems) for one in checked)
    wrong = sum(bool(one.problems) for one in checked)
    if found and not as_json:
        say(f"{count(found, 'problem')} in {wrong} of {count(len(files), 'file')}; nothing was run.")
    return Exit.USAGE if found else Exit.COMPLETE


def _print_for_people(checked: CheckedFile, *, quiet: bool) -> None:
    for problem in checked.problems:
        click.echo("\n".join(printable_lines(str(problem))))
    if checked.problems or quiet:
        return
    shape = f"{count(len(checked.tasks), 'task')} in {count(len(checked.layers), 'layer')}"
    click.echo(printable(f"{checked.file}: {checked.name}, {shape}"))
    starts = "each task starts when its needs are done" if checked.schedule == "ready" else "one layer after the other"
    click.echo(printable(f"  schedule: {checked.schedule}, {starts} ({checked.schedule_reason})"))
    if checked.cron:
        click.echo(printable(f"  runs at {checked.cron}, once added: agentos schedule add {checked.file}"))
    if any(is_described(one) for one in checked.params):
        click.echo("  parameters:")
        described = [parameter_cells(one) for one in checked.params]
        width = min(max(len(name) for name, _ in described), 40)
        for name, about in described:
            click.echo(f"    {name.ljust(width)}  {about}".rstrip())
    elif checked.params:
        shown = (
            f"{one.name} (required)" if one.required else f"{one.name}={as_json_text(one.default)}"
            for one in checked.params
        )
        click.echo(printable(f"  parameters: {', '.join(shown)}"))
    rows = [(f"layer {task.layer + 1}", task.id, task.kind, _remarks(task)) for task in checked.tasks]
    widths = [max(len(printable(row[column])) for row in rows) for column in range(3)] if rows else []
    before = -1
    for task, row in zip(checked.tasks, rows, strict=True):
        cells = [printable(cell) if index or task.layer != before else "" for index, cell in enumerate(row)]
        before = task.layer
        padded = (cell.ljust(min(width, 40)) for cell, width in zip(cells, widths, strict=False))
        click.echo(f"  {'  '.join(padded)}  {cells[3]}".rstrip())
    for warning in checked.warnings:
        click.echo(printable(f"  warning: {warning}"))


def _remarks(task: PlannedRow) -> str:
    remarks = [f"effects {'+'.join(task.effects)}"]
    if task.for_each:
        remarks.append("for each item")
    if task.candidates:
        remarks.append(f"candidates {name_some(task.candidates, 5)}")
    if task.condition:
        remarks.append(f"if {short(task.condition, 60)}")
    if task.needs:
        remarks.append(f"needs {name_some(task.needs, 5)}")
    if task.gate:
        remarks.append(f"asks {short(task.gate, 60)!r}")
    return "; ".join(remarks)
