"""Best of several: candidates in worktrees of their own, a judge, the winner's files; killed and resumed."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

from agentos import Client
from agentos.client import diffs, views
from agentos.crashpoints import CALL_POINTS
from agentos.machine import events as ev
from tests.conftest import git
from tests.marks import quick_first
from tests.models.flows import ONE_AT_A_TIME, Done, Place
from tests.models.received import Received
from tests.models.replies import Answer, says
from tests.models.server import ModelServer

AGENT = """\
asked=$(cat)
echo "$AGENTOS_CANDIDATE" >> "$PAID"
i=0; while [ $i -lt "$1" ]; do echo "by $AGENTOS_CANDIDATE" >> kept.txt; i=$((i+1)); done
echo "$1 lines"
"""
"""Writes so many lines; each start of it is a payment."""

FLOW = """
name: best
tasks:
  fix:
    prompt: write
    verify: 'test $(wc -l < kept.txt) -lt 5'
    candidates:
      - {agent: command, command: [sh, agent.sh, "3"]}
      - {agent: command, command: [sh, agent.sh, "1"]}
      - {agent: command, command: [sh, agent.sh, "9"]}
    judge: %s
  after: {needs: fix, run: 'cat kept.txt', effects: none}
"""
SHORTEST = "{run: 'sh shortest.sh'}"
JUDGE = """\
cd "$AGENTOS_CANDIDATES"
echo "the least lines"
wc -c *.patch | sort -n | sed -n '1s/.* \\(.*\\).patch/\\1/p'
"""
BY_AGENT = """\
cat > asked
grep -q '+by 2' asked && test -s "$AGENTOS_CANDIDATES/1.patch" && echo '{"winner": "2", "reason": "seen"}'
"""


@pytest.fixture
def place(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch, model_server: ModelServer) -> Place:
    files = {"kept.txt": "kept\n", "agent.sh": AGENT, "shortest.sh": JUDGE, "by_agent.sh": BY_AGENT}
    for name, text in files.items():
        (tmp_git_repo / name).write_text(text)
    git("add", ".", cwd=tmp_git_repo)
    git("commit", "--quiet", "--message", "files", cwd=tmp_git_repo)
    monkeypatch.setenv("PAID", str(tmp_git_repo.parent / "paid"))
    return Place(tmp_git_repo, model_server)


def run(place: Place, text: str, settings: str = "", code: int = 0) -> Done:
    place.write(text, settings)
    done = place.agentos("run", "flow", "--id", "r")
    assert done.code == code, done.err + done.out
    return done


def resume(place: Place, text: str = "", code: int = 0) -> Done:
    if text:
        place.write(text)
    done = place.agentos("resume", "r")
    assert done.code == code, done.err + done.out
    return done


def kept(place: Place) -> str:
    return (place.root / "kept.txt").read_text()


def paid(place: Place) -> list[str]:
    file = place.root.parent / "paid"
    return sorted(file.read_text().split()) if file.exists() else []


def rows(place: Place, task: str = "fix", run: str = "r") -> dict[str, views.CandidateRow]:
    return {row.candidate: row for row in views.why(run, task, place.root).candidates}


def winners(place: Place, task: str = "fix") -> dict[str, str]:
    """With the reason."""
    return {key: row.reason for key, row in rows(place, task).items() if row.winner}


def why(place: Place, task: str = "fix") -> str:
    return views.why("r", task, place.root).why


def patch_of(place: Place, task: str) -> bytes:
    return diffs.task_diff("r", task, repo=place.root)[1]


def bases(place: Place) -> set[str]:
    """The snapshots that candidates began with."""
    ends = [one for one in Client(place.root).events("r") if isinstance(one, (ev.TaskComplete, ev.TaskError))]
    return {one.files.base for one in ends if one.files is not None and "[" in one.task_id}


# --- who wins -----------------------------------------------------------------------------------------------------


def test_the_winner_is_merged_and_the_others_stay_to_look_at(place: Place) -> None:
    run(place, FLOW % SHORTEST)
    assert kept(place) == "kept\nby 2\n"
    tasks = {task.id: task for task in views.view("r", place.root).tasks}
    assert tasks["after"].output["stdout"] == "kept\nby 2"
    assert (tasks["fix"].output["candidate"], tasks["fix"].output["text"]) == ("2", "1 lines")
    assert paid(place) == ["1", "2", "3"]
    table = rows(place)
    assert [(row.status, row.verify, row.files, row.added, row.winner) for row in table.values()] == [
        ("passed", "passed", 1, 3, False),
        ("passed", "passed", 1, 1, True),
        ("failed", "failed", 1, 9, False),
    ]
    assert winners(place) == {"2": "the least lines"}
    assert table["3"].execution_time_ms > 0
    for key, count in (("1", 3), ("2", 1), ("3", 9)):
        assert patch_of(place, f"fix[{key}]").count(f"+by {key}\n".encode()) == count
    assert git("worktree", "list", "--porcelain", cwd=place.root).count("worktree ") == 1
    assert not list((place.root / ".agentos").glob("worktrees/*"))
    assert not list(place.root.glob(".agentos-candidates*"))


def test_the_table_is_shown_everywhere_and_as_json(place: Place) -> None:
    done = run(place, FLOW % SHORTEST)
    shown = place.agentos("show", "r").out
    told = place.agentos("why", "r", "fix").out
    assert "complete: candidate 2 won: the least lines" in told
    for text in (done.out + done.err, shown, told):
        [won] = [line.split() for line in text.splitlines() if " won " in line and "+1" in line]
        assert won[:6] == ["2", "command", "won", "passed", "1", "+1"]
        assert won[-3:] == ["the", "least", "lines"]
    view = json.loads(place.agentos("show", "r", "--json").out)
    [fix] = [task for task in view["tasks"] if task["id"] == "fix"]
    assert [(row["candidate"], row["winner"]) for row in fix["candidates"]] == [("1", False), ("2", True), ("3", False)]
    assert json.loads(place.agentos("why", "r", "fix", "--json").out)["candidates"] == fix["candidates"]
    assert "candidates 1, 2, 3" in place.agentos("check", "workflows/flow.yaml").out


def test_all_begin_with_the_same_files_whatever_happens_beside_them(place: Place) -> None:
    text = (FLOW % SHORTEST).replace("  after:", "  beside: {run: 'echo beside >> other.txt'}\n  after:")
    text = text.replace("tasks:", "max_concurrency: 1\nschedule: layers\ntasks:", 1)
    run(place, text.replace("  fix:\n", "  fix:\n    concurrency: {group: g, slots: 1}\n"))
    assert len(bases(place)) == 1
    assert (place.root / "other.txt").read_text() == "beside\n"


def test_without_a_judge_the_first_that_passes_is_taken(place: Place) -> None:
    run(place, (FLOW % "x").replace("    judge: x\n", ""))
    assert kept(place) == "kept\n" + "by 1\n" * 3
    assert winners(place) == {"1": "the first that passed; there is no judge"}


def test_a_judge_is_not_asked_where_there_is_nothing_to_choose(place: Place) -> None:
    run(place, (FLOW % "{run: 'exit 1'}").replace("-lt 5", "-lt 3"))
    assert winners(place) == {"2": "the only one that passed"}
    assert why(place, "fix[judge]") == "skipped because of fewer than two passing candidates"


def test_where_none_passes_the_task_fails_and_a_resume_runs_them_again(place: Place) -> None:
    run(place, (FLOW % SHORTEST).replace("-lt 5", "-lt 1"), code=1)
    assert "no candidate passed, of 3" in why(place)
    assert kept(place) == "kept\n"
    assert patch_of(place, "fix[3]").count(b"+by 3") == 9  # what it did is kept all the same
    resume(place, FLOW % SHORTEST)
    assert [*winners(place)] == ["2"]
    assert paid(place) == ["1", "1", "2", "2", "3", "3"]


def test_a_judge_that_names_nobody_is_asked_again_and_nobody_is_paid_again(place: Place) -> None:
    run(place, FLOW % "{run: 'echo 3'}", code=1)
    assert "the judge names none of those who passed (1, 2)" in why(place)
    resume(place, FLOW % """{run: 'echo "{\\"winner\\": \\"1\\", \\"reason\\": \\"why not\\"}"'}""")
    assert winners(place) == {"1": "why not"}
    assert paid(place) == ["1", "2", "3"]


def test_a_person_chooses_among_those_who_passed(place: Place) -> None:
    run(place, FLOW % "human", code=3)
    [gate] = views.view("r", place.root).gates
    assert gate.choices == ("1", "2")
    assert "    candidates = 1, command · verify passed · files 1 · lines +3 -0" in place.agentos("inbox").out
    assert place.agentos("approve", "r", gate.id, "--choose", "3").code not in (0, 3)
    assert place.agentos("approve", "r", gate.id, "--choose", "1", "--reason", "the longer").code == 0
    assert winners(place) == {"1": "the longer"}
    assert kept(place) == "kept\n" + "by 1\n" * 3
    assert paid(place) == ["1", "2", "3"]


def test_a_person_who_wants_none_of_them_ends_it(place: Place) -> None:
    run(place, FLOW % "human", code=3)
    place.agentos("reject", "r", "approval:fix[judge]", "--reason", "none will do")
    resume(place, code=1)
    assert "none will do" in why(place)
    assert kept(place) == "kept\n"
    assert paid(place) == ["1", "2", "3"]


def test_an_agent_judges_by_what_lies_before_it(place: Place) -> None:
    run(place, FLOW % "{agent: command, command: [sh, by_agent.sh]}")
    assert winners(place) == {"2": "seen"}
    assert not (place.root / "asked").exists()  # whatever a judge writes is gone


# --- models -------------------------------------------------------------------------------------------------------

MODELS = """
name: ask
tasks:
  ask:
    prompt: What is it?
    candidates: [{llm: m1}, {llm: m2}, {llm: m3}]
    judge: {llm: judge}
    %s
