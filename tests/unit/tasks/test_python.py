from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentos.exceptions import TryAgainError
from agentos.tasks.attempt import AttemptSpec
from agentos.tasks.context import Context
from agentos.tasks.python.functions import callee_of
from agentos.tasks.python.threads import DaemonThreads
from agentos.tasks.runner import performers
from agentos.values import decode_value
from tests.unit.tasks.support import RecordingHost, cancel_when, output_of, perform, python_spec, soon


@dataclasses.dataclass
class Point:
    x: int
    y: int


# --- calling ------------------------------------------------------------------------------------------------------


def test_an_async_function_runs_on_the_loop_in_the_callers_own_task() -> None:
    async def scenario() -> None:
        seen: list[Any] = []

        async def function(n: int) -> int:
            seen.append((asyncio.current_task(), threading.get_ident(), len(asyncio.all_tasks())))
            return n + 1

        outcome = await performers()["python"](python_spec(function, {"n": 1}), RecordingHost())
        assert output_of(outcome) == 2
        assert seen == [(asyncio.current_task(), threading.get_ident(), 1)]

    asyncio.run(scenario())


def test_a_sync_function_runs_in_a_daemon_thread_with_the_callers_context_variables() -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    def function() -> list[Any]:
        return [
            variable.get(),
            threading.current_thread().daemon,
            threading.current_thread() is threading.main_thread(),
        ]

    async def scenario() -> Any:
        variable.set("set by the caller")
        return output_of(await performers()["python"](python_spec(function), RecordingHost()))

    assert asyncio.run(scenario()) == ["set by the caller", True, False]


def test_sync_functions_run_side_by_side_and_do_not_block_the_loop() -> None:
    meeting = threading.Barrier(8, timeout=20)
    perform_it = performers()["python"]

    async def scenario() -> list[int]:
        attempts = [perform_it(python_spec(lambda: meeting.wait() * 0), RecordingHost()) for _ in range(8)]
        return [output_of(outcome) for outcome in await asyncio.gather(*attempts)]

    assert asyncio.run(scenario()) == [0] * 8


def test_one_thread_serves_calls_that_follow_each_other() -> None:
    async def scenario() -> set[int]:
        perform_it = performers()["python"]
        spec = python_spec(threading.get_ident)
        return {output_of(await perform_it(spec, RecordingHost())) for _ in range(20)}

    assert len(asyncio.run(scenario())) == 1


def test_an_idle_thread_goes_and_calls_go_on() -> None:
    async def scenario() -> None:
        threads = DaemonThreads(idle_s=0.01)
        call = threads.start(threading.current_thread)
        first = await call.answer
        await soon(lambda: not first.is_alive())
        assert await threads.start(lambda: "again").answer == "again"

    asyncio.run(scenario())


def test_a_parameter_named_ctx_gets_the_context() -> None:
    def function(n: int, ctx: Context) -> list[Any]:
        ctx.message("user", n)
        ctx.set("k", n)
        ctx.inject("more", run="true", needs=["t"])
        return [ctx.workflow_id, ctx.task_id, ctx.attempt, ctx.idempotency_key]

    outcome = perform(python_spec(function, {"n": 3}))

    assert output_of(outcome) == ["run-1", "t", 1, "key-1"]
    assert decode_value(outcome.messages) == [{"role": "user", "content": 3}]
    assert decode_value(outcome.context) == {"k": 3}
    assert outcome.injected == (("more", {"run": "true", "needs": ["t"]}),)


def test_what_a_failed_attempt_left_behind_does_not_count() -> None:
    async def function(ctx: Context) -> None:
        ctx.set("k", 1)
        raise ValueError

    outcome = perform(python_spec(function))

    assert outcome.error is not None
    assert bytes(outcome.context) == b"null"


@pytest.mark.parametrize("run_in", ["loop", "thread"])
def test_progress_reaches_the_host_on_the_loop_from_any_thread(run_in: str) -> None:
    def sync(ctx: Context) -> None:
        ctx.progress("half")
        ctx.progress(0.5, "way")

    async def on_loop(ctx: Context) -> None:
        sync(ctx)

    host = RecordingHost()
    perform(python_spec(sync if run_in == "thread" else on_loop), host)

    assert host.lines("progress") == ["half", "50% way"]
    assert host.threads == {threading.get_ident()}


