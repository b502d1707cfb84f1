"""One task for one agent, with no file: what `agentos run --agent` runs."""

from __future__ import annotations

from collections.abc import Mapping
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
    flow = Workflow(NAME)
    flow.add(NAME, "agent", agent=agent, prompt=without_references(prompt), **_plain(settings))
    return flow


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return without_references(value)
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
