"""Workflows as Python users write them: decorator and add, settings, and what each function's parameters get."""

from __future__ import annotations

import functools
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentos.dag.define.task import Approve, Concurrency, ForEach, Repeat, Retry, TaskDef
from agentos.dag.define.workflow import Workflow, WorkflowSource
from agentos.dag.plan.plan import compile_plan
from agentos.exceptions import WorkflowDefinitionError
from agentos.ids import TaskId
from tests.unit.dag.support import findings_of, nothing, only_message, problems


def definition(flow: Workflow, task_id: str, **params: Any) -> TaskDef:
    return compile_plan(flow, params).tasks[TaskId(task_id)].definition


# --- decorator and add --------------------------------------------------------------------------------------------


def test_the_example_of_the_documentation_compiles() -> None:
    flow = Workflow("summarise")

    @flow.task
    def fetch(url: str) -> dict[str, str]:
        return {"url": url}

    @flow.task(retries=2, timeout_s=30)
    async def summary(fetch: dict[str, str]) -> str:
        return fetch["url"]

    def publish_fn(text: str) -> None: ...

    flow.add(
        "publish",
        publish_fn,
        needs=[summary],
        inputs={"text": "${{ tasks.summary.output }}"},
        approve="Publish?",
        effects="external",
    )
    plan = compile_plan(flow, {"url": "https://example.org"})
    assert plan.layers == (("fetch",), ("summary",), ("publish",))
    assert plan.params == {"url": "https://example.org"}
    assert plan.tasks[TaskId("summary")].definition.retry == Retry(retries=2)
    assert plan.tasks[TaskId("publish")].definition.approve == Approve(question="Publish?")
    assert flow.functions == {"fetch": fetch, "summary": summary, "publish": publish_fn}
    assert fetch("x") == {"url": "x"}


def test_decorator_and_add_build_the_same_task() -> None:
    decorated, added = Workflow("w"), Workflow("w")
    decorated.task(id="a", effects="files", **{"if": "true"})(nothing)  # type: ignore[call-overload]
    added.add(id="a", work=nothing, effects=["files"], if_="true")
    assert compile_plan(decorated) == compile_plan(added)


def test_a_task_may_have_another_id_than_its_function() -> None:
    flow = Workflow("w")

    @flow.task(id="with spaces & more")
    def f() -> None: ...

    flow.add("next", nothing, needs=f)
    assert compile_plan(flow).layers == (("with spaces & more",), ("next",))


def test_needs_take_ids_functions_and_what_add_returns_in_any_mix() -> None:
    flow = Workflow("w")
    first = flow.add("a", "shell", run="true")

    @flow.task
    def b() -> None: ...

    flow.add("c", lambda: None, needs={first, b})
    flow.add("d", lambda: None, needs="c")
    flow.add("e", lambda: None, needs=(b, "d"))
    assert definition(flow, "c").needs == ("a", "b")
    assert definition(flow, "e").needs == ("b", "d")


def test_a_function_may_be_named_as_a_need_before_it_is_a_task() -> None:
    flow = Workflow("w")
    flow.add("late", lambda: None, needs=[nothing])
    flow.add("early", nothing)
    assert compile_plan(flow).layers == (("early",), ("late",))


def test_a_function_that_is_no_task_or_several_is_an_unknown_need() -> None:
    flow = Workflow("w")
    flow.add("a", nothing, needs=[len])
    flow.add("b", nothing)
    flow.add("c", lambda: None, needs=[nothing])
    found = findings_of(lambda: compile_plan(flow))
    assert [str(finding) for finding in found] == [
        "task 'a': unknown need: the function 'len' is not a task of this workflow",
        "task 'c': unknown need: the function 'nothing' is several tasks (a, b): name one by its id",
    ]


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> None: ...

    def method(self) -> None: ...


def test_objects_and_methods_can_be_tasks_and_needs() -> None:
    flow, unhashable, owner = Workflow("w"), Unhashable(), Path()
    flow.add("object", unhashable)
    flow.add("method", owner.as_posix)
    flow.add("after", nothing, needs=[unhashable, owner.as_posix])
    assert definition(flow, "after").needs == ("object", "method")
    assert definition(flow, "object").call == ""


