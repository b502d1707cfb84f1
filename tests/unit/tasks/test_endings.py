"""Children get leave before they run, and are really gone after a timeout or a cancellation."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from agentos.exceptions import LeaseLostError
from agentos.machine.inputs import AttemptResult
from agentos.store.holder import process_started
from agentos.tasks.attempt import ChildProcess
from agentos.tasks.process import supervision
from agentos.tasks.process.launch import Launch
from agentos.tasks.process.supervision import Spawner, _death_signal
from agentos.tasks.runner import performers
from tests.unit.tasks.support import (
    RecordingHost,
    cancel_when,
    is_alive,
    output_of,
    perform,
    pid_in,
    shell_spec,
    soon,
    wait_for,
)

# A family: a child in the group, one that ignores SIGTERM, and one that left the group and the session.
FAMILY = textwrap.dedent("""
    sleep 600 & echo $! > child
    bash -c 'trap "" TERM; echo $$ > stubborn; while :; do sleep 600; done' &
    setsid sleep 600 & echo $! > escaped
    wait
""")


def family_of(folder: Path) -> list[int]:
    return [pid_in(folder / name) for name in ("child", "stubborn", "escaped")]


def family_is_there(folder: Path) -> bool:
    names = ("child", "stubborn", "escaped")
    return all((folder / name).exists() and (folder / name).read_text().endswith("\n") for name in names)


# --- leave to run -------------------------------------------------------------------------------------------------


def test_the_command_runs_only_after_the_host_has_written_the_child_down(tmp_path: Path) -> None:
    ran_before: list[bool] = []
    seen: list[ChildProcess] = []

    async def write_down(child: ChildProcess) -> None:
        seen.append(child)
        assert child.started == process_started(child.pid)
        assert (os.getpgid(child.pid), os.getsid(child.pid)) == (child.pgid, child.pid)
        await asyncio.sleep(0.1)  # time in which a command that did not wait would have run
        ran_before.append((tmp_path / "ran").exists())

    outcome = perform(shell_spec("echo $$ > ran", root=tmp_path), RecordingHost(write_down))

    assert outcome.error is None
    assert ran_before == [False]
    assert pid_in(tmp_path / "ran") == seen[0].pid, "the shell replaces the one that waited"


def test_a_host_that_cannot_write_it_down_means_that_the_command_never_runs(tmp_path: Path) -> None:
    async def refuse(child: ChildProcess) -> None:
        raise LeaseLostError("run-1")

    host = RecordingHost(refuse)
    with pytest.raises(LeaseLostError):
        perform(shell_spec("touch ran", root=tmp_path), host)

    assert not is_alive(host.children[0].pid)
    assert not (tmp_path / "ran").exists()


def test_cancelling_before_leave_is_given_means_that_the_command_never_runs(tmp_path: Path) -> None:
    async def never(child: ChildProcess) -> None:
        await asyncio.sleep(600)

    host = RecordingHost(never)
    outcome = asyncio.run(cancel_when(shell_spec("touch ran", root=tmp_path), host, lambda: bool(host.children)))

    assert outcome.cancelled
    assert not is_alive(host.children[0].pid)
    assert not (tmp_path / "ran").exists()


def test_cancelling_while_the_child_is_being_started_leaves_nobody_behind(tmp_path: Path) -> None:
    host = RecordingHost()
    before = set(psutil.Process().children())  # a server that other tests share
    outcome = asyncio.run(cancel_when(shell_spec("touch ran", root=tmp_path), host, lambda: True))

    assert outcome.cancelled
    assert host.children == []
    assert not (tmp_path / "ran").exists()
    assert not [child for child in psutil.Process().children() if child not in before and is_alive(child.pid)]


def driver(tmp_path: Path, *, on_child: str, command: str, crash_at: str = "") -> subprocess.Popen[bytes]:
    """Another process that drives one attempt; `on_child` is what its host does with the waiting child."""
    script = tmp_path / "driver.py"
    script.write_text(
        textwrap.dedent(f"""
        import asyncio, os, signal, sys
        from pathlib import Path
        from tests.unit.tasks.support import RecordingHost, shell_spec
        from agentos.tasks.runner import performers

        root = Path({str(tmp_path)!r})

        async def on_child(child):
            (root / "waiting").write_text(f"{{child.pid}}\\n")
            {on_child}

        spec = shell_spec({command!r}, root=root, attempt_id={str(tmp_path)!r})
        asyncio.run(performers()["shell"](spec, RecordingHost(on_child)))
        """)
    )
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    env = {**os.environ, "PYTHONPATH": path, "AGENTOS_CRASH_AT": crash_at}
    return subprocess.Popen([sys.executable, script], env=env)


@pytest.mark.parametrize("how", ["killed by somebody", "at the crash point"])
def test_a_driver_killed_between_fork_and_leave_means_that_the_command_never_ran(tmp_path: Path, how: str) -> None:
    if how == "at the crash point":
        running = driver(tmp_path, on_child="pass", command="touch ran", crash_at="process.before")
    else:
        running = driver(tmp_path, on_child="os.kill(os.getpid(), signal.SIGKILL)", command="touch ran")

    assert running.wait(30) == -signal.SIGKILL
    if how == "killed by somebody":
        pid = pid_in(tmp_path / "waiting")
        wait_for(lambda: not is_alive(pid))
    wait_for(lambda: not carriers_of(str(tmp_path)))
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(not _death_signal(), reason="no setpriv that knows --pdeathsig on this machine")
def test_the_kernel_ends_the_command_when_its_driver_is_killed(tmp_path: Path) -> None:
    running = driver(tmp_path, on_child="pass", command="echo $$ > pid; exec sleep 600")
    pid = pid_in(tmp_path / "pid")
    running.kill()
    running.wait()

    wait_for(lambda: not is_alive(pid))


@pytest.mark.skipif(not _death_signal(), reason="no setpriv that knows --pdeathsig on this machine")
def test_the_death_signal_waits_for_the_process_not_for_the_loop_or_thread_that_asked() -> None:
    # Had the signal been bound to one of the pool's threads, or to a loop's own, it would come when that thread ends.
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(perform, shell_spec("sleep 0.2; echo alive")).result()

    assert output_of(outcome)["stdout"] == "alive"


def carriers_of(attempt_id: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("AGENTOS_ATTEMPT_ID") == attempt_id and is_alive(process.pid):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


# --- timeouts and cancellation ------------------------------------------------------------------------------------


def test_a_timeout_ends_the_whole_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "GRACE_S", 0.3)
    spec = shell_spec(f"echo so far; {FAMILY}", root=tmp_path, timeout_s=2.5)
    outcome = perform(spec)

    assert outcome.error is not None
    assert outcome.error.type == "TaskTimeoutError"
    assert "timeout of 2.5 s" in outcome.error.text
    assert "so far" in outcome.error.text
    assert outcome.retryable
    assert not [pid for pid in family_of(tmp_path) if is_alive(pid)]
    assert carriers_of(spec.attempt_id) == []


def test_a_cancellation_ends_the_whole_family_before_it_comes_back(tmp_path: Path) -> None:
    host = RecordingHost()
    outcome = asyncio.run(cancel_when(shell_spec(FAMILY, root=tmp_path), host, lambda: family_is_there(tmp_path)))

    assert outcome.cancelled
    assert not [pid for pid in (host.children[0].pid, *family_of(tmp_path)) if is_alive(pid)]


def test_a_command_may_clean_up_within_its_grace(tmp_path: Path) -> None:
    script = 'trap "sleep 0.2; echo cleaned > cleaned; exit 0" TERM; echo $$ > ready; while :; do sleep 0.01; done'
    host = RecordingHost()
    spec = shell_spec(script, root=tmp_path)
    outcome = asyncio.run(cancel_when(spec, host, (tmp_path / "ready").exists))

    assert outcome.cancelled
    assert (tmp_path / "cleaned").exists()


def test_grandchildren_may_clean_up_too_when_their_parent_is_gone_first(tmp_path: Path) -> None:
    inner = "trap 'sleep 0.3; echo cleaned > cleaned; exit 0' TERM; echo $$ > ready; while :; do sleep 0.01; done"
    spec = shell_spec('bash -c "$INNER" & wait', root=tmp_path, env={"INNER": inner})
    outcome = asyncio.run(cancel_when(spec, RecordingHost(), (tmp_path / "ready").exists))

    assert outcome.cancelled
    assert (tmp_path / "cleaned").exists()


def test_a_second_cancellation_cuts_the_grace_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "CANCEL_GRACE_S", 600.0)
    script = 'trap "" TERM; echo $$ > ready; while :; do sleep 0.01; done'

    async def scenario() -> None:
        host = RecordingHost()
        outcome = await cancel_when(shell_spec(script, root=tmp_path), host, (tmp_path / "ready").exists, times=3)
        assert outcome.cancelled
        assert not is_alive(host.children[0].pid)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_the_end_of_the_loop_ends_the_whole_family_too(tmp_path: Path) -> None:
    async def forgets_to_wait() -> asyncio.Future[AttemptResult]:
        attempt = asyncio.ensure_future(performers()["shell"](shell_spec(FAMILY, root=tmp_path), RecordingHost()))
        await soon(lambda: family_is_there(tmp_path))
        return attempt

    attempt = asyncio.run(forgets_to_wait())  # which cancels every task that is left, ours and our helpers'

    assert attempt.result().cancelled
    assert not [pid for pid in family_of(tmp_path) if is_alive(pid)]


def test_a_stopped_command_is_ended_too(tmp_path: Path) -> None:
    host = RecordingHost()
    spec = shell_spec("echo $$ > ready; kill -STOP $$", root=tmp_path)

    def stopped() -> bool:
        return bool(host.children) and psutil.Process(host.children[0].pid).status() == psutil.STATUS_STOPPED

    outcome = asyncio.run(cancel_when(spec, host, stopped))

    assert outcome.cancelled
    assert not is_alive(host.children[0].pid)


def test_a_stopped_command_is_woken_so_that_it_can_clean_up(tmp_path: Path) -> None:
    host = RecordingHost()
    script = 'trap "echo cleaned > cleaned; exit 0" TERM; kill -STOP $$; while :; do sleep 0.01; done'

    def stopped() -> bool:
        return bool(host.children) and psutil.Process(host.children[0].pid).status() == psutil.STATUS_STOPPED

    outcome = asyncio.run(cancel_when(shell_spec(script, root=tmp_path), host, stopped))

    assert outcome.cancelled
    assert (tmp_path / "cleaned").exists()


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
def test_a_member_of_the_group_without_mark_that_ignores_sigterm_is_ended(tmp_path: Path, how: str) -> None:
    script = f"""
        env -i PATH="$PATH" bash -c 'trap "" TERM; echo $$ > pid; while :; do sleep 0.05; done' >/dev/null 2>&1 &
        until [ -s pid ]; do sleep 0.01; done
        {"false" if how == "fails" else "echo > ready; sleep 600"}
    """
    spec = shell_spec(script, root=tmp_path)
    if how == "fails":
        outcome = perform(spec)
    else:
        outcome = asyncio.run(cancel_when(spec, RecordingHost(), (tmp_path / "ready").exists))

    assert outcome.error is not None
    assert outcome.error.type == ("ShellCommandFailed" if how == "fails" else "TaskCancelledError")
    assert not is_alive(pid_in(tmp_path / "pid"))


def test_a_child_stays_a_zombie_until_it_is_let_go_so_that_its_number_is_not_reused(tmp_path: Path) -> None:
    async def scenario() -> None:
        launch = Launch(argv=("true",), env=dict(os.environ), cwd=tmp_path)
        child, cancelled = await Spawner().spawn(launch)
        assert not cancelled
        child.go()
        assert await child.exited == 0
        assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
        child.close()
        assert not psutil.pid_exists(child.pid)

    asyncio.run(scenario())


def test_all_of_it_works_without_what_only_linux_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    monkeypatch.setattr(supervision, "_death_signal", lambda: ())

    assert output_of(perform(shell_spec("echo fine")))["stdout"] == "fine"
    failed = perform(shell_spec("exit 3"))
    assert failed.error is not None
    assert "exit code 3" in failed.error.text
    host = RecordingHost()
    outcome = asyncio.run(cancel_when(shell_spec(FAMILY, root=tmp_path), host, lambda: family_is_there(tmp_path)))
    assert outcome.cancelled
    assert not [pid for pid in (host.children[0].pid, *family_of(tmp_path)) if is_alive(pid)]


def test_a_neighbour_that_carries_another_attempt_is_left_alone(tmp_path: Path) -> None:
    spec = shell_spec("sleep 600", timeout_s=0.1)
    env = {**os.environ, "AGENTOS_ATTEMPT_ID": f"{spec.attempt_id}1"}
    neighbour = subprocess.Popen(["sleep", "600"], env=env)
    try:
        perform(spec)
        assert neighbour.poll() is None
    finally:
        neighbour.kill()
        neighbour.wait()


def test_sixteen_commands_at_once_each_get_their_own_output_and_end() -> None:
    async def scenario() -> None:
        shell = performers()["shell"]
        specs = [shell_spec(f"echo {n}; exit {n % 2}") for n in range(16)]
        outcomes = await asyncio.gather(*(shell(spec, RecordingHost()) for spec in specs))
        for number, outcome in enumerate(outcomes):
            if number % 2:
                assert outcome.error is not None
                assert f"\n{number}" in outcome.error.text
            else:
                assert output_of(outcome)["stdout"] == str(number)

    asyncio.run(scenario())


def test_an_exit_status_that_somebody_else_took_is_a_failure_not_a_success() -> None:
    async def steal(child: ChildProcess) -> None:
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)

    outcome = perform(shell_spec("true"), RecordingHost(steal))

    assert outcome.error is not None
    assert "status was lost" in outcome.error.text
