"""Leases on PostgreSQL: who may drive a run, by the clock of the server, which is the same for every host.

The token is the safety: every write names it. Expiry and liveness only decide when somebody else may take over.
No transaction is held open: what was seen is compared again in the statement that changes it.
"""

from __future__ import annotations

from psycopg.errors import UniqueViolation

from agentos.exceptions import LeaseHeldError, NewerSchemaError, RunNotFoundError
from agentos.ids import WorkflowId
from agentos.store.codec import NEWER
from agentos.store.holder import decode_holder, encode_holder, is_alive
from agentos.store.journal_reader import JournalHead
from agentos.store.port import Holder, Lease, RunFilter
from agentos.store.postgres.pool import QuerySession
from agentos.store.run_queue import UNDRIVEN, Candidate, HeldSlot, Slots, pick_runs

Seen = list[tuple[int, str | None]]
"""Token and holder that were there before each try of ours."""


def live_holder(stored: str | None, current: bool) -> Holder | None:
    """The process that drives the run now. None: the lease is free, run out (not `current`), or its holder is dead."""
    holder = None if stored is None else decode_holder(stored)
    return None if holder is None or not current or is_alive(holder) is False else holder


def take(
    session: QuerySession,
    workflow_id: WorkflowId,
    holder: Holder,
    lease_s: float,
    schema: str,
    seen: Seen,
    *,
    drives: bool,
) -> tuple[Lease, JournalHead]:
    """Take the lease. Asked again after a lost connection, it knows by `seen`, which it fills, its own success."""
    ours = encode_holder(holder)
    while True:
        rows = session.rows("find_lease", workflow_id)
        if not rows:
            raise RunNotFoundError(workflow_id)
        no, token, stored, current, sequence, digest, key, limit = rows[0]
        if stored == ours and seen and token == seen[-1][0] + 1:
            stored = seen[-1][1]  # our try arrived, its answer did not
            break
        holding = live_holder(stored, current)
        if holding is not None:
            raise LeaseHeldError(workflow_id, str(holding))
        slot = (
            held_slots(session, key, frees=True, but=no).must_claim(key, limit) if drives and key is not None else None
        )
        seen.append((token, stored))
        try:
            taken = session.rows("take_lease", no, token, ours, lease_s, stored, schema, slot)
        except UniqueViolation:  # another run got this slot at the same time
            seen.pop()
            continue
        if taken:
            token += 1
            break
        refuse_other_schema(session, schema)
    return _new_lease(workflow_id, token, lease_s, stored), JournalHead(no, sequence, digest)


def _new_lease(workflow_id: WorkflowId, token: int, lease_s: float, stored: str | None) -> Lease:
    before = None if stored is None else decode_holder(stored)
    return Lease(
        workflow_id=workflow_id,
        token=token,
        lease_s=lease_s,
        taken_from=before,
        taken_alive=before is not None and is_alive(before) is True,
    )


# --- of runs that wait ------------------------------------------------------------------------------------------------


def held_slots(session: QuerySession, key: str | None, *, frees: bool, but: int | None = None) -> Slots:
    """The places of one limit (None: of all) that are taken, `but` for that of one run.

    A driver whose lease is over loses its own: it would count no more, and might still write once it wakes up. Unless
    they are only looked at (not `frees`).
    """
    held = []
    for no, workflow_id, of, limit, slot, stored, current, token in session.rows("held_slots", key):
        driver = live_holder(stored, current)
        if driver is not None and no != but:
            held.append(HeldSlot(workflow_id, of, limit, slot, str(driver)))
        elif frees and no != but:
            session.execute("free_slot", no, token, stored if current else None)
    return Slots(held)


def dead_holders(session: QuerySession) -> list[str]:
    """Of leases that have not run out, those held by processes that are seen to be dead from here."""
    held = session.rows("held_leases", session.scopes)
    return list({stored for _, stored, current in held if current and live_holder(stored, current) is None})


def take_next(
    session: QuerySession,
    wanted: RunFilter,
    holder: Holder,
    lease_s: float,
    schema: str,
    most: int,
    slots: Slots,
    dead: list[str],
) -> list[tuple[Candidate, Lease]]:
    """Inside a transaction: the runs that go next, under leases of ours. UniqueViolation where one's slot is gone."""
    picked: dict[int, tuple[Candidate, int | None]] = {}
    full, past = slots.full_keys(), wanted.passed_over
    while True:
        rows_wanted = most + len(picked)  # those picked already come again
        filters = (list(wanted.workflows) or None, list(wanted.labels) or None, list(past), list(past.values()))
        asked = (rows_wanted, list(dict.fromkeys(wanted.queues)), *filters, sorted(full), dead)
        rows = [*session.rows("next_queued", *asked), *session.rows("next_undriven", *asked, list(UNDRIVEN))]
        found = [Candidate(row[:22], row[22:28], row[12], row[28], row[29], row[30], (row[9], row[31])) for row in rows]
        newly_full = pick_runs(sorted(found, key=lambda one: one.order), slots, most, picked) - full
        full |= newly_full
        if not newly_full or len(picked) >= most:
            break
    if not picked:
        return []
    nos, given = list(picked), [slot for _, slot in picked.values()]
    taken = session.rows("take_runs", nos, given, encode_holder(holder), lease_s, schema)
    if len(taken) < len(nos):
        refuse_other_schema(session, schema)
    ours = {no for (no,) in taken}
    return [
        (one, _new_lease(WorkflowId(one.row[0]), one.token + 1, lease_s, one.row[9]))
        for one, _ in picked.values()
        if one.no in ours
    ]


def refuse_other_schema(session: QuerySession, expected: str) -> None:
    """A migration may have run since this store was opened; it waits for live leases, so none may begin now."""
    found = session.rows("read_version")[0][0]
    if found != expected:
        raise NewerSchemaError(
            f"the database was migrated to schema {found} by another version of AgentOS", next_step=NEWER
        )
