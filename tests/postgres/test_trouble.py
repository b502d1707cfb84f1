"""A server that refuses, restarts, cuts connections or loses answers: clear errors, nothing lost, nothing twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from agentos.exceptions import (
    LeaseLostError,
    RunRefusedError,
    StoreUnavailableError,
    TryAgainError,
    WorkflowConfigurationError,
)
from agentos.machine.events import Event
from agentos.store.holder import current_holder
from agentos.store.port import Lease
from agentos.store.postgres.database import open_store
from agentos.store.postgres.pool import Pool, QuerySession
from agentos.store.postgres.store import PostgresStore
from tests.contract.journals import NOON, RUN, RUNNING, Journal, bodies, create
from tests.postgres.server import PASSWORD, Server, shared_url

HIDDEN = PASSWORD.replace(" ", "%20")


@pytest.fixture(scope="module")
def refusing(server: Server) -> Server:
    """Roles and databases to be refused with."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        for role in ("nobody_special", "reader"):
            connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    return server


def refused(url: str, **options: Any) -> str:
    with pytest.raises((WorkflowConfigurationError, StoreUnavailableError)) as told:
        open_store(url, **options)
    text = str(told.value)
    assert PASSWORD not in text
    assert HIDDEN not in text
    assert "***" in text
    return f"{type(told.value).__name__}: {text}"


def test_a_server_that_will_not_have_us_is_told_apart(refusing: Server) -> None:
    url = refusing.tcp_url
    begun = time.monotonic()
    assert "password authentication failed" in refused(url.replace(HIDDEN, f"{HIDDEN}r"))
    assert 'database "nowhere" does not exist' in refused(f"{url[: -len('postgres')]}nowhere")
    denied = refused(url.replace("//postgres:", "//nobody_special:"))
    assert "may not do this: permission denied for database" in denied
    assert "postgres.md" in denied
    assert time.monotonic() - begun < 5, "what cannot get better is told at once"
    gone = refused(url.replace(f":{refusing.port}/", ":1/"), busy_s=0.5)
    assert gone.startswith("StoreUnavailableError")
    assert "cannot be reached" in gone


def test_who_may_only_read_reads_and_is_told_when_it_writes(refusing: Server) -> None:
    url = f"{refusing.tcp_url}?schema=shown"
    writing = open_store(url)
    lease, journal = create(writing), Journal()
    journal.start("a")
    writing.append(lease, journal.take(), RUNNING)
    with psycopg.connect(refusing.url, autocommit=True) as connection:
        connection.execute(
            "GRANT USAGE ON SCHEMA shown TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA shown TO reader"
        )
    reading = open_store(url.replace("//postgres:", "//reader:"), readonly=True)
    assert len(reading.read_events(RUN)) == 1
    reading.has_changed()
    journal.start("b")
    writing.append(lease, journal.take(), RUNNING)
    wait_for(reading.has_changed)
    with pytest.raises(WorkflowConfigurationError, match="may not do this: permission denied for table run"):
        reading.renew_lease(lease)
    reading.close()
    writing.close()


def test_who_may_not_even_look_is_told_that_and_not_of_damage(refusing: Server) -> None:
    url = f"{refusing.tcp_url}?schema=private"
    open_store(url).close()
    for readonly in (False, True):
        denied = refused(url.replace("//postgres:", "//nobody_special:"), readonly=readonly)
        assert "may not use the schema 'private'" in denied
        assert denied.startswith("WorkflowConfigurationError")


