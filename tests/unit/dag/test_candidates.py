"""Candidates and judges as they are written, and the tasks that become of them."""

from __future__ import annotations

from typing import Any

import pytest

from agentos.dag.define.mapping import draft_mapping, task_from_mapping
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.candidates import candidate_keys, contest_tasks
from agentos.dag.plan.plan import compile_plan
from agentos.exceptions import WorkflowDefinitionError

AGENT = {"agent": "claude", "prompt": "fix it", "verify": "make test", "max_turns": 9}


def children(**settings: Any) -> dict[str, Any]:
    return {child.id: child for child in contest_tasks(task_from_mapping("fix", {**AGENT, **settings}))}


def problems(mapping: dict[str, Any]) -> str:
    flow = Workflow("w")
    flow.drafts.append(draft_mapping("fix", mapping))
    with pytest.raises(WorkflowDefinitionError) as caught:
        compile_plan(flow)
    return str(caught.value)


def test_a_number_stands_for_so_many_like_the_task() -> None:
    made = children(candidates=3)
    assert list(made) == ["fix[1]", "fix[2]", "fix[3]"]
    assert {child.agent.prompt for child in made.values()} == {"fix it"}
    assert {child.isolation for child in made.values()} == {"worktree"}
    assert all(child.continue_on_error for child in made.values())
    assert made["fix[2]"].env == {"AGENTOS_CANDIDATE": "2"}


def test_each_is_called_by_its_agent_and_takes_over_what_it_does_not_say_itself() -> None:
    made = children(
        model="opus",
        candidates=[
            {"agent": "claude"},
            {"agent": "codex", "model": "gpt", "max_turns": 3},
            {"llm": "m"},
            {"llm": "n"},
        ],
    )
    assert list(made) == ["fix[claude]", "fix[codex]", "fix[3]", "fix[4]"]
    claude, codex, llm = made["fix[claude]"].agent, made["fix[codex]"].agent, made["fix[3]"]
    assert (claude.model, claude.max_turns, claude.verify) == ("opus", 9, "make test")
    assert (codex.model, codex.max_turns, codex.verify) == ("gpt", 3, "make test")
    assert (llm.kind, llm.llm.model, llm.llm.prompt, llm.effects) == ("llm", "m", "fix it", ("none",))


def test_a_model_of_another_agent_is_not_taken_over() -> None:
    assert children(model="opus", candidates=[{"agent": "claude"}, {"agent": "codex"}])["fix[codex]"].agent.model == ""


def test_the_candidates_alone_may_say_who_works() -> None:
    definition = task_from_mapping("fix", {"prompt": "p", "candidates": [{"agent": "claude"}, {"agent": "codex"}]})
    assert (definition.kind, candidate_keys(definition)) == ("agent", ["claude", "codex"])
    definition = task_from_mapping("ask", {"prompt": "p", "candidates": [{"llm": "m"}, {"llm": "n"}]})
    assert [child.llm.model for child in contest_tasks(definition) if child.llm is not None] == ["m", "n"]


@pytest.mark.parametrize(
    ("judge", "kind"),
    [
        ("human", "approval"),
        ({"run": "sort"}, "shell"),
        ({"llm": "m"}, "llm"),
        ({"agent": "claude", "prompt": "the shorter"}, "agent"),
    ],
)
def test_the_judge_is_a_task_behind_the_candidates(judge: Any, kind: str) -> None:
    last = list(children(candidates=2, judge=judge).values())[-1]
    assert (last.id, last.kind) == ("fix[judge]", kind)
    assert last.needs == ("fix[1]", "fix[2]")
    if kind == "agent":
        assert last.agent.permissions == "read"
        assert last.agent.prompt.startswith("the shorter")
        assert "fix it" in last.agent.prompt


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"candidates": 1}, "candidates are two or more, to choose from; there is 1"),
        ({"candidates": []}, "there are 0"),
        ({"candidates": True}, "a number, or a list"),
        ({"candidates": ["claude", "codex"]}, "maps of `agent` or `llm`"),
        ({"candidates": [{"agent": "claude"}, {"agnet": "codex"}]}, "says none"),
        ({"candidates": [{"agent": "claude"}, {"agent": "codex", "llm": "m"}]}, "says agent and llm"),
        ({"candidates": [{"agent": "claude"}, {"agent": "codxe"}]}, "did you mean 'codex'"),
        ({"candidates": [{"agent": "claude"}, {"llm": "m", "verify": "x"}]}, "a model's answer changes no files"),
        ({"candidates": [{"agent": "claude"}, {"agent": "codex", "needs": "a"}]}, "unknown key 'needs'"),
        ({"candidates": [{"agent": "claude"}, {"agent": "command"}]}, "needs `command`"),
        ({"judge": "human"}, "judge without candidates"),
        ({"candidates": 2, "judge": "humna"}, "did you mean 'human'"),
        ({"candidates": 2, "judge": {"run": "a", "prompt": "b"}}, "unknown key 'prompt' in judge"),
        ({"candidates": 2, "judge": {"agent": "claude", "llm": "m"}}, "a map of one of"),
        ({"candidates": 2, "for_each": [1]}, "a task has one of them"),
        ({"candidates": 2, "effects": "external"}, "would all happen"),
        ({"candidates": 2, "isolation": "process"}, "worktrees of their own"),
        ({"candidates": [{"agent": "claude"}, {"agent": "codex", "prompt": "${{ tasks.nobody.output }}"}]}, "nobody"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(settings: dict[str, Any], said: str) -> None:
    assert said in problems({**AGENT, **settings})
