"""A disk that is full, read-only or has lost something: the error says so and what to do, and nothing is lost."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.crash import checks
from tests.crash.harness import REFUSED, Ended, Theatre, bytes_on_disk
from tests.marks import quick_first

pytestmark = pytest.mark.timeout(300)  # a busy machine is no failure

GROWING = """
from tests.crash.children.witness import main, saw
from agentos import Context, Workflow

flow = Workflow("growing")

def step(text: str, ctx: Context) -> str:
    saw(ctx)
    return text[-5:] + ctx.task_id + "x" * 40_000

previous = "start"
for number in range(40):
    reference = "${{ tasks.%s.output }}" % previous if number else "start"
    previous = flow.add(f"step{number:02}", step, inputs={"text": reference})

if __name__ == "__main__":
    main(flow)
"""
WAITING = """
from tests.crash.children.witness import main, saw
from agentos import Context, Workflow

flow = Workflow("waiting")

@flow.task
def small(ctx: Context) -> str:
    saw(ctx)
    return "a needle"

@flow.task(needs=["small"])
def large(ctx: Context) -> str:
    saw(ctx)
    return "".join(f"{number} " for number in range(250_000))

@flow.task
def middle(large: str, ctx: Context) -> int:
    saw(ctx)
    return len(large)

flow.add("consent", "approval", question="Go on?", needs=["middle"])

@flow.task(needs=["consent"], inputs={"text": "later"})
def last(text: str, ctx: Context) -> str:
    saw(ctx)
    return text

if __name__ == "__main__":
    main(flow)
