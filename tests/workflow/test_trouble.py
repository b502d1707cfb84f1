"""When the place itself misbehaves: a journal that is locked, full or lost, a database that grows, a stuck lease."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from agentos import Context, Workflow
from agentos.exceptions import LeaseLostError, StoreUnavailableError
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.store.port import StorePort
from agentos.store.sqlite.database import open_store
from agentos.workflow.drive.drive import Drive
from agentos.workflow.drive.mailbox import utc_now
from agentos.workflow.place.place import Place
from tests.models.server import ModelServer
from tests.workflow.support import (
    PATIENCE_S,
    a_place,
    adrive,
    assert_well_formed,
    drive,
    go_on,
    journal,
    of_type,
    soon,
    types,
    wrapped,
)


class ImpatientPlace(Place, frozen=True, kw_only=True):
    """A place whose stores wait for other writers for a moment only."""

    def open(self, *, create: bool = False, readonly: bool = False) -> StorePort:
        return open_store(self.database, create=create, readonly=readonly, busy_s=0.05)


class RemovedPlace(Place, frozen=True, kw_only=True):
    """A place whose database is removed in the moment in which the lease's thread wants to open it."""

    def open(self, *, create: bool = False, readonly: bool = False) -> StorePort:
        away = Path(f"{self.database}.away")
        if threading.current_thread().name.startswith("agentos-lease") and not away.exists():
            os.rename(self.database, away)
        return super().open(create=create, readonly=readonly)


def impatient(folder: Path) -> Place:
    made = a_place(folder)
    return ImpatientPlace(database=made.database, root=made.root)


class WriteLock:
    """Another connection that holds the write lock until it is told to let go."""

    def __init__(self, place: Place) -> None:
        self._connection = sqlite3.connect(place.database, isolation_level=None, check_same_thread=False)
        self._connection.execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.close()


def locking_flow(place: Place, ran: list[str], until: Any) -> Workflow:
    """Its first task makes the journal unavailable until the condition holds."""
    flow = Workflow("f")

    async def locks() -> str:
        ran.append("locks")
        lock = WriteLock(place)

        def later() -> None:
            until.wait(20)
            lock.release()

        threading.Thread(target=later, daemon=True).start()
        return "locked"

    async def after(locks: str) -> str:
        ran.append("after")
        return locks

    flow.add("locks", locks)
    flow.add("after", after)
    return flow


def test_a_journal_that_is_locked_for_a_while_recovers_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, ran, until = impatient(tmp_path), list[str](), threading.Event()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "cannot be written, trying again" in record.getMessage():
                until.set()

    handler = Watch()
    logging.getLogger("agentos").addHandler(handler)
    try:
        result = drive(place, locking_flow(place, ran, until), id="w")
    finally:
        logging.getLogger("agentos").removeHandler(handler)
    assert (result.status, ran) == ("complete", ["locks", "after"])
    assert "the journal of w cannot be written, trying again" in caplog.text
    events = journal(place, "w")
    assert_well_formed(events)
    assert len(of_type(events, ev.TaskComplete)) == 2


def test_a_journal_that_stays_locked_stops_the_run_and_says_why(tmp_path: Path) -> None:
    place, ran, until = impatient(tmp_path), list[str](), threading.Event()
    try:
        with pytest.raises(StoreUnavailableError, match="locked"):
            drive(place, locking_flow(place, ran, until), id="w", patience_s=0.2, lease_s=0.3)
    finally:
        until.set()
    assert ran == ["locks"], "nothing starts that could not be recorded"

    async def free() -> None:
        await soon(lambda: _is_free(place))

    asyncio.run(free())
    flow = Workflow("f")
    flow.add("locks", lambda: "again")
    flow.add("after", lambda locks: locks)
    assert go_on(place, "w", flow).outputs == {"locks": "again", "after": "again"}


def _is_free(place: Place) -> bool:
    try:
        WriteLock(place).release()
    except sqlite3.OperationalError:
        return False
    store = place.open(readonly=True)
    try:
        return store.find_run("w").holder is None  # it could not be let go, and has run out
    finally:
        store.close()


def test_a_database_removed_while_its_lease_is_taken_up_is_put_back(tmp_path: Path) -> None:
    place = RemovedPlace(database=str(tmp_path / "runs.db"), root=tmp_path)
    flow = Workflow("f")

    async def waits() -> None:
        await soon(lambda: (tmp_path / "runs.db.away").exists())

    async def second(waits: None) -> str:
        await soon(lambda: (tmp_path / "runs.db").exists())
        return "there"

    flow.add("waits", waits)
    flow.add("second", second, needs=["waits"])
    assert drive(place, flow, id="w").outputs["second"] == "there"
    assert_well_formed(journal(place, "w"))


