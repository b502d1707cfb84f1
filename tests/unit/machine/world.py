"""Random workflows, and a small world in which they run: what comes of a task depends on its inputs and nothing else.

A `Play` drives a run the way the engine does, except that a tape of numbers decides what happens next: which attempt
ends, whether time passes, who answers, and after which batch of events the driver dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st
from msgspec import Raw

from agentos.dag.define.task import resolve_inputs
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.plan import Plan, compile_plan
from agentos.ids import GateId, TaskId, WorkflowId
from agentos.machine import commands as cmd
from agentos.machine import events as ev
from agentos.machine.board import GatePolicy
from agentos.machine.facts.fold import Facts, fold
from agentos.machine.frontier import fan_out_of
from agentos.machine.inputs import AttemptEnded, AttemptResult, Begin, CommandArrived, Input, Planned, StopAsked, Tick
from agentos.machine.machine import Machine
from agentos.machine.resume import ResumeOptions, plan_resume
from agentos.machine.rules.plan_changes import current_plan
from agentos.machine.rules.scope import scope_of
from agentos.values import canonical_json, encode_value
from tests.unit.machine.checks import PureFace, check_frontier
from tests.unit.machine.invariants import validate_facts

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)
RUN = WorkflowId("run")
ALWAYS_FAILS = 1_000_000


class World(msgspec.Struct, frozen=True, kw_only=True):
    """What comes of each task."""

    fails: Mapping[str, int] = {}
    """How many attempts of a task fail before one succeeds."""
    rejected: frozenset[str] = frozenset()
    """Tasks and decision points (`layer 2`) to which people say no."""
    injects: Mapping[str, Mapping[str, Any]] = {}
    """Tasks that ask for more tasks."""
    speaks: frozenset[str] = frozenset()
    """Tasks that leave a message and set a key that others set too."""
    salt: Mapping[str, int] = {}
    """Another world, for these tasks: the same inputs give another output."""

    def outcome(self, task_id: str, attempt: int, inputs: Mapping[str, Any], tries: int) -> AttemptEnded:
        name = task_id.partition("[")[0].partition("@")[0]
        if tries < self.fails.get(task_id, self.fails.get(name, 0)):
            unwilling = ev.TaskFailure(type="Boom", text=f"{task_id} is not willing")
            return AttemptEnded(task_id=TaskId(task_id), attempt=attempt, result=AttemptResult(error=unwilling))
        seed = canonical_json([task_id, self.salt.get(name, 0), inputs])
        number = int.from_bytes(blake2b(seed, digest_size=2).digest())
        speaks = name in self.speaks
        return AttemptEnded(
            task_id=TaskId(task_id),
            attempt=attempt,
            result=AttemptResult(
                output=_raw({"n": number % 7, "list": list(range(number % 3))}),
                messages=_raw([{"role": "user", "content": task_id}]) if speaks else ev.NOTHING,
                context=_raw({"last": task_id, task_id: number}) if speaks else ev.NOTHING,
                injected=tuple(self.injects.get(task_id, {}).items()),
            ),
        )


def _raw(value: Any) -> Raw:
    return Raw(encode_value(value))


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow, the world it runs in, and the commands it gets: each at the end of a layer."""

    plan: Plan
    world: World
    commands: Mapping[int, tuple[cmd.Command, ...]] = {}


# --- random workflows -------------------------------------------------------------------------------------------


class Tape:
    """Choices, read from bytes: where they end, the first option is chosen. Quick to draw, and shrinks well."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._numbers = iter(numbers)

    def pick(self, options: Sequence[T]) -> T:
        return options[next(self._numbers, 0) % len(options)]

    def below(self, most: int) -> int:
        return next(self._numbers, 0) % most

    def once_in(self, times: int) -> bool:
        """False where the tape has ended."""
        return next(self._numbers, 0) % times == times - 1


def tapes(most: int = 80) -> st.SearchStrategy[Tape]:
    return st.binary(max_size=most).map(Tape)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a random workflow may have."""

    most: int = 12
    schedules: tuple[str, ...] = ("layers", "ready")
    gates: bool = True
    external: bool = True
    failures: bool = True
    """Also for good; else only as often as they may be retried."""
    injects: bool = True
    rounds: bool = True
    commands: bool = False


