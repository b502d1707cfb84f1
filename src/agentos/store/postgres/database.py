"""Opening a PostgreSQL store: can the server be reached, is the schema ours, is it the one we know."""

from __future__ import annotations

from collections.abc import Sequence

from agentos.store.codec import BLOB_LIMIT
from agentos.store.port import HERE, PATIENCE_S, Durability, Scope
from agentos.store.postgres import migrations
from agentos.store.postgres.address import Address, read_address
from agentos.store.postgres.driver import insist
from agentos.store.postgres.pool import (
    Pool,
    QuerySession,
    acquire_pool,
    autocommit_session,
    release_pool,
    write_transaction,
)
from agentos.store.postgres.store import PostgresStore
from agentos.store.sqlfiles import Migration

OPENING_S = 10.0
"""How long a server that cannot be reached is tried when a store is opened for writing; a restart takes less."""
LOOKING_S = 2.0
"""The same for those who only look: somebody sits there and waits."""


def open_store(
    url: str,
    *,
    durability: Durability = "full",
    create: bool = True,
    readonly: bool = False,
    blob_limit: int = BLOB_LIMIT,
    busy_s: float = PATIENCE_S,
    scope: Scope | None = HERE,
    steps: Sequence[Migration] | None = None,
) -> PostgresStore:
    """The store at `url`, showing the runs of one scope, or of all (None: for reading only).

    The schema is made unless `create` is false, and an older one migrated by a writing open. Read-only, nothing is
    changed. WorkflowConfigurationError, ForeignDatabaseError, NewerSchemaError, StoreUnavailableError and
    NotFoundError each leave the database as it was.
    """
    address = read_address(url)
    known = migrations.known_migrations() if steps is None else tuple(steps)
    pool = acquire_pool(address, lazy_commits=durability == "process")
    try:
        patience_s = min(busy_s, LOOKING_S if readonly else OPENING_S)
        if pool.schema_version != len(known):  # else another store of this process has looked, and is still open
            insist(lambda: _prepare(pool, address, known, create=create, readonly=readonly), address.shown, patience_s)
        return PostgresStore(
            pool,
            durability=durability,
            schema_version=len(known),
            blob_limit=blob_limit,
            patience_s=busy_s,
            scope=scope,
        )
    except BaseException:
        release_pool(pool)
        raise


def _prepare(pool: Pool, address: Address, known: Sequence[Migration], *, create: bool, readonly: bool) -> None:
    with autocommit_session(pool, _nowhere) as session:
        found = migrations.found_version(session, address)
        if readonly or (not found and not create):
            migrations.check(session, address, len(known))
            return
        if found == len(known) and session.rows("count_types")[0][0] >= migrations.EVENT_TYPES:
            pool.schema_version = len(known)
            return
    with write_transaction(pool, _nowhere) as session:
        migrations.lay_out(session, address, known)
    pool.schema_version = len(known)


def _nowhere(_: QuerySession) -> list[int]:
    return []
