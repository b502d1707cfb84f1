"""Workflows found by path, or by name in `workflows/`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.dag.plan.plan import compile_plan
from agentos.exceptions import (
    RunRefusedError,
    WorkflowDefinitionError,
    WorkflowFileError,
    WorkflowNotFoundError,
)
from agentos.workflow.define.workflow_source import find_workflow, load_workflow, source_of

YAML = "tasks: {a: {run: ls}}\n"
PYTHON = "from agentos import Workflow\nflow = Workflow('named')\nflow.add('a', lambda: 1)\n"


@pytest.fixture(autouse=True)
def _modules_come_and_go(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for name in set(sys.modules) - before:
        if not name.startswith("agentos"):
            del sys.modules[name]


def write(path: Path, text: str = YAML) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("file", "text", "asked"),
    [
        ("workflows/one.yaml", YAML, "one"),
        ("workflows/one.yml", YAML, "one"),
        ("workflows/sub/one.yaml", YAML, "sub/one"),
        ("flows/one.yaml", YAML, "flows/one.yaml"),
        ("workflows/found_by_name.py", PYTHON, "found_by_name"),
        ("flows/found-by-path.py", PYTHON, "flows/found-by-path.py"),
    ],
)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_workflow_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, asked: str, elsewhere: bool
) -> None:
    path = write(tmp_path / "root" / file, text)
    write(tmp_path / "away" / "x", "")
    monkeypatch.chdir(tmp_path / ("away" if elsewhere else "root"))
    flow = find_workflow(asked, tmp_path / "root")
    assert flow.name == ("named" if text is PYTHON else "one")
    assert flow.source is not None
    assert Path(flow.source.file) == path
    again = load_workflow(source_of(flow, tmp_path / "root"), tmp_path / "root")
    assert compile_plan(again).fingerprint == compile_plan(flow).fingerprint


def test_two_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path / "workflows" / "one.yaml")
    write(tmp_path / "workflows" / "one.py", PYTHON)
    with pytest.raises(RunRefusedError, match=r"'one' is both .*one\.yaml and .*one\.py"):
        find_workflow("one", tmp_path)
    assert find_workflow("workflows/one.yaml", tmp_path).name == "one"


SEVERAL = PYTHON + "second = Workflow('second')\nagain = flow\n"


def test_one_of_several_in_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "several_flows.py", SEVERAL)
    with pytest.raises(RunRefusedError, match="defines several workflows: named, second") as caught:
        find_workflow(str(path), tmp_path)
    assert f"{path}:named" in caught.value.next_step
    assert find_workflow(f"{path}:second", tmp_path).name == "second"
    assert find_workflow(f"{path}:flow", tmp_path).name == "named"
    with pytest.raises(WorkflowFileError, match="no workflow 'third'"):
        find_workflow(f"{path}:third", tmp_path)
    yaml = write(tmp_path / "workflows" / "one.yaml")
    with pytest.raises(RunRefusedError, match="holds one workflow"):
        find_workflow(f"{yaml}:x", tmp_path)


def test_a_workflow_imported_from_elsewhere_counts_where_there_is_no_own(tmp_path: Path) -> None:
    write(tmp_path / "lib_of_flows.py", PYTHON)
    own = write(tmp_path / "own_flow.py", "from lib_of_flows import flow as other\n" + PYTHON.replace("named", "own"))
    only = write(tmp_path / "borrowed_flow.py", "from lib_of_flows import flow\n")
    assert find_workflow(str(own), tmp_path).name == "own"
    assert find_workflow(str(only), tmp_path).name == "named"


def test_a_file_in_a_package_is_imported_by_its_full_name(tmp_path: Path) -> None:
    write(tmp_path / "pkg_of_flows" / "__init__.py", "")
    write(tmp_path / "pkg_of_flows" / "parts.py", "NAME = 'packaged'\n")
    text = "from agentos import Workflow\nfrom .parts import NAME\nflow = Workflow(NAME)\n"
    path = write(tmp_path / "pkg_of_flows" / "flows.py", text)
    assert find_workflow(str(path), tmp_path).name == "packaged"


def test_the_root_is_on_the_path(tmp_path: Path) -> None:
    write(tmp_path / "lib_at_root.py", "NAME = 'rooted'\n")
    write(tmp_path / "workflows" / "at_root.py", "from lib_at_root import NAME\n" + PYTHON.replace("'named'", "NAME"))
    assert find_workflow("at_root", tmp_path).name == "rooted"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("helo", "there is no workflow 'helo': no workflows/helo.yaml, .yml or .py in {root} (did you mean 'hello'?)"),
        ("zzz", "in {root}; there are hello, other"),
        ("workflows/helo.yaml", "there is no file workflows/helo.yaml (did you mean 'hello'?)"),
        ("a/\0b", "there is no workflow"),
        ("x" * 5000, "there is no workflow"),
        ("", "there is no workflow"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(tmp_path: Path, asked: str, told: str) -> None:
    write(tmp_path / "workflows" / "hello.yaml")
    write(tmp_path / "workflows" / "other.py", PYTHON)
    with pytest.raises(WorkflowNotFoundError) as caught:
        find_workflow(asked, tmp_path)
    assert told.format(root=tmp_path) in caught.value.message
    assert "agentos init" in caught.value.next_step


def test_what_is_no_workflow_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "notes.txt", "hello")
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    write(tmp_path / "empty_flow.py", "")
    write(tmp_path / "json.py", PYTHON)
    write(tmp_path / "binary.yaml").write_bytes(b"\x7fELF\0")
    for asked, told in {
        "notes.txt": "no workflow file: those end in .yaml, .yml, .py",
        ".": "this is a directory",
        "folder.yaml": "this is a directory, not a workflow file",
        "pipe.yaml": "this is not a regular file",
        "empty_flow.py": "it defines no workflow",
        "json.py": "'json' is the name of another module",
        "binary.yaml": "this is a binary file, not YAML",
    }.items():
        with pytest.raises(WorkflowDefinitionError, match=told):
            find_workflow(asked, tmp_path)


def test_a_missing_module_says_where_to_run(tmp_path: Path) -> None:
    path = write(tmp_path / "lacking_flow.py", "import no_such_thing\n")
    with pytest.raises(WorkflowFileError, match="no_such_thing") as caught:
        find_workflow(str(path), tmp_path)
    assert sys.executable in caught.value.next_step
    assert "project's own environment" in caught.value.next_step


# --- functions of YAML tasks ---------------------------------------------------------------------------------------

LIBRARY = """\
import os

