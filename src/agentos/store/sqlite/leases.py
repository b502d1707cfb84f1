"""Leases on SQLite: who may drive a run, decided inside one write transaction, on one machine's clock.

The token is the safety: every write names it. Expiry and liveness only decide when somebody else may take over.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import NamedTuple

from agentos.exceptions import LeaseHeldError
from agentos.store.holder import boot_clock, boot_id, decode_holder, encode_holder, is_alive
from agentos.store.journal_reader import JournalHead
from agentos.store.port import Holder, Lease
from agentos.store.sqlfiles import queries

FOREIGN_MARGIN_S = 60.0
"""A lease from another boot of another machine has a clock we cannot read: trust the wall clocks, with this margin."""

_Q = queries()


class Clock(NamedTuple):
    """What leases are measured by; tests hand in their own."""

    boot: Callable[[], str] = boot_id
    since_boot: Callable[[], float] = boot_clock
    wall: Callable[[], float] = time.time
    alive: Callable[[Holder], bool | None] = is_alive


class StoredLease(NamedTuple):
    """The lease columns of a run."""

    holder: str | None
    boot: str
    expires: float
    until: int


def expiry(clock: Clock, lease_s: float) -> tuple[str, float, int]:
    """boot id, the boot clock's time, and the wall clock's (in microseconds) at which a lease taken now runs out."""
    return clock.boot(), clock.since_boot() + lease_s, int((clock.wall() + lease_s) * 1_000_000)


def live_holder(clock: Clock, lease: StoredLease) -> Holder | None:
    """The process that drives the run now. None: the lease is free, run out, or its holder is dead."""
    if lease.holder is None:
        return None
    holder = decode_holder(lease.holder)
    if clock.alive(holder) is False:
        return None
    if lease.boot == clock.boot():
        has_run_out = clock.since_boot() >= lease.expires
    else:
        has_run_out = clock.wall() >= lease.until / 1_000_000 + FOREIGN_MARGIN_S
    return None if has_run_out else holder


def take(
    connection: sqlite3.Connection, clock: Clock, workflow_id: str, holder: Holder, lease_s: float
) -> tuple[Lease, JournalHead] | None:
    """Inside a write transaction: the new lease, and where the journal stands; None where there is no such run."""
    row = connection.execute(_Q["find_lease"], (workflow_id,)).fetchone()
    if row is None:
        return None
    no, token, *columns, sequence, digest = row
    stored = StoredLease(*columns)
    holding = live_holder(clock, stored)
    if holding is not None:
        raise LeaseHeldError(workflow_id, str(holding))
    before = None if stored.holder is None else decode_holder(stored.holder)
    connection.execute(_Q["take_lease"], (encode_holder(holder), *expiry(clock, lease_s), no))
    lease = Lease(
        workflow_id=workflow_id,  # type: ignore[arg-type]
        token=token + 1,
        lease_s=lease_s,
        taken_from=before,
        taken_alive=before is not None and clock.alive(before) is True,
    )
    return lease, JournalHead(no, sequence, digest)
