"""What comes out of a workflow cannot do anything to a terminal."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from rich.cells import cell_len

from agentos.cli.terminal.frame import FrameRow
from agentos.cli.terminal.live import fit_name, paint_row
from agentos.render.text import duration, printable, short, short_middle, until
from agentos.render.value_text import given_lines, stored_in_short, unwrap_shell_output, value_in_short
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


def test_names_are_cut_in_their_middle() -> None:
    assert short_middle("abcde", 5) == "abcde"
    assert short_middle("each[src/a.py]", 9) == "each….py]"
    assert [short_middle("abcdef", limit) for limit in (0, 1, 2, 3)] == ["…", "…", "a…", "a…f"]


def test_a_task_keeps_the_end_of_its_name_and_its_figures_on_a_narrow_terminal() -> None:
    name = f"each[{'long/' * 20}alpha.py]"
    shown = paint_row(FrameRow(status="running", what=name, figures="12s", more="prints", depth=1), 60).plain
    assert "alpha.py]  12s" in shown
    assert "…" in shown
    assert cell_len(shown) < 60
    assert cell_len(fit_name("日本語" * 30, 21)) <= 21


def test_a_wait_is_told_with_its_time() -> None:
    now = datetime(2026, 1, 2, 12, 0, 0).astimezone()
    assert until(now + timedelta(seconds=65), now) == "in 1m05s, at 12:01:05"
    assert until(now + timedelta(days=1), now) == "in 24h00m, at 2026-01-03 12:00:00"


def test_what_a_gate_would_give_is_listed_by_name() -> None:
    assert given_lines("") == []
    assert given_lines('{"run":"one\\ntwo \\u001b[2J","params.n":[3]}') == [
        "run = one",
        "  two \\x1b[2J",
        "params.n = [3]",
    ]
    assert given_lines('[{"x":1},{"x":2}]') == ['[{"x":1},{"x":2}]']


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"stdout": "rm -rf \0~", "stderr": "", "exit_code": 0}, '"rm -rf \\u0000~"'),
        (["a\0", "\ud800"], '["a\\u0000","\\\\ud800"]'),
        ({"at": date(2026, 1, 2), "of": b"x"}, '{"at":"2026-01-02","of":"eA=="}'),
    ],
)
def test_a_value_is_shown_as_what_it_is_and_not_as_it_is_stored(value: Any, shown: str) -> None:
    stored = encode_value(value)
    assert stored_in_short(stored, 200, printed=False) == shown
    assert stored_in_short(b'{"$agentos":"later","v":1}', 200, printed=False) == '{"$agentos":"later","v":1}'
    assert "$agentos" not in given_lines(encode_value({"value": value}).decode())[0]
    assert given_lines('{"x":"cut sho…') == ['{"x":"cut sho…']


def test_what_a_merge_asks_about_is_text() -> None:
    assert given_lines("a.txt: worktree, task:a\n<<<<<<< merged so far\n\x1b[2J\n") == [
        "a.txt: worktree, task:a", "<<<<<<< merged so far", "\\x1b[2J",
    ]  # fmt: skip
    assert given_lines("\n".join(map(str, range(50))))[-2:] == ["15", "…"]


def test_of_a_command_what_it_printed_is_told() -> None:
    assert unwrap_shell_output({"stdout": "hello", "stderr": "", "exit_code": 0}) == "hello"
    assert unwrap_shell_output({"stdout": "hello"}) == {"stdout": "hello"}
