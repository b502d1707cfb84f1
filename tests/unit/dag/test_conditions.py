from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.dag.language.conditions import evaluate, parse_condition
from agentos.dag.language.references import Reference
from agentos.exceptions import EvaluationError, ExpressionError

SCOPE: dict[str, Any] = {
    "params": {"n": 3, "s": "b", "t": True, "nothing": None, "list": [1, 2], "map": {"a": 1}, "empty": []},
    "tasks": {"a": {"output": {"x": 1}, "status": "complete"}},
}


def holds(text: str, *, succeeded: bool = True, failed: bool = False, scope: dict[str, Any] | None = None) -> bool:
    return evaluate(parse_condition(text), scope or SCOPE, succeeded=succeeded, failed=failed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True),
        ("false or true", True),
        ("true and false", False),
        ("not false", True),
        ("not not true", True),
        ("not true or true", True),
        ("not (true or true)", False),
        ("true or false and false", True),
        ("(true or false) and false", False),
        ("params.n == 3", True),
        ("params.n == 3.0", True),
        ("params.n != 3", False),
        ("params.n >= 3 and params.n <= 3", True),
        ("params.n > 3 or params.n < 3", False),
        ("params.s > 'a'", True),
        ("not params.n == 4", True),
        ("${{ params.n }} == 3", True),
        ("${{ params.n == 3 }}", True),
        ("${{ params.absent || 5 }} == 5", True),
        ("${{ params.absent.deeper || 'x' }} == 'x'", True),
        ('tasks["a"].output["x"] == 1', True),
        ("tasks.a.status == 'complete'", True),
        ("-1 < 0", True),
    ],
)
def test_conditions_mean_what_they_say(text: str, expected: bool) -> None:
    assert holds(text) is expected


@pytest.mark.parametrize("text", ["null", "0", "''", "params.empty", "params.nothing", "0.0", "false"])
def test_what_is_empty_counts_as_false(text: str) -> None:
    assert not holds(text)


@pytest.mark.parametrize("text", ["1", "'0'", "'false'", "params.list", "params.map", "-1"])
def test_everything_else_counts_as_true(text: str) -> None:
    assert holds(text)


@pytest.mark.parametrize(
    "text",
    ["1 == '1'", "1 == true", "0 == false", "null == 0", "'' == null", "params.list == params.map", "params.t == 1"],
)
def test_values_of_different_types_differ(text: str) -> None:
    assert not holds(text)
    assert holds(text.replace("==", "!="))


def test_lists_and_maps_are_compared_part_by_part() -> None:
    scope = {"params": {"a": [1, {"k": True}], "b": (1, {"k": True}), "c": [1, {"k": 1}], "d": {"k": 1}, "e": {"j": 1}}}
    assert holds("params.a == params.b", scope=scope)
    assert not holds("params.a == params.c", scope=scope)
    assert not holds("params.d == params.e", scope=scope)


@pytest.mark.parametrize("text", ["1 < 'a'", "null < 1", "true < false", "params.list < params.list", "'a' >= 1"])
def test_an_order_across_types_is_an_error(text: str) -> None:
    with pytest.raises(EvaluationError, match="have an order"):
        holds(text)


def test_dates_and_decimals_have_an_order_within_their_kind() -> None:
    scope = {
        "params": {
            "d1": date(2026, 1, 1),
            "d2": date(2026, 1, 2),
            "now": datetime(2026, 1, 1, tzinfo=UTC),
            "naive": datetime(2026, 1, 1),  # noqa: DTZ001
            "t1": time(1),
            "t2": time(2),
            "short": timedelta(1),
            "long": timedelta(2),
            "dec": Decimal("1.5"),
            "raw": b"x",
        }
    }
    for smaller, larger in (("d1", "d2"), ("t1", "t2"), ("short", "long")):
        assert holds(f"params.{smaller} < params.{larger}", scope=scope)
    assert holds("params.dec > 1 and params.dec == 1.5", scope=scope)
    assert holds("params.raw == params.raw", scope=scope)
    for text in ("params.d1 < params.now", "params.naive < params.now", "params.raw < params.raw"):
        with pytest.raises(EvaluationError):
            holds(text, scope=scope)


def test_a_missing_path_is_an_error_even_where_and_would_not_matter() -> None:
    with pytest.raises(EvaluationError):
        holds("params.absent == 1")
    assert not holds("false and params.absent")
    assert holds("true or params.absent")


def test_without_a_status_function_success_is_meant() -> None:
    assert not holds("true", succeeded=False)
    assert not holds("params.absent", succeeded=False)
    assert holds("always() and true", succeeded=False)


