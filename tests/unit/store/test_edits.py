"""Edits between two runs of bytes: whatever they are, the new ones come out; and what grows costs what was added."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.store.edits import apply_edits, find_edits

FEW = st.lists(st.sampled_from([b"a", b"b", b"abab", b"0123456789abcdef" * 2, b"x" * 40])).map(b"".join)


@given(FEW, FEW)
def test_edits_make_the_new_bytes_of_the_old_ones(old: bytes, new: bytes) -> None:
    assert apply_edits(old, [find_edits(old, new)]) == new


@given(FEW, FEW, FEW, FEW)
def test_bytes_that_share_a_middle_come_out_as_well(before: bytes, middle: bytes, after: bytes, other: bytes) -> None:
    old, new = before + middle + after, other + middle + before
    assert apply_edits(old, [find_edits(old, new)]) == new


@given(st.lists(FEW, min_size=2, max_size=12))
def test_edits_of_edits_come_out_as_the_last_bytes(runs: list[bytes]) -> None:
    edits = [find_edits(old, new) for old, new in pairwise(runs)]
    assert apply_edits(runs[0], reversed(edits)) == runs[-1]


def listed(entries: list[bytes]) -> bytes:
    """As MessagePack has a list: its length, then the entries, each behind its own."""
    head = bytes([0x90 + len(entries)]) if len(entries) < 16 else b"\xdc" + len(entries).to_bytes(2)
    return head + b"".join(b"\xda" + len(one).to_bytes(2) + one for one in entries)


@pytest.mark.parametrize("length", [14, 15, 255, 256, 300])
def test_a_longer_list_costs_what_was_added(length: int) -> None:
    entries = [f"{number:04} {number * 7919:x} ".encode() * 60 for number in range(length + 1)]
    old, new = listed(entries[:-1]), listed(entries)
    edits = find_edits(old, new)
    assert apply_edits(old, [edits]) == new
    assert len(edits) < len(entries[-1]) + 64


def test_a_list_that_loses_its_oldest_entry_costs_what_was_added() -> None:
    entries = [f"{number:04} {number * 7919:x} ".encode() * 60 for number in range(40)]
    old, new = listed(entries[:-1]), listed(entries[1:])
    edits = find_edits(old, new)
    assert apply_edits(old, [edits]) == new
    assert len(edits) < len(entries[-1]) + 64


@pytest.mark.parametrize("damage", [b"\x00", b"\xff" * 12, b"\x00" * 8 + b"\x09\x00\x00\x00"])
def test_edits_that_are_not_of_these_bytes_are_refused(damage: bytes) -> None:
    with pytest.raises(ValueError):
        apply_edits(b"short", [damage])
