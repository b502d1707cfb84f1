"""What is measured: each case says which samples it needs, and reads them into rows and goals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.sampling import Probe, Series, Spread

Unit = Literal["ms", "s", "×", "bytes", "%"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much work. `--quick` is for trying the harness: its numbers are not to be cited."""

    tasks: int = 1000
    layers: int = 10
    width: int = 100
    steps: int = 500
    edge: int = 50
    saves: int = 300
    seed_saves: int = 1000
    many: int = 10_000
    times: int = 1000
    files: int = 5000
    more_files: int = 50_000
    changed: int = 1000
    runs: int = 1000
    watched_s: float = 60.0
    repetitions: int = 3
    cold_repetitions: int = 9


FULL = Sizes()
QUICK = Sizes(
    tasks=100,
    layers=5,
    width=20,
    steps=100,
    edge=20,
    saves=30,
    seed_saves=50,
    many=500,
    times=100,
    files=200,
    more_files=400,
    changed=50,
    runs=100,
    watched_s=3.0,
    repetitions=1,
    cold_repetitions=2,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of measurements."""

    what: str
    value: Spread | None
    unit: Unit
    ratio: Spread | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Something promised, and whether it held: the median decides."""

    what: str
    limit: float
    unit: Unit
    value: Spread | None
    at_least: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        """None where it was not measured."""
        if self.value is None:
            return None
        return self.value.median >= self.limit if self.at_least else self.value.median <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """What a case found."""

    rows: Sequence[Row]
    goals: Sequence[Goal] = field(default_factory=tuple)
    to: str = ""
    """What the ratios of the rows are to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    title: Callable[[Sizes], str]
    probes: Callable[[Sizes], list[Probe]]
    read: Callable[[Series, Sizes], Chapter]
    cold: bool = False
    """Short and noisy: more repetitions."""

    def repetitions(self, sizes: Sizes) -> int:
        return sizes.cold_repetitions if self.cold else sizes.repetitions


def row(series: Series, key: str, metric: str, unit: Unit, *, what: str = "", to: str = "", note: str = "") -> Row:
    """A row for a probe, by default with its contender's label and the ratio to the probe `to`."""
    probe = series.probes.get(key)
    return Row(
        what=what or (probe.label if probe else key),
        value=series.spread(key, metric),
        unit=unit,
        ratio=series.ratio(key, metric, to) if to else None,
        note="; ".join(filter(None, [series.problem(key), note])),
    )


def asked(series: Series, keys: Sequence[str]) -> list[str]:
    """Those of the keys that were asked for at all (`--contenders` may leave some out)."""
    return [key for key in keys if key in series.probes]
