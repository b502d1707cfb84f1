"""Whether tasks may be repeated: each is run three times in a scratch worktree, and the runs are compared."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import msgspec

from agentos.client.definitions import quiet_imports
from agentos.dag.define.task import to_stored
from agentos.dag.plan.findings import nearest
from agentos.dag.plan.hints import hint_line
from agentos.dag.plan.plan import Plan, compile_plan
from agentos.exceptions import RunRefusedError
from agentos.ids import TaskId
from agentos.secrets import Masker
from agentos.tasks.python.stdout import PrintRouter
from agentos.workflow.define.parameters import with_types
from agentos.workflow.define.prompt_files import read_prompt_files
from agentos.workflow.define.python_tasks import hints_by_task
from agentos.workflow.define.run_secrets import masker_for, plan_without_secrets
from agentos.workflow.define.workflow_source import find_workflow, path_from_here, workflow_file
from agentos.workflow.drive.patience import in_thread, run_to_end
from agentos.workflow.place.location import asked_directory
from agentos.workflow.place.settings import load_settings
from agentos.workflow.prove import proof
from agentos.workflow.prove.proof import Proof, ProofTargets, ProofVerdict, is_container
from agentos.workflow.prove.scratch_worktree import Scratch, inside
from agentos.worktree.git import find_repository

__all__ = ["Proof", "ProofVerdict", "Proved", "prove"]


class Proved(msgspec.Struct, frozen=True, kw_only=True):
    """What `prove --json` prints."""

    file: str
    name: str
    """Of the workflow."""
    tasks: list[Proof]
    warnings: list[str]
    """What tasks' own texts tell, and what changed outside of the scratch worktree meanwhile."""


async def prove(
    workflow: str,
    repo: str | Path | None = None,
    *,
    tasks: Collection[str] = (),
    params: Mapping[str, Any] | None = None,
    typed: Collection[str] = (),
    assumed: Mapping[str, Any] = {},
    tell: Callable[[str], None] = lambda text: None,
    hide: Callable[[Masker], None] = lambda masker: None,
) -> Proved:
    """Run the tasks of a workflow (all, or those named) again in a scratch worktree, and tell which can be repeated.

    The user's files, index, HEAD and refs stay as they are; tasks with external effects are never run, nor is what
    needs them, unless `assumed` gives their output. `typed` are the pairs NAME=VALUE that `params` were read from.
    `tell` hears how far it is; `hide` gets what masks the run's secrets, before anything of it is run. Cancelling ends
    what runs, and the scratch worktree is removed.
    """
    root = find_repository(asked_directory(Path(repo) if repo is not None else None)).root
    path, name = workflow_file(workflow, root)
    path = path.absolute()
    file = path_from_here(path)
    tell("Making a scratch worktree.")
    scratch = await run_to_end(asyncio.to_thread(Scratch, root), undo=Scratch.remove)
    try:
        real, top = path.resolve(), root.resolve()
        copy = scratch.root / real.relative_to(top) if real.is_relative_to(top) else path
        given = str(copy if copy.exists() else path)  # itself where it is not in there: elsewhere, or ignored
        with inside(scratch), quiet_imports(), _route_prints():
            flow = read_prompt_files(find_workflow(f"{given}:{name}" if name else given, scratch.root), scratch.root)
            values = with_types(params or {}, typed, flow)
            plan = compile_plan(flow, values)
            masker = masker_for(plan, load_settings(scratch.root).secrets)
            hide(masker)
            plan = plan_without_secrets(plan, values, masker)
            hints = hints_by_task(flow, plan, scratch.root)
            targets = ProofTargets(tasks=_targets(plan, tasks), assumed=_assumed_outputs(plan, assumed))
            proofs = await proof.prove(flow, plan, targets, scratch, hints=hints, masker=masker, tell=tell)
        outside = await in_thread(scratch.changed_outside)
    finally:
        await run_to_end(asyncio.to_thread(scratch.remove))
    told = {one.task_id for one in proofs}
    lines = (hint_line(plan.tasks[task_id].definition, found) for task_id, found in hints.items() if task_id in told)
    warnings = list(filter(None, lines))
    if outside:
        listed = ", ".join(outside[:5]) + (f" and {len(outside) - 5} more" if len(outside) > 5 else "")
        warnings.append(f"changed meanwhile outside of the scratch worktree, by a task or by you: {listed}")
    return Proved(file=file, name=flow.name, tasks=proofs, warnings=warnings)


@contextmanager
def _route_prints() -> Iterator[None]:
    """What tasks print is theirs; what others print meanwhile is no data."""
    beside = PrintRouter(sys.stderr)
    with redirect_stdout(beside), redirect_stderr(beside):
        yield


def _targets(plan: Plan, asked: Collection[str]) -> frozenset[TaskId]:
    _refuse_unknown(plan, asked)
    if asked:
        return frozenset(map(TaskId, asked))
    return frozenset(task.id for task in plan.tasks.values() if not is_container(task.definition))


def _assumed_outputs(plan: Plan, assumed: Mapping[str, Any]) -> dict[TaskId, Any]:
    _refuse_unknown(plan, assumed)
    for task_id in assumed:
        definition = plan.tasks[TaskId(task_id)].definition
        if definition.fans_out or definition.repeat is not None:
            raise RunRefusedError(f"{task_id!r} has items or rounds: assume what they need instead")
    return {TaskId(task_id): to_stored(value) for task_id, value in assumed.items()}


def _refuse_unknown(plan: Plan, asked: Iterable[str]) -> None:
    for task_id in asked:
        if task_id not in plan.tasks:
            raise RunRefusedError(
                f"there is no task {task_id!r}{nearest(task_id, plan.tasks)}",
                next_step="`agentos check WORKFLOW` lists the tasks.",
            )