"""


def answer(request: Received) -> Answer:
    if request.json["model"] == "judge":
        return says('{"winner": "2", "reason": "it says why"}', input_tokens=60, output_tokens=40)
    return says(f"by {request.json['model']}", input_tokens=60, output_tokens=40)


def asked(server: ModelServer) -> list[str]:
    return sorted(one.json["model"] for one in server.requests)


def test_a_model_judges_the_answers_of_others(place: Place) -> None:
    place.server.choose(answer)
    run(place, MODELS % "")
    view = views.view("r", place.root)
    [ask] = [task for task in view.tasks if task.id == "ask"]
    assert (ask.output["text"], ask.output["candidate"]) == ("by m2", "2")
    assert winners(place, "ask") == {"2": "it says why"}
    assert asked(place.server) == ["judge", "m1", "m2", "m3"]
    [prompt] = [one.json["messages"][-1]["content"] for one in place.server.requests if one.json["model"] == "judge"]
    assert all(text in prompt for text in ("What is it?", "by m1", "by m2", "by m3"))
    assert view.usage.tokens == 400
    assert [row.tokens for row in rows(place, "ask").values()] == [100, 100, 100]


def test_all_pay_from_one_budget_and_one_answer_is_for_all(place: Place) -> None:
    place.server.choose(answer)
    run(place, MODELS % "budget: {tokens: 150}", ONE_AT_A_TIME, code=3)
    assert asked(place.server) == ["m1", "m2"]
    [gate] = views.view("r", place.root).gates
    assert "Task 'ask' has spent" in gate.question
    assert place.agentos("approve", "r", gate.id).code == 0
    assert asked(place.server) == ["judge", "m1", "m2", "m3"]


def test_a_no_to_more_money_leaves_those_who_have_passed(place: Place) -> None:
    place.server.choose(answer)
    run(place, (MODELS % "budget: {tokens: 50}").replace("{llm: judge}", "{run: 'exit 1'}"), ONE_AT_A_TIME, code=3)
    [gate] = views.view("r", place.root).gates
    place.agentos("reject", "r", gate.id, "--reason", "enough")
    resume(place)
    assert asked(place.server) == ["m1"]
    assert [row.status for row in rows(place, "ask").values()] == ["passed", "failed", "failed"]
    assert winners(place, "ask") == {"1": "the only one that passed"}


ASKED_FIRST = """
name: best
tasks:
  say: {run: 'cat said.txt', effects: none}
  fix:
    approve: Begin?
    prompt: write
    candidates:
      - {agent: command, command: [sh, agent.sh, "1"]}
      - {agent: command, command: [sh, agent.sh, "2"], prompt: "${{ tasks.say.output.stdout }}"}
    judge: {run: [echo, "${{ candidates[1].candidate }}"]}
