"""`agentos prove`"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import click
import msgspec

from agentos.cli import shell_completion
from agentos.cli.exits import Exit
from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, say
from agentos.cli.plan_only import quiet_imports
from agentos.cli.render.text import count, printable, printable_lines
from agentos.cli.terminal.shield import Shield, shield_output
from agentos.cli.terminal.stop_signals import StopSignals
from agentos.dag.define.stored_values import to_stored
from agentos.dag.plan.findings import nearest
from agentos.dag.plan.hints import hint_line
from agentos.dag.plan.plan import Plan, compile_plan
from agentos.exceptions import RunRefusedError
from agentos.ids import TaskId
from agentos.tasks.python.stdout import PrintRouter
from agentos.workflow.define.parameters import parse_params
from agentos.workflow.define.run_secrets import masker_for, plan_without_secrets
from agentos.workflow.define.task_hints import hints_by_task
from agentos.workflow.define.workflow_source import find_workflow, path_from_here, workflow_file
from agentos.workflow.drive.patience import in_thread, run_to_end
from agentos.workflow.place.location import asked_directory
from agentos.workflow.place.settings import load_settings
from agentos.workflow.prove.proof import Proof, ProofTargets, ProofVerdict, is_container, prove
from agentos.workflow.prove.scratch_worktree import Scratch, inside
from agentos.worktree.git import find_repository

DIFF_LINES = 30
"""Of each diff that people are shown; `--json` has more of it."""


class Proved(msgspec.Struct, frozen=True, kw_only=True):
    """What `prove --json` prints."""

    file: str
    name: str
    """Of the workflow."""
    tasks: list[Proof]
    warnings: list[str]
    """What tasks' own texts tell, and what changed outside of the scratch worktree meanwhile."""


OUTPUT = Proved


class ProveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed."""

    file: str
    tasks: tuple[str, ...]
    params: Mapping[str, Any]
    assumed: Mapping[str, Any]
    root: Path


@click.command(
    "prove",
    help="""\b
Run tasks again in a scratch worktree, and tell which can be repeated.

\b
Examples:
  agentos prove release
  agentos prove release --task build --param target=src
  agentos prove release --assume version='{"tag": "v1"}'
  agentos prove release --json | jq -r '.tasks[] | select(.verdict != "idempotent") | .task_id'

Each task is run three times in a linked worktree that holds your files as they are now, uncommitted changes included:
once; again on top of its own result (nothing may change: it is idempotent); and anew from the files it began with (the
same must come of it: it is deterministic). Outputs are compared as canonical JSON, files by their content and modes.

Tasks with external effects, approvals, and agent and llm tasks are never run; neither is what needs them, unless
--assume gives their output. So declare what a task does beyond the worktree (effects: external) before you prove it.
Your files, index, HEAD and refs stay as they are, and the scratch worktree is removed. Ignored files are not in it, but
for those that .worktreeinclude names.

\b
Exit codes:
  0  proved, whatever came of it
  1  a task that says idempotent: true is not
  2  wrong usage, or a workflow that cannot be planned
""",
)
@click.argument("workflow", metavar="WORKFLOW", shell_complete=shell_completion.workflows)
@click.option("-t", "--task", "tasks", multiple=True, metavar="ID", help="Prove this task only; repeatable.")
@click.option("-p", "--param", "params", multiple=True, metavar="K=V", help="A parameter of the run; repeatable.")
@click.option(
    "--params", "params_file", type=click.Path(path_type=Path), metavar="FILE", help="Parameters from a file."
)
@click.option(
    "--assume", "assumed", multiple=True, metavar="ID=JSON", help="Take this as a task's output, and do not run it."
)
@json_option
@repo_option
def command(
    workflow: str,
    tasks: tuple[str, ...],
    params: tuple[str, ...],
    params_file: Path | None,
    assumed: tuple[str, ...],
    as_json: bool,
    repo: Path | None,
) -> int:
    request = ProveRequest(
        file=workflow,
        tasks=tasks,
        params=parse_params(params, params_file),
        assumed=dict(map(_assumption, assumed)),
        root=find_repository(asked_directory(repo)).root,
    )
    with shield_output() as shield:
        done = asyncio.run(_stoppable(request, shield))
    if not isinstance(done, Proved):
        return done
    if as_json:
        print_json(done)
    else:
        _print_for_people(done)
    broken = [proof.task_id for proof in done.tasks if proof.broken]
    if broken:
        say(printable(f"Declared idempotent, and not so: {', '.join(broken)}."))
    return Exit.FAILED if broken else Exit.COMPLETE


def _assumption(pair: str) -> tuple[str, Any]:
    task_id, equals, text = pair.partition("=")
    if not equals or not task_id:
        raise click.UsageError(f"--assume takes ID=JSON, not {pair!r}.")
    try:
        return task_id, to_stored(msgspec.json.decode(text))
    except msgspec.DecodeError as error:
        raise click.UsageError(f"--assume {task_id}: this is no JSON: {error}") from None


# --- in the scratch worktree ---------------------------------------------------------------------------------------


async def _stoppable(request: ProveRequest, shield: Shield) -> Proved | Exit:
    stopping = StopSignals(say)
    try:
        with stopping.catch_signals():
            return await _prove_in_scratch(request, shield)
    except asyncio.CancelledError:
        if stopping.received is None:
            raise
        say("Stopped; the scratch worktree is removed.")
        return stopping.exit_code


async def _prove_in_scratch(request: ProveRequest, shield: Shield) -> Proved:
    path, name = workflow_file(request.file, request.root)
    path = path.absolute()
    file = path_from_here(path)
    say("Making a scratch worktree.")
    scratch = await run_to_end(asyncio.to_thread(Scratch, request.root), undo=Scratch.remove)
    try:
        with inside(scratch):
            done = await _prove_tasks(request, scratch, _copy_of(path, request.root, scratch), name, shield)
        outside = await in_thread(scratch.changed_outside)
    finally:
        await run_to_end(asyncio.to_thread(scratch.remove))
    if outside:
        listed = ", ".join(outside[:5]) + (f" and {len(outside) - 5} more" if len(outside) > 5 else "")
        warning = f"changed meanwhile outside of the scratch worktree, by a task or by you: {listed}"
        done = msgspec.structs.replace(done, warnings=[*done.warnings, warning])
    return msgspec.structs.replace(done, file=file)


def _copy_of(path: Path, root: Path, scratch: Scratch) -> Path:
    """The workflow's file in the scratch worktree; itself where it is not in there: elsewhere, or ignored."""
    try:
        copy = scratch.root / path.resolve().relative_to(root.resolve())
    except ValueError:
        return path
    return copy if copy.exists() else path


