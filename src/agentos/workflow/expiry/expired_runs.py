"""Which runs of a worktree may go, and what they take."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from agentos.ids import EPOCH
from agentos.store.port import RunMark, RunRecord, StorePort
from agentos.workflow.drive.logs import logs_folder, run_folder
from agentos.workflow.expiry.rules import Expiry
from agentos.workflow.place.inspection import size_up
from agentos.workflow.place.place import Place, is_of_another_host


class RunsSize(msgspec.Struct, frozen=True, kw_only=True):
    """What some runs take."""

    events: int
    database_bytes: int
    """About: their share of the database, by events."""
    log_bytes: int


def find_expired(place: Place, store: StorePort, expiry: Expiry, now: datetime) -> list[RunRecord]:
    """The runs of this worktree that may go, oldest first. Never one that is driven, or waits for an answer.

    What it reads grows with the runs that are old enough, not with those there are. States that a CheckpointManager
    keeps are no runs that end.
    """
    found: list[RunRecord] = []
    for status, age in expiry.ages.items():
        if status == "waiting" or age > now - EPOCH:  # nothing can be as old as that
            continue
        before = now - age
        older = store.list_runs(statuses={status}, labels=expiry.labels, before=RunMark(created_at=before))
        found += [run for run in older if run.updated_at <= before]
    found = [run for run in found if run.kind == "workflow" and run.holder is None and is_own(place, run)]
    if expiry.keep_last:
        kept = {run.workflow_id for name in {run.name for run in found} for run in _newest(place, store, expiry, name)}
        found = [run for run in found if run.workflow_id not in kept]
    return sorted(found, key=lambda run: (run.created_at, run.workflow_id))


def _newest(place: Place, store: StorePort, expiry: Expiry, name: str) -> Sequence[RunRecord]:
    limit = expiry.keep_last
    while True:
        runs = store.list_runs(statuses=set(expiry.ages), labels=expiry.labels, name=name, limit=limit)
        own = [run for run in runs if is_own(place, run)]
        if len(own) >= expiry.keep_last or len(runs) < limit:
            return own[: expiry.keep_last]
        limit *= 4  # others work in the same database


def is_own(place: Place, run: RunRecord) -> bool:
    """Whether a run is of this very worktree: a database may serve others, and a server's other hosts."""
    return run.root in (str(place.root), "") and not is_of_another_host(place, run)


def measure_runs(place: Place, runs: Sequence[RunRecord]) -> RunsSize:
    """What these runs take, without reading them."""
    database, events = size_up(place), sum(run.sequence for run in runs)
    share = events / database.events if database.events else 0.0
    return RunsSize(
        events=events, database_bytes=int(database.bytes * min(share, 1.0)), log_bytes=_log_bytes(place, runs)
    )


def _log_bytes(place: Place, runs: Iterable[RunRecord]) -> int:
    folder = logs_folder(place.kept_beside)
    if folder is None or not folder.is_dir():
        return 0
    folders = (run_folder(place.kept_beside, run.workflow_id) for run in runs)
    return sum(folder_bytes(one) for one in folders if one is not None)


def folder_bytes(folder: Path | None) -> int:
    """All files below, links not followed."""
    total = 0
    for place, _, names in os.walk(folder or ""):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:  # gone meanwhile
                continue
    return total
