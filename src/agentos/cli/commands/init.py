"""`agentos init`"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import click

from agentos.cli.options import json_option, repo_option
from agentos.cli.output import print_json, print_table, say
from agentos.client.definitions import FOLDER, SUFFIXES, file_schema, path_from_here
from agentos.client.places import find_location, find_root
from agentos.exceptions import RunRefusedError

OUTPUT = dict[str, str]
"""What was written, by its path; with --list what each template does, by its name."""
SCHEMA = ".workflow-1.schema.json"
"""As the first line of each template names it; the number changes when a workflow that was good no longer is."""
_FOLDER = files("agentos.cli") / "templates"
_IGNORED = ".agentos/"


@click.command(
    "init",
    help="""\b
Write a small workflow to start from.

\b
Examples:
  agentos init
  agentos init --list                     what else there is to start from
  agentos init --from fix-tests           workflows/fix-tests.yaml
  agentos init ci --from release          the same under another name
  agentos init first --python

Writes workflows/NAME.yaml at the root of this repository, and beside it the schema by which editors complete and
check it; commit both. A workflow that is there already is left as it is. AgentOS hides its own folder from git
without your .gitignore; --gitignore adds a line for it all the same.

\b
Exit codes:
  0  written
  1  there is no repository here, or it cannot be written
  2  there is such a workflow already
""",
)
@click.argument("name", required=False)
@click.option("--from", "template", metavar="TEMPLATE", default="hello", help="The workflow to start from.")
@click.option("--list", "lists", is_flag=True, help="List the workflows to start from.")
@click.option("--python", "as_python", is_flag=True, help="Write Python instead of YAML.")
@click.option("--gitignore", is_flag=True, help="Add .agentos/ to the .gitignore at the root.")
@json_option
@repo_option
def command(
    name: str | None, template: str, lists: bool, as_python: bool, gitignore: bool, as_json: bool, repo: Path | None
) -> None:
    templates = _templates()
    if lists:
        if as_json:
            print_json(templates)
        else:
            print_table(("TEMPLATE", "WHAT IT DOES"), list(templates.items()), empty="")
            say("Next: agentos init --from TEMPLATE")
        return
    if template not in templates:
        raise click.UsageError(f"there is no template {template!r}: {', '.join(templates)}")
    if as_python and template != "hello":
        raise click.UsageError(f"{template} is written in YAML; --python goes with hello alone")
    name = template if name is None else name
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
    text = (_FOLDER / f"{template}{suffix}").read_text()
    _write_new(path, text if name == template else re.sub(rf"\b{template}\b", name, text))
    written = {path_from_here(path): "workflow"}
    if not as_python and not (schema := folder / SCHEMA).exists():
        _write_new(schema, json.dumps(file_schema(), indent=2) + "\n")
        written[path_from_here(schema)] = "schema"
    if gitignore and _add_ignored(root):
        written[path_from_here(root / ".gitignore")] = "gitignore"
    if as_json:
        print_json(written)
        return
    click.echo("\n".join(written))
    say(f"Next:\n  agentos check {name}\n  agentos run {name}")


def _templates() -> dict[str, str]:
    """The first sentence of each, by its name."""
    found = {Path(file.name).stem: file.read_text() for file in _FOLDER.iterdir() if file.name.endswith(".yaml")}
    return {name: found[name].splitlines()[1].removeprefix("# ").removesuffix(" Try it:") for name in sorted(found)}


def _write_new(path: Path, text: str) -> None:
    with path.open("x") as file:  # never over a file that came between
        try:
            file.write(text)
            file.flush()
        except OSError:
            path.unlink()  # a full disk: half a workflow is worse than none
            raise


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
