from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from agentos.client.waiting import asked_now
from agentos.exceptions import AgentosError
from agentos.machine.facts.fold import fold
from agentos.store.port import ENDED, UNDER_WAY, StorePort
from agentos.workflow.place.place import Place
from tests.workflow.support import a_place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A database and a folder to work on, outside any repository.

    Whatever became of its runs, in the end lists show of them what their journals say.
    """
    place = a_place(tmp_path)
    yield place
    if Path(place.database).is_file():
        try:
            store = place.open(readonly=True)
        except AgentosError:  # the test was about that
            return
        check_lists(store, place.database)
        store.close()


def check_lists(store: StorePort, database: str) -> None:
    asked = {one.run.workflow_id: one.asked for one in store.open_questions()}
    with closing(sqlite3.connect(database)) as connection:
        left = set(connection.execute("SELECT r.id, l.status FROM task_left AS l JOIN run AS r ON r.no = l.run"))
        incomplete = set(connection.execute("SELECT workflow_id, status FROM tasks WHERE status <> 'complete'"))
    for run in store.list_runs():
        try:
            facts = fold(run.workflow_id, store.read_events(run.workflow_id))
            open_now = [gate.gate_id for gate in asked_now(store, facts)]
        except AgentosError:  # its journal was damaged by the test
            continue
        if run.kind == "workflow" and run.status in UNDER_WAY:
            noted = asked.get(run.workflow_id, ())
            assert noted is not None
            assert [gate.gate_id for gate in noted] == sorted_by_sequence(open_now, noted)
        if run.status in ENDED:
            statuses = {status for id_, status in incomplete if id_ == run.workflow_id}
            assert statuses == {task.status for task in facts.tasks.values()} & statuses
            assert statuses <= {status for id_, status in left if id_ == run.workflow_id}


def sorted_by_sequence(gates: Sequence[str], noted: tuple[object, ...]) -> list[str]:
    """The gates in the order in which they were noted, and those that were not at the end."""
    places = {getattr(one, "gate_id", ""): number for number, one in enumerate(noted)}
    return sorted(gates, key=lambda gate: places.get(gate, len(places)))