def test_a_name_that_is_no_text_is_refused_at_once() -> None:
    with pytest.raises(TypeError):
        Workflow(3)  # type: ignore[arg-type]


# --- settings -----------------------------------------------------------------------------------------------------


def test_settings_may_be_short_or_long() -> None:
    flow = Workflow("w")
    flow.add(
        "short", nothing, retries=1, concurrency="g", approve="ok?", for_each=[1], as_="x", key="x", max_failures=2
    )
    flow.add(
        "long",
        nothing,
        retries={"retries": 1, "backoff_s": 0.5},
        concurrency={"group": "g", "slots": 1},
        approve={"question": "ok?", "by": "agent", "timeout_s": 5},
        for_each={"items": [1], "as": "x", "key": "x", "max_failures": 2},
    )
    flow.add(
        "types",
        nothing,
        retries=Retry(retries=1),
        concurrency=Concurrency(group="g"),
        approve=Approve(question="ok?"),
        for_each=ForEach(items=range(2)),
    )
    short, long, types = (definition(flow, task_id) for task_id in ("short", "long", "types"))
    assert short.for_each == long.for_each == ForEach(items=[1], as_="x", key="x", max_failures=2)
    assert short.concurrency == long.concurrency == types.concurrency
    assert long.retry == Retry(retries=1, backoff_s=0.5)
    assert long.approve == Approve(question="ok?", by="agent", timeout_s=5)
    assert types.for_each == ForEach(items=[0, 1])


def test_settings_that_are_none_are_as_if_not_given() -> None:
    flow = Workflow("w")
    flow.add("a", nothing, timeout_s=None, approve=None, for_each=None, repeat=None, key=None, concurrency=None)
    assert definition(flow, "a") == TaskDef(
        id=TaskId("a"),
        kind="python",
        call=f"{nothing.__module__}:nothing",
        code=definition(flow, "a").code,
    )


def test_effects_default_by_kind() -> None:
    flow = Workflow("w", params={"q": "x"})
    flow.add("python", nothing)
    flow.add("shell", "shell", run=["ls"])
    flow.add("agent", "agent", agent="claude", prompt="${{ params.q }}")
    flow.add("llm", "llm", model="some-model", prompt="p")
    flow.add("approval", "approval", question="?")
    plan = compile_plan(flow)
    effects = {task_id: task.definition.effects for task_id, task in plan.tasks.items()}
    assert effects == {
        "python": ("none",),
        "shell": ("files",),
        "agent": ("files",),
        "llm": ("none",),
        "approval": ("none",),
    }
    assert plan.params == {"q": "x"}, "a reference in a prompt is one like any other"


def test_other_settings_reach_the_definition() -> None:
    flow = Workflow("w")
    flow.add(
        "a",
        "shell",
        run=["make", 3, True],
        output="json",
        env={"CI": 1, "FLAG": False, "NAME": "x"},
        cwd="sub",
        idempotent=True,
        effects=["external", "files"],
        isolation="worktree",
        produces="out.txt",
        description="makes it",
        continue_on_error=True,
        if_=True,
    )
    assert definition(flow, "a") == TaskDef(
        id=TaskId("a"),
        kind="shell",
        run=("make", "3", "true"),
        output="json",
        env={"CI": "1", "FLAG": "false", "NAME": "x"},
        cwd="sub",
        idempotent="yes",
        effects=("files", "external"),
        isolation="worktree",
        produces=("out.txt",),
        description="makes it",
        continue_on_error=True,
        condition="true",
    )


def test_the_time_an_approval_may_take_is_that_of_its_gate() -> None:
    flow = Workflow("w")
    flow.add("a", "approval", question="go?", timeout_s=60)
    flow.add("b", "approval", approve={"question": "go?", "timeout_s": 5}, timeout_s=60)
    assert definition(flow, "a").approve == Approve(question="go?", timeout_s=60)
    assert definition(flow, "b").approve == Approve(question="go?", timeout_s=5)


