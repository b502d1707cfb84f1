"""Writes docs/demo.svg: `agentos demo`, run in a terminal and played back by a picture that needs nothing else.

    python tools/record_demo.py

Lines appear as they did, slowed down where nobody could read them. Where nothing moves, its last screen is shown.
"""

from __future__ import annotations

import io
import os
import re
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pexpect
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.text import Text

TARGET = Path(__file__).parents[1] / "docs" / "demo.svg"
COLUMNS, ROWS = 104, 26
LINE_S = 0.12
"""A line stands at least so long before the next."""
PART_S = 2.0
"""And before a new part of the demo."""
END_S = 8.0
ROW_PX = 24.4
"""As Rich has it."""
GROUND = "#292929"
FRAME = f"""
    <rect width="100%" height="100%" rx="10" fill="{GROUND}"/>
    <g fill="#ff5f57" transform="translate(26, 22)">
    <circle r="7"/><circle cx="22" r="7" fill="#febc2e"/><circle cx="44" r="7" fill="#28c840"/></g>
"""


class Row(NamedTuple):
    """A row of the terminal, and how long it is the last one."""

    text: Text
    stands_s: float


def main() -> None:
    svg = render(record())
    TARGET.write_text(svg)
    print(f"{TARGET.name}: {len(svg) // 1000} kB")


def record() -> list[tuple[str, float]]:
    """What the demo printed, line by line, each with the seconds until the next."""
    # In /tmp, whatever the machine says: the path is part of the picture.
    env = {**os.environ, "TERM": "xterm-256color", "TMPDIR": "/tmp"}
    env.pop("NO_COLOR", None)
    demo = pexpect.spawn(
        sys.executable,
        ["-m", "agentos", "demo"],
        env=env,
        encoding="utf-8",
        timeout=60,
        dimensions=(ROWS, COLUMNS),
    )
    lines, came = [], []
    while line := demo.readline():
        lines.append(line.rstrip("\r\n"))
        came.append(time.monotonic())
    demo.close()
    if demo.exitstatus != 0:
        sys.exit("\n".join([*lines, f"The demo ended with {demo.exitstatus}: nothing was written."]))
    gaps = [after - before for before, after in pairwise(came)]
    return list(zip(lines, [*gaps, END_S], strict=True))


def render(lines: list[tuple[str, float]]) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="standard")
    rows: list[Row] = []
    decoder = AnsiDecoder()
    for number, (line, gap_s) in enumerate(lines):
        following = re.sub(r"\x1b\[[\d;]*m", "", lines[number + 1][0]) if number + 1 < len(lines) else ""
        stands_s = max(gap_s, PART_S if re.match(r"\d\. |What was promised", following) else LINE_S)
        wrapped = decoder.decode_line(line).wrap(console, COLUMNS, overflow="fold") or [Text()]
        rows += [Row(text, 0.0) for text in wrapped[:-1]] + [Row(wrapped[-1], stands_s)]
    console.print(Text("\n").join(row.text for row in rows))
    return console.export_svg(title="agentos demo", code_format=_format(rows), unique_id="demo")


def _format(rows: list[Row]) -> str:
    """Rich's own, without the fonts it fetches; as high as a terminal, which fills up, then scrolls."""
    total_s = sum(row.stands_s for row in rows)
    scrolls: list[str] = []
    fills: list[str] = []
    at_s = 0.0
    for number, row in enumerate(rows, start=1):
        if row.stands_s:
            for moves, by in ((fills, min(number, ROWS)), (scrolls, min(0, ROWS - number))):
                moves.append(f"{at_s / total_s:.2%} {{{{ transform: translateY({by * ROW_PX:.1f}px) }}}}")
        at_s += row.stands_s
    motion = f"""
    .rows {{{{ animation: scroll {total_s:.1f}s step-end infinite }}}}
    .cover {{{{ animation: fill {total_s:.1f}s step-end infinite }}}}
    @keyframes scroll {{{{ {" ".join(scrolls)} }}}}
    @keyframes fill {{{{ {" ".join(fills)} }}}}
    @media (prefers-reduced-motion: reduce) {{{{ .rows, .cover {{{{ animation: none }}}} }}}}
    """
    end = f"translate(0, {(ROWS - len(rows)) * ROW_PX:.1f})"
    cover = f'<rect class="cover" y="1.5" width="100%" height="100%" fill="{GROUND}" transform="translate(0, 2000)"/>'
    form = re.sub(r"<!--.*?-->|@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    for theirs, ours in {
        "Fira Code, monospace": "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace",
        "{styles}": "{styles}" + motion,
        "{chrome}": FRAME,
        "{width} {height}": f"{{width}} {ROWS * ROW_PX + 58:.1f}",
        "{terminal_height}": f"{ROWS * ROW_PX:.1f}",
        "{matrix}\n    </g>": "{matrix}\n    </g>" + cover,
        '<g class="{unique_id}-matrix">': f'<g class="{{unique_id}}-matrix rows" transform="{end}">',
    }.items():
        assert theirs in form, f"Rich has changed: {theirs}"
        form = form.replace(theirs, ours)
    return form


if __name__ == "__main__":
    main()