def wait_for(look: Callable[[], Any], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- lost connections and lost answers ----------------------------------------------------------------------------


def cut_all(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'agentos'")


def test_connections_that_were_cut_are_made_anew(store: PostgresStore) -> None:
    lease, journal = create(store), Journal()
    for number in range(3):
        journal.start(f"t{number}")
        cut_all(shared_url())
        store.append(lease, journal.take(), RUNNING)
        cut_all(shared_url())
        store.renew_lease(lease)
        cut_all(shared_url())
        assert len(store.read_events(RUN)) == number + 1


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """`deaf("append")`: the next answer to this statement is lost. The server has done what it was asked to."""
    listening = QuerySession.rows
    lost: list[str] = []

    def rows(self: QuerySession, name: str, *arguments: Any) -> list[tuple[Any, ...]]:
        answer = listening(self, name, *arguments)
        if name in lost:
            lost.remove(name)
            self.connection.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return answer

    monkeypatch.setattr(QuerySession, "rows", rows)
    yield lost.append
    assert lost == []


def test_an_append_whose_answer_was_lost_is_written_once(store: PostgresStore, deaf: Callable[[str], None]) -> None:
    lease, journal = create(store), Journal()
    journal.start("a")
    deaf("append")
    store.append(lease, journal.take(), RUNNING)
    journal.complete("a")
    journal.cut()
    deaf("append_all")
    store.append(lease, journal.take(), RUNNING, plan=b"second")
    deaf("append_all")
    store.append(lease, [], RUNNING, plan=b"third")
    journal.start("b")
    store.append(lease, journal.take(), RUNNING)
    assert [event.seq for event in store.read_events(RUN)] == [1, 2, 3, 4]
    assert (store.find_run(RUN).plan_revision, store.read_plan(RUN)) == (3, b"third")
    assert len(store.list_checkpoints(RUN)) == 1


def test_one_who_gave_up_and_tries_again_later_writes_it_once(url: str, deaf: Callable[[str], None]) -> None:
    store = open_store(url, busy_s=0.0)
    lease, journal = create(store), Journal()
    journal.start("a")
    journal.cut()
    events = journal.take()
    deaf("append_all")
    with pytest.raises(StoreUnavailableError):
        store.append(lease, events, RUNNING, plan=b"second")
    store.append(lease, events, RUNNING, plan=b"second")
    record = store.find_run(RUN)
    assert (record.sequence, record.plan_revision, len(store.list_checkpoints(RUN))) == (2, 2, 1)
    store.close()


def test_what_another_one_wrote_is_never_taken_for_ours(store: PostgresStore, url: str) -> None:
    stale, other = create(store, lease_s=0.0), open_store(url)
    ours, theirs = Journal(), Journal()
    ours.start("a")
    theirs.start("b")
    other.append(other.take_lease(RUN, current_holder(), 15.0), theirs.take(), RUNNING)
    before = bodies(other.read_events(RUN))
    for events in (ours.take(), []):
        with pytest.raises(LeaseLostError):
            store.append(stale, events, RUNNING, consumed=["c"])
    assert bodies(other.read_events(RUN)) == before
    other.close()


def test_a_run_whose_making_was_not_heard_of_is_made_once(store: PostgresStore, deaf: Callable[[str], None]) -> None:
    deaf("insert_run")
    lease, journal = create(store), Journal()
    journal.start("a")
    store.append(lease, journal.take(), RUNNING)
    with pytest.raises(RunRefusedError, match="exists already"):
        create(store)
    deaf("insert_run")
    with pytest.raises(RunRefusedError, match="exists already"):
        create(store)


def test_a_lease_whose_taking_was_not_heard_of_is_taken_once(store: PostgresStore, deaf: Callable[[str], None]) -> None:
    store.release_lease(create(store))
    deaf("take_lease")
    lease = store.take_lease(RUN, current_holder(), 15.0)
    assert lease.token == 2
    with pytest.raises(TryAgainError, match="being driven by"):
        store.take_lease(RUN, current_holder(), 15.0)
    deaf("renew_lease")
    store.renew_lease(lease)


# --- restarts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["in order", "by a crash"])
def test_a_store_outlives_a_restart_of_the_server(server: Server, how: signal.Signals) -> None:
    store = open_store(f"{server.url}&schema=restart{how}")
    lease, journal = create(store), Journal()
    store.has_changed()
    for number in range(3):
        journal.start(f"t{number}")
        store.append(lease, journal.take(), RUNNING)
        server.restart(how)
    assert len(store.read_events(RUN)) == 3
    journal.start("after")
    store.append(lease, journal.take(), RUNNING)
    assert store.find_run(RUN).holder == current_holder()
    store.close()


def test_a_server_that_stays_away_is_told_and_loses_nothing(server: Server) -> None:
    store = open_store(f"{server.tcp_url}?schema=away", busy_s=0.3)
    lease, journal = create(store), Journal()
    journal.start("a")
    store.append(lease, journal.take(), RUNNING)
    server.stop()
    try:
        journal.start("b")
        events = journal.take()
        with pytest.raises(StoreUnavailableError, match="cannot be reached") as told:
            store.append(lease, events, RUNNING)
        assert HIDDEN not in str(told.value)
    finally:
        server.start()
    store.append(lease, events, RUNNING)
    assert [event.seq for event in store.read_events(RUN)] == [1, 2]
    store.close()


@contextmanager
def hanging(server: Server) -> Iterator[None]:
    """The server hangs, with all its connections: its host answers, and it does not."""
    assert server.process is not None
    root = psutil.Process(server.process.pid)
    processes = [root, *root.children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


def test_a_server_that_hangs_is_told_and_nothing_is_written_twice(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.tcp_url}?schema=hangs"
    store = open_store(url, busy_s=0.1)
    lease, journal = create(store), Journal()
    journal.start("a")
    store.append(lease, journal.take(), RUNNING)
    journal.start("b")
    events = journal.take()
    with hanging(server), monkeypatch.context() as impatient:
        impatient.setattr(Pool, "silence_s", 0.3)
        with pytest.raises(StoreUnavailableError, match="the server has said nothing"):
            store.append(lease, events, RUNNING)
        with pytest.raises(StoreUnavailableError):
            open_store(f"{url}&connect_timeout=2", readonly=True, busy_s=0.1)
    wait_for(lambda: written(store, lease, events))
    assert [event.seq for event in store.read_events(RUN)] == [1, 2]
    store.close()


def written(store: PostgresStore, lease: Lease, events: Sequence[Event]) -> bool:
    try:
        store.append(lease, events, RUNNING)
    except StoreUnavailableError:
        return False
    return True


# --- a process that is stopped ------------------------------------------------------------------------------------

STOPPED = """
import os, signal, sys
from agentos.store.postgres.database import open_store
from agentos.store.postgres import pool
store = open_store(sys.argv[1])
execute = pool.QuerySession.execute
def stop_inside(self, name, *arguments):
    if name == "delete_events":
        print("inside", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    return execute(self, name, *arguments)
pool.QuerySession.execute = stop_inside
store.delete_runs([store.find_run("run-1")])
"""


def test_one_stopped_inside_a_transaction_loses_it_before_a_lease_ends(store: PostgresStore, url: str) -> None:
    lease, journal = create(store, lease_s=0.0), Journal()
    journal.start("a")
    store.append(lease, journal.take(), RUNNING)
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    process = subprocess.Popen([sys.executable, "-c", STOPPED, url], env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        begun = time.monotonic()
        assert store.take_lease(RUN, current_holder(), 15.0).token == 2  # waits for the row, which the server sets free
        assert time.monotonic() - begun < 10
        assert len(store.read_events(RUN)) == 1
    finally:
        process.kill()
        process.communicate()
    assert store.find_run(RUN).updated_at > NOON


# --- a full disk --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(server: Server, tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes that the server may write to."""
    folder = server.folder / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        os.chown(folder, server.user or os.getuid(), -1)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
        yield folder
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA full_disk CASCADE")
            connection.execute("CHECKPOINT")  # what was dropped leaves the disk with the next one
            connection.execute("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=True)


def test_a_full_disk_is_told_and_what_was_written_stays(server: Server, small_disk: Path) -> None:
    store = open_store(f"{server.url}&schema=full_disk", busy_s=0.2)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("ALTER TABLE full_disk.event SET TABLESPACE small")
    lease, journal, chance = create(store), Journal(), random.Random(1)
    batches = []
    for number in range(200):
        journal.complete(f"t{number}", b'"%s"' % chance.randbytes(50_000).hex().encode())
        batches.append(journal.take())
    left = list(batches)

    def fill() -> None:
        while left:
            store.append(lease, left[0], RUNNING)
            left.pop(0)

    with pytest.raises(StoreUnavailableError, match="has no room left") as told:
        fill()
    written = len(batches) - len(left)
    assert "Free some space on the server" in told.value.next_step
    assert 10 < written < 100
    assert len(store.read_events(RUN)) == written
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("ALTER TABLE full_disk.event SET TABLESPACE pg_default")
    fill()
    assert store.find_run(RUN).sequence == 200
    store.close()
