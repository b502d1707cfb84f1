"""Where thousands of runs have ended, commands that want a few read a few."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from agentos.cli.main import program
from agentos.client import Client
from agentos.store import journal_reader
from agentos.store.holder import current_holder
from agentos.store.port import Progress, RunFilter, RunStatus, StorePort
from agentos.store.postgres.address import read_address
from agentos.workflow.look.doctor import examine
from agentos.workflow.place.place import find_place
from agentos.workflow.place.run_search import find_run
from agentos.workflow.start.resume import find_target
from tests.contract.journals import NOON, new_run
from tests.postgres.server import fresh_url

ENDED = 3_000
FEW = 60
COPY = "INSERT INTO run (id, {columns}) SELECT name || '-' || i, {columns} FROM {numbers}, run"
COUNTED = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ENDED})"


@pytest.fixture(params=["sqlite", "postgres"])
def repo(request: pytest.FixtureRequest, tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with thousands of runs that are complete or have failed, over one that was interrupted."""
    url = ""
    if request.param == "postgres":
        url = fresh_url()
        monkeypatch.setenv("AGENTOS_WORKFLOW_DB", url)
    place = find_place(tmp_git_repo)
    store = place.open(create=True)
    statuses: tuple[RunStatus, ...] = ("complete", "failed")
    for status in statuses:
        add(store, status, status, str(tmp_git_repo))
    if url:
        address = read_address(url)
        with psycopg.connect(address.conninfo, options=f"-csearch_path={address.schema}") as server:
            found = server.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = 'run'::regclass AND attnum > 0"
            ).fetchall()
            server.execute(copying([row[0] for row in found], f"generate_series(1, {ENDED}) AS n (i)"))
            server.execute("ANALYZE")
    else:
        with closing(sqlite3.connect(place.database)) as file, file:
            found = file.execute("PRAGMA table_info(run)").fetchall()
            file.execute(COUNTED.format(ENDED=ENDED) + copying([row[1] for row in found], "n"))
    add(store, "old", "running", str(tmp_git_repo))
    store.close()
    return tmp_git_repo


def copying(columns: list[str], numbers: str) -> str:
    rest = ", ".join(column for column in columns if column not in ("no", "id"))
    return COPY.format(columns=rest, numbers=numbers)


def add(store: StorePort, name: str, status: RunStatus, root: str) -> None:
    # The old one is older than all others, so that it is never found among the newest.
    at, labels = (NOON, ("common",)) if name != "old" else (NOON.replace(year=NOON.year - 1), ("rare",))
    run = new_run(name, root=root, name=name, created_at=at, plan=b"{}", labels=labels)
    lease = store.create_run(run, current_holder(), 15.0)
    store.append(lease, [], Progress(status=status, layer=0, layers=1, epoch=0))
    store.release_lease(lease)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that were read, each time one was."""
    seen: list[str] = []
    made = journal_reader.run_record

    def counted(stands: Any, *rest: Any, **more: Any) -> Any:
        seen.append(stands[0])
        return made(stands, *rest, **more)

    monkeypatch.setattr(journal_reader, "run_record", counted)
    return seen


def resume_target(repo: Path) -> None:
    place = find_place(repo)
    store = place.open(readonly=True)
    find_target(store, place, None)
    store.close()


def look_into_the_inbox(repo: Path) -> None:
    done = CliRunner().invoke(program, ["inbox", "--repo", str(repo)])
    assert done.exit_code == 0, done.output


def look_for_work(repo: Path) -> None:
    with closing(find_place(repo).open()) as store:
        found = store.take_runs(RunFilter(), current_holder(), 15.0, 10)
        assert [one.record.workflow_id for one in found] == ["old"]
        store.return_lease(found[0])


LOOKS: dict[str, Callable[[Path], Any]] = {
    "show": lambda repo: find_run(None, repo),
    "list": lambda repo: Client(repo).list_runs(limit=50),
    "list failed": lambda repo: Client(repo).list_runs(statuses={"failed"}, limit=5),
    "list interrupted": lambda repo: Client(repo).list_runs(statuses={"interrupted"}, limit=5),
    "inbox": look_into_the_inbox,
    "worker": look_for_work,
}


@pytest.mark.parametrize("what", LOOKS)
def test_a_look_reads_what_it_is_for(repo: Path, read: list[str], what: str) -> None:
    LOOKS[what](repo)
    least = 0 if what == "inbox" else 1  # none of these runs asks anything
    assert least <= len(read) <= FEW, what


def test_doctor_reads_what_is_under_way_and_counts_the_rest(repo: Path, read: list[str]) -> None:
    checkup = examine(repo, version="0")
    assert checkup.runs == 2 * ENDED + 3
    assert any("old" in finding.what and "interrupted" in finding.what for finding in checkup.findings)
    assert len([name for name in read if name.startswith("complete")]) == 0
    assert len(read) <= 1_000 + FEW


def test_resume_without_an_id_reads_no_run_that_is_over(repo: Path, read: list[str]) -> None:
    resume_target(repo)
    assert len(read) <= FEW
    assert not any(name.startswith("complete") for name in read)


# --- plans of SQLite; those of a server: tests/postgres/test_plans.py -------------------------------------------------


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ten steps of SQLite's machine for each one here: as many however busy the computer is."""
    taken: list[int] = []
    connect = sqlite3.connect

    def counted(*args: Any, **more: Any) -> sqlite3.Connection:
        connection = connect(*args, **more)
        connection.set_progress_handler(lambda: taken.append(1), 10)
        return connection

    monkeypatch.setattr(sqlite3, "connect", counted)
    return taken


