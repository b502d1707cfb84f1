"""Leases on PostgreSQL: who may drive a run, by the clock of the server, which is the same for every host.

The token is the safety: every write names it. Expiry and liveness only decide when somebody else may take over.
No transaction is held open: what was seen is compared again in the statement that changes it.
"""

from __future__ import annotations

from agentos.exceptions import LeaseHeldError, NewerSchemaError, RunNotFoundError
from agentos.ids import WorkflowId
from agentos.store.codec import NEWER
from agentos.store.holder import decode_holder, encode_holder, is_alive
from agentos.store.journal_reader import JournalHead
from agentos.store.port import Holder, Lease
from agentos.store.postgres.pool import QuerySession

Seen = list[tuple[int, str | None]]
"""Token and holder that were there before each try of ours."""


def live_holder(stored: str | None, current: bool) -> Holder | None:
    """The process that drives the run now. None: the lease is free, run out (not `current`), or its holder is dead."""
    holder = None if stored is None else decode_holder(stored)
    return None if holder is None or not current or is_alive(holder) is False else holder


def take(
    session: QuerySession, workflow_id: WorkflowId, holder: Holder, lease_s: float, schema: str, seen: Seen
) -> tuple[Lease, JournalHead]:
    """Take the lease. Asked again after a lost connection, it knows by `seen`, which it fills, its own success."""
    ours = encode_holder(holder)
    while True:
        rows = session.rows("find_lease", workflow_id)
        if not rows:
            raise RunNotFoundError(workflow_id)
        no, token, stored, current, sequence, digest = rows[0]
        if stored == ours and seen and token == seen[-1][0] + 1:
            stored = seen[-1][1]  # our try arrived, its answer did not
            break
        holding = live_holder(stored, current)
        if holding is not None:
            raise LeaseHeldError(workflow_id, str(holding))
        seen.append((token, stored))
        if session.rows("take_lease", no, token, ours, lease_s, stored, schema):
            token += 1
            break
        refuse_other_schema(session, schema)
    before = None if stored is None else decode_holder(stored)
    lease = Lease(
        workflow_id=workflow_id,
        token=token,
        lease_s=lease_s,
        taken_from=before,
        taken_alive=before is not None and is_alive(before) is True,
    )
    return lease, JournalHead(no, sequence, digest)


def refuse_other_schema(session: QuerySession, expected: str) -> None:
    """A migration may have run since this store was opened; it waits for live leases, so none may begin now."""
    found = session.rows("read_version")[0][0]
    if found != expected:
        raise NewerSchemaError(
            f"the database was migrated to schema {found} by another version of AgentOS", next_step=NEWER
        )
