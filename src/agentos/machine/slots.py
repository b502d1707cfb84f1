"""What becomes of the slots of a schedule: which are fired, which wait, which pass.

A slot is decided once: `upto` never goes back, so that no clock, however wrong, makes one come again. A schedule fires
one run at a time; what else is due waits or passes, as `cron` says.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Literal, NamedTuple

import msgspec

from agentos.dag.define.cron import Cron, last_slot, slots_after, slots_between
from agentos.ids import MAX_ID

LATE = timedelta(seconds=60)
"""A slot that is found later than this was missed: nobody was there for it."""
MOST = 1_000
"""So many missed slots are counted, no more."""
_REMEMBERED = 10
_SLOT = "%Y%m%dT%H%MZ"
LONGEST_NAME = MAX_ID - len("@20261119T0300Z")


class SlotSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The slots later than `after`, up to and with `upto`."""

    after: datetime
    upto: datetime


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """Slots in a row for which nothing was fired."""

    first: datetime
    last: datetime
    count: int
    """At most MOST at once."""
    why: Literal["overlap", "missed"]
    """`overlap`: the run before had not ended; `missed`: nobody was there, and it is not made up for."""


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a schedule has come."""

    upto: datetime
    """Of every slot until then it is decided what becomes of it."""
    waiting: tuple[SlotSpan, ...] = ()
    """Slots that will be fired one after the other, oldest first."""
    fired: datetime | None = None
    """The last one."""
    passed: tuple[Passed, ...] = ()
    """The newest last; older ones are forgotten."""


class SlotDecision(NamedTuple):
    """What follows from looking at a schedule."""

    state: ScheduleState
    fire: datetime | None
    """The slot to fire now: together with storing the state, or not at all."""


def decide_slots(cron: Cron, state: ScheduleState, now: datetime, *, busy: bool) -> SlotDecision:
    """What becomes of the slots that are due. `busy`: the run of the last one has not ended.

    An equal state, and nothing to fire, where there is nothing to store.
    """
    newest = last_slot(cron, state.upto, now)
    if newest is not None:
        state = _take_in(cron, state, newest, now, busy=busy)
    if busy or not state.waiting:
        return SlotDecision(state, None)
    span, *later = state.waiting
    slot, following = [*islice(slots_between(cron, span.after, span.upto), 2), None, None][:2]
    if following is not None:
        later = [SlotSpan(after=slot or span.after, upto=span.upto), *later]
    state = msgspec.structs.replace(state, waiting=tuple(later), fired=slot or state.fired)
    return SlotDecision(state, slot)


def _take_in(cron: Cron, state: ScheduleState, newest: datetime, now: datetime, *, busy: bool) -> ScheduleState:
    """The state with every slot up to `newest` decided."""
    begin = state.upto
    if cron.catch_up != "all":
        # Where somebody is here in time, the slot that has just come is the last one.
        fresh = next(slots_between(cron, max(begin, now - LATE), newest), None)
        first = fresh or (newest if cron.catch_up == "last" else None)
        if first is not None and cron.overlap == "skip":
            first = newest
        missed = SlotSpan(after=begin, upto=newest if first is None else first - timedelta(seconds=1))
        if next(slots_between(cron, missed.after, missed.upto), None) is not None:
            state, begin = _pass_by(cron, state, missed, "missed"), missed.upto
    due = SlotSpan(after=begin, upto=newest)
    if begin >= newest:
        pass
    elif cron.overlap == "skip" and (busy or state.waiting):
        state = _pass_by(cron, state, due, "overlap")
    else:
        state = _let_wait(state, due)
    return msgspec.structs.replace(state, upto=newest)


def _let_wait(state: ScheduleState, due: SlotSpan) -> ScheduleState:
    *others, last = state.waiting or (due,)
    joined = (SlotSpan(after=last.after, upto=due.upto),) if last.upto >= due.after else (last, due)
    return msgspec.structs.replace(state, waiting=(*others, *joined))


def _pass_by(cron: Cron, state: ScheduleState, span: SlotSpan, why: Literal["overlap", "missed"]) -> ScheduleState:
    slots = list(islice(slots_between(cron, span.after, span.upto), MOST))
    latest = last_slot(cron, span.after, span.upto) or slots[-1]
    passed = Passed(first=slots[0], last=latest, count=len(slots), why=why)
    *others, before = state.passed or (passed,)
    if state.passed and before.why == why and (state.fired is None or before.last > state.fired):
        joined = msgspec.structs.replace(before, last=latest, count=before.count + passed.count)
        return msgspec.structs.replace(state, passed=(*others, joined))
    return msgspec.structs.replace(state, passed=(*state.passed, passed)[-_REMEMBERED:])


def changed_state(state: ScheduleState, now: datetime) -> ScheduleState:
    """The state once the schedule has other times: slots of the old ones, and of times gone by, come no more."""
    return msgspec.structs.replace(state, upto=max(state.upto, now), waiting=())


# --- for people ---------------------------------------------------------------------------------------------------


def next_slot(cron: Cron, state: ScheduleState, now: datetime) -> datetime | None:
    """The first one that has not come yet."""
    return next(slots_after(cron, max(state.upto, now)), None)


def missed_slots(cron: Cron, state: ScheduleState, now: datetime) -> list[datetime]:
    """Slots that nobody was there for so far, oldest first: no worker has looked at the schedule since."""
    return list(islice(slots_between(cron, state.upto, now - LATE), MOST))


def waiting_slots(cron: Cron, state: ScheduleState) -> list[datetime]:
    """Slots that wait for the run before them to end, oldest first."""
    every = (slot for span in state.waiting for slot in slots_between(cron, span.after, span.upto))
    return list(islice(every, MOST))


def slot_id(name: str, slot: datetime) -> str:
    """The id of the run of a slot: its schedule and its time in UTC. Ids of one schedule sort by time."""
    return f"{name}@{slot.astimezone(UTC).strftime(_SLOT)}"
