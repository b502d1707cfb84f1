"""What a resume found when it compared the workflow as it is now with the plan last accepted."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from agentos.dag.define.workflow import Workflow
from agentos.dag.language.references import as_text
from agentos.dag.plan.plan import Plan, default_parameters
from agentos.machine.events import Verdict
from agentos.machine.resume import ResumePlan


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Where the workflow differs from the plan last accepted. Items of a fan-out go with it."""

    changed: dict[str, Verdict] = {}
    """Tasks that were edited, or refer to a parameter that was; and what becomes of each."""
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    ignored_defaults: dict[str, Any] = {}
    """Parameters whose default is another one now, with that default in stored form: the run keeps what it has."""

    @property
    def kept(self) -> tuple[str, ...]:
        """Tasks that are reused though they changed."""
        return tuple(name for name, verdict in self.changed.items() if verdict == "reuse, changed")

    @property
    def default_arguments(self) -> str:
        """What a command takes to use the defaults that are ignored."""
        given = (f"--param={name}={as_text(value)}" for name, value in self.ignored_defaults.items())
        return " ".join(map(shlex.quote, given))


NO_DIFFERENCE = Comparison()


def comparison_of(resume: ResumePlan, ignored_defaults: Mapping[str, Any]) -> Comparison:
    """What the resume plan says of differences, and what no plan does."""
    verdicts = {row.task_id: row.verdict for row in resume.verdicts}
    return Comparison(
        changed={task_id: verdicts[task_id] for task_id in resume.changed if task_id in verdicts},
        new=_without_items(row.task_id for row in resume.verdicts if row.verdict == "new"),
        gone=_without_items(row.task_id for row in resume.verdicts if row.verdict == "orphan"),
        ignored_defaults=dict(ignored_defaults),
    )


def _without_items(task_ids: Iterable[str]) -> tuple[str, ...]:
    found = dict.fromkeys(task_ids)
    return tuple(name for name in found if not ("[" in name and name.partition("[")[0] in found))


def ignored_defaults(workflow: Workflow, accepted: Plan, changed: Collection[str]) -> dict[str, Any]:
    """Parameters that nobody gave, not now either, and whose default the workflow has changed since."""
    defaults = default_parameters(workflow)
    kept = [name for name in accepted.defaulted if name not in changed and name in defaults]
    return {name: defaults[name] for name in kept if defaults[name] != accepted.params.get(name)}
