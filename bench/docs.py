"""The results of the last whole run, in docs/performance.md between two markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench import report
from bench.cases import Sizes
from bench.machine import ROOT

SHOWN = "docs/performance.md"
PAGE = ROOT / SHOWN
BEGIN = "<!-- results: written by `python -m bench --write-docs`, not by hand -->"
END = "<!-- end of results -->"


def write(facts: Mapping[str, str], findings: Sequence[report.Finding], sizes: Sizes) -> None:
    """Replace what stands between the markers."""
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    machine = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    results = "\n\n".join([machine, report.tally(findings), report.tables(findings, sizes)])
    PAGE.write_text(f"{before}{BEGIN}\n\n{results}\n\n{END}{after}")