"""


# --- no room --------------------------------------------------------------------------------------------------------


def mount(*arguments: str | Path) -> bool:
    """Whether the system let us."""
    with suppress(OSError):
        return subprocess.run(["mount", *map(str, arguments)], capture_output=True, check=False).returncode == 0
    return False


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1.5 MB; only root may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not mount("-t", "tmpfs", "-o", "size=1536k", "agentos-test", folder):
        pytest.skip("no right to mount a small file system here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path: Path, disk: Path) -> None:
    theatre = Theatre.of_text(tmp_path, GROWING, "full disk")
    theatre.use_database(disk / "state.db")
    check_no_room(theatre, theatre.drive("run", patience_s=0.2), "full")
    again = theatre.drive("resume", patience_s=0.2)
    check_no_room(theatre, again, "full")
    assert mount("-o", "remount,size=64m", disk)
    check_completes(theatre)


def test_a_file_that_may_not_grow_stops_the_run_and_loses_nothing(tmp_path: Path) -> None:
    theatre = Theatre.of_text(tmp_path, GROWING, "file size limit")
    check_no_room(
        theatre, theatre.drive("run", env={"CRASH_FILE_LIMIT": "900000"}, patience_s=0.2), "limit on its size"
    )
    check_completes(theatre)


def check_no_room(theatre: Theatre, ended: Ended, why: str) -> None:
    assert (ended.code, ended.said["error"]) == (REFUSED, "StoreUnavailableError")
    assert why in ended.said["text"]
    assert "free" in ended.said["text"].lower()
    record = theatre.record()
    assert record is not None
    assert record.status == "interrupted"
    assert 2 < len(theatre.trace()) < 40


def check_completes(theatre: Theatre) -> None:
    assert theatre.resume().said == {"status": "complete"}
    events = theatre.journal()
    checks.check_journal(events, killed=[ended.pid for ended in theatre.ended[:-1]])
    checks.check_trace(events, theatre.trace())
    checks.check_file(theatre.database)
    outputs = [entry["output"] for entry in checks.canonical_state(theatre.facts(), theatre.repo)["tasks"]]
    assert outputs == [("start" if not n else "xxxxx") + f"step{n:02}" + "x" * 40_000 for n in range(40)]


# --- no leave to write ----------------------------------------------------------------------------------------------


def test_a_read_only_database_is_said_to_be_one(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    theatre = Theatre.of_text(tmp_path, WAITING, "read-only")
    folder = request.getfixturevalue("disk") if os.getuid() == 0 else tmp_path / "state"
    if folder.name == "disk":
        assert mount("-o", "remount,size=64m", folder)
    else:
        folder.mkdir()
    theatre.use_database(folder / "state.db")
    assert theatre.run().said == {"status": "waiting"}
    if folder.name == "disk":
        assert mount("-o", "remount,ro", folder)
    else:
        theatre.database.chmod(0o400)
        folder.chmod(0o500)
    before = bytes_on_disk(theatre.database)
    refused = theatre.resume()
    assert (refused.code, refused.said["error"]) == (REFUSED, "StoreUnavailableError")
    assert "read-only" in refused.said["text"]
    assert "writable" in refused.said["text"]
    assert bytes_on_disk(theatre.database) == before
    record = theatre.record()  # looking at it needs no leave
    assert record is not None
    assert record.status == "waiting"
    if folder.name != "disk":
        folder.chmod(0o700)


# --- damage ---------------------------------------------------------------------------------------------------------


def truncate(size: Callable[[int, int], int]) -> Callable[[Path], None]:
    """Cut the file to a size made of its own and that of a page."""

    def change(path: Path) -> None:
        page = int.from_bytes(path.read_bytes()[16:18], "big")
        os.truncate(path, size(path.stat().st_size, page))

    return change


def flip(column: str) -> Callable[[Path], None]:
    """Change one bit in the middle of what a row holds, in the file itself."""

    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            [(stored,)] = connection.execute(f"SELECT CAST(body AS BLOB) FROM {column}").fetchall()
        needle = stored[:900]  # what a row keeps on its own page, however large it is
        data = bytearray(path.read_bytes())
        assert data.count(needle) == 1, f"{needle!r} stands in the file {data.count(needle)} times"
        data[data.index(needle) + len(needle) // 2] ^= 1
        path.write_bytes(data)

    return change


def change_row(statement: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA foreign_keys = OFF")
            connection.execute(statement)
            connection.commit()

    return change


DAMAGES = {
    "cut within the header": (truncate(lambda size, page: 50), "cut short"),
    "cut after the first page": (truncate(lambda size, page: page), "damaged"),
    "cut in half": (truncate(lambda size, page: size // 2), "damaged"),
    "the last page is gone": (truncate(lambda size, page: size - page), "damaged"),
    "a bit of an event": (flip("event WHERE seq = 5"), "event 5 of run run-1 is damaged"),
    "a bit of a blob": (flip("blob"), "of run run-1 is damaged"),
    "a bit of the plan": (flip("plan"), "plan revision 1 of run run-1 is damaged"),
    "an event is gone": (change_row("DELETE FROM event WHERE seq = 5"), "event 5 of run run-1 is damaged"),
    "the last event is gone": (
        change_row("DELETE FROM event WHERE seq = (SELECT max(seq) FROM event)"),
        "the row is missing",
    ),
    "an event says something else": (
        change_row("UPDATE event SET body = replace(body, 'needle', 'noodle')"),
        "event 5 of run run-1 is damaged",
    ),
}


@pytest.mark.parametrize("damage", quick_first(DAMAGES))
def test_damage_is_named_and_left_as_it_is(tmp_path: Path, damage: str) -> None:
    change, told = DAMAGES[damage]
    theatre = Theatre.of_text(tmp_path, WAITING, damage)
    assert theatre.run().said == {"status": "waiting"}
    change(theatre.database)
    before = bytes_on_disk(theatre.database)
    executed = theatre.trace()
    for ended in (theatre.resume(), theatre.run()):
        assert (ended.code, ended.said["error"]) == (REFUSED, "CheckpointCorruptedError")
        assert told in ended.said["text"]
        assert "agentos doctor --set-aside" in ended.said["text"]
        assert bytes_on_disk(theatre.database) == before
    assert theatre.trace() == executed


def test_a_newer_schema_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    theatre = Theatre.of_text(tmp_path, WAITING, "newer schema")
    assert theatre.run().said == {"status": "waiting"}
    change_row("PRAGMA user_version = 99")(theatre.database)
    before = bytes_on_disk(theatre.database)
    refused = theatre.resume()
    assert (refused.code, refused.said["error"]) == (REFUSED, "NewerSchemaError")
    assert "a newer one" in refused.said["text"]
    assert bytes_on_disk(theatre.database) == before
