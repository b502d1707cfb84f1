from __future__ import annotations

from collections import UserDict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.dag.language.references import (
    Reference,
    as_text,
    format_path,
    output_of,
    parse_text,
    references_in,
    resolve,
    whole_reference,
    without_references,
)
from agentos.exceptions import EvaluationError, ExpressionError

SCOPE: dict[str, Any] = {
    "params": {"x": 3, "name": "Ada", "list": [1, {"k": None}], "with space": True},
    "tasks": {"build": {"output": {"files": ["a", "b"]}, "status": "complete", "error": None}},
    "item": {"name": "i"},
}


# --- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("${{ params.x }}", ("params", "x")),
        ("${{params.x}}", ("params", "x")),
        ("${{ a.b[0]['x y'] }}", ("a", "b", 0, "x y")),
        ('${{ tasks["each[3]"].output }}', ("tasks", "each[3]", "output")),
        ("${{ tasks.build-app.output }}", ("tasks", "build-app", "output")),
        ("${{\n  tasks . a [ 12 ] }}", ("tasks", "a", 12)),
        ("${{ größe.länge }}", ("größe", "länge")),
        ('${{ a["}}"] }}', ("a", "}}")),
        ("${{ a['it\\'s \"so\"'] }}", ("a", 'it\'s "so"')),
        ('${{ a["it\\\'s \\u00e9\\n"] }}', ("a", "it's é\n")),
    ],
)
def test_a_path_has_names_indexes_and_quoted_keys(text: str, path: tuple[str | int, ...]) -> None:
    assert references_in(text) == (Reference(path),)


@pytest.mark.parametrize(
    ("literal", "value"),
    [("'text'", "text"), ('"t"', "t"), ("3", 3), ("-1.5e2", -150.0), ("007", 7), ("true", True), ("false", False)],
)
def test_a_default_is_a_literal(literal: str, value: object) -> None:
    assert resolve(f"${{{{ params.absent || {literal} }}}}", SCOPE) == value


def test_null_is_a_default_like_any_other() -> None:
    assert resolve("${{ params.absent || null }}", SCOPE) is None


