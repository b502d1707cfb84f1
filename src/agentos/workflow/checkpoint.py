"""Where checkpoints live: the root of the work, its `.agentos` folder, and the database in it."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import asdict as to_dict

from agentos.exceptions import (
    AgentosError,
    CheckpointCorruptedError,
    LeaseHeldError,
    LeaseLostError,
    RunNotFoundError,
    RunRefusedError,
    StateInvariantError,
)
from agentos.ids import CheckpointId, WorkflowId, checkpoint_id
from agentos.machine.events import Checkpointed, StateSaved
from agentos.machine.facts.fold import SavedState, fold, pieces, workflow_state
from agentos.machine.state import WorkflowState, state_from, validate_state_invariants
from agentos.store.holder import current_holder
from agentos.store.port import CheckpointRecord, Lease, NewRun, Progress, StorePort
from agentos.values import encode_plain, encode_value
from agentos.workflow.place import location
from agentos.workflow.place.place import Place, find_place, known_run
from agentos.worktree import git

log = logging.getLogger("agentos")

PATIENCE_S = 10.0
"""How long a save that others get in the way of is tried again."""


def get_repo_root(target: Path | None = None) -> Path:
    """Root of the git repository, linked worktree or submodule that `target` (default: here) lies in."""
    return git.find_repository(location.asked_directory(target)).root


def ensure_agentos_dir(repo_root: Path) -> Path:
    """`.agentos` of that root, private and hidden from git; made or repaired if need be. Safe to repeat and to race.

    Raises WorkflowConfigurationError, and writes nothing, where it is a link, somebody else's, or tracked by git.
    """
    root = location.asked_directory(repo_root)
    # A folder that is no repository's root has no index: nothing in it can be tracked.
    repository = git.find_repository(root) if (root / ".git").exists() else None
    location.check_private(root / location.FOLDER / location.DATABASE, root, repository)
    location.make_private(root / location.FOLDER)
    return repo_root / location.FOLDER


def get_checkpoint_db_path(target: Path | None = None) -> str:
    """Absolute path of the database for work on `target` (default: here), or its PostgreSQL URL.

    Makes the folder, not the file. Raises WorkflowConfigurationError where no place can be settled.
    """
    return location.prepare(location.find_location(target)).database


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A named cut in the journal of a run, with the state at that cut."""

    id: CheckpointId
    workflow_id: WorkflowId
    timestamp: datetime
    layer: int
    """The last finished layer: a resume goes on at the next one."""
    state: WorkflowState
    sequence: int
    snapshot: str = ""
    """The git tree of the worktree's files, where the run has tasks that change files."""
    digest: str = ""
    """Running digest of the journal at this sequence."""


