"""A budget in dollars that nobody could count is refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentos import Client, Workflow, run
from agentos.exceptions import RunRefusedError


def flow(agent: str, **settings: Any) -> Workflow:
    made = Workflow("priced", budget=2)
    made.add("before", "shell", run="touch began")
    made.add("work", "agent", needs=["before"], agent=agent, prompt="Do it.", **settings)
    return made


@pytest.mark.parametrize("agent", ["codex", "gemini", "copilot"])
def test_an_agent_that_does_not_tell_what_it_costs_needs_a_price(tmp_git_repo: Path, agent: str) -> None:
    with pytest.raises(RunRefusedError, match=rf"these agents do not tell what they cost: '{agent}'\nNothing was run"):
        run(flow(agent), repo=tmp_git_repo)
    with pytest.raises(RunRefusedError, match="there is no price for 'some-model'"):
        run(flow(agent, model="some-model"), repo=tmp_git_repo)
    assert Client(tmp_git_repo).list_runs() == []
    assert not (tmp_git_repo / "began").exists()


def test_a_program_of_ones_own_needs_none(tmp_git_repo: Path) -> None:
    result = run(flow("command", command=["cat"]), repo=tmp_git_repo)
    assert result.outputs["work"]["text"] == "Do it."
