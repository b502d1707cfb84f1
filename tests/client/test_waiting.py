"""What waits for an answer and what runs come to, asked for again and again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agentos import client
from agentos.client.waiting import Summaries, list_open_gates
from agentos.ids import CheckpointId, TaskId
from agentos.machine import events as ev
from agentos.machine.events import Usage
from agentos.store.sqlite.store import SqliteStore
from agentos.workflow.place.place import find_place
from tests.cli.runs import chain, complete, waiting
from tests.cli.sample import make_repository
from tests.contract.journals import NOON, RUN, RUNNING, Journal, create


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Each journal that was read, and after which event."""
    seen: list[tuple[str, int]] = []
    made = SqliteStore.read_events

    def counted(self: SqliteStore, workflow_id: Any, *, after: int = 0, **more: Any) -> Any:
        seen.append((workflow_id, after))
        return made(self, workflow_id, after=after, **more)

    monkeypatch.setattr(SqliteStore, "read_events", counted)
    return seen


def test_journals_are_read_again_only_where_they_have_grown(repo: Path, read: list[tuple[str, int]]) -> None:
    for number in range(3):
        waiting(repo, f"ask-{number}")
    complete(repo)
    summaries = Summaries()
    for _ in range(2):
        found = list_open_gates(repo, summaries=summaries)
        assert [gate.run.record.workflow_id for gate in found.gates] == ["ask-2", "ask-1", "ask-0"]
        assert summaries.read_usage(client.list_runs(repo).runs) == [Usage()] * 4
    assert sorted(read) == [("ask-0", 0), ("ask-1", 0), ("ask-2", 0), ("run-1", 0)]
    client.reject("ask-1", reason="no")
    read.clear()
    found = list_open_gates(repo, summaries=summaries)
    assert [gate.run.record.workflow_id for gate in found.gates] == ["ask-2", "ask-0"]
    assert read == []


def test_long_journals_are_not_read_to_tell_what_a_list_costs(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client.run(chain(12), workflow_id="long", repo=repo)
    complete(repo, "short")
    [short, long] = client.list_runs(repo).runs
    monkeypatch.setattr("agentos.client.waiting.MOST_EVENTS", short.record.sequence)
    summaries = Summaries()
    assert summaries.read_usage([long, short]) == [None, Usage()]
    monkeypatch.setattr("agentos.client.waiting.MOST_EVENTS", long.record.sequence)
    assert summaries.read_usage([short, long]) == [Usage(), Usage()]


def test_of_a_run_that_is_driven_only_what_is_new_is_read(repo: Path, read: list[tuple[str, int]]) -> None:
    place = find_place(repo)
    store, journal, summaries = place.open(create=True), Journal(), Summaries()
    lease = create(store)

    def spent_after(*events: ev.Event) -> float:
        store.append(lease, events, RUNNING)
        found = summaries.summary(store, place, store.find_run(RUN))
        assert found.sequence == journal.sequence
        assert found == Summaries().summary(store, place, store.find_run(RUN))
        return found.spent.cost_usd

    def paid(dollars: float) -> ev.TaskUsage:
        usage = Usage(cost_usd=dollars)
        return journal.add(ev.TaskUsage, task_id=TaskId("a"), layer=0, attempt=1, usage=usage)

    def back() -> ev.RolledBack:
        cut, spent = CheckpointId("cut"), {TaskId("a"): Usage(cost_usd=5)}
        return journal.add(ev.RolledBack, checkpoint_id=cut, to_seq=1, layer=0, epoch=1, spent=spent)

    assert spent_after(paid(1)) == 1
    read.clear()
    assert spent_after(paid(2)) == 3
    assert read[0] == (RUN, 1)
    assert spent_after(back()) == 5
    store.close()


def test_a_run_that_cannot_be_read_costs_nobody_knows_what_and_hides_no_question(repo: Path) -> None:
    for number in range(2):
        waiting(repo, f"ask-{number}")
    runs = client.list_runs(repo).runs
    damage(find_place(repo).database, "ask-0")
    summaries = Summaries()
    assert summaries.read_usage(runs) == [Usage(), None]
    found = list_open_gates(repo, summaries=summaries)
    assert [gate.run.record.workflow_id for gate in found.gates] == ["ask-1"]
    [problem] = found.problems
    assert "ask-0" in problem.where


def damage(database: str, run: str) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE event SET body = '{}' WHERE run = (SELECT no FROM run WHERE id = ?)", (run,))


def test_a_list_goes_on_behind_a_run_of_any_worktree(repo: Path, tmp_path: Path) -> None:
    second = make_repository(tmp_path / "second")
    complete(repo, "known")
    complete(second, "known")
    for number in range(6):
        for root in (repo, second):
            store = find_place(root).open()
            create(store, f"r{number}", created_at=NOON + timedelta(seconds=number // 3))
            store.close()
    whole = client.list_runs(everywhere=True).runs
    assert len(whole) == 14
    for number, run in enumerate(whole, 1):
        assert client.list_runs(everywhere=True, before=run).runs == whole[number:]
        assert client.list_runs(everywhere=True, before=run, limit=3).runs == whole[number : number + 3]