def test_a_repeat_alone_is_a_task_that_waits_for_its_group() -> None:
    flow = Workflow("w")
    flow.add("draft", nothing)
    flow.add("review", nothing, needs=["draft"])
    flow.add("loop", repeat={"tasks": ["draft", "review"], "until": "tasks.review.output == 'good'", "max": 3})
    loop = definition(flow, "loop")
    assert loop.needs == ("draft", "review")
    assert loop.repeat == Repeat(tasks=("draft", "review"), until="tasks.review.output == 'good'", max=3)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"retries": "two"}, "retries takes a number, or a map, not 'two'"),
        ({"retries": True}, "retries takes"),
        ({"retries": {"retrys": 1}}, "unknown key 'retrys' in retries (did you mean 'retries'?)"),
        ({"retries": {"retries": "x"}}, "retries: Expected `int`"),
        ({"retrys": 1}, "unknown setting 'retrys' (did you mean 'retries'?)"),
        ({"run": "ls"}, "'run' is a setting of shell tasks, not of python ones"),
        ({"timeout_s": "1m"}, "timeout_s takes a number of seconds"),
        ({"timeout_s": True}, "timeout_s takes a number of seconds"),
        ({"needs": 3}, "needs takes an id, a task, or a list of them"),
        ({"needs": [3]}, "needs takes ids or tasks"),
        ({"inputs": [1]}, "inputs takes a map"),
        ({"inputs": {1: 2}}, "with text as keys"),
        ({"env": {"A": None}}, "env A takes text"),
        ({"cwd": 1}, "cwd takes text"),
        ({"if_": 1}, "if takes text"),
        ({"continue_on_error": "yes"}, "continue_on_error is true or false"),
        ({"concurrency": 1}, "concurrency takes a group's name, or a map"),
        ({"idempotent": "maybe"}, "idempotent is true, false or 'keyed'"),
        ({"idempotent": 1}, "idempotent is true, false or 'keyed'"),
        ({"effects": "file"}, "effects takes 'none', 'files', 'external', not 'file' (did you mean 'files'?)"),
        ({"effects": 1}, "effects takes none, files, external, or a list"),
        ({"isolation": "docker"}, "isolation takes 'process', 'worktree'"),
        ({"for_each": 5}, "for_each takes a list, or a reference to one"),
        ({"key": "item"}, "key without for_each"),
        ({"for_each": [1], "as_": 1}, "for_each: Expected `str`"),
        ({"approve": 1}, "approve takes a question, or a map"),
        ({"approve": {"question": "?", "by": "dog"}}, "approve: Invalid enum value 'dog'"),
        ({"repeat": "x"}, "repeat takes a map of tasks, until and max"),
        ({"produces": [1]}, "produces takes a path or a list of paths"),
        ({"description": 1}, "description takes text"),
        ({"call": "m:f"}, "call and a function: give one of them"),
    ],
)
def test_a_setting_that_makes_no_sense_is_told(settings: dict[str, Any], why: str) -> None:
    flow = Workflow("w")
    flow.add("a", nothing, **settings)
    assert why in only_message(flow)


@pytest.mark.parametrize(
    ("work", "settings", "why"),
    [
        ("shel", {}, "not 'shel' (did you mean 'shell'?)"),
        (7, {}, "a task is a function or one of"),
        ("python", {}, "there is nothing to run"),
        (None, {}, "there is nothing to run"),
        ("python", {"call": "json.dumps"}, "call takes 'module:function'"),
        ("shell", {"run": 3}, "run takes a script (text) or a list of words"),
        ("shell", {"run": [None]}, "run takes text"),
        ("shell", {"run": "ls", "output": "xml"}, "output takes 'json'"),
        ("shell", {"run": "ls", "question": "?"}, "'question' is a setting of approval tasks"),
        ("agent", {"agent": 3, "prompt": "x"}, "agent: Expected `str`"),
        ("agent", {"agent": "claude", "prompt": "x", "permissions": "all"}, "permissions is one of read, edit, full"),
        ("agent", {"agent": "claude", "prompt": "x", "allowed_tools": "Bash"}, "allowed_tools takes a list"),
        ("agent", {"agent": "claude", "prompt": "x", "verify": {"run": "a"}}, "[{run: ruff check}, {run: [pytest"),
        ("agent", {"agent": "claude", "prompt": "x", "verify": [["ls", "-l"]]}, "verify takes a command as text"),
        ("agent", {"agent": "claude", "prompt": "x", "verify": [{"cmd": "a"}]}, "not [{'cmd': 'a'}]"),
        (
            "agent",
            {"agent": "claude", "prompt": "x", "verify": ["a b", "c"]},
            "'a b' is no program; several: [{run: a b}",
        ),
        ("agent", {"agent": "claude", "prompt": "x", "sandbox": "none"}, "sandbox takes 'worktree', not 'none'"),
        ("agent", {"agent": "claude", "prompt": "a\0b"}, "prompt holds what neither JSON nor a model can read"),
        ("agent", {"agent": "claude", "prompt": "x", "temperature": 1}, "'temperature' is a setting of llm tasks"),
        ("llm", {"model": "m", "prompt": "x", "budget": {"usd": 1}}, "unknown key 'usd' in budget"),
        ("llm", {"model": "m", "prompt": "x", "budget": "much"}, "budget takes a number"),
    ],
)
def test_what_a_task_does_is_checked(work: Any, settings: dict[str, Any], why: str) -> None:
    flow = Workflow("w")
    flow.add("a", work, **settings)
    assert any(why in finding.message for finding in findings_of(lambda: compile_plan(flow)))


