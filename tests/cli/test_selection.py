"""`run --until`, `--from` and `--only`, and how the rest is run later."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Agentos, Completed

FLOW = """\
name: ci
tasks:
  build: {run: "echo build >> ran", effects: none}
  lint: {run: "echo lint >> ran", effects: none}
  test: {needs: build, run: "echo test >> ran", effects: none}
  each: {needs: build, for_each: [a, b], run: "echo ${{ item }} >> ran", effects: none}
  ship: {needs: [test, each], run: "echo ship >> ran", approve: Ship?, effects: none}
  tidy: {needs: [test], if: always(), run: "echo tidy >> ran", effects: none}
"""
LEFT_OUT = "the selection (--until test)"


@pytest.fixture
def repo(tmp_git_repo: Path, home: Path) -> Path:
    (tmp_git_repo / "ci.yaml").write_text(FLOW)
    return tmp_git_repo


def ran(repo: Path) -> list[str]:
    """What ran since the last look."""
    file = repo / "ran"
    lines = file.read_text().splitlines() if file.exists() else []
    file.write_text("")
    return sorted(lines)


def statuses(agentos: Agentos, repo: Path, run: str = "x") -> dict[str, str]:
    shown = json.loads(agentos("show", run, "--json", cwd=repo).out)
    return {task["id"]: task["status"] for task in shown["tasks"]}


def go(agentos: Agentos, repo: Path, *words: str, code: int = 0) -> Completed:
    done = agentos(*words, cwd=repo)
    assert done.code == code, done.err
    return done


# --- until --------------------------------------------------------------------------------------------------------


def test_until_runs_a_task_with_all_it_needs_and_the_rest_is_skipped(agentos: Agentos, repo: Path) -> None:
    done = go(agentos, repo, "run", "ci.yaml", "--id", "x", "--until", "test")
    assert ran(repo) == ["build", "test"]
    assert "Not selected (--until test): 4 tasks. To run all: agentos resume x --all-tasks" in done.err
    assert statuses(agentos, repo) == {
        "build": "complete", "lint": "skipped", "test": "complete", "each": "skipped", "ship": "skipped",
        "tidy": "skipped",
    }  # fmt: skip
    shown = go(agentos, repo, "show", "x").out
    assert "  selected --until test" in shown
    assert f"because of {LEFT_OUT}" in shown
    assert "Next: agentos resume x --all-tasks" in shown
    told = go(agentos, repo, "why", "x", "ship").out
    assert f"skipped because of {LEFT_OUT}" in told
    assert "Next: agentos resume x --all-tasks" in told


def test_a_resume_keeps_to_the_selection_and_all_tasks_runs_the_rest(agentos: Agentos, repo: Path) -> None:
    go(agentos, repo, "run", "ci.yaml", "--id", "x", "--until", "test")
    ran(repo)
    go(agentos, repo, "resume", "x")
    assert ran(repo) == []
    looked = json.loads(go(agentos, repo, "resume", "x", "--all-tasks", "--dry-run", "--json").out)
    assert {row["id"]: (row["verdict"], row["reason"]) for row in looked["tasks"]}["lint"] == (
        "run", "was not selected before",
    )  # fmt: skip
    go(agentos, repo, "resume", "x", "--all-tasks", code=3)
    assert ran(repo) == ["a", "b", "lint", "tidy"]
    go(agentos, repo, "approve", "x")
    assert ran(repo) == ["ship"]
    assert set(statuses(agentos, repo).values()) == {"complete"}
    assert "selected" not in go(agentos, repo, "show", "x").out


def test_the_same_line_twice_does_nothing_and_one_without_a_selection_runs_all(agentos: Agentos, repo: Path) -> None:
    for _ in range(2):
        go(agentos, repo, "run", "ci.yaml", "--id", "x", "--until", "test")
    assert ran(repo) == ["build", "test"]
    go(agentos, repo, "run", "ci.yaml", "--id", "x", "--until", "each")
    assert ran(repo) == ["a", "b"]
    go(agentos, repo, "run", "ci.yaml", "--id", "x", code=3)
    assert ran(repo) == ["lint", "tidy"]


@pytest.mark.parametrize("point", ["run.started", "commit.before", "commit.after:2", "release.before"])
def test_killed_anywhere_it_keeps_to_the_selection_and_ends_the_same(agentos: Agentos, repo: Path, point: str) -> None:
    go(agentos, repo, "run", "ci.yaml", "--id", "y", "--until", "test")
    ran(repo)
    killed = agentos("run", "ci.yaml", "--id", "x", "--until", "test", cwd=repo, env={"AGENTOS_CRASH_AT": point})
    assert killed.code == -signal.SIGKILL
    go(agentos, repo, "resume", "x")
    assert set(ran(repo)) == {"build", "test"}
    assert statuses(agentos, repo) == statuses(agentos, repo, "y")


def test_a_decision_point_before_tasks_that_are_left_out_is_not_asked(agentos: Agentos, repo: Path) -> None:
    (repo / "ci.yaml").write_text(FLOW.replace("name: ci", "name: ci\ndecision_points: per_layer"))
    go(agentos, repo, "run", "ci.yaml", "--id", "x", "--until", "build")
    assert ran(repo) == ["build"]


def test_an_edit_of_what_is_left_out_changes_nothing_and_one_that_is_needed_runs(agentos: Agentos, repo: Path) -> None:
    (repo / "ci.yaml").write_text(FLOW.replace("echo test >> ran", "test -e ok; echo test >> ran"))
    go(agentos, repo, "run", "ci.yaml", "--id", "x", "--until", "test", code=1)
    ran(repo)
    (repo / "ci.yaml").write_text(
        FLOW.replace("echo lint", "echo linted").replace("needs: build, run", "needs: [build, fetch], run")
        + "  fetch: {run: 'echo fetch >> ran', effects: none}\n  more: {run: 'echo more >> ran', effects: none}\n"
    )
    go(agentos, repo, "resume", "x")
    assert ran(repo) == ["fetch", "test"]
    (repo / "ci.yaml").write_text(FLOW.replace("  test:", "  tests:").replace("[test", "[tests"))
    gone = agentos("resume", "x", "--rerun", "build", cwd=repo)
    assert gone.code == 2
    assert "there is no task 'test' (did you mean 'tests'?)" in gone.err
    assert "--all-tasks" in gone.err


def test_a_fork_is_bound_to_no_selection(agentos: Agentos, repo: Path) -> None:
    go(agentos, repo, "run", "ci.yaml", "--id", "x", "--until", "test")
    ran(repo)
    go(agentos, repo, "fork", "x", "--id", "y", code=3)
    assert ran(repo) == ["a", "b", "lint", "tidy"]


# --- from and only ------------------------------------------------------------------------------------------------


@pytest.fixture
def finished(agentos: Agentos, repo: Path) -> Path:
    go(agentos, repo, "run", "ci.yaml", "--id", "x", code=3)
    go(agentos, repo, "approve", "x")
    ran(repo)
    return repo


def test_from_runs_a_task_and_all_that_needs_it_again(agentos: Agentos, finished: Path) -> None:
    go(agentos, finished, "run", "ci.yaml", "--id", "x", "--from", "test")
    assert ran(finished) == ["ship", "test", "tidy"], "also where its result is the same; the approval holds for that"
    assert statuses(agentos, finished)["lint"] == "complete"


def test_only_runs_a_task_alone_with_the_results_there_are(agentos: Agentos, finished: Path) -> None:
    go(agentos, finished, "run", "ci.yaml", "--id", "x", "--only", "test")
    assert ran(finished) == ["test"]
    assert set(statuses(agentos, finished).values()) == {"complete"}, "what used the same result as before is kept"
    go(agentos, finished, "run", "ci.yaml", "--id", "x", "--only", "each", "--only", "lint")
    assert ran(finished) == ["a", "b", "lint"]


def test_from_and_until_together_are_what_lies_between(agentos: Agentos, finished: Path) -> None:
    go(agentos, finished, "run", "ci.yaml", "--id", "x", "--from", "build", "--until", "test")
    assert ran(finished) == ["build", "test"]
    nothing = agentos("run", "ci.yaml", "--id", "x", "--from", "lint", "--until", "test", cwd=finished)
    assert nothing.code == 2
    assert "no task lies between: --until test --from lint" in nothing.err


def test_what_used_another_result_waits_to_be_selected(agentos: Agentos, repo: Path) -> None:
    flow = FLOW.replace("echo build >> ran", "echo build >> ran; cat seed").replace(
        "echo test >> ran", "echo test ${{ tasks.build.output.stdout }} >> ran"
    )
    (repo / "ci.yaml").write_text(flow)
    (repo / "seed").write_text("1")
    go(agentos, repo, "run", "ci.yaml", "--id", "x", "--until", "test")
    assert ran(repo) == ["build", "test 1"]
    (repo / "seed").write_text("2")
    go(agentos, repo, "run", "ci.yaml", "--id", "x", "--only", "build")
    assert ran(repo) == ["build"]
    assert statuses(agentos, repo)["test"] == "skipped", "its result is outdated, and it was not to run"
    go(agentos, repo, "run", "ci.yaml", "--id", "x", "--until", "test")
    assert ran(repo) == ["test 2"]


def test_a_task_that_failed_and_is_left_out_stays_failed(agentos: Agentos, repo: Path) -> None:
    (repo / "ci.yaml").write_text(FLOW.replace("echo test >> ran", "exit 1"))
    go(agentos, repo, "run", "ci.yaml", "--id", "x", code=1)
    ran(repo)
    go(agentos, repo, "run", "ci.yaml", "--id", "x", "--only", "lint", code=1)
    assert ran(repo) == ["lint"]
    assert statuses(agentos, repo)["test"] == "failed"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--until", "tset"), "there is no task 'tset' (did you mean 'test'?)"),
        (("--only", "test"), "test needs build, not selected and without a result in this run"),
        (("--from", "test"), "`--until ship` runs what it needs, too"),
        (("--only", "test", "--until", "test"), "--only names all that runs"),
    ],
)
def test_what_cannot_be_selected_is_refused_and_nothing_is_made(
    agentos: Agentos, repo: Path, words: tuple[str, ...], why: str
) -> None:
    refused = agentos("run", "ci.yaml", "--id", "x", *words, cwd=repo)
    assert refused.code == 2, refused.err
    assert why in refused.err
    assert agentos("show", "x", cwd=repo).code == 2
    assert ran(repo) == []


def test_a_task_that_needs_nothing_can_be_run_alone_in_a_new_run(agentos: Agentos, repo: Path) -> None:
    go(agentos, repo, "run", "ci.yaml", "--id", "x", "--only", "lint")
    assert ran(repo) == ["lint"]


def test_an_item_is_selected_with_its_fan_out(agentos: Agentos, finished: Path) -> None:
    refused = agentos("run", "ci.yaml", "--id", "x", "--only", "each[0]", cwd=finished)
    assert refused.code == 2
    assert "'each[0]' is a part of 'each', which can be selected as a whole" in refused.err
    assert ran(finished) == []


def test_an_effect_that_may_have_happened_is_asked_about_once_its_task_is_selected(
    agentos: Agentos, repo: Path
) -> None:
    (repo / "pay.yaml").write_text(
        "name: pay\ntasks:\n  pay: {run: 'echo paid >> ran; kill -9 $PPID; sleep 60', effects: external}\n"
        "  other: {needs: lint, run: 'echo other >> ran', effects: none}\n"
        "  lint: {run: 'echo lint >> ran', effects: none, timeout_s: 60}\n"
    )
    assert agentos("run", "pay.yaml", "--id", "x", "--max-concurrency", "1", cwd=repo).code == -signal.SIGKILL
    ran(repo)
    go(agentos, repo, "run", "pay.yaml", "--id", "x", "--until", "other")
    assert ran(repo) == ["lint", "other"]
    waits = go(agentos, repo, "resume", "x", "--all-tasks", code=3)
    assert "ask:pay asks" in waits.err
    assert ran(repo) == []


def test_what_is_not_selected_cannot_be_run_again_unnoticed(agentos: Agentos, repo: Path) -> None:
    go(agentos, repo, "run", "ci.yaml", "--id", "x", "--until", "test")
    ran(repo)
    for words in (["--dry-run"], []):
        refused = go(agentos, repo, "resume", "x", "--rerun", "lint", *words, code=2)
        assert refused.err.startswith("cannot run again what is not selected (--until test): lint\n")
    go(agentos, repo, "resume", "x", "--rerun", "lint", "--all-tasks", code=3)
    assert "lint" in ran(repo)


def test_why_tells_what_a_resume_decided_of_tasks_that_were_not_selected(agentos: Agentos, repo: Path) -> None:
    def decided(task: str) -> tuple[str, str]:
        told = json.loads(go(agentos, repo, "why", "x", task, "--json").out)["resume"]
        return told["verdict"], told["reason"]

    go(agentos, repo, "run", "ci.yaml", "--id", "x", "--until", "test")
    go(agentos, repo, "resume", "x", "--rerun", "build")
    assert decided("lint") == ("reuse", "not selected; it stays skipped")
    go(agentos, repo, "resume", "x", "--all-tasks", code=3)
    assert decided("lint") == ("run", "was not selected before")


STEPS = """\
from pathlib import Path
from agentos import Context, Workflow

