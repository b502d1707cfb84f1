"""Questions about the database of a place, whichever store it is. They only read."""

from __future__ import annotations

from agentos.store.stats import DatabaseSize, DatabaseStats, HeldLease, PendingMigrations
from agentos.workflow.place.place import Place


def size_up(place: Place) -> DatabaseSize:
    """The database at a glance."""
    return place.backend.statistics(place.database).size_up(place.database, place.scope)


def measure(place: Place, *, keep: int) -> DatabaseStats:
    """The database in numbers."""
    return place.backend.statistics(place.database).measure(place.database, place.scope, keep=keep)


def pending_migrations(place: Place) -> PendingMigrations:
    """The steps between the database and the schema this AgentOS writes."""
    return place.backend.statistics(place.database).pending_migrations(place.database)


def held_leases(place: Place) -> list[HeldLease]:
    """Every lease that somebody took and nobody let go."""
    return place.backend.statistics(place.database).held_leases(place.database, place.scope)


def damage(place: Place, *, thorough: bool = False) -> list[str]:
    """What is wrong with the files of the database; nothing where a server looks after them."""
    return place.backend.statistics(place.database).damage(place.database, thorough=thorough)
