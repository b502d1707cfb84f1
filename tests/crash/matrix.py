"""The kill matrix: every pass of every point, in every scenario, on both stores; what is played, and how.

    make matrix                                                     all of it
    AGENTOS_MATRIX='sqlite files' pytest tests/crash/test_matrix.py    all that begins with these words
    AGENTOS_MATRIX_SEED=17 ...                                      the sample, and what is drawn by lot, once more

Nothing says beforehand how often a point is passed: each scenario is played once undisturbed, and once killed in the
middle and resumed, and every pass that these two write down is a case.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from tests.crash.harness import SAW, SCENARIOS, ForkedTheatre, QueuedTheatre, make_repository
from tests.crash.playing import Kill, Played, play
from tests.postgres.server import fresh_url

VARIABLE = "AGENTOS_MATRIX"
SEED = "AGENTOS_MATRIX_SEED"
ASKED = os.environ.get(VARIABLE, "")  # read at once: fixtures clear variables of this kind
CHOSEN = int(os.environ.get(SEED, "0"))

READY = {
    'Workflow("merges")': 'Workflow("merges", schedule="ready")',
    'flow.add("last", "shell",': 'flow.add("last", "shell", isolation="worktree",',
}
"""Each task as soon as it can; one that is not isolated could not be among them."""
VARIANTS = {
    "ready": ("merges", READY),
    "migration": ("chain", {}),
    "queued": ("chain", {}),
    "queuedfiles": ("files", {}),
}
"""Scenarios made of others. `migration` is cut off under one schema and resumed under the next; what is queued is
submitted, and a worker takes it."""
NAMES = (*sorted(file.stem for file in SCENARIOS.iterdir() if file.suffix in (".py", ".yaml")), *VARIANTS)
STORES = ("sqlite", "postgres")
SHARES = 4 if ASKED else 1
"""So that several processes can share the work on a scenario."""
DRAWN = 4
"""Cases that are played of a scenario where not all are."""
STOPS = ("INT", "INT INT", "TERM")
SECOND, STOPPED = 0.15, 0.4
"""Of all first kills: how many are also followed by another one somewhere, or played as an orderly stop instead."""
PRELUDE = "attempt.after"
"""Killed here first where a case is about a resume: half of the work is done, one result was lost."""

AGENT = """sh "$SAW"; asked=$(cat); echo "$asked" >> "${asked%% *}.txt"; echo "answer to $asked"\n"""


class Case(NamedTuple):
    """A way to die: in which scenario, on which store, where, where again, or stopped by which signals."""

    store: str
    scenario: str
    kills: tuple[Kill, ...]
    stop: str = ""

    def __str__(self) -> str:
        kills = " then ".join(f"{kill.step}/{kill}" for kill in self.kills)
        return f"{self.store} {self.scenario} {kills}{self.stop and f' by {self.stop}'}"


class Reference(NamedTuple):
    """How a scenario ends that nobody disturbs, and every pass of it and of the resume after a kill."""

    ending: dict[str, Any]
    first: list[Kill]
    again: list[tuple[Kill, Kill]]


@cache
def folder() -> Path:
    """For all that this process plays; in memory where there is room for it, since nothing here has to survive."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="agentos-matrix-", dir=memory if os.access(memory, os.W_OK) else None))
    atexit.register(_clear, made)
    return made


def _clear(made: Path) -> None:
    """Only what went wrong is kept."""
    shutil.rmtree(made / "templates", ignore_errors=True)
    with suppress(OSError):
        made.rmdir()


@cache
def template(scenario: str) -> tuple[Path, str]:
    """A repository to copy for each case, with what lies beside it; and the name of the workflow in it."""
    origin, replaced = VARIANTS.get(scenario, (scenario, {}))
    source = next(SCENARIOS.glob(f"{origin}.*"))
    made = folder() / "templates" / scenario
    repo = made / "repo"
    make_repository(repo)
    text = source.read_text()
    for old, new in replaced.items():
        assert old in text, old
        text = text.replace(old, new)
    flow = f"flow{source.suffix}"
    repo.joinpath(flow).write_text(text)
    repo.joinpath("kept.txt").write_text("".join(f"{number}\n" for number in range(9)))
    repo.joinpath("agent.sh").write_text(AGENT)
    made.joinpath("saw.sh").write_text(SAW)
    for command in (["add", "kept.txt", "agent.sh"], ["commit", "--quiet", "--message", "kept"]):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *command], cwd=repo, check=True)
    return made, flow


