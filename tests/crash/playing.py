"""Playing a case: processes one after the other, killed where the case says, until the run has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.crash import checks
from tests.crash.harness import Ended, Theatre

EXTERNAL = {"wide": ("charge",), "gates": ("ship",)}
"""Tasks of a scenario whose effect may not be repeated."""
COMMANDS = {"replan": 3}
"""Commands that each run of a scenario is sent."""
MAX_STEPS = 20


class Kill(NamedTuple):
    """Where a process dies: at the n-th pass over a point, in the step of that number or a later one."""

    point: str
    n: int = 1
    step: int = 0

    def __str__(self) -> str:
        return f"{self.point}:{self.n}"


class Reference(NamedTuple):
    """A scenario that nobody disturbed: how it ends, and how often each step of it passes each point."""

    state: dict[str, Any]
    steps: list[Counter[str]]

    def passes(self, point: str) -> list[Kill]:
        """Every pass over a point, in order."""
        return [Kill(point, n, step) for step, counted in enumerate(self.steps) for n in range(1, counted[point] + 1)]

    def kill(self, point: str, when: str) -> Kill:
        """The first, the middle or the last of all passes over a point."""
        passes = self.passes(point)
        assert passes, f"not reached: {point}"
        return passes[{"first": 0, "middle": len(passes) // 2, "last": -1}[when]]


def play_undisturbed(theatre: Theatre) -> Reference:
    """Play a scenario to its end, counting."""
    steps: list[Counter[str]] = []
    while (act := next_act(theatre, played=len(steps))) is not None:
        ended, counted = theatre.passes(act)
        assert ended.code == 0, f"{ended.what} ended with {ended.code}"
        steps.append(counted)
        assert len(steps) < MAX_STEPS, "the run does not come to an end"
    check_end(theatre, killed=[])
    return Reference(state_of(theatre), steps)


def play(theatre: Theatre, kills: list[Kill]) -> list[Kill]:
    """Play with a kill after the other, each in the first process that gets there. Those never reached come back."""
    left = list(kills)
    killed: list[int] = []
    step = 0
    while (act := next_act(theatre, played=step)) is not None:
        armed = left[0] if left and left[0].step <= step else None
        ended = act(at=str(armed) if armed else None)
        if ended.killed:
            left.pop(0)
            killed.append(ended.pid)
            check_after_kill(theatre)
        step += 1
        assert step < MAX_STEPS, "the run does not come to an end"
    check_end(theatre, killed)
    return left


def next_act(theatre: Theatre, *, played: int) -> Callable[..., Ended] | None:
    """What somebody would do now who wants the run to come to its end; None once it has."""
    last = theatre.ended[-1] if theatre.ended else None
    record = theatre.record()
    if last is None or last.said.get("error") in ("RunNotFoundError", "NotFoundError"):
        return theatre.run
    if last.code and not last.killed:
        raise AssertionError(f"{last.what} ended with {last.code}")
    if record is None or record.sequence == 0:
        # Killed before anything was written down: both ways to go on must do.
        return theatre.run if record is not None and played % 2 else theatre.resume
    if record.status in ("complete", "failed") and not last.killed:
        return None
    facts = theatre.facts()
    if facts.open_gates and (record.status == "waiting" or played % 2):
        return theatre.answer
    return theatre.run if played % 3 == 2 else theatre.resume


def check_after_kill(theatre: Theatre) -> None:
    """Nobody drives now, and that is what a list must say."""
    record = theatre.record()
    if record is not None:
        assert record.status not in ("running", "pending"), f"nobody drives the run, and it is shown as {record.status}"
        assert record.holder is None, f"a dead process is shown as the driver: {record.holder}"
        theatre.journal()


def check_end(theatre: Theatre, killed: list[int]) -> None:
    """Everything that must hold of a run that has ended, whatever happened on the way."""
    events, trace = theatre.journal(), theatre.trace()
    checks.check_journal(events, killed=killed)
    checks.check_trace(events, trace)
    if not theatre.url:
        checks.check_file(theatre.database)
    scenario = theatre.name.partition("-")[0]
    checks.check_at_most_once(trace, EXTERNAL.get(scenario, ()))
    commands = {event.command_id for event in events if hasattr(event, "command_id") and event.command_id[0] == "c"}
    assert len(commands) == COMMANDS.get(scenario, 0), f"commands on the record: {sorted(commands)}"


def state_of(theatre: Theatre) -> dict[str, Any]:
    return checks.canonical_state(theatre.facts(), theatre.repo)
