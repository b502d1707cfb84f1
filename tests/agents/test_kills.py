"""Runs with real agents, killed with SIGKILL and resumed: what the files are then, and what was paid for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import agentos
from agentos.client import Client
from agentos.crashpoints import VARIABLE
from agentos.machine.events import FilesCaptured, TaskSession, TaskUsage
from tests.agents.programs import MODELS
from tests.agents.script import RunShell, Step, WriteFile
from tests.agents.support import FULL, REAL, Scripted, scripted
from tests.conftest import git
from tests.models.replies import Hang, says

pytestmark = pytest.mark.full  # real agents, from npm

QUICK = ("claude", "codex")
"""Those that begin within two seconds; `AGENTOS_MATRIX=full` (`make matrix`) kills all five."""
PATIENCE_S = 60.0
TRANSCRIPTS = {
    "claude": ".claude/projects",
    "codex": ".codex/sessions",
    "gemini": ".gemini/tmp",
    "opencode": ".local/share/opencode",
    "copilot": ".copilot",
}


class Runs:
    """`agentos` in a repository, as another process, with an agent that a script answers."""

    def __init__(self, repo: Path, model: Scripted) -> None:
        self.repo, self.model = repo, model
        self.client = Client(repo)
        source = str(Path(agentos.__file__).parents[1])
        self.temporary = repo.parent / "temporary"
        self.temporary.mkdir()
        own = {"PYTHONPATH": source, "NO_COLOR": "1", "TMPDIR": str(self.temporary)}
        self.env = {**os.environ, **model.env, **own}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "agentos", *arguments],
            cwd=self.repo,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, *arguments: str, code: int = 0) -> str:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code, f"{arguments} ended with {process.returncode}\n{out}\n{err}"
        return out + err

    @contextmanager
    def running_until(self, arrived: Callable[[], bool], *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A run, or what else drives it, that has come so far; killed at the end, where it still lives."""
        process = self.start(*(arguments or ("run", "flow.yaml", "--id", "r1")))
        try:
            until = time.monotonic() + PATIENCE_S
            while not arrived():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < until, "waited in vain"
                time.sleep(0.05)
            yield process
        finally:
            process.kill()
            process.communicate()

    def killed_when(self, arrived: Callable[[], bool], *arguments: str) -> None:
        """A run, or what else drives it, that is killed with SIGKILL and nothing else as soon as that is so."""
        with self.running_until(arrived, *arguments):
            pass

    def turns(self) -> int:
        events = self.client.events("r1")
        return sum(isinstance(event, FilesCaptured) and event.why == "turn" for event in events)

    def remembers(self, agent: str, text: str) -> bool:
        """Whether the agent has written it down itself: each does so when it likes, and a kill may come before.

        Claude forgets the use of a tool whose result it has not written down as well.
        """
        files = (Path(self.env["HOME"]) / TRANSCRIPTS[agent]).rglob("*")
        after = (path.read_bytes().partition(text.encode())[1:] for path in files if path.is_file())
        return any(found and (agent != "claude" or b'"tool_result"' in rest) for found, rest in after)

    def paid_tokens(self) -> int:
        return sum(event.usage.input_tokens for event in self.client.events("r1") if isinstance(event, TaskUsage))

    def tree(self) -> dict[str, str]:
        names = git("ls-files", "--others", "--cached", "--exclude-standard", cwd=self.repo).splitlines()
        kept = (name for name in names if name not in ("flow.yaml", "README"))
        return {name: (self.repo / name).read_text() for name in sorted(kept)}


@contextmanager
def runs(agent: str, repo: Path, home: Path, settings: str, *steps: Step) -> Iterator[Runs]:
    with scripted(agent, home, *steps) as model:
        (repo / "flow.yaml").write_text(
            f"name: flow\ntasks:\n  work: {{agent: {agent}, model: {MODELS[agent]}, prompt: THE TASK, {settings}}}\n"
        )
        yield Runs(repo, model)


def file(repo: Path, name: str) -> WriteFile:
    return WriteFile(str(repo / name), f"{name} by the agent")


@pytest.fixture
def repo(tmp_git_repo: Path) -> Path:
    return tmp_git_repo


def by(*names: str) -> dict[str, str]:
    return {name: f"{name} by the agent" for name in names}


