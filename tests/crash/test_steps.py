"""Durable steps: killed anywhere, a step whose result is on record is not made again."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from agentos import testing
from tests.marks import quick_first

FLOW = """
import asyncio, os, sys
from agentos import Workflow, run

flow = Workflow("pay", params={"until": 4})

def note(word):
    with open(os.environ["TRACE"], "a") as file:
        file.write(word + "\\n")

def charge(number):
    note(f"charge {number}")
    return (number, "x" * (1_200_000 if number == 1 else 3))

async def mail(number):
    note(f"mail {number}")
    return {"sent": number}

@flow.task
async def pay(until, ctx):
    sums = []
    for number in range(until):
        charged, text = await ctx.step(charge, number)
        sums.append(charged + len(text))
    both = await asyncio.gather(ctx.step(mail, 1), ctx.step(mail, 2))
    return [sums, both]

if __name__ == "__main__":
    print(run(flow, workflow_id="r").outputs["pay"])
"""
STEPS = ["charge 0", "charge 1", "charge 2", "charge 3", "mail 1", "mail 2"]
KILLS = [f"{point}:{number}" for number in range(1, 7) for point in ("step.before", "step.after")]


@pytest.fixture
def place(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_git_repo / "flow.py").write_text(FLOW)
    monkeypatch.setenv("TRACE", str(tmp_git_repo.parent / "trace"))
    return tmp_git_repo


def made(place: Path) -> Counter[str]:
    return Counter((place.parent / "trace").read_text().splitlines())


@pytest.mark.parametrize("at", quick_first(KILLS))
def test_killed_around_any_step_only_what_was_not_recorded_is_made_again(place: Path, at: str) -> None:
    killed = testing.start([sys.executable, "flow.py"], cwd=place, at=at)
    assert killed.returncode == -9
    done = testing.start([sys.executable, "flow.py"], cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[[3, 1200001, 5, 6], [{'sent': 1}, {'sent': 2}]]\n")
    again = made(place) - Counter(STEPS)
    assert set(made(place)) == set(STEPS)
    # Steps that are made side by side may both have been on their way.
    assert sum(again.values()) <= (2 if at.startswith("step.before") or at == "step.after:5" else 0), again


@pytest.mark.full
@pytest.mark.parametrize("second", KILLS[::3])
def test_killed_twice(place: Path, second: str) -> None:
    assert testing.start([sys.executable, "flow.py"], cwd=place, at="step.after:2").returncode == -9
    again = testing.start([sys.executable, "flow.py"], cwd=place, at=second)
    done = again if again.returncode == 0 else testing.start([sys.executable, "flow.py"], cwd=place)
    assert done.returncode == 0, done.stderr
    assert made(place)["charge 0"] == made(place)["charge 1"] == 1


def test_the_journal_has_each_step_once(place: Path) -> None:
    testing.start([sys.executable, "flow.py"], cwd=place, at="step.after:3")
    assert testing.start([sys.executable, "flow.py"], cwd=place).returncode == 0
    told = testing.start([sys.executable, "-m", "agentos", "events", "r", "--json"], cwd=place).stdout
    steps = [event for event in map(json.loads, told.splitlines()) if event["type"] == "task_step"]
    assert [(step["number"], step["name"]) for step in steps[:4]] == [(n, "charge") for n in range(4)]
    assert sorted((step["number"], step["name"]) for step in steps[4:]) == [(4, "mail"), (5, "mail")]
    assert steps[1]["output"] == [1, "x" * 1_200_000]
