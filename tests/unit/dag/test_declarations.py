"""Parameters with types, descriptions and choices."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import msgspec
import pytest

from agentos.dag.define.run_settings import is_declaration
from agentos.dag.define.workflow import Workflow
from agentos.dag.define.yaml_file import read_workflow
from agentos.dag.plan.plan import Plan, compile_plan
from agentos.exceptions import WorkflowDefinitionError


def planned(params: Any, given: dict[str, Any] | None = None) -> Plan:
    flow = Workflow("w", params=params)
    flow.add("t", "shell", run=["echo", "${{ params }}"])
    return compile_plan(flow, given)


def told(params: Any, given: dict[str, Any] | None = None) -> list[str]:
    with pytest.raises(WorkflowDefinitionError) as caught:
        planned(params, given)
    return [str(finding) for finding in caught.value.findings]


@pytest.mark.parametrize(
    "default",
    [
        3, None, "text", [1], {}, {"x": 1}, {"default": 3}, {"type": "nginx", "workers": 4}, {"help": "me", "x": 1},
        {"type": "object", "properties": {"a": {"type": "string"}}}, {"type": "object", "description": "a JSON Schema"},
    ],
)  # fmt: skip
def test_what_was_a_default_before_there_were_declarations_is_one_still(default: Any) -> None:
    assert not is_declaration(default)
    assert planned({"p": default}).params == {"p": default}


def test_a_declaration_leaves_plan_and_fingerprint_as_a_default_alone_makes_them() -> None:
    plain, declared = planned({"p": 3}), planned({"p": {"type": "integer", "default": 3, "help": "How many."}})
    assert (declared.params, declared.fingerprint) == (plain.params, plain.fingerprint)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("string", ["", "3", "env:HOME"], [3, 1.5, True, None, ["x"]]),
        ("integer", [3, -1, 0], ["3", 3.0, True, None]),
        ("number", [3, 0.5], ["3", False, None]),
        ("boolean", [True, False], [1, "true", "yes", None]),
        ("list", [[], [1], (1, 2)], ["[]", {}, None]),
        ("object", [{}, {"a": 1}], [[], "x", None]),
    ],
)
def test_values_have_the_type_that_is_declared(kind: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert "p" in planned({"p": {"type": kind}}, {"p": value}).params
        assert "p" in planned({"p": {"type": kind, "default": value}}).params
    for value in bad:
        [message] = told({"p": {"type": kind}}, {"p": value})
        assert "the parameter 'p' takes a" in message
        assert f"not {value!r}" in message
        if value is not None:
            [message] = told({"p": {"type": kind, "default": value}})
            assert "the parameter 'p': the default does not fit" in message


def test_null_is_for_a_parameter_whose_default_it_is() -> None:
    limit = {"limit": {"type": "integer", "default": None}}
    assert planned(limit).params == {"limit": None}
    assert planned(limit, {"limit": None}).params == {"limit": None}
    assert planned(limit, {"limit": 3}).params == {"limit": 3}


def test_choices_are_all_that_it_takes() -> None:
    channel = {"channel": {"default": "stable", "choices": ["stable", "beta", 1]}}
    assert planned(channel, {"channel": "beta"}).params == {"channel": "beta"}
    assert told(channel, {"channel": "x"}) == [
        "bad argument: the parameter 'channel' takes one of 'stable', 'beta', 1, not 'x'"
    ]
    assert told(channel, {"channel": True}), "which to Python is 1"


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"type": "int"}, "type is one of string, integer, number, boolean, list, object, not 'int' (did you mean"),
        ({"type": "nginx"}, "type is one of"),
        ({"type": ["string"]}, "type is one of"),
        ({"help": 3}, "help takes text, not 3"),
        ({"choices": []}, "choices takes a list of values, not []"),
        ({"choices": "ab"}, "choices takes a list of values, not 'ab'"),
        ({"type": "integer", "choices": [1, "2"]}, "a choice takes an integer, not '2'"),
        ({"choices": ["a"], "default": "b"}, "the default does not fit: it takes one of 'a', not 'b'"),
        ({"type": "string", "default": 1.1}, "it takes a string, not 1.1: write it in quotes"),
        ({"type": "integer", "defualt": 3}, "and no 'defualt' (did you mean 'default'?); a map that is the default"),
        ({"type": "integer", "default": 3, "description": "x"}, "and no 'description'; a map that is the default"),
    ],
)
def test_what_is_wrong_with_a_declaration_is_told(declared: dict[str, Any], why: str) -> None:
    assert any(why in message for message in told({"p": declared}, {"p": 1}))


def test_a_map_that_looks_like_a_declaration_can_be_a_default_all_the_same() -> None:
    assert planned({"server": {"type": "object", "default": {"type": "nginx"}}}).params == {"server": {"type": "nginx"}}


def test_one_without_a_default_must_be_given() -> None:
    for declared in ({"type": "integer"}, {"help": "x"}, {"type": "integer", "default": msgspec.UNSET}):
        assert told({"p": declared}) == ["bad argument: the run's parameter 'p' is missing"]


def test_in_a_file_the_line_is_named() -> None:
    text = dedent("""\
        params:
          port: {type: integer, default: 8080, help: The port.}
          version: {type: string, default: }
          limit: {type: integer, default: null}
        tasks:
          t: {run: "echo ${{ params }}"}
        """)

    def plan(given: dict[str, Any]) -> Plan:
        return compile_plan(read_workflow(text.encode(), file="x.yaml", name="x"), given)

    assert plan({"version": "1.10"}).params == {"port": 8080, "limit": None, "version": "1.10"}
    with pytest.raises(WorkflowDefinitionError) as caught:
        plan({"port": "abc"})
    assert [str(finding) for finding in caught.value.findings] == [
        "x.yaml:2:3: params: the parameter 'port' takes an integer, not 'abc'",
        "x.yaml:3:3: params: the run's parameter 'version' is missing",
    ]


def test_what_is_not_known_yet_is_null_whatever_its_type() -> None:
    flow = Workflow("w", params={"port": {"type": "integer"}})
    flow.add("t", "shell", run=["echo", "${{ params.port }}"])
    assert compile_plan(flow, unknown=["port"]).params == {"port": None}
