"""The documents say what the code does: nothing is missing in them, and what they show was typed for real.

What is run of them, and by which marks, is told in `tests/e2e/typing_documents.py`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

import agentos
from agentos import Client, client
from agentos.client import aresume, arun, fork, resume, run
from agentos.crashpoints import ALL_POINTS
from agentos.dag.define.settings import KINDS, known_settings
from agentos.dag.define.workflow import Workflow
from agentos.exceptions import AgentosError
from agentos.machine import commands as cmd
from agentos.machine import events as ev
from agentos.machine.state import TaskStatus, WorkflowState
from agentos.store.port import RunStatus
from agentos.store.sqlite.database import open_store
from agentos.tasks.context import Context
from agentos.workflow.checkpoint import Checkpoint, CheckpointManager
from agentos.workflow.drive.command_delivery import CommandQueue
from agentos.workflow.drive.event_stream import EventStream
from agentos.workflow.drive.result import RunResult
from agentos.workflow.executor import ControlledExecutor, ParallelExecutor
from agentos.workflow.start.ready_run import DriveOptions
from tests.e2e.typing_documents import blocks, follow, typed

ROOT = Path(__file__).parents[2]
PACKAGE = Path(agentos.__file__).parent
INDEX = ROOT / "docs" / "README.md"
PAGES = {
    path.relative_to(ROOT / "docs").as_posix(): path for path in sorted((ROOT / "docs").rglob("*.md")) if path != INDEX
}
DOCUMENTS = {"README.md": ROOT / "README.md", "docs/README.md": INDEX, **PAGES}
EVERY_DOCUMENT = sorted({*DOCUMENTS.values(), *ROOT.glob("*.md")})
OLDEST_SQLITE_PROGRAM = (3, 38)


def rows(document: str, *, of: str = "") -> dict[str, str]:
    """The rows of tables by the code in their first cell (several, where it names several), within one section."""
    found: dict[str, str] = {}
    for line in text_of(document, of).splitlines():
        if line.startswith("| "):
            for name in re.findall(r"`([^`]+)`", line.split(" | ")[0]):
                found[name] = line
    return found


def text_of(document: str, section: str = "") -> str:
    """The text of one section, or of the whole document."""
    text = DOCUMENTS[document].read_text()
    if not section:
        return text
    start = re.search(rf"^(#+) {re.escape(section)}$", text, flags=re.MULTILINE)
    assert start, f"{document} has no section {section!r}"
    rest = text[start.end() :]
    end = re.search(rf"^#{{1,{len(start[1])}}} ", rest, flags=re.MULTILINE)
    return rest[: end.start()] if end else rest


def calls(document: str, *, of: str) -> set[str]:
    """The names in the first cells of a section's tables: `send(command)` counts as send."""
    return {name.partition("(")[0] for name in rows(document, of=of)}


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


# --- nothing is missing -------------------------------------------------------------------------------------------


def event_types() -> list[type[ev.Event]]:
    return [kind for kind in vars(ev).values() if isinstance(kind, type) and issubclass(kind, ev.Event) and kind.type]


@pytest.mark.parametrize("kind", event_types(), ids=lambda kind: kind.type)
def test_every_event_is_documented_with_its_fields(kind: type[ev.Event]) -> None:
    row = rows("reference.md", of="Events").get(kind.type, "")
    own = [name for name in kind.__struct_fields__ if name not in ev.Event.__struct_fields__]
    assert row, f"docs/reference.md has no row for the event {kind.type}"
    assert [name for name in own if f"`{name}`" not in row] == []


def test_every_stored_event_is_one_of_those_documented() -> None:
    assert {kind.type for kind in ev.JOURNALED} <= {kind.type for kind in event_types()}
    documented = {name for section in ("The run and its drives", "Layers and tasks", "Files", "Gates and commands")
                  for name in rows("reference.md", of=section)}  # fmt: skip
    assert documented == {kind.type for kind in event_types()}


