"""What attempts print is kept in files: all of it, live, within bounds, and never at the run's expense."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos import Client, Workflow
from agentos.exceptions import WorkflowConfigurationError
from agentos.ids import WorkflowId
from agentos.machine import events as ev
from agentos.workflow.drive.log_writer import LogWriter
from agentos.workflow.drive.logs import LogFollower, LogLine, log_files, logs_folder, read_logs, run_folder, safe_name
from agentos.workflow.place.place import Place
from tests.workflow.support import drive, go_on


def lines_of(place: Place, workflow_id: str) -> list[LogLine]:
    return list(read_logs(log_files(place.database, workflow_id)))


def texts(place: Place, workflow_id: str, task_id: str, stream: str = "out") -> list[str]:
    return [line.text for line in lines_of(place, workflow_id) if (line.task_id, line.stream) == (task_id, stream)]


def warnings(place: Place, workflow_id: str) -> list[str]:
    store = place.open(readonly=True)
    found = [event.message for event in store.read_events(WorkflowId(workflow_id)) if isinstance(event, ev.TaskWarning)]
    store.close()
    return found


def test_both_streams_and_progress_are_kept_line_by_line(place: Place) -> None:
    flow = Workflow("prints")
    flow.add("says", "shell", run="echo one; echo two >&2; printf 'a\\r\\nb\\rc'; printf '\\377\\n'", effects="none")

    @flow.task
    def reports(ctx: object) -> None:
        ctx.progress("half way")  # type: ignore[attr-defined]

    result = drive(place, flow)
    assert texts(place, result.workflow_id, "says") == ["one", "a", "b", "c\ufffd"]
    assert texts(place, result.workflow_id, "says", "err") == ["two"]
    assert texts(place, result.workflow_id, "reports", "progress") == ["half way"]
    times = [line.at for line in lines_of(place, result.workflow_id)]
    assert times == sorted(times)
    assert all(len(at) == 24 and at.endswith("Z") for at in times)


def test_all_of_a_flood_is_kept(place: Place) -> None:
    flow = Workflow("flood")
    flow.add("counts", "shell", run="seq 1 50000", effects="none")
    result = drive(place, flow)
    assert texts(place, result.workflow_id, "counts") == [str(number) for number in range(1, 50001)]


def test_every_attempt_has_a_log_of_its_own(place: Place) -> None:
    flow = Workflow("tries")
    flow.add(
        "t",
        "shell",
        run="echo try; test -e again || { touch again; exit 1; }",
        retries={"retries": 1, "backoff_s": 0},
        effects="none",
    )
    result = drive(place, flow)
    assert [(file.task_id, file.attempt) for file in log_files(place.database, result.workflow_id)] == [
        ("t", 1),
        ("t", 2),
    ]


def test_files_and_folders_are_private(place: Place) -> None:
    flow = Workflow("private")
    flow.add("a/b\u00e9 ..", "shell", run="echo hello", effects="none")
    result = drive(place, flow, id="run/../x")
    folder = run_folder(place.database, result.workflow_id)
    assert folder is not None
    assert folder == Path(f"{place.database}.logs") / "run%2F..%2Fx"
    [file] = folder.iterdir()
    assert file.name == "a%2Fb%C3%A9%20...1.log"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert [line.task_id for line in lines_of(place, result.workflow_id)] == ["a/b\u00e9 .."]


def test_nothing_printed_leaves_nothing_behind(place: Place) -> None:
    flow = Workflow("quiet")
    flow.add("a", "shell", run="true", effects="none")
    drive(place, flow)
    assert not Path(f"{place.database}.logs").exists()


def test_in_a_repository_logs_lie_beside_the_database_and_go_with_their_run(
    tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_git_repo)
    flow = Workflow("there")
    flow.add("a", "shell", run="echo hello", effects="none")
    client = Client()
    result = drive(client.place, flow)
    folder = tmp_git_repo / ".agentos" / "logs" / result.workflow_id
    assert [path.name for path in folder.iterdir()] == ["a.1.log"]
    client.delete(result.workflow_id)
    assert not folder.exists()


@given(st.text(st.characters(exclude_categories=[]), min_size=1, max_size=200))
def test_any_id_makes_a_good_file_name(text: str) -> None:
    name = safe_name(text)
    assert len(name) <= 120
    assert name not in (".", "..")
    assert all(sign.isascii() and (sign.isalnum() or sign in "._-%") for sign in name)


def test_long_ids_do_not_share_a_file_and_keep_their_name(place: Place) -> None:
    one, two = "x" * 199 + "1", "x" * 199 + "2"
    assert safe_name(one) != safe_name(two)
    flow = Workflow("long")
    flow.add(one, "shell", run="echo hello", effects="none")
    result = drive(place, flow)
    [file] = log_files(place.database, result.workflow_id, [one, two])
    assert file.task_id == one


# --- bounds -------------------------------------------------------------------------------------------------------


def test_a_log_has_its_beginning_and_its_end(place: Place) -> None:
    flow = Workflow("flood")
    flow.add("counts", "shell", run="seq 1 200000", effects="none")
    result = drive(place, flow, max_log=100_000)
    kept = texts(place, result.workflow_id, "counts")
    assert kept[0] == "1"
    assert kept[-1] == "200000"
    assert len(kept) < 30_000
    [note] = texts(place, result.workflow_id, "counts", "note")
    assert "bytes were left out" in note
    [file] = log_files(place.database, result.workflow_id)
    assert file.path.stat().st_size < 600_000


def test_a_line_without_an_end_is_broken(place: Place) -> None:
    flow = Workflow("long")
    flow.add("a", "shell", run="head -c 300000 /dev/zero | tr '\\0' x", effects="none")
    result = drive(place, flow)
    kept = texts(place, result.workflow_id, "a")
    assert sum(map(len, kept)) == 300_000
    assert max(map(len, kept)) <= 1 << 16


def test_no_logs_are_kept_where_that_is_asked(place: Place) -> None:
    flow = Workflow("none")
    flow.add("a", "shell", run="echo hello", effects="none")
    drive(place, flow, max_log=0)
    assert not Path(f"{place.database}.logs").exists()


# --- trouble ------------------------------------------------------------------------------------------------------


def test_logs_that_cannot_be_written_are_told_once_and_the_run_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: LogWriter, name: str) -> int:
        return os.open("/dev/full", os.O_WRONLY)

    monkeypatch.setattr(LogWriter, "make", full)
    flow = Workflow("full")
    for task in ("a", "b", "c"):
        flow.add(task, "shell", run="echo hello", effects="none")
    result = drive(place, flow)
    assert result.status == "complete"
    [told] = [message for message in warnings(place, result.workflow_id) if "cannot be kept" in message]
    assert "No space left" in told


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_told_and_the_run_goes_on(place: Place) -> None:
    folder = Path(f"{place.database}.logs")
    folder.mkdir(mode=0o500)
    flow = Workflow("readonly")
    flow.add("a", "shell", run="echo hello", effects="none")
    result = drive(place, flow)
    folder.chmod(0o700)
    assert result.status == "complete"
    assert any("cannot be kept" in message for message in warnings(place, result.workflow_id))


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_folder_that_is_not_ours_is_refused_and_nothing_runs(place: Place, tmp_path: Path, kind: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    logs = Path(f"{place.database}.logs")
    logs.symlink_to(elsewhere) if kind == "link" else logs.write_text("mine")
    flow = Workflow("refused")
    flow.add("a", "shell", run="touch ran", effects="none")
    with pytest.raises(WorkflowConfigurationError, match="symbolic link" if kind == "link" else "not a directory"):
        drive(place, flow)
    assert not (place.root / "ran").exists()
    assert not list(elsewhere.iterdir())
    with pytest.raises(WorkflowConfigurationError):
        log_files(place.database, "x")


def test_a_link_in_place_of_a_runs_folder_is_not_followed(place: Place, tmp_path: Path) -> None:
    flow = Workflow("gate")
    flow.add("g", "approval", question="Go?")
    result = drive(place, flow)
    folder = run_folder(place.database, result.workflow_id)
    assert folder is not None
    folder.parent.mkdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(WorkflowConfigurationError, match="symbolic link"):
        go_on(place, result.workflow_id, flow)


def test_a_writer_never_follows_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "logs").symlink_to(target)
    writer = LogWriter(tmp_path / "logs", "run")
    log = writer.open("t", 1)
    log.write("stdout", b"hello\n")
    log.close()
    writer.close()
    assert not list(target.iterdir())


def test_without_a_file_there_are_no_logs() -> None:
    assert logs_folder("postgresql://host/db") is None
    assert log_files("postgresql://host/db", "x") == []


# --- following ----------------------------------------------------------------------------------------------------


def test_a_follower_sees_what_comes_and_what_begins_later(tmp_path: Path) -> None:
    database = str(tmp_path / "runs.db")
    writer = LogWriter(Path(f"{database}.logs"), "run")
    follower = LogFollower(database, "run")
    assert follower.look([]) == []
    first, second = writer.open("a", 1), writer.open("b", 1)

    def seen() -> list[tuple[str, str]]:
        return [(line.task_id, line.text) for line in follower.look([])]

    def settled(log: object) -> None:
        log.close()  # type: ignore[attr-defined]

    first.write("stdout", b"one\ntw")
    settled(writer.open("c", 1))
    _wait(lambda: (Path(f"{database}.logs") / "run" / "a.1.log").exists())
    _wait(lambda: (Path(f"{database}.logs") / "run" / "a.1.log").stat().st_size > 0)
    assert seen() == [("a", "one")]
    first.write("stdout", b"o\n")
    second.write("stderr", b"three\n")
    first.close()
    second.close()
    writer.close()
    assert sorted(seen()) == [("a", "two"), ("b", "three")]
    assert follower.rest() == []


def _wait(condition: object) -> None:
    import time

    deadline = time.monotonic() + 10
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_damaged_log_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    database = str(tmp_path / "runs.db")
    folder = Path(f"{database}.logs") / "run"
    folder.mkdir(parents=True)
    (folder / "a.1.log").write_bytes(
        b"2026-11-15T11:40:16.123Z out fine\n\xff\x00 odd\n2026-11-15T11:40:17.123Z out cut"
    )
    (folder / "stranger.txt").write_text("not ours")
    assert [(line.stream, line.text) for line in read_logs(log_files(database, "run"))] == [
        ("out", "fine"),
        ("note", "\ufffd\x00 odd"),
        ("out", "cut"),
    ]


def test_what_was_printed_is_on_the_disk_where_somebody_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []
    real = os.fsync

    def fsync(opened: int) -> None:
        synced.append(Path(f"/proc/self/fd/{opened}").resolve().read_bytes())
        real(opened)

    monkeypatch.setattr(os, "fsync", fsync)
    writer = LogWriter(tmp_path / "logs", "w1")
    file = writer.open("t", 1)
    file.sync()
    file.write("stdout", b"one\n")
    file.sync()
    file.write("stdout", b"two\n")
    file.close()
    writer.close()
    assert [data.count(b"\n") for data in synced] == [1]


def test_without_a_thread_to_be_had_what_is_printed_is_kept_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    folder = logs_folder(place.kept_beside)
    assert folder is not None
    folder.parent.mkdir(parents=True, exist_ok=True)
    logs = LogWriter(folder, "r")
    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refuse)
        file = logs.open("a", 1)
        file.write("stdout", b"first\n")
    file.write("stdout", b"second\n")
    file.close()
    logs.close()
    assert [line.text for line in read_logs(log_files(place.kept_beside, WorkflowId("r"), ["a"]))] == [
        "first",
        "second",
    ]
