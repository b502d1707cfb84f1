"""`agentos prove`"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click
import msgspec

from agentos.cli import shell_completion
from agentos.cli.boundary import Exit, exit_of_signal
from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, say
from agentos.client import proofs
from agentos.client.definitions import parse_params
from agentos.client.process import StopSignals, shield_output
from agentos.client.proofs import ProofVerdict, Proved
from agentos.render.text import count, printable, printable_lines

DIFF_LINES = 30
"""Of each diff that people are shown; `--json` has more of it."""


OUTPUT = Proved


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
    given = parse_params(params, params_file)
    outputs = dict(map(_assumption, assumed))

    async def prove() -> Proved | Exit:
        stopping = StopSignals(say)
        try:
            with stopping.catch_signals():
                return await proofs.prove(
                    workflow,
                    repo,
                    tasks=tasks,
                    params=given,
                    typed=params,
                    assumed=outputs,
                    tell=lambda text: say(printable(text)),
                    hide=lambda masker: setattr(shield, "masker", masker),
                )
        except asyncio.CancelledError:
            if stopping.received is None:
                raise
            say("Stopped; the scratch worktree is removed.")
            return exit_of_signal(stopping.received)

    with shield_output() as shield:
        done = asyncio.run(prove())
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
        return task_id, msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise click.UsageError(f"--assume {task_id}: this is no JSON: {error}") from None


def _print_for_people(done: Proved) -> None:
    width = max((len(printable(proof.task_id)) for proof in done.tasks), default=0)
    for proof in done.tasks:
        anew = ""
        if proof.anew is not None and proof.anew.any:
            differed = "" if proof.anew.error else " differed"
            anew = f"not deterministic: run anew from the same files, {proof.anew.words}{differed}"
        said = "; ".join(filter(None, (proof.why, anew, *proof.notes)))
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


def _print_difference(*texts: str) -> None:
    for text in filter(None, texts):
        lines = printable_lines(text)
        for line in lines[:DIFF_LINES]:
            click.echo(f"    {line}".rstrip())
        if len(lines) > DIFF_LINES:
            click.echo(f"    … {count(len(lines) - DIFF_LINES, 'more line')}: --json has them")