def test_a_flood_of_progress_from_a_thread_stays_bounded_and_ends_with_the_newest() -> None:
    def function(ctx: Context) -> None:
        for number in range(50_000):
            ctx.progress(str(number))

    host = RecordingHost()
    perform(python_spec(function), host)

    assert host.lines("progress")[-1] == "49999"


def test_any_callable_will_do() -> None:
    class Async:
        async def __call__(self, n: int) -> int:
            return n

    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, n: int) -> int:
            return n

        def __len__(self) -> int:
            return 0

    def adds(a: int, b: int) -> int:
        return a + b

    assert output_of(perform(python_spec(Async(), {"n": 1}))) == 1
    assert output_of(perform(python_spec(Unhashable(), {"n": 2}))) == 2
    assert output_of(perform(python_spec(partial(adds, 1), {"b": 2}))) == 3
    assert output_of(perform(python_spec(dict, {"a": 1}))) == {"a": 1}
    assert output_of(perform(python_spec(Point, {"x": 1, "y": 2}))) == {"x": 1, "y": 2}


# --- arguments ----------------------------------------------------------------------------------------------------


def test_arguments_come_in_the_annotated_type() -> None:
    async def function(point: Point, many: list[Point], plain, loose: Any) -> list[Any]:
        return [type(point).__name__, [one.x for one in many], plain, loose]

    value = {"x": 1, "y": 2}
    outcome = perform(python_spec(function, {"point": value, "many": [value], "plain": value, "loose": value}))

    assert output_of(outcome) == ["Point", [1], value, value]


def test_an_annotation_that_cannot_be_resolved_is_ignored_and_the_others_count() -> None:
    def function(point: Point, other: NoSuchName) -> list[Any]:  # type: ignore[name-defined]  # noqa: F821
        return [point.x, other]

    assert output_of(perform(python_spec(function, {"point": {"x": 1, "y": 2}, "other": [3]}))) == [1, [3]]


def test_an_argument_that_does_not_fit_is_named_and_not_tried_again() -> None:
    async def function(point: Point) -> None:
        raise AssertionError("must not be called")

    outcome = perform(python_spec(function, {"point": {"x": "no number", "y": 2}}))

    assert outcome.error is not None
    assert "argument 'point'" in outcome.error.text
    assert outcome.retryable is False


class Hostile(type):
    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("not to be compared")

    def __hash__(cls) -> int:
        raise RuntimeError("not to be hashed")


class Odd(metaclass=Hostile): ...


class Unseeable:
    @property
    def __signature__(self) -> Any:
        raise RuntimeError("not to be looked at")

    def __call__(self) -> int:
        return 1


def test_odd_annotations_and_callables_fail_at_worst_their_own_attempt() -> None:
    def function(value) -> int:
        return 1

    function.__annotations__["value"] = Odd
    outcome = perform(python_spec(function, {"value": 1}))
    assert outcome.error is None or "not to be" in outcome.error.text
    outcome = perform(python_spec(Unseeable()))
    assert outcome.error is not None
    assert "not to be looked at" in outcome.error.text


def test_annotations_are_looked_at_once() -> None:
    async def function(point: Point) -> int:
        return point.x

    assert callee_of(function) is callee_of(function)


# --- results ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_in", ["loop", "thread"])
def test_a_result_without_a_stored_form_fails_with_its_path_and_no_retry(run_in: str) -> None:
    def sync() -> Any:
        return {"items": [1, {"bad": object()}]}

    async def on_loop() -> Any:
        return sync()

    outcome = perform(python_spec(sync if run_in == "thread" else on_loop))

    assert outcome.error is not None
    assert outcome.error.type == "ValueEncodingError"
    assert "$.items[1].bad" in outcome.error.text
    assert outcome.retryable is False


def test_a_lambda_that_returns_a_coroutine_is_awaited_on_the_loop() -> None:
    async def later(n: int) -> list[int]:
        return [n, threading.get_ident()]

    assert output_of(perform(python_spec(lambda n: later(n), {"n": 4}))) == [4, threading.get_ident()]


def test_such_a_coroutine_has_the_rest_of_the_timeout() -> None:
    outcome = perform(python_spec(lambda: asyncio.sleep(600), timeout_s=0.05))

    assert outcome.error is not None
    assert outcome.error.type == "TaskTimeoutError"
    assert outcome.warnings == ()


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> Any:
    yield 1


@pytest.mark.parametrize("function", [generator, async_generator])
def test_a_generator_is_refused_and_says_what_to_do(function: Callable[..., Any]) -> None:
    outcome = perform(python_spec(function))

    assert outcome.error is not None
    assert "return a list" in outcome.error.text
    assert outcome.retryable is False


