from __future__ import annotations

import asyncio

import msgspec
import pytest

from agentos.tasks.failures import MAX_TEXT, MAX_TRACEBACK, failure_of


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit("not even a text")

    __repr__ = __str__


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_an_error_whose_text_cannot_be_made_is_stored_all_the_same() -> None:
    failure = failure_of(raised(Unprintable()))

    assert failure.type == "Unprintable"
    assert "cannot be made" in failure.text
    assert "in raised" in failure.traceback


def test_size_is_bounded_however_long_text_and_stack_are() -> None:
    def deep(levels: int) -> None:
        if levels == 0:
            raise ValueError("é" * 1_000_000)
        [deep, lambda n: deep(n)][levels % 2](levels - 1)

    with pytest.raises(ValueError) as caught:
        deep(400)
    failure = failure_of(caught.value)

    assert len(failure.text) < MAX_TEXT + 100
    assert len(failure.traceback) < MAX_TRACEBACK + 100
    assert "characters left out" in failure.text


def test_recursion_without_end_can_be_told() -> None:
    def forever() -> None:
        forever()

    with pytest.raises(RecursionError) as caught:
        forever()
    failure = failure_of(caught.value)

    assert failure.type == "RecursionError"
    assert len(failure.traceback) < MAX_TRACEBACK + 100


def test_text_that_cannot_be_stored_is_escaped() -> None:
    failure = failure_of(raised(ValueError("nul \0 and surrogate \udc80")))

    assert failure.text == "nul \\x00 and surrogate \\udc80"
    assert msgspec.json.decode(msgspec.json.encode(failure))["text"] == failure.text


def test_causes_and_groups_are_told() -> None:
    try:
        try:
            raise KeyError("the cause")
        except KeyError as cause:
            raise ExceptionGroup("several", [ValueError("one"), TypeError("two")]) from cause
    except ExceptionGroup as error:
        failure = failure_of(error)

    for part in ("the cause", "one", "two", "several"):
        assert part in failure.traceback


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first

    assert "first" in failure_of(raised(first)).traceback


def test_exit_and_cancellation_have_a_text() -> None:
    assert "exit the interpreter (status 3)" in failure_of(SystemExit(3)).text
    assert failure_of(asyncio.CancelledError()).type == "CancelledError"
