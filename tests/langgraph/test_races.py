"""Savers that get into each other's way, and a server whose answer is lost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agentos.client.langgraph.threads import Header
from agentos.exceptions import GraphCheckpointGoneError
from agentos.langgraph import AgentosSaver
from agentos.worktree.snapshots.retention import captured_runs
from agentos.worktree.snapshots.store import open_worktree
from tests.langgraph.states import config_of, put_values, values_of
from tests.postgres.pooler import OwnPooler
from tests.postgres.server import fresh_url, shared_url

_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%langgraph_thread%'"


def await_lock(deadline_s: float = 20.0) -> None:
    with psycopg.connect(shared_url(), autocommit=True) as watching:
        until = time.monotonic() + deadline_s
        while not watching.execute(_WAITING).fetchall()[0][0]:
            assert time.monotonic() < until, "nobody waits for the thread"
            time.sleep(0.01)


@pytest.mark.parametrize("repo", ["postgresql"], indirect=True)
def test_a_put_that_waits_for_a_prune_of_its_parent_is_refused(repo: Path) -> None:
    with AgentosSaver.open(repo) as saver, ThreadPoolExecutor(1) as pool:
        parent = put_values(saver, config_of("a"), {"x": "parent"}, step=0)
        newest = put_values(saver, parent, {"x": "newest"}, step=1)
        puts: list[Any] = []

        def choose(headers: Sequence[Header], _: object) -> Sequence[Header]:
            assert saver.get_tuple(parent) is not None  # it is in the cache: the put asks for nothing before it writes
            puts.append(pool.submit(put_values, saver, parent, {"y": "child"}, step=2))
            await_lock()
            return headers[1:]

        saver._threads.sweep("a", choose)
        with pytest.raises(GraphCheckpointGoneError):
            puts[0].result(timeout=20)
    with AgentosSaver.open(repo) as cold:
        assert [one.config for one in cold.list(config_of("a"))] == [newest]
        assert values_of(cold, newest) == {"x": "newest"}


def test_a_put_whose_answer_was_lost_is_stored_once(
    tmp_git_repo: Path, clean_env: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clean_env.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    schema = fresh_url().rpartition("schema=")[2]
    with OwnPooler(shared_url(), "transaction", 4) as pooler:
        clean_env.setenv("AGENTOS_WORKFLOW_DB", f"{pooler.url}?schema={schema}")
        with AgentosSaver.open(tmp_git_repo) as saver:
            first = put_values(saver, config_of("a"), {"x": 1}, step=0)
            pooler.to_lose.append(b"COMMIT\0")
            second = put_values(saver, first, {"x": 2}, step=1)
            assert not pooler.to_lose
            pooler.to_lose.append(b"COMMIT\0")
            saver.copy_thread("a", "b")
            assert not pooler.to_lose
            assert [one.config for one in saver.list(config_of("a"))] == [second, first]
            assert [one.checkpoint["channel_values"] for one in saver.list(config_of("b"))] == [{"x": 2}, {"x": 1}]


@pytest.mark.parametrize("repo", ["sqlite"], indirect=True)
def test_a_prune_takes_no_files_of_a_checkpoint_that_is_being_stored(repo: Path) -> None:
    worktree = open_worktree(repo)
    with (
        AgentosSaver.open(repo, files=True) as saver,
        AgentosSaver.open(repo, files=True) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        first = put_values(saver, config_of("a"), {"x": 1}, step=0)
        second = put_values(saver, first, {"x": 2}, step=1)
        (repo / "notes.txt").write_text("third")
        puts: list[Any] = []

        def choose(headers: Sequence[Header], _: object) -> Sequence[Header]:
            puts.append(pool.submit(put_values, other, second, {"x": 3}, step=2))
            while captured_runs(worktree)["langgraph:a"] < 3:
                time.sleep(0.01)
            return headers[1:]

        saver._sweep("a", choose)
        third = puts[0].result(timeout=20)
        assert captured_runs(worktree) == {"langgraph:a": 2}
        (repo / "notes.txt").write_text("later")
        saver.restore_files(third)
    assert (repo / "notes.txt").read_text() == "third"
