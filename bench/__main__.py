"""`python -m bench`: measure, print, and write the results down where asked."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from bench import docs, machine, report
from bench.cases import FULL, QUICK, Case, Sizes
from bench.cases.cluster import CLUSTER
from bench.cases.files import FILES
from bench.cases.fresh import FRESH
from bench.cases.langgraph import LANGGRAPH
from bench.cases.page import PAGE
from bench.cases.postgres import POSTGRES
from bench.cases.queue import QUEUE
from bench.cases.recovery import RESUME, SAVE, SEED
from bench.cases.starting import BUDGETS, LOCATION, START
from bench.cases.throughput import CHAIN, GROWING, SCALE, SLEEPS, STEPS, WIDE
from bench.cases.trace import TRACE
from bench.contenders import CONTENDERS
from bench.sampling import missing, take

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        CHAIN,
        STEPS,
        WIDE,
        GROWING,
        RESUME,
        SAVE,
        SLEEPS,
        START,
        BUDGETS,
        LOCATION,
        SCALE,
        SEED,
        FILES,
        FRESH,
        POSTGRES,
        QUEUE,
        PAGE,
        CLUSTER,
        TRACE,
        LANGGRAPH,
    )
}


QUICKLY = "quick: small sizes, few repetitions; whether a goal is met means little here"


def main() -> int:
    arguments = _arguments()
    sizes = QUICK if arguments.quick else FULL
    if arguments.repetitions:
        sizes = replace(sizes, repetitions=arguments.repetitions, cold_repetitions=arguments.repetitions)
    folder = Path(tempfile.mkdtemp(prefix="agentos-bench-", dir=arguments.folder or _disk()))
    try:
        return _measure(arguments, sizes, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(arguments: argparse.Namespace, sizes: Sizes, folder: Path) -> int:
    facts = machine.facts(folder)
    print("\n".join(f"{name + ':':<11}{value}" for name, value in facts.items()))
    if machine.in_memory(folder):
        print(f"WARNING: {folder} lies in memory, where syncing costs nothing; name a folder on a disk with --folder")
    if arguments.quick:
        print(QUICKLY)
    for name in arguments.contenders:
        if lacking := missing(name):
            print(f"{CONTENDERS[name].label}: {lacking} (make bench installs it)")
    left_out = [name for name in CASES if name not in arguments.only]
    without = [name for name in CONTENDERS if name not in arguments.contenders]
    if left_out or without:
        print(f"left out as asked: {', '.join([*left_out, *without])}")

    findings: list[report.Finding] = []
    for name in arguments.only:
        case = CASES[name]
        probes = [probe for probe in case.probes(sizes) if probe.contender in arguments.contenders]
        if not probes:
            print(f"\n### {name}: none of the contenders asked for takes part")
            continue
        patience_s = 0.0 if arguments.quick else arguments.patience
        series = take(probes, folder / name, repetitions=case.repetitions(sizes), patience_s=patience_s, say=_say)
        findings.append(report.Finding(case=case, series=series, chapter=case.read(series, sizes)))
        print(f"\n{report.case_table(findings[-1], sizes)}", flush=True)

    facts["company"] = report.disturbance(findings)
    if arguments.quick:
        print(f"\n{QUICKLY}")
    print(f"\n### Goals\n\n{report.goals_table(findings)}\n\n{report.tally(findings)}\n\n{facts['company']}")
    if arguments.json:
        content = report.as_json(facts, findings, quick=arguments.quick)
        Path(arguments.json).write_text(json.dumps(content, indent=1) + "\n")
        print(f"written: {arguments.json}")
    if arguments.write_docs:
        docs.write(facts, findings, sizes)
        print(f"written: {docs.PAGE}")
    failed = [key for finding in findings for key in finding.series.probes if _failed(finding, key)]
    return 1 if failed else 0


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def _failed(finding: report.Finding, key: str) -> bool:
    """A sample that could not be taken although everything it needs is here."""
    problem = finding.series.problem(key)
    return bool(problem) and not problem.startswith("not installed")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure AgentOS against raw sqlite3, asyncio, LangGraph and DBOS, on the same work.",
        epilog="example: python -m bench --only chain,wide --json results.json",
    )
    parser.add_argument("--only", type=_names(CASES), default=list(CASES), help=f"cases: {', '.join(CASES)}")
    parser.add_argument(
        "--contenders", type=_names(CONTENDERS), default=list(CONTENDERS), help=f"who: {', '.join(CONTENDERS)}"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and one repetition, to try the harness")
    parser.add_argument("--repetitions", type=int, default=0, help="instead of 3 (and 9 for cold starts)")
    parser.add_argument(
        "--patience", type=float, default=5.0, help="seconds to wait before a sample until others are quiet (5)"
    )
    parser.add_argument("--folder", type=Path, help="where to work, on the disk that is to be measured")
    parser.add_argument("--json", metavar="FILE", help="write everything, raw samples included, to FILE")
    parser.add_argument("--write-docs", action="store_true", help=f"put the results of a whole run into {docs.SHOWN}")
    arguments = parser.parse_args()
    whole = set(arguments.only) == set(CASES) and set(arguments.contenders) == set(CONTENDERS)
    if arguments.write_docs and (arguments.quick or not whole):
        parser.error("--write-docs is for a whole run: without --quick, --only and --contenders")
    return arguments


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown) or text!r}; choose from {', '.join(known)}")
        return [name for name in known if name in names]

    return parse


def _disk() -> Path:
    """The usual place for temporary files, unless that lies in memory."""
    usual = Path(tempfile.gettempdir())
    return Path("/var/tmp") if machine.in_memory(usual) and Path("/var/tmp").is_dir() else usual


if __name__ == "__main__":
    sys.exit(main())