def stage(store: str, scenario: str, place: Path) -> ForkedTheatre:
    made, flow = template(scenario)
    kind = QueuedTheatre if scenario.startswith("queued") else ForkedTheatre
    theatre = kind(place, f"{scenario}-{store}", flow, made)
    theatre.migrates = scenario == "migration"
    if store == "postgres":
        theatre.use_server(fresh_url())
    return theatre


@cache
def reference(store: str, scenario: str) -> Reference:
    place = folder() / f"{store}-{scenario}"
    undisturbed = play(stage(store, scenario, place / "undisturbed"), count=True)
    first = passes_of(undisturbed)
    inside = [kill for kill in first if kill.point == PRELUDE]
    prelude = inside[len(inside) // 2]
    resumed = play(stage(store, scenario, place / "resumed"), [prelude], count=True)
    assert not resumed.left, f"not reached: {prelude}"
    again = [(prelude, kill) for kill in passes_of(resumed) if kill.step > prelude.step]
    shutil.rmtree(place)
    return Reference(undisturbed.ending, [] if scenario == "migration" else first, again)


def passes_of(played: Played) -> list[Kill]:
    return [
        Kill(point, n, step)
        for step, counted in enumerate(played.steps)
        for point, count in sorted(counted.items())
        for n in range(1, count + 1)
    ]


def every_case(store: str, scenario: str) -> Iterator[Case]:
    """Each pass once, each pass of a resume, and, by lot, second kills and orderly stops."""
    known = reference(store, scenario)
    yield from (Case(store, scenario, (kill,)) for kill in known.first)
    yield from (Case(store, scenario, kills) for kills in known.again)
    for kill in known.first if store == STORES[0] else ():
        chance = random.Random(f"{CHOSEN} {store} {scenario} {kill}")
        second = chance.choice(known.again)[1]
        if chance.random() < SECOND:
            yield Case(store, scenario, (kill, second._replace(n=chance.randint(1, second.n), step=kill.step + 1)))
        if kill.step == 0 and template(scenario)[1] == "flow.yaml" and chance.random() < STOPPED:
            yield Case(store, scenario, (kill,), chance.choice(STOPS))


def played() -> list[tuple[str, str, int]]:
    """What this session plays: every scenario on every store, in shares; of a sample each scenario on one, by lot."""
    if ASKED:
        return [(store, scenario, share) for store in STORES for scenario in NAMES for share in range(SHARES)]
    return [(random.Random(f"{CHOSEN} {scenario}").choice(STORES), scenario, 0) for scenario in NAMES]


def cases(store: str, scenario: str, share: int) -> list[Case]:
    """What this session plays of it, in this share: all that was asked for, or a few by lot."""
    mine = [case for case in every_case(store, scenario) if crc32(str(case).encode()) % SHARES == share]
    if ASKED:
        words = [] if ASKED == "full" else ASKED.split()
        return [case for case in mine if str(case).split()[: len(words)] == words]
    return random.Random(f"{CHOSEN} {store} {scenario} {share}").sample(mine, DRAWN)


def find_wrong(case: Case, place: Path) -> str:
    """Play a case; what is wrong with how it ended, or nothing."""
    expected = reference(case.store, case.scenario).ending
    first, *more = case.kills
    for fewer in range(first.n):
        theatre = stage(case.store, case.scenario, place / str(fewer))
        theatre.stop = case.stop
        try:
            # Results that are ready together share a commit: there may be fewer of them than in the undisturbed run.
            played = play(theatre, [first._replace(n=first.n - fewer), *more])
            if told := difference(played.ending, expected):
                return f"{told}\n{theatre.told()}"
        except (AssertionError, TimeoutError) as error:
            return f"{error}\n{theatre.told()}"
        if len(played.left) < len(case.kills):
            break
    return ""


def difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """Which files and which parts of the state are not what they should be."""
    wrong = []
    for part, wanted in expected.items():
        for name in sorted({*wanted, *found[part]}):
            was, should = found[part].get(name), wanted.get(name)
            if was != should:
                wrong.append(f"{part} {name}: {was!r:.200} instead of {should!r:.200}")
    return "; ".join(wrong)


def play_cases(cases: Iterable[Case], tell: Callable[[str], None] = lambda text: None) -> list[str]:
    """Each case that went wrong, and how to play it again. Its folder is kept."""
    wrong = []
    for case in cases:
        place = folder() / f"case-{crc32(str(case).encode())}"
        told = find_wrong(case, place)
        tell(f"{case}: {told.partition(chr(10))[0] or 'ok'}")
        if told:
            wrong.append(f"{SEED}={CHOSEN} {VARIABLE}={str(case)!r}: {told}")
        else:
            shutil.rmtree(place)
        ForkedTheatre.made.clear()
    return wrong
