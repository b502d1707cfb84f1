"""Stores of one process whose files are taken away under them."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from agentos import crashpoints
from agentos.exceptions import DatabaseGoneError, RunRefusedError, StoreUnavailableError
from agentos.store.port import Lease
from agentos.store.sqlite import live
from agentos.store.sqlite import locks as sqlite_locks
from agentos.store.sqlite.database import open_store
from agentos.store.sqlite.store import SqliteStore
from tests.contract.journals import RUN, RUNNING, Journal, create


class Written:
    """A store with a run in it, whose journal can be written on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store: SqliteStore = open_store(path)
        self.lease: Lease = create(self.store)
        self.journal = Journal()
        self.tasks = 0

    def write(self) -> None:
        self.journal.start(f"t{self.tasks}")
        self.store.append(self.lease, self.journal.take(), RUNNING)
        self.tasks += 1

    def remove(self, *ends: str) -> None:
        for end in ends:
            os.unlink(f"{self.path}{end}")


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    made = Written(tmp_path / "x.db")
    made.write()
    yield made
    made.store.close()


def count(path: Path) -> int:
    """Events as another process finds them."""
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from agentos.store.sqlite.database import open_store\n"
        f"store = open_store({str(path)!r}); store.verify({RUN!r})\n"
        f"print(len(store.read_events({RUN!r}))); store.close()"
    )
    return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("ends", [("-wal",), ("-shm",), ("-wal", "-shm"), ("",), ("", "-wal", "-shm")])
@pytest.mark.parametrize("other", ["before", "after", "none"])
def test_what_was_acknowledged_is_there_for_others(written: Written, ends: tuple[str, ...], other: str) -> None:
    """Another store of this process shares the log's index, though it was opened when the log was gone."""
    second: Callable[[], SqliteStore] = lambda: open_store(written.path, create=False, busy_s=0.1)  # noqa: E731
    stores = [second()] if other == "before" else []
    written.remove(*ends)
    if other == "after" and "" not in ends:
        with suppress(StoreUnavailableError):  # it cannot be read until the first store has put it right
            stores.append(second())
    written.write()
    assert count(written.path) == written.tasks
    written.write()
    for store in stores:
        store.renew_lease(written.lease)
        assert len(store.read_events(RUN)) == written.tasks
        store.close()
    assert count(written.path) == written.tasks


def test_a_batch_is_not_written_twice_where_another_put_the_database_back(written: Written) -> None:
    other = open_store(written.path)
    written.remove("", "-wal", "-shm")
    other.has_changed()  # as the thread does that keeps the lease
    assert written.path.exists()
    written.write()
    other.close()
    assert count(written.path) == written.tasks


def test_two_processes_share_what_one_of_them_put_back(written: Written) -> None:
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from agentos.store.sqlite.database import open_store\n"
        "from tests.contract.journals import *\n"
        f"store = open_store({str(written.path)!r})\n"
        "lease, journal = create(store, 'other'), Journal('other')\n"
        "print('ready', flush=True)\n"
        "for number in range(3):\n"
        "    input()\n"
        "    journal.start(f't{number}'); store.append(lease, journal.take(), RUNNING)\n"
        "    print('written', flush=True)\n"
        "store.close()\n"
    )
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def go_on() -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "written\n"

        assert process.stdout.readline() == "ready\n"
        go_on()
        written.remove("", "-wal", "-shm")
        go_on()  # puts it back
        written.write()
        written.remove("", "-wal", "-shm")
        written.write()  # puts it back
        go_on()
    assert process.returncode == 0
    assert count(written.path) == written.tasks
    assert len(written.store.read_events("other")) == 3  # type: ignore[arg-type]


def test_a_database_that_has_another_history_is_never_written_to(written: Written, tmp_path: Path) -> None:
    other = Written(tmp_path / "other.db")  # a run of the same id, with other events
    other.journal.start("another")
    other.write()
    other.store.close()
    os.replace(tmp_path / "other.db", written.path)
    with pytest.raises(DatabaseGoneError, match="replaced"):
        written.write()
    assert count(written.path) == 2


