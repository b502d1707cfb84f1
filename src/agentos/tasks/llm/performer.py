"""Performs an attempt of an llm task: one answer of a model, with as many calls as it takes to get it.

A call waits for its slot, is made, and is written down with what it used before anything else is done with the answer.
Where nothing is left of the budget once it has its slot, no call is made, and the attempt is put off.
Rate limits and errors of the server are tried again here; neither that waiting nor the one for a slot uses up the
task's timeout. Everything else ends the attempt, and the task's own retries decide.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from time import perf_counter
from typing import Any

import msgspec
from msgspec import Raw

from agentos import crashpoints
from agentos.dag.define.model_calls import Budget, LlmWork
from agentos.exceptions import AttemptError, CoolingDownError, ModelCallError, TaskCancelledError, TaskTimeoutError
from agentos.machine.events import ModelCall, Usage
from agentos.machine.inputs import AttemptResult
from agentos.secrets import Masker
from agentos.tasks.attempt import AttemptHost, AttemptSpec
from agentos.tasks.failures import plain_failure
from agentos.tasks.llm.answer_schemas import AnswerSchema
from agentos.tasks.llm.chat import ChatRequest, complete
from agentos.tasks.llm.chat_answer import ChatAnswer, refuses_usage
from agentos.tasks.llm.endpoints import Account, account_for, provider_of
from agentos.tasks.llm.limiter import CallSlot, Limiter, put_off_if_used_up
from agentos.tasks.llm.model_settings import ModelSettings
from agentos.tasks.masking import capture_of, masked_outcome
from agentos.tasks.outcomes import AttemptFailed, encode_result, failure_outcome, milliseconds_since
from agentos.tasks.process.launch import environment_of

TRIES_AGAIN: Mapping[str, int] = {"rate": 8, "server": 3}
"""Within one attempt."""
BACKOFF_S = 1.0
LEAST_PAUSE_S = 0.2
"""Whatever `Retry-After` says."""
MAX_BACKOFF_S = 60.0
CHARGED = ("cut_off", "garbage", "timeout")
"""Troubles with an answer that had begun, and is likely to be on the bill."""


class LlmPerformer:
    """Asks the model. Cancelling closes the connection."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._telling_less: set[str] = set()
        """Servers that take no call which asks for its usage, by base URL."""

    async def __call__(self, spec: AttemptSpec, host: AttemptHost) -> AttemptResult:
        began = perf_counter()
        try:
            return await self._perform(spec, host, began)
        except AttemptFailed as failed:
            return failure_outcome(failed, began)
        except asyncio.CancelledError:
            failure = plain_failure(TaskCancelledError("the attempt was cancelled, and its connection closed"))
            return failure_outcome(AttemptFailed(failure, retryable=False, cancelled=True), began)

    async def _perform(self, spec: AttemptSpec, host: AttemptHost, began: float) -> AttemptResult:
        work = spec.llm
        if work is None:
            raise AttemptFailed(plain_failure(AttemptError("the task says no model")), retryable=False)
        try:
            schema = AnswerSchema(work.schema) if work.schema is not None else None
            account = await account_for(work, spec.models, environment_of(spec), spec.root)
            _refuse_unpriced(work.model, account.credential, host.allowance(), spec.models)
        except AttemptError as error:
            raise AttemptFailed(plain_failure(error), retryable=False) from None
        conversation = _Conversation(self._limiter, spec, host, account, self._telling_less)
        try:
            outcome = await conversation.outcome(work, schema)
        except AttemptFailed as failed:
            outcome = failure_outcome(failed, began)
        outcome = msgspec.structs.replace(outcome, execution_time_ms=milliseconds_since(began))
        # The drive knows the secrets of the run; a key that a command printed is known here alone.
        return masked_outcome(outcome, spec.task_id, conversation.masker)


