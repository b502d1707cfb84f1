"""Carrying a run from one place to another: its journal, and with it the snapshots of the files it changed.

One that was exported elsewhere is checked as a whole before any of it is written.
"""

from __future__ import annotations

import platform
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from agentos import typed
from agentos.exceptions import AgentosError, CheckpointCorruptedError, NotFoundError, RunRefusedError, SnapshotError
from agentos.ids import CheckpointId, WorkflowId, checkpoint_id
from agentos.machine import events as ev
from agentos.machine.facts.fold import fold
from agentos.machine.rules.gates import answer_command
from agentos.store import codec
from agentos.store.port import CheckpointRecord, RunCopy
from agentos.workflow.define.plans import decode_plan
from agentos.workflow.define.workflow_source import SourceRecord
from agentos.workflow.place.place import Place, known_run, refuse_bad_id
from agentos.workflow.place.run_search import reading
from agentos.workflow.transfer.export_file import export_lines, read_export
from agentos.worktree.snapshots.bundles import take_bundle, write_bundle
from agentos.worktree.snapshots.retention import forget
from agentos.worktree.snapshots.store import known_worktree, open_worktree

BUNDLE = "snapshots.bundle"
MAX_PLAN_BYTES = 256 * 1024 * 1024

_UNFOLDABLE = (AgentosError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What folding or planning raises on events that the codec can read and that make no sense together."""


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is here now."""

    workflow_id: str
    name: str
    status: str
    events: int
    source_dropped: bool
    """Its workflow was defined outside the repository; where, is not taken over."""
    snapshots: int = 0
    """Snapshots of files that came with it."""


def export_run(place: Place, copy: RunCopy, *, version: str, files: bool) -> Iterator[bytes]:
    """The lines of the file. With `files`, SnapshotError at once where this host has no snapshot of the run."""
    if not files:
        return export_lines(copy, version=version)
    folder = tempfile.TemporaryDirectory(prefix="agentos-")
    try:
        bundle = Path(folder.name) / BUNDLE
        root = Path(copy.run.root) if copy.run.root and Path(copy.run.root).is_dir() else place.root
        worktree = known_worktree(root)
        if worktree is None or not write_bundle(worktree, copy.run.workflow_id, bundle):
            raise SnapshotError(
                f"there are no snapshots of files of run {copy.run.workflow_id} in {root}",
                next_step="Export it where it was driven, or without --files.",
            )
    except BaseException:
        folder.cleanup()
        raise
    return _with_bundle(copy, version, bundle, folder)


def _with_bundle(
    copy: RunCopy, version: str, bundle: Path, folder: tempfile.TemporaryDirectory[str]
) -> Iterator[bytes]:
    with folder, bundle.open("rb") as opened:
        yield from export_lines(copy, version=version, bundle=opened)


def import_run_file(
    place: Place, file: IO[bytes], name: str, *, workflow_id: str | None = None, files_only: bool = False
) -> Imported:
    """The run of the file, here from now on: snapshots first, so that the journal never names a missing one."""
    with tempfile.TemporaryDirectory(prefix="agentos-") as folder:
        bundle = Path(folder) / BUNDLE
        with bundle.open("wb") as opened:
            copy = read_export(file, name, opened)
        came = bundle.stat().st_size > 0
        given = workflow_id or copy.run.workflow_id
        if not files_only:
            refuse_bad_id(workflow_id)
            return _whole(place, copy, bundle if came else None, given)
        if not came:
            raise RunRefusedError(
                f"{name} holds no snapshots of files", next_step="Export the run with --files, where they are."
            )
        with reading(place) as store:
            record = store.find_run(given)
        count = take_bundle(
            open_worktree(place.root), bundle, came_as=copy.run.workflow_id, workflow_id=record.workflow_id
        )
        return Imported(
            workflow_id=record.workflow_id,
            name=record.name,
            status=record.status,
            events=0,
            source_dropped=False,
            snapshots=count,
        )


def _whole(place: Place, copy: RunCopy, bundle: Path | None, workflow_id: str) -> Imported:
    """Snapshots first: the journal never names a missing one. What the journal then refuses is let go of again."""
    renamed = workflow_id if workflow_id != copy.run.workflow_id else None
    known = None
    with suppress(NotFoundError), reading(place) as store:  # no database yet
        known = known_run(store, workflow_id)
    if bundle is None or known is not None:  # which is refused, with its own words
        return import_run(place, copy, workflow_id=renamed)
    worktree = open_worktree(place.root)
    count = take_bundle(worktree, bundle, came_as=copy.run.workflow_id, workflow_id=workflow_id)
    try:
        imported = import_run(place, copy, workflow_id=renamed)
    except BaseException:
        forget(worktree, workflow_id)
        raise
    return msgspec.structs.replace(imported, snapshots=count)


# --- the journal --------------------------------------------------------------------------------------------------


def import_run(place: Place, copy: RunCopy, *, workflow_id: str | None = None) -> Imported:
    """Write the run into this place, under its own id or another; it belongs to this worktree from now on.

    All of it or nothing: RunRefusedError where the id exists, CheckpointCorruptedError where the journal is unsound.
    """
    refuse_bad_id(workflow_id)
    events = _events(copy)
    if workflow_id is not None:
        copy = _rename_run(copy, events, WorkflowId(workflow_id))
        events = _events(copy)
    try:
        facts = fold(copy.run.workflow_id, events)
    except _UNFOLDABLE as error:
        raise CheckpointCorruptedError(f"the journal of run {copy.run.workflow_id}", f"{error!r}") from error
    _check_plans(copy)
    source = _source_here(copy.run.source, place.root)
    run = msgspec.structs.replace(copy.run, root=str(place.root), host=platform.node(), source=source)
    if run.kind == "workflow" and events:  # what lists show follows from the journal, whatever the file says
        run = msgspec.structs.replace(run, status=facts.status, layer=facts.current_layer, epoch=facts.epoch)
    store = place.open(create=True)
    try:
        store.insert_copy(msgspec.structs.replace(copy, run=run))
        status = store.find_run(run.workflow_id).status
    finally:
        store.close()
    return Imported(
        workflow_id=run.workflow_id,
        name=run.name,
        status=status,
        events=len(events),
        source_dropped=source != copy.run.source,
    )


def _events(copy: RunCopy) -> list[ev.Event]:
    """The journal, its digest chain checked."""
    id_ = copy.run.workflow_id
    first = codec.first_digest(id_)
    return codec.decode_rows(id_, copy.rows, after=0, previous=first, blobs=copy.blobs.get)[0]


def _check_plans(copy: RunCopy) -> None:
    for revision, body in enumerate(copy.plans, 1):
        what = f"plan revision {revision} of run {copy.run.workflow_id}"
        try:
            unpacking = zlib.decompressobj()
            unpacking.decompress(body, MAX_PLAN_BYTES)
            if unpacking.unconsumed_tail:
                raise CheckpointCorruptedError(what, "it is larger than any plan")
            decode_plan(body)
        except (*_UNFOLDABLE, zlib.error) as error:
            raise CheckpointCorruptedError(what, str(error)) from error
    if copy.run.kind == "workflow" and not copy.plans:
        raise CheckpointCorruptedError(f"run {copy.run.workflow_id}", "it has no plan")


def _source_here(source: str, root: Path) -> str:
    """Where the workflow is defined, if that is a file of this repository: no import may name another one to load.

    Nor may it say what a workflow is made from: that could be a command. And a name that is not the file's own would
    have another module imported, wherever that is found.
    """
    if not source:
        return ""
    try:
        record = typed.decode(source, SourceRecord)
        inside = (root / record.file).resolve().is_relative_to(root.resolve())
    except (ValueError, OSError):
        return ""
    file, module = root / record.file, record.module
    path = file.parent if file.name == "__init__.py" else file.with_suffix("")
    names = tuple(module.split("."))
    is_own_name = module in ("", "__main__", path.name) or path.parts[-len(names) :] == names
    return source if inside and not record.maker and is_own_name else ""


# --- another id ---------------------------------------------------------------------------------------------------


def _rename_run(copy: RunCopy, events: list[ev.Event], new: WorkflowId) -> RunCopy:
    """The same run under another id: its events say so, its checkpoints get ids of their own, digests are anew."""
    cuts: dict[str, CheckpointId] = {
        event.checkpoint_id: checkpoint_id(new, event.seq, event.at)
        for event in events
        if isinstance(event, ev.Checkpointed)
    }
    renamed: list[ev.Event] = []
    for event in events:
        event = msgspec.structs.replace(event, workflow_id=new)
        if isinstance(event, ev.Checkpointed | ev.RolledBack):
            event = msgspec.structs.replace(event, checkpoint_id=cuts.get(event.checkpoint_id, event.checkpoint_id))
        elif isinstance(event, ev.DecisionRequired):
            command = answer_command(new, event.gate_id, event.choices, signed=event.by == "signed")
            event = msgspec.structs.replace(event, command=command)
        renamed.append(event)
    rows, blobs = codec.encode_events(renamed, codec.first_digest(new))
    digests = {row.seq: row.digest.hex() for row in rows}
    checkpoints: list[CheckpointRecord] = []
    for cut in copy.checkpoints:
        if cut.id not in cuts or cut.sequence not in digests:
            raise CheckpointCorruptedError(f"checkpoint {cut.id}", "no checkpoint event stands at its sequence")
        digest = digests[cut.sequence]
        checkpoints.append(msgspec.structs.replace(cut, id=cuts[cut.id], workflow_id=new, digest=digest))
    run = msgspec.structs.replace(copy.run, workflow_id=new)
    return msgspec.structs.replace(copy, run=run, rows=tuple(rows), blobs=blobs, checkpoints=tuple(checkpoints))