def test_a_long_log_is_folded_in_and_stays_short(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(400):
        written.journal.complete(f"t{written.tasks}", b'"' + b"x" * 60_000 + b'"')
        written.store.append(written.lease, written.journal.take(), RUNNING)
    assert os.path.getsize(f"{written.path}-wal") <= 2 * live.LOG_BYTES
    assert os.path.getsize(written.path) > 16_000_000


def test_closing_a_descriptor_does_not_let_another_process_delete_the_log(written: Written) -> None:
    """That is what drops SQLite's own locks; ours are of the open file."""
    for end in ("", "-wal", "-shm"):
        os.close(os.open(f"{written.path}{end}", os.O_RDONLY))
    log = os.stat(f"{written.path}-wal").st_ino
    assert count(written.path) == 1  # opens, and closes
    assert os.stat(f"{written.path}-wal").st_ino == log
    written.write()
    assert count(written.path) == 2


ASKED = """
import fcntl, os, struct, sys
for end, start, length in (("", 0x40000002, 510), ("-shm", 128, 1)):
    opened = os.open(sys.argv[1] + end, os.O_RDWR)
    asked = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    print(struct.unpack("hhqqi0q", fcntl.fcntl(opened, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has locks of open file descriptions")
def test_the_database_and_the_index_of_its_log_stay_locked_whoever_closes_them(written: Written) -> None:
    """Without the second, whoever opens the database next empties an index that is mapped here: SIGBUS."""
    second = open_store(written.path)
    for end in ("", "-wal", "-shm"):
        os.close(os.open(f"{written.path}{end}", os.O_RDONLY))
    argv = [sys.executable, "-c", ASKED, str(written.path)]
    assert subprocess.run(argv, check=True, capture_output=True, text=True).stdout == "True\nTrue\n"
    second.close()
    for end in ("", "-wal", "-shm"):
        os.close(os.open(f"{written.path}{end}", os.O_RDONLY))
    assert subprocess.run(argv, check=True, capture_output=True, text=True).stdout == "True\nTrue\n"


def test_the_last_to_close_still_tidies_up(written: Written) -> None:
    second = open_store(written.path)
    second.close()
    written.store.close()
    assert os.listdir(written.path.parent) == [written.path.name]


def test_many_who_make_a_database_at_once_use_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    stores: list[SqliteStore] = []
    makers = [threading.Thread(target=lambda: stores.append(open_store(path))) for _ in range(8)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    create(stores[0])
    assert all(store.find_run(RUN).workflow_id == RUN for store in stores)
    for store in stores:
        store.close()
    assert os.listdir(tmp_path) == ["x.db"]


def test_a_log_that_lost_its_database_is_not_folded_into_a_new_one(written: Written) -> None:
    code = f"import os, sqlite3; c = sqlite3.connect({str(written.path)!r}); c.execute('SELECT 1 FROM run'); os.abort()"
    written.store.close()
    with closing(sqlite3.connect(written.path)) as connection, connection:
        connection.execute("CREATE TABLE stray (x)")
        subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
        log = Path(f"{written.path}-wal").read_bytes()
    connection.close()
    os.unlink(written.path)
    Path(f"{written.path}-wal").write_bytes(log)
    store = open_store(written.path)
    assert store._connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'stray'").fetchone() == (0,)
    written.store = store


def test_a_run_that_was_made_and_kept_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is removed before the commit, and what it holds is folded in."""
    path = tmp_path / "x.db"
    store = open_store(path)
    removed: list[str] = []

    def reach(point: str) -> None:
        if point == "create.inside" and not removed:
            removed.append(point)
            os.unlink(f"{path}-wal")
            os.unlink(f"{path}-shm")

    monkeypatch.setattr(crashpoints, "reach", reach)
    lease = create(store)
    journal = Journal()
    journal.start("t")
    store.append(lease, journal.take(), RUNNING)
    assert count(path) == 1
    with pytest.raises(RunRefusedError):
        create(store)
    store.close()


# --- where locks by open file description, links or descriptors cannot be had -----------------------------------------


def test_a_kernel_without_such_locks_does_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As gVisor and WSL 1, which say EINVAL; waiting for a turn or the door would take seconds each time."""
    monkeypatch.setattr(sqlite_locks, "_SETLK", 12345)
    began = time.monotonic()
    made = Written(tmp_path / "x.db")
    made.write()
    made.store.close()
    assert time.monotonic() - began < sqlite_locks.TURN_S
    assert count(made.path) == 1


def test_a_file_system_without_links_has_databases_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    made = Written(tmp_path / "x.db")
    made.store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["x.db"]


def test_a_look_that_cannot_be_had_now_is_no_damage(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor is left: the database was not overwritten."""
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN

    def refuse(_: Path) -> object:
        raise error

    monkeypatch.setattr(live, "_name_in_file", refuse)
    os.utime(written.path)
    written.write()
    monkeypatch.undo()
    written.write()


def test_a_folder_that_cannot_be_entered_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    made = Written(folder / "x.db")
    folder.rename(tmp_path / "away")
    folder.symlink_to(folder)
    with pytest.raises(DatabaseGoneError):
        made.write()
    folder.unlink()
    (tmp_path / "away").rename(folder)
    made.store.close()


def test_a_connection_of_a_task_does_not_lock_others_out_for_good(written: Written) -> None:
    own = sqlite3.connect(written.path)
    read = own.execute("SELECT * FROM event")
    read.fetchone()
    written.remove("-wal", "-shm")
    written.write()
    assert count(written.path) == len(written.store.read_events(RUN))
    own.close()


def test_a_turn_that_never_comes_is_waited_for_once(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork of a killed process holds it for as long as it lives."""
    monkeypatch.setattr(sqlite_locks, "TURN_S", 0.2)
    locks = written.store.live.locks
    locks._patience_s = sqlite_locks.TURN_S
    holder = os.open(written.path, os.O_RDWR)
    assert sqlite_locks._lock(holder, sqlite_locks._TAKE_TURN)
    written.write()
    assert locks._patience_s == sqlite_locks.HOPELESS_S < sqlite_locks.TURN_S
    os.close(holder)
    written.write()


def test_a_child_does_not_wait_for_threads_that_it_does_not_have(written: Written) -> None:
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with sqlite_locks.opening, written.store.live.locks._turn:
            held.set()
            go_on.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        own = open_store(written.path, busy_s=2)
        os._exit(0 if own.live.locks.take_turn(1) is not None else 1)
    until = time.monotonic() + 15
    ended = 0, 0
    while not ended[0] and time.monotonic() < until:
        ended = os.waitpid(child, os.WNOHANG)
        time.sleep(0.05)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    go_on.set()
    thread.join()
    assert ended == (child, 0)


def test_a_turn_is_not_taken_on_a_file_that_came_by_the_number_of_a_closed_one(
    tmp_path: Path, written: Written
) -> None:
    """A task that reads the database has it open while another store is opened, and then opens something else."""
    free = os.open(os.devnull, os.O_RDONLY)  # below SQLite's own
    made = Written(tmp_path / "y.db")
    os.close(free)
    low = os.open(made.path, os.O_RDWR)
    assert low == free
    second = open_store(made.path)
    os.close(low)
    assert os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT) == low
    locks = made.store.live.locks
    turn = locks.take_turn(1)
    assert os.path.samestat(os.fstat(turn), os.stat(made.path))
    locks.end_turn(turn)
    os.close(low)
    second.close()
    made.store.close()


def test_a_descriptor_that_is_closed_meanwhile_is_no_trouble(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of this process that reads every file here."""
    real = sqlite_locks._descriptors_of

    def listed(file: sqlite_locks.Identity) -> list[int]:
        gone = os.open(written.path, os.O_RDONLY)
        found = real(file)
        os.close(gone)
        return found

    monkeypatch.setattr(sqlite_locks, "_descriptors_of", listed)
    began = time.monotonic()
    open_store(written.path).close()
    assert time.monotonic() - began < sqlite_locks.TURN_S
    written.write()
