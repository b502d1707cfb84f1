"""What models may cost: counted from the journal, so that nothing a process forgets can reset it.

Before an attempt that pays for a model begins, the budget of its task and that of the run must not be used up. Where
one is, a gate asks; each approval is one more allowance of the same size, beyond what had been spent by then: a call
goes beyond a budget by as much as it costs, and a yes that paid only for that would be asked for again at once.

An attempt looks again right before each call, since others may have paid meanwhile. Where nothing is left by then it is
put off: the same gate asks before the next attempt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, TypeVar

from agentos.dag.define.model_calls import Budget
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.facts.fold import Facts
from agentos.machine.rules.candidates import contest_of
from agentos.machine.rules.gates import answer_command, newest_gate

Whose = Literal["task", "run"]
Amount = TypeVar("Amount", int, float)


def money(usd: float) -> str:
    """For people: to the cent, and of less than ten cents two digits that count. `$12.50`, `$0.05`, `$0.0041`."""
    if usd < 0:
        return f"-{money(-usd)}"
    if not 0 < usd < 0.1:
        return f"${usd:.2f}"
    places = min(1 - math.floor(math.log10(usd)), 15)
    whole, _, cents = f"{usd:.{places}f}".partition(".")
    return f"${whole}.{cents[:2]}{cents[2:].rstrip('0')}"


def remaining_budget(plan: Plan, facts: Facts, task: PlannedTask) -> Budget:
    """What an attempt of the task may still spend; never below zero."""
    own, all_of_it = _remainders(plan, facts, task)
    return Budget(cost_usd=_least(own.cost_usd, all_of_it.cost_usd), tokens=_least(own.tokens, all_of_it.tokens))


def _remainders(plan: Plan, facts: Facts, task: PlannedTask) -> tuple[Budget, Budget]:
    """What is left of the task's own budget, and of the run's."""
    together = payers(plan, facts, task)
    own = _remainder(_allowance(facts, task.definition.budget, "task", together), sum_spent(facts, together))
    return own, _remainder(_allowance(facts, plan.settings.budget, "run"), facts.spent_in_all)


def payers(plan: Plan, facts: Facts, task: PlannedTask) -> frozenset[TaskId]:
    """The tasks that pay from the same budget: candidates and their judge share that of the task they work on."""
    above = contest_of(plan, task)
    return frozenset((task.id,)) if above is None else frozenset((task.id, *facts.children.get(above.id, ())))


def sum_spent(facts: Facts, tasks: Iterable[TaskId]) -> ev.Usage:
    """What these tasks have paid, all together."""
    return sum((facts.spent[one] for one in sorted(tasks) if one in facts.spent), start=ev.Usage())


def budget_gate(plan: Plan, facts: Facts, task: PlannedTask) -> tuple[bool, ev.DecisionRequired | None]:
    """Whether there is money left for an attempt, and else the gate to open (None where it is open already).

    One that is open is waited for, also where an answer to another one has allowed the run more meanwhile; only where
    the budget that it asks about was edited may there be nothing left to ask.
    """
    whose: Whose | None = None
    if task.definition.agent is not None or task.definition.llm is not None:
        own, all_of_it = _remainders(plan, facts, task)
        whose = "task" if own.used_up else "run" if all_of_it.used_up else None
    gate, name = newest_gate(facts, "budget", task.id, task.id)
    if gate is not None and gate.opened.gate_id in facts.open_gates:
        asked = _whose(gate.opened)
        if whose is not None or gate.opened.shown == _about(asked, _budget_of(asked, plan, task)):
            return False, None
    if whose is None:
        return True, None
    budget = _budget_of(whose, plan, task)
    together = payers(plan, facts, task)
    if whose == "task" and any(_asks_for(facts, other) for other in together - {task.id}):
        return False, None  # one answer is for all of them
    spent = sum_spent(facts, together) if whose == "task" else facts.spent_in_all
    above = contest_of(plan, task)
    what = f"Task {(above or task).id!r}" if whose == "task" else "The run"
    calls = f"{spent.calls} call{'s' * (spent.calls != 1)}"
    so_far = f"{money(spent.cost_usd)} and {spent.tokens:,} tokens in {calls}"
    return False, ev.DecisionRequired(
        gate_id=name,
        kind="budget",
        task_id=task.id,
        layer=task.layer,
        place=task.place,
        question=f"{what} has spent {so_far} and may spend no more. Allow another {_amount(budget)}?",
        shown=_about(whose, budget),
        spent=spent,
        command=answer_command(facts.workflow_id, name),
    )


def _budget_of(whose: Whose, plan: Plan, task: PlannedTask) -> Budget:
    return task.definition.budget if whose == "task" else plan.settings.budget


def _about(whose: Whose, budget: Budget) -> str:
    """What a gate asks about."""
    return f"{whose} {_amount(budget)}"


def is_asked_for_task(gate: ev.DecisionRequired) -> bool:
    """Whether a budget's gate asks about that of a task, and not of the whole run."""
    return _whose(gate) == "task"


def _whose(gate: ev.DecisionRequired) -> Whose:
    return "task" if gate.shown.startswith("task") else "run"


def _asks_for(facts: Facts, task_id: TaskId) -> bool:
    """Whether the task's own budget is being asked about."""
    gate, _ = newest_gate(facts, "budget", task_id, task_id)
    return gate is not None and gate.opened.gate_id in facts.open_gates and _whose(gate.opened) == "task"


def _allowance(facts: Facts, budget: Budget, whose: Whose, tasks: frozenset[TaskId] | None = None) -> Budget:
    """The budget, and as much again for each time somebody allowed that in this epoch."""
    if not budget:
        return budget
    said_yes = [
        gate.opened
        for gate in facts.gates.values()
        if gate.opened.kind == "budget"
        and gate.answer == "approved"
        and gate.epoch == facts.epoch
        and _whose(gate.opened) == whose
        and (tasks is None or gate.opened.task_id in tasks)
    ]
    allowed = budget
    for opened in sorted(said_yes, key=lambda gate: gate.seq):  # a map has no order, and here it matters
        spent, cost, tokens = opened.spent or ev.Usage(), allowed.cost_usd, allowed.tokens
        allowed = Budget(
            cost_usd=None if cost is None else max(cost, spent.cost_usd) + (budget.cost_usd or 0),
            tokens=None if tokens is None else max(tokens, spent.tokens) + (budget.tokens or 0),
        )
    return allowed


def _remainder(budget: Budget, spent: ev.Usage) -> Budget:
    return Budget(
        cost_usd=None if budget.cost_usd is None else max(budget.cost_usd - spent.cost_usd, 0.0),
        tokens=None if budget.tokens is None else max(budget.tokens - spent.tokens, 0),
    )


def _least(one: Amount | None, other: Amount | None) -> Amount | None:
    return other if one is None else one if other is None else min(one, other)


def _amount(budget: Budget) -> str:
    parts = [money(budget.cost_usd)] if budget.cost_usd is not None else []
    parts += [f"{budget.tokens:,} tokens"] if budget.tokens is not None else []
    return " or ".join(parts)
