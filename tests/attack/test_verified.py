"""What a gate shows of `verify`: by which commands the work before it passed, and which of them are stale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.attack.test_approvals import gates_of, write_flow
from tests.cli.conftest import Agentos
from tests.cli.conftest import agentos as agentos

pytestmark = pytest.mark.attack

GOOD = [{"run": "grep done work.txt; echo 12 passed"}, {"run": "test -s work.txt"}]
FIX = {"agent": "command", "command": ["sh", "-c", "echo done > work.txt"], "prompt": "Fix it.", "verify": GOOD}
SHIP = {"needs": "fix", "approve": "Ship it?", "run": "touch shipped"}


@pytest.fixture
def repo(tmp_git_repo: Path, home: Path) -> Path:
    return tmp_git_repo


def checks_of(agentos: Agentos, root: Path, gate: str = "approve:ship") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gates_of(agentos, root)[gate]["verified"]
    return found


def staleness(agentos: Agentos, root: Path, gate: str = "approve:ship") -> list[str]:
    return [check.get("stale", "") for check in checks_of(agentos, root, gate)]


def begin(agentos: Agentos, root: Path, tasks: dict[str, Any], **more: Any) -> str:
    write_flow(root, tasks, **more)
    done = agentos("run", "flow.yaml", "--id", "r", cwd=root)
    assert done.code == 3, done.err
    return done.out + done.err


@pytest.mark.parametrize("schedule", ["layers", "ready"])
def test_a_gate_shows_what_each_command_said_of_the_files_as_they_are(
    agentos: Agentos, repo: Path, schedule: str
) -> None:
    apart = {"isolation": "worktree"} if schedule == "ready" else {}
    told = begin(agentos, repo, {"fix": {**FIX, **apart}, "ship": {**SHIP, **apart}}, schedule=schedule)
    first, second = checks_of(agentos, repo)
    assert (first["task_id"], first["command"], first["exit_code"]) == ("fix", GOOD[0]["run"], 0)
    assert first["said"] == "done\n12 passed"
    assert second["command"] == GOOD[1]["run"]
    assert first["tree"] == second["tree"] != ""
    assert not first.get("stale")
    assert not second.get("stale")
    for text in (told, agentos("show", "r", cwd=repo).out, agentos("inbox", cwd=repo).out):
        assert f"verify of fix: `{GOOD[0]['run']}` passed\n" in text
        assert "| 12 passed" in text
        assert "covers all files of the worktree" in text
    assert "fix is complete" in told
    assert "2 of 2 verified" in told
    assert "2 of 2 verified" in agentos("show", "r", cwd=repo).out
    [fix] = [task for task in json.loads(agentos("show", "r", "--json", cwd=repo).out)["tasks"] if task["id"] == "fix"]
    assert fix["verified"]["tree"] == first["tree"]
    assert [said["stdout"] for said in fix["output"]["verify"]] == ["done\n12 passed", ""]
    assert agentos("approve", "r", cwd=repo).code == 0
    assert (repo / "shipped").exists()


@pytest.mark.parametrize("when", ["while it was open", "after it was approved"])
def test_files_that_change_behind_a_gate_make_it_ask_again_and_say_what_is_stale(
    agentos: Agentos, repo: Path, when: str
) -> None:
    begin(agentos, repo, {"fix": FIX, "ship": SHIP})
    if when == "after it was approved":
        assert agentos("approve", "r", "--no-resume", cwd=repo).code == 0
    (repo / "other.txt").write_text("by hand\n")
    again = agentos(*(("resume", "r") if "approved" in when else ("approve", "r")), cwd=repo)
    assert again.code == 3
    assert "files of the worktree, which were verified, changed after approve:ship was asked" in again.err
    assert "passed, STALE: changed since: other.txt" in again.err
    assert not (repo / "shipped").exists()
    assert staleness(agentos, repo, "approve:ship#2") == ["changed since: other.txt"] * 2
    assert agentos("approve", "r", "approve:ship#2", cwd=repo).code == 0  # the human knows what is stale
    assert (repo / "shipped").exists()


def test_files_that_are_put_back_are_verified_again(agentos: Agentos, repo: Path) -> None:
    begin(agentos, repo, {"fix": FIX, "ship": SHIP})
    (repo / "work.txt").write_text("worse\n")
    (repo / "work.txt").write_text("done\n")
    assert agentos("approve", "r", cwd=repo).code == 0


def test_what_a_task_changed_between_is_stale_when_it_is_first_asked(agentos: Agentos, repo: Path) -> None:
    build = {"needs": "fix", "run": "echo built > built.txt", "effects": ["files"]}
    begin(agentos, repo, {"fix": FIX, "build": build, "ship": {**SHIP, "needs": "build"}})
    assert staleness(agentos, repo) == ["changed since: built.txt"] * 2


def test_a_command_after_which_another_changed_files_is_stale(agentos: Agentos, repo: Path) -> None:
    verify = [{"run": "true"}, {"run": "echo more >> work.txt"}, {"run": "test -s work.txt"}]
    begin(agentos, repo, {"fix": {**FIX, "verify": verify}, "ship": SHIP})
    assert staleness(agentos, repo) == ["a command of `verify` after it changed files", "", ""]


def test_what_passed_alone_is_stale_once_it_is_merged_with_others(agentos: Agentos, repo: Path) -> None:
    """One that is merged alone is what it was verified as."""
    alone = {**FIX, "isolation": "worktree"}
    beside = {**alone, "command": ["sh", "-c", "echo done > beside.txt"], "verify": "test -s beside.txt"}
    begin(agentos, repo, {"fix": alone, "ship": SHIP})
    assert staleness(agentos, repo) == ["", ""]
    assert agentos("abort", "r", cwd=repo).code == 0

    (repo / "work.txt").unlink()
    write_flow(repo, {"fix": alone, "beside": beside, "ship": {**SHIP, "needs": ["fix", "beside"]}})
    assert agentos("run", "flow.yaml", "--id", "r2", cwd=repo).code == 3
    shown = json.loads(agentos("show", "r2", "--json", cwd=repo).out)["gates"][0]["verified"]
    assert {check["task_id"]: check["stale"] for check in shown} == {
        "fix": "changed since: beside.txt",
        "beside": "changed since: work.txt",
    }


def test_of_tasks_at_work_together_nobody_knows_what_was_verified(agentos: Agentos, repo: Path) -> None:
    both = "touch $AGENTOS_TASK_ID.began; while ! test -e {}.began; do sleep 0.02; done; echo done > {}.txt"
    tasks: dict[str, Any] = {
        name: {
            **FIX,
            "command": ["sh", "-c", both.replace("$AGENTOS_TASK_ID", name).format(other, name)],
            "verify": "true",
        }
        for name, other in (("a", "b"), ("b", "a"))
    }
    begin(agentos, repo, {**tasks, "ship": {**SHIP, "needs": ["a", "b"]}})
    for stale in staleness(agentos, repo):
        assert stale.startswith("which files it saw is not known: other tasks were at work")
    assert gates_of(agentos, repo)["approve:ship"]["covers"] == []
    assert agentos("approve", "r", cwd=repo).code == 0


def test_a_failed_attempt_of_the_approved_task_itself_is_not_asked_about(agentos: Agentos, repo: Path) -> None:
    flaky = "echo half >> shipped; test -e ../tried || { touch ../tried; exit 1; }"
    begin(agentos, repo, {"fix": FIX, "ship": {**SHIP, "run": flaky, "effects": ["files"], "retries": 1}})
    done = agentos("approve", "r", cwd=repo)
    assert done.code == 0, done.err


def test_the_file_that_a_gate_asks_to_look_at_may_be_edited(agentos: Agentos, repo: Path) -> None:
    question = {"question": "Ship it?", "file": "work.txt"}
    begin(agentos, repo, {"fix": FIX, "ship": {"needs": "fix", "approve": question, "run": "touch shipped"}})
    (repo / "work.txt").write_text("edited at the gate\n")
    assert agentos("approve", "r", cwd=repo).code == 0


def test_an_approval_that_is_a_task_of_its_own_shows_it_as_well(agentos: Agentos, repo: Path) -> None:
    ask = {"needs": "fix", "approval": "Good?"}
    begin(agentos, repo, {"fix": FIX, "ask": ask, "ship": {"needs": "ask", "run": "touch shipped"}})
    assert staleness(agentos, repo, "approval:ask") == ["", ""]
    (repo / "other.txt").write_text("by hand\n")
    assert agentos("approve", "r", cwd=repo).code == 3
    assert staleness(agentos, repo, "approval:ask#2") == ["changed since: other.txt"] * 2
    assert agentos("approve", "r", cwd=repo).code == 0


def test_a_task_that_is_verified_anew_is_asked_about_anew(agentos: Agentos, repo: Path) -> None:
    counts = ["sh", "-c", "echo x >> ../count; cat ../count > work.txt; echo done >> work.txt"]
    begin(agentos, repo, {"fix": {**FIX, "command": counts}, "ship": SHIP})
    before = checks_of(agentos, repo)
    assert agentos("resume", "r", "--rerun", "fix", cwd=repo).code == 3
    assert agentos("approve", "r", "ask:fix", "--choose", "run-again", cwd=repo).code == 3
    gates = gates_of(agentos, repo)
    assert not gates["approve:ship"]["open"]
    [anew] = [gate for gate in gates.values() if gate["open"]]
    assert anew["verified"][0]["tree"] != before[0]["tree"]
    assert not any(check.get("stale") for check in anew["verified"])


def test_every_item_and_the_newest_round_before_a_gate_are_shown(agentos: Agentos, repo: Path) -> None:
    each = {
        **FIX,
        "for_each": ["a", "b"],
        "prompt": "${{ item }}",
        "command": ["sh", "-c", "echo done > $(cat).txt"],
        "verify": "true",
    }
    draft = {
        **FIX,
        "needs": "each",
        "command": ["sh", "-c", "echo x >> rounds.txt; grep -c x rounds.txt"],
        "verify": "cat rounds.txt",
    }
    again = {"repeat": {"tasks": ["draft"], "until": "tasks.draft.output.text == '2'", "max": 3}}
    tasks = {"each": each, "draft": draft, "again": again, "ship": {**SHIP, "needs": "again"}}
    begin(agentos, repo, tasks, max_concurrency=1)
    shown = checks_of(agentos, repo)
    assert [check["task_id"] for check in shown] == ["each[0]", "each[1]", "draft@2"]
    assert shown[0]["stale"] == "changed since: b.txt, rounds.txt"
    assert shown[2]["said"] == "x\nx"
    assert not shown[2].get("stale")


def test_of_candidates_the_winner_is_shown_and_its_judge_sees_the_table(agentos: Agentos, repo: Path) -> None:
    worked = [{"agent": "command", "command": ["sh", "-c", f"echo done {key} > work.txt"]} for key in "12"]
    fix = {"prompt": "Fix it.", "verify": GOOD, "candidates": worked, "judge": "human"}
    begin(agentos, repo, {"fix": fix, "ship": SHIP})
    [judge] = [gate for gate in gates_of(agentos, repo).values() if gate["open"]]
    assert not judge.get("verified")
    assert not judge.get("covers")
    assert agentos("approve", "r", "--choose", "2", cwd=repo).code == 3
    assert (repo / "work.txt").read_text() == "done 2\n"
    assert [check["task_id"] for check in checks_of(agentos, repo)] == ["fix", "fix"]
    assert staleness(agentos, repo) == ["", ""]


def test_what_a_command_says_of_a_secret_is_masked(
    agentos: Agentos, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "correct-horse-battery")
    verify = [{"run": "echo $TOKEN"}]
    fix = {**FIX, "env": {"TOKEN": "${{ secrets.TOKEN }}"}, "verify": verify}
    begin(agentos, repo, {"fix": fix, "ship": SHIP}, secrets=["TOKEN"])
    shown = agentos("show", "r", "--json", cwd=repo).out + agentos("events", "r", "--json", cwd=repo).out
    assert "correct-horse" not in shown
    assert checks_of(agentos, repo)[0]["said"] == "[secret:TOKEN]"


def test_work_that_failed_its_verify_is_shown_where_a_gate_follows_all_the_same(agentos: Agentos, repo: Path) -> None:
    verify = [{"run": "true"}, {"run": "echo 3 failed; exit 1"}, {"run": "echo never > never.txt"}]
    ship = {**SHIP, "if": "always()"}
    told = begin(agentos, repo, {"fix": {**FIX, "verify": verify}, "ship": ship})
    passed, failed, left = checks_of(agentos, repo)
    assert (passed["exit_code"], failed["exit_code"], failed["said"]) == (0, 1, "3 failed")
    assert left["stale"] == "not run, since one before it failed"
    assert not (repo / "never.txt").exists()
    assert "`verify` command 2 of 3, `echo 3 failed; exit 1`, says otherwise" in told
    assert "(not run after it: `echo never > never.txt`)" in told
