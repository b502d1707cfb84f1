"""Runs that are old enough are deleted: by a command that says which, or by a worker, as the settings say."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest

from agentos import Client, Workflow, run
from agentos.exceptions import TryAgainError
from agentos.ids import WorkflowId
from agentos.store.port import Progress
from agentos.workflow.expiry.deletion_note import deletion_note, has_note, note_path
from agentos.workflow.expiry.expired_runs import find_expired
from agentos.workflow.expiry.rules import Expiry, expiry_for, parse_age
from agentos.workflow.place.place import find_place
from tests.cli import edits
from tests.cli.conftest import Agentos
from tests.cli.runs import complete, driven, interrupted, waiting
from tests.conftest import git
from tests.contract.journals import Journal, create
from tests.marks import quick_first

OLD = ("delete", "--older-than", "0s", "--status", "complete")


def failing(root: Path, id: str) -> None:
    flow = Workflow("failing")
    flow.add("t", "shell", run="echo said; exit 1", effects="none")
    run(flow, workflow_id=id, repo=root, check=False)


def short_runs(root: Path, many: int) -> None:
    """Runs of one event, each with a log."""
    store = find_place(root, durability="process").open(create=True)
    for number in range(many):
        lease = create(store, f"short-{number:03d}", root=str(root))
        journal = Journal(lease.workflow_id)
        journal.start("t")
        store.append(lease, journal.take(), Progress(status="complete", layer=0, layers=1, epoch=0))
        store.release_lease(lease)
        _log(root, lease.workflow_id)
    store.close()


def ids(root: Path) -> list[str]:
    return sorted(one.workflow_id for one in Client(root).list_runs())


def test_without_yes_it_says_what_would_go(tmp_git_repo: Path, agentos: Agentos) -> None:
    complete(tmp_git_repo, "run-1")
    complete(tmp_git_repo, "run-2")
    waiting(tmp_git_repo)
    done = agentos(*OLD, cwd=tmp_git_repo)
    assert done.code == 2
    assert [line.split()[0] for line in done.out.splitlines()] == ["RUN", "run-1", "run-2"]
    assert "2 runs with" in done.err
    assert "MB would be deleted. Nothing was: say --yes." in done.err
    told = json.loads(agentos(*OLD, "--json", cwd=tmp_git_repo).out)
    assert (told["done"], told["runs"]) == (False, ["run-1", "run-2"])
    assert told["bytes"] > 1000
    assert ids(tmp_git_repo) == ["ask-1", "run-1", "run-2"]


def test_only_runs_go_whose_status_is_named(tmp_git_repo: Path, agentos: Agentos) -> None:
    complete(tmp_git_repo)
    failing(tmp_git_repo, "bad-1")
    waiting(tmp_git_repo)
    interrupted(tmp_git_repo)
    with driven(tmp_git_repo):
        done = agentos(*OLD, "--yes", "--json", cwd=tmp_git_repo)
        assert (done.code, json.loads(done.out)["runs"]) == (0, ["run-1"])
        assert agentos("delete", "--older-than", "0s", "--status", "failed", "--yes", cwd=tmp_git_repo).code == 0
        assert ids(tmp_git_repo) == ["ask-1", "busy", "cut-1"]
        # One that is driven is none of these, whatever is named.
        every = [f"--status={status}" for status in ("paused", "interrupted", "pending")]
        assert agentos("delete", *every, "--yes", cwd=tmp_git_repo).code == 0
        assert ids(tmp_git_repo) == ["ask-1", "busy"]
    assert not (tmp_git_repo / ".agentos/logs/bad-1").exists()


def test_a_run_that_waits_for_an_answer_goes_by_its_id_alone(tmp_git_repo: Path, agentos: Agentos) -> None:
    waiting(tmp_git_repo)
    assert agentos("delete", "--status", "waiting", "--yes", cwd=tmp_git_repo).code == 2
    assert Client(tmp_git_repo).expired_runs(expiry_for(["waiting"], None)) == []
    assert ids(tmp_git_repo) == ["ask-1"]
    assert agentos("delete", "ask-1", "--yes", cwd=tmp_git_repo).code == 0
    assert ids(tmp_git_repo) == []


def test_young_ones_and_the_newest_of_each_workflow_stay(tmp_git_repo: Path, agentos: Agentos) -> None:
    for number in range(4):
        complete(tmp_git_repo, f"chain-{number}")
    flow = Workflow("other")
    flow.add("t", lambda: 1)
    run(flow, workflow_id="other-1", repo=tmp_git_repo, labels=["nightly"])
    assert agentos("delete", "--older-than", "1h", "--status", "complete", "--yes", cwd=tmp_git_repo).code == 0
    assert len(ids(tmp_git_repo)) == 5
    labelled = agentos(*OLD, "--label", "nightly", "--json", cwd=tmp_git_repo)
    assert json.loads(labelled.out)["runs"] == ["other-1"]
    done = agentos(*OLD, "--keep-last", "2", "--yes", "--json", cwd=tmp_git_repo)
    assert json.loads(done.out)["runs"] == ["chain-0", "chain-1"]
    assert ids(tmp_git_repo) == ["chain-2", "chain-3", "other-1"]


def test_age_counts_from_the_last_event(tmp_git_repo: Path) -> None:
    complete(tmp_git_repo)
    place = find_place(tmp_git_repo)
    store = place.open()
    ended = store.find_run("run-1").updated_at
    expiry = Expiry(ages={"complete": timedelta(days=30)})
    for late, gone in ((timedelta(days=30) - timedelta(microseconds=1), 0), (timedelta(days=30), 1)):
        assert len(find_expired(place, store, expiry, ended + late)) == gone
    assert find_expired(place, store, Expiry(ages={"complete": parse_age("999999w")}), ended) == []
    store.close()


@pytest.mark.parametrize(
    "argv",
    [
        ("--older-than", "30d"),
        ("--older-than", "soon", "--status", "complete"),
        ("--status", "running"),
        ("run-1", "--status", "complete"),
        ("--all", "--status", "complete"),
        ("--keep-last", "3"),
    ],
)
def test_what_is_asked_must_be_clear(tmp_git_repo: Path, agentos: Agentos, argv: tuple[str, ...]) -> None:
    complete(tmp_git_repo)
    done = agentos("delete", *argv, "--yes", cwd=tmp_git_repo)
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert ids(tmp_git_repo) == ["run-1"]


def test_snapshots_and_logs_go_with_many_runs_and_those_of_others_stay(
    tmp_git_repo: Path, home: Path, agentos: Agentos
) -> None:
    root = edits.make_repository(tmp_git_repo)
    for number in range(3):
        edits.complete(agentos, root, f"run-{number}")
    store = ("--git-dir", str(root / ".git/agentos/store"), "for-each-ref", "--format=%(refname)")
    assert agentos(*OLD, "--keep-last", "1", "--yes", cwd=root).code == 0
    assert ids(root) == ["run-2"]
    assert {ref.split("/")[2] for ref in git(*store, cwd=root).splitlines()} == {"run-2"}
    assert agentos("restore", edits.checkpoints(agentos, root, "run-2")[0], cwd=root).code == 0


# --- killed in the middle -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", quick_first(["delete.after:2", "delete.noted:2", "delete.inside:2", "delete.after"]))
def test_one_that_is_killed_leaves_whole_runs_and_is_brought_to_its_end(
    tmp_git_repo: Path, home: Path, agentos: Agentos, point: str
) -> None:
    root = edits.make_repository(tmp_git_repo)
    edits.complete(agentos, root, "large")
    short_runs(root, 202)  # with the other more than one batch
    done = agentos(*OLD, "--yes", cwd=root, env={"AGENTOS_CRASH_AT": point})
    assert done.code == -9
    assert has_note(str(root / ".agentos/issue_workflow.db"))
    left = ids(root)
    assert len(left) in (203, 3, 0)  # before the first batch, between two, after the last
    for one in left[-2:]:
        assert len(Client(root).events(one)) == Client(root).find(one).sequence
        store = find_place(root).open(readonly=True)
        store.verify(WorkflowId(one))
        store.close()
    assert "runs are being deleted" in agentos("doctor", cwd=root).out
    done = agentos(*OLD, "--yes", "--json", cwd=root)
    assert done.code == 0, done.err
    assert ids(root) == []
    assert not list((root / ".agentos/logs").iterdir())
    assert not git("--git-dir", str(root / ".git/agentos/store"), "for-each-ref", cwd=root)
    assert not has_note(str(root / ".agentos/issue_workflow.db"))
    assert not [name for name in os.listdir(root / ".agentos") if "deleting" in name]


def _log(root: Path, id: str) -> None:
    folder = root / ".agentos/logs" / id
    folder.mkdir(parents=True)
    (folder / "t.1.log").write_text("said")


def test_what_was_left_of_a_deletion_goes_with_the_next_prune(tmp_git_repo: Path, agentos: Agentos) -> None:
    complete(tmp_git_repo, "stays")
    complete(tmp_git_repo, "goes")
    for name in ("stays", "goes"):
        _log(tmp_git_repo, name)
    assert agentos("delete", "goes", "--yes", cwd=tmp_git_repo, env={"AGENTOS_CRASH_AT": "delete.after"}).code == -9
    assert (tmp_git_repo / ".agentos/logs/goes").exists()
    # Of a run that was not deleted the same note means nothing.
    database = str(tmp_git_repo / ".agentos/issue_workflow.db")
    with note_path(database).open("a") as file:
        file.write('{"run":"stays"}\n{"run":"cut o')
    assert agentos("prune", "--all", cwd=tmp_git_repo).code == 0
    assert os.listdir(tmp_git_repo / ".agentos/logs") == ["stays"]
    assert not has_note(database)


def test_snapshots_of_a_worktree_that_is_in_use_go_with_the_next_deletion(
    tmp_git_repo: Path, home: Path, agentos: Agentos
) -> None:
    root = edits.make_repository(tmp_git_repo)
    edits.complete(agentos, root)
    refs = ("--git-dir", str(root / ".git/agentos/store"), "for-each-ref")
    with edits.busy(root):
        assert agentos(*OLD, "--yes", cwd=root).code == 0
        assert "run-1" not in ids(root)
        assert "/run-1/" in git(*refs, cwd=root)
    assert agentos("prune", "--all", cwd=root).code == 0
    assert "/run-1/" not in git(*refs, cwd=root)


def test_only_one_at_a_time_deletes_from_a_database(tmp_git_repo: Path) -> None:
    complete(tmp_git_repo)
    database = find_place(tmp_git_repo).kept_beside
    with (
        deletion_note(database),
        pytest.raises(TryAgainError, match="has been deleting runs"),
        deletion_note(database, patience_s=0.0),
    ):
        pass


# --- as the settings say --------------------------------------------------------------------------------------------


def test_a_worker_deletes_what_the_settings_name_once_they_are_trusted(tmp_git_repo: Path, agentos: Agentos) -> None:
    for number in range(3):
        complete(tmp_git_repo, f"run-{number}")
    failing(tmp_git_repo, "bad-1")
    waiting(tmp_git_repo)
    (tmp_git_repo / "agentos.toml").write_text('[retention]\ncomplete = "0s"\nkeep_last = 1\n')
    everything = ids(tmp_git_repo)
    done = agentos("worker", "--once", cwd=tmp_git_repo)
    assert done.code == 0, done.err
    assert "agentos trust" in done.err
    assert ids(tmp_git_repo) == everything
    assert agentos("trust", "--yes", cwd=tmp_git_repo).code == 0
    for argv in (("list",), ("show", "run-0"), ("prune", "--all"), ("delete", "bad-1", "--yes"), ("db", "stats")):
        assert agentos(*argv, cwd=tmp_git_repo).code == 0
    assert ids(tmp_git_repo) == ["ask-1", "run-0", "run-1", "run-2"]  # nothing else deletes by itself
    assert json.loads(agentos("db", "stats", "--json", cwd=tmp_git_repo).out)["expired"] == 2
    assert "2 runs are older than the setting `retention`" in agentos("doctor", cwd=tmp_git_repo).out
    told = agentos("worker", "--once", "--json", cwd=tmp_git_repo)
    assert json.loads(told.out.splitlines()[-1])["what"] == "retention"
    assert ids(tmp_git_repo) == ["ask-1", "run-2"]


@pytest.mark.parametrize(
    "text", ['complete = "30 days"', "complete = 30", 'waiting = "1d"', "keep_last = -1", 'compleet = "1d"']
)
def test_a_retention_that_makes_no_sense_deletes_nothing(tmp_git_repo: Path, agentos: Agentos, text: str) -> None:
    complete(tmp_git_repo)
    (tmp_git_repo / "agentos.toml").write_text(f"[retention]\n{text}\n")
    done = agentos("worker", "--once", cwd=tmp_git_repo)
    assert done.code == 1
    assert "retention" in done.err
    assert ids(tmp_git_repo) == ["run-1"]


def test_the_users_own_variable_needs_no_trust(tmp_git_repo: Path, agentos: Agentos) -> None:
    complete(tmp_git_repo)
    env = {"AGENTOS_RETENTION": '{"complete": "0s"}'}
    assert agentos("worker", "--once", cwd=tmp_git_repo, env=env).code == 0
    assert ids(tmp_git_repo) == []
