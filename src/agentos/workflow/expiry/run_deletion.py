"""Runs deleted with all they have, and the checkpoints of many pruned: in batches, so that nobody else waits for long.

A batch is written down, then gone from the database as a whole, then its logs and snapshots go. Whoever is killed in
between leaves runs that are all there, and runs of which nothing but files is left; the next one removes those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from agentos import crashpoints
from agentos.exceptions import LeaseHeldError, NotFoundError
from agentos.ids import WorkflowId
from agentos.store.port import PrunedRun, RunRecord, StorePort
from agentos.workflow.drive.logs import delete_logs, refuse_foreign
from agentos.workflow.expiry.deletion_note import DeletionNote, NotedRun, deletion_note, has_note, note_of, settle
from agentos.workflow.files.retention import forget_runs_snapshots, forget_unnamed_snapshots
from agentos.workflow.place.place import Place, known_run
from agentos.workflow.place.run_search import reading

MOST_RUNS = 200
MOST_EVENTS = 20_000
"""So much is deleted in one transaction, or one run."""


def delete_runs(
    place: Place,
    store: StorePort,
    runs: Sequence[RunRecord],
    *,
    tell: Callable[[int], None] = lambda done: None,
    wanted: Callable[[], bool] = lambda: True,
) -> list[WorkflowId]:
    """Delete those of the runs that nobody drives and that stand as they were listed; the ids of all that are gone.

    After each batch `tell` is called with how many are gone, and where `wanted` gives False no other begins.
    TryAgainError where somebody else deletes here. Snapshots in a worktree whose files a run changes at this moment go
    with the next deletion.
    """
    refuse_foreign(place.kept_beside)
    for run in runs:
        refuse_foreign(place.kept_beside, run.workflow_id)
    gone: list[WorkflowId] = []
    with deletion_note(place.kept_beside) as note:
        left = _finish(place, store, note)
        for batch in batches(runs):
            if note is not None:
                note.add(map(note_of, batch))
            crashpoints.reach("delete.noted")
            deleted = set(store.delete_runs(batch))
            crashpoints.reach("delete.after")
            left += _remove_files(place, [note_of(run) for run in batch if run.workflow_id in deleted])
            gone += [run.workflow_id for run in batch if run.workflow_id in deleted]
            tell(len(gone))
            if not wanted():
                break
        settle(place.kept_beside, note, left)
    return gone


def delete_run(place: Place, store: StorePort, workflow_id: str) -> None:
    """Delete one run, as it stands. LeaseHeldError while somebody drives it; RunNotFoundError."""
    while True:
        run = store.find_run(workflow_id)
        if run.holder is not None:
            raise LeaseHeldError(run.workflow_id, str(run.holder))
        if delete_runs(place, store, [run]):
            return
        # Somebody wrote to it meanwhile: it is looked at again.


def finish_deletions(place: Place) -> None:
    """Bring to its end what was written down to be deleted by somebody who was killed."""
    if not has_note(place.kept_beside):
        return
    try:
        with reading(place) as store, deletion_note(place.kept_beside) as note:
            settle(place.kept_beside, note, _finish(place, store, note))
    except NotFoundError:  # no database: what is left of runs is told by the doctor
        return


def batches(runs: Iterable[RunRecord]) -> Iterator[list[RunRecord]]:
    """The runs in order, so many at a time that deleting them takes little."""
    batch: list[RunRecord] = []
    events = 0
    for run in runs:
        if batch and (len(batch) >= MOST_RUNS or events + run.sequence > MOST_EVENTS):
            yield batch
            batch, events = [], 0
        batch.append(run)
        events += run.sequence
    if batch:
        yield batch


def _finish(place: Place, store: StorePort, note: DeletionNote | None) -> list[NotedRun]:
    """Remove the files of runs that were noted and are gone; what could not be removed now.

    One that is there was never deleted, or was begun anew since.
    """
    gone = [one for one in note.read() if known_run(store, one.run) is None] if note is not None else []
    return _remove_files(place, gone)


def _remove_files(place: Place, runs: Sequence[NotedRun]) -> list[NotedRun]:
    """Logs, then snapshots, of runs that are gone from the database; those whose snapshots have to wait."""
    for run in runs:
        delete_logs(place.kept_beside, run.run)
    left: list[NotedRun] = []
    for root, some in groupby(sorted(runs, key=lambda one: one.root), key=lambda one: one.root):
        theirs = list(some)
        where = place.root if place.named or not root else Path(root)
        if not forget_runs_snapshots(where, [one.run for one in theirs]):
            left += theirs
    return left


def prune_runs(place: Place, store: StorePort, runs: Sequence[RunRecord], keep: int) -> list[PrunedRun]:
    """Prune the checkpoints of many runs, with the snapshots that only those named."""
    pruned = store.prune_runs([run.workflow_id for run in runs], keep)
    for root, some in groupby(sorted(runs, key=lambda one: one.root), key=lambda one: one.root):
        forget_unnamed_snapshots(place.root if place.named or not root else Path(root), store, list(some))
    return pruned