EVERYTHING = Limits()
CONDITIONS = ("", "", "", "success()", "failure()", "always()", "not failure()")
ONCE, TWICE = ({"retries": {"retries": retries, "backoff_s": 5}} for retries in (1, 2))
RETRIES: tuple[dict[str, Any], ...] = ({}, {}, ONCE, TWICE)
APPROVALS: tuple[dict[str, Any], ...] = ({}, {}, {"timeout_s": 60}, {"timeout_s": 60, "on_timeout": "approve"})


def setting_from(tape: Tape, limits: Limits = EVERYTHING) -> Setting:
    """A workflow of 3 to 12 tasks with nearly everything a task can say."""
    schedule = tape.pick(limits.schedules)
    author = _Author(tape, limits, schedule)
    for _ in range(3 + tape.below(limits.most - 2)):
        author.writes_a_task()
    points = tape.pick(("never", "never", "per_layer", "on_error")) if limits.gates else "never"
    points = points if schedule == "layers" else "never"
    if points != "never" and tape.once_in(4):
        author.rejected.add(f"layer {1 + tape.below(3)}")
    flow = Workflow("w", schedule=schedule, decision_points=points, max_concurrency=1 + tape.below(4))
    for name, given in author.tasks.items():
        flow.add(name, "approval" if "question" in given else "python", **given)
    plan = compile_plan(flow)
    world = World(
        fails=author.fails,
        rejected=frozenset(author.rejected),
        injects=author.injects,
        speaks=frozenset(author.speaks),
    )
    return Setting(plan=plan, world=world, commands=_commands(tape, plan) if limits.commands else {})


class _Author:
    """Writes tasks, one by one."""

    def __init__(self, tape: Tape, limits: Limits, schedule: str) -> None:
        self.tape, self.limits, self.schedule = tape, limits, schedule
        self.tasks: dict[str, dict[str, Any]] = {}
        self.fails: dict[str, int] = {}
        self.rejected: set[str] = set()
        self.speaks: set[str] = set()
        self.injects: dict[str, dict[str, Any]] = {}
        self.repeated: set[str] = set()

    def writes_a_task(self) -> None:
        tape, name, earlier = self.tape, f"t{len(self.tasks)}", list(self.tasks)
        needs = list(dict.fromkeys(tape.pick(earlier) for _ in range(tape.below(4)))) if earlier else []
        given: dict[str, Any] = {"needs": needs, "if": tape.pick(CONDITIONS)}
        if needs and tape.once_in(5):
            given["if"] = f"${{{{ tasks.{needs[0]}.output.n || 0 }}}} > 2"
        self.tasks[name] = given
        kind = tape.pick(("plain", "plain", "plain", "for_each", "approval" if self.limits.gates else "plain"))
        if kind == "approval":
            given["question"] = "Go on?"
            self.rejected |= {name} if tape.once_in(4) else set()
            return
        repeatable = [other for other in needs if "call" in self.tasks[other] and other not in self.repeated]
        if self.limits.rounds and repeatable and tape.once_in(4):
            until = f"${{{{ tasks.{repeatable[0]}.output.n || 0 }}}} > 3"
            given |= {"if": "", "repeat": {"tasks": repeatable, "until": until, "max": 3}}
            self.repeated |= {*repeatable}
            return
        given["call"] = f"m:{name}"
        given["inputs"] = {need: f"${{{{ tasks.{need}.output }}}}" for need in needs if tape.below(2)}
        if kind == "for_each":
            self._fans_out(given, needs)
        given |= tape.pick(RETRIES)
        within = given.get("retries", {}).get("retries", 0)
        self.fails[name] = tape.pick((0, 0, 0, within, ALWAYS_FAILS if self.limits.failures else within))
        given["continue_on_error"] = tape.once_in(5)
        if tape.once_in(4):
            given["concurrency"] = {"group": tape.pick("gh"), "slots": 1}
        self._has_effects(given)
        if self.limits.gates and tape.once_in(4):
            given["approve"] = {"question": "Do it?"} | tape.pick(APPROVALS)
            if "timeout_s" not in given["approve"] and tape.once_in(3):
                self.rejected.add(name)
        if self.limits.injects and kind == "plain" and tape.once_in(6):
            self.injects[name] = {f"{name}x": {"python": "m:x", "needs": [name]}, f"{name}y": {"python": "m:y"}}
        if tape.below(2):
            self.speaks.add(name)

    def _fans_out(self, given: dict[str, Any], needs: list[str]) -> None:
        given["for_each"] = list(range(self.tape.below(4)))
        if needs and self.tape.below(2):
            given["for_each"] = f"${{{{ tasks.{needs[0]}.output.list || null }}}}"
        given["inputs"]["item"] = "${{ item }}"

    def _has_effects(self, given: dict[str, Any]) -> None:
        effects = self.tape.pick(("none", "none", "external", "files")) if self.limits.external else "none"
        given["effects"] = "external" if effects == "files" and self.schedule == "ready" else effects
        given["idempotent"] = self.tape.pick((True, "keyed", False))


