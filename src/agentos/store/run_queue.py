"""Runs that wait to be driven, as both stores keep them: how they were submitted, and which of them go next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from agentos.exceptions import QueueFullError
from agentos.store.codec import from_microseconds, to_microseconds
from agentos.store.port import RunLimit, Waiting

UNDRIVEN = ("pending", "running", "interrupted")
"""Statuses in which runs are stored that somebody may go on with, if nobody drives them: the last one where a driver
left the run in order, the others where it died."""


class HeldSlot(NamedTuple):
    """A run that counts towards a limit."""

    workflow_id: str
    key: str
    limit: int
    slot: int
    holder: str
    """Who drives it, for people."""


class Candidate(NamedTuple):
    """A run that may be taken."""

    row: Sequence[Any]
    """As `find_runs` gives it."""
    queued: Sequence[Any]
    """queue, priority, ready_at, limit_key, run_limit, submitted_from."""
    created_at: int
    no: int
    token: int
    digest: bytes
    before: tuple[Any, ...]
    """The lease that was there, as its store keeps it."""

    @property
    def order(self) -> tuple[int, int, int]:
        """What goes first: by priority, then age."""
        return -(self.queued[1] or 0), self.created_at, self.no


class Slots:
    """Which places of which limits are taken by runs that are driven now."""

    def __init__(self, held: Iterable[HeldSlot]) -> None:
        self._held = list(held)
        self._taken: dict[str, set[int]] = {}
        for one in self._held:
            self._taken.setdefault(one.key, set()).add(one.slot)

    def claim(self, key: str, limit: int) -> int | None:
        """The lowest place that is free, which is taken from now on. None: the limit is reached.

        Two that claim at the same time get the same one, and the database lets only one of them have it.
        """
        taken = self._taken.setdefault(key, set())
        if len(taken) >= limit:
            return None
        free = next(slot for slot in range(1, limit + 1) if slot not in taken)
        taken.add(free)
        return free

    def must_claim(self, key: str, limit: int) -> int:
        """The same; QueueFullError where there is none."""
        slot = self.claim(key, limit)
        if slot is None:
            raise _full_error(key, limit, self._held)
        return slot

    def refuse_full(self, key: str, limit: int, waiting: Iterable[str]) -> None:
        """QueueFullError where runs that are driven, with those of these ids, which wait, reach the limit."""
        all_of_it = [*self._held, *(HeldSlot(one, key, limit, 0, "waits") for one in waiting)]
        if len(all_of_it) >= limit:
            raise _full_error(key, limit, all_of_it)

    def full_keys(self) -> set[str]:
        """Keys whose limit is reached, as far as their holders tell."""
        limits = {one.key: one.limit for one in self._held}
        return {key for key, limit in limits.items() if len(self._taken[key]) >= limit}


def _full_error(key: str, limit: int, held: Iterable[HeldSlot]) -> QueueFullError:
    return QueueFullError(shown_key(key), limit, [(one.workflow_id, one.holder) for one in held])


def pick_runs(
    candidates: Iterable[Candidate], slots: Slots, most: int, picked: dict[int, tuple[Candidate, int | None]]
) -> set[str]:
    """Add the first that may go, with their slots, to those `picked`, up to `most`; keys that turned out to be full."""
    full: set[str] = set()
    for one in candidates:
        if len(picked) >= most:
            break
        key, limit = one.queued[3:5]
        if one.no in picked:
            continue
        slot = slots.claim(key, limit) if key is not None else None
        if key is not None and slot is None:
            full.add(key)
        else:
            picked[one.no] = (one, slot)
    return full


def shown_key(key: str) -> str:
    """Without the repository that it counts in."""
    return key.rpartition("\n")[2]


def waiting_from(columns: Sequence[Any]) -> Waiting:
    """From queue, priority, ready_at, limit_key, run_limit, submitted_from."""
    queue, priority, ready_at, key, limit, submitted_from = columns
    return Waiting(
        queue=queue or "",
        priority=priority or 0,
        ready_at=from_microseconds(ready_at or 0),
        limit=RunLimit(key=shown_key(key), limit=limit) if key is not None else None,
        submitted_from=submitted_from or "",
    )


def waiting_columns(waiting: Waiting | None) -> tuple[str | None, int | None, int | None]:
    """Of a run that is copied: queue, priority, ready_at."""
    if waiting is None:
        return None, None, None
    return waiting.queue, waiting.priority, to_microseconds(waiting.ready_at) if waiting.ready_at is not None else 0
