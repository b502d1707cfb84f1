"""A batch of events as the arguments of one statement, so that all of it is checked and written at once.

Rows travel as one JSON text: the driver makes an array of each column in Python, which takes longer than the server
does to write them. Bytes are base64 there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from agentos.machine.events import Checkpointed, Event, RolledBack
from agentos.store.codec import EventRow
from agentos.values import tagged_text

_NUL = b"\\u0000"
_encode = msgspec.json.Encoder().encode


class _EventRow(msgspec.Struct, omit_defaults=True):
    seq: int
    at: int
    type: int
    version: int
    body: str
    digest: bytes
    plain: str | None = None
    blob: bytes | None = None


class _CutRow(msgspec.Struct):
    id: str
    sequence: int
    layer: int
    at: int
    digest: bytes
    snapshot: str
    abandoned: bool


class _Stretch(NamedTuple):
    """Sequences between two, that a rollback leaves behind."""

    after: int
    before: int


def event_rows(rows: Sequence[EventRow]) -> str:
    """The rows of `event`, but for the run they belong to."""
    return _encode(
        [
            _EventRow(row.seq, row.at, row.type, row.version, row.body.decode(), row.digest, plain(row.body), row.blob)
            for row in rows
        ]
    ).decode()


def plain(body: bytes) -> str | None:
    """The body without NUL, which JSONB cannot hold: text with it is tagged as in results. None where there is none."""
    if _NUL not in body:
        return None
    return _encode(_without_nul(msgspec.json.decode(body))).decode()


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return tagged_text(value)
    if isinstance(value, dict):
        return {key.replace("\0", "\\u0000"): _without_nul(item) for key, item in value.items()}
    return [_without_nul(item) for item in value] if isinstance(value, list) else value


def cut_rows(events: Sequence[Event], rows: Sequence[EventRow]) -> str:
    """The rows of `checkpoint`, but for the run they belong to.

    A statement does not see what it writes itself: a cut that a later rollback of the same batch leaves behind is
    written as such.
    """
    stretches = _left_behind(events)
    return _encode(
        [
            _CutRow(
                id=event.checkpoint_id,
                sequence=row.seq,
                layer=event.layer,
                at=row.at,
                digest=row.digest,
                snapshot=event.snapshot,
                abandoned=any(stretch.after < row.seq < stretch.before for stretch in stretches),
            )
            for event, row in zip(events, rows, strict=True)
            if type(event) is Checkpointed
        ]
    ).decode()


def rollbacks(events: Sequence[Event]) -> tuple[list[int], list[int]]:
    """After and before of each stretch that the rollbacks of a batch leave behind."""
    stretches = _left_behind(events)
    return [stretch.after for stretch in stretches], [stretch.before for stretch in stretches]


def _left_behind(events: Sequence[Event]) -> list[_Stretch]:
    return [_Stretch(event.to_seq, event.seq) for event in events if type(event) is RolledBack]
