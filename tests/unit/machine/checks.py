"""What holds after every step of every run; the harness and the property tests ask for all of it each time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from agentos.machine import events as ev
from agentos.machine.facts.fold import Facts, workflow_state
from agentos.machine.frontier import Frontier
from agentos.machine.inputs import DRAINED, EffectsHeld, Input, StopAsked
from agentos.machine.machine import Machine
from agentos.values import canonical_json


class PureFace:
    """A machine as it is now, to be made afresh from plan and facts alone.

    All else that a machine remembers are the two inputs that no event records: the fresh one is told these first. What
    it has asked for of the files it would ask for again; here it need not.
    """

    def __init__(self, machine: Machine) -> None:
        self._plan, self._facts, self._over = machine.plan, machine.facts, machine.over
        self._gates, self._starts, self._captures = machine.gates, machine.starts, machine.captures
        self._asked = machine.capture_wanted, machine.captured_layer, machine.uncaptured
        self._told: list[Input] = [EffectsHeld(held=True)] if machine.held else []
        self._told += [StopAsked(reason=DRAINED if machine.drained else "")] if machine.stop_asked else []

    def decides(self, given: Sequence[Input], now: datetime) -> list[ev.Event]:
        fresh = Machine(self._plan, self._facts, gates=self._gates, starts=self._starts)
        fresh.over, fresh.captures = self._over, self._captures
        fresh.capture_wanted, fresh.captured_layer, fresh.uncaptured = self._asked
        return fresh.steps([*self._told, *given], now)

    def check(self, given: Sequence[Input], now: datetime, events: Sequence[ev.Event]) -> None:
        """The machine that was kept up to date decided what the fresh one decides."""
        assert list(map(encoded, self.decides(given, now))) == list(map(encoded, events))


def encoded(event: ev.Event) -> bytes:
    return event.type.encode() + b" " + msgspec.json.encode(event)


def check_frontier(machine: Machine) -> None:
    """The frontier that was kept up to date equals one made afresh."""
    kept, fresh = machine.frontier, Frontier(machine.plan, machine.facts)
    assert kept.plan is machine.plan
    assert kept.left == fresh.left
    assert kept.unmet == fresh.unmet
    assert kept.items_left == fresh.items_left
    assert kept.items_failed == fresh.items_failed
    assert kept.retrying == fresh.retrying
    assert kept.sleeping == fresh.sleeping
    assert kept.opened == fresh.opened
    assert {group: slots for group, slots in kept.slots.items() if slots} == fresh.slots
    if not machine.over:
        assert machine.wake_at is None or machine.wake_at > machine.now, "a drive would tick without end"
        assert kept.next_cut == fresh.next_cut
        assert _moments(kept, machine) == _moments(fresh, machine)


def _moments(frontier: Frontier, machine: Machine) -> list[tuple[datetime, str]]:
    live = {*machine.facts.open_gates, *frontier.retrying}
    # A timer of a sleep that no longer counts does nothing.
    sleeps = {(step.until, name) for name in frontier.sleeping for step in machine.facts.task(name).pending}
    timers = {timer for timer in frontier.timers if timer[1] in live or timer in sleeps}
    return sorted(timer for timer in timers if timer[0] > machine.now)


def comparable(facts: Facts, *, decisions: bool = True) -> bytes:
    """Status and state as runs are compared: canonical JSON without durations, and without what only a crash asks."""
    state = msgspec.to_builtins(workflow_state(facts))
    for entry in state["tasks"]:
        del entry["execution_time_ms"]
    state["decisions"] = [made for made in state["decisions"] if made["kind"] != "ask" and decisions]
    return canonical_json([facts.status, state])
