"""Workflows: which there are, what is wrong with one, and how it looks as a plan."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from agentos import typed
from agentos.client.places import find_root, find_run, load_settings
from agentos.dag.define.run_settings import Declaration, declarations
from agentos.dag.define.schema import file_schema
from agentos.dag.define.task import from_stored
from agentos.dag.define.workflow import Workflow
from agentos.dag.language.references import OPEN
from agentos.dag.plan.candidates import candidate_keys
from agentos.dag.plan.findings import Finding, nearest
from agentos.dag.plan.plan import Plan
from agentos.exceptions import (
    AgentosError,
    NotFoundError,
    RunRefusedError,
    UntrustedSettingsError,
    WorkflowConfigurationError,
    WorkflowDefinitionError,
    WorkflowNotFoundError,
)
from agentos.excerpts import list_some
from agentos.workflow.define.parameters import parse_params, with_types
from agentos.workflow.define.plans import keyless, look_ahead, plan_of_run, plan_to_look_at, refused_now
from agentos.workflow.define.prompt_files import read_prompt_files
from agentos.workflow.define.python_tasks import hint_lines
from agentos.workflow.define.workflow_source import FOLDER, SUFFIXES, find_workflow, path_from_here
from agentos.workflow.place.run_search import reading
from agentos.workflow.start.ready_run import signers_for

__all__ = [
    "FOLDER", "SUFFIXES", "CheckedFile", "FileProblem", "Parameter", "PlannedRow", "check", "drawing", "file_schema",
    "find_workflow", "list_parameters", "list_workflows", "load", "parse_params", "path_from_here", "quiet_imports",
    "typed_params", "with_types",
]  # fmt: skip


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

    def __str__(self) -> str:
        if not self.line and self.task_id:  # of a Python file
            return f"{self.file}: task {self.task_id!r}: {self.problem}: {self.message}"
        return str(typed.convert(msgspec.structs.asdict(self), Finding, strict=False))


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
    candidates: list[str]
    """Those that work on it side by side; empty where it is one task."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of the workflow."""

    name: str
    required: bool
    default: Any
    """Null where there is none."""
    type: str
    """string, integer, number, boolean, list or object; empty: any."""
    help: str
    choices: list[Any]
    """The values it may have; empty: any of its type."""


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
    schedule: str
    """layers or ready; empty where there are problems."""
    schedule_reason: str
    """Why it is that one."""
    cron: str
    """When it runs by itself, once `agentos schedule add` made that effective; empty where it says no times."""
    warnings: list[str]


def list_workflows(repo: str | Path | None = None) -> dict[str, Path]:
    """The workflows in `workflows/` of the repository, by name, each with its file. None is read."""
    folder = find_root(repo) / FOLDER
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return {file.stem: file for file in files if file.suffix in SUFFIXES and not file.name.startswith("_")}


def typed_params(pairs: Sequence[str]) -> Callable[[Workflow], dict[str, Any]] | None:
    """What reads these pairs NAME=VALUE by the types that a workflow declares; None where there are none."""
    return partial(with_types, parse_params(pairs), pairs) if pairs else None


def load(workflow: str, repo: str | Path | None = None) -> Workflow:
    """The workflow of this file, or of this name in `workflows/`; FILE:NAME for one of several.

    A Python file is imported. WorkflowNotFoundError, WorkflowFileError; what is wrong with it tells `check`.
    """
    return find_workflow(workflow, find_root(repo))


def check(workflow: str, repo: str | Path | None = None) -> CheckedFile:
    """Every problem of a workflow, by file or name, and where it has none its plan. Runs no task, writes nothing.

    A YAML file is only read: safe with one that nobody trusts. A Python file is imported. Problems are no errors;
    WorkflowConfigurationError where the settings here cannot be used.
    """
    root = find_root(repo)
    settings = load_settings(root)
    flow, plan, findings = _inspect(workflow, root)
    file = workflow
    if flow is not None and flow.source is not None:
        file = path_from_here(Path(flow.source.file))
    problems = [
        typed.convert(msgspec.structs.asdict(finding) | {"file": finding.file or file}, FileProblem)
        for finding in findings
    ]
    if flow is None or plan is None:
        name = flow.name if flow is not None else ""
        return CheckedFile(
            file=file,
            name=name,
            problems=problems,
            layers=[],
            tasks=[],
            params=[],
            schedule="",
            schedule_reason="",
            cron="",
            warnings=[],
        )
    return CheckedFile(
        file=file,
        name=flow.name,
        problems=problems,
        layers=[list(layer) for layer in plan.layers],
        tasks=_rows(plan),
        params=_params(flow, plan),
        schedule=plan.settings.schedule,
        schedule_reason=_schedule_reason(plan),
        cron=str(plan.settings.cron or ""),
        warnings=[
            *plan.warnings,
            *hint_lines(flow, plan, root),
            *filter(None, [keyless(plan, settings.llm)]),
            *look_ahead(plan, settings.models),
            *_signer_problems(plan, root),
            *_misspelt_needs(flow, plan),
            *_empty_sources(plan, root),
        ],
    )


def _signer_problems(plan: Plan, root: Path) -> list[str]:
    try:
        signers_for(plan, root)
    except RunRefusedError as error:
        return [f"a run would be refused: {error.message}. {error.next_step.removeprefix('Nothing was run. ')}"]
    return []


