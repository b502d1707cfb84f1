"""One driver for a run: real processes that race for it, stop, wake up too late, and die."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from agentos.client import Client
from agentos.machine.events import LeaseTaken, WorkflowStart
from agentos.store.holder import process_started
from tests.contract.backends import Backend
from tests.crash import checks
from tests.crash.harness import REFUSED, Theatre, wait_for
from tests.marks import quick_first
from tests.postgres.server import fresh_url

pytestmark = pytest.mark.timeout(300)  # a busy machine is no failure

HELD = """
import os
from pathlib import Path
from tests.crash.children.witness import main, saw, wait_until
from agentos import Context, Workflow

if "CRASH_SLOW_IMPORT" in os.environ:
    Path("../importing").touch()
    wait_until(lambda: Path("../import").exists(), "leave to be imported")

flow = Workflow("held")

@flow.task
def first(ctx: Context) -> int:
    saw(ctx)
    return 1

@flow.task(SETTINGS)
def held(first: int, ctx: Context) -> int:
    saw(ctx)
    wait_until(lambda: Path("../go").exists(), "leave to go on")
    return first + 1

@flow.task
def last(held: int, ctx: Context) -> int:
    saw(ctx)
    return held + 1

if __name__ == "__main__":
    main(flow)
"""
HELD_COMMAND = """
from tests.crash.children.witness import main, saw
from agentos import Context, Workflow

flow = Workflow("held")
flow.add("held", "shell", idempotent=True, run='''
printf '{"attempt_id": "%s", "pid": %s}\\\\n' "$AGENTOS_ATTEMPT_ID" $$ >> "$CRASH_TRACE"
until [ -e ../go ]; do sleep 0.02; done
''')

@flow.task(needs=["held"])
def last(ctx: Context) -> int:
    saw(ctx)
    return 3

if __name__ == "__main__":
    main(flow)
