"""A flipped byte in any row, a missing row, a damaged file: a typed error that says what to do, and nothing lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentos.exceptions import AgentosError, CheckpointCorruptedError, IntegrityError
from agentos.ids import WorkflowId
from agentos.machine import events as ev
from agentos.store.sqlite.database import open_store
from agentos.store.sqlite.store import SqliteStore
from tests.contract.journals import RUN, RUNNING, Journal, create

LAYERS = 4


def filled(path: Path) -> list[ev.Checkpointed]:
    """A closed database: a run with 4 checkpoints, two plans, a blob in the third layer."""
    store = open_store(path, blob_limit=100, durability="process")
    lease, journal = create(store), Journal()
    cuts = []
    for layer in range(LAYERS):
        journal.start(f"t{layer}", layer)
        journal.complete(f"t{layer}", b'"' + b"x" * (200 if layer == 2 else 5) + b'"', layer)
        cuts.append(journal.cut(layer, snapshot=f"tree{layer}"))
    store.append(lease, journal.take(), RUNNING, plan=b'{"second":true}')
    store.release_lease(lease)
    store.close()
    return cuts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.db"


@pytest.fixture
def cuts(path: Path) -> list[ev.Checkpointed]:
    return filled(path)


@pytest.fixture
def store(path: Path, cuts: list[ev.Checkpointed]) -> Iterator[SqliteStore]:
    store = open_store(path)
    yield store
    store.close()


def change(path: Path, sql: str, *arguments: object) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(sql, arguments).rowcount == 1, sql


def flip(path: Path, table: str, column: str, where: str) -> None:
    """Change one bit in the middle of a stored value."""
    with closing(sqlite3.connect(path)) as connection, connection:
        [value] = connection.execute(f"SELECT CAST({column} AS BLOB) FROM {table} WHERE {where}").fetchone()
        middle = len(value) // 2
        changed = value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :]
        kind = connection.execute(f"SELECT typeof({column}) FROM {table} WHERE {where}").fetchone()[0]
        connection.execute(f"UPDATE {table} SET {column} = CAST(? AS {kind}) WHERE {where}", (changed,))


COLUMNS = [
    *(("event", column, "seq = 5") for column in ("at", "type", "version", "body", "digest")),
    ("event", "blob", "blob IS NOT NULL"),
    ("blob", "body", "1"),
    ("plan", "body", "revision = 1"),
    ("plan", "digest", "revision = 2"),
    *(("checkpoint", column, "layer = 1") for column in ("id", "sequence", "layer", "at", "digest", "snapshot")),
    ("run", "digest", "1"),
]


@pytest.mark.parametrize(("table", "column", "where"), COLUMNS)
def test_a_flipped_bit_in_any_row_is_told(store: SqliteStore, path: Path, table: str, column: str, where: str) -> None:
    flip(path, table, column, where)
    with pytest.raises(IntegrityError) as caught:
        store.verify(RUN)
    if isinstance(caught.value, CheckpointCorruptedError):
        assert RUN in caught.value.what
    assert caught.value.next_step


@pytest.mark.parametrize("table", ["event", "plan", "checkpoint"])
def test_reading_a_damaged_row_the_usual_way_is_told_too(
    store: SqliteStore, path: Path, cuts: list[ev.Checkpointed], table: str
) -> None:
    where = {"event": "seq = 5", "plan": "revision = 2", "checkpoint": "layer = 1"}[table]
    flip(path, table, "digest", where)
    read: dict[str, Callable[[], object]] = {
        "event": lambda: store.read_events(RUN),
        "plan": lambda: store.read_plan(RUN),
        "checkpoint": lambda: store.find_checkpoint(cuts[1].checkpoint_id),
    }
    with pytest.raises(CheckpointCorruptedError, match="set-aside"):
        read[table]()


@pytest.mark.parametrize("seq", [1, 6, 12])
def test_a_missing_event_is_told(store: SqliteStore, path: Path, seq: int) -> None:
    change(path, "DELETE FROM event WHERE seq = ?", seq)
    with pytest.raises(CheckpointCorruptedError, match=f"event {seq} of run run-1 is damaged: the row is missing"):
        store.read_events(RUN)
    if seq < 12:
        with pytest.raises(CheckpointCorruptedError):
            store.read_events(RUN, after=seq)


@pytest.mark.parametrize("table", ["plan WHERE revision = 1", "blob"])
def test_a_missing_row_elsewhere_is_told(store: SqliteStore, path: Path, table: str) -> None:
    change(path, f"DELETE FROM {table}")
    with pytest.raises(CheckpointCorruptedError, match="is missing"):
        store.verify(RUN)


def test_a_checkpoint_without_its_event_is_told(store: SqliteStore, path: Path) -> None:
    change(path, "DELETE FROM event WHERE seq = 6")
    with pytest.raises(CheckpointCorruptedError, match="no checkpoint event"):
        store.list_checkpoints(RUN)


def test_an_unreadable_event_under_a_checkpoint_is_told(store: SqliteStore, path: Path) -> None:
    change(path, "UPDATE event SET body = '{' WHERE seq = 6")
    with pytest.raises(CheckpointCorruptedError, match="cannot be read"):
        store.list_checkpoints(RUN)


def test_rows_put_in_another_order_are_told(store: SqliteStore, path: Path) -> None:
    for before, after in ((1, 0), (2, 1), (0, 2)):
        change(path, "UPDATE event SET no = no - seq + ? WHERE seq = ?", after, before)
    with pytest.raises(CheckpointCorruptedError, match="event 1 of"):
        store.read_events(RUN)


@pytest.mark.parametrize(
    ("damage", "layer"),
    [
        ("UPDATE event SET body = '{}' WHERE seq = 11", 2),
        ("UPDATE event SET body = '{}' WHERE seq = 7", 1),
        ("UPDATE event SET body = '{}' WHERE seq = 1", None),
        ("DELETE FROM event WHERE seq = 8", 1),
        ("UPDATE blob SET body = '\"\"'", 1),
        ("UPDATE checkpoint SET snapshot = 'other' WHERE layer = 3", 2),
        ("UPDATE checkpoint SET abandoned = 1 WHERE layer = 3", 2),
        ("UPDATE run SET digest = x'00'", 3),
    ],
)
def test_the_newest_sound_checkpoint_is_found(store: SqliteStore, path: Path, damage: str, layer: int | None) -> None:
    change(path, damage)
    found = store.newest_sound_checkpoint(RUN)
    assert (found.layer if found else None) == layer


def test_a_sound_run_offers_its_head(store: SqliteStore) -> None:
    store.verify(RUN)
    found = store.newest_sound_checkpoint(RUN)
    assert found is not None
    assert found.layer == LAYERS - 1


def test_a_damaged_run_leaves_the_others_usable(store: SqliteStore, path: Path) -> None:
    other = WorkflowId("other")
    lease, journal = create(store, other), Journal(other)
    journal.start("a")
    store.append(lease, journal.take(), RUNNING)
    change(path, "UPDATE event SET body = '{}' WHERE seq = 5")
    store.verify(other)
    assert len(store.list_runs()) == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_of_the_file_is_told_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    """Wherever it hits (pages, indexes, free space): the right events, or one of our errors. Never a wrong event."""
    path = tmp_path / "flipped.db"
    whole = tmp_path / "whole.db"
    if not whole.exists():
        filled(whole)
    content = bytearray(whole.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    for end in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    path.write_bytes(content)
    sound = open_store(whole, readonly=True)
    expected = [event.seq for event in sound.read_events(RUN)], sound.read_plan(RUN)
    sound.close()
    try:
        store = open_store(path, readonly=True)
    except AgentosError:
        return
    try:
        assert ([event.seq for event in store.read_events(RUN)], store.read_plan(RUN)) == expected
        store.list_checkpoints(RUN)
    except AgentosError:
        pass
    finally:
        store.close()
