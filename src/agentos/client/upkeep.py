"""Looking after what is kept here: the database, the doctor, settings that need trust, and workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agentos import __version__
from agentos.client.places import Location, Place, find_location, find_place, find_root, load_settings
from agentos.client.runs import resolve_drive_options
from agentos.exceptions import AgentosError, UntrustedSettingsError, WorkflowConfigurationError
from agentos.store.backends import find_backend
from agentos.store.stats import RunSize
from agentos.tasks.process.ancestors import adopt_orphans
from agentos.workflow.look.doctor import Checkup, examine
from agentos.workflow.place.trust import (
    Reaching,
    Trusted,
    find_reaching,
    list_trusted,
    refuse_untrusted,
    revoke_trust,
    trust_settings,
    trusted_since,
)
from agentos.workflow.start.worker import Report, Worker, WorkerTarget
from agentos.workflow.transfer.run_copy import Imported

if TYPE_CHECKING:
    from agentos.store.stats import DatabaseStats, PendingMigrations
    from agentos.workflow.place.worktree_index import Interrupted
    from agentos.worktree.snapshots.retention import Sizes

__all__ = [
    "Checkup", "Imported", "Reaching", "Report", "RunSize", "Stored", "Trusted", "Worker", "database_stats", "doctor",
    "find_backend", "find_reaching", "interrupted_runs", "list_trusted", "migrate", "refuse_untrusted", "revoke_trust",
    "set_aside", "tidy", "trust_settings", "trusted_since", "work",
]  # fmt: skip


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept here, in numbers."""

    location: Location
    database: DatabaseStats
    log_files: int
    """Bytes in log files of tasks."""
    snapshots: Sizes | None
    """Of all worktrees of the repository; None where nothing was ever captured."""


def doctor(repo: str | Path | None = None, *, deep: bool = False) -> Checkup:
    """Everything a run depends on here, with a way to mend each thing that is wrong. Changes nothing.

    `deep` also reads every record of every run and checks its digests.
    """
    return examine(Path(repo) if repo is not None else None, version=__version__, deep=deep)


def set_aside(repo: str | Path | None = None) -> dict[str, str]:
    """Move a damaged database to a dated name beside it; each path with the one it has now. Nothing is deleted."""
    from agentos.workflow.place import inspection

    return inspection.set_aside(find_location(Path(repo) if repo is not None else None)).moved


def tidy() -> tuple[str, ...]:
    """Remove temporary folders of attempts whose driver is dead; which those were."""
    from agentos.workflow.start.leftovers import remove_leftover_folders
    from agentos.worktree.git import path_text

    return tuple(path_text(str(folder)) for folder in remove_leftover_folders())


def database_stats(repo: str | Path | None = None) -> Stored:
    """How much room is taken here, and by what. Reads only."""
    from agentos.workflow.drive.logs import logs_folder
    from agentos.workflow.files.retention import snapshot_sizes
    from agentos.workflow.place.inspection import measure

    location, place = find_location(Path(repo) if repo is not None else None), find_place(repo, make=False)
    return Stored(
        location=location,
        database=measure(place, keep=load_settings(location.root).keep),
        log_files=_folder_bytes(logs_folder(place.kept_beside)),
        snapshots=snapshot_sizes(find_root(repo)),
    )


def _folder_bytes(folder: Path | None) -> int:
    """All files below, links not followed."""
    total = 0
    for place, _, names in os.walk(folder or ""):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:  # gone meanwhile
                continue
    return total


def migrate(repo: str | Path | None = None, *, dry_run: bool = False) -> PendingMigrations:
    """Bring the database to the schema of this version, after a copy was made; what that took, or with `dry_run` would.

    TryAgainError while somebody drives a run; IntegrityError for a database of a newer version.
    """
    from agentos.workflow.place.inspection import pending_migrations

    pending = pending_migrations(find_place(repo, make=False))
    if not dry_run and pending.steps:
        find_place(repo).open().close()
    return pending


def interrupted_runs() -> Interrupted:
    """Every run that nobody drives and that has not ended, of every worktree known; of a server named here, ours."""
    from agentos.workflow.place import worktree_index

    server: Place | None = None
    try:
        here = find_place(make=False)
        server = here if here.is_shared else None
    except UntrustedSettingsError:
        raise
    except WorkflowConfigurationError:  # nowhere in particular: there are the worktrees of the index
        pass
    return worktree_index.interrupted_runs(server)


async def work(
    repos: Sequence[str | Path | None], *, started: Callable[[Worker], None], once: bool = False, **how: Any
) -> list[AgentosError]:
    """Go on with runs whose driver died, until the worker is drained; `once`: until nothing is left to adopt.

    `started` gets the worker, to drain or cancel it; `how` are its own arguments. Gives why worktrees could not be
    looked at, last of all; the only one there is raises.
    """
    resolved = (resolve_drive_options(repo) for repo in repos)
    worker = Worker([WorkerTarget(place=place, options=options) for place, options in resolved], **how)
    started(worker)
    with adopt_orphans():
        return await worker.work(once=once)
