"""One task for one agent, with no file: what `agentos run --agent` runs."""

from __future__ import annotations

from typing import Any

from agentos import Workflow
from agentos.dag.define.workflow import maker
from agentos.dag.language.references import without_references

NAME = "agent"
"""Of the workflow, and of its task."""


@maker
def agent_task(*, agent: str, prompt: str, **settings: Any) -> Workflow:
    """The workflow of this task, with further settings of an agent task. No text in it is read for references.

    A run keeps what is given here, and a later release makes the same workflow of it.
    """
    texts = {name: without_references(value) for name, value in settings.items() if isinstance(value, str)}
    more: dict[str, Any] = {**settings, **texts}
    flow = Workflow(NAME)
    flow.add(NAME, "agent", agent=agent, prompt=without_references(prompt), **more)
    return flow
