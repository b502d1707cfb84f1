"""Which briefs are meant: named, chosen, all of them, or the one of a run that goes on."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from agentos.cli.boundary import Exit
from agentos.cli.issue.single import command_for
from agentos.cli.output import say
from agentos.cli.terminal.gate_prompt import is_interactive
from agentos.client.places import Place, repo_argument
from agentos.client.worktree import Client
from agentos.exceptions import RunRefusedError
from agentos.ids import short_id
from agentos.render.text import count, printable
from agentos.workflows.issue import briefs


def chosen_files(
    client: Client, brief: str | None, select: bool, all_: bool, resume: str | None, typed: Sequence[str]
) -> list[Path] | int:
    """The briefs that are meant; an exit code where that could not be asked. `typed` are the settings beside them."""
    typed_ways = {"--brief": brief is not None, "--select": select, "--all": all_, "--resume": resume is not None}
    ways = [name for name, given in typed_ways.items() if given]
    if len(ways) != 1:
        nothing = "Say what: --brief FILE, --select, --all or --resume."
        said = f"{' and '.join(ways)} exclude each other." if ways else nothing
        raise click.UsageError(said)
    if brief is not None:
        if not brief:
            raise click.UsageError("--brief takes a file; --select lets you choose one of ideas/active/.")
        # The file of this name here; where there is none, the one at the root, from which `--all` tells names.
        at_root = client.place.root / brief
        return [at_root if os.path.lexists(at_root) and not os.path.lexists(brief) else Path(brief)]
    if resume is not None:
        return [_brief_of_run(client, resume)]
    found, encrypted = briefs.ideas(client.place.root)
    if encrypted:
        say(f"{count(encrypted, 'brief')} encrypted by git-crypt left out.")
    return found if all_ else _select_briefs(client.place, found, typed)


def _brief_of_run(client: Client, name: str) -> Path:
    """The brief of the run that is meant."""
    run = (
        briefs.issue_run(client, name.removeprefix("issue-"))
        if name
        else next(iter(briefs.list_unfinished(client)), None)
    )
    if run is None:
        known = ", ".join(run.name for run in briefs.list_unfinished(client)) or "none"
        what = f"no issue {printable(name)!r} was begun here" if name else "no unfinished issue is here"
        raise click.UsageError(f"{what}; unfinished: {known}")
    file = client.place.root / str(run.params["brief"])
    if not file.exists():
        again = f"agentos resume {shlex.quote(short_id(run.workflow_id))}{repo_argument(client.place)}"
        step = f"{again} goes on with what the run keeps of it."
        raise RunRefusedError(f"the brief {file} is gone", next_step=step)
    return file


def _select_briefs(place: Place, found: Sequence[Path], typed: Sequence[str]) -> list[Path] | int:
    if not found:
        say(f"There is no brief in {briefs.IDEAS} of {place.root}.")
        return Exit.COMPLETE
    for number, file in enumerate(found, 1):
        say(f"{number:>3}  {printable(file.stem)}")
    if not is_interactive():
        say(f"Choose one: {printable(command_for(found[0], place, typed))}")
        return Exit.WAITING
    while True:
        typed = click.prompt("Which? Numbers with spaces between them, `a` for all, `q` for none", err=True)
        chosen = _numbers(typed, len(found))
        if chosen is not None:
            return [found[number - 1] for number in chosen] or Exit.COMPLETE
        say(f"They go from 1 to {len(found)}.")


def _numbers(typed: str, most: int) -> list[int] | None:
    """The numbers typed; None where that is none of them."""
    words = typed.replace(",", " ").split()
    if words in (["a"], ["q"]):
        return list(range(1, most + 1)) if words == ["a"] else []
    if not words or not all(word.isdecimal() and 1 <= int(word) <= most for word in words):
        return None
    return list(dict.fromkeys(map(int, words)))