class CheckpointManager:
    """Checkpoints of runs: save, load, list, prune. Synchronous; durable on return.

    Used by itself it keeps runs of its own kind: each save is one event that holds what differs from the last state.
    Given to a ControlledExecutor it says where the executor's runs are kept.
    """

    def __init__(self, path: str | Path | None = None, *, auto_prune: bool = True) -> None:
        self._path = str(path) if path is not None else None
        self._auto_prune = auto_prune
        self._store: StorePort | None = None
        self._last: dict[WorkflowId, _Saved] = {}

    def place(self, root: Path | None = None) -> Place:
        """Where runs of this manager are kept, and which worktree they work on."""
        if self._path is None:
            return find_place(root)
        return Place(database=self._path, root=root or Path.cwd(), named=root is not None)

    def save_checkpoint(self, workflow_id: str, layer: int, state: WorkflowState | Mapping[str, Any]) -> Checkpoint:
        """Write the state down as the newest checkpoint of this run; older ones beyond five go.

        StateInvariantError where the state names another workflow or contradicts itself. Cost: the size of the state.
        """
        state = state if isinstance(state, WorkflowState) else state_from(state)
        validate_state_invariants(state)
        if state.workflow_id != workflow_id:
            raise StateInvariantError(
                f"the state belongs to run {state.workflow_id!r} and cannot be saved for {workflow_id!r}"
            )
        if layer < 0:
            raise StateInvariantError(f"layer {layer!r} is not 0 or more")
        record = self._save_with_retries(WorkflowId(workflow_id), layer, state, _parts(state))
        if self._auto_prune:
            self._prune_quietly(record.workflow_id)
        return record

    def load_checkpoint(self, checkpoint_id: str) -> Checkpoint | None:
        """The checkpoint with its state, or None. CheckpointCorruptedError where a row is damaged."""
        store = self._existing()
        record = store.find_checkpoint(checkpoint_id) if store is not None else None
        return self._with_state(record) if record is not None else None

    def get_latest_checkpoint(self, workflow_id: str) -> Checkpoint | None:
        """The newest checkpoint of the run that counts, by sequence, or None."""
        records = [row for row in self._records(workflow_id) if not row.abandoned]
        return self._with_state(records[-1]) if records else None

    def list_checkpoints(self, workflow_id: str) -> list[Checkpoint]:
        """Every kept checkpoint of the run with its state, oldest first."""
        return [self._with_state(record) for record in self._records(workflow_id)]

    def prune_checkpoints(self, workflow_id: str, keep: int = 5) -> int:
        """Delete all but the newest `keep` checkpoints; how many that were comes back. Events stay."""
        store = self._existing()
        if store is None:
            raise RunNotFoundError(workflow_id)
        return store.prune(WorkflowId(workflow_id), keep)

    def close(self) -> None:
        """Close the store; the manager opens it again when it is used again."""
        if self._store is not None:
            self._store.close()
            self._store = None
            self._last.clear()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- inside --------------------------------------------------------------------------------------------------

    def _open_store(self) -> StorePort:
        if self._store is None:
            self._store = self.place().open(create=True)
        return self._store

    def _existing(self) -> StorePort | None:
        """The store, if there is one: looking makes none."""
        if self._store is None and not self.place().exists():
            return None
        return self._open_store()

    def _records(self, workflow_id: str) -> list[CheckpointRecord]:
        store = self._existing()
        return store.list_checkpoints(WorkflowId(workflow_id)) if store is not None else []

    def _with_state(self, record: CheckpointRecord) -> Checkpoint:
        what = f"checkpoint {record.id} of run {record.workflow_id!r}"
        if not record.workflow_id.strip():
            raise CheckpointCorruptedError(what, "the run it belongs to has a blank id")
        facts = fold(record.workflow_id, self._open_store().read_events(record.workflow_id, upto=record.sequence))
        try:
            # A saved state has its own layer; a run's state at a checkpoint stands in the layer that it closes.
            state = workflow_state(facts, current_layer=None if facts.saved is not None else record.layer)
        except (TypeError, ValueError) as error:  # a saved entry that lacks a field, or has one too many
            raise CheckpointCorruptedError(what, f"its state has a wrong shape: {error}") from error
        validate_state_invariants(state)
        return _checkpoint(record, state)

    def _save_with_retries(
        self, workflow_id: WorkflowId, layer: int, state: WorkflowState, parts: SavedState
    ) -> Checkpoint:
        """Save, however often somebody else saves a state of this run, or begins it, in between."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._save(workflow_id, layer, state, parts)
            except (LeaseLostError, _BegunMeanwhile):
                # What differs is found against theirs.
                self._last.pop(workflow_id, None)
                if time.monotonic() >= until:
                    raise
                time.sleep(random.uniform(0.0, 0.01))  # noqa: S311 (only to break step with the others)

    def _save(self, workflow_id: WorkflowId, layer: int, state: WorkflowState, parts: SavedState) -> Checkpoint:
        store = self._open_store()
        last = self._last.get(workflow_id) or self._claim_run(store, workflow_id)
        now = datetime.now(UTC)
        saved = StateSaved(
            seq=last.sequence + 1,
            at=now,
            workflow_id=workflow_id,
            current_layer=state.current_layer,
            **_difference(last.state, parts),
        )
        sequence = last.sequence + 2
        cut = Checkpointed(
            seq=sequence,
            at=now,
            workflow_id=workflow_id,
            checkpoint_id=checkpoint_id(workflow_id, sequence, now),
            layer=layer,
        )
        store.append(
            last.lease, [saved, cut], Progress(status="complete", layer=layer, layers=0, epoch=0, asked=(), left=())
        )
        self._last[workflow_id] = _Saved(lease=last.lease, sequence=sequence, state=parts)
        record = store.find_checkpoint(cut.checkpoint_id)
        if record is None:
            raise CheckpointCorruptedError(f"checkpoint {cut.checkpoint_id}", "it was written and cannot be read back")
        return _checkpoint(record, state)

    def _claim_run(self, store: StorePort, workflow_id: WorkflowId) -> _Saved:
        """The run with what was saved last, ours to write; made where it does not exist."""
        # A lease of no length: whoever saves next may take it, and the token tells the other one.
        holder = current_holder()
        record = known_run(store, workflow_id)
        if record is None:
            new = NewRun(workflow_id=workflow_id, name=workflow_id, kind="states", created_at=datetime.now(UTC))
            try:
                return _Saved(lease=store.create_run(new, holder, 0.0), sequence=0, state=SavedState())
            except RunRefusedError as error:
                raise _BegunMeanwhile(error.message) from error
        if record.kind != "states":
            if record.holder is not None:
                raise LeaseHeldError(workflow_id, str(record.holder))
            raise RunRefusedError(
                f"run {workflow_id} belongs to a workflow, which cuts its own checkpoints",
                next_step="Save under an id of your own.",
            )
        lease = store.take_lease(workflow_id, holder, 0.0)
        facts = fold(workflow_id, store.read_events(workflow_id))
        return _Saved(lease=lease, sequence=facts.sequence, state=facts.saved or SavedState())

    def _prune_quietly(self, workflow_id: WorkflowId) -> None:
        try:
            count = self._open_store().prune(workflow_id, 5)
        except AgentosError as error:
            log.error("pruning checkpoints of %s failed, tried again at the next save: %s", workflow_id, error)
            return
        if count:
            log.debug("pruned %d checkpoint(s) of %s", count, workflow_id)


class _BegunMeanwhile(RunRefusedError):
    """Another process made the run between our look and our writing."""


def _difference(old: SavedState, new: SavedState) -> dict[str, Any]:
    """The fields of a `state_saved` event that lead from one state to the next."""
    fields: dict[str, Any] = {}
    for name in ("messages", "tasks", "decisions"):
        old_list, new_list = getattr(old, name), getattr(new, name)
        start = _common(old_list, new_list)
        fields[f"{name}_from"] = start
        if len(new_list) > start:
            fields[name] = Raw(b"[" + b",".join(map(bytes, new_list[start:])) + b"]")
    added = {key: value for key, value in new.context.items() if old.context.get(key) != value}
    if added:
        fields["context_set"] = Raw(msgspec.json.encode(added))
    fields["context_removed"] = tuple(key for key in old.context if key not in new.context)
    return fields


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What this manager saved last for a run."""

    lease: Lease
    sequence: int
    state: SavedState


