"""Questions about the database of a place, whichever store it is. They only read."""

from __future__ import annotations

from pathlib import Path

from agentos.store.stats import DatabaseSize, DatabaseStats, HeldLease, PendingMigrations
from agentos.workflow.place.place import Place


def size_up(place: Place) -> DatabaseSize:
    """The database at a glance."""
    if place.is_shared:
        from agentos.store.postgres import stats

        return stats.size_up(place.database, place.scope)
    from agentos.store.sqlite import stats as sqlite_stats

    return sqlite_stats.size_up(Path(place.database))


def measure(place: Place, *, keep: int) -> DatabaseStats:
    """The database in numbers."""
    if place.is_shared:
        from agentos.store.postgres import stats

        return stats.measure(place.database, place.scope, keep=keep)
    from agentos.store.sqlite import stats as sqlite_stats

    return sqlite_stats.measure(Path(place.database), keep=keep)


def pending_migrations(place: Place) -> PendingMigrations:
    """The steps between the database and the schema this AgentOS writes."""
    if place.is_shared:
        from agentos.store.postgres import stats

        return stats.pending_migrations(place.database)
    from agentos.store.sqlite import stats as sqlite_stats

    return sqlite_stats.pending_migrations(Path(place.database))


def held_leases(place: Place) -> list[HeldLease]:
    """Every lease that somebody took and nobody let go."""
    if place.is_shared:
        from agentos.store.postgres import stats

        return stats.held_leases(place.database, place.scope)
    from agentos.store.sqlite import stats as sqlite_stats

    return sqlite_stats.held_leases(Path(place.database))


def damage(place: Place, *, thorough: bool = False) -> list[str]:
    """What is wrong with the file itself; a server looks after its own files."""
    if place.is_shared:
        return []
    from agentos.store.sqlite import stats as sqlite_stats

    return sqlite_stats.damage(Path(place.database), thorough=thorough)
