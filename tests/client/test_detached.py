"""Runs whose driver outlives whoever started it, and is no descendant of it."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos import Workflow, client
from agentos.client.detached import check_detached
from agentos.exceptions import AgentosError, FilesChangedError, LeaseHeldError, RunRefusedError, WorkflowDefinitionError
from agentos.tasks.process.ancestors import ancestors, carried_attempt
from tests.workflow.support import environment, soon


def parents(pid: int) -> Iterator[int]:
    while pid:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        pid = int(fields[1])
        yield pid


def ended(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}") or b") Z" in Path(f"/proc/{pid}/stat").read_bytes()


def test_the_driver_is_no_descendant_of_the_caller_and_carries_no_mark(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTOS_ATTEMPT_ID", "other/task/1")
    monkeypatch.setenv("AGENTOS_TASK_ID", "task")
    begun = client.start_detached("slow", workflow_id="slow-1")
    assert begun.pid is not None
    assert client.view("slow-1").driver is not None, "the lease is held on return"
    family = {one.pid for one in ancestors()}
    above = list(parents(begun.pid))
    assert os.getpid() not in above
    assert above[0] in (1, *(family - {os.getpid()}))
    assert carried_attempt(begun.pid) is None
    assert b"AGENTOS_TASK_ID" not in Path(f"/proc/{begun.pid}/environ").read_bytes()
    assert os.getsid(begun.pid) == begun.pid
    assert stat.S_IMODE(begun.log.stat().st_mode) == 0o600
    (repo / "go").touch()
    asyncio.run(soon(lambda: client.view("slow-1").status == "complete"))
    asyncio.run(soon(lambda: ended(begun.pid or 0)))


def test_a_caller_that_takes_orphans_does_not_take_the_driver(repo: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADOPTING], cwd=repo, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    pid, caller, parent, still = done.stdout.split()
    assert parent != caller
    assert still == "1", "afterwards it takes orphans as before"
    assert not ended(int(pid)), "it outlives its caller"
    assert client.view("slow-1").status == "running"
    (repo / "go").touch()
    asyncio.run(soon(lambda: client.view("slow-1").status == "complete"))


ADOPTING = """
import ctypes, os
from agentos import client
system = ctypes.CDLL(None)
system.prctl(36, 1, 0, 0, 0)
begun = client.start_detached("slow", workflow_id="slow-1")
is_set = ctypes.c_int()
system.prctl(37, ctypes.byref(is_set), 0, 0, 0)
parent = open(f"/proc/{begun.pid}/stat").read().rpartition(")")[2].split()[1]
print(begun.pid, os.getpid(), parent, is_set.value)
"""


def test_what_keeps_the_driver_from_driving_is_raised_here(repo: Path) -> None:
    (repo / "workflows" / "bad.yaml").write_text("tasks: {a: {needs: [b], run: 'true'}}\n")
    with pytest.raises(WorkflowDefinitionError, match="unknown need"):
        client.start_detached("bad", workflow_id="bad-1")
    assert not (repo / ".agentos" / "logs" / "bad-1").exists(), "nothing is left of what never began"
    begun = client.start_detached("slow", workflow_id="slow-1")
    with pytest.raises(LeaseHeldError) as held:
        client.resume_detached("slow-1")
    assert str(begun.pid) in held.value.message
    assert begun.log.exists(), "what the first one prints is kept, whoever comes second"
    flow = Workflow("here")
    flow.source = None
    with pytest.raises(RunRefusedError, match="not defined in a file"):
        client.start_detached(flow)
    assert begun.pid is not None
    os.kill(begun.pid, signal.SIGTERM)
    (repo / "go").touch()
    asyncio.run(soon(lambda: client.view("slow-1").driver is None))
    assert client.view("slow-1").status == "complete"
    again = client.resume_detached("slow-1")
    assert again.pid is None, "nothing was left to do"


def test_a_run_is_resumed_where_it_belongs_after_its_driver_was_killed(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = client.start_detached("slow", workflow_id="slow-1")
    asyncio.run(soon(lambda: (repo / "begun").exists()))
    assert begun.pid is not None
    os.kill(begun.pid, signal.SIGKILL)
    asyncio.run(soon(lambda: client.view("slow-1").status == "interrupted"))
    (repo / "go").touch()
    monkeypatch.chdir(tmp_path)
    resumed = client.resume_detached(client.find_run("slow-1"))
    assert resumed.log == begun.log
    asyncio.run(soon(lambda: client.view("slow-1").status == "complete"))


def test_parameters_labels_and_a_workflow_of_a_module_arrive(repo: Path) -> None:
    (repo / "module.py").write_text(
        "from datetime import date\n"
        "from agentos import Workflow\n"
        "flow = Workflow('dated')\n"
        "@flow.task\n"
        "def year(day: date) -> int:\n"
        "    print('seen by the driver')\n"
        "    return day.year\n"
    )
    from datetime import date

    flow = client.load("module.py")
    begun = client.start_detached(flow, {"day": date(2026, 11, 16)}, labels=["nightly"])
    asyncio.run(soon(lambda: client.view(begun.workflow_id).status == "complete"))
    assert client.Client().show(begun.workflow_id).outputs == {"year": 2026}
    assert client.view(begun.workflow_id).labels == ["nightly"]
    assert "seen by the driver" in begun.log.read_text()


def test_files_that_somebody_changed_are_the_callers_to_choose(repo: Path) -> None:
    (repo / "cut.yaml").write_text(
        "name: cut\ntasks:\n  cut: {run: 'echo half > half.txt; touch begun; until [ -e go ]; do sleep 0.05; done'}\n"
    )
    begun = client.start_detached("cut.yaml", workflow_id="cut-1")
    asyncio.run(soon(lambda: (repo / "begun").exists()))
    assert begun.pid is not None
    os.kill(begun.pid, signal.SIGKILL)
    asyncio.run(soon(lambda: client.view("cut-1").status == "interrupted"))
    (repo / "half.txt").write_text("mine\n")
    os.utime(repo / "half.txt", (4_000_000_000, 4_000_000_000))
    with pytest.raises(FilesChangedError) as changed:
        client.resume_detached("cut-1")
    assert "half.txt" in str(vars(changed.value))
    (repo / "go").touch()
    client.resume_detached("cut-1", files="restore")
    asyncio.run(soon(lambda: client.view("cut-1").status == "complete"))


def test_a_file_is_checked_as_it_is_now_and_imported_by_another_process(repo: Path) -> None:
    module = repo / "workflows" / "checked.py"
    text = "from agentos import Workflow\nprint('imported')\nflow = Workflow('checked')\n"
    module.write_text(f"{text}flow.add('a', lambda: 1)\n")
    assert check_detached("checked").layers == [["a"]]
    module.write_text(f"{text}flow.add('a', lambda: 1, needs=['b'])\n")
    [problem] = check_detached("checked").problems
    assert problem.problem == "unknown need"
    assert not [name for name in sys.modules if "checked" in name]


def test_a_file_that_serves_when_it_is_imported_is_not_looked_at_for_ever_and_leaves_no_process(repo: Path) -> None:
    (repo / "serves.py").write_text(
        "import os, signal\nopen('pid.part', 'w').write(str(os.getpid()))\nos.rename('pid.part', 'pid')\n"
        "while True:\n    signal.pause()\n"
    )
    with pytest.raises(AgentosError, match=r"took longer than 2 s\nTry: agentos check serves.py"):
        check_detached("serves.py", look_s=2)
    pid = int((repo / "pid").read_text())
    asyncio.run(soon(lambda: ended(pid)))


def test_a_run_that_has_begun_is_left_as_it_stands_where_it_is_not_to_go_on(repo: Path) -> None:
    (repo / "fails.yaml").write_text("name: fails\ntasks:\n  fail: {run: 'echo >> tried; exit 1', effects: none}\n")
    client.start_detached("fails.yaml", workflow_id="fails-1")
    asyncio.run(soon(lambda: client.view("fails-1").status == "failed"))
    assert client.start_detached("fails.yaml", workflow_id="fails-1", goes_on=False).pid is None
    assert (repo / "tried").read_text() == "\n"
    with pytest.raises(RunRefusedError, match="with another definition"):
        client.start_detached("slow", workflow_id="fails-1", goes_on=False)