def test_running_tasks_go_on_while_the_journal_cannot_be_written(tmp_path: Path) -> None:
    """Their results are written later, in order."""
    place, until = impatient(tmp_path), threading.Event()
    flow = Workflow("f")
    worked = asyncio.Event()

    async def locks() -> None:
        lock = WriteLock(place)

        def later() -> None:
            until.wait(20)
            lock.release()

        threading.Thread(target=later, daemon=True).start()

    async def works() -> str:
        await worked.wait()
        until.set()
        return "worked"

    async def helps() -> None:
        await asyncio.sleep(0.1)
        worked.set()

    flow.add("works", works)
    flow.add("helps", helps)
    flow.add("locks", locks)
    assert drive(place, flow, id="w").outputs["works"] == "worked"
    assert_well_formed(journal(place, "w"))


def test_a_write_that_fails_for_good_leaves_the_run_resumable(place: Place) -> None:
    full = [False]

    def append(real: Any, lease: Any, events: Any, *args: Any, **named: Any) -> Any:
        if full[0]:
            raise StoreUnavailableError("the database has no room left: the disk is full")
        return real(lease, events, *args, **named)

    flow = Workflow("f")
    ran: list[str] = []

    async def fills(ctx: Context) -> str:
        ran.append("fills")
        full[0] = ctx.attempt == 1
        return "filled"

    flow.add("fills", fills)
    flow.add("after", lambda fills: fills)
    with pytest.raises(StoreUnavailableError, match="disk is full"):
        drive(wrapped(place, append=append), flow, id="w", patience_s=0.1)
    full[0] = False
    assert types(journal(place, "w"))[-1] == "task_start"
    assert go_on(place, "w", flow).status == "complete"
    assert ran == ["fills", "fills"]


def test_attempts_are_stopped_when_the_journal_is_given_up(place: Place) -> None:
    full, ended = [False], list[str]()

    def append(real: Any, lease: Any, events: Any, *args: Any, **named: Any) -> Any:
        if full[0]:
            raise StoreUnavailableError("no")
        return real(lease, events, *args, **named)

    flow = Workflow("f")

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("forever")

    async def fills() -> None:
        full[0] = True

    flow.add("forever", forever)
    flow.add("fills", fills)
    with pytest.raises(StoreUnavailableError):
        drive(wrapped(place, append=append), flow, id="w", patience_s=0.1)
    assert ended == ["forever"]