def _commands(tape: Tape, plan: Plan) -> dict[int, tuple[cmd.Command, ...]]:
    """For some layers: what is asked for while they run. Each is about what lies behind the layer."""
    found: dict[int, tuple[cmd.Command, ...]] = {}
    for layer, ids in enumerate(plan.layers):
        later = [task_id for more in plan.layers[layer + 1 :] for task_id in more]
        one, two = f"i{layer}", f"j{layer}"
        choices: list[cmd.Command] = [
            cmd.InjectTasks(tasks={one: {"python": "m:i", "needs": list(ids[:1])}}),
            cmd.InjectTasks(tasks={one: {"python": "m:i"}, two: {"python": "m:j", "needs": [one]}}),
        ]
        if later:
            task_id = tape.pick(later)
            choices += [
                cmd.SkipLayer(layer=layer + 1),
                cmd.ModifyArgs(task_id=task_id, updates={"extra": layer}),
                cmd.ReplanDag(tasks={task_id: {"python": "m:other"}}),
                cmd.ReplanDag(remove=(task_id,)),
            ]
        found[layer] = (tape.pick(choices),) if tape.once_in(2) else ()
    return found


# --- playing ----------------------------------------------------------------------------------------------------


class Play:
    """Drives a run from begin to end. `crashes` says after which batches of events the driver dies."""

    def __init__(
        self,
        setting: Setting,
        tape: Tape | None = None,
        crashes: Iterable[int] = (),
        *,
        gates: GatePolicy = "wait",
        stops: bool = False,
        checked: bool = False,
    ) -> None:
        self.setting, self.world = setting, setting.world
        self.tape, self.crashes = tape or Tape(), frozenset(crashes)
        self.gates: GatePolicy = gates
        self.stops = stops
        """Somebody may ask for a pause at any moment, or the process be asked to stop."""
        self.checked = checked
        self.now = START
        self.batches: list[list[ev.Event]] = []
        self.drives: list[list[ev.Event]] = []
        self.witness = Witness()
        self.attempts: dict[TaskId, AttemptEnded] = {}
        self.sent: set[str] = set()
        self.machine = self._machine(Facts(workflow_id=RUN))

    @property
    def facts(self) -> Facts:
        return self.machine.facts

    @property
    def journal(self) -> list[ev.Event]:
        return [event for batch in self.batches for event in batch]

    def run(self) -> Play:
        """Until the run has ended in a drive in which nobody died."""
        self.begin()
        self.go_on()
        return self

    def go_on(self) -> None:
        for _ in range(5000):
            died = len(self.batches) - 1 in self.crashes
            if not died and not self.machine.over:
                self.happens()
            elif died or self.facts.status in ("paused", "waiting"):
                self.resume()
            else:
                return
        raise AssertionError("the run does not end")

    def happens(self) -> None:
        choices = list(self.choices())
        if self.stops and self.tape.once_in(8):
            choices = [lambda: (StopAsked(),), lambda: (asked(cmd.Pause(), f"pause {len(self.batches)}", self.now),)]
        assert choices, f"nothing can happen any more: {self.facts}"
        given = self.tape.pick(choices)()
        self.give(*(self.with_commands(given) if self.setting.commands else given))

    def choices(self) -> Iterator[Callable[[], tuple[Input, ...]]]:
        for task_id in sorted(self.attempts):
            yield lambda task_id=task_id: self.attempt_ends(task_id)  # type: ignore[misc]
        for gate_id in sorted(self.facts.open_gates):
            gate = self.facts.gates[gate_id].opened
            if gate.deadline is None:
                yield lambda gate=gate: (self.answer(gate),)  # type: ignore[misc]
        if self.machine.wake_at is not None:
            yield self.time_passes

    def attempt_ends(self, task_id: TaskId) -> tuple[Input, ...]:
        return (self.attempts.pop(task_id),)

    def with_commands(self, given: tuple[Input, ...]) -> tuple[Input, ...]:
        """The inputs, and with them what is asked for at the end of the layers that they finish."""
        due: list[CommandArrived] = []
        while True:
            together = (*given, *due) if isinstance(given[0], Begin) else (*due, *given)
            foreseen = Machine(self.machine.plan, self.facts, gates="wait").steps(together, self.now)
            finished = max((event.layer for event in foreseen if type(event) is ev.Checkpointed), default=-1)
            more = [asked for asked in self.asked_by(finished) if asked.asked.command_id not in self.sent]
            if not more:
                return together
            due += more
            self.sent |= {asked.asked.command_id for asked in more}

    def asked_by(self, layer: int) -> list[CommandArrived]:
        """What is asked for until this layer ends."""
        return [
            asked(command, f"{at} {canonical_json(cmd.command_to_data(command)).decode()}", self.now)
            for at, commands in sorted(self.setting.commands.items())
            for command in commands
            if at <= layer
        ]

    def answer(self, gate: ev.DecisionRequired) -> Input:
        about = gate.task_id if gate.task_id is not None else f"layer {gate.layer}"
        approved = gate.kind == "ask" or about not in self.world.rejected
        choice = cmd.RUN_AGAIN if gate.kind == "ask" else ""
        command = cmd.ApprovalResponse(gate_id=gate.gate_id, approved=approved, choice=choice, reason="so it is")
        return asked(command, f"answer {gate.gate_id}", self.now)

    def time_passes(self) -> tuple[Input, ...]:
        wake_at = self.machine.wake_at
        assert wake_at is not None
        self.now = max(self.now, wake_at)
        return (Tick(),)

    # --- the engine's part ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.drives.append([])
        self.give(*self.with_commands((Begin(holder="h", token=1),)))

    def resume(self, options: ResumeOptions = ResumeOptions(), **more: Any) -> None:
        """The driver died, or stopped in order; another one goes on from the journal."""
        self.attempts.clear()
        facts = fold(RUN, self.journal)
        self.sent = {event.command_id for event in self.journal if isinstance(event, _COMMANDS)}
        waiting = [facts.gates[gate_id].opened for gate_id in sorted(facts.open_gates)]
        if self.gates == "stop":
            self.now = max([self.now, *(gate.deadline for gate in waiting if gate.deadline is not None)])
        answers = [self.answer(gate) for gate in waiting if gate.deadline is None]
        self.machine = self._machine(facts)
        self.drives.append([])
        self.witness.next_drive()
        if "rollback" not in more:
            more["resume"] = plan_resume(self.machine.plan, self.machine.plan, facts, options)
        self.give(
            *self.with_commands((Begin(holder="h", token=2, **more),)), *(answers if self.gates == "stop" else ())
        )

    def _machine(self, facts: Facts) -> Machine:
        plan, problems = current_plan(self.setting.plan, facts.changes)
        assert not problems
        return Machine(plan, facts, gates=self.gates)

    def give(self, *given: Input) -> None:
        afresh = PureFace(self.machine)
        events = self.machine.steps(given, self.now)
        if self.checked:
            afresh.check(given, self.now, events)
        self._take_down(events)
        self.now += timedelta(milliseconds=1)
        if events and type(events[-1]) is ev.RolledBack:
            facts = fold(RUN, self.journal)
            self.machine = self._machine(facts)
            plan = self.machine.plan
            self.give(Planned(resume=plan_resume(plan, plan, facts, ResumeOptions())))

    def _take_down(self, events: list[ev.Event]) -> None:
        self.batches.append(events)
        self.drives[-1] += events
        for event in events:
            self.witness.sees(event, self.machine.plan)
            if type(event) is ev.TaskStart:
                self.start(event)
        if self.checked and not any(type(event) is ev.RolledBack for event in events):
            assert self.facts == fold(RUN, self.journal)
            validate_facts(self.facts)
            check_frontier(self.machine)

    def start(self, event: ev.TaskStart) -> None:
        task = self.machine.plan.tasks[event.task_id]
        inputs = resolve_inputs(task.definition, scope_of(self.machine.plan, self.facts, task))
        tries = self.facts.task(task.id).tries
        self.attempts[task.id] = self.world.outcome(task.id, event.attempt, inputs, tries)


