"""How a child ended, in words."""

from __future__ import annotations

import signal

from agentos.exceptions import ShellCommandFailed, TaskCancelledError, TaskTimeoutError
from agentos.tasks.failures import plain_failure
from agentos.tasks.outcomes import AttemptFailed
from agentos.tasks.process.output_capture import Capture
from agentos.tasks.process.supervision import Ending

Streams = tuple[Capture, Capture]

_FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
"""What ends a process that did nothing wrong: a service manager, a shutdown, the kernel when memory runs out."""


def refuse_cut_short(ending: Ending, said: str, timeout_s: float | None) -> None:
    """AttemptFailed where the child was cancelled or ran out of time."""
    if ending.why == "cancelled":
        failure = plain_failure(TaskCancelledError("the attempt was cancelled and its processes were ended"))
        raise AttemptFailed(failure, retryable=False, cancelled=True, warnings=ending.warnings)
    if ending.why == "timeout":
        text = f"the attempt ran longer than its timeout of {timeout_s:g} s and its processes were ended{said}"
        raise AttemptFailed(plain_failure(TaskTimeoutError(text)), cut_off=True, warnings=ending.warnings)


def refuse_failure(ending: Ending, said: str) -> None:
    """AttemptFailed unless the command exited with 0."""
    status = ending.status
    if status == 0:
        return
    code = -1 if status is None else status if status >= 0 else 128 - status  # as a shell would number it
    error = ShellCommandFailed(f"the command {describe_status(status)}{said}", exit_code=code)
    raise AttemptFailed(plain_failure(error), cut_off=was_ended(status), warnings=ending.warnings)


def was_ended(status: int | None) -> bool:
    """Whether the command did not end by itself, as far as its status tells: somebody ended it, or nobody knows."""
    return status is None or -status in _FROM_OUTSIDE


def describe_status(status: int | None) -> str:
    if status is None:
        return "ended, and its exit status was lost (another part of this process took it)"
    if status < 0:
        return f"was killed by {_signal_name(-status)}"
    if status > 128 and (name := _signal_name(status - 128)):
        return f"ended with exit code {status} (128 + {status - 128}: as if killed by {name})"
    hint = {126: " (found but not executable)", 127: " (command not found)"}.get(status, "")
    return f"ended with exit code {status}{hint}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if number <= 64 else ""


def last_words(out: Capture | None, err: Capture) -> str:
    """The ends of both streams, for an error's text; None: one that is not for people."""
    shown = (("stderr", err.last_lines()), ("stdout", out.last_lines() if out is not None else ""))
    return "".join(f"\n--- {name}, last lines ---\n{lines}" for name, lines in shown if lines)
