"""Edits of several sides to one text: what goes together, what is in dispute, what a choice settles."""

from __future__ import annotations

import random
import string

import pytest

from agentos.worktree.hunks import Edit, merge_edits, split_lines

BASE = [f"{letter}\n".encode() for letter in string.ascii_lowercase[:10]]


def change(start: int, end: int, *lines: str) -> list[Edit]:
    return [Edit(start, end, tuple(f"{line}\n".encode() for line in lines))]


def words(text: bytes) -> str:
    return text.decode().replace("\n", "")


@pytest.mark.parametrize("content", [b"", b"a", b"a\n", b"a\r\nb\rc\n\n", b"\n\nx", b"\xff\n\0"])
def test_lines_are_what_newlines_end(content: bytes) -> None:
    lines = split_lines(content)
    assert b"".join(lines) == content
    assert all(line.endswith(b"\n") for line in lines[:-1])
    assert b"" not in lines


def test_edits_of_different_lines_go_together() -> None:
    sides = {"one": change(0, 1, "1"), "two": [*change(2, 2, "2"), *change(9, 10)], "three": change(5, 7, "3")}
    assert words(merge_edits(BASE, sides, ())[0]) == "1b2cde3hi"
    assert merge_edits(BASE, sides, ())[1] == []


def test_equal_edits_go_together() -> None:
    text, disputes = merge_edits(BASE, {"one": change(3, 4, "x"), "two": change(3, 4, "x")}, ())
    assert (words(text), disputes) == ("abcxefghij", [])


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (change(3, 4, "x"), change(3, 4, "y")),
        (change(3, 4, "x"), change(4, 5, "y")),  # side by side: which comes first is known, whether both fit is not
        (change(3, 3, "x"), change(3, 3, "y")),
        (change(3, 4), change(4, 4, "y")),
    ],
)
def test_edits_that_touch_each_other_are_in_dispute(one: list[Edit], two: list[Edit]) -> None:
    text, [dispute] = merge_edits(BASE, {"one": one, "two": two}, ())
    assert words(text) == "abcdefghij"
    assert (dispute.sides, dispute.line) == (("one", "two"), 4)


THREE = {
    "one": change(1, 2, "1"),
    "two": [*change(1, 2, "2"), *change(6, 7, "2")],
    "three": [*change(4, 5, "3"), *change(6, 7, "3")],
}


@pytest.mark.parametrize(
    ("favour", "text", "left"),
    [
        ((), "abcd3fghij", [("base", "one", "two"), ("base", "two", "three")]),
        (("two",), "a2cd3f2hij", []),
        (("one",), "a1cd3fghij", [("base", "two", "three")]),
        (("one", "three"), "a1cd3f3hij", []),
        (("one", "base"), "a1cd3fghij", []),
        (("base",), "abcd3fghij", []),
        (("nobody",), "abcd3fghij", [("base", "one", "two"), ("base", "two", "three")]),
    ],
)
def test_a_choice_settles_what_it_is_a_side_of(favour: tuple[str, ...], text: str, left: list[tuple[str, ...]]) -> None:
    merged, disputes = merge_edits(BASE, THREE, favour, base_name="base")
    assert (words(merged), [dispute.sides for dispute in disputes]) == (text, left)


def test_a_dispute_shows_what_each_side_has_there() -> None:
    sides = {"one": change(1, 5, "1"), "two": [*change(1, 2, "2"), *change(3, 4)]}
    _, [dispute] = merge_edits(BASE, sides, ())
    assert dict(zip(dispute.sides, map(words, dispute.texts), strict=True)) == {"one": "1", "two": "2ce"}


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_chosen_no_edit_without_a_rival_is_lost(seed: int) -> None:
    """Random edits by four sides: one that nobody else touches stands in every result; the order does not matter."""
    chance = random.Random(seed)
    sides: dict[str, list[Edit]] = {}
    for name in ("one", "two", "three", "four"):
        edits, at = [], 0
        while (start := at + chance.randint(0, 8)) < len(BASE):
            end = min(len(BASE), start + chance.randint(0, 2))
            edits += change(start, end, f"<{name}{start}>")
            at = end + 1
        sides[name] = edits
    free = [
        edit
        for name, edits in sides.items()
        for edit in edits
        if not any(
            edit.start <= other.end and other.start <= edit.end
            for rival in sides
            if rival != name
            for other in sides[rival]
        )
    ]
    names = [*sides, "base"]
    for favour in ((), *((name,) for name in names), tuple(chance.sample(names, 3))):
        merged, disputes = merge_edits(BASE, sides, favour, base_name="base")
        assert all(line in merged for edit in free for line in edit.lines)
        assert not any(name in dispute.sides for name in favour for dispute in disputes)
        turned = {name: sides[name] for name in chance.sample(list(sides), 4)}
        assert merge_edits(BASE, turned, favour, base_name="base")[0] == merged
