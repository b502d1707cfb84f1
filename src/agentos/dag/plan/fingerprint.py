"""Fingerprints: whether a task still is what it was. They cover what it does and not how it is looked after."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import msgspec

from agentos.dag.define.settings import SETTINGS
from agentos.dag.define.task import Retry, TaskDef

VERSION = "1"
"""Of the algorithm. Fingerprints of different versions cannot be compared."""
_MODULUS = 1 << 256
_canonical = msgspec.json.Encoder(order="sorted").encode
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(TaskDef)}
_UNCOUNTED: dict[str, Any] = {
    field: _DEFAULTS[field] for name, one in SETTINGS.items() if not one.counts and (field := one.field or name)
}
# Any but the default itself, of which nothing is encoded: `"retry":{}` is in every fingerprint since the first.
_UNCOUNTED["retry"] = Retry()


def canonical_json(value: Any) -> bytes:
    """Compact JSON with sorted keys, of what is in stored form: equal values give equal bytes."""
    return _canonical(value)


def task_fingerprint(definition: TaskDef) -> str:
    """What the task does: its definition and code, without the settings that do not count (`TaskSetting.counts`).

    Where the function was imported from does not count as long as its code can be seen: the same file is `__main__` in
    one process and a module in the next. Of a task that came from a fan-out the item counts.
    """
    call = "" if definition.code else definition.call
    bare = msgspec.structs.replace(definition, **_UNCOUNTED, call=call)
    return f"{VERSION}:{digest(_canonical(bare))}"


def plan_fingerprint(about: Any, tasks: Iterable[tuple[str, str]]) -> str:
    """Of a whole plan: what is said about it, and each task's id and fingerprint.

    A sum, so that a plan that grows need not look at every task again (`changed_fingerprint`).
    """
    total = int.from_bytes(blake2b(_canonical(about), digest_size=32).digest())
    return _as_text(total + sum(map(_summand, tasks)))


def changed_fingerprint(
    fingerprint: str, added: Iterable[tuple[str, str]] = (), removed: Iterable[tuple[str, str]] = ()
) -> str:
    """The fingerprint of a plan after tasks were added and removed."""
    total = int(fingerprint.partition(":")[2], 16)
    return _as_text(total + sum(map(_summand, added)) - sum(map(_summand, removed)))


def _summand(task: tuple[str, str]) -> int:
    return int.from_bytes(blake2b("\0".join(task).encode(), digest_size=32).digest())


def _as_text(total: int) -> str:
    return f"{VERSION}:{total % _MODULUS:064x}"


def digest(data: bytes) -> str:
    """Short and stable: 128 bits, as hex."""
    return blake2b(data, digest_size=16).hexdigest()
