"""Definition errors: each kind told apart, all of them at once."""

from __future__ import annotations

import itertools
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.dag.define.settings import known_settings
from agentos.dag.define.task import ForEach, Retry
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.checks import id_problem
from agentos.dag.plan.plan import PlannedTask, compile_plan
from agentos.exceptions import WorkflowDefinitionError
from tests.unit.dag.support import findings_of, flow_of, nothing, only_message, plan_of, problems


def messages(flow: Workflow) -> list[str]:
    return [str(finding) for finding in findings_of(lambda: compile_plan(flow))]


def test_all_kinds_of_mistakes_are_reported_at_once() -> None:
    flow = Workflow("w", params={"both": 1}, max_concurrency=0)
    flow.add("build", nothing)
    flow.add("build", nothing)
    flow.add("test", nothing, needs=["biuld"])
    flow.add("self", nothing, needs=["self"])
    flow.add("x", nothing, needs=["y"])
    flow.add("y", nothing, needs=["x"])
    flow.add("ref", lambda a: None, inputs={"a": "${{ tasks.nowhere.output }}"})
    flow.add("arg", lambda missing: None)
    flow.add("both", nothing)
    flow.add("", nothing)
    with pytest.raises(WorkflowDefinitionError) as caught:
        compile_plan(flow)
    assert {finding.problem for finding in caught.value.findings} == {  # type: ignore[attr-defined]
        "duplicate id",
        "unknown need",
        "self-loop",
        "cycle",
        "bad reference",
        "bad argument",
        "bad setting",
        "parameter and task",
        "bad id",
    }
    assert "'w' has 9 problems" in str(caught.value)


def _hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


garbage = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 3),
        st.floats(),
        st.text(max_size=4),
        st.sampled_from(
            ["a", "b", "none", "files", "${{ item }}", "${{ tasks.a.output }}", "${{ params.x }}", "${{", "ready"]
        ),
        st.sampled_from([object(), len, b"x", Retry(retries="x"), range(2), ForEach(items=1, as_=2)]),  # type: ignore[arg-type]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["items", "as", "question", "group", "tasks", "until", "max", "x"])
            | inner.filter(_hashable),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=300)
@given(
    st.sampled_from([nothing, len, "python", "shell", "approval", "agent", "llm", None, "x", 3]),
    st.dictionaries(
        st.sampled_from([*known_settings("python"), *known_settings("shell"), "prompt", "question", "if_", "zzz"]),
        garbage,
        max_size=6,
    ),
    st.dictionaries(
        st.sampled_from(["params", "max_concurrency", "schedule", "decision_points", "env", "secrets"]),
        garbage,
        max_size=2,
    ),
    st.none() | st.dictionaries(st.sampled_from(["x", "a", "1"]), garbage, max_size=2),
)
def test_whatever_is_written_there_is_a_plan_or_there_are_findings(
    work: Any, given_settings: dict[str, Any], whole: dict[str, Any], params: dict[str, Any] | None
) -> None:
    flow = Workflow("w", **whole)
    flow.add("a", nothing)
    flow.add("b", work, **given_settings)
    try:
        plan = compile_plan(flow, params)
    except WorkflowDefinitionError:
        return
    assert msgspec.json.decode(msgspec.json.encode(plan.tasks["b"]), type=PlannedTask) == plan.tasks["b"]  # type: ignore[index]


# --- ids and needs ------------------------------------------------------------------------------------------------


def test_an_unknown_need_names_the_nearest_task() -> None:
    assert messages(flow_of({"build": [], "test": ["biuld"], "ship": ["zzz"]})) == [
        "task 'test': unknown need: there is no task 'biuld' (did you mean 'build'?)",
        "task 'ship': unknown need: there is no task 'zzz'",
    ]


def test_an_unknown_need_is_no_cycle_and_hides_none() -> None:
    assert problems(flow_of({"a": ["b", "nowhere"], "b": ["a"]})) == [("unknown need", "a"), ("cycle", "a")]


