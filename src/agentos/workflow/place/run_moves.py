"""Runs that are resumed in another worktree than the one they belong to: never unasked, and then they belong there.

On a shared database that may be a clone on another host, a linked worktree, or the very same folder, which is known by
another name since its remote changed.
"""

from __future__ import annotations

import logging
import platform
import shlex
from typing import TYPE_CHECKING

import msgspec

from agentos.exceptions import AgentosError, NotFoundError, RunRefusedError, SnapshotNotFoundError
from agentos.store.port import HERE, Lease, RunRecord, Scope, StorePort
from agentos.workflow.place.place import Place, is_home, is_of_another_host, was_begun_here
from agentos.workflow.place.run_search import find_run_or_checkpoint, reading

if TYPE_CHECKING:
    from agentos.machine.facts.fold import Facts
    from agentos.workflow.files.decisions import Decided, FilesChoice

log = logging.getLogger("agentos")


def refuse_elsewhere(place: Place, record: RunRecord) -> None:
    """RunRefusedError where the run belongs to another worktree or host, and nobody said that it has moved here."""
    if place.named or not record.root:
        return
    if is_of_another_host(place, record):
        raise RunRefusedError(
            f"run {record.workflow_id} belongs to {home_of(record)}, and this is {platform.node()}",
            next_step=f"To go on with it here: {_to_here(record)}",
        )
    if record.root != str(place.belongs_to):
        raise RunRefusedError(
            f"run {record.workflow_id} belongs to {record.root}, not to {place.belongs_to}",
            next_step="If the worktree moved, name where it is now (--repo PATH, or repo=… in Python).",
        )


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


def nothing_unfinished(away: RunRecord | None) -> AgentosError:
    """What to say where nothing is left to resume here; `away` is, on another host with a folder of this name."""
    if away is None:
        return RunRefusedError("there is no unfinished run here", next_step="Name a run by its id.")
    return RunRefusedError(
        f"there is no unfinished run here; the newest of another host is {away.workflow_id} ({away.status}), "
        f"of {home_of(away)}",
        next_step=f"To go on with it here: {_to_here(away)}",
    )


def not_of_this_worktree(found: Place, record: RunRecord) -> RunRefusedError:
    """What to say of a run that was found in another place than this worktree's own."""
    run, root = record.workflow_id, shlex.quote(str(found.root))
    if not found.is_shared or is_home(record):
        return RunRefusedError(
            f"run {run} is not of this worktree",
            next_step=f"Resume it where it belongs: agentos resume {shlex.quote(run)} --repo {root}",
        )
    if was_begun_here(record):
        return renamed_since(record)
    return RunRefusedError(
        f"run {run} is not of this worktree: it belongs to {home_of(record)} ({record.scope.repository})",
        next_step=f"Resume it there, or say that it has moved here: {_to_here(record)}",
    )


def renamed_since(record: RunRecord) -> RunRefusedError:
    """What to say of a run that was begun in a folder of this host which has another name on the server now."""
    run, scope = record.workflow_id, record.scope
    worktree = f" (worktree {scope.worktree})" if scope.worktree else ""
    return RunRefusedError(
        f"run {run} was begun in {record.root} when that was known as {scope.repository}{worktree}; since then its "
        "remote `origin`, the setting `repository` or the name of this host has changed",
        next_step=f"Take it over: agentos resume {shlex.quote(run)} --repo {shlex.quote(record.root)}. For all of its "
        f'runs at once keep the old name: repository = "{scope.repository}" in agentos.toml',
    )


def home_of(record: RunRecord) -> str:
    """The worktree a run belongs to, for a message."""
    return f"{record.root} on {record.host}" if record.host else record.root


def _to_here(record: RunRecord) -> str:
    return f"agentos resume {shlex.quote(record.workflow_id)} --repo . (repo=… in Python)"


# --- once somebody said so ----------------------------------------------------------------------------------------


def place_of_target(place: Place, target: str | None) -> Place:
    """The place as it is, or seen from the scope that has kept the run so far: a place that was named gets it.

    Only by its whole id: the beginning of one could be a slip, and take a run away from others.
    """
    if target is None or not place.is_shared or not place.named or _scope_of(place, target) is not None:
        return place
    found = _scope_of(msgspec.structs.replace(place, everywhere=True), target)
    if found is None:
        return place
    scope, id_ = found
    if id_ != target:
        root = shlex.quote(str(place.root))
        raise RunRefusedError(
            f"nothing here begins with {target!r}; {id_} of {scope.repository} does",
            next_step=f"If that has moved here: agentos resume {shlex.quote(id_)} --repo {root}",
        )
    return place.of(scope)


def _scope_of(place: Place, target: str) -> tuple[Scope, str] | None:
    """The scope of the run or checkpoint meant, and its id."""
    try:
        with reading(place) as store:
            found = find_run_or_checkpoint(store, target)
            return found.scope, found.workflow_id if isinstance(found, RunRecord) else found.id
    except NotFoundError:
        return None


def move_here(place: Place, store: StorePort, lease: Lease, record: RunRecord) -> None:
    """The run belongs to this worktree from now on, where somebody named it for one that belonged to another."""
    host, scope = platform.node(), place.scope or HERE
    if not place.named or not record.root:
        return
    root = str(place.belongs_to)
    if record.root == root and not is_of_another_host(place, record) and record.scope == scope:
        return
    store.move_run(lease, root, host, scope)
    log.warning("run %s belonged to %s; it belongs to %s now", record.workflow_id, home_of(record), root)