def test_the_program_of_verify_may_be_referred_to() -> None:
    flow = Workflow("w", params={"tool": "pytest"})
    flow.add("a", "agent", agent="claude", prompt="x", verify=["${{ params.tool }}", "-q"])
    assert compile_plan(flow).tasks[TaskId("a")].definition.agent


def test_a_function_can_be_named_by_text() -> None:
    flow = Workflow("w")
    flow.add("a", "python", call="json:dumps", inputs={"obj": [1]})
    assert definition(flow, "a") == TaskDef(id=TaskId("a"), kind="python", call="json:dumps", inputs={"obj": [1]})


# --- settings and parameters of the whole -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"max_concurrency": 0}, "max_concurrency must be 1 or more"),
        ({"max_concurrency": True}, "max_concurrency must be 1 or more"),
        ({"max_concurrency": "4"}, "max_concurrency must be 1 or more"),
        ({"schedule": "layer"}, "schedule is one of layers, ready, not 'layer' (did you mean 'layers'?)"),
        ({"decision_points": "sometimes"}, "decision_points is one of"),
        ({"env": ["A"]}, "env takes a map"),
        ({"env": {"A": []}}, "env A takes text"),
        ({"env": {"A=B": "x"}}, "cannot be the name of a variable"),
        ({"env": {"A": "a\0"}}, "a variable cannot hold NUL"),
        ({"env": {"A": "${{ tasks.a.output }}"}}, "is not known to the whole run"),
        ({"env": {"A": "${{ oops"}}, "env A: expected }}"),
        ({"env": {"A": "${{ params.x }}"}}, "the run's parameter 'x' is missing"),
        ({"secrets": 3}, "secrets takes names"),
        ({"secrets": [3]}, "secrets takes names"),
        ({"params": "url"}, "params takes a map or a list of names"),
        ({"params": ["url"]}, "the run's parameter 'url' is missing"),
        ({"params": {"a b": 1}}, "'a b' cannot be the name of a parameter"),
    ],
)
def test_settings_of_the_workflow_are_checked(settings: dict[str, Any], why: str) -> None:
    assert why in only_message(Workflow("w", **settings))


def test_a_blank_name_is_a_finding() -> None:
    assert only_message(Workflow(" ")) == "the workflow's name is empty"


def test_settings_of_the_workflow_reach_the_plan() -> None:
    flow = Workflow(
        "w",
        max_concurrency=2,
        schedule="ready",
        env={"A": "${{ params.x }}"},
        secrets="TOKEN",
    )
    settings = compile_plan(flow, {"x": 1}).settings
    assert (settings.max_concurrency, settings.schedule) == (2, "ready")
    assert settings.env == {"A": "${{ params.x }}"}
    assert settings.secrets == ("TOKEN",)


def test_declared_parameters_have_defaults_that_a_run_may_replace() -> None:
    flow = Workflow("w", params={"a": 1, "b": 2})
    flow.add("t", lambda a, b: None)
    assert compile_plan(flow, {"b": 3}).params == {"a": 1, "b": 3}