def test_every_further_task_of_an_id_is_a_duplicate() -> None:
    flow = Workflow("w")
    for _ in range(3):
        flow.add("a", nothing)
    assert problems(flow) == [("duplicate id", "a"), ("duplicate id", "a")]


@pytest.mark.parametrize(
    ("task_id", "why"),
    [
        ("", "may not be empty"),
        ("  ", "may not be empty"),
        ("a\nb", "control characters"),
        ("a\x00", "control characters"),
        ("\ud800", "control characters"),
        ("x" * 201, "has 201 characters, 200 are allowed"),
        (7, "an id is text, not 7"),
    ],
)
def test_a_bad_id_is_told(task_id: Any, why: str) -> None:
    flow = Workflow("w")
    flow.add(task_id, nothing)
    assert why in only_message(flow)


@given(st.text(min_size=1, max_size=200))
def test_any_text_without_control_characters_is_an_id(text: str) -> None:
    printable = not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text)
    sound = not any(0xD800 <= ord(character) < 0xE000 for character in text)
    assert (id_problem(text) == "") == (printable and sound and bool(text.strip()))


def test_an_id_that_looks_like_an_item_of_a_fan_out_is_refused() -> None:
    flow = Workflow("w")
    flow.add("each", nothing, for_each=[1])
    flow.add("each[0]", nothing)
    flow.add("other[0]", nothing)
    assert problems(flow) == [("bad id", "each[0]")]


def test_thousands_of_mistakes_are_told_in_little_time() -> None:
    flow = flow_of({f"task-{index}": [f"tsak-{index}"] for index in range(3000)})
    began = time.process_time()
    assert len(problems(flow)) == 3000
    assert time.process_time() - began < 20


# --- loops --------------------------------------------------------------------------------------------------------


def test_a_cycle_is_printed_with_its_path() -> None:
    assert messages(flow_of({"start": [], "a": ["b", "start"], "b": ["c"], "c": ["a"], "end": ["a"]})) == [
        "task 'a': cycle: a -> b -> c -> a (each needs the next)"
    ]


def test_each_cycle_is_reported_once() -> None:
    found = messages(flow_of({"a": ["b", "c"], "b": ["a"], "c": ["a"], "x": ["y"], "y": ["x"]}))
    assert sorted(found) == [
        "task 'a': cycle: a -> b -> a (each needs the next)",
        "task 'a': cycle: a -> c -> a (each needs the next)",
        "task 'x': cycle: x -> y -> x (each needs the next)",
    ]


def test_a_self_loop_is_no_cycle() -> None:
    assert problems(flow_of({"a": ["a"], "b": ["a"]})) == [("self-loop", "a")]


def test_a_cycle_through_references_is_found() -> None:
    flow = Workflow("w")
    flow.add("a", lambda x: None, inputs={"x": "${{ tasks.b.output }}"})
    flow.add("b", "shell", run="echo ${{ tasks.a.output }}")
    assert problems(flow) == [("cycle", "a")]


def test_a_very_long_cycle_is_shortened_and_needs_no_recursion() -> None:
    count = 20_000
    needs = {f"t{index}": [f"t{(index + 1) % count}"] for index in range(count)}
    (message,) = messages(flow_of(needs))
    assert f"… {count - 20} more …" in message


def test_so_many_cycles_are_not_all_printed() -> None:
    names = [f"t{index}" for index in range(30)]
    found = problems(flow_of({name: [other for other in names if other != name] for name in names}))
    assert len(found) == 20


