"""What the tests of agents share: specs with few words, and real agents pointed at a scripted model."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentos.dag.define.model_calls import AgentWork
from agentos.dag.define.task import TaskDef
from agentos.ids import TaskId, WorkflowId
from agentos.machine.events import AgentSession
from agentos.tasks.attempt import AttemptSpec, VerifySpec
from agentos.tasks.llm.model_settings import NO_MODEL_SETTINGS, ModelSettings
from tests.agents.programs import MODELS, environment, installed
from tests.agents.script import PROTOCOLS, AgentScript, Step
from tests.models.server import ModelServer

FULL = os.environ.get("AGENTOS_MATRIX") == "full"
"""`make matrix`: everything with all five agents."""
REAL = ("claude", "codex", "gemini", "opencode", "copilot")


class Scripted(NamedTuple):
    """A scripted model, and what points an agent at it."""

    script: AgentScript
    server: ModelServer
    env: dict[str, str]


def need(agent: str) -> None:
    if not installed(agent):
        pytest.skip(f"{agent} is not installed (`make agents`): its adapter is tested on recorded streams alone")


@contextmanager
def scripted(agent: str, home: Path, *steps: Step) -> Iterator[Scripted]:
    need(agent)
    pause_s = 0.1 if agent == "copilot" else 0.0  # it prints its turns late: to a model that answers at once, too late
    with ModelServer(PROTOCOLS) as server:
        script = AgentScript(server, *steps, pause_s=pause_s)
        yield Scripted(script, server, environment(agent, server.url, home))


def agent_spec(
    root: Path,
    agent: str = "command",
    *command: str,
    prompt: str = "Do it.",
    env: dict[str, str] | None = None,
    verify: str = "",
    session: AgentSession | None = None,
    timeout_s: float | None = 60,
    log: Any = None,
    models: ModelSettings = NO_MODEL_SETTINGS,
    **work: Any,
) -> AttemptSpec:
    model = {"model": MODELS[agent]} if agent in MODELS else {}
    done = AgentWork(agent=agent, prompt=prompt, command=command, verify=verify, **{**model, **work})
    workflow_id = f"run-{uuid.uuid4()}"
    return AttemptSpec(
        workflow_id=WorkflowId(workflow_id),
        task_id=TaskId("t"),
        attempt=1,
        definition=TaskDef(id=TaskId("t"), kind="agent", agent=done, effects=("files",), timeout_s=timeout_s),
        agent=done,
        verify=(VerifySpec(written=verify, command=verify),) if verify else (),
        session=session,
        env=env or {},
        cwd=root,
        root=root,
        idempotency_key="key",
        attempt_id=f"{workflow_id}/t/1",
        log=log,
        models=models,
    )
