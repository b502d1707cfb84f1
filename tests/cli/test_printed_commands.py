"""Commands that the program prints are there to be copied: each names its run in short, and works."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from agentos import RunFailedError, Workflow, run
from agentos.ids import WorkflowId, short_id
from agentos.store.port import CheckpointRecord
from agentos.workflow.place.place import find_place
from agentos.workflow.place.run_search import find_run_or_checkpoint
from agentos.workflow.start import new_run
from tests.cli.conftest import Agentos, Completed

FLOW = """
name: printed
tasks:
  one: {run: "echo 1", effects: none}
  bad: {needs: one, run: "test -e mended", effects: none}
  ship: {needs: one, approve: "Ship it?", run: "echo shipped", effects: none}
"""


def commands_in(*looked: Completed) -> list[list[str]]:
    """Every command of ours that is printed: at the end of a line, or between backticks."""
    text = "\n".join(part for done in looked for part in (done.out, done.err))
    found = re.findall(r"`agentos ([^`]+)`|\bagentos ((?:[a-z]+) .+)$", text, re.MULTILINE)
    return [shlex.split(first or second) for first, second in found]


@pytest.fixture
def repo(tmp_git_repo: Path, home: Path) -> Path:
    (tmp_git_repo / "flow.yaml").write_text(FLOW)
    return tmp_git_repo


def only_run(agentos: Agentos, repo: Path) -> str:
    [record] = json.loads(agentos("list", "--json", cwd=repo).out)
    return str(record["workflow_id"])


def test_each_command_names_the_run_in_short_and_works(agentos: Agentos, repo: Path) -> None:
    ended = agentos("run", "flow.yaml", cwd=repo)
    workflow_id = only_run(agentos, repo)
    short = workflow_id[:13]
    looked = (
        ended,
        agentos("show", short, cwd=repo),
        agentos("why", short, "bad", cwd=repo),
        agentos("why", short, "ship", cwd=repo),
        agentos("inbox", cwd=repo),
        agentos("logs", short, "nonesuch", cwd=repo),
        agentos("fork", short, "--id", "child", cwd=repo),
        agentos("run", "flow.yaml", "--id", workflow_id, "-p", "x=1", cwd=repo),
    )
    printed = commands_in(*looked)
    assert {command[0] for command in printed} >= {"approve", "logs", "reject", "show"}
    assert workflow_id not in {word for command in printed for word in command}
    naming = {" ".join(command) for command in printed if short in command}
    assert len(naming) >= 4, naming
    (repo / "mended").touch()
    for command in sorted(command for command in naming if not command.startswith("reject ")):
        done = agentos(*shlex.split(command), cwd=repo)
        assert done.code in (0, 1, 3), (command, done.err)
        assert "no run" not in done.err
        assert "several" not in done.err


def test_python_prints_them_alike(agentos: Agentos, repo: Path) -> None:
    flow = Workflow("fails")
    flow.add("bad", "shell", run="exit 1", effects="none")
    with pytest.raises(RunFailedError) as caught:
        run(flow, repo=repo)
    short = only_run(agentos, repo)[:13]
    assert str(caught.value).endswith(f"agentos resume {short}")


def test_a_name_that_a_user_chose_is_not_cut(agentos: Agentos, repo: Path) -> None:
    ended = agentos("run", "flow.yaml", "--id", "a-name-of-thirty-six-characters-or-so", cwd=repo)
    assert "agentos approve a-name-of-thirty-six-characters-or-so approve:ship" in ended.err


def test_what_failed_is_told_though_the_run_waits_for_an_answer(agentos: Agentos, repo: Path) -> None:
    ended = agentos("run", "flow.yaml", "--id", "mine", cwd=repo)
    assert ended.code == 3
    assert "bad failed: ShellCommandFailed" in ended.err
    assert "agentos logs mine bad" in ended.err


def test_no_run_takes_an_id_whose_short_form_another_has(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = "01a1ed07-e8ea-764e-94eb-f376859cac6"
    ids = iter([f"{same}0", f"{same}1", f"{same}2", "01a1ed07-e8eb-764e-94eb-f376859cac66"])
    monkeypatch.setattr(new_run, "new_id", lambda: next(ids))
    flow = Workflow("two")
    flow.add("one", "shell", run="true", effects="none")
    first, second = run(flow, repo=repo), run(flow, repo=repo)
    assert (first.workflow_id, second.workflow_id) == (f"{same}0", "01a1ed07-e8eb-764e-94eb-f376859cac66")


def test_a_short_id_means_the_run_where_a_checkpoint_begins_alike(repo: Path) -> None:
    flow = Workflow("quick")
    flow.add("one", "shell", run="true", effects="none")
    run(flow, repo=repo, workflow_id="other")
    store = find_place(repo).open(readonly=True)
    try:
        [cut] = store.list_checkpoints(WorkflowId("other"))
        alike = f"{short_id(cut.id)}-7000-8000-000000000000"  # a run that began in the millisecond of the checkpoint
        run(flow, repo=repo, workflow_id=alike)
        found = find_run_or_checkpoint(store, short_id(cut.id))
        assert not isinstance(found, CheckpointRecord)
        assert found.workflow_id == alike
        assert find_run_or_checkpoint(store, cut.id) == cut
    finally:
        store.close()