def test_status_functions_say_how_the_needs_ended() -> None:
    assert holds("success()")
    assert not holds("success()", succeeded=False)
    assert holds("failure()", succeeded=False, failed=True)
    assert not holds("failure()", succeeded=False)
    assert holds("${{ always() }}", succeeded=False, failed=True)
    assert holds("failure() or tasks.a.output.x == 1", succeeded=False)


def test_a_condition_knows_what_it_refers_to() -> None:
    condition = parse_condition("not (tasks.a.output == 1 or ${{ params.x || 2 }} > 1) and always()")
    assert condition.references == (Reference(("tasks", "a", "output")), Reference(("params", "x"), 2))
    assert condition.names_status
    assert not parse_condition("params.success == 1").names_status


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected a path"),
        ("a &&", "(write `and`)"),
        ("a || b", "(write `or`)"),
        ("!a", "(write `not`)"),
        ("a = b", "(write `==`)"),
        ("a ==", "expected a path, a literal"),
        ("and", "expected a path"),
        ("exit()", "expected success(), failure() or always()"),
        ("success(1)", "expected )"),
        ("(a", "expected )"),
        ("a)", "expected and, or"),
        ("a < b < c", "expected and, or"),
        ("${{ a == 1 || 2 }}", "expected }}"),
        ("a # b", "cannot read '#'"),
        ("(" * 60 + "a" + ")" * 60, "too many parentheses"),
        ("a.b c", "expected and, or"),
    ],
)
def test_what_is_no_condition_is_told(text: str, why: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_condition(text)
    assert why in caught.value.message


def test_many_negations_do_not_exhaust_the_stack() -> None:
    assert holds("not " * 5000 + "true")
    assert not holds("not " * 5001 + "true")


# --- against a reference evaluator --------------------------------------------------------------------------------

numbers = st.integers(-3, 3)
leaves = st.one_of(
    st.booleans().map(lambda value: ("true" if value else "false", value)),
    numbers.map(lambda value: (str(value), value)),
    st.sampled_from(["success", "failure", "always"]).map(lambda name: (f"{name}()", name)),
    st.tuples(numbers, st.sampled_from(["==", "!=", "<", ">", "<=", ">="]), numbers).map(
        lambda it: (f'{it[0]} {it[1]} params["v{it[2]}"]', eval(f"{it[0]} {it[1]} {it[2]}"))
    ),
)
trees = st.recursive(
    leaves.map(lambda leaf: ("leaf", *leaf)),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=12,
)
SCOPE_OF_NUMBERS = {"params": {f"v{number}": number for number in range(-3, 4)}}


def written(tree: Any) -> str:
    if tree[0] == "leaf":
        return str(tree[1])
    if tree[0] == "not":
        return f"not ({written(tree[1])})"
    return f" {tree[0]} ".join(f"({written(part)})" for part in tree[1])


def expected(tree: Any, status: dict[str, bool]) -> bool:
    if tree[0] == "leaf":
        return bool(status.get(tree[2], tree[2]) if isinstance(tree[2], str) else tree[2])
    if tree[0] == "not":
        return not expected(tree[1], status)
    parts = [expected(part, status) for part in tree[1]]
    return all(parts) if tree[0] == "and" else any(parts)


@given(trees, st.booleans(), st.booleans())
def test_conditions_agree_with_a_reference_evaluator(tree: Any, succeeded: bool, failed: bool) -> None:
    text = written(tree)
    status = {"success": succeeded, "failure": failed, "always": True}
    named = any(f"{name}()" in text for name in status)
    meant = expected(tree, status) and (named or succeeded)
    assert holds(text, succeeded=succeeded, failed=failed, scope=SCOPE_OF_NUMBERS) is meant


@given(st.lists(st.sampled_from(["true", "false"]), min_size=1, max_size=6), st.data())
def test_and_binds_closer_than_or_and_not_closest(words: list[str], data: st.DataObject) -> None:
    text = words[0]
    for word in words[1:]:
        text += f" {data.draw(st.sampled_from(['and', 'or', 'and not', 'or not']))} {word}"
    assert holds(text) is bool(eval(text.replace("true", "True").replace("false", "False")))


@given(st.text(alphabet="ab.[]()'\"0 andortue=<>!|&${}\\-", max_size=25))
def test_any_text_is_read_or_refused(text: str) -> None:
    position = 0
    try:
        parse_condition(text)
    except ExpressionError as error:
        position = error.position
    assert 0 <= position <= len(text)
