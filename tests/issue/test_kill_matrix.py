"""The kill matrix over the whole issue workflow: killed at every point it passes, resumed, compared.

Exactly one issue is filed, no call is repeated whose answer was recorded, no draft is lost, and rounds and files are
those of the run that was not killed. A few cases are drawn by lot; `make matrix` plays all of them.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import pytest

from agentos import Client
from agentos.crashpoints import LOG, VARIABLE
from agentos.exceptions import NotFoundError
from agentos.machine import events as ev
from tests.cli.conftest import SOURCES, Completed
from tests.conftest import git
from tests.crash.harness import PATIENCE_S
from tests.crash.matrix import ASKED, CHOSEN, SEED, folder
from tests.crash.matrix import VARIABLE as MATRIX
from tests.forks import shared_forks
from tests.issue.stage import BRIEF, Stage

RUN = "issue-dark-mode"
MOST = 12
"""Processes that may be needed until it is done."""

DRAFTER = """#!/bin/sh
# The draft follows from the prompt alone, so that a call which is repeated gives the same.
here={here}
number=1
while ! mkdir "$here/$number" 2>/dev/null; do number=$((number + 1)); done
cat > "$here/$number/prompt"
if grep -q "<last-draft>" "$here/$number/prompt"; then echo "# Dark mode"; echo; echo "Two."; else echo "# Night"; fi
"""
REVIEWER = """#!/bin/sh
here={here}
number=1
while ! mkdir "$here/$number" 2>/dev/null; do number=$((number + 1)); done
cat > "$here/$number/prompt"
if ! grep -q "^Two" "$here/$number/prompt"; then
    echo '{{"verdict": "revise", "summary": "Nearly.", "changes": ["More."]}}'
elif grep -q "could not be read" "$here/$number/prompt"; then
    echo '{{"verdict": "approve", "summary": "Good.", "changes": []}}'
else
    echo "Looks good to me!"
