"""Ends processes that outlived the attempt, or the driver, they belong to.

Every process of an attempt carries `AGENTOS_ATTEMPT_ID` (`<workflow_id>/<task_id>/<attempt>`) in its environment, and
so do its descendants, also those that left the process group. All functions here block, for some milliseconds as a
rule: call them from a thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from agentos.store.holder import process_started, refuse_hidden_processes
from agentos.tasks.attempt import Mark

if TYPE_CHECKING:
    import psutil

ATTEMPT_VARIABLE = "AGENTOS_ATTEMPT_ID"
ROOT_VARIABLE = "AGENTOS_ROOT"

WAIT_S = 5.0
_SAME_START_S = 0.02
_MAX_ROUNDS = 20

Environment = dict[str, str]


class AttemptProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A living process that carries an attempt."""

    pid: int
    command: str
    attempt_id: str
    root: str
    """The worktree it works on, where it says so."""


class EndedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that was found; `ended` is False where even SIGKILL did not end it in time."""

    pid: int
    command: str
    attempt_id: str
    ended: bool


def attempt_processes() -> list[AttemptProcess]:
    """Every living process of this user that carries an attempt of any run. Ends none of them."""
    import psutil

    found: list[AttemptProcess] = []
    spared = _self_and_ancestors()
    for pid in psutil.pids():
        with suppress(psutil.Error, OSError):  # gone meanwhile, or not ours to look at
            process = psutil.Process(pid)
            environment = {} if pid in spared else process.environ()
            if ATTEMPT_VARIABLE in environment and _lives(process):
                found.append(
                    AttemptProcess(
                        pid=pid,
                        command=process.name(),
                        attempt_id=environment[ATTEMPT_VARIABLE],
                        root=environment.get(ROOT_VARIABLE, ""),
                    )
                )
    return found


def end_attempt(mark: Mark) -> list[EndedProcess]:
    """End every process of this attempt, and their descendants; ourselves and our ancestors never. Safe to repeat."""
    return _end_all(lambda environment: (environment.get(ATTEMPT_VARIABLE), environment.get(ROOT_VARIABLE)) == mark)


def end_process(pid: int, started: float) -> bool:
    """SIGKILL a process with its descendants, if it is the one that began at `started` (see `store.holder`).

    Whether it is gone now. False, and nothing is done, where it is ourselves or an ancestor of ours, or belongs to
    somebody else.
    """
    import psutil

    if pid in _self_and_ancestors():
        return False
    try:
        process = psutil.Process(pid)
        now = process_started(pid)
        if now is None or abs(now - started) > _SAME_START_S:
            return True  # that one has ended; the pid belongs to nobody, or to another
        family = [process, *process.children(recursive=True)]
        process.kill()
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False
    _kill(family[1:])
    _wait(family)
    return not _lives(process)


def group_is_empty(pgid: int) -> bool:
    """Whether nobody but the leader, dead or alive, is left in a process group."""
    import psutil

    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if pid != pgid and os.getpgid(pid) == pgid and _lives(psutil.Process(pid)):
                return False
    return True


def _end_all(belongs: Callable[[Environment], bool]) -> list[EndedProcess]:
    found: dict[int, EndedProcess] = {}
    spared = _self_and_ancestors()
    # More than one round: a process can fork, or be between two programs, while we look.
    for _ in range(_MAX_ROUNDS):
        family = _family(belongs, spared)
        if not family:
            break
        _kill(family)
        stubborn = _wait(family)
        for process, (attempt_id, command) in family.items():
            ended = process not in stubborn
            found[process.pid] = EndedProcess(pid=process.pid, command=command, attempt_id=attempt_id, ended=ended)
        if stubborn:
            break  # stuck in the kernel: asking again would only take longer
    return list(found.values())


def _family(belongs: Callable[[Environment], bool], spared: frozenset[int]) -> dict[psutil.Process, tuple[str, str]]:
    """Living processes that belong, and what descends from them, with attempt and command."""
    import psutil

    family: dict[psutil.Process, tuple[str, str]] = {}
    for pid in psutil.pids():
        with suppress(psutil.Error, OSError):  # gone meanwhile, or not ours to look at
            process = psutil.Process(pid)
            environment = {} if pid in spared else process.environ()
            if environment and belongs(environment) and _lives(process):
                attempt_id = environment[ATTEMPT_VARIABLE]
                for member in (process, *process.children(recursive=True)):
                    if member.pid not in spared and _lives(member):
                        family[member] = attempt_id, member.name()
    return family


def _self_and_ancestors() -> frozenset[int]:
    import psutil

    refuse_hidden_processes()
    return frozenset({os.getpid(), *(parent.pid for parent in psutil.Process().parents())})


def _kill(processes: Iterable[psutil.Process]) -> None:
    import psutil

    for process in processes:
        with suppress(psutil.Error):
            process.kill()  # psutil compares start times first: a reused pid is left alone


def _wait(processes: Iterable[psutil.Process]) -> set[psutil.Process]:
    """Wait until they are dead; those that are not in time."""
    left = set(processes)
    until = time.monotonic() + WAIT_S
    pause = 0.001
    while left := {process for process in left if _lives(process)}:
        if time.monotonic() > until:
            break
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return left


def _lives(process: psutil.Process) -> bool:
    import psutil

    try:
        # A zombie has ended; its parent, or nobody in a container without init, has yet to notice.
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
