"""Attempts of llm tasks against a real server: answers, trouble, money, waiting, cancelling."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentos.dag.define.model_calls import Budget, LlmWork
from agentos.dag.define.task import TaskDef
from agentos.ids import TaskId, WorkflowId
from agentos.machine.events import ModelCall, Usage
from agentos.machine.inputs import AttemptResult
from agentos.secrets import NO_SECRETS, Masker
from agentos.tasks.attempt import AttemptSpec
from agentos.tasks.llm import performer as llm
from agentos.tasks.llm.limiter import Limiter
from agentos.tasks.llm.model_settings import CallLimits, LlmDefaults, ModelSettings, Price
from agentos.tasks.llm.performer import LlmPerformer
from agentos.values import decode_value
from tests.models.replies import (
    Answer,
    Body,
    Failure,
    Hang,
    no_such_option,
    says,
    server_error,
    too_many,
    unauthorised,
    verdict,
)
from tests.models.server import ModelServer
from tests.unit.tasks.support import RecordingHost, output_of, soon

KEY = "sk-0123456789abcdef"
PRICES = {"m1": Price(input_per_million=100.0, output_per_million=1000.0)}
PRICED = ModelSettings(prices=PRICES)
VERDICT = {
    "type": "object",
    "properties": {"verdict": {"enum": ["approve", "revise"]}},
    "required": ["verdict"],
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, model_server: ModelServer) -> None:
    monkeypatch.setattr(llm, "BACKOFF_S", 0.02)
    monkeypatch.setattr(llm, "LEAST_PAUSE_S", 0.02)
    monkeypatch.setenv("OPENAI_BASE_URL", model_server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def limiter(tmp_path: Path) -> Iterator[Limiter]:
    limiter = Limiter(lambda: tmp_path / "calls.db")
    yield limiter
    limiter.close()


def spec_of(
    *,
    timeout_s: float | None = None,
    models: ModelSettings = PRICED,
    settled: int = 0,
    masker: Masker = NO_SECRETS,
    env: dict[str, str] | None = None,
    **work: Any,
) -> AttemptSpec:
    asked = LlmWork(**{"model": "m1", "prompt": "What is it?", **work})
    return AttemptSpec(
        workflow_id=WorkflowId("run-1"),
        task_id=TaskId("ask"),
        attempt=1,
        definition=TaskDef(id=TaskId("ask"), kind="llm", timeout_s=timeout_s, llm=asked),
        llm=asked,
        cwd=Path(),
        root=Path("/tmp"),
        idempotency_key="key-1",
        attempt_id="run-1/ask/1",
        settled=settled,
        models=models,
        masker=masker,
        env=env or {},
    )


def perform(limiter: Limiter, host: RecordingHost | None = None, **how: Any) -> AttemptResult:
    return asyncio.run(LlmPerformer(limiter)(spec_of(**how), host or RecordingHost()))


def error_of(outcome: AttemptResult) -> str:
    assert outcome.error is not None
    return f"{outcome.error.type}: {outcome.error.text}"


# --- answers ------------------------------------------------------------------------------------------------------


def test_an_answer_is_the_output_the_conversation_is_kept_and_the_cost_is_written_down(
    model_server: ModelServer, limiter: Limiter
) -> None:
    model_server.script(says("It is\na test.", model="m1-2026", cached_tokens=2))
    host = RecordingHost()
    outcome = perform(limiter, host, system="Be brief.")
    used: dict[str, Any] = {"input_tokens": 10, "output_tokens": 5, "cached_tokens": 2, "cost_usd": 0.006}
    assert output_of(outcome) == {
        "text": "It is\na test.",
        "model": "m1-2026",
        "finish_reason": "stop",
        "usage": used,
    }
    assert decode_value(outcome.messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "It is\na test."},
    ]
    assert host.usages == [Usage(**used, calls=1)]
    (call,) = host.calls
    assert call is not None
    assert call == ModelCall(started=call.started, provider="127.0.0.1", model="m1", answered_by="m1-2026")
    assert host.lines("stdout") == ["It is", "a test."]
    assert outcome.warnings == ()
    assert model_server.requests[0].key == KEY


def test_a_conversation_goes_before_the_prompt_and_is_not_kept_twice(
    model_server: ModelServer, limiter: Limiter
) -> None:
    before = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
    first = perform(limiter, messages=before, system="s")
    alone = perform(limiter, messages=before[:1], prompt="")
    sent = [[message["role"] for message in request.json["messages"]] for request in model_server.requests]
    assert sent == [["system", "user", "assistant", "user"], ["user"]]
    kept = [[message["content"] for message in decode_value(outcome.messages)] for outcome in (first, alone)]
    assert kept == [["s", "What is it?", "Hello."], ["a", "Hello."]]


@pytest.mark.parametrize("text", ['{"verdict": "approve"}', '```json\n{"verdict": "approve"}\n```'])
def test_an_answer_by_a_schema_is_read(model_server: ModelServer, limiter: Limiter, text: str) -> None:
    model_server.script(says(text))
    output = output_of(perform(limiter, schema=VERDICT))
    assert (output["json"], output["text"]) == ({"verdict": "approve"}, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"verdict": "maybe"}', "at $.verdict: 'maybe' is not one of"),
        ("{}", "'verdict' is a required property"),
        ("I approve.", "it is no JSON"),
        ('{"verdict": NaN}', "NaN is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("", "the answer is empty"),
    ],
)
def test_an_answer_that_does_not_fit_is_paid_for_and_may_be_tried_again(
    model_server: ModelServer, limiter: Limiter, text: str, said: str
) -> None:
    model_server.script(says(text))
    host = RecordingHost()
    outcome = perform(limiter, host, schema=VERDICT)
    assert said in error_of(outcome)
    assert outcome.retryable
    assert [usage.calls for usage in host.usages] == [1]


def test_a_refusal_is_no_answer(model_server: ModelServer, limiter: Limiter) -> None:
    message = {"content": None, "refusal": "I'd rather not."}
    model_server.script(
        Body(pieces=(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode(),))
    )
    assert "the model refused to answer: I'd rather not." in error_of(perform(limiter))


@pytest.mark.parametrize(
    "schema", [{"type": "nonsense"}, {"$schema": "http://json-schema.org/draft-07/schema#", "required": 1}]
)
def test_a_schema_that_is_none_costs_nothing(
    model_server: ModelServer, limiter: Limiter, schema: dict[str, Any]
) -> None:
    outcome = perform(limiter, schema=schema)
    assert "is no JSON Schema" in error_of(outcome)
    assert not outcome.retryable
    assert not model_server.requests


def test_a_schema_that_refers_elsewhere_is_not_fetched(model_server: ModelServer, limiter: Limiter) -> None:
    model_server.script(says("1"))
    outcome = perform(limiter, schema={"$ref": f"{model_server.url}/schema.json"})
    assert "could not be held to the schema" in error_of(outcome)
    assert not outcome.retryable
    assert [request.path for request in model_server.requests] == ["/v1/chat/completions"]


def test_a_cut_answer_and_unknown_usage_are_warned_about(model_server: ModelServer, limiter: Limiter) -> None:
    model_server.script(says("half an ans", finish_reason="length", usage=False))
    outcome = perform(limiter)
    assert [warning.split(":")[0] for warning in outcome.warnings] == [
        "the answer was cut at its length limit",
        "the server did not say how many tokens were used",
    ]


# --- trouble ------------------------------------------------------------------------------------------------------


def test_rate_limits_and_server_errors_are_tried_again_within_the_attempt(
    model_server: ModelServer, limiter: Limiter
) -> None:
    model_server.script(
        too_many(0.05), server_error(500), server_error(503, **{"Retry-After": "0.05"}), too_many(), says("at last")
    )
    host = RecordingHost()
    assert output_of(perform(limiter, host))["text"] == "at last"
    assert len({request.headers["idempotency-key"] for request in model_server.requests}) == 1
    assert [usage.calls for usage in host.usages] == [1]
    assert any("the provider asked for a pause" in line for line in host.lines("progress"))
    assert any("answered with 500" in line for line in host.lines("progress"))


def test_retry_after_is_honoured_and_uses_up_no_timeout(model_server: ModelServer, limiter: Limiter) -> None:
    model_server.script(too_many(1.2), says("later"))
    began = time.monotonic()
    assert output_of(perform(limiter, timeout_s=1.0))["text"] == "later"
    assert time.monotonic() - began > 1.2
    first, second = model_server.requests
    assert first.ended is not None
    assert second.at - first.ended >= 1.19


def test_what_lasts_ends_the_attempt_and_may_be_tried_again_by_the_task(
    model_server: ModelServer, limiter: Limiter
) -> None:
    model_server.otherwise = server_error(500)
    outcome = perform(limiter)
    assert (len(model_server.requests), outcome.retryable) == (4, True)
    model_server.otherwise = too_many(0)
    outcome = perform(limiter)
    assert (len(model_server.requests), outcome.retryable) == (4 + 9, True)


@pytest.mark.parametrize(("reply", "retryable", "calls"), [(unauthorised(), False, 0), (Answer(cut_after=2), True, 1)])
def test_other_trouble_ends_the_attempt_at_once(
    model_server: ModelServer, limiter: Limiter, reply: Any, retryable: bool, calls: int
) -> None:
    model_server.script(reply)
    host = RecordingHost()
    outcome = perform(limiter, host)
    assert (len(model_server.requests), outcome.retryable, len(host.usages)) == (1, retryable, calls)


def test_a_model_that_does_not_answer_in_time_is_given_up(model_server: ModelServer, limiter: Limiter) -> None:
    model_server.script(Hang(after_headers=True))
    host = RecordingHost()
    outcome = perform(limiter, host, timeout_s=0.3)
    assert error_of(outcome).startswith("TaskTimeoutError: the model did not answer within the task's timeout of 0.3 s")
    assert outcome.retryable
    model_server.wait_for(lambda: model_server.requests[0].client_left)


def test_all_calls_of_an_attempt_share_its_timeout(model_server: ModelServer, limiter: Limiter) -> None:
    model_server.script(*[Body(pieces=(b"{}",), status=500, pause_s=0.3)] * 3)
    outcome = perform(limiter, timeout_s=0.5)
    assert error_of(outcome).startswith("TaskTimeoutError")
    assert len(model_server.requests) == 2


def test_a_long_pause_is_not_waited_for(model_server: ModelServer, limiter: Limiter) -> None:
    model_server.script(too_many(3600))
    outcome = perform(limiter)
    assert error_of(outcome).startswith("CoolingDownError: no calls with OPENAI_API_KEY for another 3600 s")
    assert not outcome.retryable
    assert "OPENAI_API_KEY" in error_of(perform(limiter))  # the pause holds for the next attempt, too
    assert len(model_server.requests) == 1


def test_slots_hold_between_attempts(model_server: ModelServer, limiter: Limiter) -> None:
    model_server.at_most = 2
    model_server.otherwise = says("ok", pause_s=0.02)
    models = ModelSettings(limits={"OPENAI_API_KEY": CallLimits(slots=2)})

    async def crowd() -> list[AttemptResult]:
        perform = LlmPerformer(limiter)
        return await asyncio.gather(*(perform(spec_of(models=models), RecordingHost()) for _ in range(8)))

    assert all(outcome.error is None for outcome in asyncio.run(crowd()))
    assert (model_server.most_at_once, len(model_server.requests)) == (2, 8)


def test_without_slots_a_server_that_allows_two_at_a_time_is_not_stormed(
    model_server: ModelServer, limiter: Limiter
) -> None:
    model_server.at_most, model_server.retry_after_s = 2, 0.1
    model_server.otherwise = says("ok", pause_s=0.05)

    async def crowd() -> list[AttemptResult]:
        perform = LlmPerformer(limiter)
        return await asyncio.gather(*(perform(spec_of(), RecordingHost()) for _ in range(10)))

    assert all(outcome.error is None for outcome in asyncio.run(crowd()))
    assert len([request for request in model_server.requests if request.refused]) <= 10


# --- cancelling ---------------------------------------------------------------------------------------------------


def test_a_cancelled_attempt_closes_its_connection_and_frees_its_slot(
    model_server: ModelServer, limiter: Limiter
) -> None:
    model_server.script(says("a\nvery\nlong\nanswer", pieces=9, pause_s=0.1))
    models = ModelSettings(limits={"OPENAI_API_KEY": CallLimits(slots=1)})

    async def cancelled() -> AttemptResult:
        host = RecordingHost()
        attempt = asyncio.create_task(LlmPerformer(limiter)(spec_of(models=models), host))
        await soon(lambda: bool(host.shown))
        attempt.cancel()
        return await attempt

    outcome = asyncio.run(cancelled())
    assert (outcome.cancelled, outcome.retryable) == (True, False)
    model_server.wait_for(lambda: model_server.requests[0].client_left)
    assert output_of(perform(limiter, models=models))["text"] == "Hello."


def test_an_attempt_cancelled_while_its_cost_is_written_down_counts(
    model_server: ModelServer, limiter: Limiter
) -> None:
    class SlowHost(RecordingHost):
        async def record_usage(self, usage: Usage, call: ModelCall | None = None) -> None:
            recording.set()
            await asyncio.sleep(0.1)
            await super().record_usage(usage, call)

    recording, host = asyncio.Event(), SlowHost()

    async def cancelled() -> AttemptResult:
        attempt = asyncio.create_task(LlmPerformer(limiter)(spec_of(), host))
        await recording.wait()
        attempt.cancel()
        return await attempt

    assert output_of(asyncio.run(cancelled()))["text"] == "Hello."
    assert len(host.usages) == 1


def test_a_wait_for_a_slot_can_be_cancelled(model_server: ModelServer, limiter: Limiter) -> None:
    limits = CallLimits(slots=1)

    async def cancelled() -> AttemptResult:
        host = RecordingHost()
        async with limiter.call("127.0.0.1", limits, lambda _: None):
            models = ModelSettings(limits={"127.0.0.1": limits}, llm=LlmDefaults())
            attempt = asyncio.create_task(
                LlmPerformer(limiter)(spec_of(models=models, base_url="http://127.0.0.1/v1"), host)
            )
            await soon(lambda: bool(host.shown))
            attempt.cancel()
            return await attempt

    assert asyncio.run(cancelled()).cancelled
    assert not model_server.requests


# --- servers that know less --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_that_refuses_to_tell_what_was_used_is_asked_again_without(
    status: int, model_server: ModelServer, limiter: Limiter
) -> None:
    model_server.choose(lambda asked: no_such_option(status=status) if "stream_options" in asked.json else says("Yes."))
    performer, host = LlmPerformer(limiter), RecordingHost()

    async def twice() -> list[AttemptResult]:
        return [await performer(spec_of(prompt=prompt), host) for prompt in ("one", "two")]

    for outcome in asyncio.run(twice()):
        assert output_of(outcome)["text"] == "Yes."
        assert "the server did not say how many tokens were used" in outcome.warnings[0]
    requests = model_server.requests
    assert ["stream_options" in request.json for request in requests] == [True, False, False], "learned for good"
    assert len({request.headers["idempotency-key"] for request in requests}) == 3, "no key stands for two requests"
    assert [usage.calls for usage in host.usages] == [1, 1]


def test_what_such_a_server_tells_all_the_same_is_counted(model_server: ModelServer, limiter: Limiter) -> None:
    told = {"model": "m1", "choices": [{"index": 0, "message": {"content": "Yes."}, "finish_reason": "stop"}]}
    body = json.dumps({**told, "usage": {"prompt_tokens": 7, "completion_tokens": 3}}).encode()
    model_server.script(no_such_option(), Body(pieces=(body,)))
    outcome = perform(limiter)
    assert output_of(outcome)["usage"]["input_tokens"] == 7
    assert outcome.warnings == ()


def test_a_refusal_that_only_sounds_like_it_is_told_and_not_remembered(
    model_server: ModelServer, limiter: Limiter
) -> None:
    model_server.script(
        no_such_option(), Failure(status=400, message="the prompt speaks of stream_options"), says("Yes.")
    )
    performer = LlmPerformer(limiter)

    async def twice() -> list[AttemptResult]:
        return [await performer(spec_of(), RecordingHost()) for _ in range(2)]

    refused, answered = asyncio.run(twice())
    assert "answered with 400: the prompt speaks of stream_options" in error_of(refused)
    assert not refused.retryable
    assert output_of(answered)["text"] == "Yes."
    assert ["stream_options" in request.json for request in model_server.requests] == [True, False, True]


# --- where, with which key ----------------------------------------------------------------------------------------


def test_a_key_goes_only_where_somebody_said(model_server: ModelServer, limiter: Limiter) -> None:
    url = model_server.base_url
    given: list[tuple[dict[str, Any], LlmDefaults, str]] = [
        ({}, LlmDefaults(), KEY),
        ({"base_url": url}, LlmDefaults(), ""),
        ({"base_url": url, "key_name": "OTHER"}, LlmDefaults(), "sk-other"),
        ({"base_url": url, "key_command": ("printf", "sk-printed")}, LlmDefaults(), "sk-printed"),
        ({}, LlmDefaults(base_url=url), ""),
        ({}, LlmDefaults(base_url=url, key_name="OTHER"), "sk-other"),
        ({"base_url": url}, LlmDefaults(base_url=url, key_command=("printenv", "OTHER")), "sk-other"),
        ({"base_url": f"{url}/"}, LlmDefaults(base_url=url, key_name="OTHER"), ""),
        ({}, LlmDefaults(key_name="OTHER"), "sk-other"),
    ]
    for work, defaults, _ in given:
        outcome = perform(limiter, models=ModelSettings(llm=defaults), env={"OTHER": "sk-other"}, **work)
        assert outcome.error is None, outcome.error
    assert [request.key for request in model_server.requests] == [key for _, _, key in given]


def test_a_command_that_prints_a_key_carries_the_attempt(model_server: ModelServer, limiter: Limiter) -> None:
    perform(limiter, base_url=model_server.base_url, key_command=("printenv", "AGENTOS_ATTEMPT_ID"))
    assert model_server.requests[0].key == "run-1/ask/1"  # so that it is found, should it outlive its driver


def test_no_key_is_told_and_nothing_is_called(
    model_server: ModelServer, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.delenv("OPENAI_API_KEY")
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "OPENAI_API_KEY, which should hold the key, is not set"),
        ({"env": {"OPENAI_API_KEY": ""}}, "is empty"),
    ]
    for how, said in cases:
        outcome = perform(limiter, **how)
        assert said in error_of(outcome)
        assert not outcome.retryable
    monkeypatch.setenv("OPENAI_BASE_URL", model_server.base_url)
    assert perform(limiter).error is None  # a server of one's own may need none


def test_the_key_is_in_nothing_that_is_kept(model_server: ModelServer, limiter: Limiter) -> None:
    model_server.script(
        says(f"your key is sk-printed-1, {KEY}\n", pieces=7),
        Body(pieces=(b'{"error": {"message": "Incorrect key sk-printed-1"}}',), status=401),
    )
    how: dict[str, Any] = {
        "base_url": model_server.base_url,
        "key_command": ("printf", "sk-printed-1"),
        "masker": Masker([("OPENAI_API_KEY", KEY)]),
    }
    host = RecordingHost()
    answered, refused = perform(limiter, host, **how), perform(limiter, host, **how)
    host_name = model_server.base_url.split("/")[2]
    assert (
        output_of(answered)["text"] == f"your key is [secret:{host_name.replace(':', '_')}], [secret:OPENAI_API_KEY]\n"
    )
    assert "Incorrect key [secret:" in error_of(refused)
    kept = repr(
        (host.shown, [bytes(raw) for raw in (answered.output, answered.messages)], answered.warnings, refused.error)
    )
    assert "sk-printed-1" not in kept
    assert KEY not in kept


def test_what_a_key_command_says_when_it_fails_is_shown_nowhere(limiter: Limiter) -> None:
    script = "echo 'no access with sk-not-known-yet'; echo 'sk-not-known-yet is refused' >&2; exit 3"
    host = RecordingHost()
    outcome = perform(limiter, host, key_command=("sh", "-c", script))
    told = error_of(outcome)
    assert "the command 'sh', which should print the key, ended with exit code 3" in told
    assert "run `key_command` by hand" in told
    assert "sk-not-known-yet" not in repr((told, host.shown, outcome.warnings))
    assert not outcome.retryable


def test_the_same_call_has_the_same_key_until_an_attempt_has_ended(model_server: ModelServer, limiter: Limiter) -> None:
    for settled, prompt in ((0, "a"), (0, "a"), (1, "a"), (0, "b")):
        perform(limiter, settled=settled, prompt=prompt)
    keys = [request.headers["idempotency-key"] for request in model_server.requests]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


# --- money --------------------------------------------------------------------------------------------------------


def test_money_is_only_limited_where_it_can_be_counted(model_server: ModelServer, limiter: Limiter) -> None:
    host = RecordingHost()
    host.budget = Budget(cost_usd=1.0)
    outcome = perform(limiter, host, model="m2")
    assert "there is a budget in dollars, and there is no price for 'm2'" in error_of(outcome)
    limits = ModelSettings(limits={"OPENAI_API_KEY": CallLimits(per_day_usd=1.0)})
    outcome = perform(limiter, model="m2", models=limits)
    assert "OPENAI_API_KEY has a limit of dollars a day" in error_of(outcome)
    assert not outcome.retryable
    assert not model_server.requests
    host.budget = Budget(tokens=100)
    assert perform(limiter, host, model="m2").error is None
    assert host.usages[-1].cost_usd == 0.0


class Spending(RecordingHost):
    """May spend so many tokens, all its attempts together."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens

    def allowance(self) -> Budget:
        return Budget(tokens=max(0, self.tokens - sum(usage.tokens for usage in self.usages)))