def plain(a, b=1, ctx=None): ...
def anything(**kwargs): ...
def starred(*args): ...
async def later(*, key): ...
class Made:
    def __init__(self, a): ...
    def method(self): ...
if os.name:
    def conditional(x): ...
alias = plain
"""


def problems(root: Path, tasks: str, *, static: bool) -> list[str]:
    write(root / "workflows" / "flow.yaml", f"tasks:\n{tasks}")
    flow = find_workflow("flow", root, static=static)
    return [finding.message for finding in flow.findings]


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("{python: 'lib_of_tasks:plain', inputs: {a: 1}}", []),
        ("{python: 'lib_of_tasks:plain', inputs: {a: 1, b: 2}}", []),
        ("{python: 'lib_of_tasks:plain'}", ["the function needs 'a': give it in inputs"]),
        ("{python: 'lib_of_tasks:plain', inputs: {a: 1, bb: 2}}", ["the function takes no 'bb'"]),
        ("{python: 'lib_of_tasks:anything', inputs: {x: 1}}", []),
        ("{python: 'lib_of_tasks:starred'}", ["*args cannot be bound, arguments are passed by name"]),
        ("{python: 'lib_of_tasks:later', inputs: {key: 1}}", []),
        ("{python: 'lib_of_tasks:later', inputs: {kye: 1}}",
         ["the function needs 'key': give it in inputs", "the function takes no 'kye' (did you mean 'key'?)"]),
        ("{python: 'lib_of_tasks:alias', inputs: {a: 1}}", []),
        ("{python: 'lib_of_tasks:conditional', inputs: {x: 1}}", []),
        ("{python: 'lib_of_tasks:Made', inputs: {a: 1}}", []),
        ("{python: 'lib_of_tasks:Made.method', inputs: {self: 1}}", []),
        ("{python: 'lib_of_tasks:plian'}", ["module 'lib_of_tasks' has no 'plian'"]),
        ("{python: 'os.path:join', inputs: {a: 1}}", None),
        ("{python: 'no_such_lib:f'}", ["no module 'no_such_lib' for"]),
        ("{python: 'pkg_of_tasks.sub:f'}", []),
        ("{python: 'pkg_of_tasks.none:f'}", ["no module 'pkg_of_tasks.none' for"]),
    ],
)  # fmt: skip
def test_functions_are_looked_at_before_anything_runs(
    tmp_path: Path, task: str, told: list[str] | None, static: bool
) -> None:
    write(tmp_path / "lib_of_tasks.py", LIBRARY)
    write(tmp_path / "pkg_of_tasks" / "__init__.py", "")
    write(tmp_path / "pkg_of_tasks" / "sub.py", "def f(): ...\n")
    found = problems(tmp_path, f"  t: {task}", static=static)
    if told is not None:
        assert [message for message in found if not any(message.startswith(one) for one in told)] == []
        assert len(found) == len(told)


def test_a_check_imports_nothing_and_a_run_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "loud_tasks.py", "open('imported', 'w').close()\ndef f(): ...\n")
    monkeypatch.chdir(tmp_path)
    assert problems(tmp_path, "  t: {python: 'loud_tasks:f'}", static=True) == []
    assert not (tmp_path / "imported").exists()
    assert problems(tmp_path, "  t: {python: 'loud_tasks:f'}", static=False) == []
    assert (tmp_path / "imported").exists()


def test_a_module_that_cannot_be_imported_is_told_at_its_line(tmp_path: Path) -> None:
    write(tmp_path / "broken_tasks.py", "1 / 0\n")
    write(tmp_path / "workflows" / "flow.yaml", "tasks:\n  a: {run: ls}\n  t: {python: 'broken_tasks:f'}\n")
    with pytest.raises(WorkflowDefinitionError) as caught:
        compile_plan(find_workflow("flow", tmp_path))
    assert "flow.yaml:3:15: tasks.t.python: importing 'broken_tasks' failed: ZeroDivisionError" in str(caught.value)


def test_a_module_that_starts_a_run_is_refused(tmp_path: Path) -> None:
    text = "import agentos\nagentos.run(agentos.Workflow('x'))\ndef f(): ...\n"
    write(tmp_path / "running_tasks.py", text)
    with pytest.raises(RunRefusedError, match="while it is imported"):
        problems(tmp_path, "  t: {python: 'running_tasks:f'}", static=False)


def test_the_code_of_a_function_is_part_of_what_its_task_is(tmp_path: Path) -> None:
    write(tmp_path / "digested_tasks.py", "def f(): return 1\ndef g(): return 2\n")
    path = write(tmp_path / "workflows" / "flow.yaml", "tasks: {t: {python: 'digested_tasks:f'}}")
    first = compile_plan(find_workflow("flow", tmp_path)).fingerprint
    del sys.modules["digested_tasks"]
    write(tmp_path / "digested_tasks.py", "def f(): return 10 + 1\ndef g(): return 2\n")
    assert compile_plan(find_workflow("flow", tmp_path)).fingerprint != first
    assert path.exists()
