"""States, their reducers and invariants, and the state a run shows."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from agentos.exceptions import StateInvariantError
from agentos.ids import TaskId, WorkflowId
from agentos.machine import events as ev
from agentos.machine.facts.fold import Facts, fold, reduce, workflow_state
from agentos.machine.state import (
    StateUpdate,
    TaskEntry,
    WorkflowState,
    append,
    merge_context,
    merge_tasks,
    state_from,
    update_state,
    validate_state_invariants,
)
from tests.unit.machine.harness import Run, flow_of, raw


def entry(task_id: str, status: Any = "complete", **more: Any) -> TaskEntry:
    return TaskEntry(task_id=TaskId(task_id), status=status, **more)


def state(**more: Any) -> WorkflowState:
    return WorkflowState(workflow_id=WorkflowId("w"), **more)


FULL: dict[str, Any] = {
    "workflow_id": "w",
    "current_layer": 1,
    "messages": [{"role": "user", "content": "hi"}],
    "tasks": [{"task_id": "a", "status": "complete", "output": 1}],
    "decisions": [{"gate_id": "g"}],
    "context": {"k": 1},
}


def test_an_update_makes_a_new_state_and_leaves_the_old_one() -> None:
    old = state(messages=("m1",), tasks=(entry("a"), entry("b")), context={"k": 1, "l": 1}, decisions=("d1",))
    before = msgspec.to_builtins(old)
    new = update_state(
        old,
        StateUpdate(
            current_layer=2,
            messages=("m2",),
            tasks=(entry("a", "failed"), entry("c")),
            decisions=("d2",),
            context={"k": 2},
        ),
    )
    assert msgspec.to_builtins(old) == before
    assert new.current_layer == 2
    assert new.messages == ("m1", "m2")
    assert new.decisions == ("d1", "d2")
    assert [(row.task_id, row.status) for row in new.tasks] == [("a", "failed"), ("b", "complete"), ("c", "complete")]
    assert new.context == {"k": 2, "l": 1}


def test_an_empty_update_changes_nothing_and_shares_everything() -> None:
    old = state(messages=("m",), tasks=(entry("a"),), decisions=("d",), context={"k": 1}, current_layer=3)
    new = update_state(old, {})
    assert new == old
    assert new.messages is old.messages
    assert new.tasks is old.tasks
    assert new.context is old.context


def test_an_update_may_be_plain_data() -> None:
    new = update_state(state(), {"messages": [{"role": "user"}], "tasks": [{"task_id": "a", "status": "skipped"}]})
    assert new.messages == ({"role": "user"},)
    assert new.tasks == (entry("a", "skipped"),)


@pytest.mark.parametrize(
    "update",
    [
        {"tasks": [{"task_id": "a", "status": "odd"}]},
        {"current_layer": "one"},
        {"tasks": 3},
        {"context": [1]},
    ],
)
def test_an_update_of_a_wrong_shape_is_refused(update: dict[str, Any]) -> None:
    with pytest.raises(StateInvariantError, match="wrong shape"):
        update_state(state(), update)


def test_an_update_that_breaks_an_invariant_is_refused_and_the_old_state_stays_valid() -> None:
    old = state(current_layer=1)
    with pytest.raises(StateInvariantError, match="current_layer is -1"):
        update_state(old, StateUpdate(current_layer=-1))
    validate_state_invariants(old)


def test_reducers_are_pure() -> None:
    messages, tasks, context = ("a",), (entry("a"),), {"k": 1}
    assert append(messages, iter(["b"])) == ("a", "b")
    assert merge_tasks(tasks, [entry("a", "failed")]) == (entry("a", "failed"),)
    assert merge_context(context, {"k": 2, "l": 3}) == {"k": 2, "l": 3}
    assert (messages, tasks, context) == (("a",), (entry("a"),), {"k": 1})


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (WorkflowState(workflow_id=WorkflowId(" ")), "workflow_id is blank"),
        (state(current_layer=-2), "current_layer is -2"),
        (state(tasks=(entry("a"), entry("b"), entry("a"))), "'a' stands in it twice"),
        (state(tasks=(entry("a", "odd"),)), "unknown status 'odd'"),
        (state(tasks=(entry("a", layer=-1),)), "layer -1"),
    ],
)
def test_each_invariant_is_told(broken: WorkflowState, says: str) -> None:
    with pytest.raises(StateInvariantError, match=says):
        validate_state_invariants(broken)


def test_a_state_from_plain_data() -> None:
    made = state_from(FULL)
    assert made.tasks == (entry("a", output=1),)
    assert made.context == {"k": 1}


@pytest.mark.parametrize("field", sorted(FULL))
def test_a_state_lacks_a_field(field: str) -> None:
    with pytest.raises(StateInvariantError, match=f"lacks {field}"):
        state_from({name: value for name, value in FULL.items() if name != field})


@pytest.mark.parametrize(
    "wrong",
    [
        {"current_layer": "x"},
        {"current_layer": None},
        {"messages": {"a": 1}},
        {"tasks": [{"status": "complete"}]},
        {"tasks": [{"task_id": "a", "status": "odd"}]},
        {"context": 1},
        {"workflow_id": ""},
        {"current_layer": -1},
        {"tasks": FULL["tasks"] * 2},
    ],
)
def test_a_state_of_a_wrong_shape_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(StateInvariantError):
        state_from({**FULL, **wrong})


# --- the state of a run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_the_state_does_not_depend_on_who_finishes_first(order: tuple[str, ...]) -> None:
    run = Run(flow_of({"c": [], "a": [], "b": []})).begin()
    for task in order:
        run.ok(
            task,
            f"out {task}",
            messages=[{"role": "assistant", "content": f"{task}{number}"} for number in (1, 2)],
            context={"who": task, task: True},
        )
    assert [row.task_id for row in run.state.tasks] == ["c", "a", "b"]
    assert [message["content"] for message in run.state.messages] == ["c1", "c2", "a1", "a2", "b1", "b2"]
    assert run.state.context["who"] == "b"
    assert run.state.current_layer == 0


def test_the_state_shows_errors_and_no_output_of_what_did_not_complete() -> None:
    run = Run(flow_of({"a": [], "b": ["a"]})).begin()
    run.fail("a", "broken")
    first, second = run.state.tasks
    assert first.status == "failed"
    assert first.error == {"type": "Boom", "text": "broken", "traceback": ""}
    assert first.output is None
    assert second.status == "skipped"
    assert workflow_state(run.facts, current_layer=7).current_layer == 7


def test_values_in_the_state_are_fresh_each_time() -> None:
    run = Run(flow_of({"a": []})).begin()
    run.ok("a", {"list": [1]})
    run.state.tasks[0].output["list"].append(2)
    assert run.state.tasks[0].output == {"list": [1]}


def test_a_fold_refuses_events_out_of_order_and_decisions_without_a_gate() -> None:
    facts = Facts(workflow_id=WorkflowId("w"))
    for seq in (1, 2):
        facts = reduce(facts, ev.LayerStart(seq=seq, layer=0, tasks=1))
    for wrong in (1, 2, 4):
        with pytest.raises(StateInvariantError, match=f"event {wrong} of run w comes after 2"):
            reduce(facts, ev.LayerStart(seq=wrong, layer=1, tasks=1))
    decision = ev.DecisionMade(seq=3, gate_id="approve:x", kind="approve", layer=0, answer="approved", author="me")  # type: ignore[arg-type]
    with pytest.raises(StateInvariantError, match="never opened"):
        reduce(facts, decision)
    assert facts.sequence == 2


def test_saved_states_are_differences_put_together() -> None:
    saved = [
        ev.StateSaved(
            seq=1,
            current_layer=0,
            messages=raw(["m1", "m2"]),
            tasks=raw([msgspec.to_builtins(entry("a"))]),
            decisions=raw(["d1"]),
            context_set=raw({"k": 1, "l": 2}),
        ),
        ev.StateSaved(
            seq=2,
            current_layer=1,
            messages_from=1,
            messages=raw(["m3"]),
            tasks_from=1,
            decisions_from=1,
            context_set=raw({"n": 3}),
            context_removed=("k",),
        ),
    ]
    facts = fold(WorkflowId("w"), saved)
    assert workflow_state(facts) == state(
        current_layer=1,
        messages=("m1", "m3"),
        tasks=(entry("a"),),
        decisions=("d1",),
        context={"l": 2, "n": 3},
    )