def _parts(state: WorkflowState) -> SavedState:
    context = encode_value(dict(state.context), around=True)
    if not context.startswith(b"{") or b'"$agentos":"dict"' in context[:20]:
        raise StateInvariantError("the context has a key that cannot be stored")
    loose = (part for entry in state.tasks for part in (entry.output, entry.error) if part is not None)
    return SavedState(
        current_layer=state.current_layer,
        messages=pieces(encode_value(list(state.messages), around=True)),
        tasks=pieces(encode_plain(state.tasks, loose) or encode_value(list(map(to_dict, state.tasks)), around=True)),
        decisions=pieces(encode_value(list(state.decisions), around=True)),
        context=msgspec.json.decode(context, type=dict[str, Raw]),
    )


def _common(old: tuple[Raw, ...], new: tuple[Raw, ...]) -> int:
    """How many pieces both begin with."""
    shorter = min(len(old), len(new))
    if old[:shorter] == new[:shorter]:
        return shorter
    return next(index for index in range(shorter) if old[index] != new[index])


def _checkpoint(record: CheckpointRecord, state: WorkflowState) -> Checkpoint:
    return Checkpoint(
        id=record.id,
        workflow_id=record.workflow_id,
        timestamp=record.timestamp,
        layer=record.layer,
        state=state,
        sequence=record.sequence,
        snapshot=record.snapshot,
        digest=record.digest,
    )
