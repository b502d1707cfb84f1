"""Taking in a run that was exported elsewhere: checked as a whole before any of it is written."""

from __future__ import annotations

import platform
import zlib
from pathlib import Path

import msgspec

from agentos import typed
from agentos.exceptions import AgentosError, CheckpointCorruptedError
from agentos.ids import CheckpointId, WorkflowId, checkpoint_id
from agentos.machine import events as ev
from agentos.machine.facts.fold import Facts, fold
from agentos.machine.rules.gates import answer_command
from agentos.store import codec
from agentos.store.port import CheckpointRecord, RunCopy
from agentos.workflow.define.plans import decode_plan
from agentos.workflow.define.workflow_source import SourceRecord
from agentos.workflow.place.place import Place, refuse_bad_id

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


def import_run(place: Place, copy: RunCopy, *, workflow_id: str | None = None) -> Imported:
    """Write the run into this place, under its own id or another; it belongs to this worktree from now on.

    All of it or nothing: RunRefusedError where the id exists, CheckpointCorruptedError where the journal is unsound.
    """
    refuse_bad_id(workflow_id)
    events = _events(copy)
    if workflow_id is not None:
        copy = _rename_run(copy, events, WorkflowId(workflow_id))
        events = _events(copy)
    facts = _fold_events(copy, events)
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


def _fold_events(copy: RunCopy, events: list[ev.Event]) -> Facts:
    try:
        return fold(copy.run.workflow_id, events)
    except _UNFOLDABLE as error:
        raise CheckpointCorruptedError(f"the journal of run {copy.run.workflow_id}", f"{error!r}") from error


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
    return source if inside and not record.maker and _is_named_after(root / record.file, record.module) else ""


def _is_named_after(file: Path, module: str) -> bool:
    """Whether this name is the file's own, so that an import by it leads there and nowhere else."""
    path = file.parent if file.name == "__init__.py" else file.with_suffix("")
    names = tuple(module.split("."))
    return module in ("", "__main__", path.name) or path.parts[-len(names) :] == names


# --- another id ---------------------------------------------------------------------------------------------------


def _rename_run(copy: RunCopy, events: list[ev.Event], new: WorkflowId) -> RunCopy:
    """The same run under another id: its events say so, its checkpoints get ids of their own, digests are anew."""
    cuts: dict[str, CheckpointId] = {
        event.checkpoint_id: checkpoint_id(new, event.seq, event.at)
        for event in events
        if isinstance(event, ev.Checkpointed)
    }
    renamed = [_event_of(event, new, cuts) for event in events]
    rows, blobs = codec.encode_events(renamed, codec.first_digest(new))
    digests = {row.seq: row.digest.hex() for row in rows}
    return msgspec.structs.replace(
        copy,
        run=msgspec.structs.replace(copy.run, workflow_id=new),
        rows=tuple(rows),
        blobs=blobs,
        checkpoints=tuple(_cut_of(cut, new, cuts, digests) for cut in copy.checkpoints),
    )


def _event_of(event: ev.Event, new: WorkflowId, cuts: dict[str, CheckpointId]) -> ev.Event:
    event = msgspec.structs.replace(event, workflow_id=new)
    if isinstance(event, ev.Checkpointed | ev.RolledBack):
        return msgspec.structs.replace(event, checkpoint_id=cuts.get(event.checkpoint_id, event.checkpoint_id))
    if isinstance(event, ev.DecisionRequired):
        return msgspec.structs.replace(event, command=answer_command(new, event.gate_id, event.choices))
    return event


def _cut_of(
    cut: CheckpointRecord, new: WorkflowId, cuts: dict[str, CheckpointId], digests: dict[int, str]
) -> CheckpointRecord:
    if cut.id not in cuts or cut.sequence not in digests:
        raise CheckpointCorruptedError(f"checkpoint {cut.id}", "no checkpoint event stands at its sequence")
    return msgspec.structs.replace(cut, id=cuts[cut.id], workflow_id=new, digest=digests[cut.sequence])
