"""Runs with real agents that are stopped in every way but a SIGKILL of the driver: each stop is a pause.

The scripted model counts calls: a job of so many answers is answered so often, whatever came in between.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from agentos.machine.events import AgentSession, FilesCaptured, TaskProcess, TaskRetry, TaskSession
from tests.agents.script import RunShell
from tests.agents.support import FULL
from tests.agents.test_kills import PATIENCE_S, QUICK, Runs, by, file, runs
from tests.conftest import git
from tests.models.replies import Hang, says

pytestmark = pytest.mark.full  # real agents, from npm

AGENTS = ("claude", "codex")
HALF = "echo half > half; sleep 600"


@pytest.fixture
def repo(tmp_git_repo: Path) -> Path:
    return tmp_git_repo


def stop(process: subprocess.Popen[str], how: str) -> int:
    """Ctrl-C twice, or SIGTERM, which drains for a while; the exit code."""
    if how == "SIGTERM":
        process.terminate()
    else:
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while "Ctrl-C again" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
    return process.wait(PATIENCE_S)


def sessions(run: Runs) -> list[AgentSession]:
    return [event.session for event in run.client.events("r1") if isinstance(event, TaskSession)]


def is_at_second_turn(run: Runs, agent: str) -> bool:
    return len(run.model.script.calls) == 3 and run.turns() >= 2 and run.remembers(agent, "b by the agent")


@pytest.mark.parametrize("how", ["SIGINT twice", "SIGTERM"])
@pytest.mark.parametrize("agent", AGENTS)
def test_stopped_it_goes_on_in_its_session_from_its_last_turn(agent: str, how: str, repo: Path, home: Path) -> None:
    with runs(agent, repo, home, "", file(repo, "a"), file(repo, "b"), Hang()) as run:
        script = run.model.script
        with run.running_until(lambda: is_at_second_turn(run, agent)) as process:
            assert stop(process, how) == (143 if how == "SIGTERM" else 130)
        script.then(file(repo, "c"), says("All done."))
        told = run.finish("resume", "r1", "--dry-run")
        assert "its agent goes on in its session, from the files of its last turn" in told
        told = run.finish("resume", "r1")

        assert run.tree() == by("a", "b", "c")
        assert len(script.calls) == 5, "nothing that was paid for is asked again"
        assert "You were interrupted" in script.calls[3].text
        assert "b by the agent" in script.calls[3].text, "its session went on"
        assert "a new one was begun" not in told
        assert "taken effect" not in told
        assert run.paid_tokens() == 40, "as many as the model has counted"
        first, second = sessions(run)
        assert second.forked_from == first.id


@pytest.mark.parametrize("agent", AGENTS)
def test_stopped_in_the_middle_of_a_turn_what_that_did_is_gone(agent: str, repo: Path, home: Path) -> None:
    with runs(agent, repo, home, "permissions: full", file(repo, "a"), RunShell(HALF)) as run:
        script = run.model.script
        with run.running_until(lambda: (repo / "half").exists() and run.turns() >= 1) as process:
            stop(process, "SIGTERM")
        assert run.tree() == {**by("a"), "half": "half\n"}, "an orderly stop puts nothing back"
        script.then(file(repo, "b"), says("All done."))
        run.finish("resume", "r1")

        assert run.tree() == by("a", "b")
        assert len(script.calls) == 4


def test_stopped_and_edited_since_the_user_chooses_and_it_goes_on_with_that(repo: Path, home: Path) -> None:
    with runs("codex", repo, home, "permissions: full", file(repo, "a"), RunShell(HALF)) as run:
        script = run.model.script
        with run.running_until(lambda: (repo / "half").exists() and run.turns() >= 1) as process:
            stop(process, "SIGTERM")
        (repo / "a").write_text("mine")
        told = run.finish("resume", "r1", code=3)
        assert "changed after it was stopped" in told
        assert len(script.calls) == 2, "nothing runs before that"
        script.then(file(repo, "b"), says("All done."))
        run.finish("resume", "r1", "--files", "keep")

        assert run.tree() == {"a": "mine", "half": "half\n", **by("b")}
        assert "a by the agent" in script.calls[2].text, "its session went on"


@pytest.mark.parametrize("agent", AGENTS if FULL else ("claude",))
def test_an_isolated_agent_that_was_stopped_goes_on_in_a_new_worktree(agent: str, repo: Path, home: Path) -> None:
    with runs(agent, repo, home, "isolation: worktree", RunShell("touch a"), Hang()) as run:
        script = run.model.script
        arrived = lambda: len(script.calls) == 2 and run.turns() >= 1 and run.remembers(agent, "touch a")  # noqa: E731
        with run.running_until(arrived) as process:
            stop(process, "SIGTERM")
        script.then(RunShell("touch b"), says("All done."))
        run.finish("resume", "r1")

        assert set(run.tree()) == {"a", "b"}
        assert len(script.calls) == 4
        assert "touch a" in script.calls[2].text


def test_one_that_is_to_restart_does_so_after_a_stop_too(repo: Path, home: Path) -> None:
    with runs("codex", repo, home, "on_resume: restart", file(repo, "a"), Hang()) as run:
        script = run.model.script
        with run.running_until(lambda: len(script.calls) == 2 and run.turns() >= 1) as process:
            stop(process, "SIGTERM")
        script.then(file(repo, "b"), says("All done."))
        run.finish("resume", "r1")

        assert run.tree() == by("b")
        assert "a by the agent" not in script.calls[2].text


def test_one_that_the_user_wants_to_run_again_starts_anew(repo: Path, home: Path) -> None:
    with runs("codex", repo, home, "", file(repo, "a"), Hang()) as run:
        script = run.model.script
        with run.running_until(lambda: len(script.calls) == 2 and run.turns() >= 1) as process:
            stop(process, "SIGTERM")
        script.then(file(repo, "b"), says("All done."))
        run.finish("resume", "r1", "--rerun", "work")

        assert run.tree() == by("b")
        assert "a by the agent" not in script.calls[2].text


# --- a killed agent ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retries", [1, 0], ids=["in-the-same-drive", "in-the-next"])
@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_that_was_killed_goes_on_from_its_last_turn(agent: str, retries: int, repo: Path, home: Path) -> None:
    settings = f"permissions: full, retries: {{retries: {retries}, backoff_s: 0}}"
    with runs(agent, repo, home, settings, file(repo, "a"), RunShell(HALF)) as run:
        script = run.model.script
        with run.running_until(lambda: (repo / "half").exists() and run.turns() >= 1) as process:
            script.then(file(repo, "b"), says("All done."))
            [child] = [event for event in run.client.events("r1") if isinstance(event, TaskProcess)]
            os.killpg(child.pgid, signal.SIGKILL)
            assert process.wait(PATIENCE_S) == (0 if retries else 1)
        if not retries:
            assert run.tree() == {**by("a"), "half": "half\n"}
            run.finish("resume", "r1")

        assert run.tree() == by("a", "b")
        assert len(script.calls) == 4
        assert "a by the agent" in script.calls[2].text, "its session went on"


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", (*AGENTS, "opencode", "copilot") if FULL else AGENTS)
def test_with_more_turns_it_goes_on_where_it_was_stopped(agent: str, repo: Path, home: Path) -> None:
    """A job of six answers. All but claude are stopped at the tools of an answer too many, which is asked for again."""
    steps = [file(repo, name) for name in "abcde"]
    with runs(agent, repo, home, "max_turns: 2", *steps, says("All done.")) as run:
        script = run.model.script
        told = run.finish("run", "flow.yaml", "--id", "r1", code=1)
        assert "(turn_limit)" in told
        if agent != "claude":
            script.then(*steps[2:], says("All done."))
        flow = repo / "flow.yaml"
        flow.write_text(flow.read_text().replace("max_turns: 2", "max_turns: 9"))
        told = run.finish("resume", "r1", "--dry-run")
        assert "its agent goes on in its session" in told
        run.finish("resume", "r1")

        assert run.tree() == by(*"abcde")
        # On a busy machine the others ask once more before they are stopped: this model answers at once.
        assert len(script.calls) in ((6,) if agent == "claude" else (7, 8))
        assert run.client.show("r1").outputs["work"]["text"] == "All done."


@pytest.mark.parametrize(
    ("agent", "budget"), [("claude", "0.0002"), ("claude", "{tokens: 20}"), ("codex", "{tokens: 20}")]
)
def test_each_approval_of_a_budget_buys_the_next_part_of_the_work(
    agent: str, budget: str, repo: Path, home: Path
) -> None:
    """An answer of the scripted model is 15 tokens, $0.000105. It is slow where it does not matter any more."""
    with runs(agent, repo, home, f"budget: {budget}", file(repo, "a"), file(repo, "b"), Hang()) as run:
        script = run.model.script
        told = run.finish("run", "flow.yaml", "--id", "r1", code=3)
        assert "may spend no more" in told
        assert run.tree() == by("a", "b"), "what was paid for was done"
        script.then(file(repo, "c"), file(repo, "d"), Hang())
        run.finish("approve", "r1", code=3)
        assert run.tree() == by(*"abcd")
        script.then(says("All done."))
        run.finish("approve", "r1")

        assert run.client.show("r1").outputs["work"]["text"] == "All done."
        assert run.paid_tokens() == 50, "no answer was bought twice"
        goes_on = [call.text for call in script.calls if "You were interrupted" in call.text]
        assert "b by the agent" in goes_on[0]
        assert "d by the agent" in goes_on[-1]
        retries = [event for event in run.client.events("r1") if isinstance(event, TaskRetry)]
        assert [event.put_off for event in retries] == [True, True], "that uses up no retry"


# --- why work is not accepted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", AGENTS)
def test_what_verify_says_is_the_next_message_of_the_same_session(agent: str, repo: Path, home: Path) -> None:
    settings = "retries: {retries: 1, backoff_s: 0}, verify: 'echo NO B HERE >&2; test -e b'"
    steps = (file(repo, "a"), says("All done."), file(repo, "b"), says("Now it is."))
    with runs(agent, repo, home, settings, *steps) as run:
        script = run.model.script
        run.finish("run", "flow.yaml", "--id", "r1")

        assert run.tree() == by("a", "b")
        assert len(script.calls) == 4
        assert run.paid_tokens() == 40, "as many as the model has counted"
        told = script.calls[2].text
        assert "NO B HERE" in told
        assert "is not accepted yet" in told
        assert told.count("THE TASK") == 1, "only in the session, which went on"
        assert "a by the agent" in told
        first, second = sessions(run)
        assert second.forked_from == first.id


def test_what_verify_says_is_the_next_message_after_a_resume_too(repo: Path, home: Path) -> None:
    with runs("codex", repo, home, "verify: test -e b", file(repo, "a"), says("All done.")) as run:
        script = run.model.script
        run.finish("run", "flow.yaml", "--id", "r1", code=1)
        (repo / "mine").write_text("a file of the user's, made meanwhile")
        script.then(file(repo, "b"), says("Now it is."))
        told = run.finish("resume", "r1")

        assert "files stay as they are" in told
        assert set(run.tree()) == {"a", "b", "mine"}
        assert len(script.calls) == 4
        assert "is not accepted yet" in script.calls[2].text
        assert script.calls[2].text.count("THE TASK") == 1


def test_an_answer_against_the_schema_is_told_why(repo: Path, home: Path) -> None:
    schema = "schema: {type: object, required: [ok], properties: {ok: {const: true}}}"
    settings = f"retries: {{retries: 1, backoff_s: 0}}, {schema}"
    with runs("codex", repo, home, settings, says('{"ok": false}'), says('{"ok": true}')) as run:
        script = run.model.script
        run.finish("run", "flow.yaml", "--id", "r1")

        assert len(script.calls) == 2
        assert "is not accepted yet" in script.calls[1].text
        assert "ok" in script.calls[1].text.partition("is not accepted yet")[2]
        assert run.client.show("r1").outputs["work"]["json"] == {"ok": True}


# --- a turn is captured between two turns -----------------------------------------------------------------------------


@pytest.mark.parametrize("agent", AGENTS)
def test_no_snapshot_of_a_turn_holds_a_piece_of_another(agent: str, repo: Path, home: Path) -> None:
    """Each turn makes two files, one after the other: none is captured without its twin, as fast as answers come."""
    steps = [RunShell(f"touch {name}1; sleep 0.05; touch {name}2") for name in "abcdef"]
    with runs(agent, repo, home, "permissions: full", *steps, says("All done.")) as run:
        run.finish("run", "flow.yaml", "--id", "r1")
        turns = [event for event in run.client.events("r1") if isinstance(event, FilesCaptured) and event.why == "turn"]
        store = git("rev-parse", "--path-format=absolute", "--git-common-dir", cwd=repo) + "/agentos/store"

        assert turns
        for turn in turns:
            names = git("--git-dir", store, "ls-tree", "--name-only", turn.tree, cwd=repo).split()
            made = sorted(name for name in names if len(name) == 2)
            assert len(made) % 2 == 0, made


def test_what_these_stops_leave_out() -> None:
    """Not a test: the summary shows the reason of a skip."""
    pytest.skip(f"agents stopped: only {', '.join(QUICK)}; gemini, opencode and copilot share what decides it")
