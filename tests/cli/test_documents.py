"""What the commands say about themselves: help, examples, exit codes, and the documents made from them."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path

import click
import jsonschema
import pytest

from agentos.cli.json_shapes import commands, output_schema, output_type, prints_json
from agentos.cli.main import SECTIONS
from tests.cli.conftest import Agentos
from tools.write_docs import files, stale, write_schemas

COMMANDS = dict(commands())


def difference(path: Path, made: str) -> list[str]:
    written = path.read_text().splitlines() if path.exists() else []
    return list(difflib.unified_diff(written, made.splitlines(), "written", "made", n=0, lineterm=""))[:20]


def test_the_documents_are_those_of_the_commands() -> None:
    found = files()
    changed = {str(path): difference(path, found[path]) for path in stale(found)}
    assert changed == {}, "run `make docs`, and look at what changed"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_summary_then_an_example(name: str) -> None:
    text = (COMMANDS[name].help or "").removeprefix("\b\n")
    summary, _, rest = text.partition("\n")
    assert re.fullmatch(r"[A-Z].{5,90}\.", summary), f"agentos {name} needs one sentence first: {summary!r}"
    assert rest.lstrip("\n").startswith("\b\nExamples:\n"), f"agentos {name} needs examples right after its summary"
    assert f"  agentos {name}" in text or f"agentos {name}" in text, f"agentos {name} needs an example of itself"


@pytest.mark.parametrize("name", [name for section in SECTIONS.values() for name in section])
def test_the_summary_in_the_table_is_that_of_the_command(name: str) -> None:
    section = next(names for names in SECTIONS.values() if name in names)
    assert (COMMANDS[name].help or "").removeprefix("\b\n").splitlines()[0] == section[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help(name: str) -> None:
    silent = [option.name for option in COMMANDS[name].params if isinstance(option, click.Option) and not option.help]
    assert silent == []


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if prints_json(command)])
def test_every_command_with_json_has_a_documented_shape(name: str) -> None:
    assert output_type(name) is not None, f"the module of agentos {name} needs OUTPUT"
    schema = output_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"] == f"agentos {name} --json"


def test_make_schemas_writes_the_shape_of_files_and_of_every_command(tmp_path: Path) -> None:
    write_schemas(tmp_path / "schemas")
    written = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "schemas").iterdir()}
    printing = [name for name, command in COMMANDS.items() if prints_json(command)]
    assert written.keys() == {"workflow-1", *(name.replace(" ", "-") for name in printing)}
    assert written["workflow-1"]["title"] == "AgentOS workflow"


def test_help_names_every_command_and_loads_none(agentos: Agentos, tmp_path: Path) -> None:
    code = (
        "import sys; from agentos.cli import main; main.program.main(['--help'], standalone_mode=False);"
        "print([m for m in sys.modules if m.startswith('agentos.cli.commands.') or m in ('asyncio', 'sqlite3')])"
    )
    done = agentos("--help", cwd=tmp_path)
    assert [name for section in SECTIONS.values() for name in section if f"\n  {name} " not in done.out] == []
    import subprocess
    import sys

    from tests.cli.conftest import SOURCES

    said = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCES)}, capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments", [("lst",), ("--nonsense",), ("why", "a"), ("show", "a", "b"), ("events", "a", "--after", "x")]
)
def test_wrong_usage_is_told_in_few_lines(agentos: Agentos, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = agentos(*arguments, cwd=tmp_path)
    assert done.code == 2
    assert done.out == ""
    assert "Traceback" not in done.err
    assert "Error: " in done.err