"""
SHORT = '{"lease_s": 0.6}'
LONG = '{"lease_s": 600}'


class Stage(Theatre):
    """A run whose task `held` waits for leave to go on."""

    def start_holder(self, options: str, *more: str) -> subprocess.Popen[bytes]:
        """A process that drives the run and is in the middle of `held`."""
        holder = self.start("-m", "tests.crash.children.driven", "run", options, *more)
        self.wait_for_attempt(1)
        return holder

    def wait_for_attempt(self, number: int) -> None:
        wait_for(lambda: [1 for line in self.trace() if (line["task"], line["attempt"]) == ("held", number)], "held")

    def go(self) -> None:
        (self.folder / "go").touch()

    def stop_past_the_lease(self, holder: subprocess.Popen[bytes]) -> None:
        """SIGSTOP, and wait until its lease has run out."""
        while True:
            holder.send_signal(signal.SIGSTOP)
            if self._is_free():
                break
            # Stopped in the middle of a transaction it would keep the database locked for everybody.
            holder.send_signal(signal.SIGCONT)
        wait_for(lambda: self.status() == "interrupted", "the lease to run out")

    def _is_free(self) -> bool:
        if self.url:
            return True  # there is no transaction to be stopped in: every write is one statement
        with closing(sqlite3.connect(self.database, timeout=0.2, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return False
        return True

    def status(self) -> str:
        record = self.record()
        return record.status if record is not None else ""

    def rows(self) -> list[tuple[object, ...]]:
        """Journal and run, as they stand in the database."""
        columns = "token, holder, sequence, digest, status, updated_at"
        if self.url:
            backend = Backend("postgres", self.url)
            return [*backend.query(f"SELECT {columns} FROM run"), *backend.query("SELECT * FROM event ORDER BY seq")]
        with closing(sqlite3.connect(self.database)) as connection:
            run = connection.execute(f"SELECT {columns} FROM run").fetchall()
            return [*run, *connection.execute("SELECT * FROM event ORDER BY seq")]


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Stage:
    return Stage.of_text(tmp_path, getattr(request, "param", HELD.replace("(SETTINGS)", "")), request.node.name)


@pytest.fixture(params=quick_first(["sqlite", "postgres"]))
def any_stage(stage: Stage, request: pytest.FixtureRequest) -> Stage:
    """The same on every store."""
    if request.param == "postgres":
        stage.use_server(fresh_url())
    return stage


def test_of_several_processes_that_resume_a_run_exactly_one_drives_it(any_stage: Stage) -> None:
    stage = any_stage
    assert stage.run(at="attempt.before:2").killed
    racing = [stage.start("-m", "tests.crash.children.witness", "resume") for _ in range(4)]
    wait_for(lambda: sum(process.poll() is not None for process in racing) == 3, "all but one to be refused")
    [winner] = [process for process in racing if process.returncode is None]
    for process in racing:
        if process is not winner:
            loser = stage.end(process)
            assert loser.code == REFUSED
            assert loser.said["error"] == "LeaseHeldError"
            assert f"being driven by process {winner.pid} on " in loser.said["text"]
    assert stage.status() == "running"
    stage.go()
    assert stage.end(winner).said == {"status": "complete"}
    checks.check_journal(stage.journal(), killed=[stage.ended[0].pid])
    checks.check_trace(stage.journal(), stage.trace())
    assert sum(isinstance(event, WorkflowStart) for event in stage.journal()) == 2


@pytest.mark.parametrize("wakes", quick_first(["while the other drives", "after the other has ended"]))
def test_a_process_that_slept_while_another_took_over_writes_nothing_and_stops(any_stage: Stage, wakes: str) -> None:
    stage = any_stage
    stale = stage.start_holder(SHORT)
    stage.stop_past_the_lease(stale)
    taker = stage.start("-m", "tests.crash.children.driven", "resume", LONG)
    stage.wait_for_attempt(2)
    if wakes == "while the other drives":
        before = stage.rows()
        stale.send_signal(signal.SIGCONT)
        lost = stage.end(stale)
        assert stage.rows() == before
        stage.go()
        assert stage.end(taker).said == {"status": "complete"}
    else:
        stage.go()
        assert stage.end(taker).said == {"status": "complete"}
        before = stage.rows()
        stale.send_signal(signal.SIGCONT)
        lost = stage.end(stale)
        assert stage.rows() == before
    assert (lost.code, lost.said["error"]) == (REFUSED, "LeaseLostError")
    assert [line["task"] for line in stage.trace() if line["pid"] == stale.pid] == ["first", "held"]
    checks.check_journal(stage.journal(), killed=[stale.pid])


def test_without_the_token_the_same_process_would_have_spoilt_the_journal(any_stage: Stage) -> None:
    """The control: shows that the test above can fail."""
    stage = any_stage
    stale = stage.start_holder(SHORT, "unfenced")
    stage.stop_past_the_lease(stale)
    taker = stage.start("-m", "tests.crash.children.driven", "resume", LONG)
    stage.wait_for_attempt(2)
    stage.go()
    assert stage.end(taker).said == {"status": "complete"}
    before = stage.rows()
    stale.send_signal(signal.SIGCONT)
    assert stage.end(stale).said == {"status": "complete"}
    assert stage.rows() != before
    with pytest.raises(AssertionError, match=r"goes on after|terminal events|recorded other than once"):
        checks.check_journal(stage.journal(), killed=[stale.pid])


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param(HELD.replace("SETTINGS", 'effects="external", idempotent="keyed"'), id="external"),
        pytest.param(HELD.replace("SETTINGS", 'effects="files", idempotent=True'), id="files"),
        pytest.param(HELD_COMMAND, id="command"),
    ],
    indirect=True,
)
def test_taking_over_a_run_with_effects_first_ends_the_stale_holder_and_its_children(stage: Stage) -> None:
    stale = stage.start_holder(SHORT)
    at_work = {pid: process_started(pid) for pid in (line["pid"] for line in stage.trace())} | {
        stale.pid: process_started(stale.pid)
    }
    stage.stop_past_the_lease(stale)
    taker = stage.start("-m", "tests.crash.children.driven", "resume", LONG)
    stage.wait_for_attempt(2)
    assert [pid for pid, started in at_work.items() if process_started(pid) == started] == []
    assert stage.end(stale).code == -signal.SIGKILL
    stage.go()
    assert stage.end(taker).said == {"status": "complete"}
    checks.check_journal(stage.journal(), killed=[stale.pid])


def test_a_killed_holder_is_taken_over_at_once(any_stage: Stage) -> None:
    stage = any_stage
    holder = stage.start_holder(LONG)
    holder.kill()
    stage.end(holder)
    assert stage.status() == "interrupted"
    stage.go()
    assert stage.resume().said == {"status": "complete"}
    checks.check_journal(stage.journal(), killed=[holder.pid])
    taken = [event for event in stage.journal() if isinstance(event, LeaseTaken)]
    assert taken[1].taken_from == f"process {holder.pid} on {os.uname().nodename}"


def test_a_closed_lid_is_no_crash(stage: Stage) -> None:
    holder = stage.start_holder(SHORT)
    stage.stop_past_the_lease(holder)
    holder.send_signal(signal.SIGCONT)
    wait_for(lambda: stage.status() == "running", "the lease to be renewed")
    stage.go()
    assert stage.end(holder).said == {"status": "complete"}
    assert [event.token for event in stage.journal() if isinstance(event, LeaseTaken)] == [1]
    checks.check_journal(stage.journal(), killed=[])


def test_looking_at_a_run_takes_nothing_from_the_process_that_drives_it(stage: Stage) -> None:
    """Whoever closes a database last deletes its log; a driver without its locks would go on in a deleted file."""
    holder = stage.start_holder(LONG)
    for _ in range(3):
        stage.rows()
        Client(stage.repo).list_runs()
        stage.play("-m", "tests.crash.children.witness", "list")
    log = stage.database.with_name(f"{stage.database.name}-wal")
    assert log.exists()
    gone = [link for link in open_files(holder.pid) if link.endswith("(deleted)")]
    assert not [link for link in gone if not link.startswith("/memfd:agentos-driver-")]
    stage.go()
    assert stage.end(holder).said == {"status": "complete"}
    checks.check_journal(stage.journal(), killed=[])
    assert stage.status() == "complete"


def open_files(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    return [os.readlink(link) for link in folder.iterdir()] if folder.exists() else []


@pytest.mark.parametrize("ends", quick_first(["complete", "aborted"]))
def test_a_resume_that_was_overtaken_by_the_end_of_the_run_does_not_go_on(stage: Stage, ends: str) -> None:
    """What it saw before it had the lease is stale: the run was driven, and ended, while it read the workflow."""
    holder = stage.start_holder(LONG)
    overtaken = stage.start("-m", "tests.crash.children.witness", "resume", env={"CRASH_SLOW_IMPORT": "1"})
    wait_for((stage.folder / "importing").exists, "the other to look at the run")
    if ends == "aborted":
        Client(stage.repo).send("run-1", {"type": "abort"})
    else:
        stage.go()
    assert stage.end(holder).said == {"status": ends}
    before = stage.journal()
    (stage.folder / "import").touch()
    late = stage.end(overtaken)
    if ends == "aborted":
        assert (late.said["error"], late.code) == ("RunRefusedError", REFUSED)
        assert "fork" in late.said["text"].lower()
    else:
        assert late.said == {"status": "complete"}
    assert len(stage.journal()) == len(before)
    assert stage.status() == ends


def test_three_attempts_in_a_row_cut_short_open_a_gate(stage: Stage) -> None:
    assert stage.run(at="attempt.inside:1").killed
    assert stage.resume(at="attempt.inside:1").killed
    assert stage.resume(at="attempt.inside:1").killed
    stage.go()
    assert stage.resume().said == {"status": "waiting"}
    assert sum(line["task"] == "first" for line in stage.trace()) == 3
    assert list(stage.facts().open_gates) == ["ask:first"]
    Client(stage.repo).approve("run-1", choice="run-again")
    assert stage.resume().said == {"status": "complete"}
    assert sum(line["task"] == "first" for line in stage.trace()) == 4