def typed_sql(sql: str) -> Callable[[Path], Any]:
    def ask(repo: Path) -> None:
        with closing(sqlite3.connect(find_place(repo).database)) as file:
            file.execute(sql).fetchall()

    return ask


PLANNED: dict[str, Callable[[Path], Any]] = {
    **LOOKS,
    "a rare label": lambda repo: Client(repo).list_runs(labels={"rare"}, limit=50),
    "list --everywhere": lambda repo: CliRunner().invoke(program, ["list", "--everywhere", "--repo", str(repo)]),
    "tasks that wait": typed_sql("SELECT workflow_id, task_id FROM tasks WHERE status = 'waiting'"),
    "tasks that failed": typed_sql("SELECT workflow_id, task_id FROM tasks WHERE status = 'failed'"),
    "tasks of a run": typed_sql("SELECT * FROM tasks WHERE workflow_id = 'old'"),
    "events of a run": typed_sql("SELECT * FROM events WHERE workflow_id = 'old'"),
}


def test_what_has_ended_makes_no_question_to_sqlite_dearer(tmp_git_repo: Path, steps: list[int]) -> None:
    def fill(first: int, last: int) -> None:
        numbers = f"WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last})"
        with closing(sqlite3.connect(place.database)) as file, file:
            columns = [row[1] for row in file.execute("PRAGMA table_info(run)")]
            file.execute(numbers + copying(columns, "n") + " WHERE id IN ('complete', 'failed')")
            file.execute("INSERT OR IGNORE INTO label SELECT 'common', created_at, no FROM run WHERE id <> 'old'")

    def cost(ask: Callable[[Path], Any]) -> int:
        before = len(steps)
        ask(tmp_git_repo)
        return len(steps) - before

    place = find_place(tmp_git_repo)
    with closing(place.open(create=True)) as store:
        for name, status in (("complete", "complete"), ("failed", "failed"), ("old", "running")):
            add(store, name, status, str(tmp_git_repo))  # type: ignore[arg-type]
    fill(1, FEW)
    few = {what: cost(ask) for what, ask in PLANNED.items()}
    fill(FEW + 1, ENDED)
    many = {what: cost(ask) for what, ask in PLANNED.items()}
    dearer = {what: (few[what], many[what]) for what in PLANNED if many[what] > few[what] + ENDED // 10}
    assert dearer == {}
