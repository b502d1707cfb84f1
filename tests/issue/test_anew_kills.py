"""`agentos issue --anew` killed at every point between the old run and the new one: never are both under way."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos import Client
from agentos.crashpoints import LOG, VARIABLE
from agentos.machine import events as ev
from tests.issue.stage import Stage

OLD, NEW = "issue-dark-mode", "issue-dark-mode-2"
ANEW = ("--brief", "dark-mode.md", "--anew")
OVER = ("complete", "aborted")


def under_way(stage: Stage) -> list[str]:
    return sorted(run.workflow_id for run in Client(stage.repo).list_runs() if run.status not in OVER)


def passed_until_begun(log: Path) -> Iterator[str]:
    """Each point on the way, as it is armed, up to where the new run has begun."""
    passes: Counter[str] = Counter()
    for point in log.read_text().split():
        passes[point] += 1
        yield f"{point}:{passes[point]}"
        if point == "run.started":
            return
    raise AssertionError("nothing was begun")


def put_back(stage: Stage, kept: Path) -> None:
    shutil.rmtree(stage.repo)
    shutil.copytree(kept, stage.repo, symlinks=True)


@pytest.mark.full
def test_killed_anywhere_there_is_one_run_or_none_and_the_same_command_goes_on(stage: Stage, tmp_path: Path) -> None:
    assert stage.issue("--brief", "dark-mode.md", gates="draft").code == 3
    kept = tmp_path / "kept"
    shutil.copytree(stage.repo, kept, symlinks=True)
    log = tmp_path / "points"
    assert stage.issue(*ANEW, gates="draft", env={VARIABLE: f"{LOG}:{log}"}).code == 3
    assert under_way(stage) == [NEW]
    points = list(passed_until_begun(log))
    assert {"plan.after:1", "commit.inside:1", "create.inside:1", "run.started:1"} <= set(points)
    left = set()
    for point in points:
        put_back(stage, kept)
        killed = stage.issue(*ANEW, gates="draft", env={VARIABLE: point})
        assert killed.code == -signal.SIGKILL, point
        between = under_way(stage)
        left.add(tuple(between))
        assert len(between) <= 1, f"{point}: {between}"
        again = stage.issue(*ANEW, gates="draft")
        assert again.code == 3, f"{point}: {again.err}"
        [alive] = under_way(stage)
        assert alive != OLD, point
        assert why_aborted(stage) == f"begun anew as {NEW}", point
    assert left == {(OLD,), (), (NEW,)}, "before, in between, and after"


def why_aborted(stage: Stage) -> str:
    [end] = [event for event in Client(stage.repo).events(OLD) if isinstance(event, ev.WorkflowAborted)]
    return end.reason
