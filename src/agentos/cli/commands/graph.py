"""`agentos graph`"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from agentos.cli.options import repo_option
from agentos.cli.output import say
from agentos.client.definitions import drawing
from agentos.render.plan_graph import boxes, mermaid
from agentos.render.plan_svg import plan_svg

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
  agentos graph 0198c --svg > run.svg

At a terminal it draws boxes, a layer each; elsewhere it prints Mermaid, which GitHub and many editors render. --svg
prints a picture that any browser opens. Of a run, by its id or the beginning of it, the tasks show how they stand.
Nothing is run; a Python file is imported.

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
    type=click.Choice(["mermaid", "text", "svg"]),
    help="How to draw. [default: text at a terminal, else mermaid]",
)
@click.option("--svg", "form", flag_value="svg", help="The same as --format svg.")
@repo_option
def command(target: str, form: str | None, repo: Path | None) -> None:
    form = form or ("text" if sys.stdout.isatty() else "mermaid")
    plan, statuses = drawing(target, repo)
    if form == "svg":
        click.echo(plan_svg(plan, statuses, standalone=True))
    elif form == "text":
        click.echo("\n".join(boxes(plan, statuses, shutil.get_terminal_size().columns)))
    else:
        click.echo("\n".join(mermaid(plan, statuses)))
    edges = sum(len(task.definition.needs) for task in plan.tasks.values())
    if form == "mermaid" and edges > _MERMAID_EDGES:
        say(f"{edges:,} edges: Mermaid draws {_MERMAID_EDGES} unless its maxEdges says more; --format text draws all.")
