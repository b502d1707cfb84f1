"""The machine: given an input and the time, which events follow.

`decide(plan, facts, given, now) -> events` is the pure face. A `Machine` is the same function for a run under way: it
keeps plan, facts and frontier up to date between inputs, so that deciding costs the same in a run of ten tasks and of
ten thousand. It knows no clock, no thread, no file; equal inputs give equal events.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import assert_never

from agentos.dag.plan import Plan
from agentos.ids import CheckpointId, GateId, TaskId
from agentos.run import events as ev
from agentos.run import requests
from agentos.run.attempts import attempt_ended
from agentos.run.board import Board, GatePolicy
from agentos.run.ending import settle, stop
from agentos.run.facts import Facts
from agentos.run.fanout import settle_items
from agentos.run.inputs import (
    AttemptEnded,
    Begin,
    ChildStarted,
    CommandArrived,
    CommandUnreadable,
    EffectsHeld,
    GatesLeft,
    Input,
    Planned,
    StopAsked,
    Tick,
)
from agentos.run.layers import close_layers
from agentos.run.resume import ResumePlan
from agentos.run.starting import look_at_candidates


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
        self.out, self.now = [], now
        for one in given:
            if not self.over:
                self._take(one)
        if not self.over:
            self._fire_timers()
            self._advance()
        return self.out

    @property
    def wake_at(self) -> datetime | None:
        """When the machine wants a Tick, if nothing else happens before."""
        return self.frontier.timers[0][0] if self.frontier.timers else None

    def _take(self, given: Input) -> None:
        match given:
            case Begin():
                self._begin(given)
            case Planned(resume=resume):
                self._resume(resume)
            case AttemptEnded():
                attempt_ended(self, given)
            case ChildStarted():
                self._child_started(given)
            case CommandArrived(asked=asked):
                requests.take(self, asked)
            case CommandUnreadable():
                self.emit(
                    ev.CommandRefused(
                        command_id=given.command_id, author=given.author, command=given.command, why=given.why
                    )
                )
            case StopAsked(reason=reason):
                self.stop_asked = reason or "asked to stop"
            case GatesLeft(gates=gates):
                self.gates_left = gates
            case EffectsHeld(held=held):
                self.held = held
                if not held:
                    self.frontier.release_held()
            case Tick():
                pass
            case _:
                assert_never(given)

    def _begin(self, given: Begin) -> None:
        if given.forked is not None:
            self.emit(given.forked)
            self.derive()
        resume = given.resume
        resumed_from = self.facts.finished_layer if self.facts.finished_layer >= 0 else None
        if given.rollback is not None:
            resumed_from = self.facts.cuts[CheckpointId(given.rollback)][1]
        self.emit(
            ev.WorkflowStart(
                name=self.plan.name,
                total_layers=len(self.plan.layers),
                drive=self.facts.drives + 1,
                resumed_from=resumed_from if resume is not None or given.rollback or given.forked else None,
                plan_revision=resume.revision if resume is not None else self.facts.plan_revision,
                plan_fingerprint=self.plan.fingerprint,
            )
        )
        self.emit(ev.LeaseTaken(token=given.token, holder=given.holder, taken_from=given.taken_from))
        if given.rollback is not None:
            self.emit(requests.rollback_to(self, given.rollback, reason="resumed from an older checkpoint"))
            self.over = True
        elif resume is not None:
            self._resume(resume)
        for warning in given.warnings:
            self.emit(ev.TaskWarning(message=warning))

    def _resume(self, resume: ResumePlan) -> None:
        self.emit(
            ev.ResumePlanned(
                plan_revision=resume.revision,
                skipped_layers=min(self.frontier.layer, self.facts.finished_layer + 1),
                counts=resume.counts,
                verdicts=resume.noteworthy,
                reset=resume.reset,
                cut_off=resume.cut_off,
                ask=resume.ask,
                regrown=resume.regrown,
            )
        )
        self.drop_items(resume.regrown)
        self.derive()

    def _child_started(self, given: ChildStarted) -> None:
        if self.facts.running.get(given.task_id) == given.attempt:
            self.emit(
                ev.TaskProcess(
                    task_id=given.task_id,
                    layer=self.plan.tasks[given.task_id].layer,
                    attempt=given.attempt,
                    pid=given.pid,
                    pgid=given.pgid,
                    started=given.started,
                )
            )

    def _fire_timers(self) -> None:
        for whose in self.frontier.due(self.now):
            if whose in self.facts.open_gates:
                self._gate_timed_out(GateId(whose))
            elif whose in self.plan.tasks and self.facts.task(TaskId(whose)).status == "retrying":
                self.frontier.offer(TaskId(whose))

    def _gate_timed_out(self, gate_id: GateId) -> None:
        gate = self.facts.gates[gate_id].opened
        requests.answer_gate(
            self, gate_id, approved=gate.on_timeout == "approve", author="timeout", reason="nobody answered in time"
        )

    def _advance(self) -> None:
        """Start what can start, close what is finished, until nothing more follows by itself."""
        while not self.over:
            settle_items(self)
            if self.stopping:
                stop(self)
                return
            before = self.facts.sequence
            close_layers(self)
            if not self.over:
                look_at_candidates(self)
            if self.facts.sequence == before and not settle(self):
                return