@given(st.data())
def test_loops_are_found_exactly_where_there_are_any(data: st.DataObject) -> None:
    names = [f"t{index}" for index in range(data.draw(st.integers(1, 7)))]
    needs = {name: data.draw(st.lists(st.sampled_from(names), unique=True, max_size=3)) for name in names}
    reach = {name: set(needed) for name, needed in needs.items()}
    for middle in names:
        for name in names:
            if middle in reach[name]:
                reach[name] |= reach[middle]
    looped = any(name in reach[name] for name in names)
    if not looped:
        plan_of(needs)
        return
    for finding in findings_of(lambda: plan_of(needs)):
        if finding.problem == "self-loop":
            assert finding.task_id in needs[finding.task_id]
        else:
            path = finding.message.split(" (")[0].split(" -> ")
            assert path[0] == path[-1]
            assert len(set(path)) == len(path) - 1
            assert all(second in needs[first] for first, second in itertools.pairwise(path))


# --- references ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"run": "echo ${{ tasks.biuld.output }}"}, "run: `tasks.biuld.output`: there is no task 'biuld'"),
        ({"run": "echo ${{ tasks.a.output }}"}, "a task cannot refer to itself"),
        ({"run": "echo ${{ tasks.build.result }}"}, "a task has output, status, error"),
        ({"run": "echo ${{ tasks.build.outptu }}"}, "(did you mean 'output'?)"),
        ({"run": "echo ${{ tasks }}"}, "say which task: tasks.ID.output"),
        ({"run": "echo ${{ task.build.output }}"}, "begins with params, tasks, secrets (did you mean 'tasks'?)"),
        ({"run": "echo ${{ params[0] }}"}, "a parameter has a name"),
        ({"run": "echo ${{ oops"}, "run: expected }}"),
        ({"run": ["ls", "${{ item }}"]}, "a reference begins with params, tasks, secrets"),
        ({"run": "x", "env": {"A": "${{ x }}"}}, "env: `x`"),
        ({"run": "x", "cwd": "${{ x }}"}, "cwd: `x`"),
        ({"run": "x", "produces": ["${{ x }}"]}, "produces: `x`"),
        ({"run": "x", "approve": "ship ${{ x }}?"}, "approve: `x`"),
        ({"run": "x", "if_": "x.y == 1"}, "if: `x.y`"),
        ({"run": "x", "if_": "a =="}, "if: expected a path"),
        ({"run": "x", "for_each": ["${{ item }}"]}, "for_each is settled once, before there are items"),
        ({"run": "x", "for_each": [1], "if_": "item == 1"}, "if is settled once, before there are items"),
        ({"run": "x", "for_each": [1], "approve": "${{ item }}?"}, "approve is settled once"),
        (
            {"run": "x", "for_each": [1], "key": "file"},
            "key: `file`: a reference begins with params, tasks, secrets, i",
        ),
        ({"run": "x", "for_each": [1], "key": "a b"}, "key: expected }}"),
        ({"run": "x", "for_each": "${{ oops"}, "for_each: expected }}"),
    ],
)
def test_references_to_what_is_not_there_are_told(settings: dict[str, Any], why: str) -> None:
    flow = Workflow("w")
    flow.add("build", nothing)
    flow.add("a", "shell", **settings)
    (finding,) = findings_of(lambda: compile_plan(flow))
    assert finding.problem == "bad reference"
    assert why in finding.message


def test_references_imply_needs_wherever_they_stand() -> None:
    flow = Workflow("w")
    for name in "abcdefghij":
        flow.add(name, nothing)
    flow.add(
        "all",
        "shell",
        needs=["j"],
        run="echo ${{ tasks.a.output }}",
        env={"X": "${{ tasks.b.output }}"},
        cwd="${{ tasks.c.output }}",
        produces=["${{ tasks.d.output }}"],
        approve="${{ tasks.e.output }}?",
        if_="tasks.f.status == 'complete'",
        for_each="${{ tasks.g.output }}",
        key="${{ tasks.h.output }}-${{ item }}",
        inputs={"deep": [{"x": "say ${{ tasks.i.output }}"}]},
    )
    assert compile_plan(flow).tasks["all"].definition.needs == tuple("abcdefghij")  # type: ignore[index]


