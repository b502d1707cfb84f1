"""A NewType for each id, and where fresh ids come from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NewType

WorkflowId = NewType("WorkflowId", str)
"""Names a run, in every API, table and JSON."""
TaskId = NewType("TaskId", str)
"""Names a task within its run: `build`, `each[3]`, `draft@2`."""
GateId = NewType("GateId", str)
CheckpointId = NewType("CheckpointId", str)

MAX_ID = 200
"""Characters of an id that a user chooses, of a task or a run."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_48_BITS = (1 << 48) - 1
_WHEN = len("01a1ed07-e8ea")


def new_id() -> str:
    """A fresh UUIDv7: ids sort by the time they were made."""
    # Imported here: only the start of a run needs it, and importing agentos must stay quick.
    from uuid_utils import uuid7

    return str(uuid7())


def short_id(workflow_id: str) -> str:
    """How a printed command names a run: of a UUIDv7 the beginning that says when, of any other id all of it.

    A new run takes no id whose beginning another one has (`start/new_run.py`), so it is a unique prefix.
    """
    is_uuid7 = len(workflow_id) == 36 and workflow_id[8:24:5] == "----" and workflow_id[14] == "7"
    return workflow_id[:_WHEN] if is_uuid7 else workflow_id


def checkpoint_id(workflow_id: str, sequence: int, at: datetime) -> CheckpointId:
    """The UUIDv7 of the checkpoint at this place of the journal.

    The random bits are a hash of run and sequence, so that the pure machine can name a checkpoint without a source of
    randomness, and deciding twice names it alike.
    """
    from hashlib import blake2b  # errors name ids, and `agentos --help` needs no more of them than that

    milliseconds = (at - EPOCH) // _MILLISECOND
    noise = blake2b(f"{workflow_id}\0{sequence}".encode(), digest_size=10).hexdigest()
    # Written out and not through uuid.UUID, which takes as long as deciding the rest of the turn.
    when, variant = f"{milliseconds & _48_BITS:012x}", "89ab"[int(noise[3], 16) & 3]
    return CheckpointId(f"{when[:8]}-{when[8:]}-7{noise[:3]}-{variant}{noise[5:8]}-{noise[8:]}")
