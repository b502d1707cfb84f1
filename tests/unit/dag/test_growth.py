"""Plans that grow while a run is under way, and share what did not change."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.dag.define.task import Concurrency, TaskDef
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.growth import item_tasks, round_tasks, with_definition, with_tasks, without_tasks
from agentos.dag.plan.plan import Plan, assemble_plan, compile_plan
from agentos.exceptions import EvaluationError
from agentos.ids import TaskId
from tests.unit.dag.support import findings_of, needs_without_loops, nothing, plan_of, task

T = TaskId


def reassembled(plan: Plan) -> Plan:
    """The same tasks put together from scratch."""
    fresh = assemble_plan(plan.name, plan.settings, plan.params, plan.tasks.values(), plan.defaulted)
    # Who needs a task is known in the order in which they came; from scratch, in plan order.
    dependants = {need: tuple(sorted(needing)) for need, needing in plan.dependants.items()}
    assert dependants == {need: tuple(sorted(needing)) for need, needing in fresh.dependants.items()}
    return msgspec.structs.replace(fresh, dependants=plan.dependants, next_place=plan.next_place)


def defined(needs: dict[str, list[str]]) -> list[TaskDef]:
    return [task(task_id, *needed) for task_id, needed in needs.items()]


# --- adding -------------------------------------------------------------------------------------------------------


@given(needs_without_loops(), st.integers(0, 12))
def test_growing_gives_the_same_plan_as_compiling_it_all(needs: dict[str, list[str]], first: int) -> None:
    ordered = dict(sorted(needs.items(), key=lambda pair: int(pair[0][1:])))
    flow, names = Workflow("flow"), list(ordered)
    for name in names:
        flow.add(name, "python", call="m:f", needs=ordered[name])
    part = Workflow("flow")
    for name in names[:first]:
        part.add(name, "python", call="m:f", needs=ordered[name])
    grown = with_tasks(compile_plan(part), defined({name: ordered[name] for name in names[first:]}), origin="inject")
    whole = compile_plan(flow)
    assert grown.layers == whole.layers
    assert grown.fingerprint == whole.fingerprint
    assert grown.next_place == whole.next_place
    assert {i: (t.layer, t.place, t.fingerprint) for i, t in grown.tasks.items()} == {
        i: (t.layer, t.place, t.fingerprint) for i, t in whole.tasks.items()
    }
    assert reassembled(grown) == grown


def test_new_tasks_may_need_old_ones_and_each_other_in_any_order() -> None:
    plan = plan_of({"a": [], "b": ["a"]})
    grown = with_tasks(plan, [task("d", "c"), task("c", "a")], origin="inject")
    assert grown.layers == (("a",), ("b", "c"), ("d",))
    assert grown.dependants[T("a")] == ("b", "c")
    assert grown.tasks[T("c")].origin == "inject"
    assert plan.layers == (("a",), ("b",))


def test_new_tasks_come_no_sooner_than_asked_for() -> None:
    grown = with_tasks(plan_of({"a": []}), [task("b"), task("c", "b")], origin="replan", min_layer=3)
    assert grown.layers == (("a",), (), (), ("b",), ("c",))


def test_references_of_new_tasks_imply_needs() -> None:
    grown = with_tasks(plan_of({"a": []}), [task("b", inputs={"x": "${{ tasks.a.output }}"})], origin="inject")
    assert grown.tasks[T("b")].definition.needs == ("a",)
    assert grown.tasks[T("b")].layer == 1


@pytest.mark.parametrize(
    ("new", "found"),
    [
        ([task("a")], [("duplicate id", "a")]),
        ([task("x"), task("x")], [("duplicate id", "x")]),
        ([task("")], [("bad id", "")]),
        ([task("x", "nowhere")], [("unknown need", "x")]),
        ([task("x", "x")], [("self-loop", "x")]),
        ([task("x", "y"), task("y", "x")], [("cycle", "x")]),
        ([task("x", inputs={"i": "${{ tasks.q.output }}"})], [("bad reference", "x")]),
        ([task("x", inputs={"i": "${{ params.q }}"})], [("bad argument", "x")]),
        ([task("x", inputs={"i": "${{ oops"})], [("bad reference", "x")]),
        ([task("x", timeout_s=0)], [("bad setting", "x")]),
        ([task("x", effects=("files",))], [("bad setting", "")]),
        ([task("x", concurrency=Concurrency(group="g", slots=5))], [("bad setting", "x")]),
    ],
)
def test_new_tasks_are_checked_like_those_of_a_workflow(new: list[TaskDef], found: list[tuple[str, str]]) -> None:
    flow = Workflow("flow", schedule="ready")
    flow.add("a", nothing, concurrency="g")
    plan = compile_plan(flow)
    problems = findings_of(lambda: with_tasks(plan, new, origin="inject"))
    assert [(finding.problem, finding.task_id) for finding in problems] == found


def test_a_new_task_may_join_a_group_and_take_parameters() -> None:
    flow = Workflow("flow", params={"p": 1})
    flow.add("a", nothing, concurrency="g")
    new = task("b", concurrency=Concurrency(group="g"), inputs={"x": "${{ params.p }}", "y": "${{ params.q || 1 }}"})
    assert with_tasks(compile_plan(flow), [new], origin="inject").layers == (("a", "b"),)


def test_warnings_follow_the_layers_that_changed() -> None:
    flow = Workflow("flow")
    flow.add("a", "shell", run="x")
    flow.add("b", "shell", run="x")
    flow.add("c", "shell", run="x", needs=["a"])
    plan = compile_plan(flow)
    shell = TaskDef(id=T("d"), kind="shell", run="x", effects=("files",), needs=(T("a"),))
    grown = with_tasks(plan, [shell], origin="inject")
    assert [warning.partition(" may")[0] for warning in grown.warnings] == ["layer 1: 'a', 'b'", "layer 2: 'c', 'd'"]
    assert reassembled(grown).warnings == grown.warnings
    assert without_tasks(grown, [T("d")]).warnings == plan.warnings
    assert without_tasks(grown, [T("d"), T("c")]).warnings == plan.warnings


def test_growing_costs_by_what_is_new() -> None:
    plan = plan_of({f"t{index}": [] for index in range(10_000)})
    began = time.process_time()
    for index in range(200):
        plan = with_tasks(plan, [task(f"n{index}", "t5")], origin="inject")
    assert time.process_time() - began < 5
    assert len(plan.layers[1]) == 200


# --- changing and removing ----------------------------------------------------------------------------------------


def test_a_task_defined_anew_keeps_its_place() -> None:
    plan = plan_of({"a": [], "b": ["a"], "c": []})
    changed = with_definition(plan, T("b"), task("b", "c", inputs={"x": 1}))
    assert changed.layers == plan.layers
    assert changed.tasks[T("b")].place == "000001"
    assert changed.tasks[T("b")].fingerprint != plan.tasks[T("b")].fingerprint
    assert T("a") not in changed.dependants
    assert changed.dependants[T("c")] == ("b",)
    assert reassembled(changed) == changed


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        (task("b", "c"), "bad reference"),
        (task("b", inputs={"x": "${{ tasks.d.output }}"}), "bad reference"),
        (task("b", "nowhere"), "unknown need"),
        (task("other"), "bad id"),
        (task("b", timeout_s=-1), "bad setting"),
    ],
)
def test_a_new_definition_must_fit_the_place_of_the_task(definition: TaskDef, problem: str) -> None:
    plan = plan_of({"a": [], "b": ["a"], "c": ["a"], "d": ["b"]})
    assert [found.problem for found in findings_of(lambda: with_definition(plan, T("b"), definition))] == [problem]


def test_tasks_can_be_taken_out_and_the_others_stay_where_they_are() -> None:
    plan = plan_of({"a": [], "b": ["a"], "c": ["b"], "d": []})
    assert without_tasks(plan, [T("c")]).layers == (("a", "d"), ("b",))
    less = without_tasks(plan, [T("b"), T("c")])
    assert less.layers == (("a", "d"),)
    assert less.fingerprint == plan_of({"a": [], "d": []}).fingerprint
    assert dict(less.dependants) == {}


def test_an_emptied_layer_keeps_the_numbers_of_the_others() -> None:
    plan = with_tasks(plan_of({"a": [], "b": ["a"]}), [task("c")], origin="inject", min_layer=2)
    assert without_tasks(plan, [T("b")]).layers == (("a",), (), ("c",))


def test_what_others_need_cannot_be_taken_out() -> None:
    plan = plan_of({"a": [], "b": ["a"]})
    assert [str(finding) for finding in findings_of(lambda: without_tasks(plan, [T("a"), T("x")]))] == [
        "task 'x': bad id: there is no such task",
        "task 'b': unknown need: it needs 'a', which would be removed",
    ]


def test_a_task_that_is_replaced_moves_what_waits_for_it() -> None:
    plan = plan_of({"a": [], "b": ["a"], "c": ["b"], "d": ["c"], "e": ["a"]})
    less = without_tasks(plan, [T("b")], replaced=[T("b")])
    grown = with_tasks(less, [task("new", "a"), task("b", "new")], origin="replan", min_layer=1)
    assert grown.layers == (("a",), ("e", "new"), ("b",), ("c",), ("d",))
    assert grown.dependants[T("b")] == ("c",)
    assert reassembled(grown) == grown


def test_what_moves_down_finds_its_place_among_others() -> None:
    plan = plan_of({"a": [], "b": ["a"], "c": ["b"], "p": ["a"], "q": ["p"], "r": ["q"]})
    less = without_tasks(plan, [T("b")], replaced=[T("b")])
    grown = with_tasks(less, [task("new", "a"), task("b", "new"), task("z", "q")], origin="replan")
    assert grown.layers == (("a",), ("p", "new"), ("q", "b"), ("c", "r", "z"))
    assert reassembled(grown) == grown


def test_a_replacement_may_not_need_what_waits_for_it() -> None:
    plan = plan_of({"a": [], "b": ["a"]})
    less = without_tasks(plan, [T("a")], replaced=[T("a")])
    (finding,) = findings_of(lambda: with_tasks(less, [task("a", "b")], origin="replan"))
    assert finding.problem == "cycle"


def test_taking_out_what_was_put_in_gives_the_same_plan() -> None:
    plan = plan_of({"a": [], "b": ["a"]})
    grown = with_tasks(plan, [task("x", "b"), task("y")], origin="inject")
    back = without_tasks(grown, [T("x"), T("y")])
    assert msgspec.structs.replace(back, next_place=plan.next_place) == plan


# --- items of a fan-out -------------------------------------------------------------------------------------------


def fan_out(**settings: Any) -> Plan:
    flow = Workflow("flow", params={"prefix": "p"})
    flow.add("before", nothing)
    flow.add("each", lambda item, before: None, for_each="${{ tasks.before.output }}", **settings)
    flow.add("beside", lambda before: None)
    flow.add("after", lambda each: None)
    return compile_plan(flow)


def expanded(plan: Plan, items: list[Any], scope: dict[str, Any] | None = None) -> Plan:
    return with_tasks(plan, item_tasks(plan, T("each"), items, scope), origin="for_each", parent=T("each"))


def test_items_follow_their_task_in_its_layer() -> None:
    plan = expanded(fan_out(), ["x", b"y"])
    assert plan.layers == (("before",), ("each", "each[0]", "each[1]", "beside"), ("after",))
    child = plan.tasks[T("each[1]")]
    assert (child.place, child.origin, child.parent) == ("000001.000001", "for_each", "each")
    assert child.item == {"$agentos": "bytes", "v": "eQ=="}
    assert child.definition.needs == ("before",)
    assert child.definition.inputs == {"item": "${{ item }}", "before": '${{ tasks["before"].output }}'}
    assert reassembled(plan) == plan


def test_what_is_settled_once_stays_with_the_task_itself() -> None:
    plan = fan_out(approve="all of them?", if_="success()", retries=2, continue_on_error=True)
    (child,) = item_tasks(plan, T("each"), [1])
    assert (child.for_each, child.approve, child.condition) == (None, None, "")
    assert child.retry.retries == 2
    assert child.continue_on_error


def test_no_items_change_nothing() -> None:
    plan = fan_out()
    assert expanded(plan, []) == plan


def test_items_with_other_values_have_other_fingerprints() -> None:
    one, two = expanded(fan_out(), [1]), expanded(fan_out(), [2])
    assert one.tasks[T("each[0]")].fingerprint != two.tasks[T("each[0]")].fingerprint
    assert one.tasks[T("each")].fingerprint == two.tasks[T("each")].fingerprint


@pytest.mark.parametrize(
    ("key", "items", "ids"),
    [
        ("item", ["a", "b c"], ["each[a]", "each[b c]"]),
        ("item.id", [{"id": 7}, {"id": "x"}], ["each[7]", "each[x]"]),
        ("${{ item.id }}", [{"id": 7}], ["each[7]"]),
        ("${{ params.prefix }}-${{ item }}", ["a", "b"], ["each[p-a]", "each[p-b]"]),
    ],
)
def test_a_key_names_each_item(key: str, items: list[Any], ids: list[str]) -> None:
    scope = {"params": {"prefix": "p"}}
    assert [child.id for child in item_tasks(fan_out(key=key), T("each"), items, scope)] == ids


@pytest.mark.parametrize(
    ("key", "items", "why"),
    [
        ("item", ["a", "b", "a"], "items 0 and 2 have the same key 'a'"),
        ("item", [1, "1"], "items 0 and 1 have the same key '1'"),
        ("item", [""], "the key of item 0 is '', not a text or a whole number"),
        ("item", [1.5], "is 1.5, not a text"),
        ("item", [True], "is True, not a text"),
        ("item", [None], "is None, not a text"),
        ("item", ["a\nb"], "control characters"),
        ("item", ["x" * 200], "has 206 characters"),
        ("item.id", [{}], "item has no 'id'"),
    ],
)
def test_keys_that_do_not_name_are_an_error(key: str, items: list[Any], why: str) -> None:
    with pytest.raises(EvaluationError, match=why.replace("(", "\\(")):
        item_tasks(fan_out(key=key), T("each"), items)


def test_settled_ids_are_taken_as_they_are() -> None:
    children = item_tasks(fan_out(key="item"), T("each"), ["a", "a"], keys=[T("each[x]"), T("each[y]")])
    assert [child.id for child in children] == ["each[x]", "each[y]"]


def test_a_task_without_a_fan_out_has_no_items() -> None:
    with pytest.raises(ValueError, match="has no for_each"):
        item_tasks(plan_of({"a": []}), T("a"), [1])


def test_an_item_whose_id_is_taken_is_refused() -> None:
    plan = with_tasks(fan_out(), [task("each[0]")], origin="inject")
    (finding,) = findings_of(lambda: expanded(plan, [1]))
    assert (finding.problem, finding.task_id) == ("duplicate id", "each[0]")


def test_taking_out_a_fan_out_takes_its_items_along() -> None:
    plan = expanded(fan_out(), [1, 2])
    assert without_tasks(plan, [T("each"), T("after")]).layers == (("before",), ("beside",))


def test_an_item_can_be_defined_anew() -> None:
    plan = expanded(fan_out(), [1, 2])
    child = plan.tasks[T("each[1]")].definition
    changed = with_definition(plan, T("each[1]"), msgspec.structs.replace(child, inputs={"item": "not ${{ item }}"}))
    assert changed.tasks[T("each[1]")].item == 2
    assert changed.layers == plan.layers


def test_thousands_of_items_are_planned_quickly() -> None:
    plan = fan_out()
    began = time.process_time()
    grown = expanded(plan, list(range(10_000)))
    assert time.process_time() - began < 5
    assert len(grown.layers[1]) == 10_002


def test_items_and_injected_tasks_keep_plan_order_in_any_order_of_arrival() -> None:
    plan = with_tasks(fan_out(), [task("late", "before")], origin="inject")
    grown = expanded(plan, ["x"])
    assert grown.layers[1] == ("each", "each[0]", "beside", "late")
    back = without_tasks(grown, [T("beside"), T("each"), T("after")], replaced=[T("after")])
    both = with_tasks(back, [task("after")], origin="replan", min_layer=1)
    assert both.layers[1] == ("late", "after")


# --- rounds of a repeat -------------------------------------------------------------------------------------------


def test_a_round_runs_the_group_again_behind_the_round_before() -> None:
    flow = Workflow("flow")
    flow.add("start", nothing)
    flow.add("draft", nothing, needs=["start"])
    flow.add("review", lambda draft: None)
    flow.add("loop", repeat={"tasks": ["draft", "review"], "until": "tasks.review.output", "max": 3})
    plan = compile_plan(flow)
    second = with_tasks(plan, round_tasks(plan, T("loop"), 2), origin="repeat")
    assert second.tasks[T("draft@2")].definition.needs == ("start", "draft", "review")
    assert second.tasks[T("review@2")].definition.needs == ("draft", "review", "draft@2")
    assert second.tasks[T("review@2")].parent == "review"
    third = with_tasks(second, round_tasks(second, T("loop"), 3), origin="repeat")
    assert third.layers[3:] == (("loop", "draft@2"), ("review@2",), ("draft@3",), ("review@3",))


def test_a_task_without_repeat_has_no_rounds() -> None:
    with pytest.raises(ValueError, match="has no repeat"):
        round_tasks(plan_of({"a": []}), T("a"), 2)


def test_a_task_of_a_group_may_refer_back_with_a_default() -> None:
    flow = Workflow("flow")
    flow.add("draft", "shell", run="echo ${{ tasks.review.output.stdout || 'first' }}")
    flow.add("review", "shell", run="cat ${{ tasks.draft.output.stdout }}")
    flow.add("loop", repeat={"tasks": ["draft", "review"], "until": "true", "max": 3})
    plan = compile_plan(flow)
    assert plan.layers == (("draft",), ("review",), ("loop",))
    second = with_tasks(plan, round_tasks(plan, T("loop"), 2), origin="repeat")
    assert second.tasks[T("draft@2")].definition.needs == ("draft", "review")
    # A task that is defined anew keeps its place: what it says about the round before still implies no need.
    changed = msgspec.structs.replace(plan.tasks[T("draft")].definition, timeout_s=3)
    assert with_definition(plan, T("draft"), changed).tasks[T("draft")].definition.needs == ()


def test_a_loop_in_a_group_says_how_to_refer_back() -> None:
    flow = Workflow("flow")
    flow.add("draft", "shell", run="echo ${{ tasks.review.output.stdout }}")
    flow.add("review", "shell", run="cat ${{ tasks.draft.output.stdout }}")
    flow.add("loop", repeat={"tasks": ["draft", "review"], "until": "true", "max": 3})
    (finding,) = findings_of(lambda: compile_plan(flow))
    assert finding.problem == "cycle"
    assert "refers to the round before with a default" in finding.message


def test_the_first_round_has_none_before_it() -> None:
    flow = Workflow("flow")
    flow.add("draft", "shell", run="echo ${{ tasks.draft.output.stdout }}")
    flow.add("loop", repeat={"tasks": ["draft"], "until": "true", "max": 3})
    (finding,) = findings_of(lambda: compile_plan(flow))
    assert "give a default" in finding.message