@pytest.mark.parametrize("kind", get_args(cmd.Command), ids=lambda kind: kind.__struct_config__.tag)
def test_every_command_is_documented_with_its_fields(kind: Any) -> None:
    row = rows("reference.md", of="Commands").get(kind.__struct_config__.tag, "")
    assert row, f"docs/reference.md has no row for the command {kind.__struct_config__.tag}"
    assert [name for name in kind.__struct_fields__ if name != "reason" and f"`{name}`" not in row] == []


def every_error() -> list[type[AgentosError]]:
    for module in pkgutil.walk_packages([str(PACKAGE)], "agentos."):
        if not module.name.startswith("agentos.demo") and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, left = [], [AgentosError]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        if kind.__module__.startswith("agentos.") and not kind.__name__.startswith("_"):
            found.append(kind)
    return found


def test_every_error_is_documented() -> None:
    documented = rows("reference.md", of="Errors")
    assert sorted(kind.__name__ for kind in every_error() if kind.__name__ not in documented) == []


def test_every_public_name_is_documented() -> None:
    said = (ROOT / "docs" / "reference.md").read_text()
    assert [name for name in agentos.__all__ if f"`{name}`" not in said] == []
    assert len(agentos.__all__) <= 15


def test_every_name_of_the_client_is_documented() -> None:
    said = (ROOT / "docs" / "reference.md").read_text()
    assert [name for name in client.__all__ if not re.search(rf"`{name}\b", said)] == []


