"""Compiling: layers, places, fingerprints of the whole, warnings, and what it costs."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given

from agentos.dag.define.task import TaskDef, from_stored, resolve_inputs, resolve_items, to_stored
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.plan import Plan, PlannedTask, PlanSettings, assemble_plan, compile_plan, with_schedule_of
from agentos.ids import TaskId
from tests.unit.dag.support import flow_of, needs_without_loops, nothing, plan_of


def test_an_empty_workflow_has_no_layers() -> None:
    plan = plan_of({})
    assert (plan.layers, len(plan.tasks), plan.warnings, plan.next_place) == ((), 0, (), 0)


def test_layers_hold_tasks_in_the_order_they_were_written() -> None:
    plan = plan_of({"z": [], "late": ["z", "a"], "a": [], "last": ["late"], "m": ["z"]})
    assert plan.layers == (("z", "a"), ("late", "m"), ("last",))
    assert plan.tasks[TaskId("late")].place == "000001"
    assert plan.dependants[TaskId("z")] == ("late", "m")
    assert TaskId("last") not in plan.dependants


def test_needs_stand_in_plan_order_however_they_were_given() -> None:
    plan = plan_of({"a": [], "b": [], "c": ["b", "a"], "d": ["b", "a", "b"]})
    assert plan.tasks[TaskId("c")].definition.needs == ("a", "b")
    assert plan.tasks[TaskId("d")].definition.needs == ("a", "b")


@given(needs_without_loops())
def test_a_layer_holds_what_needs_only_layers_above_and_one_just_above(needs: dict[str, list[str]]) -> None:
    plan = plan_of(needs)
    layers = {task_id: task.layer for task_id, task in plan.tasks.items()}
    assert sorted(task_id for layer in plan.layers for task_id in layer) == sorted(needs)
    for task_id, needed in needs.items():
        above = [layers[TaskId(need)] for need in needed]
        assert layers[TaskId(task_id)] == max(above, default=-1) + 1
        assert task_id in plan.layers[layers[TaskId(task_id)]]
        for need in needed:
            assert task_id in plan.dependants[TaskId(need)]
    written = list(needs)
    for layer in plan.layers:
        assert list(layer) == sorted(layer, key=written.index)


@given(needs_without_loops())
def test_a_stored_plan_is_put_together_again(needs: dict[str, list[str]]) -> None:
    plan = plan_of(needs)
    stored = msgspec.json.encode([*plan.tasks.values()])
    tasks = msgspec.json.decode(stored, type=list[PlannedTask])
    assert assemble_plan(plan.name, plan.settings, plan.params, tasks, plan.defaulted) == plan


def test_compiling_twice_gives_equal_plans() -> None:
    flow = flow_of({"a": [], "b": ["a"]})
    assert compile_plan(flow) == compile_plan(flow)


# --- fingerprint of the whole -------------------------------------------------------------------------------------


def test_the_fingerprint_of_a_plan_covers_name_settings_and_tasks() -> None:
    base = flow_of({"a": [], "b": ["a"]})
    others = [
        flow_of({"a": [], "b": []}),
        flow_of({"a": [], "b": ["a"], "c": []}),
        flow_of({"a": [], "b": ["a"]}, env={"A": "1"}),
        flow_of({"a": [], "b": ["a"]}, decision_points="per_layer"),
        flow_of({"a": [], "b": ["a"]}, schedule="ready"),
    ]
    renamed = flow_of({"a": [], "b": ["a"]})
    renamed.name = "other"
    prints = {compile_plan(flow).fingerprint for flow in (base, *others, renamed)}
    assert len(prints) == 7
    assert all(text.startswith("1:") and len(text) == 66 for text in prints)


@pytest.mark.parametrize(
    ("effects", "settings", "schedule"),
    [
        ("none", {}, "ready"),
        ("external", {}, "layers"),
        ("files", {}, "layers"),
        ("none", {"decision_points": "per_layer"}, "layers"),
        ("none", {"decision_points": "on_error"}, "layers"),
        ("none", {"schedule": "layers"}, "layers"),
        ("external", {"schedule": "ready"}, "ready"),
    ],
)
def test_where_none_is_given_the_schedule_follows_from_the_effects(
    effects: str, settings: dict[str, Any], schedule: str
) -> None:
    flow = Workflow("w", **settings)
    flow.add("a", nothing)
    flow.add("b", nothing, effects=effects, needs=["a"])
    found = compile_plan(flow).settings
    assert (found.schedule, found.schedule_chosen) == (schedule, "schedule" not in settings)


def test_a_schedule_that_was_chosen_is_no_part_of_the_fingerprint() -> None:
    chosen, given = compile_plan(flow_of({"a": []})), compile_plan(flow_of({"a": []}, schedule="layers"))
    assert chosen.settings.schedule != given.settings.schedule
    assert chosen.fingerprint == given.fingerprint


def test_a_run_keeps_the_schedule_it_began_with() -> None:
    now = compile_plan(flow_of({"a": []}))
    stored = assemble_plan("flow", PlanSettings(), {}, now.tasks.values())  # by a version that chose none
    assert with_schedule_of(now, stored).settings.schedule == "layers"
    assert with_schedule_of(now, now).settings.schedule == "ready"
    given = compile_plan(flow_of({"a": []}, schedule="ready"))
    assert with_schedule_of(given, stored).settings.schedule == "ready", "the workflow says so"
    edited = Workflow("flow")
    edited.add("a", nothing, effects="files")
    assert with_schedule_of(compile_plan(edited), now).settings.schedule == "layers"


def test_the_fingerprint_of_a_plan_does_not_cover_what_is_cosmetic() -> None:
    one = compile_plan(flow_of({"a": [], "b": []}))
    two = compile_plan(flow_of({"b": [], "a": []}, max_concurrency=2, secrets=["T"]))
    assert one.fingerprint == two.fingerprint


# --- warnings -----------------------------------------------------------------------------------------------------


def writing(*settings: dict[str, object], max_concurrency: int = 16) -> Plan:
    flow = Workflow("w", max_concurrency=max_concurrency)
    flow.add("reader", "shell", run="ls", effects="none")
    for index, more in enumerate(settings):
        flow.add(f"w{index}", "shell", run="make", **more)  # type: ignore[arg-type]
    return compile_plan(flow)


def test_file_tasks_side_by_side_are_named_in_a_warning() -> None:
    (warning,) = writing({}, {}, {"isolation": "worktree"}).warnings
    assert warning.startswith("layer 1: 'w0', 'w1' may change files at the same time")


def test_a_fan_out_of_a_file_task_is_warned_about() -> None:
    (warning,) = writing({"for_each": [1, 2]}).warnings
    assert "'w0' (or its items) may change files" in warning


def test_retries_of_file_tasks_side_by_side_are_warned_about() -> None:
    _, warning = writing({"retries": 1}, {}).warnings
    assert warning == "layer 1: edits of a failed attempt are not undone before it is retried: 'w0'"


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ([{}], 16),
        ([{}, {"isolation": "worktree"}], 16),
        ([{}, {"needs": "w0"}], 16),
        ([{}, {}], 1),
        ([{"concurrency": "one"}, {"concurrency": "one"}], 16),
    ],
)
def test_file_tasks_that_never_overlap_are_not_warned_about(settings: list[dict[str, object]], most: int) -> None:
    assert writing(*settings, max_concurrency=most).warnings == ()


def test_a_warning_does_not_list_thousands_of_names() -> None:
    (warning,) = writing(*[{}] * 500).warnings
    assert "and 490 more" in warning
    assert len(warning) < 400


# --- values in a plan ---------------------------------------------------------------------------------------------


def test_inputs_are_decoded_before_references_are_looked_up() -> None:
    definition = TaskDef(id=TaskId("a"), kind="python", inputs={"raw": to_stored(b"x"), "ref": "${{ params.x }}"})
    assert resolve_inputs(definition, {"params": {"x": [1]}}) == {"raw": b"x", "ref": [1]}


def test_stored_values_come_back_equal() -> None:
    for value in ("text", "ü", "a\0", 3, None, [1, {"a": b"x"}], 2**70, float("inf")):
        assert from_stored(to_stored(value)) == value


def test_the_items_of_a_fan_out_are_a_list() -> None:
    flow = Workflow("w")
    flow.add("inline", nothing, for_each=["a", "${{ params.x || 'b' }}"])
    flow.add("referring", nothing, for_each="${{ params.items || 0 }}")
    plan = compile_plan(flow)
    inline, referring = (plan.tasks[TaskId(name)].definition for name in ("inline", "referring"))
    assert resolve_items(inline, {"params": {}}) == ["a", "b"]
    assert resolve_items(referring, {"params": {"items": (1, 2)}}) == [1, 2]
    for items, kind in ((None, "null"), ("abc", "str"), ({"a": 1}, "dict")):
        with pytest.raises(Exception, match=f"for_each needs a list, .* is {kind}"):
            resolve_items(referring, {"params": {"items": items}})
    with pytest.raises(ValueError, match="has no for_each"):
        resolve_items(TaskDef(id=TaskId("a"), kind="python"), {})


# --- cost ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["chain", "wide"])
def test_ten_thousand_tasks_compile_quickly(shape: str) -> None:
    flow = Workflow("big")
    for index in range(10_000):
        if shape == "chain" and index:
            flow.add(f"t{index}", lambda x: x, inputs={"x": f"${{{{ tasks.t{index - 1}.output }}}}"})
        else:
            flow.add(f"t{index}", lambda x: x, inputs={"x": index})
    began = time.process_time()
    plan = compile_plan(flow)
    # The aim is 0.3 s and `make bench` measures it; this only catches what is no longer linear.
    assert time.process_time() - began < 5
    assert len(plan.layers) == (10_000 if shape == "chain" else 1)
