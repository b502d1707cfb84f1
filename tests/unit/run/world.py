"""A small deterministic world for the machine: random workflows, and what their attempts and gates answer.

What an attempt gives depends only on its task and on how often that task has failed before, so that a run that is
interrupted anywhere meets the same world as one that is not.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import strategies as st

from agentos.dag.plan import Plan, compile_plan
from agentos.dag.workflow import Workflow
from agentos.ids import GateId, TaskId, WorkflowId
from agentos.run import events as ev
from agentos.run.changes import current_plan
from agentos.run.commands import ApprovalResponse, Asked
from agentos.run.facts import Facts, fold, workflow_state
from agentos.run.inputs import AttemptEnded, Begin, CommandArrived, Input, Tick
from agentos.run.machine import Machine
from agentos.run.resume import ResumeOptions, plan_resume
from agentos.values import canonical_json, encode_value

START = datetime(2026, 1, 1, tzinfo=UTC)
Choose = Callable[[int], int]
"""Choose one of n possibilities."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a random workflow, and how the world treats it."""

    id: str
    needs: tuple[str, ...]
    items: int | None = None
    retries: int = 0
    failures: int = 0
    """So many attempts fail before one succeeds."""
    continue_on_error: bool = False
    condition: str = ""
    gate: bool = False
    approved: bool = True
    group: bool = False
    external: bool = False
    sets: bool = False
    """Leaves a message and sets a context key that others set too."""


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    shapes: tuple[Shape, ...]
    schedule: str = "layers"
    max_concurrency: int = 4
    decision_points: str = "never"

    def plan(self) -> Plan:
        flow = Workflow(
            "scene",
            schedule=self.schedule,
            max_concurrency=self.max_concurrency,
            decision_points=self.decision_points,
        )
        for shape in self.shapes:
            flow.add(shape.id, _nothing, **_settings(shape))
        return compile_plan(flow)


def _nothing() -> None:
    """Never called: the world answers for it."""


def _settings(shape: Shape) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "needs": list(shape.needs),
        "retries": shape.retries,
        "continue_on_error": shape.continue_on_error,
        "effects": "external" if shape.external else "none",
    }
    if shape.condition:
        settings["if_"] = shape.condition
    if shape.items is not None:
        settings["for_each"] = list(range(shape.items))
    if shape.gate:
        settings["approve"] = f"{shape.id}?"
    if shape.group:
        settings["concurrency"] = "group"
    return settings


@st.composite
def scenes(draw: st.DrawFn, *, external: bool = False) -> Scene:
    shapes: list[Shape] = []
    for index in range(draw(st.integers(1, 8))):
        earlier = [shape.id for shape in shapes]
        needs = draw(st.lists(st.sampled_from(earlier), max_size=3, unique=True)) if earlier else []
        shapes.append(
            Shape(
                id=f"t{index}",
                needs=tuple(needs),
                items=draw(st.sampled_from([None, None, None, 0, 1, 3])),
                retries=draw(st.integers(0, 2)),
                failures=draw(st.sampled_from([0, 0, 0, 1, 2, 3])),
                continue_on_error=draw(st.booleans()),
                condition=draw(st.sampled_from(["", "", "", "always()", "failure()", "1 == 2"])),
                gate=draw(st.sampled_from([False, False, False, True])),
                approved=draw(st.sampled_from([True, True, False])),
                group=draw(st.sampled_from([False, False, True])),
                external=external and draw(st.booleans()),
                sets=draw(st.booleans()),
            )
        )
    schedule = draw(st.sampled_from(["layers", "ready"]))
    points = draw(st.sampled_from(["never", "never", "per_layer", "on_error"])) if schedule == "layers" else "never"
    return Scene(
        shapes=tuple(shapes),
        schedule=schedule,
        max_concurrency=draw(st.integers(1, 4)),
        decision_points=points,
    )