def _schedule_reason(plan: Plan) -> str:
    if not plan.settings.schedule_chosen:
        return "the workflow says so"
    if plan.settings.decision_points != "never":
        return "decision points stand between layers"
    changing = [task.id for task in plan.tasks.values() if task.definition.effects != ("none",)]
    return (
        f"{list_some(changing, 3)} {'has' if len(changing) == 1 else 'have'} effects"
        if changing
        else "no task has effects"
    )


def list_parameters(workflow: str, repo: str | Path | None = None) -> list[Parameter]:
    """The parameters of a workflow, by file or name. Reads it as `check` does; an error where that cannot be done."""
    with quiet_imports():
        root = find_root(repo)
        flow = read_prompt_files(find_workflow(workflow, root, static=True), root)
    return _params(flow, plan_to_look_at(flow))


def _misspelt_needs(flow: Workflow, plan: Plan) -> list[str]:
    """Parameters that look like a task's name: a function's parameter named like a task gets its output."""
    required = [one.name for one in _params(flow, plan) if one.required]
    hints = {name: nearest(name, plan.tasks, "the task ") for name in required}
    return [f"the parameter {name!r} has to be given to a run{hint}" for name, hint in hints.items() if hint]


def _empty_sources(plan: Plan, root: Path) -> list[str]:
    """Patterns that no file is behind: allowed, and mostly a slip, after which a result is reused for ever."""
    written = [one for task in plan.tasks.values() for one in task.definition.sources if isinstance(one, str)]
    plain = [one for one in written if OPEN not in one]
    if not plain:
        return []
    from agentos.workflow.files.source_files import SourceReader  # asks git

    found = SourceReader(root).read((one,) for one in plain)
    return [f"sources: no file matches {pattern!r} now" for (pattern,), now in found.items() if not now.files]


def _inspect(name_or_path: str, root: Path) -> tuple[Workflow | None, Plan | None, tuple[Finding, ...]]:
    """The workflow and its plan as far as they can be had, and all that would keep a run from beginning."""

    def finding(found: object, error: AgentosError) -> Finding:
        if isinstance(found, Finding):
            return found
        # A message about the file as a whole begins with its name already, where it came with one.
        message = str(found).removeprefix(f"{getattr(error, 'path', name_or_path)}: ")
        return Finding(problem="bad file", message=message, file=name_or_path)

    flow: Workflow | None = None
    try:
        with quiet_imports():
            flow = read_prompt_files(find_workflow(name_or_path, root, static=True), root)
        plan = plan_to_look_at(flow)
        return flow, plan, refused_now(flow, plan)
    except WorkflowDefinitionError as error:
        return flow, None, tuple(finding(found, error) for found in error.findings)
    except (NotFoundError, RunRefusedError) as error:
        return flow, None, (finding(error.message, error),)


@contextmanager
def quiet_imports() -> Iterator[None]:
    """While this lasts, importing a workflow's file leaves no compiled file behind, and what it prints is no data."""
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.dont_write_bytecode = before


def _rows(plan: Plan) -> list[PlannedRow]:
    tasks = (plan.tasks[task_id] for layer in plan.layers for task_id in layer)
    return [
        PlannedRow(
            id=task.id,
            layer=task.layer,
            kind="repeat" if definition.repeat is not None and not definition.call else definition.kind,
            needs=list(definition.needs),
            effects=list(definition.effects),
            gate=definition.approve.question if definition.approve is not None else "",
            condition=definition.condition,
            for_each=definition.for_each is not None,
            repeat=definition.repeat is not None,
            candidates=candidate_keys(definition),
        )
        for task in tasks
        for definition in (task.definition,)
    ]


def _params(flow: Workflow, plan: Plan) -> list[Parameter]:
    declared = declarations(flow.params)

    def describe(name: str, value: Any, said: Declaration) -> Parameter:
        required = said.default is msgspec.UNSET
        return Parameter(
            name=name,
            required=required,
            default=None if required else msgspec.to_builtins(from_stored(value), enc_hook=str),
            type=said.type,
            help=said.help,
            choices=msgspec.to_builtins(list(said.choices), enc_hook=str),
        )

    return [describe(name, value, declared.get(name, Declaration())) for name, value in plan.params.items()]


def drawing(target: str, repo: str | Path | None = None) -> tuple[Plan, dict[str, str]]:
    """What there is to draw of a workflow, by file or name, or of a run: the plan, and how a run's tasks stand."""
    try:
        with quiet_imports():
            root = find_root(repo)
            return plan_to_look_at(read_prompt_files(find_workflow(target, root, static=True), root)), {}
    except WorkflowNotFoundError as no_file:
        try:
            found = find_run(target, repo)
        except UntrustedSettingsError:
            raise
        except WorkflowConfigurationError as nowhere:  # outside of a repository there are files alone
            raise WorkflowNotFoundError(
                f"{no_file.message}; and no run can be looked for: {nowhere.message}", next_step=no_file.next_step
            ) from None
        except NotFoundError:
            raise WorkflowNotFoundError(
                f"{no_file.message}; and there is no run {target!r}", next_step=no_file.next_step
            ) from None
    if found.record.kind == "states":
        raise RunRefusedError(f"run {found.record.workflow_id} holds saved states and has no tasks to draw")
    with reading(found.place) as store:
        plan, facts = plan_of_run(store, found.record.workflow_id)
    return plan, {task_id: task.status for task_id, task in facts.tasks.items()}
