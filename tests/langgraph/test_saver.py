"""What the saver promises beyond the conformance suite, on both stores."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import INTERRUPT

from agentos.client import Client
from agentos.client.langgraph.threads import GraphThreads
from agentos.exceptions import (
    CheckpointCorruptedError,
    GraphCheckpointGoneError,
    NewerSchemaError,
    WorkflowConfigurationError,
)
from agentos.langgraph import AgentosSaver
from tests.langgraph.states import config_of, make_checkpoint, put_values, values_of


@pytest.fixture
def saver(repo: Path) -> Iterator[AgentosSaver]:
    with AgentosSaver.open(repo) as opened:
        yield opened


def grow(saver: BaseCheckpointSaver[str], thread: str, steps: int) -> list[tuple[Any, dict[str, Any]]]:
    """A thread whose list grows by 1 KB a step; each checkpoint's config, and its values."""
    chance, config, messages = random.Random(1), config_of(thread), list[str]()
    grown = []
    for step in range(steps):
        messages = [*messages, chance.randbytes(512).hex()]
        values = {"messages": messages, "step": step}
        config = put_values(saver, config, values, step=step)
        grown.append((config, values))
    return grown


def database(repo: Path) -> Path:
    return Path(Client(repo).place.database)


def ask(repo: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database(repo))) as connection:
        return connection.execute(sql).fetchall()


only_sqlite = pytest.mark.parametrize("repo", ["sqlite"], indirect=True)


def test_every_checkpoint_of_a_long_thread_comes_back_as_it_was(saver: AgentosSaver, repo: Path) -> None:
    grown = grow(saver, "a", 120)
    with AgentosSaver.open(repo) as cold:
        for config, values in reversed(grown):
            assert values_of(cold, config) == values
        listed = list(cold.list(config_of("a")))
    assert [one.checkpoint["channel_values"] for one in listed] == [values for _, values in reversed(grown)]
    assert [one.parent_config for one in listed] == [config for config, _ in reversed(grown[:-1])] + [None]


@only_sqlite
def test_a_step_is_stored_as_what_it_added(saver: AgentosSaver, repo: Path) -> None:
    grow(saver, "a", 200)
    [(stored,)] = ask(repo, "SELECT sum(length(body)) FROM langgraph_value")
    assert stored < 5 * 200 * 1024  # whole, they would come to a hundred times the 200 KB that were added
    [(longest,)] = ask(
        repo,
        "WITH RECURSIVE c (no, base, n) AS (SELECT no, base, 0 FROM langgraph_value WHERE base = 0 UNION ALL "
        "SELECT v.no, v.base, c.n + 1 FROM langgraph_value AS v JOIN c ON v.base = c.no) SELECT max(n) FROM c",
    )
    assert longest < 40  # each sixteenth goes back as far, or the last would be made of all before


@only_sqlite
def test_a_value_that_is_written_over_again_and_again_is_stored_whole_now_and_then(
    saver: AgentosSaver, repo: Path
) -> None:
    chance, config, page = random.Random(1), config_of("a"), bytearray(random.Random(2).randbytes(8000))
    for step in range(120):
        at = chance.randrange(7800)
        page[at : at + 200] = chance.randbytes(200)
        config = put_values(saver, config, {"page": bytes(page)}, step=step)
    [(whole, edits)] = ask(
        repo, "SELECT sum(base = 0), sum(base <> 0) FROM langgraph_value WHERE length(body) > 150 AND type = 'bytes'"
    )
    assert 2 <= whole < 20 < edits
    with AgentosSaver.open(repo) as cold:
        assert values_of(cold, config) == {"page": bytes(page)}


def test_a_fork_that_brings_no_new_versions_keeps_its_own_values(saver: AgentosSaver) -> None:
    first = put_values(saver, config_of("a"), {"x": "first"}, step=0)
    second = put_values(saver, first, {"x": "second"}, step=1)
    then = saver.get_tuple(first)
    assert then is not None
    copied = make_checkpoint(then.checkpoint["channel_values"], then.checkpoint["channel_versions"], step=2)
    fork = saver.put(second, copied, {"source": "fork", "step": 2, "parents": {}}, {})
    assert values_of(saver, fork) == {"x": "first"}


def test_a_put_whose_parent_is_gone_is_refused_and_leaves_nothing(saver: AgentosSaver) -> None:
    config = put_values(saver, config_of("a"), {"x": 1})
    saver.delete_thread("a")
    saver.put_writes(config, [("x", "late")], "task")
    with pytest.raises(GraphCheckpointGoneError, match="no checkpoint"):
        put_values(saver, config, {"x": 2}, step=1)
    assert saver.get_tuple(config_of("a")) is None
    assert list(saver.list(None)) == []
    again = put_values(saver, config_of("a"), {"x": "anew"}, step=5)
    found = saver.get_tuple(again)
    assert found is not None
    assert (found.checkpoint["channel_values"], found.pending_writes) == ({"x": "anew"}, [])


