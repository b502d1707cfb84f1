"""The two executors: in memory, and under control."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from agentos import Context, Workflow
from agentos.exceptions import (
    CheckpointNotFoundError,
    CommandRefusedError,
    RunRefusedError,
    WorkflowDefinitionError,
)
from agentos.machine import events as ev
from agentos.machine.commands import Rollback
from agentos.workflow import ControlledExecutor, ParallelExecutor
from agentos.workflow.checkpoint import CheckpointManager
from agentos.workflow.place.place import Place
from agentos.workflow.start.ready_run import DriveOptions
from tests.workflow.support import (
    assert_well_formed,
    checkpoints,
    collected,
    comparable,
    journal,
    of_type,
    types,
)


def chain(length: int = 3) -> tuple[Workflow, list[str]]:
    """Tasks t0, t1, …, each after the one before; and which of them ran."""
    flow, ran = Workflow("chain"), list[str]()

    async def work(ctx: Context) -> str:
        ran.append(ctx.task_id)
        ctx.message("assistant", f"did {ctx.task_id}")
        ctx.set("last", ctx.task_id)
        return f"out of {ctx.task_id}"

    for number in range(length):
        flow.add(f"t{number}", work, needs=[f"t{number - 1}"] if number else [])
    return flow, ran


def managed(place: Place, **options: Any) -> ControlledExecutor:
    return ControlledExecutor(CheckpointManager(place.database), options=DriveOptions(**options), root=place.root)


# --- in memory ----------------------------------------------------------------------------------------------------


def test_parallel_executor_needs_no_store_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flow = Workflow("f")
    flow.add("one", lambda: 1)
    flow.add("two", lambda one: one + 1)
    flow.add("bad", lambda: 1 / 0)
    flow.add("after", lambda bad: bad)

    result = asyncio.run(ParallelExecutor().execute(flow))

    assert result.status == "failed"
    assert result.outputs == {"one": 1, "two": 2}
    assert result.errors == {"bad": "ZeroDivisionError: division by zero"}
    assert {entry.task_id: entry.status for entry in result.results} == {
        "one": "complete",
        "bad": "failed",
        "two": "complete",
        "after": "skipped",
    }
    assert result.layers == 2
    assert result.execution_time_ms > 0
    assert result.speedup >= 0
    assert list(tmp_path.iterdir()) == []


def test_parallel_executor_takes_parameters_and_runs_in_its_root(tmp_path: Path) -> None:
    flow = Workflow("f")
    flow.add("where", "shell", run="pwd -P", effects="none")
    flow.add("twice", lambda n: n * 2)

    result = asyncio.run(ParallelExecutor(root=tmp_path).execute(flow, params={"n": 21}))

    assert result.outputs["where"]["stdout"] == str(tmp_path.resolve())
    assert result.outputs["twice"] == 42


def test_parallel_executor_has_nobody_to_ask_and_rejects() -> None:
    flow = Workflow("f")
    flow.add("deploy", lambda: "deployed", approve="Deploy?")

    result = asyncio.run(ParallelExecutor().execute(flow))

    assert (result.status, result.outputs) == ("failed", {})
    assert result.errors["deploy"].startswith("GateRejected")


def test_a_broken_definition_is_raised_before_anything_runs() -> None:
    flow, ran = chain()
    flow.add("bad", lambda: None, needs=["missing"])

    with pytest.raises(WorkflowDefinitionError):
        asyncio.run(ParallelExecutor().execute(flow))
    with pytest.raises(WorkflowDefinitionError):
        asyncio.run(collected(ControlledExecutor().execute_stream(flow)))
    assert ran == []


def test_controlled_executor_runs_without_a_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flow, _ = chain()
    executor = ControlledExecutor()
    assert executor.state is None
    assert executor.result is None

    events = asyncio.run(collected(executor.execute_stream(flow, workflow_id="w")))

    assert_well_formed(events)
    assert types(events)[0] == "workflow_start"
    assert types(events)[-1] == "workflow_complete"
    assert executor.state is not None
    assert executor.state.workflow_id == "w"
    assert [entry.task_id for entry in executor.state.tasks] == ["t0", "t1", "t2"]
    assert executor.result is not None
    assert executor.result.status == "complete"
    assert list(tmp_path.iterdir()) == []


def test_without_a_manager_there_is_no_checkpoint_to_resume() -> None:
    with pytest.raises(CheckpointNotFoundError):
        asyncio.run(collected(ControlledExecutor().resume_from_checkpoint("x")))


def test_a_rollback_works_without_a_manager_too() -> None:
    flow, ran = chain(3)
    executor = ControlledExecutor()

    async def scenario() -> list[ev.Event]:
        seen: list[ev.Event] = []
        async for event in executor.execute_stream(flow):
            seen.append(event)
            if isinstance(event, ev.LayerStart) and event.layer == 2 and ran.count("t1") == 1:
                executor.commands.send(Rollback(checkpoint_id=checkpoints(seen)[0]))
        return seen

    events = asyncio.run(scenario())
    assert_well_formed(events)
    assert "rolled_back" in types(events)
    assert ran[:2] == ["t0", "t1"]
    assert ran.count("t0") == 1
    assert ran.count("t1") == 2
    assert executor.state is not None
    assert [entry.status for entry in executor.state.tasks] == ["complete"] * 3


# --- with a manager -----------------------------------------------------------------------------------------------


def test_the_same_workflow_gives_the_same_state_with_and_without_a_manager(place: Place) -> None:
    flow, _ = chain()
    without, with_ = ControlledExecutor(), managed(place)
    first = asyncio.run(collected(without.execute_stream(flow)))
    second = asyncio.run(collected(with_.execute_stream(flow, workflow_id="w")))

    assert without.state is not None
    assert with_.state is not None
    assert comparable(without.state) == comparable(with_.state)
    assert types(first) == types(second)
    assert second == journal(place, "w"), "what was seen is what is stored"


def test_the_state_can_be_looked_at_while_it_runs(place: Place) -> None:
    flow, _ = chain(3)
    executor = managed(place)

    async def scenario() -> list[int]:
        seen = []
        async for event in executor.execute_stream(flow):
            if isinstance(event, ev.Checkpointed):
                assert executor.state is not None
                seen.append(sum(entry.layer <= event.layer for entry in executor.state.tasks))
        return seen

    assert asyncio.run(scenario()) == [1, 2, 3]


@pytest.mark.parametrize("durable", [True, False])
def test_leaving_the_stream_early_stops_the_run_in_order(place: Place, durable: bool) -> None:
    flow = Workflow("f")
    ended: list[str] = []
    inside = asyncio.Event()

    @flow.task
    async def first() -> str:
        return "kept"

    @flow.task(needs=first)
    async def second(ctx: Context) -> str:
        inside.set()
        try:
            if not ended:
                await asyncio.Event().wait()
        finally:
            ended.append(f"attempt {ctx.attempt}")
        return "second"

    @flow.task(needs=second)
    async def third() -> None: ...

    executor = managed(place) if durable else ControlledExecutor()

    async def scenario() -> None:
        async with aclosing(executor.execute_stream(flow, workflow_id="w")) as stream:
            async for event in stream:
                if isinstance(event, ev.TaskStart) and event.task_id == "second":
                    await inside.wait()
                    break
        assert ended == ["attempt 1"], "closed means stopped, not soon to be"

    asyncio.run(scenario())
    assert executor.result is not None
    assert executor.result.status == "paused"
    assert executor.result.outputs == {"first": "kept"}
    if durable:
        events = journal(place, "w")
        assert_well_formed(events)
        assert types(events)[-1] == "workflow_paused"
        asyncio.run(collected(executor.resume_from_checkpoint(checkpoints(events)[-1], flow)))
        assert executor.result.status == "complete"
        assert ended == ["attempt 1", "attempt 2"]


def test_an_executor_drives_one_run_at_a_time_and_then_the_next(place: Place) -> None:
    flow, _ = chain(1)
    executor = managed(place)

    async def scenario() -> None:
        async with aclosing(executor.execute_stream(flow)) as stream:
            await anext(stream)
            with pytest.raises(RunRefusedError, match="drives a run already"):
                await anext(executor.execute_stream(flow))
        assert await collected(executor.execute_stream(flow))

    asyncio.run(scenario())


def test_what_the_drive_raises_comes_out_of_the_stream_and_the_stream_ends(place: Place) -> None:
    flow, _ = chain(2)
    executor = managed(place)

    async def scenario() -> list[ev.Event]:
        seen: list[ev.Event] = []

        async def read() -> None:
            async for event in executor.execute_stream(flow, workflow_id="w"):
                seen.append(event)
                if isinstance(event, ev.TaskStart) and event.task_id == "t1":
                    assert executor._drive is not None
                    executor._drive.lose(ZeroDivisionError())

        with pytest.raises(ZeroDivisionError):
            await read()
        return seen

    seen = asyncio.run(scenario())
    assert types(seen)[0] == "workflow_start"
    assert executor._drive is None
    store = place.open(readonly=True)
    assert store.find_run("w").holder is None, "the lease is let go all the same"
    store.close()


def test_every_subscriber_ends_when_the_drive_raises(place: Place) -> None:
    flow, _ = chain(2)
    executor = managed(place)

    async def scenario() -> list[ev.Event]:
        others: list[asyncio.Future[list[ev.Event]]] = []

        async def read() -> None:
            async for event in executor.execute_stream(flow, workflow_id="w"):
                assert executor._drive is not None
                if event.seq == 1:
                    assert executor.stream is not None
                    others.append(asyncio.ensure_future(collected(executor.stream.subscribe(0))))
                if isinstance(event, ev.Checkpointed):
                    executor._drive.lose(ZeroDivisionError())

        with pytest.raises(ZeroDivisionError):
            await read()
        return await asyncio.wait_for(others[0], 20)

    seen = asyncio.run(scenario())
    assert seen == journal(place, "w")[: len(seen)]
    assert len(seen) >= 5


@pytest.mark.parametrize("durable", [True, False])
def test_others_may_read_its_stream_while_it_runs_from_the_first_event_or_from_now_on(
    place: Place, durable: bool
) -> None:
    flow, _ = chain(3)
    executor = managed(place) if durable else ControlledExecutor()

    async def scenario() -> tuple[list[ev.Event], ...]:
        seen: list[ev.Event] = []
        others: list[asyncio.Future[list[ev.Event]]] = []
        async for event in executor.execute_stream(flow, workflow_id="w"):
            seen.append(event)
            if isinstance(event, ev.TaskComplete) and not others:
                assert executor.stream is not None
                others = [asyncio.ensure_future(collected(executor.stream.subscribe(after))) for after in (0, None)]
        return seen, *[await other for other in others]

    seen, whole, later = asyncio.run(asyncio.wait_for(scenario(), 20))
    assert whole == seen
    assert 0 < len(later) < len(seen)
    assert later == seen[-len(later) :]


def test_a_stream_can_be_read_long_after_the_drive(place: Place) -> None:
    flow, _ = chain(2)

    async def scenario() -> tuple[list[ev.Event], list[ev.Event]]:
        executor = managed(place)
        assert executor.stream is None
        async with aclosing(executor.execute_stream(flow, workflow_id="w")) as events:
            await anext(events)
            stream = executor.stream
            await collected(events)
        assert stream is not None
        assert executor.stream is stream
        assert stream.closed
        return await collected(stream.subscribe(0)), await collected(stream.subscribe(5))

    whole, tail = asyncio.run(scenario())
    assert whole == journal(place, "w")
    assert tail == whole[5:]


def test_a_subscriber_that_lags_behind_a_whole_run_reads_it_back_afterwards(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Workflow("f")
    for number in range(60):
        flow.add(f"t{number}", lambda: None)

    async def scenario() -> list[ev.Event]:
        executor = managed(place)
        lagging: Any = None
        async for _ in executor.execute_stream(flow, workflow_id="w"):
            if lagging is None:
                assert executor.stream is not None
                executor.stream._buffered = 10
                lagging = executor.stream.subscribe(0)
        return await collected(lagging)  # its buffer overflowed, and the writer is gone

    assert asyncio.run(scenario()) == journal(place, "w")


# --- commands to the run under way --------------------------------------------------------------------------------


def test_a_command_to_the_run_under_way_is_durable_before_send_returns(place: Place) -> None:
    flow = Workflow("f")
    sent, release = asyncio.Event(), asyncio.Event()

    @flow.task
    async def first() -> None:
        sent.set()
        await release.wait()

    flow.add("second", lambda number: number, inputs={"number": 1}, needs=["first"])
    executor = managed(place)
    inbox: list[dict[str, Any]] = []

    async def scenario() -> None:
        async def meddle() -> None:
            await sent.wait()
            executor.commands.send({"type": "modify_args", "task_id": "second", "updates": {"number": 7}}, author="me")
            store = place.open(readonly=True)
            rows = store._connection.execute("SELECT author, body FROM inbox").fetchall()  # type: ignore[attr-defined]
            inbox.extend({"author": author, "body": body} for author, body in rows)
            store.close()
            release.set()

        meddling = asyncio.ensure_future(meddle())
        await collected(executor.execute_stream(flow, workflow_id="w"))
        await meddling

    asyncio.run(scenario())
    assert [row["author"] for row in inbox] == ["me"]
    assert executor.result is not None
    assert executor.result.outputs["second"] == 7
    events = journal(place, "w")
    assert types(events).count("command_applied") == 1, "delivered twice, applied once"
    assert executor.commands.waiting() == []


def test_a_command_to_a_run_that_has_just_ended_is_refused(place: Place) -> None:
    flow, _ = chain(1)
    executor = managed(place)

    async def scenario() -> None:
        async for event in executor.execute_stream(flow, workflow_id="w"):
            if isinstance(event, ev.WorkflowComplete):
                with pytest.raises(CommandRefusedError, match="run w is complete"):
                    executor.commands.send({"type": "pause"})

    asyncio.run(scenario())


def test_a_command_sent_before_the_run_begins_is_taken_at_its_start() -> None:
    flow, ran = chain(3)
    executor = ControlledExecutor()
    executor.commands.send({"type": "skip_layer", "layer": 1})
    assert [posted.command["type"] for posted in executor.commands.waiting()] == ["skip_layer"]

    events = asyncio.run(collected(executor.execute_stream(flow)))

    assert ran == ["t0"]
    assert next(event.because for event in of_type(events, ev.TaskSkipped)) == "skip_layer 1"
    assert executor.commands.waiting() == []


# --- resume_from_checkpoint ---------------------------------------------------------------------------------------


def test_resuming_the_head_of_a_complete_run_does_nothing(place: Place) -> None:
    flow, ran = chain(2)
    executor = managed(place)
    events = asyncio.run(collected(executor.execute_stream(flow, workflow_id="w")))
    before = len(journal(place, "w"))

    assert asyncio.run(collected(executor.resume_from_checkpoint(checkpoints(events)[-1], flow))) == []

    assert ran == ["t0", "t1"]
    assert len(journal(place, "w")) == before
    assert executor.result is not None
    assert executor.result.status == "complete"


def test_resuming_an_older_checkpoint_runs_what_came_after_in_a_new_epoch(place: Place) -> None:
    flow, ran = chain(4)
    executor = managed(place)
    events = asyncio.run(collected(executor.execute_stream(flow, workflow_id="w")))
    del ran[:]

    seen = asyncio.run(collected(executor.resume_from_checkpoint(checkpoints(events)[1], flow)))

    assert ran == ["t2", "t3"]
    assert types(seen)[:3] == ["workflow_start", "lease_taken", "rolled_back"]
    assert [event.layer for event in of_type(seen, ev.LayerStart)] == [2, 3]
    assert_well_formed(journal(place, "w"))


def test_commands_that_wait_in_the_inbox_count_after_going_back(place: Place) -> None:
    flow, ran = chain(3)
    executor = managed(place)
    events = asyncio.run(collected(executor.execute_stream(flow, workflow_id="w")))
    del ran[:]
    store = place.open()
    from agentos.store.port import PostedCommand
    from agentos.workflow.drive.mailbox import utc_now

    posted = PostedCommand(id="c1", author="me", posted_at=utc_now(), command={"type": "skip_layer", "layer": 2})
    store.post_command("w", posted)  # type: ignore[arg-type]
    store.close()

    seen = asyncio.run(collected(executor.resume_from_checkpoint(checkpoints(events)[0], flow)))

    assert ran == ["t1"]
    assert [event.command_id for event in of_type(seen, ev.CommandApplied)] == ["c1"]


def test_an_id_that_is_no_checkpoint_is_told(place: Place) -> None:
    flow, _ = chain(1)
    executor = managed(place)
    asyncio.run(collected(executor.execute_stream(flow, workflow_id="w")))
    for wrong in ("00000000-0000-7000-8000-000000000000", "w", ""):
        with pytest.raises(CheckpointNotFoundError):
            asyncio.run(collected(executor.resume_from_checkpoint(wrong, flow)))


def test_the_loop_is_free_while_a_run_is_prepared_and_driven(place: Place) -> None:
    """Whatever the disk does, timers go on: nothing of ours holds the loop for long."""
    flow, _ = chain(30)
    turns = [0]

    async def scenario() -> None:
        done = asyncio.Event()

        async def turn() -> None:
            while not done.is_set():
                turns[0] += 1
                await asyncio.sleep(0)

        turning = asyncio.ensure_future(turn())
        await collected(managed(place).execute_stream(flow))
        done.set()
        await turning

    asyncio.run(scenario())
    assert turns[0] > 100


def test_gates_can_be_answered_through_the_executors_own_queue(place: Place) -> None:
    flow = Workflow("f")
    flow.add("ship", lambda: "shipped", approve="Ship?")
    executor = managed(place, gates="wait")

    async def scenario() -> None:
        async for event in executor.execute_stream(flow):
            if isinstance(event, ev.DecisionRequired):
                executor.commands.send({"type": "approval_response", "gate_id": event.gate_id, "approved": True})

    asyncio.run(asyncio.wait_for(scenario(), 20))
    assert executor.result is not None
    assert executor.result.outputs == {"ship": "shipped"}
