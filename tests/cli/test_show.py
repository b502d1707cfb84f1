"""`agentos show` and `agentos checkpoints`"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from agentos import Client, Workflow, run
from agentos.testing import start
from agentos.workflow.checkpoint import CheckpointManager
from tests.cli.conftest import Agentos
from tests.cli.sample import begin, make_repository


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_repository(tmp_path_factory.mktemp("show") / "repo")
    begin(root, "flow", "waits", expected="waiting")
    begin(root, "good", "ended", expected="complete")
    return root


def test_people_see_layers_gates_checkpoints_and_the_next_command(agentos: Agentos, repo: Path) -> None:
    done = agentos("show", "waits", cwd=repo)
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "waits  release  waiting"
    assert [line for line in lines if line.startswith("Layer")] == ["Layer 1", "Layer 2", "Layer 3", "Layer 4"]
    said = {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line.startswith("  ")}
    assert said["broken"].startswith("failed attempt 2")
    assert said["after"] == "skipped because of broken"
    assert said["never"] == "skipped its condition was false"
    assert said["tell"] == "pending"
    assert "ValueError: first line\n          second \\x1b[2J line\n" in done.out
    assert lines[-1] == "Next: agentos approve waits approve:ship"


def test_nothing_that_steers_a_terminal_is_printed(agentos: Agentos, repo: Path) -> None:
    for arguments in (("show", "waits"), ("events", "waits"), ("inbox",), ("why", "waits", "broken"), ("list",)):
        out = agentos(*arguments, cwd=repo).out
        assert out
        assert all(sign.isprintable() or sign == "\n" for sign in out), arguments


def test_json_has_the_shape_that_is_promised(agentos: Agentos, repo: Path) -> None:
    shown = json.loads(agentos("show", "waits", "--json", cwd=repo).out)
    assert {"workflow_id", "name", "status", "layers", "tasks", "gates", "state"} <= set(shown)
    tasks = {task["id"]: task for task in shown["tasks"]}
    assert [task["id"] for task in shown["tasks"]] == ["lint", "never", "notes", "broken", "after", "ship", "tell"]
    assert tasks["lint"]["output"]["day"] == {"$agentos": "date", "v": "2026-01-02"}
    assert "error" not in tasks["lint"]
    assert (tasks["broken"]["attempts"], tasks["broken"]["error"]["type"]) == (2, "ValueError")
    assert "output" not in tasks["broken"]
    assert tasks["after"]["because"] == "broken"
    assert tasks["never"]["because"] == ""
    assert "because" not in tasks["lint"]
    [gate] = shown["gates"]
    assert {"id", "task_id", "question", "opened_at", "deadline", "answer"} <= set(gate)
    assert (gate["id"], gate["task_id"], gate["answer"]) == ("approve:ship", "ship", None)


def test_the_state_is_that_of_the_library(agentos: Agentos, repo: Path) -> None:
    shown = json.loads(agentos("show", "ended", "--json", cwd=repo).out)["state"]
    state = Client(repo).show("ended").state
    assert [task["output"] for task in shown["tasks"]] == [task.output for task in state.tasks] == [1, 2]


def test_checkpoints_are_those_of_the_manager(agentos: Agentos, repo: Path) -> None:
    rows = json.loads(agentos("checkpoints", "ended", "--json", cwd=repo).out)
    manager = CheckpointManager(repo / ".agentos" / "issue_workflow.db")
    kept = manager.list_checkpoints("ended")
    manager.close()
    assert sorted((row["id"], row["layer"], row["workflow_id"]) for row in rows) == sorted(
        (cut.id, cut.layer, "ended") for cut in kept
    )
    assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
    assert agentos("checkpoints", "ended", cwd=repo).out.count("\n") == len(rows) + 1


def test_a_run_whose_file_is_gone_or_broken_is_shown_all_the_same(agentos: Agentos, tmp_git_repo: Path) -> None:
    from tests.cli.sample import write_flow

    path = write_flow(tmp_git_repo)
    begin(tmp_git_repo, "good", "ended", expected="complete")
    path.write_text("this is no Python (")
    assert agentos("show", "ended", cwd=tmp_git_repo).code == 0
    path.unlink()
    assert agentos("why", "ended", "two", cwd=tmp_git_repo).code == 0


MANY = """
from agentos import Workflow, run
flow = Workflow("many")
for number in range(300):
    flow.add(f"t{number}", lambda: None)
run(flow, workflow_id="many")
"""


def test_a_wide_layer_is_cut_for_people_and_whole_for_programs(agentos: Agentos, tmp_git_repo: Path) -> None:
    import subprocess
    import sys

    from tests.cli.conftest import SOURCES

    (tmp_git_repo / "many.py").write_text(MANY)
    subprocess.run([sys.executable, "many.py"], cwd=tmp_git_repo, env={"PYTHONPATH": str(SOURCES)}, check=True)
    assert "… and 100 more" in agentos("show", "many", cwd=tmp_git_repo).out
    assert len(json.loads(agentos("show", "many", "--json", cwd=tmp_git_repo).out)["tasks"]) == 300


def test_large_outputs_are_begun_for_people_and_whole_for_programs(agentos: Agentos, tmp_git_repo: Path) -> None:
    flow = Workflow("large")
    flow.add("rows", lambda: [{"row": number, "text": "ä" * 20} for number in range(40_000)])
    flow.add("some", lambda: ["x"] * 1_000)
    flow.add("printed", "shell", run="head -c 3000000 /dev/zero | tr '\\0' 'y'")
    flow.add("nothing", lambda: None)
    result = run(flow, workflow_id="large", repo=tmp_git_repo)
    shown = agentos("show", "large", cwd=tmp_git_repo).out
    beginnings = {line.split()[0]: line.split("s  ")[-1] for line in shown.splitlines() if "complete  " in line}
    assert beginnings.pop("nothing").endswith("s")
    assert beginnings == {
        "rows": '[{"row":0,"text":"' + "ä" * 20 + '"},{"row":1,"text":"' + "ä" * 11 + "…",
        "some": '["x",' + '"x",' * 16 + "…",
        "printed": '"' + "y" * 68 + "…",
    }
    tasks = json.loads(agentos("show", "--json", cwd=tmp_git_repo).out)["tasks"]
    assert {task["id"]: task["output"] for task in tasks} == result.outputs


def test_a_task_that_sleeps_is_shown_with_its_time(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "nap.py").write_text(
        "from agentos import Workflow\nflow = Workflow('nap')\n"
        "@flow.task\nasync def nap(ctx):\n    await ctx.sleep(3600)\n"
    )
    killed = start(
        [sys.executable, "-m", "agentos", "run", "nap.py", "--id", "n"], cwd=tmp_git_repo, at="task.suspended"
    )
    assert killed.killed
    shown = agentos("show", "n", cwd=tmp_git_repo).out
    assert re.search(r"nap +waiting +goes on in (59m|1h)\S* ?\S*, at ", shown), shown
