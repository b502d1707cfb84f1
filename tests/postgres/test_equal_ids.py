"""Two repositories on one database, each with a run of the same id: nothing of one is taken for the other's."""

from __future__ import annotations

import json
import platform
import shlex
from pathlib import Path

import pytest

from agentos import Workflow, run
from agentos.exceptions import RunRefusedError
from agentos.workflow.files.retention import purge_path
from agentos.workflow.place.place import find_place
from agentos.workflow.place.run_search import find_checkpoint, find_run
from tests.cli.conftest import Agentos, agentos
from tests.conftest import LinkedWorktree, git

__all__ = ["agentos"]


@pytest.fixture
def repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> dict[str, Path]:
    """Two of them, known by their remotes, on one database."""
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", url)
    made = {}
    for name in ("ra", "rb"):
        root = made[name] = tmp_path / name
        git("init", "--quiet", str(root), cwd=tmp_path)
        git("config", "remote.origin.url", f"https://example.org/{name}", cwd=root)
        (root / "flow.yaml").write_text(
            f'name: flow\ntasks:\n  b: {{approve: "Go in {name}?", run: "echo {name}", effects: none}}\n'
        )
    return made


def test_each_question_is_shown_where_it_was_asked_with_a_command_that_answers_it(
    repositories: dict[str, Path], tmp_path: Path, agentos: Agentos
) -> None:
    for root in repositories.values():
        assert agentos("run", "flow.yaml", "--id", "g1", cwd=root).code == 3
    gates = json.loads(agentos("inbox", "--json", cwd=repositories["ra"]).out)
    assert {(gate["question"], gate["root"]) for gate in gates} == {
        (f"Go in {name}?", str(root)) for name, root in repositories.items()
    }
    [asked] = [gate for gate in gates if gate["question"] == "Go in rb?"]
    done = agentos(*shlex.split(asked["approve"])[1:], cwd=tmp_path)
    assert done.code == 0, done.err
    statuses = {
        name: json.loads(agentos("show", "g1", "--json", cwd=root).out)["status"] for name, root in repositories.items()
    }
    assert statuses == {"ra": "waiting", "rb": "complete"}


def test_an_id_that_several_repositories_have_is_told_with_the_way_to_name_one(
    repositories: dict[str, Path], tmp_path: Path, agentos: Agentos
) -> None:
    for root in repositories.values():
        agentos("run", "flow.yaml", "--id", "g1", cwd=root)
    refused = agentos("show", "g1", cwd=tmp_path)
    assert refused.code == 2
    for name, root in repositories.items():
        assert f"g1 of example.org/{name}, of {root} on {platform.node()}" in refused.err
    assert "--repo PATH" in refused.err
    assert agentos("show", "g1", "--repo", str(repositories["ra"]), cwd=tmp_path).code == 0


def test_a_checkpoint_is_found_with_the_run_it_was_made_in(
    tmp_worktree: LinkedWorktree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", url)
    flow = Workflow("answer")
    flow.add("say", lambda: 1)
    for root in tmp_worktree:
        run(flow, workflow_id="same", repo=root)
    monkeypatch.chdir(tmp_path)
    for root in tmp_worktree:
        store = find_place(root).open(readonly=True)
        [cut] = store.list_checkpoints(find_run("same", root).record.workflow_id)
        store.close()
        place, found = find_checkpoint(cut.id)
        assert (place.root, found) == (root, cut)
    with pytest.raises(RunRefusedError, match="its worktree worktree"):
        find_run("same")


def test_a_purge_names_only_the_checkpoints_that_had_the_file(
    tmp_worktree: LinkedWorktree, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", url)
    main, linked = tmp_worktree
    flow = Workflow("write")
    flow.add("write", "shell", run="echo 1 > made.txt", effects="files")
    run(flow, workflow_id="same", repo=main)
    answer = Workflow("answer")
    answer.add("say", lambda: 1)
    run(answer, workflow_id="same", repo=linked)
    assert [cut.root for cut in purge_path("made.txt", main).checkpoints] == [str(main)]
