"""The crash points as users get them: listed, documented, and a few helpers to try out one's own workflows with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos import testing
from agentos.crashpoints import ALL_POINTS, POINTS
from tests.crash.harness import SOURCE, make_repository

pytestmark = pytest.mark.timeout(300)  # a busy machine is no failure

FLOW = """
from agentos import Workflow, run

flow = Workflow("mine")

@flow.task
def one() -> int:
    return 1

@flow.task(approve="Go on?")
def two(one: int) -> int:
    return one + 1

if __name__ == "__main__":
    print(run(flow, workflow_id="nightly", gates="reject", check=False).status)
"""


@pytest.fixture
def new_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
        monkeypatch.delenv(name)
    made = iter(range(100))

    def make() -> Path:
        repository = tmp_path / str(next(made))
        make_repository(repository)
        (repository / "flow.py").write_text(FLOW)
        return repository

    return make


SCRIPT = [sys.executable, "flow.py"]


def test_the_points_are_listed_with_their_meaning() -> None:
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    listed = subprocess.run(
        [sys.executable, "-m", "agentos.testing"], env=env, capture_output=True, text=True, check=True
    )
    assert listed.stderr == ""
    for point, where in ALL_POINTS.items():
        assert re.search(rf"^  {re.escape(point)} +{re.escape(where)}$", listed.stdout, re.MULTILINE)
    assert "AGENTOS_CRASH_AT=<point>[:n]" in listed.stdout


def test_every_point_is_passed_somewhere_in_the_code_and_no_other_is() -> None:
    files = [file for file in (SOURCE / "agentos").rglob("*.py") if file.name not in ("crashpoints.py", "testing.py")]
    lines = [line for file in files for line in file.read_text().splitlines()]
    known = set(ALL_POINTS)
    passed = {point for point in known if any(f'"{point}"' in line for line in lines)}
    assert passed == known
    named = re.findall(r'\breach\("([^"]+)"\)', "\n".join(lines))
    assert set(named) <= known
    assert testing.POINTS == ALL_POINTS


def test_a_script_that_is_started_again_goes_on_where_it_was_killed(new_repository: Callable[[], Path]) -> None:
    passed = testing.passes(SCRIPT, cwd=new_repository())
    assert passed["attempt.after"] == 1
    assert passed["gate.opened"] == 1
    for point in ("create.inside", "attempt.after", "gate.opened"):
        repository = new_repository()
        assert testing.start(SCRIPT, cwd=repository, at=point).killed
        again = testing.start(SCRIPT, cwd=repository)
        assert (again.returncode, again.stdout, again.killed) == (0, "failed\n", False)


def test_a_run_is_resumed_in_a_process_of_its_own(new_repository: Callable[[], Path]) -> None:
    repository = new_repository()
    assert testing.start(SCRIPT, cwd=repository, at="attempt.after:1").killed
    assert testing.resume(cwd=repository, at="resume.planned").killed
    resumed = testing.resume("nightly", cwd=repository)
    assert (resumed.returncode, resumed.status) == (0, "waiting")
    unknown = testing.resume("no-such-run", cwd=repository)
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("RunNotFoundError: no run 'no-such-run'")


def test_a_point_that_is_not_passed_so_often_kills_nothing(new_repository: Callable[[], Path]) -> None:
    assert not testing.start(SCRIPT, cwd=new_repository(), at="attempt.after:9").killed


@pytest.mark.parametrize("at", ["attempt.afterwards", "attempt.after:0", "attempt.after:soon", ""])
def test_a_point_that_does_not_exist_is_refused(tmp_path: Path, at: str) -> None:
    with pytest.raises(ValueError, match=r"no crash point|the n-th pass"):
        testing.start(SCRIPT, cwd=tmp_path, at=at)


def test_passes_are_counted_and_leave_nothing_behind(new_repository: Callable[[], Path]) -> None:
    repository = new_repository()
    passed = testing.passes(SCRIPT, cwd=repository)
    assert isinstance(passed, Counter)
    assert set(passed) <= set(POINTS)
    assert passed["plan.after"] == 1
    assert sorted(entry.name for entry in repository.iterdir()) == [".agentos", ".git", "flow.py"]
