"""Submitting a run: it is written down with the commit and the files it is about, for a worker to take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.plan import Plan
from agentos.exceptions import (
    NothingToCaptureError,
    RunRefusedError,
    SnapshotError,
    TryAgainError,
)
from agentos.ids import WorkflowId, new_id
from agentos.store.port import RunRecord, Waiting
from agentos.workflow.define.plans import checked_queues
from agentos.workflow.files.decisions import has_file_tasks
from agentos.workflow.place.origin import NO_ORIGIN, SubmittedFrom, encode_origin, head_commit
from agentos.workflow.place.place import Place
from agentos.workflow.start.new_run import admit_run
from agentos.workflow.start.ready_run import DriveOptions, closed_on_error, signers_for

MOST_PRIORITY = 1_000_000
LONGEST_DELAY_S = 10 * 366 * 86_400.0


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is on record."""

    record: RunRecord
    existed: bool
    """It was there before, with the same definition and parameters; nothing was changed."""


def submit_run(
    place: Place,
    workflow: Workflow,
    params: Mapping[str, Any] | None,
    workflow_id: str | None,
    options: DriveOptions,
    *,
    waiting: Waiting,
    labels: Iterable[str] = (),
) -> Submitted:
    """A new run that a worker is to take; the run of this id, where that exists with the same definition.

    QueueFullError where the workflow limits how many there are, and has one more refused.
    """
    waiting = checked_waiting(waiting)
    admitted = admit_run(place, workflow, params, workflow_id, options, labels)
    store = place.open(create=True)
    with closed_on_error(store):
        if (known := admitted.find_known(store)) is not None:
            store.close()
            return Submitted(record=known, existed=True)
        run = admitted.new_run(place, store, admitted.plan)
        if not run.source:
            raise RunRefusedError(
                f"workflow {workflow.name!r} was not defined in a file, so that no worker can find it",
                next_step="Define it in a file, or use `run`.",
            )
        signers_for(admitted.plan, place.root)
        found = submission_origin(place, admitted.plan, run.workflow_id)
        waiting = replace(waiting, submitted_from=encode_origin(found) if found != NO_ORIGIN else "")
        setting = admitted.plan.settings.queue
        existed = False
        try:
            store.submit_run(run, waiting, refuse_full=setting is not None and setting.on_full == "refuse")
        except RunRefusedError:
            existed = admitted.find_known(store) is not None  # somebody else submitted it at the same time
            if not existed:
                raise
        record = store.find_run(run.workflow_id)
    store.close()
    return Submitted(record=record, existed=existed)


def checked_waiting(waiting: Waiting) -> Waiting:
    """RunRefusedError where a queue cannot be called so, or a number or time makes no sense."""
    checked_queues((waiting.queue,) if waiting.queue else ())
    if abs(waiting.priority) > MOST_PRIORITY:
        raise RunRefusedError(
            f"a priority of {waiting.priority} is out of range",
            next_step=f"Give one between -{MOST_PRIORITY} and {MOST_PRIORITY}; 0 is that of a run without one.",
        )
    if not 0 <= waiting.delay_s <= LONGEST_DELAY_S:
        raise RunRefusedError(
            f"a run cannot be delayed by {waiting.delay_s:g} seconds", next_step="Give a delay of up to ten years."
        )
    if waiting.ready_at is not None and waiting.ready_at.tzinfo is None:
        raise RunRefusedError(
            f"{waiting.ready_at.isoformat()} says no time zone",
            next_step="Give an aware time: datetime.now(UTC) + timedelta(hours=1).",
        )
    return waiting


def submission_origin(place: Place, plan: Plan, workflow_id: WorkflowId) -> SubmittedFrom:
    """What the run is about, kept; NO_ORIGIN where there is no repository."""
    if not has_file_tasks(plan):
        return SubmittedFrom(commit=head_commit(place.root))
    from agentos.worktree.snapshots.snapshots import take  # few runs get here
    from agentos.worktree.snapshots.store import open_worktree

    try:
        snapshot = take(open_worktree(place.root), workflow_id=workflow_id, name=new_id())
    except NothingToCaptureError:
        return NO_ORIGIN
    except SnapshotError as error:
        raise TryAgainError(
            f"the files of {place.root} cannot be captured now: {error.message}", next_step=error.next_step
        ) from error
    return SubmittedFrom(commit=snapshot.head.oid or "", tree=snapshot.tree, snapshot=snapshot.id)
