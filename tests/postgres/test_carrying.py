"""Runs move between SQLite and PostgreSQL, and their files with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentos.client import Client
from agentos.exceptions import RunRefusedError, SnapshotError
from agentos.values import canonical_json
from agentos.workflow.place.place import find_place
from tests.cli.conftest import Agentos, agentos
from tests.conftest import git
from tests.marks import quick_first

__all__ = ["agentos"]

FLOW = """
name: edits
tasks:
  one: {run: "echo one > made.txt"}
  two: {needs: one, approve: "Go on?", run: "echo two >> made.txt; printf '\\\\0\\\\377' > bytes"}
"""


@pytest.fixture
def origin(tmp_git_repo: Path) -> Path:
    (tmp_git_repo / "edits.yaml").write_text(FLOW)
    git("add", "-A", cwd=tmp_git_repo)
    git("commit", "--quiet", "-m", "flow", cwd=tmp_git_repo)
    return tmp_git_repo


@pytest.mark.parametrize("way", quick_first(["to a server", "from a server"]))
def test_a_run_moves_with_its_files_and_goes_on_there(
    origin: Path, tmp_path: Path, agentos: Agentos, url: str, way: str
) -> None:
    clone, file = tmp_path / "clone", tmp_path / "run.jsonl"
    git("clone", "--quiet", str(origin), str(clone), cwd=tmp_path)
    server, none = {"AGENTOS_WORKFLOW_DB": url}, {"AGENTOS_WORKFLOW_DB": ""}
    before, after = (none, server) if way == "to a server" else (server, none)

    def typed(*argv: str | Path, cwd: Path, env: dict[str, str], code: int = 0) -> str:
        done = agentos(*argv, cwd=cwd, env=env)
        assert done.code == code, f"{argv}: {done.code}\n{done.out}{done.err}"
        return done.out

    typed("run", "edits.yaml", "--id", "r", cwd=origin, env=before, code=3)
    typed("export", "r", "--files", "-o", file, cwd=origin, env=before)
    imported = json.loads(typed("import", file, "--json", cwd=clone, env=after))
    assert imported["snapshots"] > 0
    states = [
        json.loads(typed("show", "r", "--json", cwd=root, env=env)) for root, env in ((origin, before), (clone, after))
    ]
    assert canonical_json(states[0]["state"]) == canonical_json(states[1]["state"])
    typed("approve", "r", "--no-resume", cwd=clone, env=after)
    typed("resume", "r", "--repo", ".", "--restore-files", cwd=clone, env=after)
    assert (clone / "made.txt").read_text() == "one\ntwo\n"
    assert (origin / "made.txt").read_text() == "one\n"
    cuts = json.loads(typed("checkpoints", "r", "--json", cwd=clone, env=after))
    typed("restore", cuts[0]["id"], cwd=clone, env=after)
    assert (clone / "made.txt").read_text() == "one\n"
    typed("import", file, cwd=clone, env=after, code=2)
    renamed = json.loads(typed("import", file, "--id", "copy", "--json", cwd=clone, env=after))
    assert (renamed["workflow_id"], renamed["snapshots"]) == ("copy", imported["snapshots"])


@pytest.mark.parametrize("flags", quick_first([((),), (("--files-only",),)]), ids=["the run", "its files only"])
def test_a_run_does_not_go_on_where_its_files_are_not(
    origin: Path, tmp_path: Path, agentos: Agentos, url: str, flags: tuple[str, ...]
) -> None:
    clone, file = tmp_path / "clone", tmp_path / "run.jsonl"
    for root, name in ((origin, "https://example.org/team/app"), (clone, "https://example.org/team/app.git")):
        if root == clone:
            git("clone", "--quiet", str(origin), str(clone), cwd=tmp_path)
        git("config", "remote.origin.url", name, cwd=root)
    there = {"AGENTOS_WORKFLOW_DB": url}
    here = there if flags else {"AGENTOS_WORKFLOW_DB": ""}
    assert agentos("run", "edits.yaml", "--id", "r", cwd=origin, env=there).code == 3
    assert agentos("export", "r", "--files", "-o", file, cwd=origin, env=there).code == 0
    assert agentos("import", file, *flags, cwd=clone, env=here).code == 0
    refused = agentos("approve", "r", "--repo", ".", cwd=clone, env=here)
    assert (refused.code, "without what the earlier ones did" in refused.err) == (2, True), refused.err
    assert not (clone / "made.txt").exists()
    foreseen = agentos("resume", "r", "--repo", ".", "--dry-run", cwd=clone, env=here)
    assert (foreseen.code, "--restore-files" in foreseen.err) == (2, True)
    (clone / "made.txt").write_text("one\n")  # just like it
    done = agentos("resume", "r", "--repo", ".", cwd=clone, env=here)
    assert done.code == 0, done.err
    assert (clone / "made.txt").read_text() == "one\ntwo\n"


def test_a_run_that_came_without_its_files_says_so_and_goes_on_by_your_word(
    origin: Path, tmp_path: Path, agentos: Agentos
) -> None:
    clone, file = tmp_path / "clone", tmp_path / "run.jsonl"
    git("clone", "--quiet", str(origin), str(clone), cwd=tmp_path)
    assert agentos("run", "edits.yaml", "--id", "r", cwd=origin).code == 3
    assert agentos("export", "r", "-o", file, cwd=origin).code == 0
    assert agentos("import", file, cwd=clone).code == 0
    refused = agentos("approve", "r", cwd=clone)
    assert (refused.code, "the snapshots of them are gone" in refused.err) == (2, True), refused.err
    assert "agentos resume r --files keep" in refused.err
    assert not (clone / "bytes").exists()
    assert agentos("resume", "r", "--files", "keep", cwd=clone).code == 0
    assert (clone / "made.txt").read_text() == "two\n"


def test_files_that_were_changed_in_the_runs_own_worktree_are_its_users_affair(origin: Path, agentos: Agentos) -> None:
    assert agentos("run", "edits.yaml", "--id", "r", cwd=origin).code == 3
    (origin / "made.txt").write_text("edited\n")
    assert agentos("approve", "r", cwd=origin).code == 0
    assert (origin / "made.txt").read_text() == "edited\ntwo\n"


def test_what_cannot_be_carried_is_told(origin: Path, tmp_path: Path, agentos: Agentos) -> None:
    assert agentos("run", "edits.yaml", "--id", "r", cwd=origin).code == 3
    plain, whole = tmp_path / "plain", tmp_path / "whole"
    plain.write_bytes(b"".join(Client(origin).export("r")))
    whole.write_bytes(b"".join(Client(origin).export("r", files=True)))
    assert json.loads(plain.read_bytes().splitlines()[0])["version"] == 1
    with plain.open("rb") as file, pytest.raises(RunRefusedError, match="holds no snapshots"):
        Client(origin).import_run(file, files_only=True)
    git("init", "--quiet", str(tmp_path / "other"), cwd=tmp_path)
    with whole.open("rb") as file:
        assert Client(tmp_path / "other").import_run(file).snapshots > 0
    lines = whole.read_bytes().splitlines(keepends=True)
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"".join(lines).replace(b'"kind":"snapshots","body":"', b'"kind":"snapshots","body":"AAAA'))
    assert agentos("import", damaged, "--id", "new", cwd=origin).code == 6
    store = find_place(origin).open(readonly=True)
    assert [run.workflow_id for run in store.list_runs()] == ["r"]
    store.close()


def test_a_run_without_snapshots_here_is_not_exported_with_files(origin: Path, agentos: Agentos) -> None:
    (origin / "plain.yaml").write_text("name: plain\ntasks: {a: {run: 'true', effects: none}}\n")
    assert agentos("run", "plain.yaml", "--id", "p", cwd=origin).code == 0
    with pytest.raises(SnapshotError, match="no snapshots of files of run p"):
        Client(origin).export("p", files=True)