@pytest.mark.parametrize(
    ("kind", "section"),
    [
        (Client, "Client"),
        (RunResult, "RunResult"),
        (Context, "Context"),
        (CheckpointManager, "Executors and checkpoints"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_public_method_is_documented(kind: type, section: str) -> None:
    ours = {"close"} if kind is Context else set()  # the engine's end of it
    assert public(kind) - ours - calls("reference.md", of=section) == set()


@pytest.mark.parametrize(
    "kind", [ParallelExecutor, ControlledExecutor, EventStream, CommandQueue, Checkpoint, DriveOptions, WorkflowState]
)
def test_every_part_of_what_runs_are_made_of_is_named(kind: type) -> None:
    said = (ROOT / "docs" / "reference.md").read_text()
    names = set(getattr(kind, "__struct_fields__", ())) or public(kind)
    assert [name for name in sorted(names) if not re.search(rf"`(?:await |{kind.__name__}\.)?{name}\b", said)] == []


def calls_of(kind: type) -> dict[str, Callable[..., Any]]:
    return {name: found for name in sorted(public(kind)) if inspect.isfunction(found := getattr(kind, name))}


SIGNATURES: dict[str, dict[str, Callable[..., Any]]] = {
    "run, arun": {"run": run, "arun": arun},
    "resume, aresume": {"resume": resume, "aresume": aresume},
    "fork": {"fork": fork},
    "Client": {"Client": Client, **calls_of(Client)},
    "agentos.client": {
        name: call
        for name in client.__all__
        if inspect.isfunction(call := getattr(client, name)) and call not in (run, arun, resume, aresume, fork)
    },
    "RunResult": calls_of(RunResult),
    "Context": {name: call for name, call in calls_of(Context).items() if name != "close"},
    "Workflow and tasks": {"Workflow": Workflow, "add": Workflow.add},
    "Executors and checkpoints": {
        kind.__name__ if name == "__init__" else name: kind if name == "__init__" else getattr(kind, name)
        for kind, names in {
            ParallelExecutor: ("__init__", "execute"),
            ControlledExecutor: ("__init__", "execute_stream", "resume_from_checkpoint"),
            EventStream: ("subscribe",),
            CommandQueue: ("send", "waiting", "of_run"),
            CheckpointManager: ("__init__", *calls_of(CheckpointManager)),
        }.items()
        for name in names
    },
}
"""What the reference writes with its arguments, by section."""


def written(call: Callable[..., Any]) -> str:
    """The arguments as the reference writes them: without types, and with … for a default that is no literal."""
    parts: list[str] = []
    marks: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    for one in inspect.signature(call).parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        default = f'"{one.default}"' if isinstance(one.default, str) else repr(one.default)
        try:
            ast.literal_eval(default)
        except (SyntaxError, ValueError):
            default = "…"
        name = marks.get(one.kind, "") + one.name
        parts.append(name if one.default is one.empty else f"{name}={default}")
    return ", ".join(parts)


@pytest.mark.parametrize(
    ("section", "name"), [(section, name) for section, calls in SIGNATURES.items() for name in calls]
)
def test_every_documented_signature_is_that_of_the_code(section: str, name: str) -> None:
    """Names, order, defaults and which are by name only; the first mention in the section counts."""
    said = re.findall(rf"`(?:await |[\w.]+\.)?{name}\(([^`]*)\)(?: -> \w+)?`", text_of("reference.md", section))
    assert said[:1] == [written(SIGNATURES[section][name])]


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_is_documented(kind: str) -> None:
    documented = rows("reference.md", of="Settings of a task")
    assert [name for name in known_settings(kind) if name not in documented] == []


def test_every_status_is_documented() -> None:
    said = (ROOT / "docs" / "reference.md").read_text()
    statuses = {*get_args(TaskStatus), *get_args(RunStatus)}
    assert sorted(status for status in statuses if f"`{status}`" not in said) == []


def test_every_verdict_gate_and_answer_is_documented() -> None:
    said = (ROOT / "docs" / "workflow.md").read_text()
    assert [verdict for verdict in get_args(ev.Verdict) if f"`{verdict}`" not in said] == []
    assert set(get_args(ev.GateKind)) <= set(rows("reference.md", of="Gates"))
    decided = rows("reference.md", of="Events")["decision_made"]
    assert [answer for answer in get_args(ev.Answer) if f"`{answer}`" not in decided] == []


def test_every_crash_point_is_documented() -> None:
    documented = rows("decisions/crash-points.md")
    assert [point for point in ALL_POINTS if point not in documented] == []
    # What only looks like one: attributes of ours, and names of files.
    ends = {point.partition(".")[2] for point in ALL_POINTS}
    known = {name for name in documented if re.fullmatch(r"[a-z]+\.[a-z_]+", name) and name.partition(".")[2] in ends}
    assert known == set(ALL_POINTS)


def test_make_help_lists_every_target() -> None:
    targets = re.findall(r"^([a-z][a-z-]*):(?!=)(.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert [name for name, rest in targets if "## " not in rest] == []


def test_every_variable_is_documented() -> None:
    source = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    used = {name.rstrip("_") for name in re.findall(r"AGENTOS_[A-Z_]+", source)}
    said = (ROOT / "docs" / "reference.md").read_text()
    assert sorted(name for name in used if f"`{name}" not in said) == []


@pytest.mark.parametrize("view", ["runs", "tasks", "events", "workflow_checkpoint"])
def test_every_column_of_the_stable_views_is_documented(view: str, tmp_path: Path) -> None:
    open_store(tmp_path / "database", create=True).close()
    connection = sqlite3.connect(tmp_path / "database")
    try:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({view})")]
        views = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'view'")}
    finally:
        connection.close()
    assert columns
    assert [name for name in columns if name not in rows("sql.md", of=view)] == []
    assert {name for name in views if not name.startswith("_")} == {"runs", "tasks", "events", "workflow_checkpoint"}


# --- nothing is made up -------------------------------------------------------------------------------------------


def test_the_first_run_fits_on_a_screen() -> None:
    workflow, session = [block for block in blocks(DOCUMENTS["README.md"]) if block.mark][:2]
    assert workflow.mark == "file=workflows/first.yaml"
    assert len(workflow.text.splitlines()) + len(session.text.splitlines()) <= 24
    assert len(typed(session)) <= 4


def test_the_first_run_in_python_takes_less_than_twelve_lines() -> None:
    [program] = [block for block in blocks(DOCUMENTS["README.md"]) if block.mark == "file=first.py"]
    assert len(program.text.splitlines()) < 12


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_python_block_is_one_that_is_run(document: str) -> None:
    known = re.compile(r"run(?: all)?|file=[a-z_/]+\.(?:py|yaml|md)")
    found = [block for block in blocks(DOCUMENTS[document]) if block.mark or block.language == "python"]
    assert [f"{document}:{block.line}" for block in found if not known.fullmatch(block.mark)] == []


def test_nobody_is_told_to_install_a_package_of_somebody_else() -> None:
    told = [
        f"{path.name}: {line}"
        for path in EVERY_DOCUMENT
        for line in path.read_text().splitlines()
        # `--from agentos-workflow` names the package; what follows is the program in it.
        if re.search(
            r"\b(pip|pipx|uv|uvx|poetry)\b.* (install|add|run)?\s*agentos\b(?!-workflow)",
            line.replace("--from agentos-workflow agentos", ""),
        )
    ]
    assert told == []


@pytest.mark.parametrize("path", EVERY_DOCUMENT, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        if "://" in target:
            continue
        there = (path.parent / file).resolve() if file else path
        if not there.exists() or (anchor and anchor not in anchors(there)):
            dead.append(target)
    assert dead == []


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_in_the_index(page: str) -> None:
    assert f"]({page})" in (PAGES["ARCHITECTURE.md"] if page.startswith("decisions/") else INDEX).read_text()


def anchors(path: Path) -> set[str]:
    """The anchors of headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# --- what they show was typed for real ----------------------------------------------------------------------------


MARKED = [name for name, path in DOCUMENTS.items() if any(block.mark for block in blocks(path))]


@pytest.fixture
def desk(
    tmp_git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    """A repository to type in, with `python`, `agentos` and `sqlite3` on the PATH."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, begins in {"python": "", "agentos": "-m agentos "}.items():
        (tools / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {begins}"$@"\n')
        (tools / name).chmod(0o755)
    if why := _no_sqlite_program():
        with capsys.disabled():
            print(f"{why}: its commands are answered by Python's sqlite3 {sqlite3.sqlite_version}")
        (tools / "sqlite3").write_text(f"#!{sys.executable}\n{STAND_IN}")
        (tools / "sqlite3").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE.parent))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return tmp_git_repo


def _no_sqlite_program() -> str:
    if shutil.which("sqlite3") is None:
        return "the sqlite3 program is not installed"
    said = subprocess.run(["sqlite3", "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, said.split()[0].split(".")[:2])) < OLDEST_SQLITE_PROGRAM:
        return f"the sqlite3 program is {said.split()[0]}, too old for the views"
    return ""


STAND_IN = """
import sqlite3, sys
database, sql = [word for word in sys.argv[1:] if word != "-readonly"]
for row in sqlite3.connect(f"file:{database}?mode=ro", uri=True).execute(sql):
    print("|".join("" if value is None else str(value) for value in row))
"""


@pytest.mark.full
@pytest.mark.parametrize("document", [name for name in MARKED if name not in ("README.md", "tutorial.md")])
def test_what_a_document_shows_is_what_happens(document: str, desk: Path) -> None:
    """README and tutorial are typed in a fresh clone, by test_newcomer.py."""
    follow(DOCUMENTS[document], desk)


def test_every_claim_about_security_names_a_test_that_exists() -> None:
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    text = PAGES["security.md"].read_text()
    claims = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| claim")]
    assert len(claims) > 20
    for claim in claims:
        names = re.findall(r"`(test_\w+)`", claim)
        assert names, f"no test holds: {claim}"
        assert not [name for name in names if f"def {name}(" not in written], claim
