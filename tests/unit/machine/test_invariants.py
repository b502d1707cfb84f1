"""What holds for the facts of every run; the harness asks after each step, here each is broken once."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agentos.dag.define.workflow import Workflow
from agentos.exceptions import StateInvariantError
from agentos.ids import CheckpointId, GateId, TaskId, WorkflowId
from agentos.machine import events as ev
from agentos.machine.facts.facts import GateRejection
from agentos.machine.facts.fold import Facts, TaskFacts, fold, reduce
from agentos.persistent_map import PersistentMap as Map
from tests.unit.machine.harness import Run, nothing
from tests.unit.machine.invariants import validate_facts


def sound() -> Facts:
    """A run with a finished task, one under way, one that failed, one that waits and a fan-out."""
    flow = Workflow("w")
    flow.add("done", nothing)
    flow.add("busy", nothing)
    flow.add("broken", nothing)
    flow.add("asks", nothing, approve="?")
    flow.add("each", nothing, for_each=[1, 2])
    run = Run(flow, gates="wait").begin()
    run.ok("done")
    run.fail("broken")
    return run.facts


A, B = TaskId("done"), TaskId("busy")
GATE = GateId("approve:asks")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"workflow_id": WorkflowId(" ")}, "workflow_id is blank"),
        ({"running": Map()}, "'busy' is running and its attempt is not under way"),
        ({"running": Map({A: 1, B: 1})}, "'done' is complete and its attempt is under way"),
        ({"running": Map({B: 2, TaskId("each[0]"): 1, TaskId("each[1]"): 1})}, "attempt 2 of task 'busy'"),
        ({"failed": Map()}, "'broken' is failed and listed wrongly"),
        (
            {"failed": Map({TaskId("broken"): True, TaskId("stranger"): True})},
            "['stranger'] are listed and unknown",
        ),
        ({"children": Map({TaskId("each"): (B, B)})}, "items of 'each' stand in it twice"),
        ({"open_gates": Map({GateId("nowhere"): True})}, "'nowhere' is open and was never opened"),
        ({"tasks": "asks pending"}, "is open and its task does not wait"),
        ({"gates": "answered"}, "is open and answered"),
        ({"refused": GateRejection(GATE, 1)}, "refused and was not rejected"),
        ({"total_layers": 0, "tasks": "done in layer 3"}, "'done' has layer 3 of 0"),
        ({"tasks": "done in layer -1"}, "'done' has layer -1"),
        ({"tasks": "done later"}, "which is not there yet"),
        ({"begun_layer": 4}, "current_layer is 0, though layer 4 has begun"),
        ({"cuts": Map({CheckpointId("c"): (999, 0)})}, "checkpoint c stands at event 999"),
    ],
)
def test_facts_that_no_journal_leads_to(changes: dict[str, Any], says: str) -> None:
    facts = sound()
    validate_facts(facts)
    asks = replace(facts.task(TaskId("asks")), status="pending")
    broken: dict[str, dict[TaskId, TaskFacts]] = {
        "asks pending": {TaskId("asks"): asks},
        "done in layer 3": {A: replace(facts.task(A), layer=3)},
        "done in layer -1": {A: replace(facts.task(A), layer=-1)},
        "done later": {A: replace(facts.task(A), seq=999)},
    }
    if isinstance(changes.get("tasks"), str):
        changes = changes | {"tasks": facts.tasks.update(broken[changes["tasks"]])}
    if changes.get("gates") == "answered":
        changes = changes | {"gates": facts.gates.set(GATE, replace(facts.gates[GATE], answer="approved"))}
    with pytest.raises(StateInvariantError) as caught:
        validate_facts(replace(facts, **changes))
    assert says in str(caught.value)


def test_a_decision_names_a_gate_that_is_open() -> None:
    facts = sound()
    made = ev.DecisionMade(
        seq=facts.sequence + 1,
        gate_id=GATE,
        kind="approve",
        task_id=TaskId("asks"),
        layer=0,
        answer="approved",
        author="x",
    )
    once = reduce(facts, made)
    validate_facts(once)
    with pytest.raises(StateInvariantError, match="which is not open"):
        reduce(once, replace(made, seq=once.sequence + 1))
    with pytest.raises(StateInvariantError, match="was never opened"):
        reduce(facts, replace(made, gate_id=GateId("approve:nobody")))


def test_only_a_rollback_may_follow_events_that_do_not_count() -> None:
    start = ev.WorkflowStart(seq=1, name="w", total_layers=1)
    cut = ev.Checkpointed(seq=2, checkpoint_id=CheckpointId("c"), layer=0)
    lost = ev.LayerStart(seq=3, layer=1, tasks=1)
    back = ev.RolledBack(seq=4, checkpoint_id=CheckpointId("c"), to_seq=2, layer=0, epoch=1)
    facts = fold(WorkflowId("w"), [start, cut, lost, back])
    assert (facts.sequence, facts.epoch, facts.begun_layer) == (4, 1, 0)
    with pytest.raises(StateInvariantError):
        fold(WorkflowId("w"), [start, lost])
    with pytest.raises(StateInvariantError):
        reduce(facts, replace(back, seq=4))