def test_missing_and_unknown_parameters_are_told_once_each() -> None:
    flow = Workflow("w", params={"verbose": False})
    flow.add("a", lambda url: None)
    flow.add("b", lambda url, ctx: None)
    flow.add("c", "shell", run="curl ${{ params.user }}")
    found = findings_of(lambda: compile_plan(flow, {"ulr": "x", "verbos": True}))
    assert [finding.message for finding in found] == [
        "the run's parameter 'url' is missing; tasks 'a', 'b' take it (did you mean 'ulr'?)",
        "the run's parameter 'user' is missing",
        "no task takes the parameter 'ulr' (did you mean 'url'?)",
        "no task takes the parameter 'verbos' (did you mean 'verbose'?)",
    ]
    assert {finding.problem for finding in found} == {"bad argument"}


def test_a_parameter_that_only_a_reference_with_a_default_names_is_optional() -> None:
    flow = Workflow("w")
    flow.add("a", "shell", run="x ${{ params.mode || 'fast' }}")
    assert compile_plan(flow).params == {}
    assert compile_plan(flow, {"mode": "slow"}).params == {"mode": "slow"}


def test_whoever_takes_all_parameters_takes_any() -> None:
    flow = Workflow("w")
    flow.add("a", lambda all: None, inputs={"all": "${{ params }}"})
    assert compile_plan(flow, {"anything": 1}).params == {"anything": 1}


def test_parameters_are_kept_in_stored_form() -> None:
    flow = Workflow("w", params={"raw": b"x"})
    assert compile_plan(flow).params == {"raw": {"$agentos": "bytes", "v": "eA=="}}


def test_a_parameter_without_a_stored_form_is_a_finding() -> None:
    flow = Workflow("w", params={"good": 1, "bad": [object()]})
    assert "parameter 'bad': the value at $[0] cannot be stored" in only_message(flow)


def test_a_name_that_is_both_parameter_and_task_is_an_error() -> None:
    flow = Workflow("w", params={"fetch": 1})
    flow.add("fetch", nothing)
    flow.add("load", nothing)
    flow.add("use", lambda fetch: None)
    assert problems(flow, {"load": 2}) == [
        ("parameter and task", "fetch"),
        ("parameter and task", "load"),
    ]


# --- what each parameter gets -------------------------------------------------------------------------------------


def test_each_parameter_gets_its_value_by_its_name() -> None:
    flow = Workflow("w", params={"declared": 1})
    flow.add("fetch", nothing)

    def use(
        ctx: object, fetch: object, given: object, item: object, declared: int, asked: str, optional: int = 7
    ) -> None: ...

    flow.add("use", use, inputs={"given": [1, "${{ params.declared }}"]}, for_each=[1, 2])
    used = definition(flow, "use", asked="x")
    assert used.inputs == {
        "fetch": '${{ tasks["fetch"].output }}',
        "given": [1, "${{ params.declared }}"],
        "item": "${{ item }}",
        "declared": "${{ params.declared }}",
        "asked": "${{ params.asked }}",
    }
    assert used.needs == ("fetch",)


def test_a_parameter_with_a_default_takes_the_runs_value_where_one_is_given() -> None:
    flow = Workflow("w")
    flow.add("a", lambda size=3: None)
    assert definition(flow, "a").inputs == {}
    assert definition(flow, "a", size=4).inputs == {"size": "${{ params.size }}"}


def test_keyword_arguments_take_the_inputs_nobody_is_named_like() -> None:
    flow = Workflow("w")
    flow.add("a", lambda x, **rest: None, inputs={"x": 1, "y": 2})
    assert definition(flow, "a").inputs == {"x": 1, "y": 2}


def test_inputs_are_kept_in_stored_form() -> None:
    flow = Workflow("w")
    flow.add("a", lambda x: None, inputs={"x": {"when": b"1"}})
    assert definition(flow, "a").inputs == {"x": {"when": {"$agentos": "bytes", "v": "MQ=="}}}


@pytest.mark.parametrize(
    ("function", "inputs", "why"),
    [
        (lambda *args: None, {}, "*args cannot be bound"),
        (eval("lambda a, /: None"), {}, "'a' is positional-only"),
        (lambda a: None, {"a": 1, "bb": 2}, "the function takes no 'bb'"),
        (lambda alpha: None, {"alpha": 1, "alhpa": 2}, "(did you mean 'alpha'?)"),
        (lambda ctx: None, {"ctx": 1}, "'ctx' is the attempt's context"),
        (lambda a: None, {"a": object()}, "a: the value at $ cannot be stored"),
    ],
)
def test_arguments_that_cannot_be_bound_are_told(function: Any, inputs: dict[str, Any], why: str) -> None:
    flow = Workflow("w")
    flow.add("a", function, inputs=inputs)
    found = findings_of(lambda: compile_plan(flow))
    assert any(why in finding.message and finding.problem == "bad argument" for finding in found), found


