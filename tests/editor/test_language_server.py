"""What an editor makes of the workflows that `agentos init` writes, and of the schema that their first line names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.dag.define.schema import file_schema
from tests.cli.conftest import Agentos, agentos
from tests.editor.language_server import PROGRAM, LanguageServer, offline_server

__all__ = ["agentos"]

pytestmark = [
    pytest.mark.full,  # a program from npm
    pytest.mark.skipif(
        not PROGRAM.exists(),
        reason="yaml-language-server is not installed (`make language-server`, with node and npm): "
        "what editors make of workflow files is not tested here",
    ),
]

TEMPLATES = ("hello", "fix-tests", "review", "release", "nightly", "migrate")


@pytest.fixture
def server(tmp_git_repo: Path, tmp_path: Path) -> Iterator[LanguageServer]:
    with offline_server(tmp_git_repo, tmp_path) as server:
        yield server


@pytest.fixture(params=TEMPLATES)
def workflow(request: pytest.FixtureRequest, agentos: Agentos, tmp_git_repo: Path) -> Path:
    """A workflow as `agentos init` writes it, with its schema beside it."""
    words = ["--from", request.param] if request.param != "hello" else []
    assert agentos("init", *words, cwd=tmp_git_repo).code == 0
    return tmp_git_repo / "workflows" / f"{request.param}.yaml"


def test_a_new_workflow_has_no_flaw_and_its_keys_are_explained(server: LanguageServer, workflow: Path) -> None:
    assert server.diagnose(workflow) == []
    # Without its schema a document has no flaw either, but then nothing is explained.
    lines = workflow.read_text().splitlines()
    explained = server.describe(workflow, lines.index("tasks:") + 1, column=2)
    assert file_schema()["properties"]["tasks"]["description"] in explained


def test_a_wrong_key_is_flagged_in_its_line_and_nothing_else(server: LanguageServer, workflow: Path) -> None:
    line = break_task(workflow, "timeuot_s: 5")
    assert server.diagnose(workflow) == [(line, "Property timeuot_s is not allowed.")]


def test_settings_are_offered_where_they_may_stand(server: LanguageServer, workflow: Path) -> None:
    line = break_task(workflow, "time")
    server.diagnose(workflow)
    assert "timeout_s" in server.complete(workflow, line, len("    time"))


def break_task(workflow: Path, wrong: str) -> int:
    """Put a line into the first task that runs a command, before its command; its number."""
    lines = workflow.read_text().splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("    run:"))
    workflow.write_text("\n".join([*lines[:place], f"    {wrong}", *lines[place:], ""]))
    return place + 1