@pytest.mark.parametrize("agent", REAL if FULL else QUICK)
def test_killed_after_a_turn_it_goes_on_with_its_files_and_its_session(agent: str, repo: Path, home: Path) -> None:
    with runs(agent, repo, home, "", file(repo, "a"), file(repo, "b"), Hang()) as run:
        script = run.model.script
        tells = 0 if agent == "copilot" else 20  # before its end; codex and gemini tell a moment after their turn
        run.killed_when(
            lambda: (
                len(script.calls) == 3
                and run.turns() >= 2
                and run.remembers(agent, "b by the agent")
                and run.paid_tokens() >= tells
            )
        )
        before = run.paid_tokens()
        assert before == tells
        if agent == "claude":  # and once more, with a copy of its session on record that never came to be
            run.env[VARIABLE] = "process.before"
            run.finish("resume", "r1", code=-9)
            del run.env[VARIABLE]
        script.then(file(repo, "c"), says("All done."))
        told = run.finish("resume", "r1")

        assert run.tree() == by("a", "b", "c")
        assert len(script.calls) == 5, "nothing that was paid for is asked again"
        goes_on = script.calls[3].text
        assert "You were interrupted" in goes_on
        assert "a by the agent" in goes_on, "its session went on"
        assert "a new one was begun" not in told
        assert run.paid_tokens() == 40, "copilot tells only at the end, and then of its whole session"
        assert run.client.show("r1").outputs["work"]["text"] == "All done."
        assert list(run.temporary.glob("agentos-*")) == [], "no prompt is left behind"


@pytest.mark.parametrize("agent", REAL if FULL else ("codex",))
def test_killed_in_the_middle_of_a_turn_what_that_did_is_gone(agent: str, repo: Path, home: Path) -> None:
    half = RunShell("echo half > half; sleep 600")
    with runs(agent, repo, home, "permissions: full", file(repo, "a"), half) as run:
        script = run.model.script
        run.killed_when(lambda: (repo / "half").exists() and run.turns() >= 1)
        script.then(file(repo, "b"), says("All done."))
        run.finish("resume", "r1")

        assert run.tree() == by("a", "b")
        assert len(script.calls) == 4


@pytest.mark.parametrize("agent", REAL if FULL else ("claude",))
def test_killed_in_its_first_turn_it_does_the_task_once(agent: str, repo: Path, home: Path) -> None:
    with runs(agent, repo, home, "", Hang()) as run:
        script = run.model.script
        run.killed_when(lambda: len(script.calls) == 1)
        script.then(file(repo, "a"), says("All done."))
        run.finish("resume", "r1")

        assert run.tree() == by("a")
        assert len(script.calls) == 3
        assert "THE TASK" in script.calls[1].text


def test_killed_before_it_ran_its_session_is_on_record_and_nothing_was_paid(repo: Path, home: Path) -> None:
    with runs("claude", repo, home, "", file(repo, "a"), says("All done.")) as run:
        run.env[VARIABLE] = "process.before"
        run.finish("run", "flow.yaml", "--id", "r1", code=-9)
        assert [event.session.agent for event in run.client.events("r1") if isinstance(event, TaskSession)] == [
            "claude"
        ]
        assert run.model.script.calls == []
        del run.env[VARIABLE]
        run.finish("resume", "r1")

        assert run.tree() == by("a")
        assert len(run.model.script.calls) == 2


def test_an_agent_that_is_to_restart_begins_from_nothing(repo: Path, home: Path) -> None:
    with runs("codex", repo, home, "on_resume: restart", file(repo, "a"), Hang()) as run:
        script = run.model.script
        run.killed_when(lambda: len(script.calls) == 2 and run.turns() >= 1)
        script.then(file(repo, "b"), says("All done."))
        run.finish("resume", "r1")

        assert run.tree() == by("b")
        assert "You were interrupted" not in script.calls[2].text
        assert "a by the agent" not in script.calls[2].text


def test_a_fork_knows_that_what_it_did_was_undone(repo: Path, home: Path) -> None:
    with runs("codex", repo, home, "on_resume: fork", file(repo, "a"), Hang()) as run:
        script = run.model.script
        run.killed_when(lambda: len(script.calls) == 2 and run.turns() >= 1)
        script.then(file(repo, "b"), says("All done."))
        run.finish("resume", "r1")

        assert run.tree() == by("b")
        assert "a by the agent" in script.calls[2].text, "it still knows what it learned"
        assert "was undone" in script.calls[2].text


