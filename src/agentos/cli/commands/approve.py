"""`agentos approve`"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from agentos.cli.answer_signature import read_signature, signing_options
from agentos.cli.options import (
    author_option,
    files_options,
    gate_argument,
    read_reason,
    reason_file_option,
    reason_option,
    repo_option,
    run_argument,
)
from agentos.cli.output import say, say_outcome
from agentos.client.answers import answer, find_gate, vouched_value
from agentos.client.places import find_run
from agentos.client.types import IT_RAN
from agentos.client.worktree import Client
from agentos.exceptions import LeaseHeldError
from agentos.render.text import printable

if TYPE_CHECKING:
    from agentos.client.places import FoundRun
    from agentos.client.types import FilesChoice


@click.command(
    "approve",
    help="""\b
Say yes at a gate, and go on with the run.

\b
Examples:
  agentos approve nightly
  agentos approve nightly approve:ship --reason "checked on staging"
  agentos approve draft-7 approval:look --choose revise --reason-file notes.md
  agentos approve nightly ask:pay --choose it-ran --output "receipt 17"
  agentos approve nightly approve:ship --sign
  agentos approve nightly merge:0 --use app.py=task:backend --use notes.md=file:merged.md
  agentos approve nightly merge:0 --resolve-with agent:claude

GATE may be left out if exactly one is open. RUN may be of any worktree known, so this works from any directory. If no
process drives the run, it goes on here, unless --no-resume.

A gate with choices takes no plain yes: --choose says which, and --reason what goes with it.

A gate that asks whether an interrupted task ran takes one of three answers: `--choose it-ran`, and --output is what it
gave; `--choose did-not-run`, and it starts; `--choose run-again`, and it is repeated, whether or not it ran.

A gate that asks about a merge needs --use for each path: `worktree` (what is there now, your own edit included) or
`task:ID`, where they conflict; what is not in conflict is kept, whoever it is from. `file:PATH` is a whole merged file
that you prepared. --resolve-with lets an agent resolve the conflicts first, in a worktree of its own: then a gate asks
again, and what the agent did is one of the versions.

A gate with `by: signed` takes a yes with the SSH signature of somebody whom the repository's .agentos-signers names:
--sign makes it, with ssh-keygen. It is valid for this answer to this question about these inputs and files.

\b
Exit codes:
  0   answered; where the run was continued here: it is complete
  1   the run was continued here and failed
  2   no such gate is open, several are, or the answer was refused
  3   the run was continued here and waits at the next gate; or files changed that it would put back (--files chooses)
  4   the run was aborted
  75  try again later: the database cannot be written now
""",
)
@run_argument
@gate_argument
@click.option("--choose", metavar="CHOICE", default="", help="Which of the gate's choices to take.")
@reason_option
@reason_file_option
@author_option
@click.option("--no-resume", is_flag=True, help="Only answer; do not go on with the run.")
@click.option("--output", metavar="TEXT", help="With it-ran: what the command printed; for other tasks a JSON value.")
@click.option(
    "--output-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The same, from a file."
)
@files_options
@signing_options
@click.option(
    "--use",
    metavar="PATH=VERSION",
    multiple=True,
    help="At a merge: whose version of this path to take where they conflict.",
)
@click.option(
    "--resolve-with", metavar="agent:NAME", help="At a merge: let this agent resolve the conflicts, then ask again."
)
@repo_option
def command(
    run: str,
    gate: str | None,
    choose: str,
    reason: str,
    reason_file: Path | None,
    author: str | None,
    no_resume: bool,
    output: str | None,
    output_file: Path | None,
    files: FilesChoice,
    use: tuple[str, ...],
    resolve_with: str | None,
    repo: Path | None,
    **signing: Any,
) -> int:
    if len([given for given in (use, resolve_with, output, output_file) if given not in (None, ())]) > 1:
        raise click.UsageError(
            "--use and --resolve-with answer a merge, --output and --output-file tell what ran: give one of them"
        )
    if resolve_with is not None and not re.fullmatch("agent:.+", resolve_with):
        raise click.BadParameter(f"{resolve_with!r} is not agent:NAME, as agent:claude", param_hint="--resolve-with")
    if output_file is not None:
        output = output_file.read_text(errors="surrogateescape")
    reason = read_reason(reason, reason_file)
    found = find_run(run, repo)
    gate_id = find_gate(found, gate)
    choose = choose or (IT_RAN if output is not None else "")
    told: Any = dict(map(_parse_use, use)) if use else resolve_with or output
    if use and len(told) < len(use):
        raise click.UsageError("--use names a path twice: one choice settles a path")
    if choose == IT_RAN:
        told = vouched_value(found, gate_id, output)
    signature = read_signature(found, gate_id, approved=True, choice=choose, reason=reason, **signing)
    if signature is None:
        return 0
    if not no_resume and found.record.holder is None:  # before it is answered: it could not go on here
        from agentos.client.upkeep import refuse_untrusted

        refuse_untrusted(found.place.root, "on_wait", "on_end")
    more = {"choice": choose, "reason": reason, "output": told, "signature": signature}
    became = answer(found, gate_id, approved=True, author=author, **more)
    said = f"answered with {printable(choose)}" if choose else "approved"
    say_outcome(found, f"{printable(gate_id)} {said}", became)
    now = Client(place=found.place).find(found.record.workflow_id)
    if no_resume or now.holder is not None or now.status in ("complete", "aborted"):
        return 0
    return _go_on(found, files)


def _go_on(found: FoundRun, files: FilesChoice) -> int:
    """Resume the run in this terminal, as `agentos resume` does; the exit code."""
    from agentos.cli.drive_flags import DriveFlags  # most answers are given to a run that is driven elsewhere
    from agentos.cli.terminal.session import drive_with_files, offer_rerun
    from agentos.client.runs import ResumeOptions, preview_resume, resume_run

    _, options, manner = DriveFlags().resolve(found.place.root)
    options = msgspec.structs.replace(options, files=files)
    run = found.record.workflow_id
    again, manner = offer_rerun(lambda: preview_resume(run, place=found.place, options=options, files=files), manner)
    choices = ResumeOptions(rerun=again)
    try:
        return drive_with_files(
            lambda options: resume_run(found.place, run, choices=choices, options=options),
            found.place,
            options,
            manner,
        )
    except LeaseHeldError as error:  # somebody else has begun to drive it meanwhile: that is as good
        say(f"{error.message}, and goes on there.")
        return 0


def _parse_use(text: str) -> tuple[str, str]:
    found = re.fullmatch(r"(.+?)=(worktree|(?:task|file):.+)", text, re.DOTALL)
    if found is None:
        raise click.BadParameter(f"{text!r} is not PATH=worktree, PATH=task:ID or PATH=file:PATH", param_hint="--use")
    path, version = found.groups()
    if version.startswith("file:"):  # as it is named from here, not from where the run goes on
        version = f"file:{os.path.abspath(version.removeprefix('file:'))}"
    return path, version
