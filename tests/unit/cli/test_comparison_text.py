"""Where a workflow differs, in one line."""

from __future__ import annotations

from agentos.client.runs import NO_DIFFERENCE, Comparison
from agentos.render.comparison_text import comparison_lines


def test_nothing_is_said_where_nothing_differs() -> None:
    assert comparison_lines(NO_DIFFERENCE, "mine") == []


def test_a_few_tasks_are_named_and_the_rest_is_counted() -> None:
    compared = Comparison(new=tuple(f"t{number}" for number in range(7)), gone=("a\x1b[2J",))
    assert comparison_lines(compared) == ["new: t0, t1, t2, t3, t4 and 2 more · gone: a\\x1b[2J"]


def test_each_change_says_what_becomes_of_the_task() -> None:
    compared = Comparison(changed={"a": "reuse, changed", "b": "rerun", "c": "run", "d": "ask", "e": "reuse"})
    assert comparison_lines(compared) == ["changed: a (kept), b (runs again), c (to run), d (asks first), e (kept)"]


def test_the_command_that_takes_new_defaults_is_one_to_type() -> None:
    compared = Comparison(ignored_defaults={"modules": ["a", "b c"], "port": 81})
    line, command = comparison_lines(compared, "my run")
    assert line == "parameter defaults ignored: modules, port"
    assert "agentos resume 'my run' '--param=modules=[\"a\",\"b c\"]' --param=port=81, or" in command
