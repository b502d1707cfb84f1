"""`agentos issue`: every flag that chooses, limits or tells, through the program; gates answered from anywhere."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos import Client
from tests.cli.conftest import SOURCES, Completed, call_agentos
from tests.cli.terminal import Terminal
from tests.issue.stage import Stage
from tests.issue.test_draft_gate import ASK, DECIDE
from tests.issue.test_models import RUN as RUN
from tests.issue.test_models import made, server, spent
from tests.models.server import ModelServer

__all__ = ["server"]  # a fixture

Open = Callable[..., Terminal]


@pytest.fixture
def terminal(stage: Stage, home: object) -> Iterator[Open]:
    opened: list[Terminal] = []

    def start(*arguments: str, cwd: Path | None = None, roles: bool = True) -> Terminal:
        given = ["issue", *arguments, *(stage.roles if roles else ())]
        opened.append(Terminal(*given, cwd=cwd or stage.repo, env={"PYTHONPATH": str(SOURCES)}, columns=160))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def rows(done: Completed) -> dict[str, dict[str, Any]]:
    """What `--json` told, by brief. Nothing else may be on stdout."""
    return {row["brief"]: row for row in json.loads(done.out)}


def typed(stage: Stage, line: str, *, cwd: Path) -> Completed:
    """A command as it was shown, typed in a shell."""
    program, *arguments = shlex.split(line)
    assert program == "agentos"
    return call_agentos(*arguments, cwd=cwd, env=stage.env, timeout_s=100)


def shown_command(text: str, *words: str) -> str:
    return next(line.strip() for line in text.splitlines() if all(word in line for word in words))


# --- rounds -----------------------------------------------------------------------------------------------------


def test_an_issue_that_waits_shows_the_rounds_it_has_taken(stage: Stage) -> None:
    assert stage.issue("--brief", "dark-mode.md", gates="draft").code == 3
    said = ("--choose", "revise", "--reason", "Shorter.")
    assert stage.agentos("approve", RUN, *said).code == 3
    told = stage.agentos("issue", "--brief", "dark-mode.md", "--json")
    assert told.code == 3
    row = rows(told)["dark-mode.md"]
    assert (row["status"], row["rounds"], row["exit_code"], row["url"]) == ("waiting", 2, 3, "")
    foreseen = stage.agentos("issue", "--brief", "dark-mode.md", "--dry-run")
    assert foreseen.code == 0
    assert foreseen.out.split()[-3:] == ["resume", "2", "-"], foreseen.out
    assert stage.agentos("approve", RUN, "--choose", "send").code == 0
    assert rows(stage.agentos("issue", "--brief", "dark-mode.md", "--json"))["dark-mode.md"]["rounds"] == 2


# --- --json -----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_json_tells_what_became_of_each_and_nothing_else(stage: Stage) -> None:
    for name in ("good", "empty"):
        stage.brief("" if name == "empty" else "A brief that is long enough to work from.\n", f"ideas/active/{name}.md")
    done = stage.issue("--all", "--json", "--parallel", "2")
    told = rows(done)
    good, empty = told["ideas/active/good.md"], told["ideas/active/empty.md"]
    assert (good["status"], good["rounds"], good["exit_code"]) == ("complete", 1, 0)
    assert good["url"] == "https://tracker.invalid/issues/1"
    assert (stage.repo / good["folder"]).is_dir()
    assert (empty["status"], empty["exit_code"]) == ("refused", 2)
    assert done.code == 2
    stage.reviewer(1)
    stage.brief("Another brief that is long enough to work from.\n", "ideas/active/fails.md")
    failed = stage.issue("--brief", "ideas/active/fails.md", "--json")
    assert (failed.code, rows(failed)["ideas/active/fails.md"]["status"]) == (1, "failed")


# --- --repo -----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_from_anywhere_with_repo_what_is_shown_can_be_typed_there(stage: Stage, tmp_path: Path) -> None:
    stage.brief(name="ideas/active/one.md")
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    repo = ("--repo", str(stage.repo))

    def issue(*arguments: str) -> Completed:
        line = ("issue", *arguments, *repo, *stage.roles)
        return call_agentos(*line, cwd=elsewhere, env=stage.env, timeout_s=100)

    offered = issue("--select", "--gates", "draft")
    assert offered.code == 3
    asked = typed(stage, offered.err.split("Choose one: ")[1].splitlines()[0], cwd=elsewhere)
    assert asked.code == 3, asked.err
    waits = shown_command(asked.err, "agentos approve issue-one approval:look", "--choose send")
    assert (stage.repo / "docs/lineage/active/one/002-draft.md").exists()
    stage.brief("The brief says something else now, and says it at length.\n", "ideas/active/one.md")
    changed = issue("--brief", "ideas/active/one.md")
    assert changed.code == 3
    as_begun = changed.err.split("To go on as it began:")[1].splitlines()[0].strip()
    assert typed(stage, as_begun, cwd=elsewhere).code == 3
    assert typed(stage, waits, cwd=elsewhere).code == 0
    assert len(stage.filed) == 1
    anew = changed.err.split("To begin anew with this:")[1].splitlines()[0].strip()
    again = typed(stage, anew, cwd=elsewhere)
    assert again.code == 3, again.err
    resumed = call_agentos("issue", "--resume", *repo, cwd=elsewhere, env=stage.env, timeout_s=100)
    assert resumed.code == 3
    assert "issue-one-2" in resumed.err
    assert list(elsewhere.iterdir()) == []


# --- --select ---------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_all_or_none_may_be_chosen(terminal: Open, stage: Stage) -> None:
    assert "There is no brief in" in stage.issue("--select").err
    for name in ("one", "two", "three"):
        stage.brief(name=f"ideas/active/{name}.md")
    none = terminal("--select", "--gates", "none")
    none.until("Which?")
    none.type("q\n")
    assert none.end() == 0
    assert stage.calls("drafter") == []
    some = terminal("--select", "--gates", "none", "--json")
    some.until("Which?")
    some.type("3,1\n")
    assert some.end() == 0
    assert {stage.status("issue-one"), stage.status("issue-two")} == {"complete"}
    everything = terminal("--select", "--gates", "none")
    everything.until("Which?")
    everything.type("a\n")
    assert everything.end() == 0
    assert len(stage.filed) == 3
    given_up = terminal("--select", "--gates", "none")
    given_up.until("Which?")
    given_up.type("\x03")
    assert given_up.end() in (1, 130)


# --- --budget ---------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_budget_holds_over_rounds_and_a_no_ends_it(stage: Stage, server: ModelServer) -> None:
    code, out, err = made(stage, "--brief", "dark-mode.md", "--budget", "0.5", "--json")
    assert code == 3, err
    assert json.loads(out)[0]["status"] == "waiting"
    assert json.loads(out)[0]["rounds"] == 1
    assert stage.agentos("reject", RUN, "--reason", "too dear").code in (0, 1)
    assert (spent(stage), stage.filed, stage.status()) == (0.5, [], "failed")
    foreseen = stage.agentos("issue", "--brief", "dark-mode.md", "--dry-run", "--json")
    assert json.loads(foreseen.out)[0]["status"] == "dropped"


def test_a_budget_for_programs_counts_nothing_and_says_so(stage: Stage) -> None:
    done = stage.issue("--brief", "dark-mode.md", "--budget", "1")
    assert (done.code, "--budget counts nothing here" in done.err) == (0, True)
    for wrong in ("0", "-1", "lots"):
        assert stage.issue("--brief", "dark-mode.md", "--budget", wrong).code == 2


# --- gates ------------------------------------------------------------------------------------------------------


def test_the_gate_verdict_alone_lets_the_draft_through(stage: Stage) -> None:
    done = stage.issue("--brief", "dark-mode.md", gates="verdict")
    assert done.code == 3
    assert list(stage.gates()) == ["approval:decide"]
    assert stage.agentos("approve", RUN, "--choose", "nonsense").code == 2
    assert stage.agentos("approve", RUN).code == 2, "a plain yes chooses nothing"
    assert stage.agentos("approve", RUN, "--choose", "revise", "--reason", "Warmer.").code == 3
    assert "Warmer." in stage.calls("drafter")[1]
    assert stage.agentos("approve", RUN, "--choose", "accept").code == 0
    assert len(stage.filed) == 1
    for wrong in ("drfat", "draft,none", ""):
        assert stage.issue("--brief", "dark-mode.md", gates=wrong).code == 2


@pytest.mark.full
def test_the_gate_draft_alone_asks_nothing_about_an_approval(stage: Stage) -> None:
    assert stage.issue("--brief", "dark-mode.md", gates="draft").code == 3
    assert stage.agentos("approve", RUN, "--choose", "send").code == 0
    assert len(stage.filed) == 1


@pytest.mark.full
def test_a_verdict_is_answered_at_a_terminal_with_several_lines(terminal: Open, stage: Stage) -> None:
    stage.reviewer("revise", "approve")
    screen = terminal("--brief", "dark-mode.md", "--gates", "verdict")
    screen.until(DECIDE)
    screen.type("rev\n")
    screen.until("an empty one ends it")
    screen.type("Name the user.\nAnd the hour.\n\n")
    screen.until(lambda: "decide@2 asks" in screen.scrollback and screen.shown.endswith(DECIDE))
    assert "Name the user.\nAnd the hour." in stage.calls("drafter")[1]
    screen.type("re\n")
    screen.until("Please type one of")
    screen.type("reject\n")
    screen.until("Reason:")
    screen.type("Not now.\n")
    assert screen.end() == 1
    assert stage.status() == "failed"
    assert stage.filed == []


@pytest.mark.full
def test_an_answer_from_another_process_closes_the_question_at_the_terminal(terminal: Open, stage: Stage) -> None:
    screen = terminal("--brief", "dark-mode.md", "--gates", "draft")
    screen.until(ASK)
    said = stage.agentos("approve", RUN, "--choose", "send", "--author", "somebody else")
    assert said.code == 0, said.err
    assert screen.end() == 0
    assert "Already send by somebody else" in screen.scrollback
    assert len(stage.filed) == 1
    assert Client(stage.repo).find(RUN).status == "complete"
