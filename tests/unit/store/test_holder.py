"""Whether a holder lives is told from its start time, boot and namespace, never from the pid alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from agentos.exceptions import LeaseHeldError, WorkflowConfigurationError
from agentos.ids import WorkflowId
from agentos.store import holder as holders
from agentos.store.holder import current_holder, is_alive, process_started
from agentos.store.port import Holder
from agentos.store.sqlite.database import open_store
from agentos.store.sqlite.leases import Clock
from tests.contract.journals import RUN, create


def changed(**fields: object) -> Holder:
    return msgspec.structs.replace(current_holder(), **fields)


def test_this_process_is_alive() -> None:
    assert is_alive(current_holder()) is True
    assert str(current_holder()) == f"process {os.getpid()} on {current_holder().host}"


def test_a_reused_pid_is_another_process() -> None:
    assert is_alive(changed(started=current_holder().started - 1)) is False


def test_a_pid_that_nobody_has_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert is_alive(changed(pid=child.pid)) is False
    assert process_started(child.pid) is None


def test_after_a_reboot_everybody_is_dead() -> None:
    assert is_alive(changed(boot="another")) is False
    assert is_alive(changed(boot="another", host="elsewhere")) is None


def test_in_another_container_it_cannot_be_told() -> None:
    assert is_alive(changed(pidns="pid:[1]")) is None


def test_a_process_of_somebody_else_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert is_alive(current_holder()) is None


def test_stopped_is_alive_and_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        them = changed(pid=child.pid, started=process_started(child.pid))
        child.send_signal(signal.SIGSTOP)
        assert is_alive(them) is True
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_alive(them) is False
    finally:
        child.kill()
        child.wait()


def test_psutil_tells_the_same_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil  # before the platform is another: it looks once, when it is imported

    assert psutil.pid_exists(os.getpid())
    monkeypatch.setattr(sys, "platform", "darwin")
    assert is_alive(current_holder()) is True
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert process_started(child.pid) is None


def test_a_machine_without_proc_still_has_an_identity(
    monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    monkeypatch.setattr(os, "readlink", lambda path: (_ for _ in ()).throw(OSError()))
    assert holders.pid_namespace() == ""


class Hands:
    """A clock whose hands the test moves."""

    def __init__(self) -> None:
        self.since_boot, self.wall, self.boot, self.alive = 1000.0, 2_000_000_000.0, "boot-1", True

    def clock(self) -> Clock:
        return Clock(lambda: self.boot, lambda: self.since_boot, lambda: self.wall, lambda _: self.alive)


def test_leases_follow_the_boot_clock_not_the_date(tmp_path: os.PathLike[str]) -> None:
    hands = Hands()
    store = open_store(f"{tmp_path}/x.db", clock=hands.clock())
    create(store, lease_s=15.0)
    hands.wall += 10_000
    hands.since_boot += 14.9
    with pytest.raises(LeaseHeldError):
        store.take_lease(RUN, current_holder(), 15.0)
    hands.since_boot += 0.2
    assert store.take_lease(RUN, current_holder(), 15.0).taken_alive is True
    store.close()


def test_a_lease_from_elsewhere_ends_by_the_date_with_a_margin(tmp_path: os.PathLike[str]) -> None:
    hands = Hands()
    store = open_store(f"{tmp_path}/x.db", clock=hands.clock())
    create(store, lease_s=15.0)
    hands.boot, hands.since_boot, hands.alive = "boot-2", 0.0, None  # type: ignore[assignment]
    for later in (16, 43):  # their wall clock may be a minute behind ours
        hands.wall += later
        with pytest.raises(LeaseHeldError):
            store.take_lease(WorkflowId(RUN), current_holder(), 15.0)
    hands.wall += 17
    assert store.take_lease(RUN, current_holder(), 15.0).taken_alive is False
    store.close()


def test_a_system_that_shows_no_processes_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "_BOOT_ID", Path("/nowhere/boot_id"))
    with pytest.raises(WorkflowConfigurationError, match="/proc is missing"):
        holders.boot_id.__wrapped__()
