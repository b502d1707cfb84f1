"""Looking after what is kept here: the database, the doctor, settings that need trust, and workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agentos import __version__
from agentos.client.places import Location, Place, find_location, find_place, find_root, load_settings
from agentos.client.runs import resolve_drive_options
from agentos.exceptions import AgentosError, UntrustedSettingsError, WorkflowConfigurationError
from agentos.store.backends import find_backend, without_password
from agentos.store.port import STATUSES, PrunedRun
from agentos.store.stats import RunSize
from agentos.tasks.cluster.local_cluster import LocalCluster, local_cluster
from agentos.tasks.process.ancestors import adopt_orphans
from agentos.workflow.expiry.expired_runs import find_expired, folder_bytes
from agentos.workflow.expiry.rules import expiry_for, parse_age
from agentos.workflow.expiry.sweep import sweep_all
from agentos.workflow.look.doctor import Checkup, examine
from agentos.workflow.place.run_search import reading
from agentos.workflow.place.settings import KINDS, from_variable, variable_of
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
from agentos.workflow.start.worker_figures import DatabaseSurvey, Durations
from agentos.workflow.transfer import database_backup
from agentos.workflow.transfer.database_backup import BackedUp, Progress, RestoredDatabase
from agentos.workflow.transfer.run_copy import Imported

if TYPE_CHECKING:
    from agentos.store.stats import DatabaseStats, PendingMigrations
    from agentos.workflow.place.worktree_index import Interrupted
    from agentos.worktree.snapshots.retention import Sizes

__all__ = [
    "STATUSES", "BackedUp", "Checkup", "DatabaseSurvey", "Durations", "Imported", "LocalCluster", "PrunedRun",
    "Reaching", "Report", "RestoredDatabase", "RunSize", "Stored", "Trusted", "Worker", "back_up_database",
    "database_stats", "doctor", "expiry_for", "find_backend", "find_reaching", "interrupted_runs", "list_trusted",
    "local_cluster", "migrate", "parse_age", "refuse_untrusted", "restore_database", "revoke_trust", "set_aside",
    "settings_variables", "tidy", "trust_settings", "trusted_since", "work",
]  # fmt: skip


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept here, in numbers."""

    location: Location
    database: DatabaseStats
    log_files: int
    """Bytes in log files of tasks."""
    snapshots: Sizes | None
    """Of all worktrees of the repository; None where nothing was ever captured."""
    retention: str
    """How long runs are kept, as the settings say; empty where they say nothing."""
    expired: int
    """Runs that a worker would delete now because of that."""


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
    settings = load_settings(location.root)
    database, expiry = measure(place, keep=settings.keep), settings.retention.expiry
    with reading(place) as store:
        expired = find_expired(place, store, expiry, datetime.now(UTC)) if expiry else []
    return Stored(
        location=location,
        database=database,
        retention=str(expiry),
        expired=len(expired),
        log_files=folder_bytes(logs_folder(place.kept_beside)),
        snapshots=snapshot_sizes(find_root(repo)),
    )


def migrate(repo: str | Path | None = None, *, dry_run: bool = False) -> PendingMigrations:
    """Bring the database to the schema of this version, after a copy was made; what that took, or with `dry_run` would.

    TryAgainError while somebody drives a run; IntegrityError for a database of a newer version.
    """
    from agentos.workflow.place.inspection import pending_migrations

    pending = pending_migrations(find_place(repo, make=False))
    if not dry_run and pending.steps:
        find_place(repo).open().close()
    return pending


def _untold(what: str, done: int, total: int) -> None:
    return None


def back_up_database(
    file: str | Path, repo: str | Path | None = None, *, force: bool = False, progress: Progress = _untold
) -> BackedUp:
    """Copy the database into one file while runs go on, and check every record of the copy before it gets its name.

    RunRefusedError where the file is there already, unless `force`, and for PostgreSQL, with the command to type.
    """
    location = find_location(Path(repo) if repo is not None else None)
    return database_backup.back_up(location, Path(file), force=force, progress=progress)


def restore_database(
    file: str | Path, repo: str | Path | None = None, *, moved: bool = False, progress: Progress = _untold
) -> RestoredDatabase:
    """Put a copy in the place of the database, once every record of it was checked; what was there is kept beside it.

    TryAgainError while somebody drives a run or has the database open; RunRefusedError where the copy is of another
    worktree, unless that has `moved` here, and for PostgreSQL, with the command to type.
    """
    location = find_location(Path(repo) if repo is not None else None)
    return database_backup.restore(location, Path(file), moved=moved, progress=progress)


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


def settings_variables(repo: str | Path | None = None) -> dict[str, str | None]:
    """Variables of the user's that make settings here: what a worker lacks that a service starts.

    With its value where that is sure to hold no secret: where the database is, without a password. Else None.
    """
    found: dict[str, str | None] = {variable_of(name): None for name in KINDS if from_variable(name)}
    database = from_variable("database")
    if database and without_password(database) == database:
        found[variable_of("database")] = find_location(Path(repo) if repo is not None else None).database
    return found


async def work(
    repos: Sequence[str | Path | None], *, started: Callable[[Worker], None], once: bool = False, **how: Any
) -> list[AgentosError]:
    """Go on with runs whose driver died, until the worker is drained; `once`: until nothing is left to adopt.

    `started` gets the worker, to drain or cancel it; `how` are its own arguments. Gives why worktrees could not be
    looked at, last of all; the only one there is raises.
    """
    resolved = (resolve_drive_options(repo) for repo in repos)
    targets = [WorkerTarget(place=place, options=options) for place, options in resolved]
    worker = Worker(targets, **how)
    started(worker)
    tell: Callable[[Report], None] = how["tell"]

    def tell_of_retention(place: Place, text: str) -> None:
        tell(Report(workflow_id="", name="", root=str(place.root), what="retention", text=text))

    sweeping = asyncio.ensure_future(sweep_all([one.place for one in targets], tell_of_retention, once=once))
    try:
        with adopt_orphans():
            unread = await worker.work(once=once)
        if once and not worker.is_drained:
            await sweeping
        return unread
    finally:
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
