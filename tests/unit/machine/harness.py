"""A run of the pure machine, driven by hand: no clock, no thread, no file.

    run = Run(flow_of({"a": [], "b": ["a"]})).begin()
    run.ok("a", 1)                      # the attempt under way ends well
    run.fail("b", "no")                 # … or badly
    run.say({"type": "pause"})          # a command arrives
    run.later(5)                        # time passes
    run.resume(edited)                  # the driver died (or stopped); another one goes on

After each step the journal is folded anew and compared with what the machine holds, the frontier derived anew, the
invariants asked for, and the step decided once more by a machine made afresh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from msgspec import Raw

from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.plan import Plan, compile_plan
from agentos.ids import CheckpointId, GateId, TaskId, WorkflowId
from agentos.machine import events as ev
from agentos.machine.board import GatePolicy
from agentos.machine.commands import CommandRequest, parse_command
from agentos.machine.facts.fold import Facts, TaskFacts, fold, workflow_state
from agentos.machine.inputs import AttemptEnded, AttemptResult, Begin, CommandArrived, FilesSeen, Input, Planned, Tick
from agentos.machine.machine import Machine
from agentos.machine.resume import ResumeOptions, ResumePlan, plan_resume
from agentos.machine.rules.plan_changes import current_plan
from agentos.machine.state import WorkflowState
from agentos.values import decode_value, encode_value
from agentos.workflow.files.decisions import Decided
from tests.unit.machine.checks import PureFace, check_frontier
from tests.unit.machine.invariants import validate_facts

START = datetime(2026, 1, 1, tzinfo=UTC)
AnEvent = TypeVar("AnEvent", bound=ev.Event)


def nothing() -> None:
    """A task that does nothing."""


def take(value: Any) -> Any:
    """A task with one input."""
    return value


def flow_of(needs: Mapping[str, Iterable[str]], **settings: Any) -> Workflow:
    """A workflow of tasks that do nothing, by what each needs; one layer after the other, unless told otherwise."""
    flow = Workflow("flow", **{"schedule": "layers", **settings})
    for task_id, needed in needs.items():
        flow.add(task_id, nothing, needs=list(needed))
    return flow


def raw(value: Any) -> Raw:
    return Raw(encode_value(value))


def ended(task: str, attempt: int = 1, output: Any = None, **more: Any) -> AttemptEnded:
    for name in ("messages", "context"):
        if name in more:
            more[name] = raw(more[name])
    captured = more.pop("captured", None)
    result = AttemptResult(output=raw(output), **more)
    return AttemptEnded(task_id=TaskId(task), attempt=attempt, result=result, captured=captured)


def failed(task: str, attempt: int = 1, text: str = "no", *, type: str = "Boom", **more: Any) -> AttemptEnded:
    captured = more.pop("captured", None)
    result = AttemptResult(error=ev.TaskFailure(type=type, text=text), **more)
    return AttemptEnded(task_id=TaskId(task), attempt=attempt, result=result, captured=captured)


def play(machine: Machine, *inputs: Input, now: datetime = START) -> list[ev.Event]:
    """Each input in a step of its own."""
    return [event for given in inputs for event in machine.step(given, now)]


def told(events: Iterable[ev.Event]) -> list[str]:
    """Events as short text, without what every drive has (workflow_start, lease_taken, state_updated)."""
    return [text for event in events if (text := _told(event))]


def _told(event: ev.Event) -> str:
    match event:
        case ev.TaskStart() | ev.TaskRetry():
            return f"{event.type} {event.task_id}#{event.attempt}"
        case ev.TaskError():
            return f"{event.status} {event.task_id}: {event.error.type}"
        case ev.TaskSkipped():
            return f"task_skipped {event.task_id} ({event.because})"
        case ev.LayerStart() | ev.Checkpointed():
            return f"{event.type} {event.layer}"
        case ev.DecisionRequired():
            return f"decision_required {event.gate_id}"
        case ev.DecisionMade():
            return f"{event.answer} {event.gate_id}"
        case ev.CommandReceived() | ev.CommandApplied() | ev.CommandRefused():
            return f"{event.type} {event.command.get('type')}"
        case ev.PlanChanged():
            return f"plan_changed {event.origin}"
        case ev.WorkflowPaused():
            return f"workflow_paused {event.reason}"
        case ev.WorkflowStart() | ev.LeaseTaken() | ev.StateUpdated():
            return ""
        case ev.TaskComplete() | ev.TaskWarning() | ev.TaskProcess() | ev.TaskPlaced():
            return f"{event.type} {event.task_id}"
    return event.type


class Run:
    """A run, its journal, and the machine that drives it now."""

    def __init__(
        self,
        flow: Workflow | Plan,
        *,
        params: Mapping[str, Any] | None = None,
        gates: GatePolicy = "stop",
        starts: bool = True,
        workflow_id: str = "run",
        captures: bool = False,
    ) -> None:
        self.workflow_id = WorkflowId(workflow_id)
        self.params = params
        self.base = flow if isinstance(flow, Plan) else compile_plan(flow, params)
        self.gates: GatePolicy = gates
        self.now = START
        self.journal: list[ev.Event] = []
        self.out: list[ev.Event] = []
        """What the last step gave."""
        self.problems: list[str] = []
        """Changes that no longer fitted when it was last resumed."""
        self.resumed: ResumePlan | None = None
        self.files: dict[str, str] = {}
        """What commands name, as whoever looks sees it."""
        self.captures = captures
        """Whether the driver can capture files."""
        self.machine = Machine(self.base, Facts(workflow_id=self.workflow_id), gates=gates, starts=starts)
        self.machine.captures = captures

    # --- driving ---------------------------------------------------------------------------------------------------

    def give(self, *inputs: Input) -> list[str]:
        """One step with these inputs; what followed, as text."""
        self.out = self._step(*inputs)
        while self.machine.looks_wanted and not self.machine.over:
            self.out += self._step(FilesSeen(task_id=min(self.machine.looks_wanted), files=dict(self.files)))
        return told(self.out)

    def _step(self, *inputs: Input) -> list[ev.Event]:
        afresh = PureFace(self.machine)
        events = self.machine.steps(inputs, self.now)
        afresh.check(inputs, self.now, events)
        self.journal += events
        self._check(events)
        return events

    def _check(self, events: list[ev.Event]) -> None:
        assert [event.seq for event in self.journal] == list(range(1, len(self.journal) + 1))
        if any(isinstance(event, ev.RolledBack) for event in events):
            assert self.machine.over
            assert isinstance(events[-1], ev.RolledBack), "nothing may follow in the step that goes back"
            return
        assert fold(self.workflow_id, self.journal) == self.facts
        validate_facts(self.facts)
        check_frontier(self.machine)

    def begin(self, **more: Any) -> Run:
        self.give(Begin(holder="me", token=1, **more))
        return self

    def ok(self, task: str, output: Any = None, **more: Any) -> list[str]:
        return self.give(ended(task, self.attempt(task), output, **more))

    def fail(self, task: str, text: str = "no", **more: Any) -> list[str]:
        return self.give(failed(task, self.attempt(task), text, **more))

    def attempt(self, task: str) -> int:
        return self.facts.running[TaskId(task)]

    def say(self, command: Mapping[str, Any], *, author: str = "me", attempt_id: str = "", id: str = "") -> list[str]:
        return self.give(self.asked(command, author=author, attempt_id=attempt_id, id=id))

    def asked(
        self, command: Mapping[str, Any], *, author: str = "me", attempt_id: str = "", id: str = ""
    ) -> CommandArrived:
        name = id or f"c{len(self.journal)}"
        parsed = parse_command(command)
        return CommandArrived(
            asked=CommandRequest(command_id=name, author=author, attempt_id=attempt_id, at=self.now, command=parsed)
        )

    def answer(self, gate: str, approved: bool = True, **more: Any) -> list[str]:
        who = {name: more.pop(name) for name in ("author", "attempt_id") if name in more}
        return self.say({"type": "approval_response", "gate_id": gate, "approved": approved, **more}, **who)

    def agree(self, gate: str, **more: Any) -> list[str]:
        """Say yes, whatever it asks: a task that may have run is repeated, one at a limit tried again."""
        choices = {"ask": "run-again", "limit": "try-now"}
        kind = gate.partition(":")[0]
        said: dict[str, Any] = {"choice": choices[kind]} if kind in choices else {}
        return self.answer(gate, **said, **more)

    def later(self, seconds: float) -> list[str]:
        self.now += timedelta(seconds=seconds)
        return self.give(Tick())

    # --- the next driver -------------------------------------------------------------------------------------------

    def planned(self, flow: Workflow | None = None, **options: Any) -> ResumePlan:
        """The verdicts a resume would give now."""
        facts = fold(self.workflow_id, self.journal)
        base = self.base if flow is None else compile_plan(flow, self.params)
        before, _ = current_plan(self.base, facts.changes)
        plan, self.problems = current_plan(base, facts.changes)
        return plan_resume(before, plan, facts, _options(options), revision=facts.plan_revision)

    def resume(
        self,
        flow: Workflow | None = None,
        *,
        gates: GatePolicy | None = None,
        starts: bool = True,
        first: tuple[Mapping[str, Any], ...] = (),
        **options: Any,
    ) -> list[str]:
        """Another driver goes on, with what the journal holds; `first` are commands that come with it."""
        facts = fold(self.workflow_id, self.journal)
        self.resumed = self.planned(flow, **options)
        if flow is not None:
            self.base = compile_plan(flow, self.params)
        plan, _ = current_plan(self.base, facts.changes)
        self.gates = gates or self.gates
        self.machine = Machine(plan, facts, gates=self.gates, starts=starts)
        self.machine.captures = self.captures and starts
        commands = [self.asked(command, id=f"first{index}") for index, command in enumerate(first)]
        # A drive that only takes a command decides nothing about what was interrupted.
        planned = self.resumed if starts else None
        return self.give(Begin(holder="other", token=2, taken_from="me", resume=planned), *commands)

    def resume_with(self, decided: Decided, flow: Workflow | None = None) -> list[str]:
        """The same, with what was decided about files."""
        given = {name: getattr(decided, name) for name in ("files", "restored_to", "continues", "starts_anew")}
        return self.resume(flow, **given)

    def go_back(self) -> list[str]:
        """After a rollback: fold again, and go on as whoever drives does."""
        facts = fold(self.workflow_id, self.journal)
        plan, _ = current_plan(self.base, facts.changes)
        self.machine = Machine(plan, facts, gates=self.gates)
        self.machine.captures = self.captures
        self.resumed = plan_resume(plan, plan, facts, ResumeOptions(), revision=facts.plan_revision)
        return self.give(Planned(resume=self.resumed))

    # --- looking ---------------------------------------------------------------------------------------------------

    @property
    def facts(self) -> Facts:
        return self.machine.facts

    @property
    def state(self) -> WorkflowState:
        return workflow_state(self.facts)

    def task(self, task: str) -> TaskFacts:
        return self.facts.task(TaskId(task))

    def status(self, *tasks: str) -> str:
        return " ".join(self.task(task).status for task in tasks)

    def output(self, task: str) -> Any:
        return decode_value(self.task(task).output)

    @property
    def running(self) -> list[str]:
        return sorted(self.facts.running)

    @property
    def open_gates(self) -> list[str]:
        return sorted(self.facts.open_gates)

    def verdicts(self) -> dict[str, str]:
        assert self.resumed is not None
        return {row.task_id: row.verdict for row in self.resumed.verdicts}

    def last(self, kind: type[AnEvent]) -> AnEvent:
        """The newest event of this type."""
        return next(event for event in reversed(self.journal) if isinstance(event, kind))

    def all(self, kind: type[AnEvent]) -> list[AnEvent]:
        return [event for event in self.journal if isinstance(event, kind)]

    def refusal(self) -> str:
        """Why the last step refused a command."""
        (refused,) = (event for event in self.out if isinstance(event, ev.CommandRefused))
        return refused.why

    def gate(self, gate: str) -> ev.DecisionRequired:
        return self.facts.gates[GateId(gate)].opened

    def checkpoint(self, layer: int) -> CheckpointId:
        return next(event.checkpoint_id for event in self.all(ev.Checkpointed) if event.layer == layer)


def _options(options: Mapping[str, Any]) -> ResumeOptions:
    rerun = {"rerun": frozenset(options["rerun"])} if "rerun" in options else {}
    return ResumeOptions(**{**options, **rerun})
