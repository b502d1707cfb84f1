"""Taking samples: each in a process and a folder of its own, contenders taking turns, repetition after repetition."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.contenders import CONTENDERS
from bench.machine import ROOT, Watch, version, wait_for_quiet

TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One thing to measure, of one contender."""

    key: str
    contender: str
    workload: str
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return CONTENDERS[self.contender].label


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one process measured, or why it could not."""

    metrics: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    others: float | None = None
    """Cores that other processes used meanwhile."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median with the range around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        known = [value for value in values if not math.isnan(value)]
        return cls(statistics.median(known), min(known), max(known)) if known else None


class Series:
    """The samples of a case: for each probe, one for each repetition."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self.probes = {probe.key: probe for probe in probes}
        self.samples: dict[str, list[Sample]] = {probe.key: [] for probe in probes}

    def values(self, key: str, metric: str) -> list[float]:
        """One for each repetition; not a number where it failed."""
        return [float(sample.metrics.get(metric, math.nan)) for sample in self.samples.get(key, [])]

    def spread(self, key: str, metric: str) -> Spread | None:
        return Spread.of(self.values(key, metric))

    def ratio(self, key: str, metric: str, to: str, to_metric: str = "") -> Spread | None:
        """One by the other, repetition by repetition: both had the same weather."""
        return self._paired(lambda a, b: a / b if b else math.nan, key, metric, to, to_metric or metric)

    def difference(self, key: str, metric: str, to: str, to_metric: str = "") -> Spread | None:
        return self._paired(lambda a, b: a - b, key, metric, to, to_metric or metric)

    def _paired(
        self, what: Callable[[float, float], float], key: str, metric: str, to: str, to_metric: str
    ) -> Spread | None:
        pairs = zip(self.values(key, metric), self.values(to, to_metric), strict=False)
        return Spread.of(what(a, b) for a, b in pairs)

    def problem(self, key: str) -> str:
        """Why nothing, or not everything, was measured; empty where all went well."""
        if key not in self.samples:
            return "left out"
        problems = [sample.problem for sample in self.samples[key] if sample.problem]
        if problems and len(problems) < len(self.samples[key]):
            return f"{len(problems)} of {len(self.samples[key])} samples failed: {problems[0]}"
        return problems[0] if problems else ""


def missing(contender: str) -> str:
    """What is not installed that this contender needs; empty if it can run."""
    lacking = [package for package in CONTENDERS[contender].packages if version(package) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else ""


def take(
    probes: Sequence[Probe], folder: Path, *, repetitions: int, patience_s: float, say: Callable[[str], None]
) -> Series:
    """Sample every probe `repetitions` times. The order turns each time, so that nobody is always the first."""
    series = Series(probes)
    for repetition in range(repetitions):
        turn = repetition % len(probes) if probes else 0
        for probe in (*probes[turn:], *probes[:turn]):
            lacking = missing(probe.contender)
            if not lacking:
                say(f"{folder.name}: {probe.key} {repetition + 1}/{repetitions}")
                wait_for_quiet(patience_s)
            sample = Sample(problem=lacking) if lacking else _sample(probe, folder / f"{probe.key}-{repetition}")
            series.samples[probe.key].append(sample)
    return series


def environment(home: Path) -> dict[str, str]:
    """What every measured process sees: this checkout, an empty home, and nothing of the caller's own settings."""
    # PYTHONDONTWRITEBYTECODE, for one, would make every cold start compile everything again.
    unwanted = ("AGENTOS_", "BENCH_", "GIT_", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    paths = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    return {**kept, "HOME": str(home), "PYTHONPATH": os.pathsep.join(paths), "LANGSMITH_TRACING": "false"}


def _sample(probe: Probe, folder: Path) -> Sample:
    work, home = folder / "work", folder / "home"
    home.mkdir(parents=True)
    work.mkdir()
    command = [sys.executable, "-m", "bench.worker", probe.contender, probe.workload, str(work)]
    watch = Watch()
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            [*command, json.dumps(probe.parameters)],
            cwd=work,
            env=environment(home),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(TIMEOUT_S)
            problem = "" if code == 0 else f"ended with {code}: {_last_line(folder / 'output')}"
        except subprocess.TimeoutExpired:
            problem = f"took longer than {TIMEOUT_S:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    others = watch.others()
    metrics = {} if problem else json.loads((work / "result.json").read_text())
    shutil.rmtree(folder)
    return Sample(metrics=metrics, problem=problem, others=others)


def _last_line(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it said nothing"
