"""The live view on a terminal, painted with rich.

Events are folded in by whoever calls `show`; a thread of the view's own takes a frame of bounded size now and then and
paints it. So neither a huge run nor a terminal that takes nothing (Ctrl-S) can hold the run up.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TextIO, cast

from rich.cells import cell_len
from rich.console import Console, Group
from rich.control import Control
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from agentos.cli.output import forget
from agentos.cli.terminal.frame import FrameRow, frame
from agentos.client.types import events as ev
from agentos.client.views import RunModel
from agentos.render.event_text import describe_event
from agentos.render.text import short_middle

FRAME_S = 0.12
"""At most so often something new is painted."""
MARKS: Mapping[str, tuple[str, str, str]] = {
    "pending": ("·", ".", "dim"),
    "running": ("▸", ">", "cyan"),
    "retrying": ("↻", "~", "yellow"),
    "waiting": ("?", "?", "bold yellow"),
    "paused": ("‖", "=", "yellow"),
    "complete": ("✓", "+", "green"),
    "failed": ("✗", "x", "bold red"),
    "failed_safe": ("✗", "x", "yellow"),
    "cancelled": ("✗", "x", "yellow"),
    "aborted": ("✗", "x", "bold red"),
    "skipped": ("-", "-", "dim"),
    "more": ("…", ".", "dim"),
}
"""For each status a mark, one for terminals without Unicode, and a colour. The mark alone tells enough."""


class LiveView:
    """Shows the model until `close`, which leaves the last picture in the scrollback and gives the cursor back."""

    wants_history = True

    def __init__(
        self,
        model: RunModel,
        console: Console,
        *,
        now: Callable[[], datetime],
        hint: str = "",
        begun_at: int | None = None,
    ) -> None:
        self.model = model
        self.hint = hint
        """A last line that says what the keys do."""
        self._begun_at = begun_at
        """The sequence at which the drive that is shown began; what an earlier one decided is not told again."""
        self._usual_ms: Mapping[str, float] = {}
        self._console = console
        self._now = now
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._ended = threading.Event()
        self._live = self._new_live()
        self._painted: tuple[tuple[int, int], list[str]] = ((0, 0), [])
        self._painting = threading.Lock()
        self._thread = threading.Thread(target=self._paint, name="agentos-view", daemon=True)

    def start(self) -> None:
        self._live.start()
        self._thread.start()

    def show(self, events: Sequence[ev.Event]) -> None:
        """Take events in; they are on the screen a moment later."""
        with self._lock:
            for event in events:
                self.model.apply(event)
        for event in events:
            if isinstance(event, ev.ResumePlanned) and not event.under_way and self._is_of_this_drive(event):
                self._print_above(describe_event(event))
        self._news.set()

    def _is_of_this_drive(self, event: ev.Event) -> bool:
        return self._begun_at is not None and event.seq > self._begun_at

    def _print_above(self, line: str) -> None:
        with self._painting, self._while_there():
            self._console.print(Text(line))

    def expect(self, usual_ms: Mapping[str, float]) -> None:
        self._usual_ms = usual_ms

    def wrap_stream(self, stream: TextIO) -> TextIO:
        """Where to write what would otherwise go to this stream: on the same terminal, above the picture."""
        return cast("TextIO", FileProxy(self._console, stream)) if stream.isatty() else stream

    def pause(self) -> None:
        """Leave the picture as it is and give the terminal to somebody else."""
        with self._painting, self._while_there():
            if self._live.is_started:
                self._refresh(final=True)
                self._live.stop()

    def go_on(self) -> None:
        with self._painting, self._while_there():
            if not self._ended.is_set() and not self._live.is_started:
                self._live = self._new_live()
                self._painted = ((0, 0), [])
                self._live.start()
        self._news.set()

    def close(self) -> None:
        """Paint the end, put the cursor back. Safe to call twice, and from wherever an error leads."""
        self._ended.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()
        self.pause()

    # --- in the view's own thread --------------------------------------------------------------------------------

    def _paint(self) -> None:
        while not self._ended.is_set():
            # Without news the clock still goes on, once a second or so.
            self._news.wait(timeout=1.0 - FRAME_S)
            self._news.clear()
            with self._painting, self._while_there():
                if self._live.is_started and not self._ended.is_set():
                    self._refresh()
            self._ended.wait(FRAME_S)

    def _refresh(self, *, final: bool = False) -> None:
        size = self._console.size
        lines = self._lines(size.width, size.height, final=final)
        self._erase_what_was_rewrapped((size.width, size.height))
        self._painted = ((size.width, size.height), [line.plain for line in lines])
        self._live.update(Group(*lines), refresh=True)

    @contextmanager
    def _while_there(self) -> Iterator[None]:
        """A terminal that is gone (its window was closed) ends the showing; the run has its own way to learn of it."""
        try:
            yield
        except OSError:
            self._ended.set()
            forget(self._console.file)

    def _lines(self, width: int, height: int, *, final: bool) -> list[Text]:
        # The last row stays free: painting into it makes some terminals scroll.
        room = max(1, height - 1)
        hint = self.hint if room >= 6 and not final else ""
        with self._lock:
            is_over = self.model.facts.status not in ("running", "pending")
            now = self.model.last_at if final and is_over else self._now()
            rows = frame(self.model, room - bool(hint), now, usual_ms=self._usual_ms)
        unicode = self._console.encoding.startswith("utf")
        lines = [paint_row(row, width, unicode=unicode) for row in rows]
        if hint:
            lines.append(cut(Text(hint, style="dim"), width))
        return lines

    def _erase_what_was_rewrapped(self, size: tuple[int, int]) -> None:
        """After a narrowing, terminals break the old lines anew: they take more rows than rich knows of."""
        (width, _), lines = self._painted
        if not lines or size[0] >= width:
            return
        rows = sum(max(1, math.ceil(cell_len(line) / size[0])) for line in lines)
        extra = min(rows, size[1]) - len(lines)
        if extra > 0:
            up = ((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)) * extra
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), *up))

    def _new_live(self) -> Live:
        return Live(
            console=self._console,
            auto_refresh=False,
            vertical_overflow="crop",
            redirect_stdout=False,
            redirect_stderr=False,
        )


def paint_row(row: FrameRow, width: int, *, unicode: bool = True) -> Text:
    """A row as styled text of at most `width` cells."""
    mark, plain_mark, style = MARKS.get(row.status, ("·", ".", ""))
    indent = "    " * row.depth if width >= 40 else " " * row.depth
    text = Text(f"{indent}{mark if unicode else plain_mark} ", style=style)
    # A task keeps both ends of its name, and its figures stay in sight; what a run asks is read from its beginning.
    room = max(width // 2, width - text.cell_len - cell_len(row.figures) - (6 if row.more else 3))
    text.append(fit_name(row.what, room) if row.depth else row.what, style="" if row.depth else "bold")
    if row.figures:
        text.append(f"  {row.figures}", style="dim" if row.status == "pending" else "")
    if row.more:
        text.append(f"  {row.more}", style="dim")
    return cut(text, width)


def fit_name(name: str, width: int) -> str:
    """The name in at most `width` cells, cut in its middle."""
    length = min(len(name), width) if cell_len(name) > width else len(name)
    while length > 1 and cell_len(short_middle(name, length)) > width:  # wide characters take two cells
        length -= 1
    return short_middle(name, length)


def cut(text: Text, width: int) -> Text:
    """The text on one row: cut with an ellipsis where it is too wide."""
    text.no_wrap = True
    text.truncate(max(1, width - 1), overflow="ellipsis")
    return text


def console_for(stream: Any) -> Console:
    """A console on this terminal. Colours as NO_COLOR and TERM say; no markup, no guesses about what text means."""
    # COLUMNS and LINES, where a shell exports them, are those of its start: the terminal itself knows better.
    stream.reconfigure(errors="backslashreplace")
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return Console(file=stream, markup=False, emoji=False, highlight=False, soft_wrap=False, _environ=environ)