def test_a_positional_only_parameter_with_a_default_keeps_it() -> None:
    flow = Workflow("w")
    flow.add("a", eval("lambda a=1, /, b=2: None"))
    assert definition(flow, "a").inputs == {}


def test_a_wrapper_shows_the_parameters_of_what_it_wraps() -> None:
    def wrapped(x: int) -> int:
        return x

    @functools.wraps(wrapped)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return wrapped(*args, **kwargs)

    flow = Workflow("w")
    flow.add("a", wrapper)
    assert definition(flow, "a", x=1).inputs == {"x": "${{ params.x }}"}


def test_functions_that_a_loop_makes_are_bound_one_by_one() -> None:
    flow = Workflow("w")
    for number in range(3):
        flow.add(f"t{number}", lambda x, y=number: (x, y), inputs={"x": number})
    flow.add("other", lambda x: x, inputs={"x": 9})
    assert [definition(flow, f"t{number}").inputs for number in range(3)] == [{"x": 0}, {"x": 1}, {"x": 2}]
    assert definition(flow, "t0").code == definition(flow, "t1").code != definition(flow, "other").code


def test_a_function_that_hides_its_parameters_takes_what_it_is_given() -> None:
    flow = Workflow("w")
    flow.add("a", dict, inputs={"x": 1})
    assert definition(flow, "a").inputs == {"x": 1}


def test_the_variable_of_a_fan_out_may_not_be_named_like_a_task_that_is_meant_too() -> None:
    flow = Workflow("w")
    flow.add("item", nothing)
    flow.add("a", lambda item: None, for_each=[1])
    flow.add("b", nothing, for_each=[1])
    assert problems(flow) == [("bad argument", "a")]


def test_a_parameter_named_like_its_own_task_is_a_self_loop() -> None:
    flow = Workflow("w")
    flow.add("fetch", lambda fetch: None)
    assert problems(flow) == [("self-loop", "fetch")]


# --- where it was defined -----------------------------------------------------------------------------------------


class Special(Workflow):
    def __init__(self, name: str) -> None:
        super().__init__(name, max_concurrency=1)


def test_a_workflow_knows_the_file_it_was_defined_in() -> None:
    assert Workflow("w").source == WorkflowSource(file=__file__, module=__name__)
    assert Special("w").source == WorkflowSource(file=__file__, module=__name__)


def test_a_script_is_known_by_the_name_of_its_file(tmp_path: Path) -> None:
    script = tmp_path / "my_flow.py"
    script.write_text(
        "from agentos.dag.define.workflow import Workflow\nflow = Workflow('w')\n@flow.task\ndef work(): ...\n",
        encoding="utf-8",
    )
    flow = runpy.run_path(str(script), run_name="__main__")["flow"]
    assert flow.source == WorkflowSource(file=str(script), module="my_flow")


def test_a_module_run_by_name_is_known_by_it(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "flow.py").write_text(
        "from agentos.dag.define.workflow import Workflow\n"
        "from agentos.dag.plan.plan import compile_plan\n"
        "flow = Workflow('w')\n"
        "@flow.task\n"
        "def work(): ...\n"
        "print(flow.source.module, compile_plan(flow).tasks['work'].definition.call)\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pack.flow"],
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "pack.flow pack.flow:work\n"


def test_a_workflow_typed_in_has_no_file() -> None:
    names: dict[str, Any] = {"__name__": "__main__", "Workflow": Workflow}
    exec("flow = Workflow('w')\n@flow.task\ndef work(): ...", names)
    assert names["flow"].source is None
    assert definition(names["flow"], "work").call == ""


@pytest.mark.parametrize("points", ["per_layer", "on_error"])
def test_decision_points_stand_between_layers_and_need_them(points: str) -> None:
    flow = Workflow("w", schedule="ready", decision_points=points)
    flow.add("a", lambda: None)

    with pytest.raises(WorkflowDefinitionError, match="they need schedule 'layers'"):
        compile_plan(flow)
