"""What a call has cost, as far as it can be known; and that nobody relies on money that cannot be counted."""

from __future__ import annotations

from collections.abc import Mapping

from agentos.dag.define.model_calls import Budget
from agentos.exceptions import AttemptError
from agentos.machine.events import Usage
from agentos.tasks.attempt import AttemptHost
from agentos.tasks.failures import plain_failure
from agentos.tasks.llm.chat_answer import ChatAnswer
from agentos.tasks.llm.model_settings import ModelSettings, Price
from agentos.tasks.outcomes import AttemptFailed


def cost_of(answer: ChatAnswer, model: str, prices: Mapping[str, Price]) -> float | None:
    """What the provider says it cost; else by the settings' price of the model; None where neither is known."""
    used = answer.usage
    if used.cost_usd is not None:
        return used.cost_usd
    price = prices.get(model) or prices.get(answer.model)
    if price is None or not used.known:
        return None
    return price.cost_usd(used.input_tokens, used.output_tokens, used.cached_tokens)


def usage_of(answer: ChatAnswer, cost_usd: float | None) -> Usage:
    used = answer.usage
    return Usage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cached_tokens=used.cached_tokens,
        cost_usd=cost_usd or 0.0,
        calls=1,
    )


def refuse_unpriced(model: str, credential: str, allowance: Budget, settings: ModelSettings) -> None:
    """AttemptError where money is limited and the model has no price: the limit would never be reached."""
    if model in settings.prices:
        return
    limit = ""
    if allowance.cost_usd is not None:
        limit = "there is a budget in dollars"
    elif settings.limits_of(credential).per_day_usd is not None:
        limit = f"{credential} has a limit of dollars a day"
    if limit:
        raise AttemptError(
            f"{limit}, and there is no price for {model!r}",
            next_step=f'Say it in agentos.toml: [prices."{model}"] with input_per_million and output_per_million '
            "(0 for a model of your own), or limit tokens instead.",
        )


def put_off_if_used_up(host: AttemptHost) -> None:
    """Called right before a call, with its slot in hand: others may have spent all there was while this one waited."""
    if host.allowance().used_up:
        why = AttemptError("nothing is left of the budget: no call was made")
        raise AttemptFailed(plain_failure(why), put_off=True)
