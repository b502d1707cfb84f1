"""Runs go on where they belong, and elsewhere only when that was said: then they belong there."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agentos.exceptions import LeaseLostError, RunRefusedError
from agentos.store.port import Scope
from agentos.store.postgres.database import open_store
from tests.cli.conftest import SOURCES, Agentos, Completed, agentos
from tests.conftest import LinkedWorktree, git
from tests.contract.journals import RUN, create

__all__ = ["agentos"]

FLOW = """
name: flow
tasks:
  wait: {run: "test -e ../go", effects: none}
"""
FILES = """
name: flow
tasks:
  make: {run: "echo made > made.txt"}
  wait: {needs: make, run: "test -e ../go", effects: none}
"""
# The machine's name is all that differs: processes, clock and files are the same.
RENAMED = """
import platform, sys
name = sys.argv.pop(1)
platform.node = lambda: name
from agentos.cli.main import main
main()
"""


def on_host(name: str, *argv: str, cwd: Path) -> Completed:
    """The program on a machine of another name, which has the same folders."""
    env = os.environ | {"PYTHONPATH": str(SOURCES)}
    command = [sys.executable, "-c", RENAMED, name, *argv]
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    return Completed(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def repo(tmp_worktree: LinkedWorktree, monkeypatch: pytest.MonkeyPatch, url: str) -> Path:
    """A repository known by its remote, with a run `y4` that failed and can go on once ../go is there."""
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", url)
    root = tmp_worktree.main
    git("config", "remote.origin.url", "https://example.org/old", cwd=root)
    for worktree in tmp_worktree:
        (worktree / "flow.yaml").write_text(FLOW)
        (worktree / "files.yaml").write_text(FILES)
    return root


def begin(agentos: Agentos, root: Path, flow: str = "flow.yaml") -> None:
    done = agentos("run", flow, "--id", "y4", cwd=root)
    assert done.code == 1, done.err
    (root.parent / "go").touch()


def listed(agentos: Agentos, root: Path, *more: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(agentos("list", "--json", *more, cwd=root).out)
    return rows


def advised(done: Completed) -> list[str]:
    """The command that an error tells to type."""
    words = done.err.partition(": agentos ")[2].partition(" (")[0].partition(". ")[0]
    return shlex.split(words)


def test_a_run_whose_repository_got_another_name_is_told_so_and_taken_over(agentos: Agentos, repo: Path) -> None:
    begin(agentos, repo)
    git("config", "remote.origin.url", "https://example.org/new", cwd=repo)
    assert listed(agentos, repo) == []
    refused = agentos("resume", "y4", cwd=repo)
    assert (refused.code, "was known as example.org/old" in refused.err) == (2, True), refused.err
    assert advised(refused) == ["resume", "y4", "--repo", str(repo)]
    done = agentos(*advised(refused), cwd=repo)
    assert done.code == 0, done.err
    [row] = listed(agentos, repo)
    assert (row["workflow_id"], row["status"]) == ("y4", "complete")
    assert agentos("logs", "y4", cwd=repo).code == 0


@pytest.mark.full
def test_doctor_finds_runs_that_are_kept_under_the_old_name(agentos: Agentos, repo: Path) -> None:
    begin(agentos, repo)
    assert "example.org" not in agentos("doctor", cwd=repo).out
    git("config", "remote.origin.url", "https://example.org/new", cwd=repo)
    told = " ".join(agentos("doctor", cwd=repo).out.split())
    assert "run y4 (failed) was begun here when the repository was called example.org/old" in told
    assert f"agentos resume y4 --repo {repo}" in told
    assert agentos("resume", "y4", "--repo", str(repo), cwd=repo).code == 0
    assert "example.org" not in agentos("doctor", cwd=repo).out


def test_the_old_name_can_be_kept(agentos: Agentos, repo: Path) -> None:
    begin(agentos, repo)
    git("config", "remote.origin.url", "https://example.org/new", cwd=repo)
    (repo / "agentos.toml").write_text(
        agentos("resume", "y4", cwd=repo).err.rpartition("name: ")[2].partition(" in ")[0]
    )
    assert agentos("resume", cwd=repo).code == 0


def test_resume_all_names_what_it_passes_over(agentos: Agentos, repo: Path, url: str) -> None:
    begin(agentos, repo)
    git("config", "remote.origin.url", "https://example.org/new", cwd=repo)
    with_driver_gone(url)
    done = agentos("resume", "--all", cwd=repo)
    assert done.code == 1
    assert f"agentos resume y4 --repo {repo}" in done.err


def with_driver_gone(url: str) -> None:
    """As a killed driver leaves its run."""
    plain, _, schema = url.rpartition("&schema=")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"UPDATE {schema}.run SET status = 'running'")


def test_a_run_moves_to_a_linked_worktree_and_stays_there(
    agentos: Agentos, repo: Path, tmp_worktree: LinkedWorktree
) -> None:
    linked = tmp_worktree.worktree
    agentos("run", "flow.yaml", "--id", "y4", cwd=repo)
    assert agentos("resume", "y4", "--repo", ".", cwd=linked).code == 1, "it moves also where it fails again"
    assert listed(agentos, repo) == []
    [row] = listed(agentos, linked)
    assert (row["root"], row["status"]) == (str(linked), "failed")
    (repo.parent / "go").touch()
    done = agentos("resume", cwd=linked)
    assert done.code == 0, done.err


def test_the_beginning_of_an_id_takes_nothing_from_others(
    agentos: Agentos, repo: Path, tmp_worktree: LinkedWorktree
) -> None:
    begin(agentos, repo)
    refused = agentos("resume", "y", "--repo", ".", cwd=tmp_worktree.worktree)
    assert refused.code == 2
    assert advised(refused) == ["resume", "y4", "--repo", str(tmp_worktree.worktree)]
    assert [row["root"] for row in listed(agentos, repo)] == [str(repo)]


def test_a_run_that_changed_files_does_not_move_without_them(agentos: Agentos, repo: Path, tmp_path: Path) -> None:
    begin(agentos, repo, "files.yaml")
    clone = tmp_path / "clone"
    git("clone", "--quiet", str(repo), str(clone), cwd=tmp_path)
    (clone / "files.yaml").write_text(FILES)
    refused = agentos("resume", "y4", "--repo", ".", cwd=clone)
    assert (refused.code, "not on this host" in refused.err) == (2, True), refused.err
    [row] = listed(agentos, repo)
    assert (row["root"], row["status"]) == (str(repo), "failed")
    assert agentos("resume", cwd=repo).code == 0


def test_a_store_moves_a_run_into_a_scope_that_has_no_other_of_that_id(url: str) -> None:
    one, two, three = (Scope(repository=name) for name in ("one", "two", "three"))
    stores = [open_store(url, scope=scope) for scope in (one, two)]
    lease, other = (create(store) for store in stores)
    with pytest.raises(RunRefusedError, match="of its own"):
        stores[0].move_run(lease, "/r", "h", two)
    for _ in range(2):  # as after a connection that was lost before the answer came
        stores[0].move_run(lease, "/r", "h", three)
    assert stores[0].find_run(RUN).scope == three
    stores[0].renew_lease(lease)
    stores[1].release_lease(other)
    with pytest.raises(LeaseLostError):
        stores[1].move_run(other, "/r", "h", one)
    for store in stores:
        store.close()


# --- hosts --------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_run_of_another_host_is_not_picked_up_unasked(agentos: Agentos, repo: Path) -> None:
    begin(agentos, repo)
    for argv in (("resume",), ("resume", "y4"), ("resume", "--dry-run"), ("run", "flow.yaml", "--id", "y4")):
        refused = on_host("ci-2", *argv, cwd=repo)
        assert refused.code == 2, (argv, refused)
        assert f"{repo} on {platform.node()}" in refused.err
        assert advised(refused) == ["resume", "y4", "--repo", "."]
    assert f"in {repo} on {platform.node()}" in on_host("ci-2", "show", "y4", cwd=repo).out
    assert f"in {repo}\n" in agentos("show", "y4", cwd=repo).out
    done = on_host("ci-2", "resume", "--all", cwd=repo)
    assert (done.code, "No run was interrupted" in done.err) == (0, True), done.err
    done = on_host("ci-2", "resume", "y4", "--repo", ".", cwd=repo)
    assert done.code == 0, done.err
    [row] = listed(agentos, repo)
    assert (row["status"], row["host"]) == ("complete", "ci-2")


def test_a_worker_adopts_runs_of_every_host_and_they_belong_to_its_own_then(
    agentos: Agentos, repo: Path, url: str
) -> None:
    begin(agentos, repo)
    with_driver_gone(url)
    done = on_host("ci-2", "worker", "--once", cwd=repo)
    assert (done.code, "complete" in done.err + done.out) == (0, True), done
    assert listed(agentos, repo)[0]["host"] == "ci-2"


@pytest.mark.full
def test_a_worker_leaves_a_run_with_the_host_that_has_its_files(
    agentos: Agentos, repo: Path, tmp_path: Path, url: str
) -> None:
    begin(agentos, repo, "files.yaml")
    with_driver_gone(url)
    clone = tmp_path / "clone"
    git("clone", "--quiet", str(repo), str(clone), cwd=tmp_path)
    git("config", "remote.origin.url", "https://example.org/old", cwd=clone)
    (clone / "files.yaml").write_text(FILES)
    done = on_host("ci-2", "worker", "--once", cwd=clone)
    assert "not on this host" in done.err + done.out
    assert [(row["root"], row["host"]) for row in listed(agentos, repo)] == [(str(repo), platform.node())]


@pytest.mark.full
def test_a_question_of_another_host_is_answered_there_and_goes_on_only_where_it_belongs(
    agentos: Agentos, repo: Path
) -> None:
    (repo / "gate.yaml").write_text('name: g\ntasks:\n  b: {approve: "Go?", run: "echo b", effects: none}\n')
    assert agentos("run", "gate.yaml", "--id", "g1", cwd=repo).code == 3
    [gate] = json.loads(on_host("ci-2", "inbox", "--json", cwd=repo).out)
    assert gate["approve"] == "agentos approve g1 approve:b", "with --repo it would move"
    done = on_host("ci-2", *shlex.split(gate["approve"])[1:], cwd=repo)
    assert f"{repo} on {platform.node()}" in done.err
    [row] = listed(agentos, repo)
    assert (row["status"] != "complete", row["host"]) == (True, platform.node())
    assert agentos("resume", cwd=repo).code == 0


@pytest.mark.full
def test_lists_show_host_and_repository_where_there_are_several(agentos: Agentos, repo: Path) -> None:
    begin(agentos, repo)
    assert on_host("ci-2", "run", "flow.yaml", "--id", "z1", cwd=repo).code == 0
    table = agentos("list", cwd=repo).out.splitlines()
    assert "HOST" in table[0]
    assert "REPOSITORY" not in table[0]
    assert {line.split()[0]: line.split()[-1] for line in table[1:]} == {"y4": platform.node(), "z1": "ci-2"}
    git("config", "remote.origin.url", "https://example.org/new", cwd=repo)
    assert agentos("run", "flow.yaml", "--id", "n1", cwd=repo).code == 0
    assert "HOST" not in agentos("list", cwd=repo).out
    table = agentos("list", "--everywhere", cwd=repo).out.splitlines()
    assert table[0].split()[-3:] == ["WORKTREE", "REPOSITORY", "HOST"]
    assert {(row["workflow_id"], row["repository"], row["host"]) for row in listed(agentos, repo, "--everywhere")} == {
        ("y4", "example.org/old", platform.node()),
        ("z1", "example.org/old", "ci-2"),
        ("n1", "example.org/new", platform.node()),
    }
