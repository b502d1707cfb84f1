"""Workflows that a function makes from arguments: a later process has the same one made again, and calls no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentos import Client, Workflow
from agentos.dag.define.workflow import WorkflowSource, maker
from agentos.exceptions import CheckpointCorruptedError, RunRefusedError, ValueEncodingError, WorkflowFileError
from agentos.workflow.define.workflow_source import load_workflow, source_of
from agentos.workflow.transfer.run_copy import _source_here
from tests.workflow.support import python

FLOW = """
import os
from pathlib import Path
from agentos import Workflow, run
from agentos.dag.define.workflow import maker

@maker
def greeting(*, names):
    flow = Workflow("greeting")
    for name in names:
        flow.add(f"greet {name}", greet, inputs={"name": name})
    return flow

def greet(name, ctx):
    assert ctx.root == Path(__file__).parent, ctx.root
    if not os.path.exists("mended"):
        raise ValueError("not yet")
    return f"hello {name}"

def unmarked(**arguments):
    Path("called").touch()
    return greeting(names=[])

if __name__ == "__main__":
    print(run(greeting(names=["ada", "grace"]), workflow_id="w", check=False).status)
"""


def record(**changed: object) -> str:
    fields = {"file": "flow.py", "module": "flow", "name": "greeting", "maker": "greeting", "arguments": {"names": []}}
    return json.dumps({**fields, **changed})


@pytest.fixture
def repo(tmp_git_repo: Path) -> Path:
    (tmp_git_repo / "flow.py").write_text(FLOW)
    return tmp_git_repo


def test_a_later_process_makes_the_same_workflow_again(repo: Path) -> None:
    assert python("flow.py", cwd=repo).stdout == "failed\n"
    (repo / "mended").touch()
    done = python("-c", "from agentos import resume\nprint(resume('w').outputs)", cwd=repo)
    assert done.stdout == "{'greet ada': 'hello ada', 'greet grace': 'hello grace'}\n", done.stderr
    kept = json.loads(Client(repo).find("w").source)
    assert (kept["maker"], kept["arguments"]) == ("greeting", {"names": ["ada", "grace"]})


TYPED = """
from pathlib import Path
from agentos import Workflow
from agentos.dag.define.workflow import maker

@maker
def reading(*, files: set[Path], name: str = "reading"):
    flow = Workflow(name)
    for file in files:
        flow.add(file.stem, "shell", run="true")
    return flow

made = reading(files={Path("a.txt"), Path("b.txt")})
"""


def test_its_arguments_are_again_of_the_types_they_are_annotated_with(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "flow.py").write_text(TYPED)
    arguments = {"files": ["a.txt", "b.txt"], "name": "again"}
    again = load_workflow(record(maker="reading", arguments=arguments, name="again"), tmp_git_repo)
    assert sorted(draft.id for draft in again.drafts) == ["a", "b"]


def test_only_what_is_marked_is_called(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repo)
    with pytest.raises(RunRefusedError, match="no longer defines"):
        load_workflow(record(maker="unmarked"), repo)
    assert not (repo / "called").exists()


def test_what_a_maker_raises_is_told(repo: Path) -> None:
    with pytest.raises(WorkflowFileError, match="greeting makes no workflow: TypeError"):
        load_workflow(record(arguments={"nobody": 1}), repo)


def test_without_a_file_only_our_own_modules_are_imported(repo: Path) -> None:
    with pytest.raises(CheckpointCorruptedError, match="names no file"):
        load_workflow(record(file="", module="antigravity"), repo)
    with pytest.raises(RunRefusedError, match="this AgentOS has no workflow"):
        load_workflow(record(file="", module="agentos.workflows.nobody"), repo)


def test_an_import_brings_no_arguments_of_its_own(repo: Path) -> None:
    assert _source_here(record(), repo) == ""
    assert _source_here(record(maker="", arguments={}), repo) != ""


@pytest.mark.parametrize(
    ("file", "module", "taken"),
    [
        ("flow.py", "flow", True),
        ("pkg/flow.py", "pkg.flow", True),
        ("pkg/__init__.py", "pkg", True),
        ("pkg/__main__.py", "pkg.__main__", True),
        ("pkg/__main__.py", "__main__", True),
        ("my.flow.py", "my.flow", True),
        ("flow.yaml", "", True),
        ("flow.py", "somewhere.else.flow", False),  # which would be looked for in folders above the repository
        ("flow.py", "antigravity", False),
        ("flow.py", "json", False),
    ],
)
def test_an_import_names_no_module_but_that_of_the_file(repo: Path, file: str, module: str, taken: bool) -> None:
    assert bool(_source_here(record(file=file, module=module, maker="", arguments={}), repo)) is taken


@maker
def made(*, word: object) -> Workflow:
    return Workflow(f"made {word}")


def test_arguments_are_given_by_name_and_can_be_kept() -> None:
    assert made(word="a").source == WorkflowSource(
        file=__file__, module=__name__, maker="made", arguments={"word": "a"}
    )
    assert json.loads(source_of(made(word="a"), Path("/nowhere")))["arguments"] == {"word": "a"}
    with pytest.raises(TypeError, match="by name"):
        made("a")  # type: ignore[call-arg]
    with pytest.raises(ValueEncodingError):
        made(word=object())
