"""Whether a task whose needs have ended is to run, and else what it is skipped for."""

from __future__ import annotations

from collections.abc import Iterator

from agentos.dag.language.conditions import Both, Compare, Either, Not, Status, Term, evaluate, parse_condition
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.ids import TaskId
from agentos.machine.facts.facts import FAILED
from agentos.machine.facts.fold import Facts
from agentos.machine.frontier import fan_out_of
from agentos.machine.rules.scope import scope_of
from agentos.machine.state import SUCCEEDED


def skip_reason(plan: Plan, facts: Facts, task: PlannedTask) -> str | None:
    """None where the task is to run; else the root cause it is skipped for, empty where its own `if` is false.

    EvaluationError where the condition cannot be told.
    """
    text, needs = task.definition.condition, task.definition.needs
    if (not text and not needs) or fan_out_of(task) is not None:
        return None  # of an item that was settled with its fan-out
    lacking = [need for need in needs if facts.task(need).status not in SUCCEEDED]
    if lacking and (before := round_before(plan, task)):
        lacking = [need for need in lacking if need not in before]
    if not text:
        return root_cause(facts, lacking[0]) if lacking else None
    causes = (facts.task(TaskId(root_cause(facts, need))).status for need in lacking)
    condition = parse_condition(text)
    scope = scope_of(plan, facts, task)
    if evaluate(condition, scope, succeeded=not lacking, failed=any(cause in FAILED for cause in causes)):
        return None
    # One that asks for failure() or always() was given its chance: it said no itself.
    return root_cause(facts, lacking[0]) if lacking and _named_statuses(text) <= {"success"} else ""


def round_before(plan: Plan, task: PlannedTask) -> frozenset[TaskId]:
    """For a task of a later round: the tasks of the round before. They only come first.

    What they gave was looked at by the `repeat` that asked for this round; some of them may have been skipped.
    """
    name, at, number = task.id.rpartition("@")
    if not at or not number.isdecimal() or int(number) < 2:
        return frozenset()
    for needing in plan.dependants.get(task.id, ()):
        repeat = plan.tasks[needing].definition.repeat
        if repeat is not None and name in repeat.tasks:
            before = f"@{int(number) - 1}" if int(number) > 2 else ""
            return frozenset(TaskId(f"{one}{before}") for one in repeat.tasks)
    return frozenset()


def root_cause(facts: Facts, need: TaskId) -> str:
    """Why this need did not succeed: itself, or what it was skipped for."""
    was = facts.task(need)
    return was.because if was.status == "skipped" and was.because else need


def runs_always(task: PlannedTask) -> bool:
    """Whether the task says always(): it is looked at even where nothing else goes on."""
    return bool(task.definition.condition) and "always" in _named_statuses(task.definition.condition)


def _named_statuses(condition: str) -> set[str]:
    return set(_statuses(parse_condition(condition).term))


def _statuses(term: Term) -> Iterator[str]:
    match term:
        case Status(name):
            yield name
        case Not(inner):
            yield from _statuses(inner)
        case Both(terms) | Either(terms):
            for inner in terms:
                yield from _statuses(inner)
        case Compare(_, left, right):
            yield from _statuses(left)
            yield from _statuses(right)
