"""`agentos run`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentos.cli import shell_completion
from agentos.cli.drive_flags import DriveFlags, drive_flags
from agentos.cli.options import label_option, repo_option
from agentos.cli.terminal.session import drive_here
from agentos.client.definitions import find_workflow, list_parameters, parse_params, with_types
from agentos.client.runs import Selection, begin_run
from agentos.exceptions import AgentosError
from agentos.ids import TaskId
from agentos.render.event_json import AnyEvent
from agentos.render.text import printable
from agentos.render.value_text import parameter_cells

if TYPE_CHECKING:
    from agentos.client.types import Workflow

_TYPED = "agentos.run.typed"
OUTPUT = AnyEvent
"""Of each line."""


class _Run(click.Command):
    """Its help ends with the parameters of FILE, where one is named with it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_TYPED] = list(args)  # the help is printed while they are parsed
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        typed, _, _ = self.make_parser(ctx).parse_args(list(ctx.meta.get(_TYPED, ())))
        file, repo = typed.get("file"), typed.get("repo")
        if not isinstance(file, str):
            return
        try:
            rows = [parameter_cells(one) for one in list_parameters(file, repo)]
        except (AgentosError, OSError) as error:  # whatever is wrong with the file, the help is shown
            why = printable(str(error).partition("\n")[0]).rstrip(".:")
            rows = [("not known", f"{why}; `agentos check` tells more.")]
        with formatter.section(f"Parameters of {printable(file)}"):
            formatter.write_dl(rows or [("none", "")])


@click.command(
    "run",
    cls=_Run,
    help="""\b
Run a workflow; every step is durable before the next begins.

\b
Examples:
  agentos run flow.py
  agentos run flow.py --id nightly --param target=src
  agentos run flow.py --help                  the parameters of flow.py, too
  agentos run flow.py --label nightly         a word to find it by
  agentos run flow.py --json | jq -c 'select(.type == "task_error")'
  agentos run flow.py --gates reject          in CI, where nobody can be asked
  agentos run flow.py --id x --until test     test and all that it needs; the rest is skipped
  agentos run flow.py --id x --from test      test and all that needs it, again, with the results that x has
  agentos run --agent claude --prompt "Make the tests pass" --verify "make test" --budget 5

FILE is a workflow's file, or FILE:NAME where it holds several, or the name of one in workflows/.
With the --id of a run that exists, of the same definition and parameters, that run is resumed: a line for cron.
--until, --from and --only select tasks; the others are skipped. `agentos resume` keeps to that; with --all-tasks, or by
`run --id` without a selection, the rest runs, too. What a selected task needs must be selected as well, or have
finished in the run of this --id.
With --agent no file is needed: the run has one task, `agent`, and `agentos resume` goes on with it as with any other.

Ctrl-C lets running tasks end, cuts the checkpoint and stops; a second one cancels them at once.

\b
Exit codes:
  0 complete, 1 failed, 2 wrong usage or definition, 3 waiting for an answer or paused, 4 aborted,
  6 damaged records, 75 try again later, 130 stopped by Ctrl-C, 143 stopped by SIGTERM
""",
)
@click.argument("file", metavar="[FILE]", required=False, shell_complete=shell_completion.workflows)
@click.option("--id", "workflow_id", metavar="ID", help="The run's id (default: a new one).")
@click.option("-p", "--param", "params", multiple=True, metavar="K=V", help="A parameter of the run; repeatable.")
@click.option(
    "--params", "params_file", type=click.Path(path_type=Path), metavar="FILE", help="Parameters from a file."
)
@click.option(
    "--until", multiple=True, metavar="TASK", help="Run this task and all that it needs, nothing else; repeatable."
)
@click.option(
    "--from",
    "start",
    multiple=True,
    metavar="TASK",
    help="Run this task and all that needs it, again if they have finished; repeatable. With --until: what is between.",
)
@click.option(
    "--only", multiple=True, metavar="TASK", help="Run this task alone, again if it has finished; repeatable."
)
@label_option("A word to find the run by: `list --label`, `worker --label`; repeatable.")
@click.option("--agent", metavar="NAME", help="Let this agent work on --prompt, instead of a FILE.")
@click.option(
    "--prompt", metavar="TEXT", help="With --agent: what it is to do, word for word; `-` reads it from stdin."
)
@click.option(
    "--verify", multiple=True, metavar="COMMAND",
    help="With --agent: for bash; it must succeed once the agent is done. May be given several times.",
)  # fmt: skip
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="USD",
    help="With --agent: ask before more is spent.",
)
@click.option("--model", metavar="NAME", help="With --agent: the model. [default: the agent's own choice]")
@click.option(
    "--permissions",
    type=click.Choice(["read", "edit", "full"]),
    help="With --agent: what it may do unasked. [default: edit]",
)
@click.option("--max-turns", type=click.IntRange(min=1), metavar="N", help="With --agent: turns after which it stops.")
@click.option("--sandbox", type=click.Choice(["worktree"]), help="With --agent: the wall around it (Linux).")
@drive_flags
@repo_option
def command(
    file: str | None,
    workflow_id: str | None,
    params: tuple[str, ...],
    params_file: Path | None,
    until: tuple[str, ...],
    start: tuple[str, ...],
    only: tuple[str, ...],
    labels: tuple[str, ...],
    flags: DriveFlags,
    repo: Path | None,
    **typed: Any,
) -> int:
    if only and (until or start):
        raise click.UsageError("--only names all that runs: --until and --from exclude it.")
    selection = Selection(
        only=tuple(map(TaskId, only)), until=tuple(map(TaskId, until)), start=tuple(map(TaskId, start))
    )
    work = {name: value for name, value in typed.items() if value not in (None, ())}
    _refuse_unclear(file, work, has_params=bool(params or params_file))
    place, options, manner = flags.resolve(repo)  # first of all: no file is read where no state can be kept
    workflow = find_workflow(file, place.root) if file is not None else _agent_task(work)
    values = with_types(parse_params(params, params_file), params, workflow)
    given: dict[str, Any] = {"labels": labels, "selection": selection}
    return drive_here(lambda: begin_run(place, workflow, values, workflow_id, options, **given), place, manner)


def _refuse_unclear(file: str | None, work: dict[str, Any], *, has_params: bool) -> None:
    """Either a file says what to do, or --agent and --prompt do."""
    if file is not None and "agent" in work:
        raise click.UsageError("FILE and --agent exclude each other: a workflow file names its agents itself.")
    if "agent" in work:
        if "prompt" not in work:
            raise click.UsageError("--agent needs --prompt: what it is to do.")
        if work["agent"] == "command":
            raise click.UsageError("--agent command needs a program, which only a workflow file can name.")
        if has_params:
            raise click.UsageError("--agent takes no parameters: write them into --prompt.")
    elif work:
        raise click.UsageError(f"--{next(iter(work)).replace('_', '-')} goes with --agent NAME.")
    elif file is None:
        raise click.UsageError("Missing argument 'FILE'; without one, --agent NAME and --prompt TEXT say what to do.")


def _agent_task(work: dict[str, Any]) -> Workflow:
    from agentos.workflows.agent_task import agent_task  # most runs have a file

    if commands := work.get("verify"):
        work["verify"] = commands[0] if len(commands) == 1 else [{"run": command} for command in commands]
    if work["prompt"] == "-":
        try:
            work["prompt"] = sys.stdin.buffer.read().decode()
        except (OSError, ValueError) as error:
            raise click.BadParameter(f"stdin cannot be read: {error}", param_hint="--prompt") from error
    return agent_task(**work)
