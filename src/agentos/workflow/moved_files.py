"""Runs that changed files, and hosts that do not have those files."""

from __future__ import annotations

import shlex

from agentos.exceptions import RunRefusedError, SnapshotNotFoundError
from agentos.run.facts import Facts
from agentos.store.port import RunRecord
from agentos.workflow.place import Place


def refuse_files_elsewhere(place: Place, record: RunRecord, facts: Facts) -> None:
    """RunRefusedError where the run has changed files and its snapshots are in a repository that is not this one.

    Its later tasks would work on files without what the earlier ones did to them.
    """
    if facts.files is None or not facts.files.snapshot:
        return
    if not place.is_shared and record.root in ("", str(place.root)):
        return
    from agentos.worktree.snapshot_store import known_worktree
    from agentos.worktree.snapshots import find

    worktree = known_worktree(place.root)
    try:
        if worktree is not None:
            find(worktree, facts.files.snapshot)
            return
    except SnapshotNotFoundError:
        pass
    run = shlex.quote(record.workflow_id)
    raise RunRefusedError(
        f"run {record.workflow_id} has changed files in {record.root}, and they are not on this host: "
        "snapshots of files stay in the repository they were taken in",
        next_step=f"There: `agentos export {run} --files -o run.jsonl`. Here: `agentos import run.jsonl --files-only`, "
        f"then `agentos resume {run} --repo . --restore-files`. Or resume it there.",
    )