@only_sqlite
def test_a_deleted_thread_and_what_came_too_late_leave_no_row(saver: AgentosSaver, repo: Path) -> None:
    config = put_values(saver, config_of("a"), {"x": "secret" * 1000})
    saver.put_writes(config, [("x", 1)], "task")
    saver.delete_thread("a")
    saver.put_writes(config, [("x", "late")], "task")
    with pytest.raises(GraphCheckpointGoneError):
        put_values(saver, config, {"x": 2}, step=1)
    for table in ("checkpoint", "value", "write"):
        assert ask(repo, f"SELECT count(*) FROM langgraph_{table}") == [(0,)]
    assert b"secretsecret" not in database(repo).read_bytes()


def test_writes_that_arrive_before_their_checkpoint_are_found_with_it(saver: AgentosSaver) -> None:
    checkpoint = make_checkpoint({"x": 1}, {"x": "1.0"})
    config = config_of("a", checkpoint["id"])
    saver.put_writes(config, [("x", "early")], "task", "path")
    assert saver.get_tuple(config_of("a")) is None
    saver.put(config_of("a"), checkpoint, {"source": "loop", "step": 0, "parents": {}}, {"x": "1.0"})
    found = saver.get_tuple(config)
    assert found is not None
    assert found.pending_writes == [("task", "x", "early")]


def test_writes_come_back_in_the_order_of_their_tasks_paths(saver: AgentosSaver) -> None:
    config = put_values(saver, config_of("a"), {"x": 1})
    saver.put_writes(config, [("x", "b"), ("x", "b2")], "0", "path-b")
    saver.put_writes(config, [("x", "a")], "1", "path-a")
    saver.put_writes(config, [("x", "ignored")], "1", "path-a")
    saver.put_writes(config, [(INTERRUPT, "old")], "1", "path-a")
    saver.put_writes(config, [(INTERRUPT, "new")], "1", "path-a")
    found = saver.get_tuple(config)
    assert found is not None
    assert found.pending_writes == [("1", INTERRUPT, "new"), ("1", "x", "a"), ("0", "x", "b"), ("0", "x", "b2")]


def test_deleting_a_run_keeps_what_later_checkpoints_are_made_of(saver: AgentosSaver, repo: Path) -> None:
    config, kept = config_of("a"), list[tuple[Any, Any]]()
    messages: list[str] = []
    for step in range(30):
        messages = [*messages, random.Random(step).randbytes(200).hex()]
        run = f"run-{step % 3}"
        config = put_values(saver, config, {"messages": messages}, step=step, metadata={"run_id": run})
        kept += [(config, messages)] if run == "run-2" else []
    saver.delete_for_runs(["run-0", "run-1"])
    with AgentosSaver.open(repo) as cold:
        assert [one.config for one in cold.list(config_of("a"))] == [config for config, _ in reversed(kept)]
        for config, values in kept:
            assert values_of(cold, config) == {"messages": values}
        assert values_of(cold, put_values(cold, config, {"messages": ["on"]}, step=31)) == {"messages": ["on"]}


def test_a_pruned_thread_goes_on(saver: AgentosSaver, repo: Path) -> None:
    config, values = grow(saver, "a", 40)[-1]
    sub = put_values(saver, config_of("a", ns="child:1"), {"y": 1})
    saver.prune(["a"])
    with AgentosSaver.open(repo) as cold:
        assert {one.config["configurable"]["checkpoint_id"] for one in cold.list(config_of("a"))} == {
            config["configurable"]["checkpoint_id"]
        }
        assert values_of(cold, config) == values
        assert values_of(cold, sub) == {"y": 1}
        assert values_of(cold, put_values(cold, config, {"x": "on"}, step=41)) == {"x": "on"}
    with pytest.raises(ValueError, match="strategy"):
        saver.prune(["a"], strategy="keep_some")


def test_a_copied_thread_stands_alone(saver: AgentosSaver, repo: Path) -> None:
    config, values = grow(saver, "a", 20)[-1]
    saver.put_writes(config, [("x", 1)], "task")
    saver.copy_thread("a", "b")
    saver.delete_thread("a")
    with AgentosSaver.open(repo) as cold:
        found = cold.get_tuple(config_of("b"))
        assert found is not None
        assert (found.checkpoint["channel_values"], found.pending_writes) == (values, [("task", "x", 1)])
        assert len(list(cold.list(config_of("b")))) == 20