fi
"""
SCENARIOS = {"rounds": "none", "gated": "draft"}
"""By name: the gates at which a human is asked. The human sends every draft on."""


class Case(NamedTuple):
    """The `process`-th process is killed at the n-th pass over a point."""

    scenario: str
    process: int
    point: str
    n: int

    def __str__(self) -> str:
        return f"{self.scenario}-{self.process}-{self.point}-{self.n}"


class Ending(NamedTuple):
    """What has to be the same, however often it was killed."""

    artefacts: dict[str, str]
    rounds: object
    issues: int


class ForkedStage(Stage):
    """One whose processes are forks of one that has imported everything."""

    def agentos(self, *arguments: str, env: Mapping[str, str] | None = None) -> Completed:
        files = [self.beside / name for name in ("stdout", "stderr")]
        for file in files:
            file.unlink(missing_ok=True)
        whole = {**os.environ, "PYTHONPATH": str(SOURCES), **self.env, **(env or {})}
        process = shared_forks().start_into(["-m", "agentos", *arguments], cwd=self.repo, env=whole, files=files)
        code = process.wait(PATIENCE_S)
        assert code is not None, f"{arguments} did not end within {PATIENCE_S:g} s"
        return Completed(code, *(file.read_text() for file in files))


def play(stage: Stage, scenario: str, armed: dict[int, str] | None = None) -> Ending:
    """From the brief to the filed issue, with as many processes as that takes."""
    for number in range(1, MOST):
        env = {VARIABLE: at} if (at := (armed or {}).get(number)) else {}
        words = ["approve", RUN, "--choose", "send"] if _waits(stage) else None
        done = stage.agentos(*words, env=env) if words else stage.issue(*_begin(), gates=SCENARIOS[scenario], env=env)
        assert done.code in (0, 3, -signal.SIGKILL), done.err
        if done.code == 0:
            return ending(stage)
    raise AssertionError(f"not done after {MOST} processes")


def _begin() -> list[str]:
    return ["--brief", "dark-mode.md"]


def _waits(stage: Stage) -> bool:
    try:
        return bool(stage.gates())
    except NotFoundError:
        return False


def ending(stage: Stage) -> Ending:
    folder = stage.repo / "docs/lineage/done/1-dark-mode"
    texts = {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.suffix == ".md"}
    texts |= {path.name: "" for path in folder.iterdir() if path.suffix != ".md"}
    rounds = Client(stage.repo).show(RUN).outputs["filed"]["rounds"]
    return Ending(texts, rounds, len(stage.filed))


def check_calls(stage: Stage) -> None:
    """No call whose answer was recorded was made again; none was made that the journal does not know of."""
    events = Client(stage.repo).events(RUN)
    complete: set[str] = set()
    begun: Counter[str] = Counter()
    for event in events:
        if isinstance(event, ev.TaskStart):
            assert event.task_id not in complete, f"{event.task_id} ran again after its answer was recorded"
            begun[event.task_id.partition("@")[0]] += 1
        elif isinstance(event, ev.TaskComplete):
            complete.add(event.task_id)
    assert len(stage.calls("drafter")) <= begun["draft"]
    assert len(stage.calls("reviewer")) <= begun["review"] + begun["review_again"]
    assert begun["draft"] <= 2 + 1, "one more for the call that was interrupted"


def a_stage(folder: Path) -> Stage:
    repo = folder / "repo"
    repo.mkdir(parents=True)
    git("init", "--quiet", cwd=repo)
    stage = ForkedStage(repo, folder / "beside")
    for name, text in (("drafter", DRAFTER), ("reviewer", REVIEWER)):
        (folder / "beside" / f"{name}.sh").write_text(text.format(here=folder / "beside" / name))
    return stage


@cache
def undisturbed(scenario: str) -> tuple[Ending, list[Counter[str]]]:
    """How it ends where nobody is killed, and what each process passes on the way."""
    place = folder() / scenario
    stage = a_stage(place)
    logs = {number: f"{LOG}:{place / f'points.{number}'}" for number in range(1, MOST)}
    ending = play(stage, scenario, logs)
    check_calls(stage)
    files = sorted(place.glob("points.*"), key=lambda file: int(file.suffix[1:]))
    passes = [Counter(file.read_text().split()) for file in files]
    shutil.rmtree(place)
    return ending, passes


def every_case(scenario: str) -> Iterator[Case]:
    for process, passes in enumerate(undisturbed(scenario)[1], 1):
        for point, count in sorted(passes.items()):
            yield from (Case(scenario, process, point, n) for n in range(1, count + 1))


SHARES = 8 if ASKED else 1
"""So that several processes can share the work."""
DRAWN = 4


def cases(scenario: str, share: int) -> list[Case]:
    mine = [case for case in every_case(scenario) if crc32(str(case).encode()) % SHARES == share]
    if ASKED:
        return [case for case in mine if ASKED in ("full", str(case))]
    return random.Random(f"{CHOSEN} {scenario}").sample(mine, DRAWN)


@pytest.mark.full
@pytest.mark.timeout(7200 if ASKED else 300)
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_killed_issue_run_ends_as_one_that_was_not(scenario: str, share: int) -> None:
    expected, _ = undisturbed(scenario)
    assert expected.issues == 1
    assert expected.rounds == 2
    assert expected.artefacts["001-brief.md"] == BRIEF
    wrong = []
    for case in cases(scenario, share):
        place = folder() / str(case)
        try:
            stage = a_stage(place)
            assert play(stage, case.scenario, {case.process: f"{case.point}:{case.n}"}) == expected
            check_calls(stage)
            shutil.rmtree(place)
        except AssertionError as error:
            wrong.append(f"{SEED}={CHOSEN} {MATRIX}={case}: {str(error)[:500]}\n  folder: {place}")
    assert not wrong, "\n".join(wrong)
