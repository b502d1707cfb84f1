"""Budgets in dollars need prices: a run whose budget could never be counted is refused before it begins."""

from __future__ import annotations

from collections.abc import Iterator

from agentos.dag.define.model_calls import AgentWork
from agentos.dag.define.task import TaskDef
from agentos.dag.language.references import OPEN
from agentos.dag.plan.findings import format_names
from agentos.dag.plan.plan import Plan
from agentos.exceptions import RunRefusedError
from agentos.tasks.llm.model_settings import ModelSettings


def refuse_unpriced(plan: Plan, models: ModelSettings) -> None:
    """RunRefusedError that names every model under a budget in dollars whose price no setting tells.

    One that is only known later, through a reference, is looked at before its call.
    """
    of_run = plan.settings.budget.cost_usd is not None
    tasks = [task.definition for task in plan.tasks.values()]
    limited = [task for task in tasks if of_run or task.budget.cost_usd is not None]
    unknown = sorted({model for model in _models_to_price(limited) if OPEN not in model and model not in models.prices})
    if unknown:
        raise RunRefusedError(
            f"there is a budget in dollars, and there is no price for {format_names(unknown)}",
            next_step=f'Nothing was run. Say it in agentos.toml: [prices."{unknown[0]}"] with input_per_million and '
            "output_per_million (0 for a model of your own), or give a budget of tokens.",
        )
    agents = [task.agent for task in limited if task.agent is not None]
    silent = sorted({work.agent for work in agents if not work.model and _silent(work)})
    if silent:
        raise RunRefusedError(
            f"there is a budget in dollars, and these agents do not tell what they cost: {format_names(silent)}",
            next_step="Nothing was run. Name a `model`, with its price in agentos.toml, or give a budget of tokens.",
        )


def _models_to_price(tasks: list[TaskDef]) -> Iterator[str]:
    """The models whose price must be known: nobody else tells what they cost."""
    for task in tasks:
        if task.llm is not None:
            yield task.llm.model
        elif task.agent is not None and task.agent.model and _silent(task.agent):
            yield task.agent.model


def _silent(work: AgentWork) -> bool:
    """Whether this agent does not tell what it costs. A program of the user's own is taken to cost nothing."""
    from agentos.tasks.agents.adapters.known import AGENTS  # few runs have an agent and a budget

    agent = AGENTS.get(work.agent)
    return agent is not None and bool(agent.TRAITS.program) and not agent.TRAITS.tells_cost
