"""Write what the code says about itself into docs/: docs/cli.md, and docs/schemas/ for the JSON of commands.

`make docs` runs it; with `--check` it writes nothing, and fails where something is out of date.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import click

from agentos.cli import exits
from agentos.cli.json_shapes import commands, output_schema, prints_json
from agentos.cli.main import SECTIONS, program

DOCS = Path(__file__).parents[1] / "docs"
WIDTH = 100
SHARED = 3
"""An option that so many commands have, in the same words, is explained once."""
Option = tuple[str, str]
"""How an option is written, and what its help says."""
EVERYWHERE: list[Option] = [
    ("-h, --help", "Show this message and exit."),
    ("--repo PATH", "Work on this repository or worktree (default: the one here)."),
]
"""Not named again with each command."""

INTRODUCTION = """\
# Command line

Made from the commands by `make docs`. `agentos COMMAND --help` has more: examples, details, and exit codes of its own.

Data goes to stdout, messages go to stderr. The shape of what `--json` prints is in [schemas/](schemas/). An id can be
cut short to a unique beginning. `RUN` is looked for in this worktree first, then in every worktree known on this
machine; `--repo PATH`, which nearly every command has, says which.
"""


def files() -> dict[Path, str]:
    """Every file this tool is for, with what belongs into it."""
    made = {DOCS / "cli.md": reference()}
    for name, command in commands():
        if prints_json(command):
            schema = json.dumps(output_schema(name), indent=2, ensure_ascii=False)
            made[schema_file(name)] = f"{schema}\n"
    return made


def schema_file(name: str) -> Path:
    return DOCS / "schemas" / f"{name.replace(' ', '-')}.json"


def reference() -> str:
    """docs/cli.md: exit codes, shared options, then every command by section."""
    known = dict(commands())
    counted = Counter(record for name, command in known.items() for record in _options(name, command))
    shared = [record for record, count in counted.items() if count >= SHARED]
    parts = [INTRODUCTION, _exit_codes(), f"## Options of several commands\n\n```text\n{_listed(shared)}```\n"]
    for section, names in SECTIONS.items():
        if not names:
            continue
        parts.append(f"## {section}\n")
        for name in names:
            below = [other for other in known if other.startswith(f"{name} ")]
            parts += [_command(full, known[full], shared) for full in (name, *below)]
    return "\n".join(parts)


def _exit_codes() -> str:
    rows = "".join(f"| {code.value} | {meaning} |\n" for code, meaning in exits.MEANINGS.items())
    return f"## Exit codes\n\n| code | means |\n|---|---|\n{rows}"


def _command(name: str, command: click.Command, shared: list[Option]) -> str:
    summary = (command.help or "").removeprefix("\b\n").partition("\n")[0]
    pieces = command.collect_usage_pieces(_context(name, command))
    usage = " ".join(["agentos", name, *(piece for piece in pieces if piece != "[OPTIONS]")])
    options = _options(name, command)
    own = _listed([option for option in options if option not in shared])
    also = ", ".join(f"`{_long_name(option)}`" for option in options if option in shared and option not in EVERYWHERE)
    if prints_json(command):
        also = also.replace("`--json`", f"[`--json`](schemas/{schema_file(name).name})")
    parts = [f"{'#' * (2 + len(name.split()))} agentos {name}", summary, f"```text\n{usage}\n{own}```"]
    return "\n\n".join([*parts, *([f"Also {also}."] if also else [])]) + "\n"


def _listed(options: list[Option]) -> str:
    formatter = click.HelpFormatter(width=WIDTH)
    if options:
        with formatter.indentation():
            formatter.write_dl(options)
    return formatter.getvalue()


def _long_name(option: Option) -> str:
    return next(word for word in option[0].replace(",", " ").split() if word.startswith("--"))


def _options(name: str, command: click.Command) -> list[Option]:
    context = _context(name, command)
    options = [param for param in command.get_params(context) if isinstance(param, click.Option)]
    records = [option.get_help_record(context) for option in options]
    return [record for record in records if record is not None]


def _context(name: str, command: click.Command) -> click.Context:
    """As on a terminal of a fixed width: the page must not depend on who makes it."""
    context = click.Context(program, info_name="agentos", **program.context_settings)
    for word in name.split():
        context = click.Context(command, info_name=word, parent=context)
    context.terminal_width = context.max_content_width = WIDTH
    return context


def stale(wanted: dict[Path, str]) -> list[Path]:
    """Files that differ, are missing, or are no longer made by anything."""
    different = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    return [*different, *(path for path in (DOCS / "schemas").glob("*") if path not in wanted)]


def main() -> int:
    wanted = files()
    found = stale(wanted)
    if "--check" in sys.argv[1:]:
        for path in found:
            print(f"out of date: {path.relative_to(DOCS.parent)} (make docs)", file=sys.stderr)
        return 1 if found else 0
    for path in found:
        if path in wanted:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path])
        else:
            path.unlink()
        print(path.relative_to(DOCS.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