@pytest.mark.skipif(not FULL, reason="an isolated fork: only by `make matrix`")
def test_an_isolated_fork_begins_with_the_files_it_began_with(repo: Path, home: Path) -> None:
    with runs("codex", repo, home, "isolation: worktree, on_resume: fork", WriteFile("a", "a"), Hang()) as run:
        run.killed_when(lambda: len(run.model.script.calls) == 2 and run.turns() >= 1)
        run.model.script.then(WriteFile("b", "b"), says("All done."))
        run.finish("resume", "r1")

        assert set(run.tree()) == {"b"}


@pytest.mark.parametrize("agent", QUICK if FULL else ("claude",))
def test_an_isolated_agent_goes_on_in_a_new_worktree(agent: str, repo: Path, home: Path) -> None:
    with runs(agent, repo, home, "isolation: worktree", RunShell("touch a"), Hang()) as run:
        script = run.model.script
        run.killed_when(lambda: len(script.calls) == 2 and run.turns() >= 1 and run.remembers(agent, "touch a"))
        assert run.tree() == {}
        script.then(RunShell("touch b"), says("All done."))
        run.finish("resume", "r1")

        assert set(run.tree()) == {"a", "b"}
        assert len(script.calls) == 4
        assert "You were interrupted" in script.calls[2].text
        assert script.calls[2].text.count("THE TASK") == 2, "its session went on"


def test_agents_that_worked_side_by_side_start_again(repo: Path, home: Path) -> None:
    with runs("codex", repo, home, "", Hang(), Hang()) as run:
        flow = repo / "flow.yaml"
        flow.write_text(flow.read_text() + flow.read_text().splitlines()[-1].replace("work:", "more:") + "\n")
        script = run.model.script
        run.killed_when(lambda: len(script.calls) == 2)
        told = run.finish("resume", "r1", "--dry-run")
        run.finish("resume", "r1")

        assert len(script.calls) == 4
        assert not any("You were interrupted" in call.text for call in script.calls)
        assert told.count("so that it starts anew") == 2


def test_an_agent_whose_run_was_rolled_back_does_not_believe_in_what_it_did(repo: Path, home: Path) -> None:
    with runs("codex", repo, home, "needs: first", file(repo, "a"), says("All done.")) as run:
        flow = repo / "flow.yaml"
        flow.write_text(flow.read_text() + "  first: {run: 'true', effects: none}\n")
        run.finish("run", "flow.yaml", "--id", "r1")
        first = json.loads(run.start("checkpoints", "r1", "--json").communicate()[0])[0]
        run.model.script.then(file(repo, "b"), says("All done."))
        run.finish("resume", first["id"], "--restore-files", code=3)
        run.finish("approve", "r1", "ask:work~1", "--choose", "run-again")
        run.finish("resume", "r1")

        assert run.tree() == by("b")
        assert "a by the agent" not in run.model.script.calls[2].text


def test_where_the_budget_is_used_up_a_gate_asks_for_more(repo: Path, home: Path) -> None:
    with runs("claude", repo, home, "budget: 0.00001", file(repo, "a"), Hang()) as run:
        told = run.finish("run", "flow.yaml", "--id", "r1", code=3)
        assert "(budget)" in told
        assert "may spend no more" in told
        calls = len(run.model.script.calls)
        run.finish("resume", "r1", code=3)
        assert len(run.model.script.calls) == calls
        assert run.paid_tokens() == 10


def test_what_these_kills_leave_out() -> None:
    """Not a test: the summary shows the reason of a skip."""
    slow = ", ".join(agent for agent in REAL if agent not in QUICK)
    pytest.skip("agents killed: nothing left out" if FULL else f"agents killed: {slow} only by `make matrix`")


def test_an_agent_cannot_approve_what_waits_for_a_human(repo: Path, home: Path) -> None:
    approve = RunShell(f"{sys.executable} -m agentos approve r1 ship > answer 2>&1; echo $? >> answer")
    with runs("codex", repo, home, "permissions: full", approve, says("I approved it myself.")) as run:
        flow = repo / "flow.yaml"
        flow.write_text(flow.read_text() + "  ship: {approve: 'Ship it?', run: touch shipped, effects: none}\n")
        run.finish("run", "flow.yaml", "--id", "r1", code=3)

        assert not (repo / "shipped").exists()
        answer = (repo / "answer").read_text()
        assert re.search(r"is for a human; the answer came from attempt r1/\w+/1 of an agent", answer)
        assert answer.splitlines()[-1] == "2"
        assert [record.status for record in run.client.list_runs()] == ["waiting"]
