"""Runs that earlier versions stored are resumed by this one: on SQLite, on PostgreSQL, and imported from an export."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from agentos import Client
from agentos.store.holder import boot_clock, boot_id, pid_namespace, process_started
from agentos.store.sqlfiles import migrations
from agentos.store.sqlite.leases import FOREIGN_MARGIN_S
from tests.cli.conftest import Agentos, Completed, agentos
from tests.conftest import git
from tests.marks import quick_first
from tests.postgres.server import fresh_url
from tests.recorded.record import RUNS, SCHEMA

__all__ = ["agentos"]

pytestmark = pytest.mark.attack

HERE = Path(__file__).parent
RECORDINGS = sorted(file.parent for file in HERE.glob("*/sqlite.db.gz"))
EVERY_COMMAND = (
    ("list",),
    ("inbox",),
    ("show", "gate-1"),
    ("events", "gate-1"),
    ("why", "gate-1", "ship"),
    ("checkpoints", "gate-1"),
    ("logs", "gate-1"),
    ("watch", "gate-1"),
    ("run", "steps.yaml", "--id", "new-1"),
    ("resume", "gate-1", "--repo", "."),
    ("approve", "gate-1", "--repo", "."),
    ("reject", "gate-1", "--repo", "."),
    ("abort", "gate-1", "--repo", "."),
    ("prune", "--all", "--keep", "1"),
    ("delete", "gate-1", "--yes"),
    ("export", "gate-1", "-o", "-"),
    ("db", "stats"),
    ("db", "migrate"),
)


class Recorded:
    """A recording laid into a repository: the program works on it as on its own."""

    def __init__(self, recording: Path, kept: str, root: Path, program: Agentos) -> None:
        self.root = root
        self.env: dict[str, str] = {}
        self.database = root / ".agentos" / "issue_workflow.db"
        self.url = ""
        self._program = program
        self.put_back: tuple[str, ...] = ("--files", "restore")
        """How a resume is told to put files back: those laid out here are files that somebody else changed."""
        unpack(recording / ("postgres-repo.tar.gz" if kept == "postgres" else "sqlite-repo.tar.gz"), root)
        match kept:
            case "sqlite":
                self.database.parent.mkdir(mode=0o700)
                self.database.write_bytes(gzip.decompress((recording / "sqlite.db.gz").read_bytes()))
                self.database.chmod(0o600)
            case "postgres":
                self.url = restore_dump(recording / "postgres.sql")
                self.env["AGENTOS_WORKFLOW_DB"] = self.url
            case _:
                self.put_back = ("--restore-files",)
                forget_work(root)
                for run in RUNS:
                    with (recording / f"{run}.jsonl").open("rb") as file:
                        Client(root).import_run(file)
        self._traced = len(self._trace())

    def types(self, *words: str, code: int = 0, **env: str) -> Completed:
        done = self._program(*words, cwd=self.root, env={**self.env, **env})
        assert done.code == code, f"{' '.join(words)}: {done.code}\n{done.out}{done.err}"
        return done

    def shown(self, run: str) -> dict[str, object]:
        return dict(json.loads(self.types("show", run, "--json").out))

    def executed(self) -> list[str]:
        """Tasks that ran since it was laid out, in order."""
        return self._trace()[self._traced :]

    def says(self, word: str) -> None:
        """What tasks wait for, or look at; no snapshot captures it."""
        (self.root / ".git" / word).touch()

    def _trace(self) -> list[str]:
        return (self.root / ".git" / "trace").read_text().split()


def unpack(archive: Path, root: Path) -> None:
    """The repository as it was left, its worktree and its snapshots."""
    with tarfile.open(archive) as tar:
        tar.extractall(root, filter="data")


def forget_work(root: Path) -> None:
    """A clone in which no run has been yet."""
    shutil.rmtree(root / ".git" / "agentos")
    git("reset", "--quiet", "--hard", cwd=root)
    git("clean", "--quiet", "-d", "--force", cwd=root)


def restore_dump(dump: Path) -> str:
    """A schema of its own with what was dumped; its URL."""
    url = fresh_url()
    server, schema = url.rsplit("schema=", 1)
    with psycopg.connect(server.rstrip("?&"), autocommit=True) as connection:
        connection.execute(dump.read_text().replace(SCHEMA, schema).encode())
    return url


@pytest.fixture(params=RECORDINGS, ids=lambda recording: recording.name)
def recording(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture(params=quick_first(["sqlite", "postgres", "imported"]))
def recorded(request: pytest.FixtureRequest, recording: Path, tmp_path: Path, agentos: Agentos) -> Recorded:
    root = tmp_path / "repo"
    root.mkdir()
    return Recorded(recording, request.param, root, agentos)


def test_there_is_a_recording() -> None:
    assert RECORDINGS


def test_what_was_recorded_is_listed_and_sound(recorded: Recorded) -> None:
    listed = {row["workflow_id"]: row["status"] for row in json.loads(recorded.types("list", "--json").out)}
    assert listed == {
        "gate-1": "waiting",
        "failed-1": "failed",
        "steps-1": "complete",
        "fork-1": "interrupted",
        "cut-1": "interrupted",
    }
    for run in RUNS:
        recorded.types("events", run)
        recorded.types("checkpoints", run)


def test_an_open_gate_is_answered_and_the_run_completes(recorded: Recorded) -> None:
    recorded.types("resume", "gate-1", "--repo", ".", code=3)
    recorded.types("approve", "gate-1", "--repo", ".")
    assert recorded.shown("gate-1")["status"] == "complete"
    assert recorded.executed() == ["ship"]
    assert (recorded.root / "shipped.txt").read_text() == "shipped\n"


def test_a_gate_is_rejected(recorded: Recorded) -> None:
    recorded.types("resume", "gate-1", "--repo", ".", code=3)
    recorded.types("reject", "gate-1", "--repo", ".", "--reason", "not today")
    recorded.types("resume", "gate-1", "--repo", ".", code=1)
    assert recorded.executed() == []


def test_a_failed_run_goes_on_with_what_it_had(recorded: Recorded) -> None:
    recorded.says("mended")
    recorded.types("resume", "failed-1", "--repo", ".")
    assert recorded.executed() == ["charge", "receipt"]
    assert recorded.shown("failed-1")["status"] == "complete"
    assert '"paid 1299"' in recorded.types("events", "failed-1", "--json").out


def test_a_failed_run_may_fail_again(recorded: Recorded) -> None:
    recorded.types("resume", "failed-1", "--repo", ".", code=1)
    assert recorded.executed() == ["charge", "charge"], "its retries count anew"
    recorded.says("mended")
    recorded.types("resume", "failed-1", "--repo", ".")
    assert recorded.shown("failed-1")["status"] == "complete"


def test_a_fork_goes_on_without_repeating_its_parent(recorded: Recorded) -> None:
    recorded.types("resume", "fork-1", "--repo", ".")
    assert recorded.executed() == ["two", "three"]
    assert recorded.shown("fork-1")["status"] == "complete"
    assert recorded.shown("fork-1")["parent_id"] == "steps-1"
    assert recorded.shown("steps-1")["status"] == "complete"


def test_a_complete_run_is_forked_from_each_checkpoint(recorded: Recorded) -> None:
    cuts = json.loads(recorded.types("checkpoints", "steps-1", "--json").out)
    for number, cut in enumerate(cuts):
        recorded.types("fork", cut["id"], "--id", f"new-{number}", "--repo", ".")
    assert recorded.executed() == ["two", "three", "three"]


def test_a_file_task_that_was_cut_off_is_put_back_and_completes(recorded: Recorded) -> None:
    before = dict(files_of(recorded.root))
    recorded.types("resume", "cut-1", "--repo", ".", *recorded.put_back, "--dry-run")
    assert dict(files_of(recorded.root)) == before, "a preview touches nothing"
    recorded.says("go")
    recorded.types("resume", "cut-1", "--repo", ".", *recorded.put_back)
    assert recorded.executed() == ["edit", "look"]
    assert work_of(recorded.root) == {
        "notes.txt": "mine\nwritten\nedited\n",
        "tool.sh": "#!/bin/sh\n",
        "made/new.txt": "new\n",
        "whole.txt": "half\n",
    }
    assert os.access(recorded.root / "tool.sh", os.X_OK)
    assert recorded.shown("cut-1")["status"] == "complete"


def test_what_a_cut_off_task_left_is_exactly_undone(recorded: Recorded) -> None:
    """As it was put back, before the task begins again: looked at by a hand that stops it there."""
    resume = ("resume", "cut-1", "--repo", ".", *recorded.put_back)
    recorded.types(*resume, code=-signal.SIGKILL, AGENTOS_CRASH_AT="attempt.before")
    assert work_of(recorded.root) == {
        "notes.txt": "mine\nwritten\n",
        "old.txt": "gone\n",
        "tool.sh": "#!/bin/sh\n",
    }
    assert not (recorded.root / "made").exists()
    assert not os.access(recorded.root / "tool.sh", os.X_OK)


def work_of(root: Path) -> dict[str, str]:
    """Every file but the workflows."""
    return {name: text for name, text in files_of(root) if not name.endswith((".yaml", ".py"))}


def files_of(root: Path) -> Iterator[tuple[str, str]]:
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_file() and not name.startswith((".git/", ".agentos/", "__pycache__/")):
            yield name, path.read_text()


# --- a driver of that version, still at work ----------------------------------------------------------------------


@pytest.mark.parametrize("recorded", quick_first(["sqlite", "postgres"]), indirect=True)
def test_a_driver_of_that_version_is_left_to_its_run_until_it_is_gone(recorded: Recorded) -> None:
    """Every command that would go on with the run or change it says who drives it, and changes nothing."""
    recorded.says("go")
    with driven(recorded, "cut-1") as driver:
        stored = content_of(recorded)
        assert recorded.shown("cut-1")["driver"] == driver
        told = f"{driver} drives run cut-1 on it"  # so that nobody migrates what it writes to
        assert told in recorded.types("resume", "cut-1", "--repo", ".", code=75).err
        assert f"is being driven by {driver}" in recorded.types("delete", "cut-1", "--yes", code=75).err
        recorded.types("worker", "--once", "--workflow", "cut", "--repo", ".", code=75)
        recorded.types("db", "migrate", code=75)
        assert content_of(recorded) == stored
        assert recorded.executed() == []
    recorded.types("resume", "cut-1", "--repo", ".", *recorded.put_back)
    assert recorded.executed() == ["edit", "look"]
    assert recorded.shown("cut-1")["status"] == "complete"


@pytest.mark.full
@pytest.mark.parametrize("recorded", ["sqlite", "postgres"], indirect=True)
def test_a_driver_of_that_version_on_another_host_is_waited_for(recorded: Recorded) -> None:
    """Whether it lives cannot be told: until its lease has run out nobody migrates what it writes to."""
    recorded.says("go")
    holder = {**holder_of(recorded, "cut-1"), "boot": "of another host"}
    hold(recorded, "cut-1", holder, ends_in_s=60)
    assert str(recorded.shown("cut-1")["driver"]).endswith(" on recorder (an older AgentOS)")
    done = recorded.types("resume", "cut-1", "--repo", ".", *recorded.put_back, code=75)
    assert "on recorder (an older AgentOS) drives run cut-1 on it" in done.err
    assert recorded.executed() == []
    hold(recorded, "cut-1", holder, ends_in_s=-60)
    recorded.types("resume", "cut-1", "--repo", ".", *recorded.put_back)
    assert recorded.executed() == ["edit", "look"]


@contextmanager
def driven(recorded: Recorded, run: str) -> Iterator[str]:
    """Another process holds the run, with the lease as the recorded version writes it. Gives its name."""
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            started = process_started(process.pid)
            here = {"boot": boot_id(), "pidns": pid_namespace(), "pid": process.pid, "started": started}
            hold(recorded, run, {**holder_of(recorded, run), **here}, ends_in_s=60)
            yield f"process {process.pid} on recorder (an older AgentOS)"
        finally:
            process.kill()


def holder_of(recorded: Recorded, run: str) -> dict[str, object]:
    """As the recorded version wrote it."""
    [(text,)] = query(recorded, f"SELECT holder FROM run WHERE id = '{run}'")
    return dict(json.loads(text))


def hold(recorded: Recorded, run: str, holder: dict[str, object], *, ends_in_s: float) -> None:
    set_ = f"UPDATE run SET holder = '{json.dumps(holder)}', "
    if recorded.url:
        set_ += f"lease_until = clock_timestamp() + make_interval(secs => {ends_in_s})"
    else:
        ends = boot_clock() + ends_in_s
        until = int((time.time() + ends_in_s - FOREIGN_MARGIN_S) * 1_000_000)
        set_ += f"lease_boot = '{holder['boot']}', lease_expires = {ends}, lease_until = {until}"
    query(recorded, f"{set_} WHERE id = '{run}'")


def query(recorded: Recorded, sql: str) -> list[tuple[str, ...]]:
    if recorded.url:
        server, schema = recorded.url.rsplit("schema=", 1)
        with psycopg.connect(server.rstrip("?&"), autocommit=True, options=f"-c search_path={schema}") as connection:
            done = connection.execute(sql.encode())
            return done.fetchall() if done.description else []
    with closing(sqlite3.connect(recorded.database, isolation_level=None)) as connection:
        return connection.execute(sql).fetchall()


# --- a newer schema -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recorded", ["sqlite", "postgres"], indirect=True)
def test_an_old_program_leaves_a_newer_schema_alone(recorded: Recorded) -> None:
    """Every command ends with exit code 6, says what to do, and changes nothing."""
    raise_schema(recorded)
    stored = content_of(recorded)
    for words in EVERY_COMMAND:
        told = f"has schema 99; this version of AgentOS knows {len(migrations())}"
        assert told in recorded.types(*words, code=6).err, words
    assert content_of(recorded) == stored
    assert recorded.executed() == []


@pytest.mark.parametrize("recorded", ["sqlite", "postgres"], indirect=True)
def test_resuming_all_says_that_a_schema_is_newer(recorded: Recorded) -> None:
    """It goes through every worktree known and leaves out what it cannot read: its exit code says so all the same."""
    recorded.types("resume", "gate-1", "--repo", ".", code=3)  # from here on the worktree is known
    raise_schema(recorded)
    stored = content_of(recorded)
    assert "has schema 99" in recorded.types("resume", "--all", code=6).err
    assert content_of(recorded) == stored
    assert recorded.executed() == []


def raise_schema(recorded: Recorded) -> None:
    """As a version from next year would have left it."""
    if recorded.url:
        server, schema = recorded.url.rsplit("schema=", 1)
        with psycopg.connect(server.rstrip("?&"), autocommit=True) as connection:
            connection.execute(f"UPDATE {schema}.meta SET value = '99' WHERE key = 'schema'".encode())
        return
    with closing(sqlite3.connect(recorded.database)) as connection:
        connection.execute("PRAGMA user_version = 99")


def content_of(recorded: Recorded) -> object:
    """Every row."""
    if recorded.url:
        server, schema = recorded.url.rsplit("schema=", 1)
        with psycopg.connect(server.rstrip("?&")) as connection:
            return [
                connection.execute(f"SELECT * FROM {schema}.{table} ORDER BY 1, 2".encode()).fetchall()
                for table in ("run", "event", "checkpoint", "inbox", "plan")
            ]
    with closing(sqlite3.connect(recorded.database)) as connection:
        tables = ("run", "event", "checkpoint", "inbox", "plan", "blob", "meta", "sqlite_schema")
        connection.text_factory = bytes  # plans are compressed
        return [connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables]
