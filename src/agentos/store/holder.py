"""Who holds a lease, and whether that process still lives.

A pid alone proves nothing: it is reused, means something else in another container, and nothing after a reboot.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import msgspec

from agentos import typed
from agentos.exceptions import WorkflowConfigurationError
from agentos.store.port import Holder
from agentos.version import VERSION

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_encode = msgspec.json.Encoder().encode
decode_holder = typed.decoder(Holder).decode
"""A holder as stores keep it."""


def encode_holder(holder: Holder) -> str:
    return _encode(holder).decode()


def boot_clock() -> float:
    """Seconds since boot, time asleep included, and whatever the date is set to."""
    # macOS: CLOCK_MONOTONIC goes on during sleep there, and CLOCK_BOOTTIME does not exist.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@cache
def boot_id() -> str:
    """Changes with every boot; the same in all containers of a machine."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        argv = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        try:
            return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError) as error:
            raise _HIDDEN from error


def refuse_hidden_processes() -> None:
    """WorkflowConfigurationError on a system that does not show processes: nobody could tell whether a driver lives."""
    if sys.platform == "linux" and not os.path.exists("/proc/self"):
        raise _HIDDEN


_HIDDEN = WorkflowConfigurationError(
    "this system does not show its processes: /proc is missing, so that no run can be driven or answered here",
    next_step="Mount it, in a chroot or container too: mount -t proc proc /proc",
)


def current_holder() -> Holder:
    """This process. Made anew in each: a forked child is another holder."""
    pid = os.getpid()
    return Holder(
        host=platform.node(),
        boot=boot_id(),
        pidns=pid_namespace(),
        pid=pid,
        started=process_started(pid) or 0.0,
        version=VERSION,
    )


def pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def process_started(pid: int) -> float | None:
    """When the process began, in seconds of the kernel's own count, or None where it has ended.

    On Linux this is since boot, and does not shift when the clock is set, as psutil's does.
    """
    if sys.platform != "linux":
        return _started_by_psutil(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the name before it may hold blanks and brackets
    ended = fields[0] in (b"Z", b"X")  # a zombie is only waiting for its parent to look
    return None if ended else int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _started_by_psutil(pid: int) -> float | None:
    import psutil  # not needed on Linux, and slow to import

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def is_alive(holder: Holder) -> bool | None:
    """Whether the holder's process exists (stopped counts). None: it cannot be told from here."""
    if holder.boot != boot_id():
        return False if holder.host == platform.node() else None
    if holder.pidns != pid_namespace():
        return None
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return None  # some other user's; /proc may hide what it is
    started = process_started(holder.pid)
    return started is not None and abs(started - holder.started) < 0.02
