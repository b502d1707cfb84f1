"""Carrying a run from one place to another: its journal, and with it the snapshots of the files it changed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from agentos.exceptions import NotFoundError, RunRefusedError, SnapshotError
from agentos.store.port import RunCopy
from agentos.workflow.place.place import Place, known_run, refuse_bad_id
from agentos.workflow.place.run_search import reading
from agentos.workflow.transfer.export_file import export_lines, read_export
from agentos.workflow.transfer.import_file import Imported, import_run
from agentos.worktree.snapshots.bundles import take_bundle, write_bundle
from agentos.worktree.snapshots.retention import forget
from agentos.worktree.snapshots.store import known_worktree, open_worktree

BUNDLE = "snapshots.bundle"


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
    if bundle is None or _is_here(place, workflow_id):  # which is refused, with its own words
        return import_run(place, copy, workflow_id=renamed)
    worktree = open_worktree(place.root)
    count = take_bundle(worktree, bundle, came_as=copy.run.workflow_id, workflow_id=workflow_id)
    try:
        imported = import_run(place, copy, workflow_id=renamed)
    except BaseException:
        forget(worktree, workflow_id)
        raise
    return msgspec.structs.replace(imported, snapshots=count)


def _is_here(place: Place, workflow_id: str) -> bool:
    try:
        with reading(place) as store:
            return known_run(store, workflow_id) is not None
    except NotFoundError:  # no database yet
        return False
