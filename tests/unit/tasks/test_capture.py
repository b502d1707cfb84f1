from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentos.tasks.process.output_capture import MAX_LINE, MAX_LINES_AT_ONCE, Capture, LiveLines

pieces = st.lists(st.binary(max_size=40), max_size=20)


def captured(chunks: list[bytes], head: int = 1 << 20, tail: int = 1 << 20) -> Capture:
    capture = Capture(lambda line: None, head=head, tail=tail)
    for chunk in chunks:
        capture.feed(chunk)
    capture.close()
    return capture


def shown(chunks: list[bytes]) -> list[str]:
    lines: list[str] = []
    live = LiveLines(lines.append)
    for chunk in chunks:
        live.feed(chunk)
    live.feed(b"", final=True)
    return lines


@given(pieces, st.integers(0, 50), st.integers(0, 50))
def test_beginning_and_end_are_kept_and_the_rest_is_counted(chunks: list[bytes], head: int, tail: int) -> None:
    whole = b"".join(chunks)
    capture = captured(chunks, head, tail)

    assert capture.total == len(whole)
    assert capture.dropped == max(len(whole) - head - tail, 0)
    kept = whole if not capture.dropped else whole[:head] + (whole[-tail:] if tail else b"")
    assert capture.raw == kept


def test_memory_stays_bounded_while_it_flows() -> None:
    capture = Capture(lambda line: None, head=1000, tail=1000)
    for _ in range(1000):
        capture.feed(b"x" * 10_000)
        assert len(capture.raw) < 100_000
    capture.close()

    assert len(capture.raw) == 2000
    assert capture.dropped == 10_000_000 - 2000


@given(st.text(), st.integers(0, 30), st.integers(0, 30))
def test_utf_8_stays_utf_8_wherever_it_is_cut(text: str, head: int, tail: int) -> None:
    data = text.encode()
    shown_text, valid = captured([data], head, tail).text()

    assert valid
    if len(data) <= head + tail:
        assert shown_text == text.removesuffix("\n")
    else:
        assert "bytes left out" in shown_text
        assert "\ufffd" not in shown_text.replace("\ufffd", "", text.count("\ufffd"))


def test_what_is_not_utf_8_is_replaced_and_said() -> None:
    assert captured([b"a\xffb\n"]).text() == ("a\ufffdb", False)


def test_only_one_newline_is_taken_from_the_end() -> None:
    assert captured([b"a\n\n"]).text() == ("a\n", True)


@given(st.text(alphabet="aé€😀\n", max_size=60), st.integers(1, 7))
def test_live_lines_do_not_depend_on_how_the_bytes_arrive(text: str, size: int) -> None:
    data = text.encode()
    chunks = [data[at : at + size] for at in range(0, len(data), size)]

    lines = text.split("\n")
    assert shown(chunks) == (lines if lines[-1] else lines[:-1])


def test_carriage_returns_end_a_live_line_too() -> None:
    assert shown([b"10%\r20%\r", b"\ndone\r", b"\n"]) == ["10%", "20%", "done"]


def test_a_long_live_line_is_cut_and_does_not_pile_up() -> None:
    lines = shown([b"x" * 100_000] * 20 + [b"\nnext\n"])

    assert lines == ["x" * MAX_LINE + "…", "next"]


def test_a_flood_is_thinned_out_live() -> None:
    lines = shown([b"".join(b"%d\n" % number for number in range(10_000))])

    assert len(lines) == MAX_LINES_AT_ONCE + 1
    assert (lines[0], lines[-1]) == ("0", "9999")
    assert f"{10_000 - MAX_LINES_AT_ONCE} lines not shown live" in lines[MAX_LINES_AT_ONCE // 2]