# --- failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_in", ["loop", "thread"])
def test_an_error_is_told_with_the_users_frames_only(run_in: str) -> None:
    def sync() -> None:
        dict[str, int]()["missing"]

    async def on_loop() -> None:
        sync()

    outcome = perform(python_spec(sync if run_in == "thread" else on_loop))

    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.text) == ("KeyError", "'missing'")
    assert '()["missing"]' in outcome.error.traceback
    assert "agentos/tasks/" not in outcome.error.traceback.replace("tests/unit/tasks", "")
    assert outcome.retryable
    assert outcome.execution_time_ms > 0


@pytest.mark.parametrize("run_in", ["loop", "thread"])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
def test_no_exception_of_a_function_reaches_the_engine(error: BaseException, run_in: str) -> None:
    def sync() -> None:
        raise error

    async def on_loop() -> None:
        raise error

    outcome = perform(python_spec(sync if run_in == "thread" else on_loop))

    assert outcome.error is not None
    assert outcome.error.type == type(error).__name__
    assert outcome.cancelled is False


def test_stop_iteration_from_a_thread_is_a_failure_like_any_other() -> None:
    outcome = perform(python_spec(lambda: next(iter(()))))

    assert outcome.error is not None
    assert outcome.error.type == "StopIteration"


def test_an_error_in_a_call_of_ctx_names_the_users_line() -> None:
    async def function(ctx: Context) -> None:
        ctx.set("k", object())  # the user's line

    outcome = perform(python_spec(function))

    assert outcome.error is not None
    assert "the user's line" in outcome.error.traceback
    assert "values.py" not in outcome.error.traceback


# --- timeouts and cancellation ------------------------------------------------------------------------------------


def test_what_asks_for_later_is_not_tried_again_at_once() -> None:
    def later() -> None:
        raise TryAgainError("the tracker is down")

    async def later_too() -> None:
        raise TryAgainError("the tracker is down")

    for function in (later, later_too):
        outcome = perform(python_spec(function))
        assert outcome.error is not None
        assert (outcome.error.type, outcome.retryable) == ("TryAgainError", False)


def test_a_timeout_really_cancels_an_async_function_and_shows_where_it_was() -> None:
    cleaned: list[str] = []

    async def function() -> None:
        try:
            await asyncio.sleep(600)  # here it waits
        finally:
            cleaned.append("yes")

    outcome = perform(python_spec(function, timeout_s=0.01))

    assert cleaned == ["yes"]
    assert outcome.error is not None
    assert outcome.error.type == "TaskTimeoutError"
    assert "0.01 s" in outcome.error.text
    assert "here it waits" in outcome.error.traceback
    assert outcome.retryable
    assert not outcome.cancelled


@pytest.mark.parametrize("then", ["returns", "raises"])
def test_whatever_a_function_makes_of_its_timeout_it_timed_out(then: str) -> None:
    async def function() -> str:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            if then == "raises":
                raise ConnectionError("wrapped") from None
        return "too late"

    outcome = perform(python_spec(function, timeout_s=0.01))

    assert outcome.error is not None
    assert outcome.error.type == "TaskTimeoutError"


def test_a_timeout_error_of_the_functions_own_is_its_own() -> None:
    async def function() -> None:
        raise TimeoutError("the server was slow")

    outcome = perform(python_spec(function, timeout_s=600))

    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.text) == ("TimeoutError", "the server was slow")


@pytest.mark.parametrize("timeout_s", [None, 600])
def test_cancelling_an_async_function_comes_back_once_its_work_has_ended(timeout_s: float | None) -> None:
    log: list[str] = []

    async def function() -> None:
        log.append("started")
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.01)
            log.append("cleaned")

    spec = python_spec(function, timeout_s=timeout_s)
    outcome = asyncio.run(cancel_when(spec, RecordingHost(), lambda: bool(log)))

    assert log == ["started", "cleaned"]
    assert outcome.cancelled
    assert outcome.error is not None
    assert outcome.error.type == "TaskCancelledError"
    assert outcome.retryable is False