# --- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"retries": -1}, "retries must be 0 or more, not -1"),
        ({"retries": Retry(backoff_s=-1.0)}, "retries: backoff_s must be 0 or more, not -1.0"),
        ({"retries": {"retries": 1, "max_delay_s": -2}}, "retries: max_delay_s must be 0 or more"),
        ({"retries": {"factor": 0.5}}, "factor must be 1 or more"),
        ({"retries": {"jitter": 1.5}}, "jitter must be between 0 and 1"),
        ({"retries": {"backoff_s": float("nan")}}, "must be 0 or more"),
        ({"timeout_s": 0}, "timeout_s must be more than 0"),
        ({"timeout_s": float("inf")}, "timeout_s must be more than 0"),
        ({"effects": []}, "(none given)"),
        ({"effects": ["none", "files"]}, "effects none, files: say none, files, external or both"),
        ({"concurrency": {"group": "g", "slots": 0}}, "slots must be 1 or more"),
        ({"concurrency": ""}, "concurrency needs a group's name"),
        ({"env": {"": "x"}}, "cannot be the name of a variable"),
        ({"env": {"A": "\0"}}, "a variable cannot hold NUL"),
        ({"produces": [""]}, "produces holds an empty path"),
        ({"approve": " "}, "the question is empty"),
        ({"approve": "\ud800"}, "approve holds half a character"),
        ({"description": "\udc80"}, "description holds half a character"),
        ({"env": {"A": "\ud800"}}, "env holds half a character"),
        ({"approve": {"question": "?", "timeout_s": 0}}, "approve: timeout_s must be more than 0"),
        ({"for_each": [1], "as_": "tasks"}, "'tasks' cannot be the name of the item"),
        ({"for_each": [1], "as_": "a b"}, "'a b' cannot be the name of the item"),
        ({"for_each": [1], "max_failures": 0}, "max_failures must be 1 or more"),
        ({"for_each": "a, b"}, "one reference to a list, not 'a, b'"),
        ({"for_each": "x ${{ params }}"}, "one reference to a list"),
        ({"repeat": {"tasks": [], "until": "true", "max": 1}}, "name the tasks to repeat"),
        ({"repeat": {"tasks": ["a"], "until": "true", "max": 1}}, "a task cannot repeat itself"),
        ({"repeat": {"tasks": ["b"], "until": "true", "max": 0}}, "max must be 1 or more"),
        ({"repeat": {"tasks": ["b"], "until": "true", "max": 1}, "for_each": [1]}, "for_each and repeat"),
    ],
)
def test_settings_out_of_range_are_told(settings: dict[str, Any], why: str) -> None:
    flow = Workflow("w")
    flow.add("a", nothing, **settings)
    flow.add("b", nothing)
    (finding,) = findings_of(lambda: compile_plan(flow))
    assert finding.problem == "bad setting"
    assert why in finding.message