async def _prove_tasks(request: ProveRequest, scratch: Scratch, path: Path, name: str, shield: Shield) -> Proved:
    with quiet_imports(), _listening():
        flow = find_workflow(f"{path}:{name}" if name else str(path), scratch.root)
        plan = compile_plan(flow, request.params)
        masker = masker_for(plan, load_settings(scratch.root).secrets)
        shield.masker = masker
        plan = plan_without_secrets(plan, request.params, masker)
        hints = hints_by_task(flow, plan, scratch.root)
        proofs = await prove(
            flow,
            plan,
            ProofTargets(tasks=_targets(plan, request.tasks), assumed=_assumed_outputs(plan, request.assumed)),
            scratch,
            hints=hints,
            masker=masker,
            tell=lambda text: say(printable(text)),
        )
    told = {proof.task_id for proof in proofs}
    lines = (hint_line(plan.tasks[task_id].definition, found) for task_id, found in hints.items() if task_id in told)
    return Proved(file=str(path), name=flow.name, tasks=proofs, warnings=list(filter(None, lines)))


@contextmanager
def _listening() -> Iterator[None]:
    """What tasks print is theirs; what others print meanwhile is no data."""
    beside = PrintRouter(sys.stderr)
    with redirect_stdout(beside), redirect_stderr(beside):
        yield


def _targets(plan: Plan, asked: tuple[str, ...]) -> frozenset[TaskId]:
    _refuse_unknown(plan, asked)
    if asked:
        return frozenset(map(TaskId, asked))
    return frozenset(task.id for task in plan.tasks.values() if not is_container(task.definition))


def _assumed_outputs(plan: Plan, assumed: Mapping[str, Any]) -> dict[TaskId, Any]:
    _refuse_unknown(plan, assumed)
    for task_id in assumed:
        definition = plan.tasks[TaskId(task_id)].definition
        if definition.for_each is not None or definition.repeat is not None:
            raise RunRefusedError(f"{task_id!r} has items or rounds: assume what they need instead")
    return {TaskId(task_id): value for task_id, value in assumed.items()}


def _refuse_unknown(plan: Plan, asked: Iterable[str]) -> None:
    for task_id in asked:
        if task_id not in plan.tasks:
            raise RunRefusedError(
                f"there is no task {task_id!r}{nearest(task_id, plan.tasks)}",
                next_step="`agentos check WORKFLOW` lists the tasks.",
            )


# --- for people ----------------------------------------------------------------------------------------------------


def _print_for_people(done: Proved) -> None:
    width = max((len(printable(proof.task_id)) for proof in done.tasks), default=0)
    for proof in done.tasks:
        said = "; ".join(filter(None, (proof.why, _on_determinism(proof), *proof.notes)))
        first, *rest = printable_lines(said)
        line = f"{proof.verdict:<14}  {printable(proof.task_id):<{min(width, 40)}}  {first}"
        click.echo(line.rstrip())
        for line in rest:
            click.echo(f"    {line}")
        if proof.again is not None and proof.again.any:
            _print_difference(proof.again.output, proof.again.patch)
        elif proof.anew is not None and proof.anew.any:
            _print_difference(proof.anew.output, proof.anew.patch)
    for warning in done.warnings:
        click.echo(printable(f"warning: {warning}"))
    verdicts = [proof.verdict for proof in done.tasks]
    known: tuple[ProofVerdict, ...] = ("idempotent", "not idempotent", "not provable")
    say(f"{count(len(verdicts), 'task')}: {', '.join(f'{verdicts.count(one)} {one}' for one in known)}.")


def _on_determinism(proof: Proof) -> str:
    if proof.anew is None or not proof.anew.any:
        return ""
    return f"not deterministic: run anew from the same files, {_describe_difference(proof)}"


def _describe_difference(proof: Proof) -> str:
    assert proof.anew is not None
    return proof.anew.words if proof.anew.error else f"{proof.anew.words} differed"


def _print_difference(*texts: str) -> None:
    for text in filter(None, texts):
        lines = printable_lines(text)
        for line in lines[:DIFF_LINES]:
            click.echo(f"    {line}".rstrip())
        if len(lines) > DIFF_LINES:
            click.echo(f"    … {count(len(lines) - DIFF_LINES, 'more line')}: --json has them")
