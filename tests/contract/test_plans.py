"""What is asked of a store again and again does not cost more with the runs that have ended. Counted, never timed.

Of PostgreSQL the same is asked in tests/postgres/test_plans.py, page by page.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentos.ids import EPOCH
from agentos.machine import events as ev
from agentos.store.port import UNDER_WAY, Progress, StorePort
from agentos.store.sqlite.database import open_store
from agentos.store.sqlite.store import SqliteStore
from tests.contract.journals import Journal, create

FEW, MANY = 300, 3_000
COPIES = """
WITH RECURSIVE n (no) AS (SELECT 1 UNION ALL SELECT no + 1 FROM n WHERE no < {copies})
INSERT INTO run (id, status, labels, name, kind, layer, layers, epoch, sequence, digest, plan_revision, token, source,
                 root, host, fingerprint, lease_boot, lease_expires, lease_until, created_at, updated_at)
SELECT 'copy-' || n.no, 'complete', '["common"]', r.name, r.kind, r.layer, r.layers, r.epoch, r.sequence, r.digest,
       r.plan_revision, 1, '', '', '', '', '', 0, 0, r.created_at + n.no, r.updated_at
FROM n, run AS r WHERE r.id = 'done';
INSERT INTO label (label, created_at, run) SELECT 'common', created_at, no FROM run WHERE id LIKE 'copy-%';
INSERT INTO event (no, at, type, version, body, blob, digest)
SELECT (r.no << 40) + e.seq, e.at, e.type, e.version, e.body, e.blob, e.digest FROM run AS r, run AS d
JOIN event AS e ON e.no > d.no << 40 AND e.no < (d.no + 1) << 40 WHERE r.id LIKE 'copy-%' AND d.id = 'done';
"""
ASKED: dict[str, Callable[[StorePort], object]] = {
    "the newest": lambda store: store.list_runs(limit=5),
    "a rare label": lambda store: store.list_runs(labels=["rare"]),
    "a rare label among those that failed": lambda store: store.list_runs(labels=["rare"], statuses={"failed"}),
    "a common label among those under way": lambda store: store.list_runs(labels=["common"], statuses=UNDER_WAY),
    "a label that none has": lambda store: store.list_runs(labels=["none", "rare"], limit=5),
    "what waits for an answer": lambda store: store.open_questions(),
}
VIEWS = ("status = 'failed'", "status = 'running'", "status = 'waiting'", "workflow_id = 'asks'", "workflow_id = 'bad'")


def made(path: Path, copies: int) -> SqliteStore:
    """One run that is complete, and so many copies of it; one that failed, and one that asks."""
    store = open_store(path, durability="process")
    for name in ("done", "bad", "asks"):
        lease = create(store, name, labels=["rare"] if name != "asks" else ["common"])
        journal, status = Journal(name), "complete"
        asked: tuple[int, ...] = ()
        for number in range(5):
            journal.start(f"t{number}")
            journal.complete(f"t{number}", place=f"{number:06d}")
        if name == "bad":
            journal.start("t")
            journal.add(ev.TaskError, task_id="t", layer=0, place="9", error=ev.TaskFailure(type="E", text="t"))
            status = "failed"
        if name == "asks":
            gate = journal.add(ev.DecisionRequired, gate_id="g", kind="approve", task_id="u", layer=0, question="?")
            status, asked = "waiting", (gate.seq,)
        left = ("failed",) if name == "bad" else ()
        progress = Progress(status=status, layer=0, layers=1, epoch=0, asked=asked, left=left)  # type: ignore[arg-type]
        store.append(lease, journal.take(), progress)
        store.release_lease(lease)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(COPIES.format(copies=copies))
    return store


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SqliteStore, SqliteStore]]:
    folder = tmp_path_factory.mktemp("plans")
    few, many = made(folder / "few.db", FEW), made(folder / "many.db", MANY)
    yield few, many
    few.close()
    many.close()


def steps(connection: sqlite3.Connection, ask: Callable[[], object]) -> int:
    """Of SQLite's machine, which are the same however busy the computer is."""
    taken = [0]

    def count_them() -> int:
        taken[0] += 1
        return 0

    connection.set_progress_handler(count_them, 10)
    try:
        assert ask() is not None
    finally:
        connection.set_progress_handler(None, 0)
    return taken[0]


@pytest.mark.parametrize("what", ASKED)
def test_ten_times_as_many_ended_runs_make_no_question_dearer(
    stores: tuple[SqliteStore, SqliteStore], what: str
) -> None:
    for store in stores:
        ASKED[what](store)  # what is looked up once
    few, many = (steps(store.live.get(), lambda store=store: ASKED[what](store)) for store in stores)  # type: ignore[misc]
    assert many <= few + 20


@pytest.mark.parametrize("where", VIEWS)
def test_tasks_are_found_without_a_look_at_the_runs_that_have_none_of_them(
    stores: tuple[SqliteStore, SqliteStore], where: str
) -> None:
    counted: list[int] = []
    found: list[list[tuple[str, str, str]]] = []
    for store in stores:
        with closing(sqlite3.connect(store.path)) as connection:
            question = f"SELECT workflow_id, task_id, status FROM tasks WHERE {where} ORDER BY 1, 2"  # noqa: S608
            found.append(connection.execute(question).fetchall())
            counted.append(steps(connection, lambda: connection.execute(question).fetchall()))  # noqa: B023
    assert found[0] == found[1]
    assert bool(found[0]) == (where != "status = 'running'")
    assert counted[1] <= counted[0] + 20


def test_the_copies_are_as_the_one_they_were_made_of(stores: tuple[SqliteStore, SqliteStore]) -> None:
    assert [len(store.list_runs()) for store in stores] == [FEW + 3, MANY + 3]
    assert len(stores[1].list_runs(labels=["common"])) == MANY + 1
    assert stores[0].list_runs()[-1].created_at > EPOCH
