"""Write what the code says about itself into docs/: docs/cli.md, docs/schemas/ for the JSON of commands, and the graph
of the issue workflow in docs/howto-issues.md.

`make docs` runs it; with `--check` it writes nothing, and fails where something is out of date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from agentos.cli import exits
from agentos.cli.json_shapes import commands, output_schema, prints_json
from agentos.cli.main import SECTIONS, program
from agentos.cli.render.plan_drawing import mermaid
from agentos.dag.define.workflow import Workflow
from agentos.workflow.define.plans import plan_to_look_at
from agentos.workflows.issue.flow import issue

DOCS = Path(__file__).parents[1] / "docs"
ISSUES = DOCS / "howto-issues.md"
WIDTH = 100

INTRODUCTION = """\
# Command line

Made from the commands themselves by `make docs`; a test fails where it differs from them. The same text is in
`agentos COMMAND --help`.

Data goes to stdout, messages go to stderr. A command that prints data has `--json`, and the shape of that is in
[schemas/](schemas/). Ids can be cut short to a beginning that nothing else shares; an exact id wins. `RUN` is looked
for in this worktree first, then in every worktree known on this machine; `--repo PATH` says which.
"""


def files() -> dict[Path, str]:
    """Every file this tool is for, with what belongs into it."""
    made = {DOCS / "cli.md": reference(), ISSUES: with_graph(ISSUES.read_text(), issue)}
    for name, command in commands():
        if prints_json(command):
            schema = json.dumps(output_schema(name), indent=2, ensure_ascii=False)
            made[schema_file(name)] = f"{schema}\n"
    return made


def with_graph(page: str, flow: Workflow) -> str:
    """The page with its picture of this workflow, as `agentos graph` draws it."""
    before, _, rest = page.partition("```mermaid\n")
    _, fence, after = rest.partition("```\n")
    lines = "\n".join(mermaid(plan_to_look_at(flow), {}))
    return f"{before}```mermaid\n{lines}\n{fence}{after}"


def schema_file(name: str) -> Path:
    return DOCS / "schemas" / f"{name.replace(' ', '-')}.json"


def reference() -> str:
    """docs/cli.md: exit codes, then every command by section."""
    known = dict(commands())
    parts = [INTRODUCTION, _exit_codes()]
    for section, names in SECTIONS.items():
        if not names:
            continue
        parts.append(f"## {section}\n")
        for name in names:
            below = [other for other in known if other.startswith(f"{name} ")]
            parts += [_command(full, known[full], depth=len(full.split())) for full in (name, *below)]
    return "\n".join(parts)


def _exit_codes() -> str:
    rows = "".join(f"| {code.value} | {meaning} |\n" for code, meaning in exits.MEANINGS.items())
    return f"## Exit codes\n\n| code | means |\n|---|---|\n{rows}"


def _command(name: str, command: click.Command, *, depth: int) -> str:
    context = _context(name, command)
    text = command.get_help(context).rstrip()
    schema = (
        f"\nJSON: [schemas/{schema_file(name).name}](schemas/{schema_file(name).name})\n"
        if prints_json(command)
        else ""
    )
    return f"##{'#' * depth} agentos {name}\n\n```text\n{text}\n```\n{schema}"


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
