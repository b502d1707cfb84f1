"""`agentos init`"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import click

from agentos.cli.options import repo_option
from agentos.cli.output import say
from agentos.client.definitions import FOLDER, SUFFIXES, path_from_here
from agentos.client.places import find_location, find_root
from agentos.exceptions import RunRefusedError

_IGNORED = ".agentos/"


@click.command(
    "init",
    help="""\b
Write a small workflow to start from.

\b
Examples:
  agentos init
  agentos init release --python
  agentos init --gitignore

Writes workflows/NAME.yaml at the root of this repository and nothing else; a file that is there already is left as
it is. AgentOS hides its own folder from git without your .gitignore; --gitignore adds a line for it all the same.

\b
Exit codes:
  0  written
  1  there is no repository here, or it cannot be written
  2  there is such a workflow already
""",
)
@click.argument("name", default="hello")
@click.option("--python", "as_python", is_flag=True, help="Write Python instead of YAML.")
@click.option("--gitignore", is_flag=True, help="Add .agentos/ to the .gitignore at the root.")
@repo_option
def command(name: str, as_python: bool, gitignore: bool, repo: Path | None) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,99}", name):
        raise click.UsageError(f"{name!r} cannot be the name of a workflow: up to 100 letters, digits, - and _.")
    find_location(repo)  # a workflow that could not be run afterwards is no start
    root = find_root(repo)
    folder = root / FOLDER
    for path in (folder, *([root / ".gitignore"] if gitignore else [])):
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
            raise RunRefusedError(
                f"{path_from_here(path)} is a link that leads out of the repository",
                next_step="Move it out of the way.",
            )
    there = [folder / f"{name}{suffix}" for suffix in SUFFIXES if (folder / f"{name}{suffix}").exists()]
    if there:
        raise RunRefusedError(
            f"{path_from_here(there[0])} is there already",
            next_step=f"Choose another name: agentos init NAME. Or run this one: agentos run {name}",
        )
    suffix = ".py" if as_python else ".yaml"
    path = folder / f"{name}{suffix}"
    folder.mkdir(exist_ok=True)
    template = (files("agentos.cli") / "templates" / f"hello{suffix}").read_text()
    text = template if name == "hello" else re.sub(r"\bhello\b", name, template)
    with path.open("x") as file:  # never over a file that came between
        try:
            file.write(text)
            file.flush()
        except OSError:
            path.unlink()  # a full disk: half a workflow is worse than none
            raise
    click.echo(path_from_here(path))
    if gitignore and _add_ignored(root):
        click.echo(path_from_here(root / ".gitignore"))
    say(f"Next:\n  agentos check {name}\n  agentos run {name}")


def _add_ignored(root: Path) -> bool:
    """Whether the line had to be added."""
    path = root / ".gitignore"
    text = ""
    with suppress(FileNotFoundError):
        text = path.read_text(errors="surrogateescape")
    if any(line.strip() in (_IGNORED, f"/{_IGNORED}", ".agentos", "/.agentos") for line in text.splitlines()):
        return False
    newline = "" if not text or text.endswith("\n") else "\n"
    with path.open("a", errors="surrogateescape") as file:
        file.write(f"{newline}{_IGNORED}\n")
    return True
