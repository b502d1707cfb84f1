"""A run in one file: JSON lines that say what they are, then each row of the run, then a digest of it all.

    {"kind":"agentos-run","version":1,...}      what this is, and who wrote it
    {"kind":"run",...}                          the run as listed
    {"kind":"plan",...}                         a revision of its plan, base64
    {"kind":"blob",...}                         a large output that events name
    {"kind":"event",...}                        the journal, row by row, each with its running digest
    {"kind":"checkpoint",...}                   the cuts that are kept
    {"kind":"snapshots",...}                    a part of a git bundle with its snapshots of files, base64
    {"kind":"end","lines":N,"digest":"..."}     the digest of every byte before this line

docs/export.md has the same, field by field. Reading trusts nothing: what does not fit is refused, with its line.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from typing import IO, Annotated, Any, Literal

import msgspec

from agentos import typed
from agentos.exceptions import CheckpointCorruptedError, NewerSchemaError, RunRefusedError
from agentos.ids import WorkflowId
from agentos.store import codec
from agentos.store.port import CheckpointRecord, RunCopy, RunRecord, RunStatus, Waiting

FORMAT = 2
"""Of the file. A newer one is refused. One without snapshots says 1, so that older versions read it, too."""
BUNDLE_BYTES = 3 * 1024 * 1024
"""Of a bundle in one line."""
MAX_LINE_BYTES = 512 * 1024 * 1024
"""No line is longer: one output, or one plan."""
NOT_OURS = "Name a file that `agentos export` wrote."

_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))]
_Time = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999_999)]
"""Microseconds since 1970, up to the year 9999."""
_Name = Annotated[str, msgspec.Meta(max_length=10_000)]


class _Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    pass


class Header(_Line, frozen=True, kw_only=True, tag="agentos-run"):
    """What the file is."""

    version: int
    agentos: _Name
    exported_at: datetime
    note: str = "Prompts, outputs and errors of this run are in this file, not encrypted."


class RunLine(_Line, frozen=True, kw_only=True, tag="run"):
    """The run; its position in the journal is told by the events."""

    workflow_id: Annotated[str, msgspec.Meta(min_length=1, max_length=10_000)]
    name: _Name
    sort: Literal["workflow", "states"]
    status: RunStatus
    layer: _Count
    layers: _Count
    epoch: _Count
    created_at: _Time
    updated_at: _Time
    source: _Name
    root: _Name
    fingerprint: _Name
    parent_id: _Name | None
    token: _Count
    labels: tuple[_Name, ...] = ()
    host: _Name = ""
    queue: _Name | None = None
    """Of a run that was submitted and has not begun, as the next two; else null."""
    priority: Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)] = 0
    ready_at: _Time = 0


class PlanLine(_Line, frozen=True, kw_only=True, tag="plan"):
    revision: _Count
    body: str


class BlobLine(_Line, frozen=True, kw_only=True, tag="blob"):
    digest: str
    body: str


class EventLine(_Line, frozen=True, kw_only=True, tag="event"):
    seq: _Count
    at: _Time
    type: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    version: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    body: str
    blob: str | None
    digest: str


class CheckpointLine(_Line, frozen=True, kw_only=True, tag="checkpoint"):
    id: _Name
    sequence: _Count
    layer: _Count
    timestamp: _Time
    snapshot: _Name
    name: _Name = ""
    """Always empty: checkpoints have no names, and whoever reads this format asks for one."""
    abandoned: bool
    digest: str


class SnapshotsLine(_Line, frozen=True, kw_only=True, tag="snapshots"):
    body: str


class EndLine(_Line, frozen=True, kw_only=True, tag="end"):
    lines: int
    digest: str


_AnyLine = Header | RunLine | PlanLine | BlobLine | EventLine | CheckpointLine | SnapshotsLine | EndLine
_TIMES = {"created_at", "updated_at", "timestamp"}
_OF_RUN = {*RunLine.__struct_fields__} & {*RunRecord.__struct_fields__} - _TIMES
_OF_CHECKPOINT = {*CheckpointLine.__struct_fields__} & {*CheckpointRecord.__struct_fields__} - _TIMES
"""Fields that are the same in a line and in a record."""
_encode = msgspec.json.Encoder().encode
_decode = typed.decoder(_AnyLine).decode


# --- writing ------------------------------------------------------------------------------------------------------


def export_lines(copy: RunCopy, *, version: str, bundle: IO[bytes] | None = None) -> Iterator[bytes]:
    """The file, line by line; `version` says who wrote it, `bundle` holds snapshots of files, if they come along."""
    digest, count = blake2b(digest_size=32), 0
    for line in _lines(copy, version, bundle):
        encoded = _encode(line) + b"\n"
        if len(encoded) > MAX_LINE_BYTES:
            raise RunRefusedError(
                f"an output of run {copy.run.workflow_id} is too large to export ({len(encoded):,} bytes)",
                next_step="Copy the database file instead, while nobody drives a run in it.",
            )
        digest.update(encoded)
        count += 1
        yield encoded
    yield _encode(EndLine(lines=count, digest=digest.hexdigest())) + b"\n"


def _lines(copy: RunCopy, version: str, bundle: IO[bytes] | None) -> Iterator[_Line]:
    run = copy.run
    yield Header(version=1 if bundle is None else FORMAT, agentos=version, exported_at=datetime.now(UTC))
    yield RunLine(
        **{name: getattr(run, name) for name in _OF_RUN},
        sort=run.kind,
        created_at=codec.to_microseconds(run.created_at),
        updated_at=codec.to_microseconds(run.updated_at),
        token=copy.token,
        **_waiting_fields(run.waiting),
    )
    for revision, body in enumerate(copy.plans, 1):
        yield PlanLine(revision=revision, body=b64encode(body).decode())
    for digest, body in copy.blobs.items():
        yield BlobLine(digest=digest.hex(), body=body.decode())
    for row in copy.rows:
        blob = None if row.blob is None else row.blob.hex()
        yield EventLine(
            seq=row.seq,
            at=row.at,
            type=row.type,
            version=row.version,
            body=row.body.decode(),
            blob=blob,
            digest=row.digest.hex(),
        )
    for cut in copy.checkpoints:
        timestamp = codec.to_microseconds(cut.timestamp)
        yield CheckpointLine(**{name: getattr(cut, name) for name in _OF_CHECKPOINT}, timestamp=timestamp)
    while bundle is not None and (part := bundle.read(BUNDLE_BYTES)):
        yield SnapshotsLine(body=b64encode(part).decode())


def _waiting_fields(waiting: Waiting | None) -> dict[str, Any]:
    """How it was submitted; the files it was submitted with stay where they are."""
    if waiting is None:
        return {}
    ready_at = codec.to_microseconds(waiting.ready_at) if waiting.ready_at is not None else 0
    return {"queue": waiting.queue, "priority": waiting.priority, "ready_at": ready_at}


# --- reading ------------------------------------------------------------------------------------------------------


def read_export(file: IO[bytes], name: str, bundle: IO[bytes] | None = None) -> RunCopy:
    """The run in the file, as far as the file itself can tell: whole, of a version we know, undamaged.

    What it has of a bundle with snapshots is written into `bundle`.

    RunRefusedError where it is no such file, NewerSchemaError, CheckpointCorruptedError. The journal's own digests are
    checked by the store that takes it in.
    """
    parts: list[_Line] = []
    for number, line in enumerate(_read_lines(file, name)):
        if number == 1 and not isinstance(line, RunLine):
            raise _damage_error(name, 2, "the run itself is missing")
        if not isinstance(line, SnapshotsLine):
            parts.append(line)
        elif bundle is not None:
            try:
                bundle.write(b64decode(line.body, validate=True))
            except ValueError as error:
                raise _damage_error(name, number + 1, str(error)) from error
    try:
        return _assemble_copy(parts)
    except (ValueError, IndexError) as error:  # digests that are no hexadecimal, plans that are no base64; no run
        raise _damage_error(name, 0, str(error)) from error


def _read_lines(file: IO[bytes], name: str) -> Iterator[_Line]:
    """Each line decoded, up to the one that vouches for them."""
    digest, number = blake2b(digest_size=32), 0
    while True:
        raw = file.readline(MAX_LINE_BYTES if number else 65_536)
        if number == 0:
            _check_header(raw, name)
        if not raw.endswith(b"\n"):
            raise _damage_error(
                name, number + 1, "the file is cut short" if len(raw) < MAX_LINE_BYTES else "it is too long"
            )
        number += 1
        try:
            line = _decode(raw)
        except (ValueError, RecursionError) as error:  # msgspec's and UTF-8's errors are ValueErrors
            raise _damage_error(name, number, str(error)) from error
        if isinstance(line, EndLine):
            if (line.lines, line.digest) != (number - 1, digest.hexdigest()):
                raise _damage_error(name, number, "the digest differs from that of the lines before it")
            if file.read(1):
                raise _damage_error(name, number + 1, "something follows the end")
            return
        digest.update(raw)
        yield line


def _check_header(raw: bytes, name: str) -> None:
    try:
        header = msgspec.json.decode(raw, type=dict[str, object])
    except (ValueError, RecursionError):
        header = {}
    if header.get("kind") != "agentos-run":
        raise RunRefusedError(f"{name} is not an exported run", next_step=NOT_OURS)
    version = header.get("version")
    if not isinstance(version, int) or version > FORMAT:
        raise NewerSchemaError(
            f"{name} has format {version}; this version of AgentOS knows {FORMAT}", next_step=codec.NEWER
        )


def _assemble_copy(parts: list[_Line]) -> RunCopy:
    [run] = [line for line in parts if isinstance(line, RunLine)]
    events = [line for line in parts if isinstance(line, EventLine)]
    plans = [line for line in parts if isinstance(line, PlanLine)]
    if [plan.revision for plan in plans] != list(range(1, len(plans) + 1)):
        raise ValueError("revisions of the plan are missing")
    cuts = [line for line in parts if isinstance(line, CheckpointLine)]
    for cut in cuts:
        bytes.fromhex(cut.digest)  # ValueError where it is none
    return RunCopy(
        run=RunRecord(
            **{name: getattr(run, name) for name in _OF_RUN},
            kind=run.sort,
            created_at=codec.from_microseconds(run.created_at),
            updated_at=codec.from_microseconds(run.updated_at),
            sequence=len(events),
            plan_revision=len(plans),
            holder=None,
            waiting=_waiting_of(run),
        ),
        token=run.token,
        plans=tuple(b64decode(plan.body, validate=True) for plan in plans),
        rows=tuple(
            codec.EventRow(
                line.seq,
                line.at,
                line.type,
                line.version,
                line.body.encode(),
                None if line.blob is None else bytes.fromhex(line.blob),
                bytes.fromhex(line.digest),
            )
            for line in events
        ),
        blobs={bytes.fromhex(line.digest): line.body.encode() for line in parts if isinstance(line, BlobLine)},
        checkpoints=tuple(
            CheckpointRecord(
                **{name: getattr(cut, name) for name in _OF_CHECKPOINT},
                workflow_id=WorkflowId(run.workflow_id),
                timestamp=codec.from_microseconds(cut.timestamp),
            )
            for cut in cuts
        ),
    )


def _waiting_of(run: RunLine) -> Waiting | None:
    if run.queue is None or run.status != "pending":
        return None
    return Waiting(queue=run.queue, priority=run.priority, ready_at=codec.from_microseconds(run.ready_at))


def _damage_error(name: str, line: int, why: str) -> CheckpointCorruptedError:
    error = CheckpointCorruptedError(f"line {line} of {name}" if line else name, why)
    error.next_step = "Nothing was imported. Export the run again, or copy the file again."
    return error
