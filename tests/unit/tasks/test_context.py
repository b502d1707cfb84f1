from __future__ import annotations

import threading
from pathlib import Path

import pytest

from agentos.exceptions import AttemptError, ValueEncodingError
from agentos.ids import TaskId, WorkflowId
from agentos.machine.events import NOTHING
from agentos.tasks.context import Context, ContextAdditions
from agentos.values import decode_value


def a_context(shown: list[str] | None = None) -> Context:
    lines: list[str] = [] if shown is None else shown
    return Context(
        workflow_id=WorkflowId("run"),
        task_id=TaskId("t"),
        attempt=2,
        idempotency_key="key",
        root=Path("/work"),
        show=lines.append,
    )


def test_it_says_which_attempt_this_is() -> None:
    context = a_context()

    assert (context.workflow_id, context.task_id, context.attempt, context.idempotency_key) == ("run", "t", 2, "key")


def test_what_is_left_behind_comes_in_the_order_of_the_calls() -> None:
    context = a_context()
    context.message("user", {"a": 1})
    context.message("assistant", b"\xff")
    context.set("k", 1)
    context.set("k", 2)

    left = context.close("has ended")

    assert decode_value(left.messages) == [
        {"role": "user", "content": {"a": 1}},
        {"role": "assistant", "content": b"\xff"},
    ]
    assert decode_value(left.context) == {"k": 2}


def test_nothing_left_behind_is_stored_as_nothing() -> None:
    assert a_context().close("has ended") == ContextAdditions(messages=NOTHING, context=NOTHING, injected=())


def test_changing_an_object_after_the_call_changes_nothing() -> None:
    context, value = a_context(), ["before"]
    context.set("k", value)
    context.message("user", value)
    context.inject("more", needs=value)
    value[0] = "after"

    left = context.close("has ended")

    assert decode_value(left.context) == {"k": ["before"]}
    assert decode_value(left.messages)[0]["content"] == ["before"]
    assert decode_value(left.injected[0][1]) == {"needs": ["before"]}


@pytest.mark.parametrize("verb", ["set", "message", "inject"])
def test_a_value_without_a_stored_form_raises_at_the_call(verb: str) -> None:
    context = a_context()
    value = {"deep": [1, {2j, 3j}]}

    with pytest.raises(ValueEncodingError) as caught:
        context.inject("id", inputs=value) if verb == "inject" else getattr(context, verb)("k", value)

    assert "deep[1]" in caught.value.path
    assert context.close("has ended") == ContextAdditions()


@pytest.mark.parametrize("key", ["$agentos", "with\0nul", "lone \udcff"])
def test_a_context_key_that_sql_could_not_merge_is_refused(key: str) -> None:
    context = a_context()
    with pytest.raises(ValueError, match="cannot be a key of the context"):
        context.set(key, "value")

    assert context.close("has ended").context is NOTHING


def test_other_context_keys_may_be_any_text() -> None:
    context = a_context()
    context.set('ü "quoted" \\ \n', "value")

    assert decode_value(context.close("has ended").context) == {'ü "quoted" \\ \n': "value"}


@pytest.mark.parametrize("key", ["", None, 3])
def test_a_context_key_must_be_text(key: object) -> None:
    with pytest.raises(TypeError):
        a_context().set(key, 1)  # type: ignore[arg-type]


def test_calls_after_the_end_are_refused_with_the_reason() -> None:
    shown: list[str] = []
    context = a_context(shown)
    context.close("ran out of time")

    for call in (
        lambda: context.set("k", 1),
        lambda: context.message("user", "x"),
        lambda: context.inject("more", run="true"),
        lambda: context.progress("still here"),
    ):
        with pytest.raises(AttemptError, match="attempt 2 of 't' ran out of time"):
            call()
    assert shown == []
    assert context.close("again") == ContextAdditions()


def test_progress_comes_as_text_share_or_count() -> None:
    shown: list[str] = []
    context = a_context(shown)
    context.progress("reading")
    context.progress(0.4)
    context.progress(3, "files", of=10)
    context.progress("bad \udcff and " + "x" * 10_000)

    assert shown[:3] == ["reading", "40%", "3/10 files"]
    assert "\\udcff" in shown[3]
    assert len(shown[3]) < 5_000


def test_calls_from_many_threads_all_arrive() -> None:
    context = a_context()
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        for turn in range(300):
            context.message("user", [number, turn])
            context.set(f"{number}.{turn}", turn)
            context.inject(f"{number}.{turn}", run="true")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = context.close("has ended")

    said = [tuple(message["content"]) for message in decode_value(left.messages)]
    assert sorted(said) == [(number, turn) for number in range(8) for turn in range(300)]
    assert len(decode_value(left.context)) == len(left.injected) == 2400


def test_a_call_that_races_with_the_end_is_kept_or_refused_never_lost() -> None:
    context = a_context()
    accepted = 0
    started = threading.Event()

    def work() -> None:
        nonlocal accepted
        while True:
            try:
                context.message("user", accepted)
            except AttemptError:
                return
            accepted += 1
            started.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    left = context.close("has ended")
    thread.join()

    assert len(decode_value(left.messages)) == accepted