def test_who_gets_a_slot_when_nothing_is_left_makes_no_call(model_server: ModelServer, limiter: Limiter) -> None:
    model_server.otherwise = says("ok", pause_s=0.02)
    models = ModelSettings(limits={"OPENAI_API_KEY": CallLimits(slots=1)})
    host = Spending(tokens=20)  # a call takes 15

    async def crowd() -> list[AttemptResult]:
        perform = LlmPerformer(limiter)
        return await asyncio.gather(*(perform(spec_of(models=models), host) for _ in range(8)))

    outcomes = asyncio.run(crowd())
    assert sorted(outcome.put_off for outcome in outcomes) == [False] * 2 + [True] * 6
    assert (len(model_server.requests), len(host.usages)) == (2, 2)
    assert all("nothing is left of the budget" in error_of(outcome) for outcome in outcomes if outcome.put_off)


@pytest.mark.parametrize("trouble", [server_error(500), too_many(0.05), no_such_option()])
def test_a_call_is_not_repeated_when_nothing_is_left(
    model_server: ModelServer, limiter: Limiter, trouble: Failure
) -> None:
    host = RecordingHost()

    def reply(_: object) -> Failure:
        host.budget = Budget(tokens=0)  # somebody else has spent it meanwhile
        return trouble

    model_server.choose(reply)
    assert perform(limiter, host).put_off
    assert (len(model_server.requests), host.usages) == (1, [])


