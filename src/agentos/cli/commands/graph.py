"""`agentos graph`"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from agentos.cli.options import repo_option
from agentos.cli.output import say
from agentos.cli.plan_only import quiet_imports
from agentos.cli.render.plan_drawing import boxes, mermaid
from agentos.dag.plan.plan import Plan
from agentos.exceptions import (
    NotFoundError,
    RunRefusedError,
    UntrustedSettingsError,
    WorkflowConfigurationError,
    WorkflowNotFoundError,
)
from agentos.workflow.define.plans import plan_of_run, plan_to_look_at
from agentos.workflow.define.workflow_source import find_workflow
from agentos.workflow.place.place import find_root
from agentos.workflow.place.run_search import find_run, reading

_MERMAID_EDGES = 500
"""What Mermaid draws unless its `maxEdges` says otherwise."""


@click.command(
    "graph",
    help="""\b
Draw a workflow or a run.

\b
Examples:
  agentos graph hello
  agentos graph hello > hello.mmd
  agentos graph 0198c --format mermaid

At a terminal it draws boxes, a layer each; elsewhere it prints Mermaid, which GitHub and many editors render. Of a run,
by its id or the beginning of it, the tasks show how they stand. Nothing is run; a Python file is imported.

\b
Exit codes:
  0  drawn
  2  no such workflow or run, or a workflow with problems
""",
)
@click.argument("target", metavar="FILE|RUN")
@click.option(
    "--format",
    "form",
    type=click.Choice(["mermaid", "text"]),
    help="How to draw. [default: text at a terminal, else mermaid]",
)
@repo_option
def command(target: str, form: str | None, repo: Path | None) -> None:
    form = form or ("text" if sys.stdout.isatty() else "mermaid")
    plan, statuses = _plan(target, repo)
    if form == "text":
        lines = boxes(plan, statuses, shutil.get_terminal_size().columns)
    else:
        lines = mermaid(plan, statuses)
    click.echo("\n".join(lines))
    edges = sum(len(task.definition.needs) for task in plan.tasks.values())
    if form == "mermaid" and edges > _MERMAID_EDGES:
        say(f"{edges:,} edges: Mermaid draws {_MERMAID_EDGES} unless its maxEdges says more; --format text draws all.")


def _plan(target: str, repo: Path | None) -> tuple[Plan, dict[str, str]]:
    """The plan, and for a run how its tasks stand."""
    try:
        with quiet_imports():
            return plan_to_look_at(find_workflow(target, find_root(repo), static=True)), {}
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
