"""Rows of lists to the records of the port."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import msgspec

from agentos import typed
from agentos.exceptions import CheckpointCorruptedError, RunRefusedError
from agentos.ids import CheckpointId, WorkflowId
from agentos.machine.events import Checkpointed
from agentos.store.codec import CODES, from_microseconds
from agentos.store.port import (
    HERE,
    CheckpointRecord,
    Holder,
    NewRun,
    PostedCommand,
    RunRecord,
    RunStatus,
    Scope,
)
from agentos.values import decode_value

R = TypeVar("R", RunRecord, CheckpointRecord)

_UNDRIVEN: tuple[RunStatus, ...] = ("pending", "running")
_TOLD_BY_LEASE: frozenset[RunStatus] = frozenset((*_UNDRIVEN, "interrupted"))
_decode_cut = typed.decoder(Checkpointed).decode
_decode_labels = msgspec.json.Decoder(tuple[str, ...]).decode


def run_record(
    stands: Sequence[Any], origin: Sequence[Any], *, holder: Holder | None, lease_until: int, scope: Scope = HERE
) -> RunRecord:
    """A run from the columns before its lease and after it; `holder` drives it now, if anybody does.

    One that should be going and has no driver was interrupted.
    """
    id_, name, kind, status, layer, layers, epoch, sequence, revision = stands
    created_at, updated_at, source, root, host, fingerprint, parent_id, stored = origin
    try:
        labels = () if stored == "[]" else _decode_labels(stored)  # as of nearly all
    except msgspec.DecodeError as error:
        raise CheckpointCorruptedError(f"run {id_}", f"its labels cannot be read: {error}") from error
    return RunRecord(
        workflow_id=WorkflowId(id_),
        name=name,
        kind=kind,
        status="interrupted" if holder is None and status in _UNDRIVEN else status,
        layer=layer,
        layers=layers,
        created_at=from_microseconds(created_at),
        updated_at=from_microseconds(updated_at),
        sequence=sequence,
        epoch=epoch,
        source=source,
        root=root,
        host=host,
        fingerprint=fingerprint,
        parent_id=parent_id,
        plan_revision=revision,
        holder=holder,
        lease_until=from_microseconds(lease_until) if lease_until else None,
        scope=scope,
        labels=labels,
    )


def origin_columns(run: NewRun | RunRecord) -> tuple[str | None, ...]:
    """Where a run comes from, as both stores keep it; labels are a list in JSON."""
    return (run.source, run.root, run.host, run.fingerprint, run.parent_id, encoded_labels(run.labels))


def stored_statuses(asked: Collection[RunStatus]) -> list[str]:
    """Where to look for runs in one of these statuses: an interrupted one is stored as it was when its driver died."""
    return sorted({*asked, *(_UNDRIVEN if "interrupted" in asked else ())})


def must_be_told_apart(asked: Collection[RunStatus]) -> bool:
    """Whether runs are stored under these statuses that are in another one: only their leases tell."""
    return 0 < len(_TOLD_BY_LEASE.intersection(asked)) < len(_TOLD_BY_LEASE)


def askable_labels(labels: Collection[str]) -> tuple[str, ...]:
    """Those that a run can have: bytes from the command line that are no text name none."""
    return tuple(label for label in labels if "\0" not in label and label.isprintable())


def encoded_labels(labels: tuple[str, ...]) -> str:
    """As both stores keep them: a list in JSON."""
    return msgspec.json.encode(labels).decode()


def checkpoint_record(row: Sequence[Any]) -> CheckpointRecord:
    """A row of `find_checkpoints` or `list_checkpoints`, held against the event that made it."""
    id_, workflow_id, layer, sequence, at, snapshot, abandoned, digest = row[:8]
    event_at, code, body, event_digest = row[8:12]
    shared = row[12:]
    what = f"checkpoint {id_} of run {workflow_id}"
    if code != CODES[Checkpointed]:
        raise CheckpointCorruptedError(what, "no checkpoint event stands at its sequence")
    if digest != event_digest:
        raise CheckpointCorruptedError(what, "its digest is not that of its sequence")
    try:
        cut = _decode_cut(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointCorruptedError(what, f"its event cannot be read: {error}") from error
    if (id_, layer, at, snapshot) != (cut.checkpoint_id, cut.layer, event_at, cut.snapshot):
        raise CheckpointCorruptedError(what, "it differs from the event that made it")
    return CheckpointRecord(
        id=CheckpointId(id_),
        workflow_id=WorkflowId(workflow_id),
        layer=layer,
        sequence=sequence,
        timestamp=from_microseconds(at),
        snapshot=snapshot,
        abandoned=bool(abandoned),
        digest=digest.hex(),
        scope=Scope(repository=shared[0], worktree=shared[1]) if shared else HERE,
    )


def posted_command(row: Sequence[Any]) -> PostedCommand:
    """A row of `read_inbox`."""
    id_, at, author, attempt_id, body = row[:5]
    return PostedCommand(
        id=id_,
        author=author,
        attempt_id=attempt_id,
        posted_at=from_microseconds(at),
        command=decode_value(body),
    )


def is_text(given: str) -> bool:
    """Whether anything stored can begin so: bytes from the command line that are no text name nothing."""
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return bool(given)


def only_one(what: str, given: str, rows: Sequence[Sequence[Any]], record: Callable[[Sequence[Any]], R]) -> R:
    """The one that has this id, or alone begins with it. RunRefusedError where there are several, in any scopes."""
    meant = [row for row in rows if row[0] == given] or rows
    if len(meant) == 1:
        return record(meant[0])
    found = [record(row) for row in meant]
    more = len(meant) > 3
    if len({one.scope for one in found}) == 1:
        listed = ", ".join(row[0] for row in meant[:3]) + (", …" if more else "")
        raise RunRefusedError(f"several {what} begin with {given!r}: {listed}", next_step="Give more of the id.")
    # In a shared database the same id may well be another run.
    listed = "".join(f"\n  {_describe(one)}" for one in found[:3]) + ("\n  …" if more else "")
    raise RunRefusedError(
        f"several worktrees have {what} that begin with {given!r}:{listed}",
        next_step="Say which is meant: --repo PATH, a clone or worktree of it on this host. Or give more of the id.",
    )


def _describe(record: RunRecord | CheckpointRecord) -> str:
    worktree = f", its worktree {record.scope.worktree}" if record.scope.worktree else ""
    of = f"of {record.scope.repository}{worktree}"
    if isinstance(record, CheckpointRecord):
        return f"{record.id} of run {record.workflow_id}, {of}"
    where = f", of {record.root}" if record.root else ""
    return f"{record.workflow_id} {of}{where}{f' on {record.host}' if record.host else ''}"
