"""Values keep their types from task to task: across a kill, into processes of their own, by annotations alone."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from agentos import Client, Workflow, run
from agentos.testing import resume, start
from agentos.workflow.drive.result import RunResult
from tests.workflow.support import environment

ORDERS = """
from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from agentos import Workflow, register_codec, run

register_codec(Fraction, str, Fraction)


class State(enum.Enum):
    OPEN = "open"


class Line(NamedTuple):
    item: UUID
    price: Decimal


@dataclass(frozen=True)
class Order:
    lines: list[Line]
    file: Path
    labels: frozenset[str]
    state: State
    share: Fraction


ORDER = Order([Line(UUID(int=7), Decimal("1.10"))], Path("a/b"), frozenset({"x", "y"}), State.OPEN, Fraction(1, 3))
flow = Workflow("orders")


@flow.task
def order(day: date) -> Order:
    assert day == date(2026, 1, 2), repr(day)
    return ORDER


@flow.task
def same(order: Order) -> Order:
    assert order == ORDER, order
    return order


@flow.task(isolation="process")
def apart(same: Order | None, order: dict) -> list[Order]:
    assert same == ORDER, same
    assert order["share"] == "1/3" and order["labels"] == ["x", "y"], order
    return [same]


@flow.task
def last(apart: list[Order]) -> str:
    assert apart == [ORDER], apart
    return "all there"


if __name__ == "__main__":
    print(run(flow, params={"day": "2026-01-02"}, workflow_id="typed").outputs["last"])
"""


@pytest.mark.parametrize("point", ["attempt.before:2", "attempt.after:2", "attempt.after:3", "commit.after:4"])
def test_a_typed_value_crosses_a_kill(tmp_git_repo: Path, point: str) -> None:
    (tmp_git_repo / "orders.py").write_text(ORDERS)
    killed = start([sys.executable, "orders.py"], cwd=tmp_git_repo, at=point, env=environment())
    assert killed.killed, killed.stderr
    resumed = resume("typed", cwd=tmp_git_repo, env=environment())
    assert (resumed.status, resumed.returncode) == ("complete", 0), resumed.stderr
    assert Client(tmp_git_repo).show("typed").outputs["last"] == "all there"


def go(root: Path, flow: Workflow, **params: Any) -> RunResult:
    return run(flow, params=params, repo=root, check=False)


def test_a_value_that_does_not_fit_fails_its_task_by_name(tmp_git_repo: Path) -> None:
    flow = Workflow("misfit")

    @flow.task(retries=3)
    def fetch(day: date, folder: Path) -> None: ...

    said = go(tmp_git_repo, flow, day="yesterday", folder="x").errors["fetch"]
    assert "argument 'day': str does not fit its type date: " in said
    said = go(tmp_git_repo, flow, day="2026-01-02", folder=3).errors["fetch"]
    assert "argument 'folder': int does not fit its type Path: a path is text" in said


def test_a_step_gives_what_its_function_says_the_first_time_and_later(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "steps.py").write_text(STEPS)
    killed = start([sys.executable, "steps.py"], cwd=tmp_git_repo, at="step.after:3", env=environment())
    assert killed.killed, killed.stderr
    done = start([sys.executable, "steps.py"], cwd=tmp_git_repo, env=environment())
    assert done.stdout == "Part(where=PosixPath('a')) {'where': 'b'} Part(where=PosixPath('c')) {'where': 'd'}\n"


STEPS = """
from dataclasses import dataclass
from pathlib import Path
from agentos import Workflow, run

@dataclass
class Part:
    where: Path

def said(name) -> Part:
    return Part(Path(name))

def silent(name):
    return Part(Path(name))

flow = Workflow("steps")

@flow.task
async def work(ctx):
    made = [await ctx.step(said, "a"), await ctx.step(silent, "b"), await ctx.step(Part, Path("c"))]
    return " ".join(map(str, [*made, await ctx.step(silent, "d")]))

if __name__ == "__main__":
    print(run(flow, workflow_id="s").outputs["work"])
"""


def test_what_cannot_be_resolved_or_is_plain_comes_as_it_is_stored(tmp_git_repo: Path) -> None:
    @dataclass
    class Local:
        n: int

    flow = Workflow("plain")
    flow.add("made", lambda: Local(1))

    @flow.task
    def seen(made: Local, count: str, many: list, other: Nowhere) -> list:  # type: ignore[name-defined] # noqa: F821
        return [made, count, many, other]

    result = go(tmp_git_repo, flow, count=3, many="text", other=[1])
    assert result.outputs["seen"] == [{"n": 1}, 3, "text", [1]]
