"""Finding a workflow again by the file it was defined in: real scripts, real modules, real processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from agentos import Client, Workflow
from agentos.exceptions import CheckpointCorruptedError, RunRefusedError, WorkflowFileError
from agentos.workflow.define.python_modules import refuse_while_loading
from agentos.workflow.define.workflow_source import load_workflow, source_of
from tests.conftest import git
from tests.workflow.support import python

FLOW = """
import os
from agentos import Workflow, run
{imports}
flow = Workflow("named")

@flow.task
def first():
    return {value}

@flow.task
def second(first):
    if not os.path.exists("mended"):
        raise ValueError("not yet")
    return [first, __name__]

if __name__ == "__main__":
    print(run(flow, workflow_id="w", check=False).status)
"""
RESUME = "from agentos import resume\nr = resume('w'{more})\nprint(r.status, r.outputs.get('second'), r.errors)"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def flow_file(path: Path, *, value: str = "'one'", imports: str = "") -> Path:
    return write(path, FLOW.format(value=value, imports=imports))


def begin(repo: Path, *argv: str) -> None:
    done = python(*argv, cwd=repo)
    assert (done.stdout, done.returncode) == ("failed\n", 0), done.stderr
    (repo / "mended").touch()


def resumed(cwd: Path, more: str = "") -> subprocess.CompletedProcess[str]:
    return python("-c", RESUME.format(more=more), cwd=cwd)


def test_a_script_run_as_main_is_found_by_its_file(tmp_git_repo: Path) -> None:
    flow_file(tmp_git_repo / "pipeline.py")
    begin(tmp_git_repo, "pipeline.py")
    assert resumed(tmp_git_repo).stdout == "complete ['one', 'pipeline'] {}\n", "imported, never as __main__"


def test_a_script_in_a_folder_finds_its_neighbours(tmp_git_repo: Path) -> None:
    write(tmp_git_repo / "tools" / "neighbour.py", "VALUE = 'next door'")
    flow_file(tmp_git_repo / "tools" / "pipeline.py", value="neighbour.VALUE", imports="import neighbour")
    begin(tmp_git_repo, "tools/pipeline.py")
    assert resumed(tmp_git_repo).stdout == "complete ['next door', 'pipeline'] {}\n"


def test_a_module_run_with_m_is_found_by_its_name(tmp_git_repo: Path) -> None:
    write(tmp_git_repo / "pkg" / "__init__.py", "")
    write(tmp_git_repo / "pkg" / "helper.py", "VALUE = 'relative'")
    flow_file(tmp_git_repo / "pkg" / "flows.py", value="helper.VALUE", imports="from . import helper")
    begin(tmp_git_repo, "-m", "pkg.flows")
    below = tmp_git_repo / "elsewhere"
    below.mkdir()
    shutil.copy(tmp_git_repo / "mended", below)
    assert resumed(below).stdout == "complete ['relative', 'pkg.flows'] {}\n"


def test_a_module_of_a_package_that_a_program_imports(tmp_git_repo: Path) -> None:
    write(tmp_git_repo / "src" / "pkg" / "__init__.py", "")
    write(tmp_git_repo / "src" / "pkg" / "deep" / "__init__.py", "")
    flow_file(tmp_git_repo / "src" / "pkg" / "deep" / "flows.py")
    write(
        tmp_git_repo / "program.py",
        """
        import sys
        sys.path.insert(0, "src")
        from agentos import run
        from pkg.deep.flows import flow
        print(run(flow, workflow_id="w", check=False).status)
        """,
    )
    begin(tmp_git_repo, "program.py")
    assert resumed(tmp_git_repo).stdout == "complete ['one', 'pkg.deep.flows'] {}\n"


def test_a_package_itself_can_define_it(tmp_git_repo: Path) -> None:
    write(tmp_git_repo / "outer" / "__init__.py", "")
    flow_file(tmp_git_repo / "outer" / "inner" / "__init__.py")
    write(
        tmp_git_repo / "program.py",
        "from agentos import run\nfrom outer.inner import flow\nprint(run(flow, workflow_id='w', check=False).status)",
    )
    begin(tmp_git_repo, "program.py")
    assert resumed(tmp_git_repo).stdout == "complete ['one', 'outer.inner'] {}\n"


def test_a_folder_that_is_run_is_not_run_again_as_main(tmp_git_repo: Path) -> None:
    flow_file(tmp_git_repo / "app" / "__main__.py")
    begin(tmp_git_repo, "app")
    assert resumed(tmp_git_repo).stdout == "complete ['one', 'app_main'] {}\n"


def test_the_file_is_read_again_and_an_edit_counts(tmp_git_repo: Path) -> None:
    flow_file(tmp_git_repo / "pipeline.py")
    begin(tmp_git_repo, "pipeline.py")
    (tmp_git_repo / "mended").unlink()
    text = (tmp_git_repo / "pipeline.py").read_text()
    (tmp_git_repo / "pipeline.py").write_text(text.replace('raise ValueError("not yet")', "return 'edited'"))
    assert resumed(tmp_git_repo).stdout == "complete edited {}\n"


# --- what is told -------------------------------------------------------------------------------------------------


def failed(repo: Path, error: str) -> str:
    before = len(Client(repo).events("w"))
    done = resumed(repo)
    assert done.returncode == 1
    last = done.stderr.strip()
    assert f"{error}: " in last, last
    assert len(Client(repo).events("w")) == before, "nothing was touched"
    assert Client(repo).list_runs()[0].holder is None
    return last


def test_a_file_that_is_gone(tmp_git_repo: Path) -> None:
    path = flow_file(tmp_git_repo / "pipeline.py")
    begin(tmp_git_repo, "pipeline.py")
    path.rename(tmp_git_repo / "renamed.py")
    assert "pipeline.py: the workflow's file is not there" in failed(tmp_git_repo, "WorkflowFileError")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def broken(:", "SyntaxError"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_file_that_raises_on_import(tmp_git_repo: Path, line: str, told: str) -> None:
    path = flow_file(tmp_git_repo / "pipeline.py")
    begin(tmp_git_repo, "pipeline.py")
    path.write_text(f"{line}\n{path.read_text()}")
    text = failed(tmp_git_repo, "WorkflowFileError")
    assert f"cannot be imported: {told}" in text
    assert "Nothing was touched" in text


@pytest.mark.parametrize(
    "call",
    [
        "run(flow)",
        "import asyncio, agentos; asyncio.run(agentos.arun(flow))",
        "import agentos; agentos.resume('w')",
        "import asyncio, agentos; asyncio.run(agentos.aresume('w'))",
        "import agentos; agentos.fork('x')",
    ],
)
def test_a_run_at_import_time_is_refused_with_the_guard_as_hint(tmp_git_repo: Path, call: str) -> None:
    path = flow_file(tmp_git_repo / "pipeline.py")
    begin(tmp_git_repo, "pipeline.py")
    path.write_text(path.read_text() + f"\n{call}\n")
    text = failed(tmp_git_repo, "RunRefusedError")
    assert "while it is imported to find its workflow" in text
    assert 'if __name__ == "__main__":' in text
    assert len(Client(tmp_git_repo).list_runs()) == 1


def test_a_workflow_that_lost_its_name(tmp_git_repo: Path) -> None:
    path = flow_file(tmp_git_repo / "pipeline.py")
    begin(tmp_git_repo, "pipeline.py")
    path.write_text(path.read_text().replace('Workflow("named")', 'Workflow("other")'))
    assert "no longer defines a workflow named 'named'" in failed(tmp_git_repo, "RunRefusedError")


def test_a_workflow_without_a_file_needs_to_be_given(tmp_git_repo: Path) -> None:
    code = FLOW.format(value="1", imports="")
    done = python("-c", code, cwd=tmp_git_repo)
    assert done.stdout == "failed\n", done.stderr
    assert "resume(id, workflow=flow)" in failed(tmp_git_repo, "RunRefusedError")


def test_a_module_of_the_same_name_from_elsewhere_is_not_taken_for_it(
    tmp_git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    write(tmp_path / "other" / "samename_wf" / "__init__.py", "")
    write(tmp_path / "other" / "samename_wf" / "flows.py", "")
    monkeypatch.syspath_prepend(tmp_path / "other")
    importlib.import_module("samename_wf.flows")
    write(tmp_git_repo / "samename_wf" / "__init__.py", "")
    path = flow_file(tmp_git_repo / "samename_wf" / "flows.py")
    source = f'{{"file": "{path}", "module": "samename_wf.flows", "name": "named"}}'
    with pytest.raises(WorkflowFileError, match="does not lead to the workflow's file"):
        load_workflow(source, tmp_git_repo)
    for name in ("samename_wf.flows", "samename_wf"):
        sys.modules.pop(name)


def test_a_record_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorruptedError, match="where the workflow was defined"):
        load_workflow("{broken", tmp_path)
    with pytest.raises(RunRefusedError, match="was not defined in a file"):
        load_workflow("", tmp_path)


def test_loading_in_one_thread_refuses_nothing_in_another(tmp_path: Path) -> None:
    entered, release = threading.Event(), threading.Event()
    write(
        tmp_path / "slow_wf.py",
        """
        import builtins
        from agentos import Workflow
        flow = Workflow("named")
        builtins.slow_wf_hook()
        """,
    )
    import builtins

    def hook() -> None:
        entered.set()
        release.wait(20)

    builtins.slow_wf_hook = hook  # type: ignore[attr-defined]
    found: list[Workflow] = []
    source = f'{{"file": "{tmp_path / "slow_wf.py"}", "module": "slow_wf", "name": "named"}}'
    loading = threading.Thread(target=lambda: found.append(load_workflow(source, tmp_path)))
    loading.start()
    try:
        assert entered.wait(20)
        refuse_while_loading("run")  # raises only in the thread that loads
    finally:
        release.set()
        loading.join()
        del builtins.slow_wf_hook  # type: ignore[attr-defined]
        sys.modules.pop("slow_wf", None)
    assert [flow.name for flow in found] == ["named"]


# --- where it belongs ---------------------------------------------------------------------------------------------


def test_a_root_that_moved_is_refused_unless_it_is_named(tmp_git_repo: Path) -> None:
    flow_file(tmp_git_repo / "pipeline.py")
    begin(tmp_git_repo, "pipeline.py")
    moved = tmp_git_repo.parent / "moved"
    tmp_git_repo.rename(moved)
    refused = resumed(moved)
    assert f"RunRefusedError: run w belongs to {tmp_git_repo}, not to {moved}" in refused.stderr
    assert "--repo PATH, or repo=" in refused.stderr
    assert resumed(moved, ", repo='.'").stdout == "complete ['one', 'pipeline'] {}\n"


def test_a_linked_worktree_has_its_own_runs(tmp_git_repo: Path) -> None:
    flow_file(tmp_git_repo / "pipeline.py")
    git("add", "pipeline.py", cwd=tmp_git_repo)
    git("commit", "--quiet", "--message", "flow", cwd=tmp_git_repo)
    linked = tmp_git_repo.parent / "linked"
    git("worktree", "add", "--quiet", str(linked), cwd=tmp_git_repo)
    begin(tmp_git_repo, "pipeline.py")
    refused = resumed(linked)
    assert refused.returncode == 1
    assert "there is no database" in refused.stderr or "no run 'w'" in refused.stderr
    begin(linked, "pipeline.py")
    assert resumed(linked).stdout.startswith("complete")
    assert Client(tmp_git_repo).list_runs()[0].status == "failed"


def test_the_stored_path_is_relative_to_the_root(tmp_git_repo: Path) -> None:
    flow = Workflow("here")
    assert '"file":"' in source_of(flow, Path("/nowhere"))
    assert str(Path(__file__)) in source_of(flow, Path("/nowhere"))
    assert '"file":"test_loading.py"' in source_of(flow, Path(__file__).parent)
