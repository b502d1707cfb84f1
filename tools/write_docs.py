"""Write what the code says about itself: docs/cli.md, the settings in docs/reference.md, the schema of workflow files.

`make docs` runs it; with `--check` it writes nothing, and fails where something is out of date. `make schemas` runs it
with `--schemas FOLDER`, which is given every JSON shape of the program.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from agentos.cli import boundary
from agentos.cli.json_shapes import commands, output_schema, prints_json
from agentos.cli.main import SECTIONS, program
from agentos.dag.define.schema import file_schema, setting_schema
from agentos.dag.define.settings import SETTINGS

DOCS = Path(__file__).parents[1] / "docs"
FILE_SCHEMA = DOCS.parent / "src/agentos/schemas/workflow-1.json"
"""Part of the package. Another number when a workflow file that was good no longer is."""
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

Data goes to stdout, messages go to stderr. `agentos schema COMMAND` prints the shape of its `--json`. An id can be
cut short to a unique beginning. `RUN` is looked for in this worktree first, then in every worktree known on this
machine; `--repo PATH`, which nearly every command has, says which.
"""


def files() -> dict[Path, str]:
    """Every file this tool is for, with what belongs into it."""
    page = (DOCS / "reference.md").read_text()
    return {
        DOCS / "cli.md": reference(),
        DOCS / "reference.md": with_settings(page),
        FILE_SCHEMA: as_text(file_schema()),
    }


def with_settings(page: str) -> str:
    """The page with its table of the settings of a task."""
    begin, end = "<!-- settings: made by `make docs` -->\n", "<!-- end of settings -->\n"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    rows = "".join(
        f"| `{name}` | {', '.join(setting.kinds) or 'all'} | {takes(setting_schema(name))} | {setting.about} |\n"
        for name, setting in SETTINGS.items()
    )
    return f"{before}{begin}| setting | of | takes | |\n|---|---|---|---|\n{rows}{end}{after}"


def takes(schema: dict[str, Any]) -> str:
    """What may be written, in a few words."""
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(word)}`" for word in schema["enum"] if word != "")
    if "anyOf" in schema:
        return ", or ".join(takes(one) for one in schema["anyOf"])
    if schema.get("properties"):
        defaults = {name: one.get("default", "") for name, one in schema["properties"].items()}
        names = (f"`{name}`{f' ({default})' if default != '' else ''}" for name, default in defaults.items())
        return f"a map of {', '.join(names)}"
    if schema.get("type") == "array":
        return f"a list of {takes(schema['items'])}" if "enum" in schema["items"] else "a list"
    return {"string": "text", "boolean": "true or false", "object": "a map"}.get(schema["type"], "a number")


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
    rows = "".join(f"| {code.value} | {meaning} |\n" for code, meaning in boundary.MEANINGS.items())
    return f"## Exit codes\n\n| code | means |\n|---|---|\n{rows}"


def _command(name: str, command: click.Command, shared: list[Option]) -> str:
    summary = (command.help or "").removeprefix("\b\n").partition("\n")[0]
    pieces = command.collect_usage_pieces(_context(name, command))
    usage = " ".join(["agentos", name, *(piece for piece in pieces if piece != "[OPTIONS]")])
    options = _options(name, command)
    own = _listed([option for option in options if option not in shared])
    also = ", ".join(f"`{_long_name(option)}`" for option in options if option in shared and option not in EVERYWHERE)
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


def write_schemas(folder: Path) -> None:
    """Every JSON shape of the program: of workflow files, and of what each command prints with --json."""
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {name.replace(" ", "-"): output_schema(name) for name, command in commands() if prints_json(command)}
    for name, schema in {**shapes, FILE_SCHEMA.stem: file_schema()}.items():
        (folder / f"{name}.json").write_text(as_text(schema))


def as_text(schema: dict[str, Any]) -> str:
    return f"{json.dumps(schema, indent=2, ensure_ascii=False)}\n"


def stale(wanted: dict[Path, str]) -> list[Path]:
    """Files that differ or are missing."""
    return [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]


def main() -> int:
    if "--schemas" in sys.argv[1:]:
        write_schemas(Path(sys.argv[-1]))
        return 0
    wanted = files()
    found = stale(wanted)
    if "--check" in sys.argv[1:]:
        for path in found:
            print(f"out of date: {path.relative_to(DOCS.parent)} (make docs)", file=sys.stderr)
        return 1 if found else 0
    for path in found:
        path.write_text(wanted[path])
        print(path.relative_to(DOCS.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