def test_a_sync_function_past_its_timeout_is_abandoned_and_the_host_learns_when_it_ends() -> None:
    release = threading.Event()
    refused: list[str] = []

    def function(ctx: Context) -> None:
        release.wait()  # it hangs here
        try:
            ctx.set("k", "too late")
        except Exception as error:
            refused.append(str(error))

    async def scenario() -> None:
        host = RecordingHost()
        outcome = await performers()["python"](python_spec(function, timeout_s=0.05), host)
        assert outcome.error is not None
        assert outcome.error.type == "TaskTimeoutError"
        assert "it hangs here" in outcome.error.traceback
        assert any("isolation: process" in warning for warning in outcome.warnings)
        (ended,) = host.abandonments
        assert isinstance(ended, asyncio.Future)
        assert not ended.done()
        release.set()
        await asyncio.wait_for(ended, 20)
        assert "ran out of time and was abandoned" in refused[0]

    asyncio.run(scenario())


def test_a_cancelled_sync_function_is_abandoned_too() -> None:
    release = threading.Event()
    started = threading.Event()

    def function() -> None:
        started.set()
        release.wait()

    host = RecordingHost()
    outcome = asyncio.run(cancel_when(python_spec(function), host, started.is_set))
    release.set()

    assert outcome.cancelled
    assert len(host.abandonments) == 1
    assert outcome.warnings


def test_a_cancellation_that_comes_when_the_thread_is_done_does_not_lose_its_result() -> None:
    async def scenario() -> None:
        host = RecordingHost()
        done = threading.Event()

        def function() -> str:
            done.set()
            return "paid for"

        attempt = asyncio.ensure_future(performers()["python"](python_spec(function), host))
        await asyncio.sleep(0)
        done.wait()
        time.sleep(0.05)  # the answer is posted while the loop stands still here
        asyncio.get_running_loop().call_soon(attempt.cancel)
        outcome = await attempt
        assert output_of(outcome) == "paid for"
        assert host.abandonments == []

    asyncio.run(scenario())


def test_a_late_coroutine_of_an_abandoned_function_is_closed() -> None:
    release = threading.Event()

    async def later() -> None: ...

    def function() -> Any:
        release.wait()
        return later()

    async def scenario() -> None:
        host = RecordingHost()
        await performers()["python"](python_spec(function, timeout_s=0.01), host)
        release.set()
        await host.abandonments[0]

    asyncio.run(scenario())  # a coroutine that is never awaited warns, and warnings are errors


def test_the_interpreters_exit_does_not_wait_for_an_abandoned_thread(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import asyncio, time
        from tests.unit.tasks.support import RecordingHost, python_spec
        from agentos.tasks.runner import performers

        def hangs():
            time.sleep(600)

        outcome = asyncio.run(performers()["python"](python_spec(hangs, timeout_s=0.05), RecordingHost()))
        print(outcome.error.type)
        """)
    )
    # `timeout` is what fails this test: a joined thread would hold the process for ten minutes.
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=30, env=_path_env())

    assert done.stdout == "TaskTimeoutError\n", done.stderr
    assert done.returncode == 0


def _path_env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


# --- functions by name --------------------------------------------------------------------------------------------


def test_a_function_is_imported_by_its_name() -> None:
    spec = python_spec(None, {"number": 4}, call="tests.unit.tasks.for_import:double")

    assert output_of(perform(spec)) == 8


def test_the_root_is_on_the_path_and_the_import_does_not_block_the_loop(tmp_path: Path) -> None:
    (tmp_path / "lives_in_the_root.py").write_text(
        "import threading\nwhere = threading.current_thread().name\ndef f(): return where"
    )
    spec = _rooted("lives_in_the_root:f", tmp_path)

    try:
        assert output_of(perform(spec)).startswith("agentos-call")
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("lives_in_the_root", None)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("no_such_module_at_all:f", "no module 'no_such_module_at_all'"),
        ("tests.unit.tasks.for_import:missing", "has no 'missing'"),
        ("tests.unit.tasks.for_import:NOT_CALLABLE", "cannot be called"),
        ("nonsense", "module:function"),
        ("exits_on_import:f", "exit the interpreter"),
        ("needs_something_else:f", "not_installed_here"),
    ],
)
def test_a_function_that_cannot_be_imported_says_why_and_is_not_tried_again(
    call: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "exits_on_import.py").write_text("import sys; sys.exit(1)")
    (tmp_path / "needs_something_else.py").write_text("import not_installed_here")
    try:
        outcome = perform(_rooted(call, tmp_path))
    finally:
        sys.path[:] = [path for path in sys.path if path != str(tmp_path)]

    assert outcome.error is not None
    assert text in outcome.error.text
    assert outcome.retryable is False


def _rooted(call: str, root: Path) -> AttemptSpec:
    return msgspec.structs.replace(python_spec(None, call=call), root=root)