"""


def test_an_approval_of_all_of_them_is_about_what_each_is_to_do(place: Place) -> None:
    (place.root / "said.txt").write_text("be brief\n")
    run(place, ASKED_FIRST, code=3)
    shown = place.agentos("inbox").out
    for expected in ('"sh","agent.sh","1"', '"sh","agent.sh","2"', '"tasks.say.output.stdout":"be brief"', "[judge] ="):
        assert expected in shown
    (place.root / "said.txt").write_text("delete all\n")
    assert place.agentos("resume", "r", "--rerun", "say").code == 3
    [gate] = (one for one in views.view("r", place.root).gates if one.open)
    assert gate.id == "approve:fix#2", "what one of them is told is not what was asked about"
    assert place.agentos("approve", "r").code == 0
    assert set(winners(place)) == {"2"}


# --- kills, edits, forks ------------------------------------------------------------------------------------------

AT_WORK = [*CALL_POINTS, "attempt.before", "attempt.after", "commit.before", "commit.inside", "commit.after"]
"""What models without files pass on their way."""


@pytest.mark.parametrize("seed", quick_first(range(20)))
def test_killed_twice_anywhere_there_is_one_winner_and_one_payment_each(place: Place, seed: int) -> None:
    """One payment: whoever is asked twice, since an answer was lost, is asked with the same key."""
    place.server.choose(answer)
    place.write(MODELS % "")
    chance = random.Random(seed)
    for count in (3, 1):  # of so many passes at most each point is passed in every run, and in most resumes
        at = f"{chance.choice(AT_WORK)}:{chance.randint(1, count)}"
        killed = place.agentos("run", "flow", "--id", "r", AGENTOS_CRASH_AT=at)
        assert killed.code in (0, -signal.SIGKILL), killed.err
        assert killed.code or count < 3, f"{at} is not reached"
    place.agentos("run", "flow", "--id", "r")
    assert views.view("r", place.root).status == "complete"
    assert winners(place, "ask") == {"2": "it says why"}
    keys: dict[str, set[str]] = {}
    for one in place.server.requests:
        keys.setdefault(one.json["model"], set()).add(one.headers["idempotency-key"])
    assert {model: len(given) for model, given in keys.items()} == {"m1": 1, "m2": 1, "m3": 1, "judge": 1}


def test_killed_while_one_works_those_who_ended_are_not_paid_again(place: Place) -> None:
    place.write((FLOW % SHORTEST).replace("tasks:", "max_concurrency: 1\ntasks:", 1))
    killed = place.agentos("run", "flow", "--id", "r", AGENTOS_CRASH_AT="attempt.before:2")
    assert killed.code == -signal.SIGKILL
    assert paid(place) == ["1"]
    (place.root / "beside.txt").write_text("written by hand meanwhile\n")
    resume(place)
    assert paid(place) == ["1", "2", "3"]
    assert len(bases(place)) == 1  # the others begin with what the first began with
    assert (place.root / "beside.txt").exists()
    assert kept(place) == "kept\nby 2\n"


def test_other_candidates_are_another_contest(place: Place) -> None:
    run(place, FLOW % "{run: 'exit 1'}", code=1)
    more = '      - {agent: command, command: [sh, agent.sh, "0"]}\n    judge: {run: "echo 4"}'
    resume(place, (FLOW % "x").replace("    judge: x", more))
    assert [*winners(place)] == ["4"]
    assert paid(place) == ["1", "1", "2", "2", "3", "3", "4"]


def test_what_the_others_did_stays_until_the_run_is_pruned(place: Place) -> None:
    run(place, FLOW % SHORTEST)
    assert place.agentos("diff", "r", "fix[1]").out == "M  kept.txt\n"
    assert place.agentos("prune", "r", "--keep", "1").code == 0
    assert "M  kept.txt" not in place.agentos("diff", "r", "fix[1]").out
    assert [*winners(place)] == ["2"]


def test_once_the_winner_is_merged_the_judge_alone_does_not_run_again(place: Place) -> None:
    """What another one did does not fit on top of it."""
    run(place, (FLOW % SHORTEST).replace("-lt 5", "-lt 9"))
    told = place.agentos("resume", "r", "--rerun", "fix[judge]", "--dry-run").out
    assert "fix[judge]: asked for; what its winner did is in the files already" in told


def test_what_changed_is_named_where_candidates_have_sources(place: Place) -> None:
    (place.root / "notes.txt").write_text("one\n")
    run(place, (FLOW % SHORTEST).replace("prompt: write", "prompt: write\n    sources: [notes.txt]"))
    (place.root / "notes.txt").write_text("two\n")
    told = place.agentos("resume", "r", "--dry-run").out
    assert "fix[1]: sources changed: notes.txt; what its winner did is in the files already" in told


def test_a_fork_still_has_the_table(place: Place) -> None:
    run(place, FLOW % SHORTEST)
    forked = place.agentos("fork", "r", "--id", "f")
    assert forked.code == 0, forked.err
    assert rows(place, run="f") == rows(place)


def test_a_group_with_candidates_is_repeated(place: Place) -> None:
    text = (FLOW % SHORTEST).split("  after:")[0]
    again = "  again: {repeat: {tasks: [fix], until: \"${{ tasks.fix.output.text }} == '1 lines'\", max: 2}}\n"
    run(place, text + again)
    assert [*winners(place)] == ["2"]
