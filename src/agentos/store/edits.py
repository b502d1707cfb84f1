"""What makes one run of bytes of another: a few edits, found quickly rather than best.

Serialised state grows at its end, and changes by a count or a length at its beginning. That is what is looked for;
where it is not so, the edits come out long, and whoever asked stores the bytes whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct

_EDIT = Struct("<III")
"""Where in the old bytes, how many of them go, and how many come in their place; these follow."""
_MOST = 64
_RUN = 16
"""So many bytes that are equal count as the same place in both."""
_NEAR = 9
_FAR = 1 << 16
_END = 1 << 62
"""However long the old bytes are."""
_Part = memoryview | tuple[int, int]
"""Bytes, or from where to where they lie in the old ones."""


def find_edits(old: bytes, new: bytes) -> bytes:
    """Edits that make `new` of `old`, as `apply_edits` takes them."""
    at_old = at_new = _same_from(old, 0, new, 0)
    tail = _same_until(old, new, min(len(old), len(new)) - at_old)
    end_old, end_new = len(old) - tail, len(new) - tail
    found: list[bytes] = []
    while at_old < end_old and at_new < end_new and len(found) < _MOST:
        again = _meet_again(old, at_old, end_old, new, at_new, end_new)
        if again is None:
            break
        found.append(_EDIT.pack(at_old, again[0] - at_old, again[1] - at_new) + new[at_new : again[1]])
        run = min(_same_from(old, again[0], new, again[1]), end_old - again[0], end_new - again[1])
        at_old, at_new = again[0] + run, again[1] + run
    if at_old < end_old or at_new < end_new:
        found.append(_EDIT.pack(at_old, end_old - at_old, end_new - at_new) + new[at_new:end_new])
    return b"".join(found)


def apply_edits(old: bytes, edits: Iterable[bytes]) -> bytes:
    """The new bytes, several edits later: those are given newest first. ValueError where they are not of these bytes.

    Bytes are copied once, however many edits there are: where each comes from is found out from the end.
    """
    parts: list[_Part] = [(0, _END)]
    for one in edits:
        parts = _trace(parts, one)
    view, size = memoryview(old), len(old)
    if any(part[0] > size or size < part[1] < _END for part in parts if isinstance(part, tuple)):
        raise ValueError("an edit lies outside")
    return b"".join(view[part[0] : part[1]] if isinstance(part, tuple) else part for part in parts)


def _trace(parts: Iterable[_Part], edits: bytes) -> list[_Part]:
    """The parts of what edits made as parts of what they were made of."""
    found: list[_Part] = []
    spans = _read_spans(edits)
    ends, shift, come = next(spans)
    for part in parts:
        if isinstance(part, memoryview):
            found.append(part)
            continue
        low, end = part
        while low < end:
            while ends <= low:
                ends, shift, come = next(spans)
            high = min(end, ends)
            if come is not None:
                found.append(come[low + shift : high + shift])
            else:
                found.append((low + shift, high + shift if high < _END else _END))
            low = high
    return found


def _read_spans(edits: bytes) -> Iterator[tuple[int, int, memoryview | None]]:
    """What edits make, from its beginning on: where a span ends, how far off it lies in what it comes from, and that,
    if it is not the old bytes."""
    view, at, end, taken = memoryview(edits), 0, 0, 0
    while at < len(edits):
        if at + _EDIT.size > len(edits):
            raise ValueError("an edit is cut short")
        start, gone, come = _EDIT.unpack_from(edits, at)
        at += _EDIT.size
        if start < taken or at + come > len(edits):
            raise ValueError("an edit lies outside")
        shift = taken - end
        end += start - taken
        yield end, shift, None
        yield end + come, -end, view[at : at + come]
        end, at, taken = end + come, at + come, start + gone
    yield _END, taken - end, None


def _same_from(old: bytes, at_old: int, new: bytes, at_new: int) -> int:
    """How many bytes are equal from here on."""
    most = min(len(old) - at_old, len(new) - at_new)
    same, step = 0, _RUN
    while same < most and old[at_old + same : at_old + same + step] == new[at_new + same : at_new + same + step]:
        same += step
        step = min(step * 4, _FAR)
    if same >= most:
        return most
    while step > 1:  # the first difference lies within a step
        step //= 2
        if old[at_old + same : at_old + same + step] == new[at_new + same : at_new + same + step]:
            same += step
    return min(same, most)


def _same_until(old: bytes, new: bytes, most: int) -> int:
    """How many bytes are equal at the ends, `most` at most."""
    ends = len(old), len(new)
    same, step, grows = 0, _RUN, True
    while step:
        first, second = ends[0] - same, ends[1] - same
        if same + step <= most and old[first - step : first] == new[second - step : second]:
            same += step
            step = min(step * 4, _FAR) if grows else step // 2
        else:  # the last difference lies within a step
            grows, step = False, step // 2
    return same


def _meet_again(old: bytes, at_old: int, end_old: int, new: bytes, at_new: int, end_new: int) -> tuple[int, int] | None:
    """The next place in both from which on they are equal for a while."""
    for apart in range(1, 2 * _NEAR):
        for over in range(max(0, apart - _NEAR + 1), min(apart, _NEAR - 1) + 1):
            first, second = at_old + over, at_new + apart - over
            inside = first + _RUN <= end_old and second + _RUN <= end_new
            if inside and old[first : first + _RUN] == new[second : second + _RUN]:
                return first, second
    for over in range(_NEAR):  # something went at the beginning
        if at_new + over + _RUN > end_new:
            return None
        wanted = new[at_new + over : at_new + over + _RUN]
        first = old.find(wanted, at_old, min(end_old, at_old + _FAR))
        if first >= 0:
            return first, at_new + over
    return None