def test_a_lease_that_cannot_be_let_go_does_not_hide_how_the_run_ended(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    def release_lease(real: Any, lease: Any) -> None:
        raise StoreUnavailableError("gone")

    flow = Workflow("f")
    flow.add("a", lambda: 1)
    assert drive(wrapped(place, release_lease=release_lease), flow, id="w").status == "complete"
    assert "the lease of w could not be released, it will expire: gone" in caplog.text


def test_a_keeper_that_finds_no_store_stops_the_drive(place: Place) -> None:
    """Without it nobody would notice that the lease is gone."""
    opened = [0]

    class Broken(Place, frozen=True, kw_only=True):
        def open(self, *, create: bool = False, readonly: bool = False) -> StorePort:
            opened[0] += 1
            if opened[0] >= 2:
                raise StoreUnavailableError("too many open files")
            return Place.open(self, create=create, readonly=readonly)

    flow = Workflow("f")

    async def waits() -> None:
        await asyncio.Event().wait()

    flow.add("waits", waits)
    broken = Broken(database=place.database, root=place.root)
    with pytest.raises(StoreUnavailableError, match="too many open files"):
        drive(broken, flow, id="w")


def test_a_heartbeat_that_cannot_be_written_is_tried_again(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    beats: list[bool] = []

    def renew_lease(real: Any, lease: Any) -> None:
        beats.append(len(beats) >= 2)
        if not beats[-1]:
            raise StoreUnavailableError("busy")
        real(lease)

    flow = Workflow("f")

    async def waits() -> None:
        await soon(lambda: len(beats) > 2)

    flow.add("waits", waits)
    assert drive(wrapped(place, renew_lease=renew_lease), flow, id="w", lease_s=0.2).status == "complete"
    assert caplog.text.count("the lease of w cannot be renewed: busy") == 2


def test_a_heartbeat_that_finds_the_lease_gone_stops_the_drive(place: Place) -> None:
    def renew_lease(real: Any, lease: Any) -> None:
        raise LeaseLostError(lease.workflow_id)

    flow, ended = Workflow("f"), list[str]()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("stopped")

    flow.add("waits", waits)
    with pytest.raises(LeaseLostError):
        drive(wrapped(place, renew_lease=renew_lease), flow, id="w", lease_s=0.1)
    assert ended == ["stopped"]


@pytest.mark.usefixtures("home")
def test_a_lease_that_is_lost_while_a_call_is_written_down_stops_the_drive(
    place: Place, model_server: ModelServer
) -> None:
    """The performer insists on writing down what was paid for; a drive that writes no more must not wait for it."""

    def append(real: Any, lease: Any, events: Any, *rest: Any, **more: Any) -> None:
        if any(isinstance(event, ev.TaskUsage) for event in events):
            raise LeaseLostError(lease.workflow_id)
        real(lease, events, *rest, **more)

    flow = Workflow("f", env={"OPENAI_API_KEY": "sk-of-this-test"})
    flow.add("asks", "llm", model="m1", prompt="?", base_url=model_server.base_url, key_name="OPENAI_API_KEY")

    lost = list[LeaseLostError]()

    def drives() -> None:
        with pytest.raises(LeaseLostError) as raised:
            drive(wrapped(place, append=append), flow, id="w")
        lost.append(raised.value)

    driver = threading.Thread(target=drives, daemon=True)  # one that waits for ever must not keep the tests
    driver.start()
    driver.join(PATIENCE_S)
    assert lost, "the drive waits for ever"


def test_the_event_loop_may_be_blocked_longer_than_a_heartbeat(place: Place) -> None:
    """A task that is slow without awaiting keeps the loop, not the lease."""
    beaten = threading.Event()

    def renew_lease(real: Any, lease: Any) -> None:
        real(lease)
        beaten.set()

    flow = Workflow("f")

    async def blocks() -> bool:
        return beaten.wait(20)  # on the loop itself

    flow.add("blocks", blocks)
    result = drive(wrapped(place, renew_lease=renew_lease), flow, id="w", lease_s=0.2)
    assert result.outputs == {"blocks": True}


# --- space --------------------------------------------------------------------------------------------------------


def test_a_database_that_grew_large_is_warned_about_with_what_to_do(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    flow = Workflow("f")
    flow.add("a", lambda: 1)
    drive(place, flow, id="small")
    assert "task_warning" not in types(journal(place, "small"))
    assert caplog.text == ""
    result = drive(place, flow, id="large", space_warning=1000)
    assert result.status == "complete"
    [warning] = of_type(journal(place, "large"), ev.TaskWarning)
    assert warning.task_id is None
    assert "the database holds" in warning.message
    assert "delete finished runs" in warning.message
    assert warning.message in caplog.text


# --- processes left behind ----------------------------------------------------------------------------------------


def test_a_run_of_the_same_id_in_another_worktree_is_left_alone(tmp_path: Path) -> None:
    """Resuming ends what an earlier drive of this run left behind, and only that."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    broken = [True]
    flow = Workflow("f")

    def fails() -> None:
        if broken[0]:
            raise ValueError("first")

    flow.add("fails", fails)
    drive(a_place(here), flow, id="nightly")
    broken[0] = False
    other = Workflow("g")
    other.add("sleeps", "shell", run="echo $$ > pid; exec sleep 600", effects="none", timeout_s=60)

    async def scenario() -> Any:
        drives: list[Drive] = []
        sleeping = asyncio.ensure_future(adrive(a_place(there), other, id="nightly", started=drives.append))
        await soon(lambda: (there / "pid").exists() and (there / "pid").read_text().strip())
        result = await asyncio.to_thread(go_on, a_place(here), "nightly", flow)
        assert result.status == "complete"
        pid = int((there / "pid").read_text())
        assert Path(f"/proc/{pid}").exists(), "the other worktree's command lives"
        drives[0].cancel_attempts()
        drives[0].stop("enough")
        return await sleeping

    assert asyncio.run(scenario()).status == "paused"


def test_a_stop_while_a_task_waits_for_its_next_try_ends_with_what_runs(tmp_path: Path) -> None:
    flow = Workflow("retried")
    flow.add("flaky", "shell", run="exit 1", retries={"retries": 1, "backoff_s": 0.5})
    flow.add("slow", "shell", run="until test -e go; do sleep 0.01; done")

    async def scenario() -> Any:
        drives: list[Drive] = []
        going = asyncio.ensure_future(adrive(a_place(tmp_path), flow, id="w", started=drives.append))
        await soon(lambda: drives and drives[0].facts.task(TaskId("flaky")).status == "retrying")
        drives[0].stop("enough")
        retry_at = drives[0].facts.task(TaskId("flaky")).not_before
        await soon(lambda: retry_at is not None and utc_now() > retry_at)
        (tmp_path / "go").touch()
        return await going

    result = asyncio.run(scenario())
    assert result.status == "paused"
    assert result.outputs.keys() == {"slow"}
