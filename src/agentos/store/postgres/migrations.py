"""From nothing, or an older schema, to the current one: one transaction, one process at a time, never under a live run.

Statements that change tables can be rolled back on PostgreSQL: a migration that fails or is killed leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from psycopg import sql

from agentos import crashpoints
from agentos.exceptions import (
    ForeignDatabaseError,
    NotFoundError,
    StoreUnavailableError,
    WorkflowConfigurationError,
)
from agentos.machine.events import JOURNALED
from agentos.store.postgres import leases
from agentos.store.postgres.address import Address
from agentos.store.postgres.pool import QuerySession
from agentos.store.sqlfiles import Migration, migrations, refuse_newer, script

APPLICATION = "agentos"
EVENT_TYPES = len(JOURNALED)
_VIEWS = "postgres/views.sql"


def known_migrations() -> tuple[Migration, ...]:
    return migrations("postgres/migrations")


def found_version(session: QuerySession, address: Address) -> int:
    """The schema's version; 0 where there is nothing yet. ForeignDatabaseError where it is somebody else's."""
    rows = session.rows("tables_of", address.schema)
    if rows and not rows[0][2]:  # names in it would not be found, as if they were not there
        raise WorkflowConfigurationError(
            f"the user of {address.shown} may not use the schema {address.schema!r}",
            next_step="Grant it the schema (docs: postgres.md has the statements). Nothing was written.",
        )
    tables = [table for _, table, _ in rows if table is not None]
    if not tables:
        return 0
    # A table of the name `meta` may have any columns.
    columns = {column for (column,) in session.rows("columns_of", address.schema, "meta")}
    facts = dict(session.rows("read_facts")) if columns >= {"key", "value"} else {}
    if facts.get("application") != APPLICATION:
        listed = ", ".join(tables[:4]) + (", …" if len(tables) > 4 else "")
        raise ForeignDatabaseError(
            f"the schema {address.schema!r} of {address.shown} is another program's, with the tables {listed}",
            next_step="Name another schema (?schema=name). This one was not changed.",
        )
    return int(facts["schema"])


def check(session: QuerySession, address: Address, known: int) -> None:
    """Refuse what cannot be read here. Writes nothing."""
    found = found_version(session, address)
    if found == 0:
        raise NotFoundError(
            f"there is nothing of ours at {address.shown} yet", next_step="The schema is made by the first run."
        )
    refuse_newer(address.shown, found, known)


def lay_out(session: QuerySession, address: Address, steps: Sequence[Migration]) -> None:
    """Make or migrate the schema. Inside a transaction of the caller's; others wait until it ends."""
    session.rows("use_schema", address.search_path)
    session.rows("lock_layout", address.schema)
    found = found_version(session, address)
    refuse_newer(address.shown, found, len(steps))
    if found == len(steps):
        _name_types(session)
        return
    connection = session.connection
    if found:
        connection.execute(f"LOCK TABLE {session.statements.schema}.run IN ACCESS EXCLUSIVE MODE")
        for workflow_id, holder, current in session.rows("held_leases", None):
            driver = leases.live_holder(holder, current)
            if driver is not None:
                raise StoreUnavailableError(
                    f"{address.shown} has an older schema, and {driver} drives run {workflow_id} on it",
                    next_step="Wait for it to end, or pause it, and try again. Nothing was changed.",
                )
    elif not session.rows("tables_of", address.schema):
        connection.execute(f"CREATE SCHEMA {session.statements.schema}")
    for (view,) in session.rows("views_of", address.schema):
        drop = sql.SQL("DROP VIEW IF EXISTS {} CASCADE").format(sql.Identifier(address.schema, view))
        connection.execute(drop.as_string(connection))
    for step in steps[found:]:
        connection.execute(step.sql)
        crashpoints.reach("migrate.inside")
    connection.execute(script(_VIEWS))
    _name_types(session)
    if not found:
        facts = [("application", APPLICATION), ("made_at", datetime.now(UTC).isoformat(timespec="seconds"))]
        session.each("set_fact", facts)
    session.each("set_fact", [("schema", str(len(steps)))])


def _name_types(session: QuerySession) -> None:
    """Event types may be added without a change of schema: keep their names for those who read by hand."""
    if session.rows("count_types")[0][0] < EVENT_TYPES:
        session.each("insert_type", [(code, kind.type) for code, kind in enumerate(JOURNALED, 1)])
