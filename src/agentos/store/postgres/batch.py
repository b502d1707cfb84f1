"""A batch of events as the arguments of one statement, so that all of it is checked and written at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentos.run.events import Checkpointed, Event, RolledBack
from agentos.store.codec import Row
from agentos.values import tagged_text

_NUL = b"\\u0000"


def event_columns(rows: Sequence[Row]) -> tuple[list[Any], ...]:
    """seq, at, type, version, body, plain, blob and digest of each row, column by column."""
    return (
        [row.seq for row in rows],
        [row.at for row in rows],
        [row.type for row in rows],
        [row.version for row in rows],
        [row.body.decode() for row in rows],
        [plain(row.body) for row in rows],
        [row.blob for row in rows],
        [row.digest for row in rows],
    )


def plain(body: bytes) -> str | None:
    """The body without NUL, which JSONB cannot hold: text with it is tagged as in results. None where there is none."""
    if _NUL not in body:
        return None
    return msgspec.json.encode(_without_nul(msgspec.json.decode(body))).decode()


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return tagged_text(value)
    if isinstance(value, dict):
        return {key.replace("\0", "\\u0000"): _without_nul(item) for key, item in value.items()}
    return [_without_nul(item) for item in value] if isinstance(value, list) else value


def cut_columns(events: Sequence[Event], rows: Sequence[Row]) -> tuple[list[Any], ...]:
    """id, sequence, layer, at, digest, snapshot, abandoned of the cuts, and after and before of the rollbacks.

    A statement does not see what it writes itself: a cut that a later rollback of the same batch leaves behind is
    written as such.
    """
    backs = [(event.to_seq, row.seq) for event, row in zip(events, rows, strict=True) if isinstance(event, RolledBack)]
    cuts = [(event, row) for event, row in zip(events, rows, strict=True) if isinstance(event, Checkpointed)]
    return (
        [event.checkpoint_id for event, _ in cuts],
        [row.seq for _, row in cuts],
        [event.layer for event, _ in cuts],
        [row.at for _, row in cuts],
        [row.digest for _, row in cuts],
        [event.snapshot for event, _ in cuts],
        [any(after < row.seq < before for after, before in backs) for _, row in cuts],
        [after for after, _ in backs],
        [before for _, before in backs],
    )