def test_what_the_provider_says_it_cost_goes_before_the_price(model_server: ModelServer, limiter: Limiter) -> None:
    model_server.script(says("a", cost_usd=0.75), says("b", cost_usd=0.5))
    host = RecordingHost()
    perform(limiter, host)
    perform(limiter, host, model="unpriced")
    assert [usage.cost_usd for usage in host.usages] == [0.75, 0.5]


def test_the_money_of_a_day_is_counted_over_attempts(model_server: ModelServer, limiter: Limiter) -> None:
    models = ModelSettings(prices=PRICES, limits={"OPENAI_API_KEY": CallLimits(per_day_usd=0.01)})
    outcomes = [perform(limiter, models=models) for _ in range(3)]
    assert [outcome.error is None for outcome in outcomes] == [True, True, False]
    assert "$0.012 of $0.01 were spent today" in error_of(outcomes[2])


def test_cached_input_has_its_own_price() -> None:
    price = Price(input_per_million=10.0, output_per_million=100.0, cached_per_million=1.0)
    assert price.cost_usd(1_000_000, 1_000_000, 500_000) == pytest.approx(5 + 0.5 + 100)


def test_the_verdict_of_a_reviewer_fits_its_schema(model_server: ModelServer, limiter: Limiter) -> None:
    model_server.script(verdict("revise", "no", ("more tests",)))
    assert output_of(perform(limiter, schema=VERDICT))["json"]["changes"] == ["more tests"]


def test_an_llm_attempt_without_a_call_fails() -> None:
    spec = msgspec.structs.replace(spec_of(), llm=None)
    outcome = asyncio.run(LlmPerformer(Limiter())(spec, RecordingHost()))
    assert not outcome.retryable