class _Reversal(CipherProtocol):
    """Enough of a cipher to see that nothing is stored as it was."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        nonce = os.urandom(8)
        return "reversal", nonce + bytes(255 - byte for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes(255 - byte for byte in ciphertext[8:])


@only_sqlite
def test_an_encrypting_serializer_leaves_no_plain_text_in_the_database(repo: Path) -> None:
    with AgentosSaver.open(repo, serde=EncryptedSerializer(_Reversal())) as saver:
        config, values = config_of("a"), dict[str, Any]()
        for step in range(5):
            values = {"messages": ["top secret state"] * (step + 1)}
            config = put_values(saver, config, values, step=step, metadata={"user": "secret user"})
        saver.put_writes(config, [("messages", "secret write")], "task")
        assert len(list(saver.list(config_of("a"), filter={"user": "secret user"}))) == 5
        found = saver.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == values
    assert found.pending_writes == [("task", "messages", "secret write")]
    stored = b"".join(path.read_bytes() for path in database(repo).parent.glob(f"{database(repo).name}*"))
    assert b"secret" not in stored


@only_sqlite
def test_a_serializer_that_unpickles_is_refused(repo: Path) -> None:
    import pickle

    unpickling = JsonPlusSerializer(pickle_fallback=True)
    for serde in (unpickling, EncryptedSerializer(_Reversal(), unpickling), pickle):
        with (
            pytest.raises(WorkflowConfigurationError, match="pickle can run any code"),
            AgentosSaver.open(repo, serde=serde),  # type: ignore[arg-type]  # the module has the methods
        ):
            pass
    with AgentosSaver.open(repo) as saver, pytest.raises(WorkflowConfigurationError):
        saver.serde = unpickling


def test_a_copy_with_a_stricter_serializer_reads_the_same_threads(saver: AgentosSaver) -> None:
    config = put_values(saver, config_of("a"), {"x": [1, 2]})
    saver.serde = JsonPlusSerializer(allowed_msgpack_modules=None)
    strict = saver.with_allowlist([("tests", "Nothing")])
    assert strict is not saver
    assert values_of(strict, config) == {"x": [1, 2]}


@only_sqlite
def test_a_value_that_is_missing_is_told_as_damage(saver: AgentosSaver, repo: Path) -> None:
    config, _ = grow(saver, "a", 20)[-1]
    with closing(sqlite3.connect(database(repo))) as connection, connection:
        connection.execute("DELETE FROM langgraph_value WHERE base = 0")
    with AgentosSaver.open(repo) as cold, pytest.raises(CheckpointCorruptedError, match="missing or damaged"):
        cold.get_tuple(config)


def test_outside_a_repository_there_is_no_place_for_threads(
    tmp_path: Path, clean_env: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").mkdir()
    monkeypatch.chdir(tmp_path / "plain")
    with pytest.raises(WorkflowConfigurationError), AgentosSaver.open():
        pass


@only_sqlite
def test_a_database_that_no_saver_was_opened_on_has_no_tables_of_it(repo: Path) -> None:
    Client(repo).place.open(create=True).close()
    found = "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'langgraph%'"
    assert ask(repo, found) == [(0,)]
    version = ask(repo, "PRAGMA user_version")
    with AgentosSaver.open(repo), AgentosSaver.open(repo):
        assert ask(repo, found) == [(4,)]
    assert ask(repo, "PRAGMA user_version") == version  # older versions of AgentOS go on with their runs here


def test_tables_of_a_newer_version_are_refused(repo: Path) -> None:
    with AgentosSaver.open(repo) as saver:
        saver._threads._tables.write(lambda queries: queries.each("set_version", [("99",)]))
    with pytest.raises(NewerSchemaError, match="schema 99"), AgentosSaver.open(repo):
        pass


@pytest.mark.parametrize("repo", ["postgresql"], indirect=True)
def test_worktrees_that_share_a_server_have_threads_of_their_own(
    repo: Path, tmp_path: Path, clean_env: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    subprocess.run(["git", "init", "--quiet", str(other)], check=True)
    with AgentosSaver.open(repo) as here, AgentosSaver.open(other) as there:
        put_values(here, config_of("a"), {"x": "here"})
        assert there.get_tuple(config_of("a")) is None
        put_values(there, config_of("a"), {"x": "there"})
        there.delete_thread("a")
        assert values_of(here, config_of("a")) == {"x": "here"}


def test_many_threads_of_a_process_begin_at_once(repo: Path) -> None:
    with AgentosSaver.open(repo) as saver, ThreadPoolExecutor(8) as pool:
        begun = list(pool.map(lambda n: put_values(saver, config_of(f"t{n}"), {"x": n}), range(24)))
        assert [values_of(saver, config) for config in begun] == [{"x": n} for n in range(24)]


@only_sqlite
def test_many_small_threads_take_no_more_memory_than_the_cache_may(saver: AgentosSaver, repo: Path) -> None:
    store = Client(repo).place.open()
    saver._threads = GraphThreads(store.graph_tables(), cache_bytes=1 << 18)

    def put(numbers: range) -> int:
        for number in numbers:
            put_values(saver, config_of(f"t{number}"), {"x": number, "y": [number]})
        return tracemalloc.get_traced_memory()[0]

    put(range(20))
    tracemalloc.start()
    try:
        filled = put(range(100, 300))
        assert put(range(300, 800)) - filled < 1 << 18
        assert filled < 1 << 19
    finally:
        tracemalloc.stop()
        saver._threads.close()


def test_importing_agentos_does_not_load_langgraph() -> None:
    said = "import agentos, agentos.client, sys; print([m for m in sys.modules if 'langgraph' in m])"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
