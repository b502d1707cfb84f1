"""Workflows that commands only look at: found, checked and planned, with nothing run and nothing written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.findings import Finding
from agentos.dag.plan.plan import Plan
from agentos.exceptions import AgentosError, NotFoundError, RunRefusedError, WorkflowDefinitionError
from agentos.workflow.define.plans import plan_to_look_at, refused_now
from agentos.workflow.define.workflow_source import find_workflow


@contextmanager
def quiet_imports() -> Iterator[None]:
    """While this lasts, importing a workflow's file leaves no compiled file behind, and what it prints is no data."""
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.dont_write_bytecode = before


def inspect_workflow(name_or_path: str, root: Path) -> tuple[Workflow | None, Plan | None, tuple[Finding, ...]]:
    """The workflow and its plan as far as they can be had, and all that would keep a run from beginning."""
    flow: Workflow | None = None
    try:
        with quiet_imports():
            flow = find_workflow(name_or_path, root, static=True)
        plan = plan_to_look_at(flow)
        return flow, plan, refused_now(flow, plan)
    except WorkflowDefinitionError as error:
        return flow, None, tuple(_finding(found, error, name_or_path) for found in error.findings)
    except (NotFoundError, RunRefusedError) as error:
        return flow, None, (_finding(error.message, error, name_or_path),)


def _finding(found: object, error: AgentosError, file: str) -> Finding:
    if isinstance(found, Finding):
        return found
    # A message about the file as a whole begins with its name already, where it came with one.
    message = str(found).removeprefix(f"{getattr(error, 'path', file)}: ")
    return Finding(problem="bad file", message=message, file=file)
