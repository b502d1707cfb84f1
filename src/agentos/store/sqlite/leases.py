"""Leases on SQLite: who may drive a run, decided inside one write transaction, on one machine's clock.

The token is the safety: every write names it. Expiry and liveness only decide when somebody else may take over.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import Any, NamedTuple

import msgspec

from agentos.exceptions import LeaseHeldError
from agentos.store.holder import boot_clock, boot_id, decode_holder, encode_holder, is_alive
from agentos.store.journal_reader import JournalHead
from agentos.store.port import Holder, Lease, RunFilter
from agentos.store.run_queue import UNDRIVEN, Candidate, HeldSlot, Slots, pick_runs
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
    connection: sqlite3.Connection, clock: Clock, workflow_id: str, holder: Holder, lease_s: float, *, drives: bool
) -> tuple[Lease, JournalHead] | None:
    """Inside a write transaction: the new lease, and where the journal stands; None where there is no such run."""
    row = connection.execute(_Q["find_lease"], (workflow_id,)).fetchone()
    if row is None:
        return None
    no, token, *columns, sequence, digest, key, limit = row
    stored = StoredLease(*columns)
    holding = live_holder(clock, stored)
    if holding is not None:
        raise LeaseHeldError(workflow_id, str(holding))
    slot = held_slots(connection, clock, key, frees=True, but=no).must_claim(key, limit) if drives and key else None
    connection.execute(_Q["take_lease"], (encode_holder(holder), *expiry(clock, lease_s), slot, no))
    return _new_lease(clock, workflow_id, token, lease_s, stored), JournalHead(no, sequence, digest)


def _new_lease(clock: Clock, workflow_id: str, token: int, lease_s: float, stored: StoredLease) -> Lease:
    before = None if stored.holder is None else decode_holder(stored.holder)
    return Lease(
        workflow_id=workflow_id,  # type: ignore[arg-type]
        token=token + 1,
        lease_s=lease_s,
        taken_from=before,
        taken_alive=before is not None and clock.alive(before) is True,
    )


# --- of runs that wait ------------------------------------------------------------------------------------------------


def held_slots(
    connection: sqlite3.Connection, clock: Clock, key: str | None, *, frees: bool, but: int | None = None
) -> Slots:
    """The places of one limit (None: of all) that are taken, `but` for that of one run.

    A driver whose lease is over loses its own: it would count no more, and might still write once it wakes up. Unless
    they are only looked at (not `frees`).
    """
    held = []
    for no, workflow_id, of, limit, slot, *columns in connection.execute(_Q["held_slots"], (key,)).fetchall():
        driver = live_holder(clock, StoredLease(*columns))
        if driver is not None and no != but:
            held.append(HeldSlot(workflow_id, of, limit, slot, str(driver)))
        elif frees and no != but:
            connection.execute(_Q["free_slot"], (no,))
    return Slots(held)


def pick(
    connection: sqlite3.Connection, clock: Clock, wanted: RunFilter, most: int, slots: Slots
) -> list[tuple[Candidate, int | None]]:
    """The runs that go next, each with its slot."""
    filters = (
        _as_json(wanted.workflows),
        _as_json(wanted.labels),
        _as_json(wanted.passed_over),
        _as_json(sorted(slots.full_keys())),
    )
    now = int(clock.wall() * 1_000_000)
    each = [connection.execute(_Q["next_queued"], (queue, *filters, now)) for queue in dict.fromkeys(wanted.queues)]
    undriven = (_as_json(wanted.queues), *filters)
    each += [connection.execute(_Q["next_undriven"], (*undriven, status)) for status in UNDRIVEN]
    free = [_free_candidates(clock, rows) for rows in each]
    picked: dict[int, tuple[Candidate, int | None]] = {}
    pick_runs(merge(*free, key=lambda one: one.order), slots, most, picked)
    return list(picked.values())


def _free_candidates(clock: Clock, rows: Iterable[tuple[Any, ...]]) -> Iterator[Candidate]:
    for row in rows:
        stored = StoredLease(*row[9:13])
        if live_holder(clock, stored) is None:
            yield Candidate(row[:21], row[21:27], row[13], row[27], row[28], row[29], stored)


def _as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def take_picked(
    connection: sqlite3.Connection, clock: Clock, picked: tuple[Candidate, int | None], holder: Holder, lease_s: float
) -> tuple[Lease, JournalHead]:
    """Inside the write transaction in which it was picked."""
    one, slot = picked
    connection.execute(_Q["take_lease"], (encode_holder(holder), *expiry(clock, lease_s), slot, one.no))
    lease = _new_lease(clock, one.row[0], one.token, lease_s, StoredLease(*one.before))
    return lease, JournalHead(one.no, one.row[7], one.digest)
