"""A run by the clock, drawn: a row for each task, what waited, who drove, and the time nothing happened in folded."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import pairwise

import msgspec

from agentos.client.views import AttemptSpan, DriveSpan, IdleSpan, Timeline, WaitSpan
from agentos.render.plan_svg import STATUS_MARKS
from agentos.render.text import count, duration, local, printable, short, short_middle

MOST_ROWS = 60
"""Beyond that items and rounds share the row of their task, and then the dullest tasks one row."""
MOST_LISTED = 200
"""Spans in the table."""
_STEPS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30,
            60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)  # fmt: skip
_TICKS = 7
_APART, _FOLD, _ROOM = 11.0, 11.0, 2.5
"""How far apart labels of the axis are, how wide a fold, and a bar that has room for its mark, in hundredths."""
_SHORT_S = 2.0
"""Nothing shorter is folded."""
_STATUS_OF = {"retried": "retrying", "put off": "paused", "limit": "paused", "suspended": "paused",
              "cut off": "interrupted", "died": "interrupted"}  # fmt: skip
"""The status whose mark and colour the end of an attempt or a drive has, where it is not called the same."""
_DULL = frozenset({"complete"})
_GREW = re.compile(r"(?s)(.+?)(?:\[.*\]|@\d+)+")


class _Bar(msgspec.Struct, frozen=True, kw_only=True):
    """Something that lasted."""

    name: str
    what: str
    """`attempt 2`, `waited for an answer`, `drive 1`."""
    start: datetime
    stop: datetime
    end: str
    is_wait: bool = False

    @property
    def status(self) -> str:
        return _STATUS_OF.get(self.end, self.end)

    @property
    def said(self) -> str:
        return f"{self.what}: {local(self.start)}, {duration((self.stop - self.start).total_seconds())}, {self.end}"


class _Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the axis; `folded` says why it is narrower than it was long."""

    start: datetime
    stop: datetime
    left: float
    right: float
    folded: str = ""


def timeline_svg(timeline: Timeline, *, now: datetime, link: Callable[[str], str] | None = None) -> str:
    """A table with a row for each task and bars over one axis, then the same as plain text; all of it escaped.

    `now` is until when what has not ended goes; `link` gives the address of a task. Empty where nothing began.
    """
    drives = [_drive_bar(one, now) for one in timeline.drives]
    if not drives:
        return ""
    bars = sorted(
        (*(_attempt_bar(one, now) for one in timeline.attempts), *(_wait_bar(one, now) for one in timeline.waits)),
        key=lambda bar: bar.start,
    )
    pieces = _pieces(timeline, [*drives, *bars], now)
    rows: dict[str, list[_Bar]] = {}
    for bar in bars:
        rows.setdefault(bar.name, []).append(bar)
    axis = _axis(pieces)
    heads = "<tr><th scope='col'>Task</th><td>{}</td><th scope='col' class='number'>Time</th></tr>".replace("'", '"')
    lines = [
        '<div class="scroll" id="timeline-scroll" tabindex="0" role="group" aria-label="Timeline">',
        _definitions(pieces),
        f'<table class="timeline-rows"><thead>{heads.format(axis)}</thead><tbody>',
        _row("driven", drives, pieces, "", class_="drives"),
    ]
    folded = _fold_rows(rows)
    no_tasks = {"", *(one.gate_id for one in timeline.waits if one.task_id is None)}
    for name, inside in folded:
        address = link(name) if link is not None and name not in no_tasks else ""
        lines.append(_row(name, inside, pieces, address, folded=name not in rows or len(inside) > len(rows[name])))
    foot = f'<tfoot aria-hidden="true"><tr><td></td><td>{axis}</td><td></td></tr></tfoot>' * (len(folded) > 15)
    lines += [f"</tbody>{foot}</table></div>", *_span_table([*drives, *bars], timeline.idle, now)]
    return "\n".join(lines)


def _attempt_bar(span: AttemptSpan, now: datetime) -> _Bar:
    what = f"attempt {span.attempt}"
    return _Bar(name=span.task_id, what=what, start=span.started_at, stop=span.ended_at or now, end=span.end)