@pytest.mark.parametrize(
    ("text", "position", "why"),
    [
        ("${{ }}", 4, "expected a name"),
        ("a ${{ params.x", 14, "expected }}, found the end"),
        ("${{ params.0 }}", 11, "an index is written [0]"),
        ("${{ a[-1] }}", 6, "expected an index"),
        ("${{ a[1.5] }}", 6, "expected an index"),
        ("${{ a[b] }}", 6, "expected an index (0, 1, …) or a quoted text"),
        ("${{ a[0 }}", 8, "expected ]"),
        ("${{ a b }}", 6, "expected }}, found 'b'"),
        ("${{ a || b }}", 9, "expected a quoted text, a number"),
        ("${{ a ? b }}", 6, "cannot read '?'"),
        ("${{ a['\\q'] }}", 6, "bad escape"),
        ("${{ a || " + "9" * 5000 + " }}", 8, "too many digits"),
        ("${{ 'a' }}", 4, "expected a name"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(text: str, position: int, why: str) -> None:
    with pytest.raises(ExpressionError, match="at character") as caught:
        references_in(text)
    assert caught.value.position == position
    assert why in caught.value.message


def test_a_long_text_is_shown_around_the_place() -> None:
    with pytest.raises(ExpressionError) as caught:
        references_in("x" * 200 + "${{ ! }}" + "y" * 200)
    assert "${{ ! }}" in caught.value.message
    assert len(caught.value.message) < 200


def test_a_doubled_dollar_is_a_plain_one() -> None:
    assert resolve("$${{ params.x }} is ${{ params.x }}", SCOPE) == "${{ params.x }} is 3"
    assert resolve("$$${{ a }}", SCOPE) == "$${{ a }}"
    assert references_in("$${{ not read at all") == ()


def test_references_are_found_in_lists_and_maps_but_not_in_keys() -> None:
    value = {"${{ a }}": ["${{ b }}", {"c": ("${{ c }}", 1)}], "n": None}
    assert [reference.root for reference in references_in(value)] == ["b", "c"]


def test_a_reference_knows_the_task_it_refers_to() -> None:
    assert Reference(("tasks", "a", "output")).task == "a"
    assert Reference(("tasks",)).task is None
    assert Reference(("tasks", 0)).task is None
    assert Reference(("params", "a")).task is None


def test_only_a_text_that_is_one_reference_is_a_whole_one() -> None:
    assert whole_reference("${{ a }}") == Reference(("a",))
    assert whole_reference("${{ a }} ") is None
    assert whole_reference("$${{ a }}") is None
    assert whole_reference(["${{ a }}"]) is None


names = st.text(min_size=1, max_size=8)
paths = st.tuples(
    st.from_regex(r"[^\W\d][\w-]{0,5}", fullmatch=True), st.lists(names | st.integers(0, 10**6), max_size=4)
)
literals = (
    names | st.integers(-(10**9), 10**9) | st.booleans() | st.none() | st.floats(-1e9, 1e9).map(lambda f: round(f, 3))
)


@given(paths, literals)
def test_a_reference_written_out_reads_back(path: tuple[str, list[str | int]], default: object) -> None:
    for reference in (Reference((path[0], *path[1])), Reference((path[0], *path[1]), default)):
        assert parse_text(str(reference)) == (reference,)
        assert references_in(f"before {reference} after") == (reference,)


@given(st.text(max_size=20) | st.text(alphabet="${}x", max_size=20))
def test_any_text_survives_when_its_openings_are_escaped(text: str) -> None:
    assert resolve(without_references(text), {}) == text


@given(st.text(min_size=1, max_size=20).filter(lambda text: "\n" not in text))
def test_the_output_of_any_task_can_be_referred_to(task_id: str) -> None:
    assert references_in(output_of(task_id)) == (Reference(("tasks", task_id, "output")),)


# --- looking up ---------------------------------------------------------------------------------------------------


def test_a_text_that_is_one_reference_keeps_the_type() -> None:
    assert resolve("${{ params.x }}", SCOPE) == 3
    assert resolve("${{ params.list[1] }}", SCOPE) == {"k": None}
    assert resolve('${{ params["with space"] }}', SCOPE) is True


def test_inside_a_text_values_become_text() -> None:
    assert resolve("n=${{ params.x }} ${{ params.name }} ${{ params.list }}", SCOPE) == 'n=3 Ada [1,{"k":null}]'


def test_lists_and_maps_are_walked_and_kept_in_kind() -> None:
    value = {"a": ["${{ params.x }}", ("${{ params.name }}",)], "b": 1}
    assert resolve(value, SCOPE) == {"a": [3, ("Ada",)], "b": 1}


def test_mappings_of_any_kind_are_looked_into() -> None:
    assert resolve("${{ tasks.a.output }}", {"tasks": UserDict(a={"output": 1})}) == 1


def test_attributes_are_never_looked_at() -> None:
    for path in ("params.keys", "params.x.real", "params.name.upper", "params.__class__"):
        with pytest.raises(EvaluationError):
            resolve(f"${{{{ {path} }}}}", SCOPE)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere", "nothing is called 'nowhere' here"),
        ("params.y", "params has no 'y' (it has x, name, list, with space)"),
        ("params.list[7]", "params.list has 2 elements, none at [7]"),
        ("params.list.k", "params.list is a list, which has no 'k'"),
        ("params.x.y", "params.x is a int, which has no parts"),
        ("params.name[0]", "params.name is a str, which has no parts"),
        ("tasks.build.error.text", "tasks.build.error is null, which has no parts"),
        ("params[0]", "params has no 0"),
    ],
)
def test_a_missing_path_is_an_error_that_says_where(path: str, why: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        resolve(f"${{{{ {path} }}}}", SCOPE)
    assert f"`{path}`: {why}" in caught.value.message


def test_an_empty_or_large_map_is_told_in_short() -> None:
    with pytest.raises(EvaluationError, match="it is empty"):
        resolve("${{ params.a }}", {"params": {}})
    with pytest.raises(EvaluationError, match="k4, …"):
        resolve("${{ params.a }}", {"params": {f"k{index}": 0 for index in range(10)}})


def test_a_default_stands_in_for_a_missing_path_only() -> None:
    assert resolve("${{ tasks.build.error || 'none' }}", SCOPE) is None
    assert resolve("${{ tasks.build.error.text || 'none' }}", SCOPE) == "none"


def test_what_cannot_be_read_fails_the_task_when_it_was_never_checked() -> None:
    with pytest.raises(EvaluationError):
        resolve("${{ oops", {})


def test_values_json_writes_as_text_stand_without_quotes() -> None:
    assert as_text(datetime(2026, 1, 2, tzinfo=UTC)) == "2026-01-02T00:00:00Z"
    assert as_text(Decimal("1.50")) == "1.50"
    assert as_text({"a": Decimal("1.50")}) == '{"a":"1.50"}'
    assert as_text(float("nan")) == "NaN"
    assert as_text(True) == "true"
    assert as_text("ü\ud800") == "ü\ud800"


def test_a_value_with_no_text_is_an_evaluation_error() -> None:
    with pytest.raises(EvaluationError):
        as_text(object())


def test_paths_are_shown_as_typed() -> None:
    assert format_path(("tasks", "a b", "output", 0, "x")) == 'tasks["a b"].output[0].x'
