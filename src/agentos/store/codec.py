"""Events to rows and back, the same for every store. Decoding happens here and nowhere else.

A row is (seq, at in microseconds, type code, version, body, blob digest or None, running digest). The body is JSON
without what the other columns say. The running digest covers the row and, through the digest before it, all rows
before, so that no row can change, vanish or move to another run unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

import msgspec
from msgspec import Raw

from agentos import typed
from agentos.exceptions import CheckpointCorruptedError, NewerSchemaError
from agentos.ids import EPOCH, WorkflowId
from agentos.machine.events import (
    ALL_FILES,
    JOURNALED,
    DecisionMade,
    DecisionRequired,
    Event,
    PlanChanged,
    TaskComplete,
    TaskStep,
    WorkflowStart,
)
from agentos.values import without_surrogates

VERSION = 4
"""The newest form of a body that this AgentOS reads. It writes the oldest that says all: see `_version_of`."""
BLOB_LIMIT = 1 << 20
"""An output of more bytes than this is stored as a blob of its own."""
DIGEST_BYTES = 16
NEWER = "Use the version of AgentOS that wrote it, or a newer one."

CODES: Mapping[type[Event], int] = {kind: code for code, kind in enumerate(JOURNALED, 1)}
_KINDS: Mapping[int, type[Event]] = {code: kind for kind, code in CODES.items()}
LARGE: Mapping[type[Event], str] = {
    **dict.fromkeys((TaskComplete, TaskStep, DecisionMade), "output"),
    PlanChanged: "items",
}
"""The field of an event that may live in a blob."""

EXCERPT = 1000
"""Characters of a large output, where its beginning is enough."""

Blobs = Callable[[bytes], bytes | None]
"""Fetches the body of a blob by its digest."""

_MICROSECOND = timedelta(microseconds=1)
_head = Struct(">qqHHB").pack
_encode = msgspec.json.Encoder().encode
_replace = msgspec.structs.replace
_set = msgspec.structs.force_setattr


class EventRow(NamedTuple):
    """One event as stored."""

    seq: int
    at: int
    type: int
    version: int
    body: bytes
    blob: bytes | None
    digest: bytes


def to_microseconds(at: datetime) -> int:
    return (at - EPOCH) // _MICROSECOND


def from_microseconds(at: int) -> datetime:
    return EPOCH + timedelta(microseconds=at)


def first_digest(workflow_id: str) -> bytes:
    """What the digest chain of a run begins with: its rows make no sense in another run."""
    return blake2b(workflow_id.encode(), digest_size=DIGEST_BYTES).digest()


def plan_digest(workflow_id: str, revision: int, body: bytes) -> bytes:
    return blake2b(body, digest_size=DIGEST_BYTES, key=first_digest(f"{workflow_id}\0{revision}")).digest()


def blob_digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=32).digest()


def _chain_digest(
    previous: bytes, seq: int, at: int, code: int, version: int, body: bytes, blob: bytes | None
) -> bytes:
    head = _head(seq, at, code, version, blob is not None)
    return blake2b(b"".join((previous, head, blob or b"", body)), digest_size=DIGEST_BYTES).digest()


def encode_events(
    events: Sequence[Event], previous: bytes, *, blob_limit: int = BLOB_LIMIT
) -> tuple[list[EventRow], dict[bytes, bytes]]:
    """The rows of events that follow the row whose digest is `previous`, and the blobs they need, by digest."""
    rows: list[EventRow] = []
    blobs: dict[bytes, bytes] = {}
    last_at: datetime | None = None
    at = 0
    for event in events:
        if event.at is not last_at:  # events decided together share their time
            last_at = event.at
            at = to_microseconds(last_at)
        kind = type(event)
        blob = None
        bare = _replace(event, seq=0, at=EPOCH, workflow_id="")
        if kind in LARGE:
            large = bytes(getattr(event, LARGE[kind]))
            if len(large) > blob_limit:
                blob = blob_digest(large)
                blobs[blob] = large
                bare = _replace(bare, **{LARGE[kind]: Raw(b"null")})
        body = _body(bare)
        code, version = CODES[kind], _version_of(event)
        previous = _chain_digest(previous, event.seq, at, code, version, body, blob)
        rows.append(EventRow(event.seq, at, code, version, body, blob, previous))
    return rows, blobs


def _version_of(event: Event) -> int:
    """An earlier AgentOS reads over fields it does not know, and leaves a body of a higher version alone.

    One that knows nothing of covered files would run an approved task on files that nobody approved; one that knows
    nothing of questions about steps would take the answer for one about the whole task, and of the answers to whether
    a task ran each for a repeat. One that does not look at all files would take an approval of what was verified for
    one of whatever is there now. One that knows nothing of signatures is to drive no run that has to have some.
    """
    if isinstance(event, WorkflowStart):
        return 4 if event.signers is not None else 1
    if not isinstance(event, DecisionRequired):
        return 1
    if event.by == "signed":
        return 4
    named = event.kind == "ask" and bool(event.choices)
    if event.covers is not None and ALL_FILES in event.covers:
        return 4
    return 3 if named or event.step is not None else 2 if event.covers is not None else 1


def _body(bare: Event) -> bytes:
    try:
        return _encode(bare)
    except UnicodeEncodeError:
        # Text from outside (an error's message, a reason) with lone surrogates: no text for JSON, and no reason to
        # stop a run either.
        return _encode(without_surrogates(msgspec.to_builtins(bare, builtin_types=(datetime, Raw))))


def decode_rows(
    workflow_id: WorkflowId,
    rows: Iterable[tuple[int, int, int, int, bytes, bytes | None, bytes]],
    *,
    after: int,
    previous: bytes,
    blobs: Blobs,
    starts: Blobs | None = None,
) -> tuple[list[Event], bytes]:
    """The events of rows that must follow `after` without a hole, and the last digest.

    `previous` is the digest of row `after`; `blobs` fetches a blob's body, and `starts`, if given, only the beginning
    of one, which is then all that a large output holds. Raises CheckpointCorruptedError for the first row that is
    missing, changed or cannot be decoded.
    """
    events: list[Event] = []
    for seq, at, code, version, body, blob, digest in rows:
        if seq != after + 1:
            raise damage_error(workflow_id, after + 1, "the row is missing")
        try:
            expected = _chain_digest(previous, seq, at, code, version, body, blob)
        except (StructError, TypeError):
            raise damage_error(workflow_id, seq, "a column is not of its type") from None
        if expected != digest:
            raise damage_error(workflow_id, seq, "the digest does not match what is stored")
        event = _decode_event(workflow_id, seq, code, version, body)
        if blob is not None and starts is not None and LARGE.get(type(event)) == "output":
            _put_start(workflow_id, seq, event, blob, starts(blob))
        elif blob is not None:
            _put_back(workflow_id, seq, event, blob, blobs(blob))
        # Fresh from the decoder and seen by nobody yet: setting fields of a frozen event is safe here only.
        _set(event, "seq", seq)
        _set(event, "at", EPOCH + at * _MICROSECOND)
        _set(event, "workflow_id", workflow_id)
        events.append(event)
        after, previous = seq, digest
    return events, previous


def sound_upto(
    workflow_id: WorkflowId,
    rows: Iterable[tuple[int, int, int, int, bytes, bytes | None, bytes]],
    blobs: Blobs,
) -> int:
    """The last sequence of a journal, read from its start, before which nothing is damaged."""
    after, previous = 0, first_digest(workflow_id)
    for row in rows:
        try:
            _, previous = decode_rows(workflow_id, [row], after=after, previous=previous, blobs=blobs)
        except CheckpointCorruptedError:
            break
        after = row[0]
    return after


def _decode_event(workflow_id: WorkflowId, seq: int, code: int, version: int, body: bytes) -> Event:
    kind = _KINDS.get(code)
    if kind is None or version > VERSION:
        raise NewerSchemaError(
            f"event {seq} of run {workflow_id} has type {code}, version {version}, which this version does not know",
            next_step=NEWER,
        )
    try:
        # No decoder for each kind made beforehand: every program would start four milliseconds later for it.
        return typed.decode(body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damage_error(workflow_id, seq, str(error)) from error


def _put_start(workflow_id: WorkflowId, seq: int, event: Event, digest: bytes, start: bytes | None) -> None:
    if start is None:
        raise damage_error(workflow_id, seq, f"its blob {digest.hex()[:16]} is missing")
    _set(event, "output", Raw(start))


def _put_back(workflow_id: WorkflowId, seq: int, event: Event, digest: bytes, body: bytes | None) -> None:
    if body is None or blob_digest(body) != digest:
        why = "is missing" if body is None else "does not match its digest"
        raise damage_error(workflow_id, seq, f"its blob {digest.hex()[:16]} {why}")
    name = LARGE.get(type(event))
    if name is None:
        raise damage_error(workflow_id, seq, "it names a blob and has no place for one")
    _set(event, name, Raw(body))


def damage_error(workflow_id: str, seq: int, why: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(f"event {seq} of run {workflow_id}", why)