def _wait_bar(span: WaitSpan, now: datetime) -> _Bar:
    return _Bar(
        name=span.task_id or span.gate_id,
        what=f"gate {printable(span.gate_id)} waited for an answer",
        start=span.opened_at,
        stop=span.closed_at or now,
        end=printable(span.answer or ("no longer asked" if span.closed_at else "waiting")),
        is_wait=True,
    )


def _drive_bar(span: DriveSpan, now: datetime) -> _Bar:
    by = f" by {printable(span.holder)}" if span.holder else ""
    what = f"drive {span.drive}{by}"
    return _Bar(name="", what=what, start=span.started_at, stop=span.ended_at or now, end=span.end)


# --- the axis -------------------------------------------------------------------------------------------------------


def _pieces(timeline: Timeline, bars: Sequence[_Bar], now: datetime) -> list[_Piece]:
    """The axis: what happened at its true length, long stretches in which nothing did folded."""
    attempts = [(one.started_at, one.ended_at or now) for one in timeline.attempts]
    idle = [(one.from_at, one.until_at or now) for one in timeline.idle]
    begin = min(bar.start for bar in bars)
    end = max([*(bar.stop for bar in bars), *(until for _, until in idle), begin + timedelta(milliseconds=1)])
    busy = _union(attempts)
    asleep = _union(idle)
    cuts = sorted({begin, end, *(at for span in (*busy, *asleep) for at in span if begin < at < end)})
    worked = sum((stop - start).total_seconds() for start, stop in busy)
    stretches: list[tuple[datetime, datetime, str]] = []
    for start, stop in pairwise(cuts):
        why = "" if _is_in(busy, start) else "not driven" if _is_in(asleep, start) else "nothing ran"
        why = why if (stop - start).total_seconds() > max(_SHORT_S, worked / 6) else ""
        if stretches and not why and not stretches[-1][2]:
            start = stretches.pop()[0]
        stretches.append((start, stop, why))
    folds = sum(bool(why) for *_, why in stretches)
    fold = min(_FOLD, 50 / max(1, folds))
    shown = sum((stop - start).total_seconds() for start, stop, why in stretches if not why) or 1.0
    scale = (100 - folds * fold) / shown
    pieces: list[_Piece] = []
    left = 0.0
    for start, stop, why in stretches:
        right = left + (fold if why else (stop - start).total_seconds() * scale)
        pieces.append(_Piece(start=start, stop=stop, left=left, right=right, folded=why))
        left = right
    return pieces


