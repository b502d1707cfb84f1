"""Playing a case: processes one after the other, killed where the case says, until the run has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from agentos.crashpoints import LOG
from tests.crash import checks
from tests.crash.children.witness import EFFECTS
from tests.crash.harness import WAITING, Ended, Theatre

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


class Played(NamedTuple):
    """A run that was played to its end."""

    ending: dict[str, Any]
    """What must be the same however often it was killed: its state, and every file of the worktree."""
    left: list[Kill]
    """Kills that were never reached."""
    steps: list[Counter[str]]
    """How often each process that was not to be killed passed each point, where that was asked for."""


def play(theatre: Theatre, kills: Sequence[Kill] = (), *, count: bool = False) -> Played:
    """Play with a kill after the other, each in the first process that gets there."""
    left = list(kills)
    killed: list[int] = []
    steps: list[Counter[str]] = []
    while (act := next_act(theatre, played=len(steps))) is not None:
        armed = left[0] if left and left[0].step <= len(steps) else None
        log = theatre.folder / f"points.{len(steps)}"
        ended = act(at=str(armed) if armed else f"{LOG}:{log}" if count else None)
        steps.append(Counter(log.read_text().split() if log.exists() else ()))
        if ended.killed:
            left.pop(0)
            killed.append(ended.pid)
            check_after_kill(theatre)
        elif armed and ended.code in theatre.stop_codes:
            left.pop(0)
        assert len(steps) < MAX_STEPS, "the run does not come to an end"
    check_end(theatre, killed)
    return Played({"state": state_of(theatre), "files": checks.tree(theatre.repo)}, left, steps)


def next_act(theatre: Theatre, *, played: int) -> Callable[..., Ended] | None:
    """What somebody would do now who wants the run to come to its end; None once it has."""
    last = theatre.ended[-1] if theatre.ended else None
    record = theatre.record()
    if last is None or (record is None and last.code and not last.killed):
        return theatre.run
    if last.code not in (0, WAITING, *theatre.stop_codes) and not last.killed:
        raise AssertionError(f"{last.what} ended with {last.code}: {(last.stderr + last.stdout).strip()[-300:]}")
    if record is None or record.sequence == 0:
        # Killed before anything was written down: both ways to go on must do.
        return theatre.run if record is not None and played % 2 else theatre.resume
    if record.status in ("complete", "failed") and not last.killed:
        return None
    if last.code == WAITING and record.status != "waiting":
        raise AssertionError(f"{last.what} asks: {last.stderr.strip()[-300:]}")
    facts = theatre.facts()
    if facts.open_gates and (record.status == "waiting" or played % 2):
        return theatre.answer
    return theatre.run if played % 3 == 2 else theatre.resume


def check_after_kill(theatre: Theatre) -> None:
    """Nobody drives now, and that is what a list must say."""
    record = theatre.record()
    if record is not None:
        submitted = record.waiting is not None and record.sequence == 0
        shown = ("running",) if submitted else ("running", "pending")
        assert record.status not in shown, f"nobody drives the run, and it is shown as {record.status}"
        assert record.holder is None, f"a dead process is shown as the driver: {record.holder}"
        theatre.journal()


def check_end(theatre: Theatre, killed: list[int]) -> None:
    """Everything that must hold of a run that has ended, whatever happened on the way."""
    events, trace = theatre.journal(), theatre.trace()
    scenario = theatre.name.partition("-")[0]
    checks.check_questions(events, EFFECTS)
    checks.check_journal(events, killed=killed)
    checks.check_trace(events, trace)
    checks.check_worktrees(theatre.repo)
    if not theatre.url:
        checks.check_file(theatre.database)
    checks.check_at_most_once(trace, EXTERNAL.get(scenario, ()))
    commands = {event.command_id for event in events if hasattr(event, "command_id") and event.command_id[0] == "c"}
    assert len(commands) == COMMANDS.get(scenario, 0), f"commands on the record: {sorted(commands)}"


def state_of(theatre: Theatre) -> dict[str, Any]:
    return checks.canonical_state(theatre.facts(), theatre.repo)
