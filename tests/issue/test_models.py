"""Models and agents as drafter and reviewer, against a server of the tests' own that speaks their protocol."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos import Client
from agentos.machine import events as ev
from tests.agents.programs import MODELS, environment
from tests.agents.script import PROTOCOLS, offered
from tests.agents.support import need
from tests.conftest import trust
from tests.issue.stage import VERDICTS, Stage
from tests.models.received import Received
from tests.models.replies import Answer, Failure, Reply, says, too_many
from tests.models.server import ModelServer

RUN = "issue-dark-mode"
KEY = "ISSUE_TEST_KEY"
TOML = """
[llm]
base_url = "{url}"
key_name = "ISSUE_TEST_KEY"

[limits.ISSUE_TEST_KEY]
slots = 2
max_wait_s = 30

[prices]
writer = {{input_per_million = 25000, output_per_million = 50000}}
critic = {{input_per_million = 25000, output_per_million = 50000}}
"""


def answer(request: Received, verdict: str = "approve", **more: float) -> Reply:
    """A draft or a verdict, by what is asked for."""
    text = json.dumps(VERDICTS[verdict]) if "Review the draft" in request.text else "# Dark mode\n\nBy a model.\n"
    return Answer(text=text, cost_usd=0.5, **more)  # type: ignore[arg-type]


@pytest.fixture
def server(stage: Stage) -> Iterator[ModelServer]:
    stage.env[KEY] = "k-1234567890"
    with ModelServer(key="k-1234567890") as server:
        server.choose(answer)
        (stage.repo / "agentos.toml").write_text(TOML.format(url=server.base_url))
        trust(stage.repo)
        yield server


def made(stage: Stage, *arguments: str) -> tuple[int, str, str]:
    roles = ("--drafter", "llm:writer", "--reviewer", "llm:critic", "--gates", "none", *stage.roles[4:])
    return tuple(stage.agentos("issue", *arguments, *roles))  # type: ignore[return-value]


def spent(stage: Stage) -> float:
    return sum(event.usage.cost_usd for event in Client(stage.repo).events(RUN) if isinstance(event, ev.TaskUsage))


def test_models_draft_and_review_and_what_they_cost_is_counted(stage: Stage, server: ModelServer) -> None:
    server.script(*(answer_of(verdict) for verdict in (None, "revise", None)))
    code, _, err = made(stage, "--brief", "dark-mode.md")
    assert code == 0, err
    assert [request.json["model"] for request in server.requests] == ["writer", "critic", "writer", "critic"]
    assert "Name the user." in server.requests[2].text
    assert stage.filed[0].startswith("create --title Dark mode\nBy a model.\n")
    assert spent(stage) == 2.0


def answer_of(verdict: str | None) -> Reply:
    text = "# Dark mode\n\nBy a model.\n" if verdict is None else json.dumps(VERDICTS[verdict])
    return Answer(text=text, cost_usd=0.5)


def test_a_budget_that_is_used_up_asks_and_a_yes_goes_on(stage: Stage, server: ModelServer) -> None:
    code, _, err = made(stage, "--brief", "dark-mode.md", "--budget", "0.5")
    assert code == 3, err
    assert "budget:review" in err
    assert len(server.requests) == 1
    assert stage.agentos("approve", RUN).code == 0
    assert spent(stage) == 1.0
    assert len(stage.filed) == 1


def test_a_credential_that_cools_down_too_long_is_75(stage: Stage, server: ModelServer) -> None:
    server.script(answer_of(None), too_many(retry_after_s=3600))
    code, _, err = made(stage, "--brief", "dark-mode.md")
    assert code == 75, err
    assert "no calls with ISSUE_TEST_KEY" in err
    assert len(server.requests) == 2
    assert stage.status() == "failed"


@pytest.mark.parametrize(
    ("point", "asked", "counted"),
    [
        ("call.before:2", 2, 1.0),  # nothing was sent
        ("call.answered:2", 3, 1.0),  # paid for, and nobody could write it down
        ("call.recorded:2", 3, 1.5),  # its cost is on record, its answer is not
    ],
)
def test_a_kill_around_a_call_repeats_no_answer_that_was_recorded(
    stage: Stage, server: ModelServer, point: str, asked: int, counted: float
) -> None:
    stage.env["AGENTOS_CRASH_AT"] = point
    assert made(stage, "--brief", "dark-mode.md")[0] == -9
    del stage.env["AGENTOS_CRASH_AT"]
    code, _, err = made(stage, "--brief", "dark-mode.md")
    assert code == 0, err
    assert [request.json["model"] for request in server.requests] == ["writer", *["critic"] * (asked - 1)]
    assert spent(stage) == counted
    assert len(stage.filed) == 1


@pytest.mark.parametrize("trouble", [Failure(status=401), Answer(text="", cost_usd=0.0)])
def test_trouble_that_waiting_does_not_mend_fails(stage: Stage, server: ModelServer, trouble: Reply) -> None:
    server.script(trouble)
    code, _, err = made(stage, "--brief", "dark-mode.md")
    assert (code, stage.status()) == (1, "failed"), err
    assert stage.filed == []


def test_a_key_that_is_not_set_is_told_before_anything_is_spent(stage: Stage, server: ModelServer) -> None:
    del stage.env[KEY]
    code, _, err = made(stage, "--brief", "dark-mode.md")
    assert (code, "missing: drafter: ISSUE_TEST_KEY; reviewer: ISSUE_TEST_KEY" in err) == (1, True)
    assert server.requests == []


def test_an_agent_that_is_not_installed_is_told_before_anything_is_spent(stage: Stage, tmp_path: Path) -> None:
    git = shutil.which("git")
    assert git is not None
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "git").symlink_to(git)
    roles = ("--drafter", "agent:claude", "--reviewer", "agent:codex:o4", "--file-with", "none", "--gates", "none")
    done = stage.agentos("issue", "--brief", "dark-mode.md", *roles, env={"PATH": str(bare)})
    assert done.code == 1
    assert "missing: drafter: claude; reviewer: codex" in done.err


@pytest.mark.full
def test_real_agents_draft_and_review(stage: Stage, home: Path) -> None:
    """Two agents, each pointed at a scripted model: they only answer, and change nothing in the worktree."""
    for agent in ("claude", "codex"):
        need(agent)
    roles = ("--drafter", f"agent:claude:{MODELS['claude']}", "--reviewer", f"agent:codex:{MODELS['codex']}")
    with ModelServer(PROTOCOLS) as server:
        server.choose(lambda request: answer(request) if offered(request) else says("a title"))
        env = {**environment("claude", server.url, home), **environment("codex", server.url, home)}
        done = stage.agentos("issue", "--brief", "dark-mode.md", *roles, *stage.roles[4:], "--gates", "none", env=env)
    assert done.code == 0, done.err
    assert stage.filed[0].startswith("create --title Dark mode\nBy a model.\n")
    sessions = [event.session.agent for event in Client(stage.repo).events(RUN) if isinstance(event, ev.TaskSession)]
    assert set(sessions) == {"claude", "codex"}
    assert stage.artefacts("done/1-dark-mode")[:3] == ["001-brief.md", "002-draft.md", "003-verdict.md"]
