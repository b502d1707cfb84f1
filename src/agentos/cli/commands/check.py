"""`agentos check`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from agentos import typed
from agentos.cli.exits import Exit
from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, say
from agentos.cli.plan_only import inspect_workflow
from agentos.cli.render.text import count, printable, short
from agentos.dag.define.stored_values import from_stored
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.findings import Finding
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.tasks.llm.model_settings import LlmDefaults
from agentos.workflow.define.model_keys import keyless
from agentos.workflow.define.task_hints import hint_lines
from agentos.workflow.define.workflow_source import path_from_here
from agentos.workflow.place.place import find_root
from agentos.workflow.place.settings import load_settings


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that has to be fixed."""

    message: str
    problem: str
    """Its kind: `unknown need`, `cycle`, `bad setting`, …"""
    file: str
    line: int
    """Counted from 1, as is `column`; 0 where the place is not known."""
    column: int
    where: str
    """The path to it in the file, such as `tasks.ship.needs`; empty where it is not known."""
    task_id: str


class PlannedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One task of the plan."""

    id: str
    layer: int
    kind: str
    needs: list[str]
    effects: list[str]
    gate: str
    """The question that is asked before it starts; empty where nothing is asked."""
    condition: str
    for_each: bool
    repeat: bool


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of the workflow."""

    name: str
    required: bool
    default: Any
    """Null where there is none."""


class CheckedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file as `check --json` tells it."""

    file: str
    name: str
    """Of the workflow; empty where it could not be read."""
    problems: list[FileProblem]
    """Empty where a run can begin."""
    layers: list[list[str]]
    """Ids of tasks; empty where there are problems."""
    tasks: list[PlannedRow]
    params: list[Parameter]
    warnings: list[str]


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
    root = find_root(repo)
    defaults = load_settings(root).llm
    checked = [_check_file(file, root, defaults) for file in files]
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


def _check_file(file: str, root: Path, defaults: LlmDefaults) -> CheckedFile:
    flow, plan, findings = inspect_workflow(file, root)
    warnings: list[str] = []
    if flow is not None and plan is not None:
        warnings = [*plan.warnings, *hint_lines(flow, plan, root), *filter(None, [keyless(plan, defaults)])]
    tasks = [plan.tasks[task_id] for layer in plan.layers for task_id in layer] if plan is not None else []
    if flow is not None and flow.source is not None:
        file = path_from_here(Path(flow.source.file))
    return CheckedFile(
        file=file,
        name=flow.name if flow is not None else "",
        problems=[_problem(finding, file) for finding in findings],
        layers=[list(layer) for layer in plan.layers] if plan is not None else [],
        tasks=[_row(task) for task in tasks],
        params=_params(flow, plan) if flow is not None and plan is not None else [],
        warnings=warnings,
    )


def _problem(finding: Finding, file: str) -> FileProblem:
    return FileProblem(
        message=finding.message,
        problem=finding.problem,
        file=finding.file or file,
        line=finding.line,
        column=finding.column,
        where=finding.where,
        task_id=finding.task_id,
    )


def _row(task: PlannedTask) -> PlannedRow:
    definition = task.definition
    return PlannedRow(
        id=task.id,
        layer=task.layer,
        kind="repeat" if definition.repeat is not None and not definition.call else definition.kind,
        needs=list(definition.needs),
        effects=list(definition.effects),
        gate=definition.approve.question if definition.approve is not None else "",
        condition=definition.condition,
        for_each=definition.for_each is not None,
        repeat=definition.repeat is not None,
    )


def _params(flow: Workflow, plan: Plan) -> list[Parameter]:
    declared: Any = flow.params or {}
    defaults = declared if isinstance(declared, dict) else {}
    return [
        Parameter(
            name=name,
            required=(required := name not in defaults or defaults[name] is msgspec.UNSET),
            default=None if required else msgspec.to_builtins(from_stored(value), enc_hook=str),
        )
        for name, value in plan.params.items()
    ]


# --- for people ----------------------------------------------------------------------------------------------------


def _print_for_people(checked: CheckedFile, *, quiet: bool) -> None:
    for problem in checked.problems:
        finding = typed.convert(msgspec.structs.asdict(problem), Finding, strict=False)
        click.echo(printable(str(finding) if finding.line or not finding.task_id else _of_python(problem)))
    if checked.problems or quiet:
        return
    shape = f"{count(len(checked.tasks), 'task')} in {count(len(checked.layers), 'layer')}"
    click.echo(printable(f"{checked.file}: {checked.name}, {shape}"))
    if checked.params:
        shown = (
            f"{one.name} (required)" if one.required else f"{one.name}={_json(one.default)}" for one in checked.params
        )
        click.echo(printable(f"  parameters: {', '.join(shown)}"))
    rows = [(f"layer {task.layer}", task.id, task.kind, _remarks(task)) for task in checked.tasks]
    widths = [max(len(printable(row[column])) for row in rows) for column in range(3)] if rows else []
    before = -1
    for task, row in zip(checked.tasks, rows, strict=True):
        cells = [printable(cell) if index or task.layer != before else "" for index, cell in enumerate(row)]
        cells[0] = printable(row[0]) if task.layer != before else ""
        before = task.layer
        padded = (cell.ljust(min(width, 40)) for cell, width in zip(cells, widths, strict=False))
        click.echo(f"  {'  '.join(padded)}  {cells[3]}".rstrip())
    for warning in checked.warnings:
        click.echo(printable(f"  warning: {warning}"))


def _of_python(problem: FileProblem) -> str:
    return f"{problem.file}: task {problem.task_id!r}: {problem.problem}: {problem.message}"


def _remarks(task: PlannedRow) -> str:
    remarks = [f"effects {'+'.join(task.effects)}"]
    if task.for_each:
        remarks.append("for each item")
    if task.condition:
        remarks.append(f"if {short(task.condition, 60)}")
    if task.needs:
        more = f" and {len(task.needs) - 5} more" if len(task.needs) > 5 else ""
        remarks.append(f"needs {', '.join(task.needs[:5])}{more}")
    if task.gate:
        remarks.append(f"asks {short(task.gate, 60)!r}")
    return "; ".join(remarks)


def _json(value: Any) -> str:
    return short(msgspec.json.encode(value).decode(), 60)
