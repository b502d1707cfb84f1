"""A NewType for each id, and where fresh ids come from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import NewType
from uuid import UUID

WorkflowId = NewType("WorkflowId", str)
"""Names a run, in every API, table and JSON."""
TaskId = NewType("TaskId", str)
"""Names a task within its run: `build`, `each[3]`, `draft@2`."""
GateId = NewType("GateId", str)
CheckpointId = NewType("CheckpointId", str)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def new_id() -> str:
    """A fresh UUIDv7: ids sort by the time they were made."""
    # Imported here: only the start of a run needs it, and importing agentos must stay quick.
    from uuid_utils import uuid7

    return str(uuid7())


def checkpoint_id(workflow_id: str, sequence: int, at: datetime) -> CheckpointId:
    """The UUIDv7 of the checkpoint at this place of the journal.

    The random bits are a hash of run and sequence, so that the pure machine can name a checkpoint without a source of
    randomness, and deciding twice names it alike.
    """
    milliseconds = (at - EPOCH) // timedelta(milliseconds=1)
    noise = int.from_bytes(blake2b(f"{workflow_id}\0{sequence}".encode(), digest_size=10).digest(), "big")
    rand_a, rand_b = noise >> 68, noise & ((1 << 62) - 1)
    bits = (milliseconds & ((1 << 48) - 1)) << 80 | 0x7 << 76 | rand_a << 64 | 0b10 << 62 | rand_b
    return CheckpointId(str(UUID(int=bits)))
