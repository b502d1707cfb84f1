"""PostgreSQL behind a pooler: what a session would keep is lost with each transaction, and nothing of ours is.

Each is played with a pooler of our own, which hands every transaction to another backend, and with PgBouncer where it
is installed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from agentos.exceptions import WorkflowConfigurationError
from agentos.store.holder import current_holder
from agentos.store.postgres.database import open_store
from agentos.store.postgres.store import PostgresStore
from tests.cli.conftest import Agentos, agentos
from tests.contract.journals import RUN, RUNNING, Journal, create
from tests.marks import quick_first
from tests.postgres.pooler import KINDS, OwnPooler, pooler_of, why_not
from tests.postgres.server import Server, own_server

__all__ = ["agentos"]

pytestmark = pytest.mark.attack

FLOW = """
name: release
tasks:
  one: {run: "echo 1", effects: none}
  two: {needs: one, run: "echo 2", effects: none}
  wait: {needs: two, run: "echo $$ >> begun; until [ -e go ]; do sleep 0.02; done", effects: none}
  ship: {needs: wait, approve: "Ship it?", run: "echo shipped", effects: none}
"""
EVENTS = "SELECT count(*) FROM {}.event"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with own_server() as server:
        yield server


@pytest.fixture(params=quick_first(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    if why := why_not(request.param):
        pytest.skip(why)
    return str(request.param)


@pytest.fixture
def pooled(kind: str, server: Server) -> Iterator[str]:
    with pooler_of(kind, server.url) as url:
        yield url


@pytest.fixture
def schema(kind: str) -> str:
    return f"s_{kind}_{time.monotonic_ns()}"


def ask(server: Server, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


def written(store: PostgresStore, count: int, id: str = RUN) -> None:
    """So many batches, by way of a line and of a thread in turn."""
    lease, journal = create(store, id), Journal(id)
    line = store.open_line()
    assert line is not None
    for number in range(count):
        journal.start(f"t{number}")
        events = journal.take()
        if number % 2 or not line.send(lease, events, RUNNING):
            store.append(lease, events, RUNNING)
            continue
        while not line.is_answered():
            assert select.select([line], [], [], 20.0)[0]
        if not line.finish():
            store.append(lease, events, RUNNING)
    line.close()
    store.release_lease(lease)


# --- two teams, one database --------------------------------------------------------------------------------------


def test_two_teams_on_one_pooler_each_write_to_their_own_schema(pooled: str, schema: str, server: Server) -> None:
    schemas = [f'{schema} {number}."x"' for number in range(3)]
    stores = [open_store(f"{pooled}?schema={name.replace(' ', '%20')}") for name in schemas]
    threads = [threading.Thread(target=written, args=(store, 10 + 2 * number)) for number, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number, (name, store) in enumerate(zip(schemas, stores, strict=True)):
        quoted = '"' + name.replace('"', '""') + '"'
        assert ask(server, EVENTS.format(quoted)) == [(10 + 2 * number,)]
        assert [event.seq for event in store.read_events(RUN)] == list(range(1, 11 + 2 * number))
        store.verify(RUN)
        assert ask(server, f"SELECT count(*) FROM {quoted}.tasks") == [(10 + 2 * number,)]
        store.close()


def test_what_another_client_set_for_its_session_does_not_reach_ours(pooled: str, schema: str, server: Server) -> None:
    """The search path names a schema that has all our tables, commits do not wait, transactions are of other kinds."""
    theirs, ours = f"{schema}_theirs", f"{schema}_ours"
    open_store(f"{pooled}?schema={theirs}").close()
    store = open_store(f"{pooled}?schema={ours}")
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as other:
        for _ in range(12):  # each may be another backend
            other.execute(
                f"SET search_path = {theirs}; SET synchronous_commit = off; SET bytea_output = escape;"
                "SET default_transaction_isolation = 'repeatable read'; SET plan_cache_mode = force_generic_plan"
            )
        written(store, 8)
    assert ask(server, EVENTS.format(theirs)) == [(0,)]
    assert ask(server, EVENTS.format(ours)) == [(8,)]
    assert len(store.read_events(RUN)) == 8
    assert store.delete_runs([store.find_run(RUN)]) == [RUN]
    assert ask(server, EVENTS.format(ours)) == [(0,)]
    store.close()


def test_commits_wait_for_the_disk_though_the_sessions_do_not(kind: str) -> None:
    flushed = "SELECT pg_current_wal_insert_lsn() <= pg_current_wal_flush_lsn()"
    settings = {"synchronous_commit": "off", "wal_writer_delay": "10s", "autovacuum": "off"}
    with own_server(**settings) as server, pooler_of(kind, server.url) as pooled:
        for durability, waits in (("full", True), ("process", False)):
            store = open_store(f"{pooled}?schema=s{durability}", durability=durability)  # type: ignore[arg-type]
            lease, journal = create(store), Journal()
            line = store.open_line()
            assert line is not None
            for number in range(4):
                ask(server, "SELECT pg_logical_emit_message(false, 'a', 'b')")
                journal.start(f"t{number}")
                if number % 2:
                    store.append(lease, journal.take(), RUNNING)
                else:
                    assert line.send(lease, journal.take(), RUNNING)
                    while not line.is_answered():
                        assert select.select([line], [], [], 20.0)[0]
                    assert line.finish()
                assert ask(server, flushed) == [(waits,)], f"{durability}, batch {number}"
            line.close()
            store.close()


# --- the program --------------------------------------------------------------------------------------------------


def test_a_run_is_killed_adopted_answered_moved_and_deleted_through_a_pooler(
    pooled: str, schema: str, tmp_git_repo: Path, agentos: Agentos, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    repo = tmp_git_repo
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", f"{pooled}?schema={schema}")
    (repo / "release.yaml").write_text(FLOW)
    argv = [sys.executable, "-m", "agentos", "run", "release.yaml", "--id", "r-1"]
    driver = subprocess.Popen(argv, cwd=repo, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not ((repo / "begun").exists() and (repo / "begun").read_text()):
        assert driver.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    driver.kill()
    driver.wait()
    os.kill(int((repo / "begun").read_text().split()[0]), signal.SIGKILL)
    (repo / "go").touch()

    def typed(*words: str, code: int = 0) -> str:
        done = agentos(*words, cwd=repo)
        assert done.code == code, f"{words}: {done.code}\n{done.out}{done.err}"
        assert "damage" not in done.out + done.err
        return done.out

    typed("worker", "--once")
    assert [row["status"] for row in json.loads(typed("list", "--json"))] == ["waiting"]
    typed("approve", "r-1")
    assert json.loads(typed("show", "r-1", "--json"))["status"] == "complete"
    checkup = json.loads(typed("doctor", "--deep", "--json"))
    assert any("through a pooler" in finding["what"] for finding in checkup["findings"])
    assert checkup["sound"]
    typed("export", "r-1", "-o", str(tmp_path / "r.jsonl"))
    typed("delete", "r-1", "--yes")
    typed("import", str(tmp_path / "r.jsonl"))
    assert json.loads(typed("show", "r-1", "--json"))["status"] == "complete"
    assert [row["status"] for row in json.loads(typed("list", "--json"))] == ["complete"]
    typed("db", "stats")


def test_statement_mode_is_refused_by_name_and_at_once(
    kind: str, server: Server, tmp_git_repo: Path, agentos: Agentos, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_git_repo / "release.yaml").write_text(FLOW)
    with pooler_of(kind, server.url, "statement") as url:
        monkeypatch.setenv("AGENTOS_WORKFLOW_DB", f"{url}?schema=statements")
        for argv, code in ((("run", "release.yaml"), 1), (("list",), 1), (("doctor",), 1)):
            done = agentos(*argv, cwd=tmp_git_repo)
            assert done.code == code, argv
            assert "statement mode" in done.out + done.err
            assert "pool_mode = transaction" in done.out + done.err
        with pytest.raises(WorkflowConfigurationError, match="statement mode"):
            open_store(f"{url}?schema=statements")
    assert ask(server, "SELECT count(*) FROM pg_namespace WHERE nspname = 'statements'") == [(0,)]


def test_a_setting_that_the_pooler_does_not_take_is_named(pooled: str) -> None:
    with pytest.raises(WorkflowConfigurationError, match=r"does not take a setting of the URL: .*: options"):
        open_store(f"{pooled}?options=-csearch_path%3Dx")


# --- trouble behind it --------------------------------------------------------------------------------------------


def test_news_is_looked_for_where_it_cannot_be_told(pooled: str, schema: str) -> None:
    url = f"{pooled}?schema={schema}"
    writing, reading = open_store(url), open_store(url, readonly=True)
    lease, journal = create(writing), Journal()
    reading.read_events(RUN)
    reading.has_changed()
    journal.start("a")
    writing.append(lease, journal.take(), RUNNING)
    deadline = time.monotonic() + 20
    while not reading.has_changed():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    writing.close()
    reading.close()


@pytest.mark.full
def test_backends_that_die_behind_the_pooler_lose_and_double_nothing(pooled: str, schema: str, server: Server) -> None:
    store = open_store(f"{pooled}?schema={schema}")
    ended = threading.Event()

    def cut() -> None:
        cutting = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND query LIKE '%{schema}%'"
        )
        while not ended.wait(0.03):
            ask(server, cutting)

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        written(store, 40)
    finally:
        ended.set()
        thread.join()
    assert [event.seq for event in store.read_events(RUN)] == list(range(1, 41))
    store.verify(RUN)
    store.close()


def test_an_answer_that_is_lost_on_the_way_is_found_out(server: Server) -> None:
    """The server did it, and the pooler was gone before it could say so: each time it is done once."""
    with OwnPooler(server.url) as pooler:
        store = open_store(f"{pooler.url}?schema=lost")
        pooler.to_lose.append(b'INSERT INTO "lost".run ')
        lease, journal = create(store), Journal()
        for number in range(6):
            journal.start(f"t{number}")
            events = journal.take()
            pooler.to_lose.append(b"WITH fenced")
            line = store.open_line() if number % 2 else None
            if line is not None and line.send(lease, events, RUNNING):
                while not line.is_answered():
                    assert select.select([line], [], [], 20.0)[0]
                assert not line.finish()
            if line is not None:
                line.close()
            store.append(lease, events, RUNNING)
        store.release_lease(lease)
        pooler.to_lose.append(b"token = token + 1")
        assert store.take_lease(RUN, current_holder(), 15.0).token == 2
        assert pooler.to_lose == []
        assert [event.seq for event in store.read_events(RUN)] == list(range(1, 7))
        store.verify(RUN)
        store.close()


def test_a_server_that_restarts_behind_the_pooler_is_waited_for(kind: str) -> None:
    with own_server() as server, pooler_of(kind, server.url) as pooled:
        store = open_store(pooled)
        lease, journal = create(store), Journal()
        for number, how in enumerate((signal.SIGINT, signal.SIGQUIT)):
            server.restart(how)
            journal.start(f"t{number}")
            store.append(lease, journal.take(), RUNNING)
            store.renew_lease(lease)
        assert len(store.read_events(RUN)) == 2
        store.close()


@pytest.mark.full
def test_a_pooler_that_changes_its_mode_under_a_live_process_is_borne(server: Server) -> None:
    with OwnPooler(server.url, "session") as pooler:
        store = open_store(f"{pooler.url}?schema=modes")
        written(store, 4, "before")
        pooler.mode = "transaction"
        written(store, 4, "after")
        assert ask(server, EVENTS.format("modes")) == [(8,)]
        store.close()


@pytest.mark.full
def test_a_pooler_that_passes_for_the_server_spoils_nothing(server: Server) -> None:
    """It gives out the keys of real backends, so that a session seems to be there: what was prepared is gone."""
    with OwnPooler(server.url, passes=True) as pooler:
        stores = [open_store(f"{pooler.url}?schema=passes{number}") for number in range(2)]
        for turn in range(2):
            for number, store in enumerate(stores):
                written(store, 6, f"run-{turn}-{number}")
        for number, store in enumerate(stores):
            assert ask(server, EVENTS.format(f"passes{number}")) == [(12,)]
            store.close()