class _Conversation:
    """The calls of one attempt."""

    def __init__(
        self, limiter: Limiter, spec: AttemptSpec, host: AttemptHost, account: Account, telling_less: set[str]
    ) -> None:
        self._limiter = limiter
        self._telling_less = telling_less
        self._host = host
        self._account = account
        self._limits = spec.models.limits_of(account.credential)
        self._models = spec.models
        self._left_s = spec.definition.timeout_s
        self._timeout_s = spec.definition.timeout_s
        self.masker: Masker = spec.masker.with_secret(account.credential, account.endpoint.key)
        self._spec = msgspec.structs.replace(spec, masker=self.masker)

    async def outcome(self, work: LlmWork, schema: AnswerSchema | None) -> AttemptResult:
        system = ({"role": "system", "content": work.system},) if work.system else ()
        prompt = ({"role": "user", "content": work.prompt},) if work.prompt else ()
        messages: tuple[dict[str, Any], ...] = (*system, *map(dict, work.messages), *prompt)
        request = ChatRequest(
            model=work.model,
            messages=messages,
            schema=work.schema,
            max_tokens=work.max_tokens,
            temperature=work.temperature,
            reasoning_effort=work.reasoning_effort,
            extra=work.extra_body,
            asks_usage=self._account.endpoint.base_url not in self._telling_less,
        )
        answer, usage = await self._get_answer(_add_idempotency_key(self._spec, request))
        try:
            output = _output(answer, usage, schema)
        except ModelCallError as error:
            raise AttemptFailed(plain_failure(error), retryable=error.retryable) from None
        new = [*((*system, *prompt) if work.prompt else messages), {"role": "assistant", "content": answer.text}]
        warnings = []
        if answer.finish_reason == "length":
            warnings.append("the answer was cut at its length limit: raise `max_tokens`, or ask for less")
        if not answer.usage.known:
            warnings.append("the server did not say how many tokens were used: budgets do not count this call")
        return AttemptResult(
            output=Raw(encode_result(output)), messages=Raw(encode_result(new)), warnings=tuple(warnings)
        )

    async def _get_answer(self, request: ChatRequest) -> tuple[ChatAnswer, Usage]:
        """The answer, and what it used, which is durable by then."""
        tries: Counter[str] = Counter()
        while True:
            try:
                async with self._limiter.call(
                    self._account.credential, self._limits, self._waiting, account=self._account.account
                ) as call:
                    put_off_if_used_up(self._host)
                    answer, usage = await self._call_model(request, call, tries.total())
                crashpoints.reach("call.recorded")
                return answer, usage
            except CoolingDownError as error:
                raise AttemptFailed(plain_failure(error), retryable=False) from None
            except ModelCallError as error:
                if request.asks_usage and refuses_usage(error):
                    request = _add_idempotency_key(self._spec, msgspec.structs.replace(request, asks_usage=False))
                    continue
                tries[error.kind] += 1
                if tries[error.kind] > TRIES_AGAIN.get(error.kind, 0):
                    raise AttemptFailed(plain_failure(error), retryable=error.retryable) from None
                if error.kind == "server" and error.retry_after_s is None:
                    pause_s = _backoff_s(tries["server"])
                    self._waiting(f"{error.message}; trying again in {pause_s:.1f} s")
                    await asyncio.sleep(pause_s)

    async def _call_model(self, request: ChatRequest, call: CallSlot, tries: int) -> tuple[ChatAnswer, Usage]:
        crashpoints.reach("call.before")
        capture = capture_of("stdout", self._spec, self._host)
        began = perf_counter()
        made = ModelCall(
            started=datetime.now(UTC),
            provider=provider_of(self._account.endpoint.base_url),
            model=self.masker.text(request.model),
        )
        try:
            async with asyncio.timeout(self._left_s):
                answer = await complete(
                    self._account.endpoint, request, lambda text: capture.feed(text.encode(errors="replace"))
                )
        except TimeoutError:
            await self._record(Usage(calls=1), msgspec.structs.replace(made, error="timeout"))
            text = f"the model did not answer within the task's timeout of {self._timeout_s:g} s; waiting not counted"
            raise AttemptFailed(plain_failure(TaskTimeoutError(text)), cut_off=True) from None
        except ModelCallError as error:
            if error.kind == "rate":
                asked_s = _backoff_s(tries + 1) if error.retry_after_s is None else error.retry_after_s
                call.cool_down(max(asked_s, LEAST_PAUSE_S))
            elif error.retry_after_s is not None:
                call.cool_down(error.retry_after_s, crowded=False)
            elif error.kind in CHARGED:
                await self._record(Usage(calls=1), msgspec.structs.replace(made, error=error.kind))
            raise
        finally:
            capture.close()
            if self._left_s is not None:
                self._left_s = max(0.001, self._left_s - (perf_counter() - began))
        crashpoints.reach("call.answered")
        if not request.asks_usage:  # noted now, not when it was refused: the text of a refusal may mislead
            self._telling_less.add(self._account.endpoint.base_url)
        used = answer.usage
        cost_usd = used.cost_usd
        price = self._models.price_of(request.model) or self._models.price_of(answer.model)
        if cost_usd is None and price is not None and used.known:  # the provider does not say
            cost_usd = price.cost_usd(used.input_tokens, used.output_tokens, used.cached_tokens)
        usage = Usage(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cached_tokens=used.cached_tokens,
            cost_usd=cost_usd or 0.0,
            calls=1,
        )
        call.record_cost(usage.cost_usd)
        # Before the slot is free: whoever gets it next must see what is left.
        other = self.masker.text(answer.model) if answer.model != request.model else ""
        await self._record(usage, msgspec.structs.replace(made, answered_by=other))
        return answer, usage

    async def _record(self, usage: Usage, made: ModelCall) -> None:
        """Durable on return. What was paid for is written down even where the attempt is cancelled meanwhile."""
        recording = asyncio.ensure_future(self._host.record_usage(usage, made))
        while not recording.done():
            with suppress(asyncio.CancelledError):  # a moment later the attempt is over anyway
                await asyncio.shield(recording)
        recording.result()

    def _waiting(self, why: str) -> None:
        self._host.output("progress", self.masker.text(why))


