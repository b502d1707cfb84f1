"""A budget in dollars that nobody could count is refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentos import Client, Workflow, run
from agentos.dag.plan.plan import compile_plan
from agentos.exceptions import RunRefusedError
from agentos.tasks.llm.model_settings import ModelSettings, Price
from agentos.workflow.define.plans import look_ahead, refuse_unpriced
from agentos.workflow.define.run_secrets import masker_for


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


CONTEST = {"prompt": "Do it.", "judge": {"agent": "claude"}}


def contest(kind: str = "agent", **settings: Any) -> Workflow:
    made = Workflow("priced", budget=2)
    made.add("work", kind, **{**CONTEST, **settings})
    return made


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"candidates": [{"agent": "claude"}, {"agent": "codex"}]}, "do not tell what they cost: 'codex'"),
        ({"candidates": [{"agent": "claude"}, {"llm": "own"}]}, "there is no price for 'own'"),
        (
            {"candidates": [{"agent": "claude"}] * 2, "judge": {"agent": "gemini"}},
            "do not tell what they cost: 'gemini'",
        ),
        (
            {"agent": "claude", "candidates": 2, "on_limit": {"switch": {"agent": "codex"}}},
            "do not tell what they cost: 'codex'",
        ),
    ],
)
def test_so_does_whoever_works_or_judges_in_its_place(tmp_git_repo: Path, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(RunRefusedError, match=why):
        run(contest(**settings), repo=tmp_git_repo)
    assert Client(tmp_git_repo).list_runs() == []


def test_candidates_are_counted_by_their_own_models() -> None:
    plan = compile_plan(contest(candidates=[{"agent": "codex", "model": "gpt-5"}, {"agent": "claude"}]))
    models = ModelSettings(prices={"gpt-5": Price(input_per_million=1, output_per_million=1)})
    refuse_unpriced(plan, models)
    told = " ".join(look_ahead(plan, models))
    assert "claude" in told, "whoever is missing here is named before the run"
    assert "codex" in told


def test_the_key_of_a_candidate_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "a value of no form at all")
    candidates = [{"llm": "a"}, {"llm": "b", "key_name": "MINE"}]
    plan = compile_plan(contest("llm", candidates=candidates, judge={"llm": "a"}))
    assert masker_for(plan).value_and_names("it is a value of no form at all")[1] == ("MINE",)
