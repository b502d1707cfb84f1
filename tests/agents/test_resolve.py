"""A conflict of a merge that a real agent resolves, and what becomes of what it did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agents.programs import MODELS
from tests.agents.script import Step, WriteFile
from tests.agents.support import scripted
from tests.agents.test_kills import Runs
from tests.conftest import git
from tests.models.replies import Answer, Hang, ToolCall, says

pytestmark = pytest.mark.full  # real agents, from npm

FLOW = """
name: flow
tasks:
  fish: {run: "sed -i s/main/fish/ menu", isolation: worktree, description: fish for the main course}
  meat: {run: "sed -i -e s/main/meat/ -e s/wine/red/ menu", isolation: worktree}
  serve: {run: cat menu, needs: [fish, meat], effects: none}
"""
RESOLVED = WriteFile("menu", "fish and meat\nbread\nwine\n")
LOOKS = Answer(text="", tool_calls=(ToolCall("Read", {"file_path": "menu"}),), finish_reason="tool_calls")
ASKED = ("approve", "r1", "merge:0", "--resolve-with")


@contextmanager
def conflict(agent: str, repo: Path, home: Path, *steps: Step) -> Iterator[Runs]:
    """A run whose tasks changed the same line, and one of them another line, too."""
    (repo / "menu").write_text("main\nbread\nwine\n")
    git("add", "menu", cwd=repo)
    git("commit", "--quiet", "--message", "menu", cwd=repo)
    (repo / "flow.yaml").write_text(FLOW)
    # Claude writes no file that it has not read.
    first = (LOOKS,) if agent == "claude" else ()
    with scripted(agent, home, *first, *steps) as model:
        if agent == "codex":  # its own choice of a model decides which tools it has
            config = home / ".codex" / "config.toml"
            config.write_text(f'model = "{MODELS[agent]}"\n{config.read_text()}')
        run = Runs(repo, model)
        run.finish("run", "flow.yaml", "--id", "r1", code=3)
        yield run


@pytest.mark.parametrize("agent", ["claude", "codex"])
def test_what_an_agent_made_of_a_conflict_is_a_version_that_a_human_takes(
    agent: str, tmp_git_repo: Path, home: Path
) -> None:
    with conflict(agent, tmp_git_repo, home, RESOLVED, says("Both are served.")) as run:
        told = run.finish(*ASKED, f"agent:{agent}", code=3)
        assert "======= task:merge-0\n" in told.replace("    ", ""), "the gate shows what it did"
        assert "agentos approve r1 'merge:0#2' --use menu=task:merge-0" in told
        assert (tmp_git_repo / "menu").read_text() == "main\nbread\nwine\n", "nothing is written before that"
        prompt = run.model.script.calls[0].text
        assert all(text in prompt for text in ("======= task:fish", "======= task:meat", "fish for the main course"))
        paid = len(run.model.script.calls)

        run.finish("approve", "r1", "merge:0#2", "--use", "menu=task:merge-0")
        assert (tmp_git_repo / "menu").read_text() == "fish and meat\nbread\nred\n", "with the clean edit of a task"
        assert len(run.model.script.calls) == paid
        assert run.paid_tokens() == 10 * paid
        assert run.client.show("r1").status == "complete"
        assert len(git("worktree", "list", cwd=tmp_git_repo).splitlines()) == 1


@pytest.mark.parametrize("agent", ["claude", "codex"])
def test_killed_while_it_resolves_the_agent_goes_on_and_nothing_is_asked_twice(
    agent: str, tmp_git_repo: Path, home: Path
) -> None:
    with conflict(agent, tmp_git_repo, home, RESOLVED, Hang()) as run:
        script = run.model.script
        calls = 3 if agent == "claude" else 2
        run.killed_when(
            lambda: len(script.calls) == calls and run.turns() >= calls - 1 and run.remembers(agent, "fish and meat"),
            *ASKED,
            f"agent:{agent}",
        )
        script.then(says("Both are served."))
        told = run.finish("resume", "r1", code=3)
        assert "--use menu=task:merge-0" in told
        assert len(script.calls) == calls + 1
        assert "You were interrupted" in script.calls[-1].text
        run.finish("approve", "r1", "merge:0#2", "--use", "menu=task:fish")
        assert (tmp_git_repo / "menu").read_text() == "fish\nbread\nred\n", "another version can still be taken"
