"""Questions about the database of a place, whichever store it is; and moving a damaged one out of the way.

Questions only read. A damaged database is moved with its log, so that work can begin anew; nothing is deleted.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from agentos.exceptions import (
    AgentosError,
    ForeignDatabaseError,
    IntegrityError,
    LeaseHeldError,
    NewerSchemaError,
    NotFoundError,
    RunRefusedError,
    StoreUnavailableError,
)
from agentos.store.private_files import SQLITE_FILES, dated_name, move_database
from agentos.store.stats import DatabaseSize, DatabaseStats, HeldLease, PendingMigrations, Workload
from agentos.workflow.place.location import Location, LocationSource
from agentos.workflow.place.place import Place


def size_up(place: Place) -> DatabaseSize:
    """The database at a glance."""
    return place.backend.statistics(place.database).size_up(place.database, place.scope)


def measure(place: Place, *, keep: int) -> DatabaseStats:
    """The database in numbers."""
    return place.backend.statistics(place.database).measure(place.database, place.scope, keep=keep)


def workload(place: Place) -> Workload:
    """What there is to do here, as counts."""
    return place.backend.statistics(place.database).workload(place.database, place.scope)


def pending_migrations(place: Place) -> PendingMigrations:
    """The steps between the database and the schema this AgentOS writes."""
    return place.backend.statistics(place.database).pending_migrations(place.database)


def held_leases(place: Place) -> list[HeldLease]:
    """Every lease that somebody took and nobody let go."""
    return place.backend.statistics(place.database).held_leases(place.database, place.scope)


def damage(place: Place, *, thorough: bool = False) -> list[str]:
    """What is wrong with the files of the database; nothing where a server looks after them."""
    return place.backend.statistics(place.database).damage(place.database, thorough=thorough)


# --- a damaged one ------------------------------------------------------------------------------------------------


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """What was moved where."""

    moved: dict[str, str]
    """From each path to the one it has now."""


def set_aside(location: Location) -> SetAside:
    """Give a damaged database, with its log, a dated name beside it.

    RunRefusedError where it is sound or not ours, LeaseHeldError or StoreUnavailableError while somebody uses it;
    then nothing is moved.
    """
    if location.backend.is_shared:
        raise RunRefusedError(
            f"a {location.backend.title} database is not set aside from here", next_step="Ask who looks after it."
        )
    path = Path(location.database)
    if not path.exists():
        raise NotFoundError(f"there is no database at {location.shown}", next_step="The first run makes one.")
    _refuse_sound(location)
    refuse_used(location)
    return SetAside(moved=move_database(path, dated_name(path, "damaged")))


def _refuse_sound(location: Location) -> None:
    backend, database = location.backend, location.database
    try:
        if backend.statistics(database).damage(database, thorough=True):
            return
        store = backend.open(database, durability="full", create=False, readonly=True)
        try:
            for run in store.list_runs():
                store.verify(run.workflow_id)
        finally:
            store.close()
    except NewerSchemaError:
        raise
    except ForeignDatabaseError as error:
        # Under a name of our own it was ours before its first bytes were overwritten; elsewhere it never was.
        if location.source is LocationSource.VARIABLE or "another program" in error.message:
            raise
        return
    except IntegrityError:
        return
    raise RunRefusedError(
        f"{location.shown} is sound; it was left where it is", next_step="Delete single runs with `agentos delete RUN`."
    )


def refuse_used(location: Location) -> None:
    """LeaseHeldError or StoreUnavailableError while a run is driven in a database file, or a process has it open."""
    try:
        leases = location.backend.statistics(location.database).held_leases(location.database, None)
    except AgentosError:  # too damaged to tell: whoever has the file open is asked for below
        leases = []
    for lease in leases:
        if lease.live:
            raise LeaseHeldError(lease.workflow_id, str(lease.holder))
    path = Path(location.database)
    if users := _users_of(path):
        listed = ", ".join(map(str, users))
        raise StoreUnavailableError(
            f"the database {path} is in use by process {listed}", next_step="Wait for it to end, or end it; try again."
        )


def _users_of(path: Path) -> list[int]:
    """Other processes that have the file or its log open."""
    import psutil

    users: list[int] = []
    names = {f"{os.path.realpath(path)}{suffix}" for suffix in SQLITE_FILES}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and any(opened.path in names for opened in process.open_files()):
                users.append(process.pid)
    return users
