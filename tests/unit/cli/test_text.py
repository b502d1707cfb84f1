"""What comes out of a workflow cannot do anything to a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from agentos.cli.render.text import duration, printable, short
from agentos.cli.render.value_text import given_lines, unwrap_shell_output, value_in_short
from agentos.values import encode_value


@given(st.text())
def test_printable_text_is_one_line_without_control_characters(text: str) -> None:
    shown = printable(text)
    assert shown.splitlines() in ([], [shown])
    assert all(character.isprintable() or character == "\u200d" for character in shown if character not in "\u00ad")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("日本語 é 👩‍💻", "日本語 é 👩‍💻"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("one\ntwo\r", "one\\ntwo\\r"),
        ("a\tb", "a b"),
        ("abc\u202etxt", "abc\\u202etxt"),
        ("\udcff", "\\udcff"),
        ("[bold]x[/bold]", "[bold]x[/bold]"),
        ("\x9b1m", "\\x9b1m"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_values_in_short() -> None:
    assert value_in_short(Raw(encode_value("two\nlines"))) == "two\\nlines"
    assert value_in_short(Raw(encode_value({"a": [1, None]}))) == '{"a":[1,null]}'
    assert len(value_in_short(Raw(encode_value("x" * 999)))) == 200
    assert value_in_short(Raw(encode_value("x" * (2 << 20)))) == f"{(2 << 20) + 2:,} bytes"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-1, "0.0s"),
        (0.04, "0.0s"),
        (9.94, "9.9s"),
        (12.9, "12s"),
        (200, "3m20s"),
        (7500, "2h05m"),
        (360_000, "100h00m"),
    ],
)
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_short() -> None:
    assert short("abc", 3) == "abc"
    assert short("abcd", 3) == "ab…"


def test_what_a_gate_would_give_is_listed_by_name() -> None:
    assert given_lines("") == []
    assert given_lines('{"run":"one\\ntwo \\u001b[2J","params.n":[3]}') == [
        "run = one",
        "  two \\x1b[2J",
        "params.n = [3]",
    ]
    assert given_lines('[{"x":1},{"x":2}]') == ['[{"x":1},{"x":2}]']
    assert given_lines('{"x":"cut sho…') == ['{"x":"cut sho…']


def test_of_a_command_what_it_printed_is_told() -> None:
    assert unwrap_shell_output({"stdout": "hello", "stderr": "", "exit_code": 0}) == "hello"
    assert unwrap_shell_output({"stdout": "hello"}) == {"stdout": "hello"}