@pytest.mark.parametrize(
    ("kind", "settings", "why"),
    [
        ("shell", {}, "run is empty"),
        ("shell", {"run": "  \n"}, "run is empty"),
        ("shell", {"run": []}, "run is empty"),
        ("shell", {"run": ["", "x"]}, "the command's name is empty"),
        ("shell", {"run": "echo \0"}, "a command cannot hold NUL"),
        ("shell", {"run": ["echo", "\0"]}, "a command cannot hold NUL"),
        ("shell", {"run": "echo '${{ params }}'"}, "run: `params` stands in single quotes"),
        ("shell", {"run": "echo 'x ${{ params }}"}, "run: line 1: ' is missing"),
        ("approval", {}, "an approval needs a question"),
        ("approval", {"question": "?", "isolation": "process"}, "an approval runs nothing"),
        ("approval", {"question": "?", "for_each": [1]}, "an approval asks once"),
        ("agent", {"prompt": "x"}, "agent is one of claude"),
        ("agent", {"agent": "cluade", "prompt": "x"}, "did you mean 'claude'"),
        ("agent", {"agent": "claude"}, "agent tasks need a prompt"),
        ("agent", {"agent": "command", "prompt": "x"}, "needs `command`"),
        ("agent", {"agent": "claude", "prompt": "x", "command": ["y"]}, "`command` is for agent 'command'"),
        ("agent", {"agent": "claude", "prompt": "x", "max_turns": 0}, "max_turns must be 1 or more"),
        ("agent", {"agent": "claude", "prompt": "x", "verify": "echo '${{ params }}'"}, "verify: `params` stands in"),
        (
            "agent",
            {"agent": "claude", "prompt": "x", "verify": [{"run": "true"}, {"run": "echo '${{ params }}'"}]},
            "verify: `params` stands in",
        ),
        ("agent", {"agent": "claude", "prompt": "x", "verify": ["make", {"run": "true"}]}, "verify is one command, as"),
        ("agent", {"agent": "claude", "prompt": "x", "verify": [{"run": ""}]}, "verify is"),
        ("agent", {"agent": "claude", "prompt": "x", "budget": 0}, "cost_usd must be more than 0"),
        ("llm", {"model": "m"}, "llm tasks need a prompt"),
        ("llm", {"prompt": "x"}, "say which model"),
        ("llm", {"model": "m", "messages": [{"content": "x"}]}, "maps of role and content"),
        ("llm", {"model": "m", "prompt": "x", "key_name": "K", "key_command": ["k"]}, "give one of them"),
        ("llm", {"model": "m", "prompt": "x", "temperature": -1}, "temperature must be 0 or more"),
        ("llm", {"model": "m", "prompt": "x", "base_url": "ftp://x"}, "base_url begins with https:// or http://"),
        ("llm", {"model": "m", "prompt": "x", "extra_body": {"stream": False, "n": 2}}, "may not hold stream, n"),
        ("llm", {"model": "m", "prompt": "x", "extra_body": [1]}, "extra_body: Expected"),
        ("llm", {"model": "m", "prompt_file": "p.md"}, "prompt_file is read when a workflow is planned"),
        ("llm", {"model": "m", "prompt": "x", "key_name": "sk-1"}, "key_name is the NAME of a variable"),
        (
            "agent",
            {"agent": "claude", "prompt": "x", "permissions": "ful"},
            "permissions is one of read, edit, full, not 'ful' (did you mean 'full'?)",
        ),
        ("llm", {"model": "m", "prompt": "x", "budget": {"tokens": 0}}, "tokens must be 1 or more"),
    ],
)
def test_settings_of_each_kind_are_checked(kind: str, settings: dict[str, Any], why: str) -> None:
    flow = Workflow("w")
    flow.add("a", kind, **settings)
    assert why in only_message(flow)


@pytest.mark.parametrize("flow", [Workflow("\ud800"), Workflow("w", env={"A": "\ud800"})], ids=["name", "env"])
def test_a_workflow_that_cannot_be_stored_is_told(flow: Workflow) -> None:
    flow.add("a", nothing)
    assert "half a character" in only_message(flow)


def test_one_group_has_one_number_of_slots() -> None:
    flow = Workflow("w")
    flow.add("a", nothing, concurrency={"group": "g", "slots": 2})
    flow.add("b", nothing, concurrency="g")
    flow.add("c", nothing, concurrency="h")
    assert only_message(flow) == "concurrency group 'g' has both 2 and 1 slots"


def test_ready_with_unisolated_file_tasks_is_refused_with_the_reason() -> None:
    flow = Workflow("w", schedule="ready")
    flow.add("a", "shell", run="make")
    flow.add("b", "shell", run="make", isolation="worktree")
    flow.add("c", "shell", run="make", effects="none")
    message = only_message(flow)
    assert message.startswith(
        "schedule 'ready' lets file changes of tasks overlap that nothing could tell apart: 'a' need"
    )


def test_a_repeat_of_unknown_tasks_is_an_unknown_need() -> None:
    flow = Workflow("w")
    flow.add("loop", repeat={"tasks": ["nowhere"], "until": "true", "max": 2})
    assert problems(flow) == [("unknown need", "loop")]
