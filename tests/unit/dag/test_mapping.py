"""Tasks in the mapping form of workflow files."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.dag.define.mapping import task_from_mapping, tasks_from_mappings
from agentos.dag.define.model_calls import NO_BUDGET, AgentWork, Budget, LlmWork
from agentos.dag.define.settings import SETTINGS, WORK
from agentos.dag.define.task import Approve, Concurrency, ForEach, Repeat, Retry, TaskDef, from_stored, to_stored
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.growth import with_tasks
from agentos.dag.plan.plan import compile_plan
from agentos.ids import TaskId
from tests.unit.dag.support import findings_of

RELEASE: dict[str, dict[str, Any]] = {
    "lint": {"run": "ruff check ${{ params.target }}", "effects": "none"},
    "notes": {"needs": "lint", "python": "mypkg.notes:write", "inputs": {"log": "${{ tasks.lint.output.stdout }}"}},
    "review": {
        "needs": ["notes"],
        "agent": "claude",
        "prompt": "Review ${{ tasks.notes.output }}",
        "permissions": "read",
    },
    "each": {
        "needs": "notes",
        "for_each": "${{ tasks.notes.output.files }}",
        "as": "file",
        "key": "file",
        "run": ["wc", "-l", "${{ file }}"],
        "effects": "none",
    },
    "ship": {
        "needs": ["review", "each"],
        "approve": "Ship it?",
        "run": "./ship.sh",
        "effects": ["files", "external"],
        "idempotent": "keyed",
        "env": {"CHANNEL": "stable"},
    },
}


def test_the_example_of_the_documentation_is_read() -> None:
    lint, notes, review, each, ship = tasks_from_mappings(RELEASE)
    assert lint == TaskDef(id=TaskId("lint"), kind="shell", run="ruff check ${{ params.target }}")
    assert (notes.kind, notes.call, notes.needs) == ("python", "mypkg.notes:write", ("lint",))
    asked = AgentWork(agent="claude", prompt="Review ${{ tasks.notes.output }}", permissions="read")
    assert (review.agent, review.effects) == (asked, ("files",))
    assert each.for_each == ForEach(items="${{ tasks.notes.output.files }}", as_="file", key="file")
    assert (ship.approve, ship.idempotent, ship.env) == (Approve(question="Ship it?"), "keyed", {"CHANNEL": "stable"})


def test_what_is_read_can_be_planned() -> None:
    plan = compile_plan(Workflow("release", params={"target": "src"}))
    grown = with_tasks(plan, tasks_from_mappings(RELEASE), origin="inject")
    # Nothing was known of the parameter when no task took it, but it was declared.
    assert grown.layers == (("lint",), ("notes",), ("review", "each"), ("ship",))


def test_an_approval_and_a_repeat_are_tasks_too() -> None:
    ask = task_from_mapping("ask", {"approval": {"question": "Go?", "timeout_s": 5}})
    loop = task_from_mapping("loop", {"repeat": {"tasks": ["a"], "until": "true", "max": 2}})
    assert ask == TaskDef(id=TaskId("ask"), kind="approval", approve=Approve(question="Go?", timeout_s=5))
    assert loop == TaskDef(id=TaskId("loop"), kind="python", repeat=Repeat(tasks=("a",), until="true", max=2))


@pytest.mark.parametrize(
    ("mapping", "why"),
    [
        ({}, "nothing says what it does: give one of run, python, agent, llm, approval"),
        ({"runn": "ls"}, "(did you mean 'run'?)"),
        ({"needs": "a"}, "nothing says what it does"),
        ("ls", "a task is a map of settings, not 'ls'"),
        ({"run": "ls", "python": "m:f"}, "run and python: a task does one of them"),
        ({"run": "ls", "timeot_s": 3}, "unknown setting 'timeot_s' (did you mean 'timeout_s'?)"),
        ({"llm": "m", "model": "n", "prompt": "x"}, "the model stands behind llm"),
        ({"run": "ls", "prompt": "x"}, "'prompt' is a setting of agent and llm tasks"),
        ({"run": "ls", "if_": "true"}, "unknown setting 'if_'"),
        ({"python": "m:f", "call": "m:g"}, "unknown setting 'call'"),
        ({"python": "m.f"}, "python takes 'module:function'"),
        ({"run": "ls", "needs": [len]}, "needs takes ids"),
        ({"run": "ls", "retries": "x"}, "retries takes a number"),
        ({"approval": 7}, "approve takes a question, or a map"),
    ],
)
def test_a_mapping_that_is_no_task_is_told(mapping: Any, why: str) -> None:
    found = findings_of(lambda: task_from_mapping("a", mapping))
    assert any(why in finding.message and finding.task_id == "a" for finding in found), found


def test_findings_of_many_tasks_come_together() -> None:
    found = findings_of(lambda: tasks_from_mappings({"a": {}, "b": {"run": "ls"}, "": {"run": "ls"}}))
    assert [(finding.problem, finding.task_id) for finding in found] == [("bad setting", "a"), ("bad id", "")]


texts = st.text(min_size=1, max_size=5)
sayable = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
work = st.one_of(
    st.builds(
        lambda run: {"kind": "shell", "run": run, "effects": ("files",)}, texts | st.lists(texts, max_size=3).map(tuple)
    ),
    st.just({"kind": "python", "call": "some.module:function"}),
    st.builds(
        lambda work, budget: {"kind": "agent", "agent": work, "budget": budget, "effects": ("files",)},
        st.builds(AgentWork, agent=st.just("codex"), prompt=sayable, verify=sayable | st.lists(sayable).map(tuple)),
        st.sampled_from((NO_BUDGET, Budget(cost_usd=2.5), Budget(tokens=7))),
    ),
    st.builds(
        lambda work: {"kind": "llm", "llm": work},
        st.builds(LlmWork, model=sayable, prompt=sayable, temperature=st.none() | st.floats(0, 2)),
    ),
    st.builds(lambda question: {"kind": "approval", "approve": Approve(question=question, by="agent")}, texts),
    st.just({"kind": "python", "repeat": Repeat(tasks=("a",), until="true", max=2)}),
)
settings = st.fixed_dictionaries(
    {},
    optional={
        "needs": st.lists(texts, max_size=3).map(tuple),
        "env": st.dictionaries(texts, texts, max_size=2),
        "cwd": texts,
        "timeout_s": st.floats(0.1, 100),
        "retry": st.builds(Retry, retries=st.integers(0, 3), backoff_s=st.floats(0, 5)),
        "condition": texts,
        "continue_on_error": st.booleans(),
        "concurrency": st.builds(Concurrency, group=texts, slots=st.integers(1, 3)),
        "idempotent": st.sampled_from(["yes", "keyed", "no"]),
        "effects": st.sampled_from([("none",), ("files",), ("files", "external")]),
        "isolation": st.sampled_from(["", "process", "worktree"]),
        "for_each": st.builds(
            ForEach, items=st.lists(st.integers() | texts.map(to_stored)), as_=texts, key=texts | st.none()
        ),
        "produces": st.lists(texts, max_size=2).map(tuple),
        "description": texts,
    },
)


def written_out(definition: TaskDef) -> dict[str, Any]:
    """The task as somebody would write it, by the table of settings alone."""
    general = {name: one.field or name for name, one in SETTINGS.items() if one.read is not None and not one.kinds}
    mapping = {
        name: msgspec.to_builtins(value)
        for name, field in general.items()
        if (value := getattr(definition, field)) != getattr(TaskDef(id=TaskId("a"), kind="python"), field)
        or field == "effects"
    }
    if definition.for_each is not None:
        mapping["for_each"]["items"] = from_stored(definition.for_each.items)
    key = {kind: key for key, (kind, _) in WORK.items()}[definition.kind]
    if (work := definition.agent or definition.llm) is not None:
        parts = msgspec.to_builtins(work)
        mapping |= {key: parts.pop(WORK[key][1]), **parts, "budget": msgspec.to_builtins(definition.budget)}
    elif definition.kind == "approval":
        mapping[key] = mapping.pop("approve")
    elif definition.kind == "shell" or definition.call:
        mapping[key] = definition.run if definition.kind == "shell" else definition.call
    return mapping


@given(work, settings, st.none() | texts)
def test_a_task_written_out_reads_back(doing: dict[str, Any], more: dict[str, Any], question: str | None) -> None:
    fields = {**more, **doing} if doing["kind"] == "approval" else {**doing, **more}
    if question is not None and doing["kind"] != "approval":
        fields["approve"] = Approve(question=question)
    if doing["kind"] == "approval":
        fields.pop("timeout_s", None)  # an approval hands its time on to its gate
    definition = TaskDef(id=TaskId("a"), **fields)
    assert task_from_mapping("a", written_out(definition)) == definition


def test_values_without_a_json_form_are_kept_as_themselves() -> None:
    definition = task_from_mapping("a", {"python": "m:f", "inputs": {"x": b"\0"}, "for_each": [b"\1", "\0"]})
    assert from_stored(definition.inputs) == {"x": b"\0"}
    assert definition.for_each is not None
    assert from_stored(definition.for_each.items) == [b"\1", "\0"]