flow = Workflow("pay")


def charge():
    with open("ran", "a") as file:
        print("charge", file=file)


@flow.task
async def pay(ctx: Context):
    await ctx.step(charge)
    if not Path("ok").exists():
        raise ValueError("not yet")
"""


def test_from_and_only_repeat_what_has_finished_and_no_step_of_what_has_not(agentos: Agentos, repo: Path) -> None:
    (repo / "pay.py").write_text(STEPS)
    go(agentos, repo, "run", "pay.py", "--id", "p", code=1)
    assert ran(repo) == ["charge"]
    go(agentos, repo, "run", "pay.py", "--id", "p", "--only", "pay", code=1)
    (repo / "ok").write_text("")
    go(agentos, repo, "run", "pay.py", "--id", "p", "--from", "pay")
    assert ran(repo) == []
    go(agentos, repo, "run", "pay.py", "--id", "p", "--only", "pay")
    assert ran(repo) == ["charge"]


def test_a_resume_of_what_was_selected_says_what_was_not(agentos: Agentos, repo: Path) -> None:
    (repo / "two.yaml").write_text(
        "tasks: {a: {run: 'true', effects: none}, b: {run: 'true', effects: none, needs: a}}"
    )
    assert agentos("run", "two.yaml", "--id", "two", "--until", "a", cwd=repo).code == 0
    again = agentos("resume", "two", cwd=repo)
    assert again.code == 0
    assert again.err.splitlines() == [
        "1 reused (a) · 1 not selected",
        "Nothing is left to do: run two is complete.",
        "To run all: agentos resume two --all-tasks",
    ]
