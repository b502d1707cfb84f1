"""A base plan as stored with its run, and read back."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from agentos.dag.plan import Plan, PlannedTask, PlanSettings, assemble_plan
from agentos.exceptions import CheckpointCorruptedError


class StoredPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What cannot be derived; layers and dependants can."""

    version: int = 1
    name: str
    settings: PlanSettings = PlanSettings()
    params: Mapping[str, Any] = {}
    tasks: tuple[PlannedTask, ...] = ()


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(StoredPlan)


def encode_plan(plan: Plan) -> bytes:
    tasks = tuple(plan.tasks[task_id] for layer in plan.layers for task_id in layer)
    stored = StoredPlan(name=plan.name, settings=plan.settings, params=plan.params, tasks=tasks)
    # The tasks of a plan are much alike: a fifth of the bytes, for a millisecond in a thousand tasks.
    return zlib.compress(_encode(stored), 1)


def decode_plan(stored: bytes) -> Plan:
    try:
        plan = _decoder.decode(zlib.decompress(stored))
    except (msgspec.DecodeError, zlib.error) as error:
        raise CheckpointCorruptedError("a stored plan", str(error)) from error
    return assemble_plan(plan.name, plan.settings, plan.params, plan.tasks)
