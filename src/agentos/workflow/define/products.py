"""What tasks produce: paths that must be there for a finished task to be reused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from agentos.dag.language.references import as_text, resolve
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.exceptions import EvaluationError
from agentos.ids import TaskId
from agentos.machine.facts.fold import Facts
from agentos.machine.rules.scope import scope_of


def missing_products(plan: Plan, facts: Facts, root: Path) -> dict[TaskId, tuple[str, ...]]:
    """Finished tasks of which paths that they produce are gone, and which."""
    missing: dict[TaskId, tuple[str, ...]] = {}
    for task in plan.tasks.values():
        # What an isolated task produced is not here before it is merged.
        if task.definition.produces and task.id not in facts.unmerged and facts.task(task.id).status == "complete":
            gone = tuple(path for path in _products(plan, facts, task) if not (root / path).exists())
            if gone:
                missing[task.id] = gone
    return missing


def _products(plan: Plan, facts: Facts, task: PlannedTask) -> list[str]:
    """The paths it produces, references replaced; one that cannot be told says nothing against reusing the task."""
    scope = scope_of(plan, facts, task)
    paths: list[str] = []
    for written in task.definition.produces:
        with suppress(EvaluationError):
            found = resolve(written, scope)
            paths += map(as_text, found if isinstance(found, list) else [found])
    return paths
