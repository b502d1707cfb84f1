"""One database for many repositories: each worktree sees its own runs, every clone the same ones."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from agentos import Workflow, run
from agentos.exceptions import RunRefusedError
from agentos.store.port import Scope
from agentos.workflow.place.place import find_place, find_scope, normalise_origin
from agentos.workflow.place.run_search import find_checkpoint, find_run, list_runs, places
from agentos.workflow.start.resume import resume_run
from tests.conftest import LinkedWorktree, git


@pytest.mark.parametrize(
    "origin",
    [
        "https://ada:secret@Example.org/team/app.git",
        "https://example.org:443/team/app",
        "http://example.org:0080/team/app",
        "https://example.org:/team/app",
        "ssh://git@example.org:22/team/app.git",
        "git://example.org:9418/team/app",
        "ssh://git@example.org/team/app.git/",
        "git@example.org:team/app.git",
        "example.org:team/app",
    ],
)
def test_a_remote_has_one_name_however_it_is_reached(origin: str) -> None:
    assert normalise_origin(origin) == "example.org/team/app"


@pytest.mark.parametrize(
    ("origin", "name"),
    [
        ("https://example.org:8443/team/app", "example.org:8443/team/app"),
        ("ssh://git@example.org:443/team/app.git", "example.org:443/team/app"),
        ("https://ada@[2001:DB8::1]:8443/app", "[2001:db8::1]:8443/app"),
        ("https://[2001:db8::1]/app", "[2001:db8::1]/app"),
    ],
)
def test_servers_on_other_ports_have_repositories_of_their_own(origin: str, name: str) -> None:
    assert normalise_origin(origin) == name


@pytest.mark.parametrize("origin", ["", "/srv/app.git", "../app", "file:///srv/app.git", "https://example.org/"])
def test_a_remote_on_this_host_names_nothing_that_others_know(origin: str) -> None:
    assert normalise_origin(origin) == ""


def test_every_clone_of_a_repository_has_the_same_scope(tmp_git_repo: Path, tmp_path: Path) -> None:
    assert find_scope(tmp_git_repo) == Scope(repository=f"{platform.node()}:{tmp_git_repo}/.git")
    git("clone", "--quiet", str(tmp_git_repo), str(tmp_path / "clone"), cwd=tmp_path)
    assert find_scope(tmp_path / "clone") != find_scope(tmp_git_repo)
    for clone in (tmp_git_repo, tmp_path / "clone"):
        git("config", "remote.origin.url", "git@example.org:team/app.git", cwd=clone)
        assert find_scope(clone) == Scope(repository="example.org/team/app")
    (tmp_git_repo / "agentos.toml").write_text('repository = "ours"')
    place = find_place(tmp_git_repo)
    assert place.scope is None, "a file is not shared in this way"


def test_a_linked_worktree_has_a_scope_of_its_own(tmp_worktree: LinkedWorktree) -> None:
    main, linked = find_scope(tmp_worktree.main), find_scope(tmp_worktree.worktree)
    assert (main.worktree, linked.worktree) == ("", "worktree")
    assert main.repository == linked.repository


def test_outside_any_repository_the_folder_counts(tmp_path: Path) -> None:
    assert find_scope(tmp_path) == Scope(repository=f"{platform.node()}:{tmp_path}")


def answer(root: Path, value: int, id: str = "same") -> None:
    flow = Workflow("answer")
    flow.add("say", lambda: value)
    assert run(flow, workflow_id=id, repo=root).outputs == {"say": value}


def test_worktrees_do_not_mix_and_can_be_seen_together(
    tmp_worktree: LinkedWorktree, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", url)
    main, linked = tmp_worktree
    answer(main, 1)
    answer(linked, 2)
    answer(linked, 3, id="only-there")
    for root, ids in ((main, ["same"]), (linked, ["only-there", "same"])):
        assert [found.workflow_id for found in list_runs(find_place(root))] == ids
    [everywhere] = places(everywhere=True, repo=main)
    assert sorted((one.workflow_id, one.root) for one in list_runs(everywhere)) == [
        ("only-there", str(linked)),
        ("same", str(main)),
        ("same", str(linked)),
    ]
    monkeypatch.chdir(main)
    assert find_run("same").record.root == str(main)
    found = find_run("only-there")
    assert (found.place.root, found.record.scope.worktree) == (linked, "worktree")
    store = found.place.open(readonly=True)
    assert len(store.read_events(found.record.workflow_id)) > 0
    [cut] = store.list_checkpoints(found.record.workflow_id)
    store.close()
    place, checkpoint = find_checkpoint(cut.id)
    assert (place.root, checkpoint.workflow_id) == (linked, "only-there")


def test_a_clone_sees_the_runs_and_takes_one_over_only_when_told_to(
    tmp_git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", url)
    clone = tmp_path / "clone"
    git("clone", "--quiet", str(tmp_git_repo), str(clone), cwd=tmp_path)
    for root in (tmp_git_repo, clone):
        git("config", "remote.origin.url", "https://example.org/team/app", cwd=root)
    flow = Workflow("gated")
    flow.add("ship", lambda: 1, approve="Ship?")
    assert run(flow, workflow_id="here", repo=tmp_git_repo).status == "waiting"
    assert [found.workflow_id for found in list_runs(find_place(clone))] == ["here"]
    monkeypatch.chdir(clone)
    with pytest.raises(RunRefusedError, match=f"belongs to {tmp_git_repo}, not to {clone}"):
        resume_run(find_place(), "here", workflow=flow)
    moved = resume_run(find_place(clone), "here", workflow=flow)
    moved.store.release_lease(moved.lease)  # type: ignore[union-attr]
    moved.store.close()  # type: ignore[union-attr]
