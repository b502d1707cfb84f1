"""Budgets in dollars need prices: a run whose budget could never be counted is refused before it begins."""

from __future__ import annotations

from agentos.dag.findings import listed
from agentos.dag.plan import Plan
from agentos.dag.references import OPEN
from agentos.exceptions import RunRefusedError
from agentos.tasks.model_settings import ModelSettings


def refuse_unpriced(plan: Plan, models: ModelSettings) -> None:
    """RunRefusedError that names every model under a budget in dollars whose price no setting tells.

    One that is only known later, through a reference, is looked at before its call.
    """
    of_run = plan.settings.budget.cost_usd is not None
    asked = [
        task.definition.llm.model
        for task in plan.tasks.values()
        if task.definition.llm is not None and (of_run or task.definition.budget.cost_usd is not None)
    ]
    unknown = sorted({model for model in asked if OPEN not in model and model not in models.prices})
    if unknown:
        raise RunRefusedError(
            f"there is a budget in dollars, and nobody knows the price of {listed(unknown)}",
            next_step=f'Nothing was run. Say it in agentos.toml: [prices."{unknown[0]}"] with input_per_million and '
            "output_per_million (0 for a model of your own), or give a budget of tokens.",
        )