def _union(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    found: list[tuple[datetime, datetime]] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        elif stop > start:
            found.append((start, stop))
    return found


def _is_in(spans: Sequence[tuple[datetime, datetime]], at: datetime) -> bool:
    before = bisect_right(spans, at, key=lambda one: one[0])
    return before > 0 and at < spans[before - 1][1]


def _place(pieces: Sequence[_Piece], at: datetime) -> float:
    piece = pieces[max(0, bisect_right(pieces, at, key=lambda one: one.start) - 1)]
    share = (at - piece.start) / (piece.stop - piece.start)
    return piece.left + (piece.right - piece.left) * min(1.0, max(0.0, share))


def _ticks(pieces: Sequence[_Piece]) -> Iterator[tuple[float, str]]:
    """Round times of day, far enough from each other; the beginning, and how it goes on behind a fold, exactly."""
    shown = sum((one.stop - one.start).total_seconds() for one in pieces if not one.folded)
    step = next((step for step in _STEPS_S if step >= shown / _TICKS), _STEPS_S[-1])
    form = "%H:%M" if step >= 60 else "%H:%M:%S"
    apart = _APART if step >= 1 else 1.4 * _APART
    last = -apart
    for before, piece, after in zip((None, *pieces), pieces, (*pieces[1:], None), strict=False):
        if piece.folded:
            last = piece.right - apart
            continue
        begin = piece.start.astimezone()
        zone = (begin.utcoffset() or timedelta()).total_seconds()
        first = (piece.start.timestamp() + zone) // step + 1
        until = piece.stop.timestamp() + zone
        exact = [begin] if before is None or before.folded else []
        rounds = (datetime.fromtimestamp(n * step - zone, UTC) for n in _numbers(first, until / step))
        for at in (*exact, *rounds):
            place = _place(pieces, at)
            if place - last >= apart and place <= (after.left if after else 100) - apart * 0.9:
                yield place, at.astimezone().strftime(form) + (f".{at.microsecond // 10_000:02}" if step < 1 else "")
                last = place


def _numbers(first: float, until: float) -> Iterator[float]:
    while first < until:
        yield first
        first += 1


def _definitions(pieces: Sequence[_Piece]) -> str:
    """What each row shows again: the lines of the axis, and its folds."""
    folds = "".join(
        f'<rect class="fold" x="{one.left:.2f}%" width="{one.right - one.left:.2f}%" height="100%"/>'
        + "".join(f'<line class="edge" x1="{at:.2f}%" x2="{at:.2f}%" y2="100%"/>' for at in (one.left, one.right))
        for one in pieces
        if one.folded
    )
    lines = "".join(f'<line x1="{at:.2f}%" x2="{at:.2f}%" y2="100%"/>' for at, _ in _ticks(pieces))
    return (
        '<svg class="defs" width="0" height="0" aria-hidden="true"><defs>'
        '<pattern id="t-hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect class="gap" width="6" height="6"/><rect class="ink" width="2.5" height="6"/></pattern>'
        f'<g id="t-grid" class="grid">{folds}{lines}</g></defs></svg>'
    )


def _axis(pieces: Sequence[_Piece]) -> str:
    told = [f'<text x="{at:.2f}%" dx="3" y="14">{text}</text>' for at, text in _ticks(pieces)]
    for one in pieces:
        if one.folded:
            middle, lasted = (one.left + one.right) / 2, duration((one.stop - one.start).total_seconds())
            words = f"{local(one.start)} to {local(one.stop)}: {lasted}, {one.folded}"
            told.append(
                f'<text class="gone" x="{middle:.2f}%" y="14"><title>{words}</title>{lasted}</text>'
                f'<text class="gone" x="{middle:.2f}%" y="29">{one.folded}</text>'
            )
    said = f"from {local(pieces[0].start)} to {local(pieces[-1].stop)}"
    return f'<svg class="axis" role="img" aria-label="{said}"><use href="#t-grid"/>{"".join(told)}</svg>'


# --- rows -----------------------------------------------------------------------------------------------------------


def _fold_rows(rows: dict[str, list[_Bar]]) -> list[tuple[str, list[_Bar]]]:
    """Rows as they are drawn: of many, items and rounds in the row of their task, then what went well in one."""
    if len(rows) <= MOST_ROWS:
        return [*rows.items()]
    grown: dict[str, list[_Bar]] = {}
    for name, bars in rows.items():
        found = _GREW.fullmatch(name)
        grown.setdefault(found[1] if found else name, []).extend(bars)
    if len(grown) <= MOST_ROWS:
        return [*grown.items()]
    telling = sorted(grown, key=lambda name: _DULL.issuperset(bar.end for bar in grown[name]))[: MOST_ROWS - 1]
    kept = set(telling)
    rest = [bar for name, bars in grown.items() if name not in kept for bar in bars]
    return [*((name, bars) for name, bars in grown.items() if name in kept), ("", rest)]


def _row(
    name: str, bars: Sequence[_Bar], pieces: Sequence[_Piece], address: str, *, class_: str = "", folded: bool = False
) -> str:
    inside = len({bar.name for bar in bars})
    shown = escape(short_middle(printable(name), 60)) if name else f"… {count(inside, 'more task')}"
    label = f'<a href="{escape(address)}">{shown}</a>' if address else shown
    spans = _union((bar.start, bar.stop) for bar in bars if not bar.is_wait)
    worked = sum((stop - start).total_seconds() for start, stop in spans)
    drawn = [*_merge_bars(bars, pieces), *[bar for bar in bars if bar.end not in _DULL][:MOST_ROWS]] if folded else bars
    said = _in_short(bars) if folded or len(bars) > 5 else "; ".join(bar.said for bar in bars)
    more = f' <span class="quiet small">{_in_short(bars)}</span>' if folded else ""
    return (
        f'<tr class="{class_}"><th scope="row"><span class="name">{label}</span>{more}</th>'
        f'<td><svg class="bars" role="img" aria-label="{escape(short(said, 300))}"><use href="#t-grid"/>'
        f"{''.join(_draw(bar, pieces) for bar in drawn)}</svg></td>"
        f'<td class="number quiet small">{duration(worked) if worked else ""}</td></tr>'
    )


def _merge_bars(bars: Sequence[_Bar], pieces: Sequence[_Piece]) -> list[_Bar]:
    """Bars of one row that overlap, or nearly do, as one: how many there are does not matter to the eye."""
    near = (pieces[-1].stop - pieces[0].start) / 400
    spans = [
        (one, other - near) for one, other in _union((bar.start, bar.stop + near) for bar in bars if not bar.is_wait)
    ]
    return [_Bar(name="", what=_in_short(bars), start=one, stop=other, end="complete") for one, other in spans]


def _in_short(bars: Sequence[_Bar]) -> str:
    found = Counter(bar.end for bar in bars)
    return ", ".join(f"{number:,} {end}" for end, number in found.most_common())


def _draw(bar: _Bar, pieces: Sequence[_Piece]) -> str:
    left, right = _place(pieces, bar.start), _place(pieces, bar.stop)
    fill = ' fill="url(#t-hatch)"' if bar.is_wait else ""
    class_ = "wait" if bar.is_wait else f"bar s-{escape(bar.status)}"
    mark = "" if bar.is_wait or bar.end in _DULL else STATUS_MARKS.get(bar.status, "")
    if right - left > _ROOM:
        at = f'x="{left:.2f}%" dx="5"'
    else:
        at = f'x="{right:.2f}%" dx="4"' if right < 97 else f'x="{left:.2f}%" dx="-4" text-anchor="end"'
    beside = "in " if right - left > _ROOM else ""
    told = f'<text class="mark {beside}s-{escape(bar.status)}" {at} y="18">{mark}</text>' if mark else ""
    return (
        f'<rect class="{class_}"{fill} x="{left:.2f}%" width="{max(0.0, right - left):.2f}%" y="7" height="14">'
        f"<title>{escape(bar.said)}</title></rect>{told}"
    )


# --- the same as text -----------------------------------------------------------------------------------------------


def _span_table(bars: Sequence[_Bar], idle: Sequence[IdleSpan], now: datetime) -> Iterator[str]:
    gone = [_Bar(name="", what="not driven", start=one.from_at, stop=one.until_at or now, end="") for one in idle]
    spans = sorted((*bars, *gone), key=lambda bar: bar.start)
    yield (
        '<details id="timeline-table"><summary>As a table</summary>'
        '<div class="scroll" tabindex="0" role="group" aria-label="The timeline as a table"><table class="small">'
        '<thead><tr><th scope="col">Task</th><th scope="col">What</th><th scope="col">Began</th>'
        '<th scope="col" class="number">Took</th><th scope="col">Ended</th></tr></thead><tbody>'
    )
    for bar in spans[:MOST_LISTED]:
        name = escape(short_middle(printable(bar.name), 60))
        head = f'<th scope="row" class="name">{name}</th>' if name else "<td></td>"
        yield (
            f"<tr>{head}<td>{escape(bar.what)}</td><td>{local(bar.start)}</td>"
            f'<td class="number">{duration((bar.stop - bar.start).total_seconds())}</td><td>{escape(bar.end)}</td></tr>'
        )
    yield "</tbody></table>"
    if len(spans) > MOST_LISTED:
        yield f"<p>… and {len(spans) - MOST_LISTED:,} more</p>"
    yield "</div></details>"
