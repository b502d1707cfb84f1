"""What the log of an attempt holds beside the agent's own stream: how it was started, and how it ended."""

from __future__ import annotations

import json
import os
from hashlib import blake2b
from typing import Any

import msgspec

from agentos.machine.events import AgentSession
from agentos.tasks.agents.adapters.adapter import AgentVerdict
from agentos.tasks.agents.assignment import Assignment
from agentos.tasks.agents.transcript import CopiedTranscript
from agentos.tasks.attempt import AttemptSpec
from agentos.tasks.process.launch import Launch


def digest_of(prompt: str) -> str:
    return blake2b(prompt.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def write_start(errand: Assignment, session: AgentSession, launch: Launch, prompt: str) -> None:
    """Names of variables, never their values."""
    began = {
        "attempt": errand.spec.attempt_id,
        "session": msgspec.to_builtins(session),
        "cwd": os.path.realpath(errand.cwd),
        "argv": list(launch.argv),
        "env": sorted(launch.env),
        "prompt": prompt,
        "schema": errand.work.schema,
        "timeout_s": errand.time.left_s,
        "budget": msgspec.to_builtins(errand.spec.definition.budget),
    }
    _write(errand.spec, {"agent_started": began})


def write_end(spec: AttemptSpec, status: int | None, verdict: AgentVerdict, copied: CopiedTranscript | None) -> None:
    ended = {"exit_code": status, **msgspec.to_builtins(verdict), "transcript": msgspec.to_builtins(copied)}
    _write(spec, {"agent_ended": ended})


def _write(spec: AttemptSpec, value: dict[str, Any]) -> None:
    if spec.log is not None:
        masked, _ = spec.masker.value_and_names(value)
        spec.log.write("progress", json.dumps(masked, ensure_ascii=False, default=str).encode(errors="replace") + b"\n")
