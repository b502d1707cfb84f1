"""Schedules: who owns one, what is fired when somebody looks, and what outlives changes, deletions and moves."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agentos import Workflow
from agentos.client import Client, add_schedule, list_schedules, remove_schedule
from agentos.client.queue.schedules import ScheduleView, schedules_elsewhere
from agentos.exceptions import NotFoundError, RunRefusedError, WorkflowConfigurationError, WorkflowDefinitionError
from agentos.ids import WorkflowId
from agentos.machine.slots import slot_id
from agentos.store.holder import current_holder
from agentos.store.port import Progress
from agentos.workflow.place.place import find_place
from agentos.workflow.place.schedule_owners import ScheduleOwners
from agentos.workflow.start.schedules import fire_slots
from tests.conftest import git
from tests.marks import quick_first
from tests.postgres.server import fresh_url

FLOW = """
name: nightly
params: {target: src}
cron: {every: 1h, catch_up: all}
tasks: {a: {run: "true", effects: none}}
"""
HOUR = timedelta(hours=1)


@pytest.fixture(params=quick_first(["sqlite", "postgres"]))
def repo(request: pytest.FixtureRequest, tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "postgres":
        monkeypatch.setenv("AGENTOS_WORKFLOW_DB", fresh_url())
    (tmp_git_repo / "nightly.yaml").write_text(FLOW)
    git("add", "-A", cwd=tmp_git_repo)
    git("commit", "--quiet", "-m", "flow", cwd=tmp_git_repo)
    return tmp_git_repo


@pytest.fixture
def linked(repo: Path) -> Path:
    git("worktree", "add", "--quiet", str(repo.parent / "linked"), cwd=repo)
    return repo.parent / "linked"


def last_hour() -> datetime:
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


def added(repo: Path, hours: int = 3, **more: Any) -> ScheduleView:
    """With so many slots to make up for."""
    return add_schedule("nightly.yaml", repo=repo, since=last_hour() - hours * HOUR, **more)


def fire(repo: Path) -> list[str]:
    return [one.workflow_id for one in fire_slots(find_place(repo))]


def end(repo: Path, run: str, *, delete: bool = False) -> None:
    """As if somebody had driven it."""
    store = find_place(repo).open()
    lease = store.take_lease(WorkflowId(run), current_holder(), 15.0)
    store.append(lease, [], Progress(status="complete", layer=1, layers=1, epoch=0))
    store.release_lease(lease)
    if delete:
        store.delete_runs([store.find_run(run)])
    store.close()


def the_one(repo: Path) -> ScheduleView:
    [view] = list_schedules(repo)
    return view


def slots(*hours_ago: int, name: str = "nightly") -> list[str]:
    return [slot_id(name, last_hour() - ago * HOUR) for ago in hours_ago]


def test_slots_are_fired_in_order_one_run_at_a_time(repo: Path) -> None:
    added(repo)
    assert fire(repo) == slots(2)
    assert fire(repo) == [], "its run has not ended"
    assert the_one(repo).last_status == "pending"
    end(repo, *slots(2))
    assert fire(repo) == slots(1)
    end(repo, *slots(1), delete=True)
    assert fire(repo) == slots(0)
    end(repo, *slots(0))
    assert fire(repo) == []
    view = the_one(repo)
    assert (view.last_slot, view.last_run, view.next_slot) == (last_hour(), *slots(0), last_hour() + HOUR)


def test_a_run_begins_as_it_was_added(repo: Path) -> None:
    added(repo, params={"target": "docs"}, queue="slow", priority=3, labels=["night"], name="docs")
    assert fire(repo) == slots(2, name="docs")
    record = Client(repo).find(*slots(2, name="docs"))
    assert (record.name, record.labels, record.status) == ("nightly", ("night",), "pending")
    assert record.waiting is not None
    assert (record.waiting.queue, record.waiting.priority) == ("slow", 3)
    assert Client(repo).plan(record.workflow_id).params == {"target": "docs"}


def test_no_slot_comes_twice_after_it_was_removed_and_added_again(repo: Path) -> None:
    added(repo)
    fire(repo)
    end(repo, *slots(2), delete=True)
    remove_schedule("nightly", repo)
    assert (fire(repo), list_schedules(repo)) == ([], [])
    added(repo)
    assert fire(repo) == []
    assert the_one(repo).next_slot == last_hour() + HOUR


def test_added_again_with_the_same_times_it_goes_on_where_it_was(repo: Path) -> None:
    added(repo)
    fire(repo)
    end(repo, *slots(2))
    add_schedule("nightly.yaml", {"target": "new"}, repo=repo)
    assert fire(repo) == slots(1)
    assert Client(repo).plan(*slots(1)).params == {"target": "new"}


def test_other_times_hold_from_then_on(repo: Path) -> None:
    added(repo)
    (repo / "nightly.yaml").write_text(FLOW.replace("1h", "30m"))
    assert the_one(repo).file_change == "changed"
    view = add_schedule("nightly.yaml", repo=repo)
    assert (view.cron.every, view.file_change, view.missed) == ("30m", "", ())
    assert fire(repo) == []


def test_what_is_shown_of_one_that_nobody_fired(repo: Path) -> None:
    added(repo)
    view = the_one(repo)
    assert len(view.missed) in (2, 3), "that of this hour may still be in time"
    assert (view.last_slot, view.last_run, view.last_status, view.is_own) == (None, "", None, True)
    fire(repo)
    view = the_one(repo)
    assert (view.missed, view.waiting) == ((), (last_hour() - HOUR, last_hour()))
    (repo / "nightly.yaml").unlink()
    assert the_one(repo).file_change == "gone"


def test_one_worktree_owns_it(repo: Path, linked: Path) -> None:
    added(repo)
    with pytest.raises(RunRefusedError, match=r"'nightly' belongs to .*repo"):
        added(linked)
    assert fire(linked) == []
    assert fire(repo) == slots(2)
    added(linked, name="other")
    assert fire(linked) == slots(2, name="other")


def test_a_linked_worktree_may_own_it_and_give_it_up(repo: Path, linked: Path) -> None:
    added(linked)
    assert fire(repo) == []
    with pytest.raises(RunRefusedError, match="belongs to"):
        added(repo)
    remove_schedule("nightly", linked)
    added(repo)
    assert fire(linked) == []


def test_what_a_worktree_owned_that_is_gone_can_be_added_elsewhere(repo: Path, linked: Path) -> None:
    added(linked)
    is_shared = find_place(repo).is_shared
    assert schedules_elsewhere(repo) == ({} if is_shared else {"nightly": str(linked)})
    git("worktree", "remove", "--force", str(linked), cwd=repo)
    assert schedules_elsewhere(repo) == {}
    if is_shared:  # which cannot tell that it is gone
        assert not the_one(repo).is_own
        remove_schedule("nightly", repo)
        added(repo, hours=0, name="nightly")
        assert fire(repo) == []
        return
    added(repo)
    assert fire(repo) == slots(2)


def test_a_worktree_that_was_moved_goes_on_firing(repo: Path, linked: Path) -> None:
    added(linked)
    moved = repo.parent / "moved"
    git("worktree", "move", str(linked), str(moved), cwd=repo)
    assert fire(moved) == slots(2)


def test_a_copy_of_the_repository_fires_nothing_that_was_added_in_the_first(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "nightly.yaml").write_text(FLOW)
    added(tmp_git_repo)
    copy = tmp_git_repo.parent / "copy"
    shutil.copytree(tmp_git_repo, copy)
    assert fire(copy) == []
    assert not the_one(copy).is_own
    assert fire(tmp_git_repo) == slots(2)


def test_of_many_that_claim_a_schedule_one_owns_it(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "nightly.yaml").write_text(FLOW)
    git("add", "-A", cwd=tmp_git_repo)
    git("commit", "--quiet", "-m", "flow", cwd=tmp_git_repo)
    git("worktree", "add", "--quiet", str(tmp_git_repo.parent / "linked"), cwd=tmp_git_repo)
    owners = [ScheduleOwners(find_place(root)) for root in (tmp_git_repo, tmp_git_repo.parent / "linked")]
    assert owners[0].claim("nightly") is None
    added(tmp_git_repo)
    assert str(owners[1].claim("nightly").root) == str(tmp_git_repo)  # type: ignore[union-attr]
    owners[1].release("nightly")
    assert owners[0].claim("nightly") is None


def test_of_worktrees_that_add_it_at_once_one_has_it(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "nightly.yaml").write_text(FLOW)
    git("add", "-A", cwd=tmp_git_repo)
    git("commit", "--quiet", "-m", "flow", cwd=tmp_git_repo)
    worktrees = [tmp_git_repo, tmp_git_repo.parent / "one", tmp_git_repo.parent / "two"]
    for path in worktrees[1:]:
        git("worktree", "add", "--quiet", str(path), cwd=tmp_git_repo)
    names = [f"n{number}" for number in range(8)]

    def add_all(root: Path) -> None:
        for name in names:
            with suppress(RunRefusedError):  # another was quicker
                added(root, name=name)

    with ThreadPoolExecutor() as threads:
        list(threads.map(add_all, worktrees))
    assert sorted(one.name for root in worktrees for one in list_schedules(root)) == names


def test_a_damaged_record_of_owners_is_told(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "nightly.yaml").write_text(FLOW)
    added(tmp_git_repo)
    (tmp_git_repo / ".git" / "agentos" / "schedules.json").write_text("{")
    with pytest.raises(WorkflowConfigurationError, match=r"which schedule cannot be read: .*schedules\.json"):
        fire(tmp_git_repo)


def test_what_cannot_be_a_schedule_is_refused(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "nightly.yaml").write_text(FLOW.replace("cron", "#cron"))
    with pytest.raises(RunRefusedError, match="does not say when it runs"):
        added(tmp_git_repo)
    (tmp_git_repo / "nightly.yaml").write_text(FLOW.replace("1h", "1y"))
    with pytest.raises(WorkflowDefinitionError, match="every takes whole minutes"):
        added(tmp_git_repo)
    (tmp_git_repo / "nightly.yaml").write_text(FLOW)
    for name in ("", "a\nb", "x" * 190):
        with pytest.raises(RunRefusedError, match=r"can be called|can have the id"):
            added(tmp_git_repo, name=name)
    with pytest.raises(RunRefusedError, match="queue"):
        added(tmp_git_repo, queue="a b\n")
    flow = Workflow("inline", cron="0 3 * * *")
    flow.source = None
    flow.add("a", "shell", run="true", effects="none")
    with pytest.raises(RunRefusedError, match="not defined in a file"):
        add_schedule(flow, repo=tmp_git_repo)
    with pytest.raises(NotFoundError, match="no schedule 'nightly'"):
        remove_schedule("nightly", tmp_git_repo)
    assert list_schedules(tmp_git_repo) == []