def _add_idempotency_key(spec: AttemptSpec, request: ChatRequest) -> ChatRequest:
    """The key is the same for a call whose answer was lost with its driver; another where its answer was no good."""
    digest = blake2b(digest_size=16)
    for part in (spec.idempotency_key.encode(), b"%d" % spec.settled, msgspec.json.encode(request.body())):
        digest.update(b"%d\0" % len(part) + part)
    return msgspec.structs.replace(request, idempotency_key=digest.hexdigest())


def _output(answer: ChatAnswer, usage: Usage, schema: AnswerSchema | None) -> dict[str, Any]:
    if answer.refusal and not answer.text:
        raise ModelCallError(f"the model refused to answer: {answer.refusal[:500]}", kind="invalid")
    if not answer.text:
        raise ModelCallError(f"the answer is empty (finish_reason {answer.finish_reason!r})", kind="invalid")
    output: dict[str, Any] = {"text": answer.text}
    if schema is not None:
        output["json"] = schema.read(answer.text)
    used = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "cost_usd": usage.cost_usd,
    }
    return output | {"model": answer.model, "finish_reason": answer.finish_reason, "usage": used}


def _refuse_unpriced(model: str, credential: str, allowance: Budget, settings: ModelSettings) -> None:
    """AttemptError where money is limited and the model has no price: the limit would never be reached."""
    if settings.price_of(model) is not None:
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


def _backoff_s(tries: int) -> float:
    pause_s: float = min(BACKOFF_S * 2 ** max(0, tries - 1), MAX_BACKOFF_S)
    return pause_s * random.uniform(0.75, 1.25)  # noqa: S311 (only so that many do not come back together)
