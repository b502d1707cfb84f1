"""A worker's side, without Dask: real children, their leases, and what is told of them."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from agentos.dag.define.task import TaskDef
from agentos.dag.plan.fingerprint import code_digest
from agentos.exceptions import AttemptError
from agentos.ids import TaskId, WorkflowId
from agentos.store.holder import boot_clock
from agentos.tasks.cluster.wire import PROTOCOL, AttemptReport, PlacedResult, PlacedWork, SecretNames, Word, encode
from agentos.tasks.cluster.wire import fill_in_secrets as fill_in
from agentos.tasks.cluster.worker import WorkerAttempts
from agentos.tasks.python.child import ChildRequest
from agentos.tasks.python.functions import FunctionReference
from agentos.values import decode_value, encode_value
from agentos.version import VERSION
from tests.cluster.dask_cluster import wait_until
from tests.marks import quick_first
from tests.unit.tasks.support import fresh_attempt_id

LONG_S = 60.0

JOBS = """
import os, sys, time
import subprocess

def double(x):
    print("doubling", x)
    return {"twice": 2 * x, "pid": os.getpid()}

def pid_and_wait(path):
    child = subprocess.Popen(["sleep", "300"])
    with open(path, "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    time.sleep(300)

def large():
    return "x" * 100_000

def leave():
    os._exit(3)
"""


class Station:
    """A worker's attempts, and what they told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[AttemptReport] = []
        self.attempts = WorkerAttempts("tcp://here:1", self._log_event)
        self.threads: list[threading.Thread] = []

    def _log_event(self, topic: str, data: Any) -> None:
        assert topic == "driver"
        self.told.append(msgspec.json.decode(data, type=AttemptReport))

    def work(self, call: str, *, effects: str = "none", timeout_s: float | None = None, **more: Any) -> PlacedWork:
        python_more = {name: more.pop(name) for name in ("code",) if name in more}
        arguments = more.pop("arguments", {})
        definition = TaskDef(id=TaskId("t"), kind="python", effects=(effects,), timeout_s=timeout_s)  # type: ignore[arg-type]
        attempt_id = fresh_attempt_id()
        given: dict[str, Any] = {
            "protocol": PROTOCOL,
            "version": VERSION,
            "handle": attempt_id,
            "driver": "driver",
            "lease_s": LONG_S,
            "asks_leave": effects != "none",
            "reusable": effects == "none",
            "workflow_id": WorkflowId("run"),
            "task_id": TaskId("t"),
            "attempt": 1,
            "attempt_id": attempt_id,
            "idempotency_key": "key",
            "definition": definition,
            "root": str(self.folder),
            "cwd": str(self.folder),
            "python": ChildRequest(
                function=FunctionReference(module="jobs_there", qualname=call),
                arguments=Raw(encode_value(arguments, around=True)),
                root=str(self.folder),
                worktree="",
                path=(),
                workflow_id=WorkflowId("run"),
                task_id=TaskId("t"),
                attempt=1,
                idempotency_key="key",
                definition=definition,
                steps=(),
                **python_more,
            ),
        }
        return PlacedWork(**{**given, **more})

    def perform(self, work: PlacedWork) -> PlacedResult:
        kept = self.attempts.perform(encode(work))
        if kept:
            assert self.told[-1].kept
            end = msgspec.json.decode(kept, type=AttemptReport).end
        else:
            end = self.told[-1].end
        assert end is not None
        return end

    def begin(self, work: PlacedWork) -> threading.Thread:
        thread = threading.Thread(target=self.attempts.perform, args=(encode(work),), daemon=True)
        thread.start()
        self.threads.append(thread)
        return thread

    def shell(self, run: str, **more: Any) -> PlacedWork:
        definition = TaskDef(id=TaskId("t"), kind="shell", run=run, effects=("none",))
        return msgspec.structs.replace(
            self.work("double", **more), definition=definition, command=run, python=None, reusable=False
        )

    def end_of(self, work: PlacedWork) -> PlacedResult | None:
        ends = [report.end for report in self.told if report.handle == work.handle and report.end is not None]
        return ends[0] if ends else None


@pytest.fixture
def station(tmp_path: Path) -> Iterator[Station]:
    (tmp_path / "jobs_there.py").write_text(JOBS)
    station = Station(tmp_path)
    yield station
    handles = [report.handle for report in station.told]
    station.attempts.end(handles)
    for thread in station.threads:
        thread.join(20)
    station.attempts.close()


def pids_in(path: Path) -> list[int]:
    until = time.monotonic() + 20
    while not path.exists() or not path.read_text().strip():
        assert time.monotonic() < until
        time.sleep(0.01)
    return list(map(int, path.read_text().split()))


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def wait_until_gone(*pids: int) -> None:
    until = time.monotonic() + 20
    while not all(map(gone, pids)):
        assert time.monotonic() < until, pids
        time.sleep(0.02)


def test_it_performs_a_function_and_tells_output_and_end(station: Station) -> None:
    result = station.perform(station.work("double", arguments={"x": 4}))
    assert decode_value(result.output)["twice"] == 8
    assert b"".join(one.data for one in station.told) == b"doubling 4\n"
    assert station.told[-1].end == result


def test_one_that_takes_its_time_is_told_to_have_begun_once(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    work = station.work("pid_and_wait", arguments={"path": str(path)})
    station.begin(work)
    pids_in(path)
    wait_until(lambda: any(one.began for one in station.told))
    station.attempts.end([work.handle])
    assert [one.worker for one in station.told if one.began] == ["tcp://here:1"]


def test_without_effects_one_process_performs_many(station: Station) -> None:
    pids = {decode_value(station.perform(station.work("double", arguments={"x": 1})).output)["pid"] for _ in range(3)}
    assert len(pids) == 1


@pytest.mark.full
def test_with_effects_each_has_a_process_of_its_own(station: Station) -> None:
    pids = set()
    for _ in range(2):
        work = station.work("double", effects="external", arguments={"x": 1})
        thread = station.begin(work)
        let_go(station, work)
        thread.join(20)
        pids.add(decode_value(station.end_of(work).output)["pid"])  # type: ignore[union-attr]
    assert len(pids) == 2


def let_go(station: Station, work: PlacedWork) -> None:
    until = time.monotonic() + 20
    while not (begun := [one.began for one in station.told if one.handle == work.handle and one.began]):
        assert time.monotonic() < until
        time.sleep(0.01)
    station.attempts.take(Word(handle=work.handle, go=begun[0]))


def test_an_effect_does_not_begin_without_leave(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    work = station.work("pid_and_wait", effects="external", arguments={"path": str(path)}, lease_s=0.6)
    station.begin(work).join(20)
    end = station.end_of(work)
    assert end is not None
    assert end.lost
    assert not end.cut_off
    assert not path.exists()


def test_leave_for_another_execution_is_none(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    work = station.work("pid_and_wait", effects="external", arguments={"path": str(path)}, lease_s=0.6)
    thread = station.begin(work)
    station.attempts.take(Word(handle=work.handle, go="another"))
    thread.join(20)
    assert not path.exists()


def test_an_attempt_that_nobody_renews_is_ended_with_all_it_started(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    work = station.work("pid_and_wait", arguments={"path": str(path)}, lease_s=1.0)
    thread = station.begin(work)
    pids = pids_in(path)
    thread.join(20)
    wait_until_gone(*pids)
    end = station.end_of(work)
    assert end is not None
    assert end.lost


@pytest.mark.full
def test_renewed_it_lives_and_a_word_that_comes_late_gives_it_no_more_time(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    work = station.work("pid_and_wait", arguments={"path": str(path)}, lease_s=1.5)
    thread = station.begin(work)
    pids = pids_in(path)
    clock, here = station.attempts.renew("driver", boot_clock(), 4.0)
    assert here == [work.handle]
    thread.join(2.0)
    assert thread.is_alive(), "it was renewed"
    station.attempts.renew("driver", clock - 100.0, 4.0)  # sent long ago
    assert station.attempts.renew("another", boot_clock(), 100.0)[1] == []
    thread.join(20)
    assert not thread.is_alive()
    wait_until_gone(*pids)


def test_ended_on_request_it_is_gone_when_that_is_said(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    work = station.work("pid_and_wait", arguments={"path": str(path)})
    station.begin(work)
    pids = pids_in(path)
    assert station.attempts.end([work.handle, "unknown"]) == [work.handle]
    assert all(map(gone, pids))
    end = station.end_of(work)
    assert end is not None
    assert end.cancelled
    assert station.attempts.end([work.handle]) == [work.handle], "also when asked again"


def test_what_was_ended_before_it_began_does_not_begin(station: Station) -> None:
    work = station.work("double", arguments={"x": 1})
    assert station.attempts.end([work.handle]) == []
    assert station.attempts.perform(encode(work)) == b""
    assert station.told == []


def test_the_same_attempt_is_not_performed_twice(station: Station) -> None:
    work = station.work("double", arguments={"x": 1})
    station.perform(work)
    told = len(station.told)
    assert station.attempts.perform(encode(work)) == b""
    assert len(station.told) == told


def test_a_function_that_runs_past_its_timeout_is_ended(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    work = station.work("pid_and_wait", arguments={"path": str(path)}, timeout_s=1.0)
    result = station.perform(work)
    assert result.error is not None
    assert (result.error.type, result.cut_off) == ("TaskTimeoutError", True)
    wait_until_gone(*pids_in(path))


def test_a_child_that_dies_is_a_failure_that_says_how(station: Station) -> None:
    result = station.perform(station.work("leave"))
    assert result.error is not None
    assert "ended with exit code 3 before it gave a result" in result.error.text


def test_a_large_result_waits_to_be_fetched(station: Station) -> None:
    assert len(decode_value(station.perform(station.work("large")).output)) == 100_000


def test_other_code_than_the_drivers_is_told_in_words(station: Station) -> None:
    result = station.perform(station.work("double", arguments={"x": 1}, code="another"))
    assert result.error is not None
    assert result.error.type == "OtherCodeError"
    assert "another function on the worker" in result.error.text
    assert not result.retryable


def digest_in(file: Path) -> str:
    """Of `double`, as a driver sees it that imports the file."""
    spec = importlib.util.spec_from_file_location("jobs_there", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return code_digest(module.double)


def test_a_warm_process_with_old_code_gives_way_to_a_fresh_one(station: Station, tmp_path: Path) -> None:
    file = tmp_path / "jobs_there.py"
    before = station.perform(station.work("double", arguments={"x": 1}, code=digest_in(file)))
    file.write_text(JOBS.replace("2 * x", "20 * x + 0"))
    after = station.perform(station.work("double", arguments={"x": 1}, code=digest_in(file)))
    assert [decode_value(one.output)["twice"] for one in (before, after)] == [2, 20]


def test_work_of_another_protocol_is_refused_in_words(station: Station) -> None:
    result = station.perform(station.work("double", protocol=PROTOCOL + 1, version="9.9"))
    assert result.error is not None
    assert "does not understand the driver's 9.9" in result.error.text


def test_another_version_is_told(station: Station) -> None:
    result = station.perform(station.work("double", arguments={"x": 1}, version="0.0.1"))
    assert result.warnings == (f"its worker runs AgentOS {VERSION}, the driver 0.0.1",)


def test_a_shell_command_is_performed_with_variables_and_logged(station: Station) -> None:
    work = msgspec.structs.replace(station.shell("echo $WHO; exit 3"), env={"WHO": "me"})
    result = station.perform(work)
    assert result.error is not None
    assert "exit code 3" in result.error.text
    assert b"".join(one.data for one in station.told) == b"me\n"


@pytest.mark.full
def test_a_shell_command_that_nobody_renews_is_ended(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    work = station.shell(f"echo $$ > {path}; sleep 300", lease_s=1.0)
    station.begin(work).join(20)
    wait_until_gone(*pids_in(path))


# --- secrets ------------------------------------------------------------------------------------------------------


def test_secrets_travel_by_name_and_are_filled_in_there(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "value-on-the-driver")
    mark = SecretNames().get("DEPLOY_TOKEN")
    assert mark is not None
    work = msgspec.structs.replace(station.shell("true"), env={"T": f"Bearer {mark}"}, command=("echo", mark))
    work = msgspec.structs.replace(work, python=station.work("double", arguments={"x": [mark, {"y": mark}]}).python)
    assert b"value-on-the-driver" not in encode(work)
    monkeypatch.setenv("DEPLOY_TOKEN", 'value "there"')
    filled = fill_in(work)
    assert filled.env == {"T": 'Bearer value "there"'}
    assert filled.command == ("echo", 'value "there"')
    assert filled.python is not None
    assert decode_value(filled.python.arguments) == {"x": ['value "there"', {"y": 'value "there"'}]}
    assert SecretNames().get("NOT_SET_AT_ALL") is None
    monkeypatch.delenv("DEPLOY_TOKEN")
    with pytest.raises(AttemptError, match="DEPLOY_TOKEN is not set on the worker"):
        fill_in(work)


def test_what_a_secret_is_there_is_masked_there(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "known-there-alone")
    work = msgspec.structs.replace(
        station.shell("echo $T"), env={"T": SecretNames().get("DEPLOY_TOKEN") or ""}, secret_names=("DEPLOY_TOKEN",)
    )
    station.perform(work)
    assert b"known-there-alone" not in b"".join(map(encode, station.told))


# --- when the worker goes -----------------------------------------------------------------------------------------

WORKER = """
import sys, threading
from pathlib import Path
from agentos.tasks.cluster.worker import WorkerAttempts
attempts = WorkerAttempts("tcp://here:1", lambda *_: None)
attempts.perform(Path(sys.argv[1]).read_bytes())
"""


@pytest.mark.parametrize("how", quick_first([signal.SIGKILL, signal.SIGSTOP]))
def test_a_child_ends_itself_when_its_worker_is_gone_or_stopped(
    station: Station, tmp_path: Path, how: signal.Signals
) -> None:
    path = tmp_path / "pids"
    work = station.work("pid_and_wait", arguments={"path": str(path)}, lease_s=LONG_S if how == signal.SIGKILL else 2.0)
    (tmp_path / "work").write_bytes(encode(work))
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path / "work")], env={**os.environ})
    try:
        pids = pids_in(path)
        worker.send_signal(how)
        wait_until_gone(*pids)
    finally:
        worker.kill()
        worker.wait()