class Play:
    """Plays a scene: drives, crashes and resumes, one choice after the other."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.shapes = {shape.id: shape for shape in scene.shapes}
        self.base = scene.plan()
        self.journal: list[ev.Event] = []
        self.batches: list[list[ev.Event]] = []
        """The events of the present drive, step by step."""
        self.now = START
        self.answers = 0
        self.machine = Machine(self.base, Facts(workflow_id=WorkflowId("w")), gates="wait")
        self.check: Callable[[Play, Input, list[ev.Event]], None] = lambda play, given, events: None

    def begin(self) -> None:
        self.step(Begin(holder="test", token=1))

    def step(self, given: Input) -> list[ev.Event]:
        self.now += timedelta(milliseconds=1)
        events = self.machine.step(given, self.now)
        self.journal += events
        self.batches.append(events)
        self.check(self, given, events)
        return events

    def possible(self) -> list[Input]:
        """What may happen next, in a fixed order."""
        facts = self.machine.facts
        inputs: list[Input] = [self.ending(task_id) for task_id in sorted(facts.running)]
        inputs += [self.answer(gate_id) for gate_id in sorted(facts.open_gates)]
        if self.machine.wake_at is not None:
            inputs.append(Tick())
        return inputs

    def ending(self, task_id: TaskId) -> AttemptEnded:
        shape = self.shapes[task_id.partition("[")[0]]
        facts = self.machine.facts.task(task_id)
        if facts.tries < shape.failures:
            error = ev.TaskFailure(type="Sorry", text=f"{task_id} fails", traceback="")
            return AttemptEnded(task_id=task_id, attempt=facts.attempts, error=error)
        ended = AttemptEnded(task_id=task_id, attempt=facts.attempts, output=msgspec.Raw(encode_value({"by": task_id})))
        if not shape.sets:
            return ended
        return msgspec.structs.replace(
            ended,
            messages=msgspec.Raw(encode_value([{"role": "tool", "content": task_id}])),
            context=msgspec.Raw(encode_value({"last": task_id, task_id: 1})),
        )

    def answer(self, gate_id: GateId) -> CommandArrived:
        gate = self.machine.facts.gates[gate_id].opened
        approved = self.shapes[gate.task_id.partition("[")[0]].approved if gate.task_id else True
        command = ApprovalResponse(gate_id=gate_id, approved=approved or gate.kind == "ask")
        self.answers += 1
        return CommandArrived(
            asked=Asked(command_id=f"c{self.answers}", author="somebody", at=self.now, command=command)
        )

    def go_on(self, choose: Choose, *, steps: int | None = None) -> None:
        """Let things happen until the drive is over, or for so many steps."""
        while not self.machine.over and steps != 0:
            possible = self.possible()
            given = possible[choose(len(possible))]
            if isinstance(given, Tick) and self.machine.wake_at is not None:
                self.now = max(self.now, self.machine.wake_at)
            self.step(given)
            steps = None if steps is None else steps - 1

    def crash(self, lost: int) -> None:
        """The process dies; the last `lost` batches of this drive were not yet durable."""
        gone = {event.seq for batch in self.batches[len(self.batches) - lost :] for event in batch}
        self.journal = [event for event in self.journal if event.seq not in gone]

    def resume(self) -> None:
        self.batches = []
        facts = fold(WorkflowId("w"), self.journal)
        plan, problems = current_plan(self.base, facts.changes)
        assert not problems
        self.machine = Machine(plan, facts, gates="wait")
        resume = plan_resume(plan, plan, facts, ResumeOptions()) if facts.sequence else None
        self.step(Begin(holder="test", token=2, resume=resume))

    def outcome(self) -> bytes:
        """What must be equal however the run went: its state, without times."""
        facts = self.machine.facts
        state = msgspec.structs.replace(
            workflow_state(facts),
            tasks=tuple(msgspec.structs.replace(entry, execution_time_ms=0.0) for entry in workflow_state(facts).tasks),
        )
        decisions = [{**decision, "author": ""} for decision in state.decisions if decision["kind"] != "ask"]
        return canonical_json([facts.status, msgspec.to_builtins(msgspec.structs.replace(state, decisions=decisions))])


def played(scene: Scene, choose: Choose) -> Play:
    """The scene played to its end without interruption."""
    play = Play(scene)
    play.begin()
    play.go_on(choose)
    return play