_COMMANDS = (ev.CommandReceived, ev.CommandApplied, ev.CommandRefused)


def asked(command: cmd.Command, name: str, now: datetime) -> CommandArrived:
    return CommandArrived(asked=cmd.CommandRequest(command_id=name, author="ada", at=now, command=command))


class Witness:
    """Sees every event as it becomes durable, and knows nothing but them and the plan. Holds what must never happen."""

    def __init__(self) -> None:
        self.sequence = 0
        self.ended: set[TaskId] = set()
        self.items: dict[TaskId, tuple[TaskId, ...]] = {}
        self.running: set[TaskId] = set()
        self.approved: dict[TaskId, GateId] = {}
        self.opened: dict[GateId, TaskId | None] = {}
        self.rejected: set[TaskId] = set()
        self.refused = 1_000_000
        self.driving = False
        self.stopped = False
        self.ended_at: dict[str, set[TaskId]] = {}

    def next_drive(self) -> None:
        self.driving, self.stopped = False, False

    def sees(self, event: ev.Event, plan: Plan) -> None:
        self.sequence += 1
        assert event.seq == self.sequence
        assert self.driving or isinstance(event, ev.WorkflowStart)
        assert not self.stopped, f"{event.type} after the terminal event"
        match event:
            case ev.WorkflowStart():
                assert not self.driving
                self.driving = True
            case ev.PlanChanged(parent=parent, children=children) if parent is not None:
                self.items[parent] = children
            case ev.ResumePlanned(reset=reset, cut_off=cut_off, regrown=regrown):
                self.ended -= {*reset}
                self.running -= {*cut_off}
                self.ended -= {item for parent in regrown for item in self.items[parent]}
            case ev.RolledBack():
                self.rolls_back(event)
            case ev.TaskStart(task_id=task_id):
                self.starts(task_id, plan)
            case ev.TaskRetry(task_id=task_id):
                self.running.remove(task_id)
            case ev.TaskComplete(task_id=task_id) | ev.TaskError(task_id=task_id) | ev.TaskSkipped(task_id=task_id):
                assert task_id not in self.ended, f"{task_id} ends twice"
                self.running.discard(task_id)
                self.ended.add(task_id)
            case ev.Checkpointed(checkpoint_id=checkpoint_id):
                self.ended_at[checkpoint_id] = set(self.ended)
            case ev.DecisionRequired(gate_id=gate_id, task_id=guarded):
                assert gate_id not in self.opened
                self.opened[gate_id] = guarded
            case ev.DecisionMade(gate_id=gate_id, task_id=guarded, answer=answer):
                assert self.opened[gate_id] == guarded
                if answer == "approved" and guarded is not None:
                    self.approved[guarded] = gate_id
                if answer == "rejected":
                    self.rejected |= {guarded} if guarded is not None else set()
                    self.refused = min(self.refused, event.layer) if guarded is None else self.refused
            case ev.WorkflowComplete() | ev.WorkflowFailed() | ev.WorkflowAborted() | ev.WorkflowPaused():
                assert not self.running
                self.stopped = True

    def rolls_back(self, event: ev.RolledBack) -> None:
        """Only what had ended at the checkpoint is still so, and no approval counts any more."""
        assert not self.running
        self.ended = set(self.ended_at[event.checkpoint_id])
        self.approved.clear()

    def starts(self, task_id: TaskId, plan: Plan) -> None:
        task = plan.tasks[task_id]
        definition = task.definition
        assert task.layer < self.refused, "something starts behind a decision point that was answered no"
        assert task_id not in self.ended, f"{task_id} starts again though nothing set it back"
        assert task_id not in self.running
        assert all(need in self.ended for need in definition.needs), f"{task_id} starts before its needs have ended"
        guarded = fan_out_of(task) or task_id
        assert guarded not in self.rejected
        if plan.tasks[guarded].definition.approve is not None:
            assert self.approved.get(guarded, "").startswith("approve:"), f"{task_id} starts without an approval"
        self.running.add(task_id)
        assert len(self.running) <= plan.settings.max_concurrency
        if definition.concurrency is not None:
            group = [t for t in self.running if plan.tasks[t].definition.concurrency == definition.concurrency]
            assert len(group) <= definition.concurrency.slots
