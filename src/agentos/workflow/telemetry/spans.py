"""A journal folded into spans. Pure: any process gives the same ones, and a kill loses none.

A trace for each drive: the drive, its layers, tasks, attempts, agents and calls of models. One more for the run itself,
and for what waits for people: both outlive drives, often by days, which no viewer shows well beside milliseconds.

A span is told when it has ended, and never changes after that.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

import msgspec

from agentos.excerpts import shorten
from agentos.ids import EPOCH, GateId, TaskId
from agentos.machine import events as ev
from agentos.workflow.look.run_view import retry_end
from agentos.workflow.telemetry.trace_ids import TraceIds

SpanKind = Literal["run", "gate", "drive", "layer", "task", "attempt", "agent", "turn", "call"]
MAX_TEXT = 300
_NAMELESS = "workflow"


class SpanLink(msgspec.Struct, frozen=True, kw_only=True):
    """Another span that this one has to do with, in another trace."""

    trace_id: str
    span_id: str
    relation: str
    """`run`, `drive`, `previous_drive`, `previous_run`, `forked_from`."""


class SpanEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a moment."""

    name: str
    at: datetime
    attributes: dict[str, Any] = {}


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of work, or of waiting, that is over."""

    kind: SpanKind
    name: str
    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    parent_id: str = ""
    """In the same trace; empty for its root."""
    started_at: datetime
    ended_at: datetime
    attributes: dict[str, Any] = {}
    events: list[SpanEvent] = []
    links: list[SpanLink] = []
    error: str | None = None
    """None: it did not fail. Else why, in a line."""


class _Begun:
    """A span that has not ended."""

    __slots__ = (
        "attributes", "children", "ended", "events", "kind", "links", "name", "parent", "span_id", "start", "trace_id"
    )  # fmt: skip

    def __init__(
        self,
        kind: SpanKind,
        name: str,
        ids: tuple[str, str],
        start: datetime,
        parent: _Begun | None,
        **attributes: Any,
    ) -> None:
        self.kind, self.name, self.start, self.parent = kind, name, start, parent
        self.trace_id, self.span_id = ids
        self.attributes = attributes
        self.events: list[SpanEvent] = []
        self.links: list[SpanLink] = []
        self.children: dict[str, _Begun] = {}
        """Those that are open."""
        self.ended = False
        if parent is not None:
            parent.children[self.span_id] = self

    def link(self, ids: tuple[str, str], relation: str) -> None:
        self.links.append(SpanLink(trace_id=ids[0], span_id=ids[1], relation=relation))

    def add(self, name: str, amount: float) -> None:
        if amount:
            self.attributes[name] = self.attributes.get(name, 0) + amount

    def close(self, at: datetime, error: str | None) -> Span:
        self.ended = True
        if self.parent is not None:
            self.parent.children.pop(self.span_id, None)
        return Span(
            kind=self.kind,
            name=self.name,
            trace_id=self.trace_id,
            span_id=self.span_id,
            parent_id=self.parent.span_id if self.parent is not None else "",
            started_at=self.start,
            ended_at=max(at, self.start),  # a clock may have been put back
            attributes={_whole_name(name): one for name, one in self.attributes.items()},
            events=[*self.events],  # what an attempt paid may be known later, and changes no span that was told
            links=self.links,
            error=error,
        )


class SpanFold:
    """Takes the events of one run, from the first on, and tells spans as they end."""

    def __init__(self) -> None:
        self._ids = TraceIds("", EPOCH)
        self._name = _NAMELESS
        self._last_at = EPOCH
        self._drive_number = 0
        self._previous: tuple[tuple[str, str], str] | None = None
        """Another span that the next run span, or drive, comes after; and how."""
        self._run: _Begun | None = None
        self._runs = 0
        self._drive: _Begun | None = None
        self._layers: dict[int, _Begun] = {}
        self._tasks: dict[TaskId, _Begun] = {}
        self._attempts: dict[TaskId, _Begun] = {}
        """The newest attempt of each task in this drive, ended ones included: what it paid for may be known later."""
        self._gates: dict[GateId, _Begun] = {}
        self._fan_outs: dict[TaskId, TaskId] = {}
        """By the task of an item: the task that was fanned out."""
        self._ended: list[Span] = []

    def take(self, event: ev.Event) -> list[Span]:
        """The spans that end with this event."""
        if event.seq == 1:
            self._ids = TraceIds(event.workflow_id, event.at)
        match event:
            case ev.RunForked():
                self._begin_run(event)
                if event.parent_began is not None and self._run is not None:
                    self._run.link(TraceIds(event.parent_id, event.parent_began).run(), "forked_from")
                    self._run.attributes["fork.parent"] = event.parent_id
            case ev.WorkflowStart():
                self._begin_drive(event)
            case ev.LeaseTaken(holder=holder) if self._drive is not None:
                self._drive.attributes["holder"] = holder
            case ev.WorkflowComplete():
                self._end_drive(event.at, "complete", None)
            case ev.WorkflowFailed(reason=reason):
                self._end_drive(event.at, "failed", reason)
            case ev.WorkflowAborted():
                self._end_drive(event.at, "aborted", None)
            case ev.WorkflowPaused(reason=why):
                self._end_drive(event.at, f"paused: {why}", None)
            case ev.DecisionRequired():
                self._open_gate(event)
            case ev.DecisionMade(gate_id=gate_id, answer=answer):
                self._close_gate(gate_id, event.at, answer)
            case ev.RolledBack():
                for span in [*self._layers.values(), *self._tasks.values()]:
                    self._close(span, event.at, "rolled back")
                for gate_id in list(self._gates):
                    self._close_gate(gate_id, event.at, "rolled back")
                self._layers.clear()
                self._tasks.clear()
            case _ if self._drive is not None:
                self._take_of_drive(event)
        self._last_at = event.at
        ended, self._ended = self._ended, []
        return ended

    def interrupt(self) -> list[Span]:
        """Nobody drives the run any more, and nobody said so: what was under way ended with the last event there is.

        The next drive comes to the same spans.
        """
        if self._drive is not None:
            self._end_drive(self._last_at, "interrupted", "its driver died")
        ended, self._ended = self._ended, []
        return ended

    # --- runs, drives, gates ------------------------------------------------------------------------------------------

    def _begin_run(self, event: ev.Event) -> None:
        if self._run is None:
            self._run = _Begun("run", "run", self._ids.run(event.seq), event.at, None, **{"run.id": event.workflow_id})
            if self._runs:
                self._run.link(self._ids.run(self._runs), "previous_run")
            self._runs = event.seq

    def _begin_drive(self, event: ev.WorkflowStart) -> None:
        if self._drive is not None:
            self._end_drive(self._last_at, "interrupted", "its driver died")
        self._name = event.name or _NAMELESS
        self._begin_run(event)
        assert self._run is not None
        self._run.name = f"run {self._name}"
        ids = self._ids.drive(event.drive)
        self._drive = _Begun("drive", f"drive {self._name}", ids, event.at, None, drive=event.drive)
        self._drive.link((self._run.trace_id, self._run.span_id), "run")
        if self._drive_number:
            self._drive.link(self._ids.drive(self._drive_number), "previous_drive")
        self._run.link(ids, "drive")
        self._drive_number = event.drive

    def _end_drive(self, at: datetime, end: str, error: str | None) -> None:
        if self._drive is None:
            return
        self._close(self._drive, at, end, error)
        self._drive = None
        for open_ones in (self._layers, self._tasks, self._attempts):
            open_ones.clear()
        if end in ("complete", "failed", "aborted") and self._run is not None:
            for gate_id in list(self._gates):
                self._close_gate(gate_id, at, "none")
            self._close(self._run, at, end, error)
            self._run = None

    def _open_gate(self, event: ev.DecisionRequired) -> None:
        if self._run is None or self._drive is None:
            return
        ids = (self._run.trace_id, self._ids.span("gate", event.gate_id, event.seq))
        about: dict[str, Any] = {"gate.id": event.gate_id, "gate.kind": event.kind}
        if event.task_id is not None:
            about["task"] = event.task_id
        gate = self._gates[event.gate_id] = _Begun("gate", f"gate {event.kind}", ids, event.at, self._run, **about)
        gate.link((self._drive.trace_id, self._drive.span_id), "drive")

    def _close_gate(self, gate_id: GateId, at: datetime, answer: str) -> None:
        if (gate := self._gates.pop(gate_id, None)) is not None:
            gate.attributes["gate.answer"] = answer
            self._close(gate, at)

    # --- inside of a drive --------------------------------------------------------------------------------------------

    def _take_of_drive(self, event: ev.Event) -> None:
        match event:
            case ev.LayerStart(layer=layer):
                ids = self._of_drive("layer", layer, event.seq)
                self._layers[layer] = _Begun("layer", f"layer {layer}", ids, event.at, self._drive, layer=layer)
            case ev.Checkpointed(layer=layer) | ev.CheckpointFailed(layer=layer):
                if (span := self._layers.pop(layer, None)) is not None:
                    failure = event.error.in_short if isinstance(event, ev.CheckpointFailed) else None
                    self._close(span, event.at, error=failure)
            case ev.PlanChanged(origin="for_each", parent=parent, children=children) if parent is not None:
                self._fan_outs.update(dict.fromkeys(children, parent))
                self._open_task(parent, event, None)
            case ev.TaskStart(task_id=task_id, attempt=attempt):
                task = self._open_task(task_id, event, event.layer)
                ids = self._ids.attempt(self._drive_number, task_id, attempt, event.seq)
                about = {"task": task_id, "attempt": attempt}
                self._attempts[task_id] = _Begun("attempt", f"attempt {task_id}", ids, event.at, task, **about)
            case ev.TaskSession(task_id=task_id, session=session):
                self._open_agent(task_id, event.at, event.seq, session.agent, session.id)
            case ev.TaskUsage():
                self._pay(event)
            case ev.TaskRetry(task_id=task_id, error=failure):
                failed = not (event.put_off or event.limit)
                self._close_attempt(task_id, event.at, retry_end(event), failure, failed=failed)
            case ev.TaskSuspended(task_id=task_id):
                self._close_attempt(task_id, event.at, "suspended")
            case ev.TaskComplete(task_id=task_id):
                self._close_attempt(task_id, event.at, "complete")
                self._close_task(task_id, event.at, "complete")
            case ev.TaskError(task_id=task_id, status=status, error=failure):
                failed = status != "cancelled"
                self._close_attempt(task_id, event.at, status, failure, failed=failed)
                self._close_task(task_id, event.at, status, failure, failed=failed)
            case ev.TaskSkipped(task_id=task_id, because=because):
                about = {"agentos.task": task_id} | ({"agentos.because": because} if because else {})
                above = self._layers.get(event.layer, self._drive)
                if above is not None:
                    above.events.append(SpanEvent(name="agentos.task_skipped", at=event.at, attributes=about))
                self._close_task(task_id, event.at, "skipped")
            case ev.ResumePlanned(cut_off=cut_off):
                for task_id in cut_off:
                    self._close_attempt(task_id, event.at, "cut off")

    def _of_drive(self, *about: str | int) -> tuple[str, str]:
        trace_id, _ = self._ids.drive(self._drive_number)
        return trace_id, self._ids.span(about[0], self._drive_number, *about[1:])

    def _open_task(self, task_id: TaskId, event: ev.Event, layer: int | None) -> _Begun | None:
        """The span of the task in this drive; below that of its fan-out, where it is an item of one."""
        if task_id in self._tasks:
            return self._tasks[task_id]
        parent = self._fan_outs.get(task_id)
        if parent is not None:
            above = self._open_task(parent, event, layer)
        else:
            above = self._layers.get(max(self._layers, default=-1) if layer is None else layer, self._drive)
        ids = self._of_drive("task", task_id, event.seq)
        span = self._tasks[task_id] = _Begun("task", f"task {task_id}", ids, event.at, above, task=task_id)
        return span

    def _close_task(
        self, task_id: TaskId, at: datetime, end: str, failure: ev.TaskFailure | None = None, *, failed: bool = False
    ) -> None:
        if (span := self._tasks.pop(task_id, None)) is not None:
            self._close(span, at, end, _name_failure(span, failure) if failed else None)

    def _close_attempt(
        self, task_id: TaskId, at: datetime, end: str, failure: ev.TaskFailure | None = None, *, failed: bool = False
    ) -> None:
        span = self._attempts.get(task_id)
        if span is not None and not span.ended:
            cut_off = "interrupted" if end == "cut off" else None
            self._close(span, at, end, _name_failure(span, failure) if failed else cut_off)

    def _open_agent(self, task_id: TaskId, at: datetime, seq: int, agent: str, session: str) -> _Begun | None:
        """The span of the agent that performs the attempt."""
        attempt = self._attempts.get(task_id)
        if attempt is None or attempt.ended:
            return None
        span = next((one for one in attempt.children.values() if one.kind == "agent"), None)
        if span is None:
            ids = self._of_drive("agent", task_id, attempt.attributes["attempt"], seq)
            about = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent, "task": task_id}
            span = _Begun("agent", f"invoke_agent {agent}", ids, at, attempt, **about)
        if session:
            span.attributes["gen_ai.conversation.id"] = session
        return span

    def _pay(self, event: ev.TaskUsage) -> None:
        """A span for what was paid for, and its sum on what it was a part of."""
        attempt, call, used = self._attempts.get(event.task_id), event.call, event.usage
        if attempt is None:
            return
        above = attempt
        if call is not None and call.agent:
            above = self._open_agent(event.task_id, call.started, event.seq, call.agent, "") or attempt
        for span in {id(one): one for one in (attempt, above)}.values():
            _count(span, used)
        if call is None:
            about: dict[str, Any] = {}
            _count_into(about, used)
            attempt.events.append(SpanEvent(name="agentos.usage", at=event.at, attributes=about))
            return
        ids = self._of_drive("call", event.task_id, event.attempt, event.seq)
        kind: SpanKind = "turn" if call.agent else "call"
        name = f"turn {call.agent}" if call.agent else f"chat {call.model}"
        about = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": call.provider, "task": event.task_id}
        about |= {"gen_ai.request.model": call.model, "gen_ai.response.model": call.answered_by or call.model}
        about |= {"gen_ai.agent.name": call.agent, "error.type": call.error}
        span = _Begun(kind, name.strip(), ids, call.started, above, **{key: one for key, one in about.items() if one})
        _count(span, used)
        self._close(span, event.at, error=call.error or None)

    def _close(self, span: _Begun, at: datetime, end: str = "", error: str | None = None) -> None:
        """End a span, and what is still open below it, innermost first."""
        died = end in ("interrupted", "cut off")
        for child in list(span.children.values()):
            if child.kind == "agent":
                self._close(child, at, end, error)
            elif child.kind != "gate":  # those have an answer
                self._close(child, at, "cut off" if died else "unfinished", error if died else None)
        if end and span.kind not in ("turn", "call", "layer"):
            span.attributes["end"] = end
        span.attributes.setdefault("run.id", self._run.attributes["run.id"] if self._run is not None else "")
        span.attributes.setdefault("workflow", self._name)
        span.attributes["kind"] = span.kind
        self._ended.append(span.close(at, None if error is None else shorten(error, MAX_TEXT)))


def spans_of(events: Iterable[ev.Event], *, driven: bool) -> list[Span]:
    """The spans of a run that have ended, in that order. `driven`: somebody is at work on the rest."""
    fold = SpanFold()
    spans = [span for event in events for span in fold.take(event)]
    return spans if driven else [*spans, *fold.interrupt()]


def _name_failure(span: _Begun, failure: ev.TaskFailure | None) -> str:
    if failure is None:
        return "failed"
    span.attributes["error.type"] = failure.type
    return failure.in_short


def _count(span: _Begun, used: ev.Usage) -> None:
    for name, amount in _amounts(used):
        span.add(name, amount)


def _count_into(about: dict[str, Any], used: ev.Usage) -> None:
    about.update((_whole_name(name), amount) for name, amount in _amounts(used) if amount)


def _whole_name(name: str) -> str:
    """Names that OpenTelemetry has are its own, the others ours."""
    return name if name.startswith(("gen_ai.", "error.")) else f"agentos.{name}"


def _amounts(used: ev.Usage) -> tuple[tuple[str, float], ...]:
    return (
        ("gen_ai.usage.input_tokens", used.input_tokens),
        ("gen_ai.usage.output_tokens", used.output_tokens),
        ("gen_ai.usage.cache_read.input_tokens", used.cached_tokens),
        ("cost_usd", used.cost_usd),
        ("model_calls", used.calls),
    )
