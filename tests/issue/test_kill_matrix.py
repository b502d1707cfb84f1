"""The kill matrix over the whole issue workflow: killed at every point it passes, resumed, compared.

Exactly one issue is filed, no call is repeated whose answer was recorded, no draft is lost, and rounds and files are
those of the run that was not killed. A sample is played; `AGENTOS_MATRIX=full` plays all of it.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from agentos import Client
from agentos.crashpoints import LOG, VARIABLE
from agentos.exceptions import NotFoundError
from agentos.run import events as ev
from tests.conftest import git
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
    assert begun["draft"] <= 2 + 1, "one more for the call that was cut off"


def a_stage(folder: Path) -> Stage:
    repo = folder / "repo"
    repo.mkdir(parents=True)
    git("init", "--quiet", cwd=repo)
    stage = Stage(repo, folder / "beside")
    for name, text in (("drafter", DRAFTER), ("reviewer", REVIEWER)):
        (folder / "beside" / f"{name}.sh").write_text(text.format(here=folder / "beside" / name))
    return stage


SAMPLE = [
    Case("rounds", 1, "attempt.after", 4),  # the first draft is made, and not recorded
    Case("rounds", 1, "commit.inside", 20),
    Case("rounds", 1, "attempt.before", 21),  # the intent is durable, nothing is filed
    Case("rounds", 1, "attempt.after", 21),  # the issue is filed, and not recorded
    Case("rounds", 1, "attempt.inside", 16),  # its files have just been moved
    Case("gated", 1, "gate.opened", 1),
    Case("gated", 2, "commit.after", 9),
]


def every_case(logs: dict[str, list[Counter[str]]]) -> Iterator[Case]:
    for scenario, processes in logs.items():
        for process, passes in enumerate(processes, 1):
            for point, count in passes.items():
                yield from (Case(scenario, process, point, n) for n in range(1, count + 1))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Ending, list[Counter[str]]]]:
    """By scenario: how it ends where nobody is killed, and what each process passes on the way."""
    found = {}
    for scenario in SCENARIOS:
        folder = tmp_path_factory.mktemp(scenario)
        stage = a_stage(folder)
        logs = {number: f"{LOG}:{folder / f'points.{number}'}" for number in range(1, MOST)}
        ending = play(stage, scenario, logs)
        check_calls(stage)
        files = sorted(folder.glob("points.*"), key=lambda file: int(file.suffix[1:]))
        found[scenario] = (ending, [Counter(file.read_text().split()) for file in files])
    return found


def play_killed(case: Case, folder: Path, expected: Ending) -> None:
    stage = a_stage(folder)
    assert play(stage, case.scenario, {case.process: f"{case.point}:{case.n}"}) == expected, case
    check_calls(stage)


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_a_killed_issue_run_ends_as_one_that_was_not(
    case: Case, undisturbed: dict[str, tuple[Ending, list[Counter[str]]]], tmp_path: Path
) -> None:
    expected, passes = undisturbed[case.scenario]
    assert expected.issues == 1
    assert expected.rounds == 2
    assert expected.artefacts["001-brief.md"] == BRIEF
    assert passes[case.process - 1][case.point] >= case.n, "the case is none: nothing passes there so often"
    play_killed(case, tmp_path, expected)


FULL = os.environ.get("AGENTOS_MATRIX") == "full"
PARTS = 8 if FULL else 1
"""So that several processes can share the work."""


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_kill(part: int, undisturbed: dict[str, tuple[Ending, list[Counter[str]]]], tmp_path: Path) -> None:
    cases = list(every_case({scenario: passes for scenario, (_, passes) in undisturbed.items()}))
    if not FULL:
        pytest.skip(f"kill matrix of the issue workflow: {len(cases) - len(SAMPLE)} of {len(cases)} cases left out")
    wrong = []
    for number, case in enumerate(cases[part::PARTS]):
        try:
            play_killed(case, tmp_path / str(number), undisturbed[case.scenario][0])
        except AssertionError as error:
            wrong.append(f"{case}: {str(error)[:500]}")
    assert not wrong, "\n".join(wrong)
