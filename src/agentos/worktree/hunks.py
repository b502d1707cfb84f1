"""Merge what several sides did to one text, hunk by hunk. Pure: lines and edits go in, the text and disputes come out.

Edits that share no line and do not touch each other go together, and so do equal ones; the rest is in dispute. The
order of the sides does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec


class Edit(NamedTuple):
    """Lines `start` to `end` of the base, counted from 0 and without `end`, become these."""

    start: int
    end: int
    lines: tuple[bytes, ...]


class Dispute(msgspec.Struct, frozen=True, kw_only=True):
    """A part that sides made different things of."""

    sides: tuple[str, ...]
    line: int = 0
    """Where it begins, counted from 1; 0 where it is the whole file."""
    texts: tuple[bytes, ...] = ()
    """What each of the sides has there; none of the whole file."""


def split_lines(content: bytes) -> list[bytes]:
    """The lines with their ends; only a newline ends one, and the last may lack it."""
    parts = content.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def merge_edits(
    base: Sequence[bytes],
    sides: Mapping[str, Sequence[Edit]],
    favour: Sequence[str],
    *,
    base_name: str = "",
    otherwise: str = "",
) -> tuple[bytes, list[Dispute]]:
    """The base with all edits, and what is left in dispute.

    A hunk in dispute goes to the first of `favour` that is a side of it; `base_name` makes the base a side of each.
    Without one it stays in dispute, and is meanwhile as `otherwise` has it, or else the base.
    """
    merged: list[bytes] = []
    disputes: list[Dispute] = []
    done = 0
    for start, end in _parts([edit for edits in sides.values() for edit in edits]):
        unchanged = b"".join(base[start:end])
        texts = {}
        for name, edits in sides.items():
            inside = [edit for edit in edits if start <= edit.start and edit.end <= end]
            if inside:
                texts[name] = _apply_edits(base, start, end, inside)
        if len(set(texts.values())) == 1:
            chosen = next(iter(texts.values()))
        else:
            texts = {base_name: unchanged, **texts} if base_name else texts
            winner = next((name for name in favour if name in texts), None)
            if winner is None:
                disputes.append(Dispute(sides=tuple(texts), line=start + 1, texts=tuple(texts.values())))
            chosen = texts.get(winner or otherwise, unchanged)
        merged += [*base[done:start], chosen]
        done = end
    return b"".join([*merged, *base[done:]]), disputes


def _parts(edits: Sequence[Edit]) -> Iterator[tuple[int, int]]:
    """The parts of the base that are edited; edits that touch each other are in one."""
    start = end = -1
    for edit in sorted(edits):
        if edit.start > end:
            if start >= 0:
                yield start, end
            start, end = edit.start, edit.end
        end = max(end, edit.end)
    if start >= 0:
        yield start, end


def _apply_edits(base: Sequence[bytes], start: int, end: int, edits: Sequence[Edit]) -> bytes:
    lines: list[bytes] = []
    for edit in edits:
        lines += [*base[start : edit.start], *edit.lines]
        start = edit.end
    return b"".join([*lines, *base[start:end]])
