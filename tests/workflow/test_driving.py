"""A drive: what runs when, what is on the record, and that nothing a task does can break the run."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentos import Context, Workflow
from agentos.exceptions import LeaseLostError
from agentos.machine import events as ev
from agentos.machine.commands import Abort, Pause
from agentos.store.port import PostedCommand
from agentos.tasks.runner import PERFORMERS
from agentos.workflow.drive.command_delivery import send
from agentos.workflow.drive.drive import Drive
from agentos.workflow.drive.mailbox import utc_now
from agentos.workflow.place.place import Place
from tests.workflow.support import (
    Killer,
    adrive,
    ago_on,
    assert_well_formed,
    drive,
    go_on,
    journal,
    kill,
    of_type,
    soon,
    status,
    types,
    wrapped,
)


def diamond() -> Workflow:
    flow = Workflow("diamond")

    @flow.task
    def top(n: int) -> int:
        return n

    @flow.task
    async def left(top: int) -> int:
        return top + 1

    @flow.task
    def right(top: int) -> int:
        return top + 2

    @flow.task
    async def bottom(left: int, right: int) -> int:
        return left * right

    return flow


def test_a_run_from_start_to_end(place: Place) -> None:
    result = drive(place, diamond(), {"n": 3}, "d")

    assert result.status == "complete"
    assert result.outputs == {"top": 3, "left": 4, "right": 5, "bottom": 20}
    events = journal(place, "d")
    assert_well_formed(events)
    assert next(event.task_id for event in of_type(events, ev.TaskComplete)) == "top"
    assert [event.layer for event in of_type(events, ev.Checkpointed)] == [0, 1, 2]
    for complete in of_type(events, ev.TaskComplete):
        assert (complete.layer, complete.attempt) == ({"top": 0, "bottom": 2}.get(complete.task_id, 1), 1)
    first = events[0]
    assert isinstance(first, ev.WorkflowStart)
    assert (first.total_layers, first.resumed_from, first.drive) == (3, None, 1)


def test_nothing_begins_while_its_start_is_being_written(place: Place) -> None:
    """An attempt is made ready meanwhile: its inputs are looked up, and it waits."""
    writing, go_on_writing = threading.Event(), threading.Event()
    began: list[str] = []

    def append(real: Any, lease: Any, events: Any, *args: Any, **named: Any) -> Any:
        if any(event.task_id == "second" for event in of_type(events, ev.TaskStart)):
            writing.set()
            assert go_on_writing.wait(20)
        return real(lease, events, *args, **named)

    flow = Workflow("f")

    @flow.task
    async def first() -> int:
        return 1

    @flow.task
    async def second(first: int) -> int:
        began.append("second")
        return first + 1

    async def scenario() -> None:
        running = asyncio.ensure_future(adrive(wrapped(place, append=append), flow, id="w"))
        await asyncio.to_thread(writing.wait, 20)
        for _ in range(50):  # every turn of the loop that an attempt could have begun in
            await asyncio.sleep(0)
        assert began == []
        go_on_writing.set()
        assert (await running).outputs["second"] == 2

    asyncio.run(scenario())
    assert began == ["second"]


# --- live, in order -----------------------------------------------------------------------------------------------


def test_a_quick_task_is_reported_while_a_slow_one_of_its_layer_still_runs(place: Place) -> None:
    flow = Workflow("f")
    reported = asyncio.Event()

    @flow.task
    async def slow() -> str:
        await reported.wait()  # ends only once the other one was seen from outside
        return "slow"

    @flow.task
    async def quick() -> str:
        return "quick"

    async def scenario() -> list[str]:
        seen: list[str] = []

        def watch(drive: Drive) -> None:
            watching.append(asyncio.ensure_future(read(drive)))

        async def read(drive: Drive) -> None:
            async for event in drive.stream.subscribe():
                if isinstance(event, ev.TaskComplete):
                    seen.append(event.task_id)
                    durable = {e.task_id for e in of_type(journal(place, "r"), ev.TaskComplete)}
                    assert event.task_id in durable, "seen before it was durable"
                    reported.set()

        watching: list[asyncio.Future[None]] = []
        await adrive(place, flow, id="r", started=watch)
        await asyncio.gather(*watching)
        return seen

    assert asyncio.run(scenario()) == ["quick", "slow"]


def test_lines_of_a_command_and_progress_are_live_and_not_stored(place: Place) -> None:
    flow = Workflow("f")
    flow.add("shell", "shell", run="echo one; echo two >&2", effects="none")

    @flow.task
    def python(ctx: Context) -> None:
        ctx.progress("half", "done")

    seen: list[ev.Event] = []

    async def scenario() -> None:
        async def read(drive: Drive) -> None:
            seen.extend([event async for event in drive.stream.subscribe(after=0)])

        reading: list[asyncio.Future[None]] = []
        await adrive(place, flow, id="r", started=lambda drive: reading.append(asyncio.ensure_future(read(drive))))
        await asyncio.gather(*reading)

    asyncio.run(scenario())
    shown = {(line.task_id, line.stream, line.text) for line in of_type(seen, ev.TaskOutput)}
    assert shown == {("shell", "stdout", "one"), ("shell", "stderr", "two"), ("python", "progress", "half done")}
    assert all(line.seq == 0 and line.attempt == 1 for line in of_type(seen, ev.TaskOutput))
    stored = journal(place, "r")
    assert "task_output" not in types(stored)
    assert [event for event in seen if event.seq] == stored


# --- limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3])
def test_max_concurrency_is_honoured(place: Place, limit: int) -> None:
    flow = Workflow("f", max_concurrency=limit)
    now, most = [0], [0]
    release = asyncio.Event()

    async def work() -> None:
        now[0] += 1
        most[0] = max(most[0], now[0])
        if now[0] == limit:
            release.set()
        await release.wait()
        now[0] -= 1

    for number in range(7):
        flow.add(f"t{number}", work)
    assert drive(place, flow).status == "complete"
    assert most == [limit]


def test_a_concurrency_group_has_its_slots(place: Place) -> None:
    flow = Workflow("f")
    inside: set[str] = set()
    most = [0]

    async def work(ctx: Context) -> None:
        inside.add(ctx.task_id)
        most[0] = max(most[0], len(inside))
        await asyncio.sleep(0)
        inside.discard(ctx.task_id)

    for number in range(5):
        flow.add(f"t{number}", work, concurrency={"group": "db", "slots": 2})
    assert drive(place, flow).status == "complete"
    assert most == [2]


def test_schedule_ready_starts_a_task_as_soon_as_its_needs_are_done(place: Place) -> None:
    flow = Workflow("f", schedule="ready")
    after_ran = asyncio.Event()

    @flow.task
    async def slow() -> None:
        await after_ran.wait()  # in layer 0, and yet it ends after a task of layer 1 began

    @flow.task
    async def quick() -> None: ...

    @flow.task(needs=quick)
    async def after() -> None:
        after_ran.set()

    assert drive(place, flow, id="r").status == "complete"
    events = journal(place, "r")
    assert [cut.layer for cut in of_type(events, ev.Checkpointed)] == [0, 1]
    done = [str(event.task_id) for event in of_type(events, ev.TaskComplete)]
    assert done.index("after") < done.index("slow")
    assert_well_formed(events)


# --- timeouts and cancellation ------------------------------------------------------------------------------------


def test_a_timeout_really_cancels_an_async_task(place: Place) -> None:
    flow = Workflow("f")
    ended: list[str] = []

    @flow.task(timeout_s=0.02)
    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    result = drive(place, flow)
    assert result.status == "failed"
    assert result.errors["hangs"].startswith("TaskTimeoutError")
    assert ended == ["cancelled"]


def test_a_timeout_really_ends_a_command_and_its_children(place: Place, tmp_path: Path) -> None:
    flow = Workflow("f")
    flow.add("hangs", "shell", run="sleep 600 & echo $! > pid; wait", timeout_s=0.5, effects="none")

    result = drive(place, flow)

    assert result.errors["hangs"].startswith("TaskTimeoutError")
    pid = int((tmp_path / "pid").read_text())
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] in "ZX"


def test_an_abandoned_thread_holds_effects_until_it_has_ended(place: Place, tmp_path: Path) -> None:
    flow = Workflow("f")
    let_go, ended = threading.Event(), threading.Event()
    order: list[str] = []

    @flow.task(timeout_s=0.05, continue_on_error=True)
    def deaf() -> None:
        let_go.wait(20)
        order.append("deaf ended")
        ended.set()

    @flow.task(needs=deaf)
    async def harmless() -> None:
        order.append("harmless")
        let_go.set()

    @flow.task(needs=deaf, effects="external", idempotent=True)
    async def effect() -> None:
        order.append("effect")

    result = drive(place, flow, id="r")

    assert result.status == "complete", result.errors
    assert order == ["harmless", "deaf ended", "effect"]
    [warning] = [w for w in of_type(journal(place, "r"), ev.TaskWarning) if w.task_id == "deaf"]
    assert "cannot be stopped in a thread" in warning.message


def test_the_end_of_a_run_does_not_wait_for_an_abandoned_thread(place: Place) -> None:
    flow = Workflow("f")
    let_go = threading.Event()

    @flow.task(timeout_s=0.02)
    def deaf() -> None:
        let_go.wait(20)

    try:
        assert drive(place, flow).status == "failed"
        assert not let_go.is_set()
    finally:
        let_go.set()


async def _cancelled_in(place: Place, flow: Workflow, id: str, running: Callable[[], Any]) -> None:
    task = asyncio.ensure_future(adrive(place, flow, id=id))
    await soon(running)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_cancelling_a_run_stops_it_in_order_and_it_can_be_resumed(place: Place) -> None:
    flow = Workflow("f")
    entered: list[int] = []
    go = asyncio.Event()

    @flow.task
    async def before() -> str:
        return "before"

    @flow.task
    async def waits(before: str, ctx: Context) -> str:
        entered.append(ctx.attempt)
        if ctx.attempt == 1:
            await go.wait()
        return before + "!"

    @flow.task(needs=waits)
    async def after() -> None: ...

    asyncio.run(_cancelled_in(place, flow, "r", lambda: entered))

    events = journal(place, "r")
    assert_well_formed(events)
    assert isinstance(events[-1], ev.WorkflowPaused)
    assert events[-1].reason == "stopped"
    [error] = of_type(events, ev.TaskError)
    assert (error.task_id, error.status, error.error.type) == ("waits", "cancelled", "TaskCancelledError")
    assert status(place, "r") == "paused"

    result = go_on(place, "r", flow)
    assert (result.status, result.outputs["waits"], entered) == ("complete", "before!", [1, 2])
    assert_well_formed(journal(place, "r"))


def test_cancelling_in_the_last_layer_is_a_pause_and_no_failure(place: Place) -> None:
    flow = Workflow("f")
    entered: list[bool] = []

    @flow.task
    async def waits() -> None:
        entered.append(True)
        await asyncio.Event().wait()

    asyncio.run(_cancelled_in(place, flow, "r", lambda: entered))
    events = journal(place, "r")
    assert types(events)[-1] == "workflow_paused"
    assert "checkpoint" not in types(events), "the layer is not finished"


def test_cancelling_while_events_are_being_written_does_not_hang(place: Place) -> None:
    """The start of a task is decided and on its way to disk when the cancellation comes."""
    flow = Workflow("f")

    @flow.task
    async def first() -> None: ...

    @flow.task(needs=first)
    async def second() -> None: ...

    @flow.task(needs=second)
    async def third() -> None: ...

    async def scenario() -> None:
        def started(drive: Drive) -> None:
            append = drive._journal.append

            async def watched(events: Any, *args: Any, **named: Any) -> Any:
                if any(type(event) is ev.TaskStart and event.task_id == "second" for event in events):
                    task.cancel()
                return await append(events, *args, **named)

            drive._journal.append = watched  # type: ignore[method-assign]

        task = asyncio.ensure_future(adrive(place, flow, id="r", started=started))
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 20)

    asyncio.run(scenario())
    assert_well_formed(journal(place, "r"))
    assert types(journal(place, "r"))[-1] == "workflow_paused"
    assert go_on(place, "r", flow).status == "complete"


def test_cancelling_while_a_run_is_prepared_leaves_no_lease(place: Place) -> None:
    flow = Workflow("f")

    @flow.task
    async def only() -> None: ...

    async def scenario() -> None:
        task = asyncio.ensure_future(adrive(place, flow, id="r"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    store = place.open(readonly=True)
    assert store.find_run("r").holder is None
    store.close()
    assert drive(place, flow, id="r").status == "complete"


def test_cancelling_twice_gives_up_on_order(place: Place) -> None:
    flow = Workflow("f")
    inside, stubborn = asyncio.Event(), asyncio.Event()

    @flow.task
    async def deaf(ctx: Context) -> None:
        if ctx.attempt > 1:
            return
        inside.set()
        for _ in range(2):  # the first two times it is asked it goes on
            try:
                await stubborn.wait()
            except asyncio.CancelledError:
                continue

    async def scenario() -> None:
        task = asyncio.ensure_future(adrive(place, flow, id="r"))
        await inside.wait()
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 20)

    asyncio.run(scenario())
    assert go_on(place, "r", flow).status == "complete"


# --- abort and pause ----------------------------------------------------------------------------------------------


def test_abort_cancels_what_runs_and_is_final(place: Place) -> None:
    flow = Workflow("f")
    inside = asyncio.Event()
    cancelled: list[bool] = []

    @flow.task
    async def forever() -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    @flow.task(needs=forever)
    async def never() -> None: ...

    async def scenario() -> Any:
        task = asyncio.ensure_future(adrive(place, flow, id="r"))
        await inside.wait()
        store = place.open()
        sent = send(store, "r", Abort(reason="enough"), author="me")
        store.close()
        assert not sent.applied
        return await task

    assert asyncio.run(scenario()).status == "aborted"
    assert cancelled == [True]
    events = journal(place, "r")
    assert_well_formed(events)
    assert isinstance(events[-1], ev.WorkflowAborted)
    assert events[-1].reason == "enough"


def test_an_abort_that_comes_with_the_start_of_a_task_does_not_hang(place: Place) -> None:
    """Decided in one turn: the task is cancelled before its first step, and that ends on the record too."""
    flow = Workflow("f")
    begun: list[str] = []

    @flow.task
    async def first() -> None: ...

    @flow.task(needs=first)
    async def second() -> None:
        begun.append("second")

    async def scenario() -> Any:
        def started(drive: Drive) -> None:
            step = drive.machine.step

            def with_abort(given: Any, now: Any) -> list[ev.Event]:
                events = step(given, now)
                if any(type(event) is ev.TaskStart and event.task_id == "second" for event in events):
                    drive.machine.step = step  # type: ignore[method-assign]
                    asked = PostedCommand(id="c", author="me", posted_at=utc_now(), command={"type": "abort"})
                    [abort] = drive.take_commands([asked])
                    events += step(abort, now)
                return events

            drive.machine.step = with_abort  # type: ignore[method-assign]

        return await asyncio.wait_for(adrive(place, flow, id="r", started=started), 20)

    assert asyncio.run(scenario()).status == "aborted"
    assert begun == []
    events = journal(place, "r")
    assert_well_formed(events)
    assert [(e.task_id, e.status) for e in of_type(events, ev.TaskError)] == [("second", "cancelled")]


def test_pause_lets_running_tasks_finish_and_starts_no_others(place: Place) -> None:
    flow = Workflow("f")
    inside, release = asyncio.Event(), asyncio.Event()

    @flow.task
    async def runs() -> str:
        inside.set()
        await release.wait()
        return "done"

    @flow.task(needs=runs)
    async def later() -> str:
        return "later"

    async def scenario() -> Any:
        drives: list[Drive] = []
        task = asyncio.ensure_future(adrive(place, flow, id="r", started=drives.append))
        await inside.wait()
        store = place.open()
        send(store, "r", Pause(reason="lunch"))
        store.close()
        await soon(lambda: drives[0].facts.stopping)
        release.set()
        return await task

    result = asyncio.run(scenario())
    assert (result.status, result.outputs) == ("paused", {"runs": "done"})
    assert go_on(place, "r", flow).outputs == {"runs": "done", "later": "later"}


# --- whatever user code does --------------------------------------------------------------------------------------


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def _raise(error: BaseException) -> Callable[[], None]:
    def raises() -> None:
        raise error

    async def araises() -> None:
        raise error

    return raises if isinstance(error, (ValueError, SystemExit)) else araises  # type: ignore[return-value]


@pytest.mark.parametrize(
    "error",
    [ValueError("bad"), Hostile(), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration()],
    ids=lambda error: type(error).__name__,
)
def test_no_exception_in_a_task_kills_the_run(place: Place, error: BaseException) -> None:
    flow = Workflow("f")
    flow.add("bad", _raise(error))
    flow.add("good", lambda: "fine")
    flow.add("after", lambda bad: bad, needs=["bad"])

    result = drive(place, flow, id="r")

    assert result.status == "failed"
    assert result.outputs == {"good": "fine"}
    assert {entry.task_id: entry.status for entry in result.state.tasks} == {
        "bad": "failed",
        "good": "complete",
        "after": "skipped",
    }
    assert_well_formed(journal(place, "r"))


def test_a_performer_that_breaks_fails_its_task_only(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Workflow("f")
    flow.add("one", lambda: 1)
    flow.add("broken", "shell", run="true", effects="none")

    async def broken(spec: Any, host: Any) -> Any:
        raise OSError("a bug of ours")

    monkeypatch.setitem(PERFORMERS, "shell", broken)
    result = drive(place, flow)
    assert (result.outputs, result.errors) == ({"one": 1}, {"broken": "OSError: a bug of ours"})


@pytest.mark.parametrize(
    "value", [{1j}, object(), {"a": [1, lambda: 0]}, {3: 4}], ids=["complex", "object", "function", "number as key"]
)
def test_a_result_without_a_stored_form_fails_only_its_task_and_says_where(place: Place, value: Any) -> None:
    flow = Workflow("f")
    flow.add("odd", lambda: value)
    flow.add("fine", lambda: 1)

    result = drive(place, flow)

    assert result.outputs == {"fine": 1}
    assert result.errors["odd"].startswith("ValueEncodingError: the value at $")


def test_a_context_value_without_a_stored_form_raises_inside_the_task(place: Place) -> None:
    flow = Workflow("f")

    @flow.task
    def odd(ctx: Context) -> str:
        try:
            ctx.set("key", {1j, 2})
        except Exception as error:
            return type(error).__name__
        return "stored"

    assert drive(place, flow).outputs == {"odd": "ValueEncodingError"}


@dataclasses.dataclass
class Point:
    x: int
    y: int


VALUES = {
    "tuple": ((1, 2), [1, 2]),
    "bytes": (b"\x00\xff", b"\x00\xff"),
    "date": (datetime.date(2024, 2, 29), datetime.date(2024, 2, 29)),
    "decimal": (decimal.Decimal("1.10"), decimal.Decimal("1.10")),
    "dataclass": (Point(1, 2), {"x": 1, "y": 2}),
    "nul": ("a\0b", "a\0b"),
    "big": (2**200, 2**200),
    "large": ("x" * (1 << 21), "x" * (1 << 21)),
}


def test_dependants_get_the_same_decoded_values_in_a_first_run_and_in_a_resumed_one(place: Place) -> None:
    flow = Workflow("f")
    killer = Killer()
    got: list[dict[str, Any]] = []

    def gives(name: str) -> Callable[[], Any]:
        return lambda: VALUES[name][0]

    for name in VALUES:
        flow.add(name, gives(name))

    async def uses(**values: Any) -> None:
        got.append(values)

    inputs = {name: f"${{{{ tasks.{name}.output }}}}" for name in VALUES}
    flow.add("uses", uses, inputs=inputs)

    async def ends() -> None:
        await killer.strike()

    flow.add("ends", ends, needs=["uses"])
    flow.add("again", uses, inputs=inputs, needs=["ends"])

    kill(place, flow, killer)
    assert go_on(place, "run", flow).status == "complete"
    first, second = got
    assert first == second == {name: wanted for name, (_, wanted) in VALUES.items()}
    assert {name: type(value) for name, value in first.items()} == {
        name: type(wanted) for name, (_, wanted) in VALUES.items()
    }


def test_what_a_dependant_does_to_a_value_reaches_nobody_else(place: Place) -> None:
    flow = Workflow("f")
    flow.add("gives", lambda: {"list": [1]})

    async def spoils(gives: dict[str, list[int]]) -> list[int]:
        gives["list"].append(2)
        return gives["list"]

    flow.add("one", spoils)
    flow.add("two", spoils)
    result = drive(place, flow)
    assert result.outputs == {"gives": {"list": [1]}, "one": [1, 2], "two": [1, 2]}


def test_large_outputs_go_to_a_blob_and_come_back(place: Place) -> None:
    flow = Workflow("f")
    flow.add("large", lambda: {"text": "é" * 3_000_000})
    flow.add("length", lambda large: len(large["text"]))

    assert drive(place, flow, id="r").outputs["length"] == 3_000_000

    store = place.open()
    [rows] = store._connection.execute("SELECT count(*) FROM blob").fetchall()  # type: ignore[attr-defined]
    store.close()
    assert rows == (1,)
    assert go_on(place, "r", flow).outputs["large"]["text"] == "é" * 3_000_000


# --- retries ------------------------------------------------------------------------------------------------------


def test_retries_are_counted_over_drives(place: Place) -> None:
    flow = Workflow("f")
    killer = Killer()
    attempts: list[int] = []

    @flow.task(retries={"retries": 2, "backoff_s": 0.0, "jitter": 0.0})
    async def flaky(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if len(attempts) == 2:
            await killer.strike()
        raise ValueError(f"attempt {ctx.attempt}")

    kill(place, flow, killer)
    result = go_on(place, "run", flow)

    # The one that was interrupted used up no retry: three failures in all.
    assert attempts == [1, 2, 3, 4]
    assert result.status == "failed"
    assert result.errors == {"flaky": "ValueError: attempt 4"}
    retries = of_type(journal(place, "run"), ev.TaskRetry)
    assert [retry.attempt for retry in retries] == [1, 3]
    assert all(retry.not_before >= retry.at for retry in retries)

    attempts.clear()
    assert go_on(place, "run", flow).status == "failed"
    assert attempts == [5, 6, 7], "a resume of a failed run has a fresh allowance"


def test_a_retry_waits_for_its_moment_also_over_a_resume(place: Place) -> None:
    flow = Workflow("f")
    killer = Killer()
    at: list[datetime.datetime] = []

    @flow.task(retries={"retries": 1, "backoff_s": 0.4, "jitter": 0.0})
    async def flaky() -> None:
        at.append(utc_now())
        if len(at) == 1:
            raise ValueError("once")

    @flow.task
    async def other() -> None:
        assert killer.drive is not None
        machine = killer.drive.machine
        await soon(lambda: machine.facts.task("flaky").status == "retrying")  # type: ignore[arg-type]
        await killer.strike()

    kill(place, flow, killer)
    assert go_on(place, "run", flow).status == "complete"
    [retry] = of_type(journal(place, "run"), ev.TaskRetry)
    assert at[1] >= retry.not_before


# --- losing the lease ---------------------------------------------------------------------------------------------


def test_a_driver_that_lost_its_lease_stops_its_attempts_and_writes_nothing(place: Place) -> None:
    flow = Workflow("f")
    inside = asyncio.Event()
    ended: list[str] = []

    @flow.task
    async def works() -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("stopped")

    async def scenario() -> None:
        task = asyncio.ensure_future(adrive(place, flow, id="r", lease_s=0.3))
        await inside.wait()
        thief = place.open()
        # As if the lease had run out while this process slept, and another one took the run over.
        thief._connection.execute("UPDATE run SET lease_expires = 0")  # type: ignore[attr-defined]
        lease = thief.take_lease("r", _somebody_else(), 30.0)  # type: ignore[arg-type]
        with pytest.raises(LeaseLostError):
            await asyncio.wait_for(task, 20)
        assert thief.find_run("r").holder is not None, "the lease of the other one is not let go"
        thief.release_lease(lease)
        thief.close()

    asyncio.run(scenario())
    assert ended == ["stopped"]
    events = journal(place, "r")
    assert types(events)[-1] == "task_start"


def _somebody_else() -> Any:
    from agentos.store.holder import current_holder

    return current_holder()


def test_a_lease_that_ran_out_and_that_nobody_took_is_renewed(place: Place) -> None:
    flow = Workflow("f")

    @flow.task
    async def works() -> None:
        store = place.open()
        store._connection.execute("UPDATE run SET lease_expires = 0")  # type: ignore[attr-defined]
        await soon(lambda: store.find_run("r").holder is not None)
        store.close()

    assert drive(place, flow, id="r", lease_s=0.3).status == "complete"


def test_no_second_driver_while_the_first_one_lives(place: Place) -> None:
    from agentos.exceptions import LeaseHeldError

    flow = Workflow("f")

    @flow.task
    async def works() -> str:
        try:
            await ago_on(place, "r", flow)
        except LeaseHeldError as error:
            return str(error)
        return "driven twice"

    result = drive(place, flow, id="r")
    assert "is being driven by process" in result.outputs["works"]
