"""The results of the last whole run: the gist in docs/performance.md between two markers, all tables in results.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench import report
from bench.cases import Sizes
from bench.machine import ROOT

SHOWN = "docs/performance.md"
PAGE = ROOT / SHOWN
RESULTS = ROOT / "bench" / "results.md"
BEGIN = "<!-- results: written by `python -m bench --write-docs`, not by hand -->"
END = "<!-- end of results -->"
IN_THE_PAGE = "chain"


def write(facts: Mapping[str, str], findings: Sequence[report.Finding], sizes: Sizes) -> None:
    """Replace what stands between the markers, and the page of tables."""
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    machine = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    head = f"{machine}\n\n{report.tally(findings)}"
    shown = [report.case_table(finding, sizes) for finding in findings if finding.case.name == IN_THE_PAGE]
    gist = "\n\n".join([head, *shown])
    PAGE.write_text(f"{before}{BEGIN}\n\n{gist}\n\n{END}{after}")
    tables = report.tables(findings, sizes, level=2)
    RESULTS.write_text(f"# Results of the last whole run\n\n{BEGIN}\n\n{head}\n\n{tables}\n")
