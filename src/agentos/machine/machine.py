"""The machine: given an input and the time, which events follow.

`decide(plan, facts, given, now) -> events` is the pure face. A `Machine` is the same function for a run under way: it
keeps plan, facts and frontier up to date between inputs, so that deciding costs the same in a run of ten tasks and of
ten thousand. It knows no clock, no thread, no file; equal inputs give equal events.

What it remembers beside plan and facts are the two inputs that no event records: whether effects are held, and whether
the process was asked to stop. A machine made afresh from plan and facts, and told these two, decides the same. What it
is waiting to see of files it asks for again.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import assert_never

from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.machine import events as ev
from agentos.machine.board import Board, GatePolicy
from agentos.machine.facts.fold import Facts, TaskFacts
from agentos.machine.frontier import fan_out_of
from agentos.machine.inputs import (
    DRAINED,
    AttemptEnded,
    Begin,
    CaptureEnded,
    ChildStarted,
    CommandArrived,
    CommandsCameLate,
    CommandUnreadable,
    CoveredFilesChanged,
    CutFailed,
    EffectsHeld,
    FilesSeen,
    GatesLeft,
    Input,
    MergeEnded,
    Planned,
    SessionKnown,
    SleepAsked,
    SourcesChanged,
    SourcesSeen,
    StepBegan,
    StepEnded,
    StopAsked,
    Tick,
    UsageKnown,
    WaitAsked,
)
from agentos.machine.rules import (
    attempts,
    drives,
    files,
    layers,
    merges,
    requests,
    steps,
    task_start,
)


def decide(plan: Plan, facts: Facts, given: Input, now: datetime, *, gates: GatePolicy = "stop") -> list[ev.Event]:
    """The events that follow from one input. Pure: same arguments, same events."""
    return Machine(plan, facts, gates=gates).step(given, now)


class Machine(Board):
    """A board that takes inputs in."""

    def step(self, given: Input, now: datetime) -> list[ev.Event]:
        """Take one input in and give the events that follow, folded already."""
        return self.steps((given,), now)

    def steps(self, given: Iterable[Input], now: datetime) -> list[ev.Event]:
        """Take several inputs in that belong together, then go on: a command that came with the start counts first."""
        self.out, self.now, self.gates_left, self.seen = [], now, frozenset(), {}
        begins = False
        for one in given:
            if isinstance(one, CutFailed):  # also where the drive has ended: that may not have been written, either
                layers.cut_failed(self, one)
                return self.out  # all that follows was decided before
            if not self.over:
                self._take(one)
                begins = begins or isinstance(one, Begin)
        if begins and not self.over and not self.stopping and not self.facts.interrupted:
            requests.at_boundary(self)  # the run stood still in order: commands need not wait for a layer's end
        if not self.over:
            requests.fire_timers(self, now)
        self._advance()
        return self.out

    @property
    def wake_at(self) -> datetime | None:
        """When the machine wants a Tick, if nothing else happens before. A run that stops waits for nothing but its
        tasks: no timer fires any more."""
        return None if self.stopping else self.frontier.next_moment(self.facts)

    def _take(self, given: Input) -> None:
        match given:
            case Begin():
                drives.begin(self, given)
            case Planned(resume=resume):
                drives.resume(self, resume)
            case AttemptEnded():
                attempts.end_attempt(self, given)
            case ChildStarted():
                attempts.child_started(self, given)
            case SessionKnown():
                attempts.session_known(self, given)
            case StepEnded():
                attempts.step_ended(self, given)
            case SourcesSeen():
                attempts.sources_seen(self, given)
            case SourcesChanged():
                attempts.sources_changed(self, given)
            case StepBegan():
                steps.record_begin(self, given)
            case SleepAsked():
                steps.begin_sleep(self, given)
            case WaitAsked():
                steps.ask(self, given)
            case UsageKnown():
                attempts.usage_known(self, given)
            case CommandArrived(asked=asked):
                requests.take(self, asked)
            case CommandUnreadable():
                self.emit(
                    ev.CommandRefused(
                        command_id=given.command_id, author=given.author, command=given.command, why=given.why
                    )
                )
            case CommandsCameLate():
                drives.refuse_late(self, given)
            case CaptureEnded():
                files.record_capture(self, given)
            case MergeEnded():
                merges.record_merge(self, given)
            case FilesSeen():
                files.files_seen(self, given)
            case CoveredFilesChanged():
                files.covered_files_changed(self, given)
            case StopAsked(reason=reason, uncut=uncut):
                self.stop_asked = True
                self.drained = reason == DRAINED
                self.uncut = self.uncut or uncut
            case GatesLeft(gates=gates):
                self.gates_left = gates
            case EffectsHeld(held=held):
                self.held = held
                if not held:
                    self.frontier.release_held()
            case Tick() | CutFailed():  # a cut that failed is dealt with before all this
                pass
            case _:
                assert_never(given)

    def task_over(self, task: PlannedTask, was: TaskFacts) -> None:
        attempts.follow(self, task, was)
        parent = fan_out_of(task)
        if parent is not None and parent in self.frontier.items_left:
            task_start.item_over(self, self.plan.tasks[parent], task)

    def _advance(self) -> None:
        """Close what is finished, start what can start, until nothing more follows by itself."""
        while not self.over:
            if self.stopping:
                drives.stop(self)
                return
            if drives.leave_to_resume(self):
                return
            before = self.facts.sequence
            layers.close(self)
            if not self.over:
                task_start.look_at_candidates(self)
            if self.facts.sequence == before and not drives.settle(self):
                return
