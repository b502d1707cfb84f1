"""What goes to a worker and comes back: JSON of our own, never a pickle of what users made.

Secrets travel by name. Where the driver would put the value of a variable, it puts a mark that the worker replaces by
the value in its own environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Raw

from agentos.dag.define.task import TaskDef
from agentos.exceptions import AttemptError
from agentos.ids import TaskId, WorkflowId
from agentos.machine.events import NOTHING, TaskFailure
from agentos.secrets import ENVIRONMENT, SecretSource
from agentos.tasks.attempt import Stream
from agentos.tasks.python.child import ChildRequest, StepAnswer, StepCall
from agentos.values import decode_value, encode_value

PROTOCOL = 1
"""Of what stands here. A worker that speaks another one says so."""


class PlacedWork(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt, as a worker is given it. References are resolved."""

    protocol: int
    version: str
    """Of the driver's AgentOS."""
    handle: str
    driver: str
    """Whom reports go to: a topic of the scheduler's."""
    lease_s: float
    asks_leave: bool
    """It begins only once the driver has said so, which it says once."""
    reusable: bool
    """Its process may perform others after it."""
    workflow_id: WorkflowId
    task_id: TaskId
    attempt: int
    attempt_id: str
    idempotency_key: str
    definition: TaskDef
    root: str
    cwd: str
    env: dict[str, str] = {}
    secret_names: tuple[str, ...] = ()
    """Variables whose values are masked there, beside those that look secret."""
    command: str | tuple[str, ...] = ""
    """shell."""
    python: ChildRequest | None = None


class PlacedResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an attempt ended there; values in stored form, masked."""

    output: Raw = NOTHING
    messages: Raw = NOTHING
    context: Raw = NOTHING
    injected: tuple[tuple[str, Raw], ...] = ()
    warnings: tuple[str, ...] = ()
    error: TaskFailure | None = None
    retryable: bool = True
    cancelled: bool = False
    cut_off: bool = False
    lost: bool = False
    suspended: tuple[int, ...] = ()
    took_ms: float = 0.0


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker tells a driver about one attempt: one of these."""

    handle: str
    began: str = ""
    """It begins. A name for this execution: Dask may begin the same work twice."""
    worker: str = ""
    """With `began`: who performs it."""
    clock: float = 0.0
    """With `began`: the worker's clock."""
    stream: Stream = "stdout"
    data: bytes = b""
    """What it printed, masked."""
    progress: str = ""
    step: StepCall | None = None
    end: PlacedResult | None = None
    leaves: bool = False
    """With `end`, from a child: it performs nothing after this."""
    kept: bool = False
    """It has ended, and the result is so large that it waits to be fetched."""


class Word(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a driver tells a worker about one attempt."""

    handle: str
    go: str = ""
    """Leave for this execution to begin."""
    answer: StepAnswer | None = None


class ChildWord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker tells a child."""

    work: PlacedWork | None = None
    answer: StepAnswer | None = None
    renewed_s: float = 0.0
    """It may go on for so long."""


encode = msgspec.json.encode

# --- secrets by name ----------------------------------------------------------------------------------------------

_NAMED = re.compile("\ue000agentos:([A-Za-z_][A-Za-z0-9_]*)\ue001")


class SecretNames:
    """A source that gives marks instead of values, for work that is performed elsewhere."""

    def __init__(self, source: SecretSource = ENVIRONMENT) -> None:
        self._source = source

    def get(self, name: str) -> str | None:
        return None if self._source.get(name) is None else f"\ue000agentos:{name}\ue001"

    def origin(self, name: str) -> str:
        return self._source.origin(name)

    def names(self) -> Iterable[str]:
        return self._source.names()


def fill_in_secrets(work: PlacedWork, source: SecretSource = ENVIRONMENT) -> PlacedWork:
    """The work with the values of this environment. AttemptError names a variable that is not set here."""
    if b"agentos:" not in encode((work.env, work.command)) + bytes(work.python.arguments if work.python else b""):
        return work

    def value_of(found: re.Match[str]) -> str:
        if (value := source.get(found[1])) is None:
            raise AttemptError(
                f"{found[1]} is not set on the worker",
                next_step="Secrets travel by name: set it in the environment that the worker is started with.",
            )
        return value

    def fill(text: str) -> str:
        return _NAMED.sub(value_of, text)

    command = fill(work.command) if isinstance(work.command, str) else tuple(map(fill, work.command))
    python = work.python
    if python is not None:
        arguments = _fill(decode_value(python.arguments), fill)
        python = msgspec.structs.replace(python, arguments=Raw(encode_value(arguments, around=True)))
    env = {name: fill(value) for name, value in work.env.items()}
    return msgspec.structs.replace(work, env=env, command=command, python=python)


def _fill(value: Any, fill: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return fill(value)
    if isinstance(value, dict):
        return {key: _fill(one, fill) for key, one in value.items()}
    return [_fill(one, fill) for one in value] if isinstance(value, list) else value


def folder_there(path: str) -> str:
    """The same folder where this machine has it; else the one that the worker was started in."""
    return path if os.path.isdir(path) else os.getcwd()
