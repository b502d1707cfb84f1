"""Hooks: a command of the user's that is told how a drive ended, so that a waiting run can call somebody.

They run when everything is durable and the lease is let go, as argument lists without a shell, for a bounded time. What
they do changes nothing: a hook that fails is a warning in the log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from agentos.machine.facts.fold import Facts
from agentos.machine.rules.gates import gate_choices
from agentos.machine.rules.merges import answer_to
from agentos.secrets import Masker

log = logging.getLogger("agentos")

TIMEOUT_S = 30.0
"""After this a hook is killed, with all that it started in its process group."""
_SHOWN_BYTES = 2000


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """Argument lists; empty where nobody wants to be told."""

    on_wait: tuple[str, ...] = ()
    """When a drive ends waiting for an answer."""
    on_end: tuple[str, ...] = ()
    """When a run ends: complete, failed or aborted."""

    def of(self, status: str) -> tuple[str, tuple[str, ...]]:
        """The setting that counts for a drive that ended so, and its command."""
        if status == "waiting":
            return "on_wait", self.on_wait
        return "on_end", self.on_end if status in ("complete", "failed", "aborted") else ()


NO_HOOKS = Hooks()


class HookGate(msgspec.Struct, frozen=True, kw_only=True):
    """A question that waits."""

    gate_id: str
    task_id: str | None
    question: str
    choices: tuple[str, ...]
    """An approval names one of these, where there are some."""
    command: str
    """What to type to answer."""


class HookPayload(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook reads on its standard input, as JSON."""

    workflow_id: str
    workflow: str
    status: str
    root: str
    gates: tuple[HookGate, ...]
    errors: dict[str, str]
    """What went wrong with each failed task."""


async def call_hook(hooks: Hooks, facts: Facts, *, name: str, root: Path, timeout_s: float = TIMEOUT_S) -> None:
    """Run the hook that belongs to how the drive ended, if there is one. Never raises; cancelled, it kills the hook."""
    setting, argv = hooks.of(facts.status)
    if not argv:
        return
    told = _hook_payload(facts, name, root)
    env = os.environ | {
        "AGENTOS_RUN": told.workflow_id,
        "AGENTOS_STATUS": told.status,
        "AGENTOS_WORKFLOW": told.workflow,
        "AGENTOS_ROOT": told.root,
    }
    import tempfile  # which takes longer to load than a run without hooks can spare

    try:
        # Files, not pipes: a hook that reads nothing, or leaves a child behind, keeps nobody waiting.
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
            given.write(msgspec.json.encode(told))
            given.seek(0)
            why = await _run_hook(argv, env, root, given, said, timeout_s)
            if why:
                said.seek(max(0, said.seek(0, os.SEEK_END) - _SHOWN_BYTES))
                text = Masker.for_run().text(said.read().decode(errors="replace").strip())
                log.warning("the hook %s (%s) %s%s", setting, argv[0], why, f": {text}" if text else "")
    except (OSError, ValueError) as error:  # not there, not executable, no room; a NUL in a value
        log.warning("the hook %s (%s) could not be run: %s", setting, argv[0], error)


async def _run_hook(
    argv: tuple[str, ...], env: dict[str, str], root: Path, given: IO[bytes], said: IO[bytes], timeout_s: float
) -> str:
    """What went wrong, if anything did."""
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=root, env=env, stdin=given, stdout=said, stderr=said, start_new_session=True
    )
    try:
        code = await asyncio.wait_for(process.wait(), timeout_s)
    except TimeoutError:
        await _kill(process)
        return f"ran longer than {timeout_s:g} s and was killed"
    except asyncio.CancelledError:  # the drive is over and stored; only the wait for the hook is cut short
        await _kill(process)
        raise
    return f"failed with exit code {code}" if code else ""


async def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _hook_payload(facts: Facts, name: str, root: Path) -> HookPayload:
    gates = [facts.gates[gate_id].opened for gate_id in sorted(facts.open_gates)]
    return HookPayload(
        workflow_id=facts.workflow_id,
        workflow=name,
        status=facts.status,
        root=str(root),
        gates=tuple(
            HookGate(
                gate_id=gate.gate_id,
                task_id=gate.task_id,
                question=gate.question,
                choices=gate_choices(gate),
                command=answer_to(facts, gate),
            )
            for gate in gates
        ),
        errors={
            task_id: f"{task.error.type}: {task.error.text}"
            for task_id, task in facts.tasks.items()
            if task.error is not None and task.ended
        },
    )
