"""Which children a driver takes for orphans, whose status it takes; and who is above a process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentos.tasks.process import ancestors
from agentos.tasks.process.ancestors import _Adoption, start_own
from agentos.tasks.process.orphans import ATTEMPT_VARIABLE
from tests.crash.harness import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere orphans are not adopted")


@pytest.fixture
def marked_env(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.delenv(ATTEMPT_VARIABLE, raising=False)
    return {**os.environ, ATTEMPT_VARIABLE: "run/task/1"}


def orphans(*children: int) -> set[int]:
    """Those of these children that would be reaped once they end, as soon as there are any."""
    adoption = _Adoption()

    def looked() -> set[int]:
        adoption.reap()  # at first nothing may be seen: while it is being executed, a program has no environment
        return {pid for pid, _ in adoption._marked} & {*children}

    return wait_for(looked, "an orphan")


def test_a_child_that_somebody_waits_for_is_no_orphan(marked_env: dict[str, str]) -> None:
    """The command that prints a model's key carries the attempt's mark, as an orphan of the attempt does."""

    async def look() -> None:
        own = await start_own("sleep", "30", env=marked_env)
        with subprocess.Popen(["sleep", "30"], env=marked_env) as orphan:
            try:
                assert orphans(own.pid, orphan.pid) == {orphan.pid}
            finally:
                orphan.kill()
                own.kill()
        await own.wait()

    asyncio.run(look())


def test_in_a_run_below_another_one_every_child_carries_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ATTEMPT_VARIABLE, "outer/task/1")
    inner = {**os.environ, ATTEMPT_VARIABLE: "inner/task/1"}
    with subprocess.Popen(["sleep", "30"]) as hook, subprocess.Popen(["sleep", "30"], env=inner) as orphan:
        try:
            assert orphans(hook.pid, orphan.pid) == {orphan.pid}
        finally:
            orphan.kill()
            hook.kill()


def test_ancestors_end_where_the_kernel_hides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `hidepid` nothing is told of other users' processes: the shell's parent (sshd, login) is one of them."""
    hidden, read, kill = os.getppid(), Path.read_bytes, os.kill

    def read_bytes(path: Path) -> bytes:
        if path == Path(f"/proc/{hidden}/stat"):
            raise FileNotFoundError
        return read(path)

    def refuse(pid: int, signal: int) -> None:
        if pid == hidden:
            raise PermissionError
        kill(pid, signal)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert ancestors.ancestors() == []  # it lives, is ours, and cannot be read: who is above is not known
    monkeypatch.setattr(os, "kill", refuse)
    assert [one.pid for one in ancestors.ancestors()] == [os.getpid()]
