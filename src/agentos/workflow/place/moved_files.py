"""Runs that changed files, and worktrees that do not have those files."""

from __future__ import annotations

import shlex

from agentos.exceptions import RunRefusedError, SnapshotNotFoundError
from agentos.machine.facts.fold import Facts
from agentos.store.port import RunRecord
from agentos.workflow.files.decisions import Decided, FilesChoice
from agentos.workflow.place.place import Place


def refuse_files_elsewhere(
    place: Place, record: RunRecord, facts: Facts, decided: Decided, choice: FilesChoice
) -> None:
    """RunRefusedError where the run has changed files, and this worktree does not have them as they were then.

    Its later tasks would work on files without what the earlier ones did to them. Where its newest snapshot was taken
    in this very worktree, they are here, whatever was done to them since; also where they are just like it. Otherwise
    somebody has to say what is wanted: to put them back, or to go on with what is here.
    """
    if facts.files is None or not facts.files.snapshot or choice == "keep":
        return
    from agentos.worktree.snapshots.snapshots import find, is_unchanged
    from agentos.worktree.snapshots.store import known_worktree  # most runs change no files

    run = shlex.quote(record.workflow_id)
    worktree = known_worktree(place.root)
    try:
        newest = None if worktree is None else find(worktree, facts.files.snapshot)
    except SnapshotNotFoundError:
        newest = None
    if worktree is None or newest is None:
        if not place.is_shared and record.root == str(place.root):
            raise RunRefusedError(
                f"run {record.workflow_id} has changed files here, and the snapshots of them are gone (was the "
                "repository cloned again, or the run imported without its files?)",
                next_step=f"See to it that the files are as the run left them, then `agentos resume {run} --files keep`"
                ". Of an imported run: `agentos import run.jsonl --files-only` of an export with --files.",
            )
        raise RunRefusedError(
            f"run {record.workflow_id} has changed files in {record.root or 'another worktree'}, and they are not on "
            "this host: snapshots of files stay in the repository they were taken in",
            next_step=f"There: `agentos export {run} --files -o run.jsonl`. Here: `agentos import run.jsonl "
            f"--files-only`, then `agentos resume {run} --repo . --restore-files`. Or resume it there. "
            "`--files keep` goes on with the files as they are here.",
        )
    if newest.manifest.place == worktree.identity or (decided.target and choice != "ask"):
        return
    if not is_unchanged(worktree, newest):
        raise RunRefusedError(
            f"run {record.workflow_id} has changed files in another worktree, and those of {place.root} are not like "
            "them: its next tasks would work without what the earlier ones did",
            next_step=f"`agentos resume {run} --repo . --restore-files` puts them in place (what is there now is kept "
            "for `agentos undo`); `--files keep` goes on with the files as they are here.",
        )
