"""Commands to a run, from this process and from others: durable, dealt with once, always on the record."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentos import Context, Workflow
from agentos.exceptions import CommandRefusedError, RunNotFoundError
from agentos.ids import WorkflowId, new_id
from agentos.machine import events as ev
from agentos.machine.commands import Abort, ApprovalResponse, InjectTasks, ModifyArgs, Pause, Rollback
from agentos.store.holder import current_holder
from agentos.store.port import PostedCommand
from agentos.workflow import CommandQueue
from agentos.workflow.drive.command_delivery import send
from agentos.workflow.drive.drive import Drive
from agentos.workflow.drive.mailbox import utc_now
from agentos.workflow.place.place import Place
from tests.workflow.support import (
    Killer,
    adrive,
    assert_well_formed,
    checkpoints,
    drive,
    go_on,
    journal,
    kill,
    of_type,
    python,
    soon,
    sql,
    status,
    types,
    wrapped,
)

SENDER = """
import json, sys
from pathlib import Path
from agentos.workflow.drive.command_delivery import send
from agentos.workflow.place.place import Place

store = Place(database=sys.argv[1], root=Path(".")).open()
sent = send(store, sys.argv[2], json.loads(sys.argv[3]), author="elsewhere")
print(sent.command_id, sent.applied)
"""


# Below a process that drives a run nobody answers for a human: whoever sends from elsewhere has lost that ancestor.
ORPHANED = """
import os
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    pass
"""


def from_elsewhere(place: Place, id: str, command: dict[str, Any], **env: str) -> tuple[str, bool]:
    done = python("-c", ORPHANED + SENDER, place.database, id, json.dumps(command), cwd=place.root, env=env)
    assert done.stdout, done.stderr
    command_id, applied = done.stdout.split()
    return command_id, applied == "True"


class Stage:
    """A chain whose first task waits for us, so that commands come while it runs."""

    def __init__(self, place: Place, **options: Any) -> None:
        self.place = place
        self.options = options
        self.flow = Workflow("f")
        self.ran: list[str] = []
        self.inside, self.release = asyncio.Event(), asyncio.Event()

        async def first(ctx: Context) -> int:
            self.ran.append("first")
            self.inside.set()
            await self.release.wait()
            return 1

        async def work(ctx: Context, number: int = 0) -> int:
            self.ran.append(ctx.task_id)
            return number

        self.flow.add("first", first)
        self.flow.add("second", work, needs=["first"], inputs={"number": 2})
        self.flow.add("third", work, needs=["second"], inputs={"number": 3})

    def run(self, *commands: Any, from_process: bool = False) -> Any:
        """Send the commands while the first task runs, wait until the drive has them, and go on."""

        async def scenario() -> Any:
            drives: list[Drive] = []
            running = asyncio.ensure_future(
                adrive(self.place, self.flow, id="w", started=drives.append, **self.options)
            )
            await self.inside.wait()
            for command in commands:
                if from_process:
                    await asyncio.to_thread(from_elsewhere, self.place, "w", command)
                else:
                    store = self.place.open()
                    send(store, "w", command, author="me")
                    store.close()
            await soon(lambda: len(drives[0]._commands_seen) == len(commands))
            self.release.set()
            return await asyncio.wait_for(running, 20)

        return asyncio.run(scenario())


# --- the queue ----------------------------------------------------------------------------------------------------


def test_a_command_from_another_process_reaches_the_driver(place: Place) -> None:
    stage = Stage(place)
    command = {"type": "modify_args", "task_id": "third", "updates": {"number": 33}}
    assert stage.run(command, from_process=True).outputs["third"] == 33
    [applied] = of_type(journal(place, "w"), ev.CommandApplied)
    assert (applied.author, applied.command) == ("elsewhere", command)


def test_a_driver_too_old_to_say_its_version_is_sent_no_field_that_it_does_not_know() -> None:
    """It refuses a command with one: an answer or a pause would not reach a run that an older AgentOS drives."""
    posted: list[PostedCommand] = []
    for version in ("", "0.1.0"):
        driver = msgspec.structs.replace(current_holder(), version=version)
        CommandQueue(posted.append, list, partial(lambda found: found, driver)).send({"type": "pause"})
    assert [set(one.command) for one in posted] == [{"type"}, {"type", "sender"}]


def test_what_was_sent_is_durable_and_survives_the_driver(place: Place) -> None:
    flow, killer = Workflow("f"), Killer()

    async def dies(ctx: Context) -> None:
        if ctx.attempt > 1:
            return
        store = place.open()
        CommandQueue.of_run(store, WorkflowId("run")).send(ModifyArgs(task_id="last", updates={"number": 5}))
        store.close()
        await killer.strike()

    flow.add("dies", dies)
    flow.add("last", lambda number: number, inputs={"number": 1}, needs=["dies"])
    kill(place, flow, killer)
    store = place.open(readonly=True)
    queue = CommandQueue.of_run(store, WorkflowId("run"))
    assert [posted.command["type"] for posted in queue.waiting()] == ["modify_args"]
    assert go_on(place, "run", flow).outputs["last"] == 5
    assert queue.waiting() == []
    store.close()


def test_a_command_is_dealt_with_once_however_often_it_is_posted_and_delivered(place: Place) -> None:
    stage = Stage(place)
    posted = PostedCommand(
        id="one", author="me", posted_at=utc_now(), command={"type": "inject_tasks", "tasks": {"new": {"run": "true"}}}
    )

    async def scenario() -> Any:
        drives: list[Drive] = []
        running = asyncio.ensure_future(adrive(place, stage.flow, id="w", started=drives.append))
        await stage.inside.wait()
        store = place.open()
        for _ in range(3):
            store.post_command(WorkflowId("w"), posted)
            drives[0].deliver([posted, posted])
        store.close()
        stage.release.set()
        return await running

    assert asyncio.run(scenario()).status == "complete"
    events = journal(place, "w")
    assert [event.command_id for event in of_type(events, ev.CommandApplied)] == ["one"]
    assert len([event for event in of_type(events, ev.TaskStart) if event.task_id == "new"]) == 1


def test_a_command_posted_between_the_first_look_and_the_watch_is_not_missed(place: Place) -> None:
    """It comes after the drive read the inbox and before the keeper could notice a change; nothing else is written."""
    flow = Workflow("f")
    flow.add("ship", lambda: "shipped", approve="Ship?")
    opened = [0]

    def read_inbox(real: Any, workflow_id: Any) -> Any:
        found = real(workflow_id)
        opened[0] += 1
        if opened[0] == 1:
            other = place.open()
            other.post_command(
                workflow_id,
                PostedCommand(
                    id=new_id(),
                    author="me",
                    posted_at=utc_now(),
                    command={"type": "approval_response", "gate_id": "approve:ship", "approved": True},
                ),
            )
            other.close()
        return found

    def changed(real: Any) -> bool:
        return False  # as seen by a connection that was opened after the last write

    async def scenario() -> Any:
        odd = wrapped(place, read_inbox=read_inbox, changed=changed)
        return await asyncio.wait_for(adrive(odd, flow, id="w", gates="wait"), 20)

    assert asyncio.run(scenario()).outputs == {"ship": "shipped"}


@pytest.mark.parametrize(
    "command",
    [
        {"type": "nonsense"},
        {"type": "inject_tasks", "tasks": [1, None]},
        {"type": "inject_tasks", "tasks": {}},
        {"type": "skip_layer", "layer": -5},
        {"type": "skip_layer", "layer": "one"},
        {"type": "modify_args", "task_id": "a", "updates": None},
        {"type": "modify_args", "task_id": "a", "updates": {}},
        {"type": "approval_response", "gate_id": "g"},
        {"type": "approval_response", "gate_id": "g", "approved": False, "answer": "happened"},
        {"type": "replan_dag"},
        {"type": "abort", "reason": "x", "extra": 1},
        {},
    ],
    ids=str,
)
def test_a_malformed_command_is_refused_where_it_is_sent(place: Place, command: dict[str, Any]) -> None:
    stage = Stage(place)
    stage.release.set()
    drive(place, stage.flow, id="w")
    before = len(journal(place, "w"))
    store = place.open()
    with pytest.raises(CommandRefusedError, match="not a valid command"):
        CommandQueue.of_run(store, WorkflowId("w")).send(command)
    with pytest.raises(CommandRefusedError, match="not a valid command"):
        send(store, "w", command)
    assert store.read_inbox(WorkflowId("w")) == []
    store.close()
    assert len(journal(place, "w")) == before


@pytest.mark.parametrize("body", ['{"type": "nonsense"}', "[1, 2]", '"text"', "{}", '{"type": "abort", "x": 1}'])
def test_a_malformed_command_in_the_inbox_is_refused_on_the_record(place: Place, body: str) -> None:
    """Put there by a newer version, or by hand; the run goes on and its journal stays readable."""
    stage = Stage(place)

    async def scenario() -> Any:
        running = asyncio.ensure_future(adrive(place, stage.flow, id="w"))
        await stage.inside.wait()
        sql(
            place,
            "INSERT INTO inbox (id, run, posted_at, author, attempt_id, body) VALUES ('bad', 1, 0, 'x', '', ?)",
            body,
        )
        await soon(lambda: "command_refused" in types(journal(place, "w")))
        stage.release.set()
        return await running

    assert asyncio.run(scenario()).status == "complete"
    [refused] = of_type(journal(place, "w"), ev.CommandRefused)
    assert (refused.command_id, refused.author) == ("bad", "x")
    assert "not a valid command" in refused.why
    store = place.open(readonly=True)
    assert store.read_inbox(WorkflowId("w")) == []
    store.close()


def test_an_inbox_that_cannot_be_read_is_told_once_and_does_not_stop_the_run(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(place)

    async def scenario() -> Any:
        running = asyncio.ensure_future(adrive(place, stage.flow, id="w"))
        await stage.inside.wait()
        sql(
            place,
            "INSERT INTO inbox (id, run, posted_at, author, attempt_id, body) VALUES ('bad', 1, 0, 'x', '', '{broken')",
        )
        await soon(lambda: "inbox of w cannot be read" in caplog.text)
        stage.release.set()
        return await running

    assert asyncio.run(scenario()).status == "complete"
    assert caplog.text.count("inbox of w cannot be read") == 1


@pytest.mark.parametrize("command", [Abort(), Pause(), ModifyArgs(task_id="first", updates={"a": 1})])
def test_a_run_that_has_ended_for_good_takes_no_commands(place: Place, command: Any) -> None:
    stage = Stage(place)
    stage.release.set()
    drive(place, stage.flow, id="w")
    before = len(journal(place, "w"))
    store = place.open()
    with pytest.raises(CommandRefusedError, match="run w is complete; it takes no more commands"):
        send(store, "w", command)
    with pytest.raises(RunNotFoundError):
        send(store, "nobody", command)
    store.close()
    assert len(journal(place, "w")) == before


@pytest.mark.parametrize("how", ["complete", "aborted"])
def test_a_command_that_came_too_late_is_refused_on_the_record(place: Place, how: str) -> None:
    """Posted while the last task runs, and not seen before the run had ended."""
    flow = Workflow("f")

    async def last() -> None:
        store = place.open()
        queue = CommandQueue.of_run(store, WorkflowId("w"))
        drives[0]._commands_seen.add(queue.send(InjectTasks(tasks={"x": {"run": "true"}})))  # as if not polled yet
        store.close()
        if how == "aborted":
            command = PostedCommand(id="a", author="me", posted_at=utc_now(), command={"type": "abort", "reason": "r"})
            drives[0].deliver([command])
            await asyncio.Event().wait()

    flow.add("last", last)
    drives: list[Drive] = []
    result = drive(place, flow, id="w", started=drives.append)
    assert result.status == how
    assert status(place, "w") == how
    events = journal(place, "w")
    assert_well_formed(events)
    [refused] = of_type(events, ev.CommandRefused)
    assert refused.why == f"it came too late: the run is {how}"
    assert events[-1].type == f"workflow_{how}"
    store = place.open(readonly=True)
    assert store.read_inbox(WorkflowId("w")) == []
    store.close()


# --- a run that nobody drives -------------------------------------------------------------------------------------


def interrupted(place: Place) -> Workflow:
    """A run whose driver died in its second task."""
    flow, killer = Workflow("f"), Killer()
    flow.add("first", lambda: 1)

    async def dies() -> str:
        await killer.strike()
        return "second"

    flow.add("second", dies, needs=["first"])
    flow.add("third", lambda: "third", needs=["second"])
    kill(place, flow, killer, "w")
    assert status(place, "w") == "interrupted"
    return flow


def test_abort_of_a_run_that_nobody_drives_is_true_at_once(place: Place) -> None:
    interrupted(place)
    store = place.open()
    assert send(store, "w", Abort(reason="enough"), author="me").applied
    assert store.find_run("w").status == "aborted"
    assert store.find_run("w").holder is None
    store.close()
    events = journal(place, "w")
    assert types(events)[-1] == "workflow_aborted"
    assert of_type(events, ev.CommandApplied)[0].author == "me"


def test_pause_of_a_run_that_nobody_drives_is_true_at_once_and_starts_nothing(place: Place) -> None:
    flow = interrupted(place)
    started = types(journal(place, "w")).count("task_start")
    store = place.open()
    assert send(store, "w", Pause()).applied
    assert store.find_run("w").status == "paused"
    store.close()
    assert types(journal(place, "w")).count("task_start") == started
    assert go_on(place, "w", flow).status == "complete"


def test_other_commands_wait_in_the_inbox_for_the_next_driver(place: Place) -> None:
    flow = interrupted(place)
    store = place.open()
    sent = send(store, "w", InjectTasks(tasks={"grown": {"run": "echo hi", "effects": "none"}}))
    assert not sent.applied
    store.close()
    assert status(place, "w") == "interrupted"
    assert go_on(place, "w", flow).outputs["grown"]["stdout"] == "hi"


def test_a_command_that_does_not_fit_is_refused_and_that_is_on_the_record(place: Place) -> None:
    interrupted(place)
    store = place.open()
    with pytest.raises(CommandRefusedError, match="does not exist; open gates: none"):
        send(store, "w", ApprovalResponse(gate_id="approve:x", approved=True))
    assert store.find_run("w").holder is None
    store.close()
    events = journal(place, "w")
    assert "command_refused" in types(events)
    assert types(events)[-1] == "workflow_paused"


def test_aborting_a_run_whose_driver_died_ends_the_commands_it_left_behind(place: Place) -> None:
    script = f"""
import os, signal, threading, time
from pathlib import Path
from agentos import Workflow
from tests.workflow.support import a_place, drive

flow = Workflow("f")
flow.add("leaves", "shell", run="echo $$ > pid; exec sleep 600", effects="none")
def dies():
    while True:
        try:
            Path("pid").read_text().strip() and os.kill(os.getpid(), signal.SIGKILL)
        except FileNotFoundError:
            time.sleep(0.01)
threading.Thread(target=dies, daemon=True).start()
drive(a_place(Path({str(place.root)!r})), flow, id="w")
"""
    from tests.workflow.support import CHECKOUT

    done = python("-c", script, cwd=place.root, env={"PYTHONPATH": f"{CHECKOUT / 'src'}:{CHECKOUT}"})
    assert done.returncode == -9, done.stderr
    pid = int((place.root / "pid").read_text())
    store = place.open()
    assert send(store, "w", Abort()).applied
    store.close()
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] in "ZX"


# --- what they do -------------------------------------------------------------------------------------------------


def test_commands_that_wait_for_a_boundary_act_between_layers(place: Place) -> None:
    stage = Stage(place)
    result = stage.run({"type": "skip_layer", "layer": 1, "reason": "not today"})
    assert result.status == "complete"
    assert stage.ran == ["first"]
    events = journal(place, "w")
    received = next(event for event in events if event.type == "command_received")
    applied = next(event for event in events if event.type == "command_applied")
    first_done = next(event for event in of_type(events, ev.TaskComplete) if event.task_id == "first")
    assert received.seq < first_done.seq < applied.seq
    assert_well_formed(events)


def test_injected_tasks_always_run_wherever_the_run_stands(place: Place) -> None:
    stage = Stage(place)
    result = stage.run(
        {"type": "inject_tasks", "tasks": {"a": {"run": "echo a", "effects": "none"}}},
        {"type": "inject_tasks", "tasks": {"b": {"run": "echo b", "effects": "none", "needs": ["third"]}}},
    )
    assert (result.outputs["a"]["stdout"], result.outputs["b"]["stdout"]) == ("a", "b")


def test_a_replanned_task_runs_what_the_command_says_and_not_the_function_of_the_same_name(place: Place) -> None:
    stage = Stage(place)
    (place.root / "elsewhere_wf.py").write_text("def replaced():\n    return 'replaced'\n")
    result = stage.run(
        {"type": "replan_dag", "tasks": {"third": {"python": "elsewhere_wf:replaced", "needs": ["second"]}}}
    )
    assert result.outputs["third"] == "replaced"
    assert stage.ran == ["first", "second"]


def test_replanning_what_has_started_is_refused_and_the_run_goes_on(place: Place) -> None:
    stage = Stage(place)
    result = stage.run(
        {"type": "replan_dag", "remove": ["first"]},
        {"type": "modify_args", "task_id": "nobody", "updates": {"a": 1}},
        {"type": "inject_tasks", "tasks": {"bad": {"run": "true", "needs": ["missing"]}}},
        {"type": "rollback", "checkpoint_id": "nonsense"},
    )
    assert result.status == "complete"
    assert stage.ran == ["first", "second", "third"]
    whys = [event.why for event in of_type(journal(place, "w"), ev.CommandRefused)]
    assert len(whys) == 4
    assert "has started" in whys[0]
    assert "no task 'nobody'" in whys[1]
    assert "not one that this run can go back to" in whys[3]


def test_rollback_while_it_is_driven(place: Place) -> None:
    flow, ran = Workflow("f"), list[str]()
    inside, release = asyncio.Event(), asyncio.Event()

    async def work(ctx: Context) -> int:
        ran.append(ctx.task_id)
        if ctx.task_id == "t2" and ran.count("t2") == 1:
            inside.set()
            await release.wait()
        ctx.message("user", len(ran))
        return len(ran)

    for number in range(4):
        flow.add(f"t{number}", work, needs=[f"t{number - 1}"] if number else [])

    async def scenario() -> Any:
        running = asyncio.ensure_future(adrive(place, flow, id="w", keep=0))
        await inside.wait()
        store = place.open()
        send(store, "w", Rollback(checkpoint_id=checkpoints(journal(place, "w"))[0], reason="once more"))
        store.close()
        await soon(lambda: "command_received" in types(journal(place, "w")))
        release.set()
        return await asyncio.wait_for(running, 20)

    result = asyncio.run(scenario())
    assert ran == ["t0", "t1", "t2", "t1", "t2", "t3"]
    assert result.status == "complete"
    assert list(result.outputs.values()) == [1, 4, 5, 6]
    assert [message["content"] for message in result.state.messages] == [1, 4, 5, 6]
    events = journal(place, "w")
    assert_well_formed(events)
    [back] = of_type(events, ev.RolledBack)
    assert (back.layer, back.epoch) == (0, 1)
    store = place.open(readonly=True)
    rows = store.list_checkpoints(WorkflowId("w"))
    store.close()
    assert [row.layer for row in rows if not row.abandoned] == [0, 1, 2, 3]


def test_a_rollback_and_what_came_with_it_are_both_dealt_with(place: Place) -> None:
    """Two commands in one turn: the second is for the facts that follow, and not lost."""
    flow, ran = Workflow("f"), list[str]()
    sent = asyncio.Event()

    async def work(ctx: Context) -> None:
        ran.append(ctx.task_id)
        if ctx.task_id == "t1":
            await sent.wait()

    for number in range(3):
        flow.add(f"t{number}", work, needs=[f"t{number - 1}"] if number else [])

    async def scenario() -> Any:
        drives: list[Drive] = []
        running = asyncio.ensure_future(adrive(place, flow, id="w", started=drives.append, gates="wait"))
        await soon(lambda: "t1" in ran)
        back = checkpoints(journal(place, "w"))[0]
        drives[0].deliver(
            [
                PostedCommand(
                    id="1", author="me", posted_at=utc_now(), command={"type": "rollback", "checkpoint_id": back}
                ),
                PostedCommand(id="2", author="me", posted_at=utc_now(), command={"type": "pause"}),
            ]
        )
        sent.set()
        return await asyncio.wait_for(running, 20)

    asyncio.run(scenario())
    settled = {
        event.command_id
        for event in journal(place, "w")
        if isinstance(event, (ev.CommandApplied, ev.CommandRefused, ev.CommandReceived))
    }
    assert settled == {"1", "2"}


def test_what_follows_a_rollback_in_the_same_turn_is_for_the_facts_after_it(place: Place) -> None:
    """Nothing runs, so that the rollback acts at once; the pause behind it counts as well."""
    flow, ran = Workflow("f"), list[str]()

    async def work(ctx: Context) -> None:
        ran.append(ctx.task_id)

    flow.add("t0", work)
    flow.add("t1", work, needs=["t0"])
    flow.add("gate", work, needs=["t1"], approve="Go?")

    async def scenario() -> Any:
        drives: list[Drive] = []
        running = asyncio.ensure_future(adrive(place, flow, id="w", started=drives.append, gates="wait"))
        await soon(lambda: drives and drives[0].facts.open_gates)
        back = checkpoints(journal(place, "w"))[0]
        commands: list[dict[str, Any]] = [{"type": "rollback", "checkpoint_id": back}, {"type": "pause"}]
        drives[0].deliver(
            [
                PostedCommand(id=f"c{number}", author="me", posted_at=utc_now(), command=command)
                for number, command in enumerate(commands)
            ]
        )
        return await asyncio.wait_for(running, 20)

    result = asyncio.run(scenario())
    assert result.status == "paused"
    events = journal(place, "w")
    assert_well_formed(events)
    assert [event.command_id for event in of_type(events, ev.CommandApplied)] == ["c0", "c1"]
    assert "rolled_back" in types(events)


def test_a_command_that_waits_behind_a_rollback_ends_on_the_record_too(place: Place) -> None:
    flow = Workflow("f")
    inside, release = asyncio.Event(), asyncio.Event()

    async def work(ctx: Context, number: int = 0) -> int:
        if ctx.task_id == "t1":
            inside.set()
            await release.wait()
        return number

    for number in range(3):
        flow.add(f"t{number}", work, needs=[f"t{number - 1}"] if number else [], inputs={"number": 1})

    async def scenario() -> Any:
        running = asyncio.ensure_future(adrive(place, flow, id="w"))
        await inside.wait()
        store = place.open()
        send(store, "w", Rollback(checkpoint_id=checkpoints(journal(place, "w"))[0]))
        send(store, "w", ModifyArgs(task_id="t2", updates={"number": 9}))
        store.close()
        await soon(lambda: types(journal(place, "w")).count("command_received") == 2)
        release.set()
        return await asyncio.wait_for(running, 20)

    asyncio.run(scenario())
    events = journal(place, "w")
    settled = [event for event in events if isinstance(event, (ev.CommandApplied, ev.CommandRefused))]
    assert [event.command["type"] for event in settled] == ["rollback", "modify_args"]


def test_a_run_that_begins_to_be_driven_meanwhile_gets_it_through_the_inbox(place: Place) -> None:
    from agentos.exceptions import LeaseHeldError

    interrupted(place)

    def take_lease(real: Any, workflow_id: Any, *args: Any, **more: Any) -> Any:
        raise LeaseHeldError(workflow_id, "somebody who was quicker")

    store = wrapped(place, take_lease=take_lease).open()
    assert not send(store, "w", Pause()).applied
    assert [posted.command["type"] for posted in store.read_inbox(WorkflowId("w"))] == ["pause"]
    store.close()


def test_a_second_abort_and_a_late_answer_change_nothing(place: Place) -> None:
    stage = Stage(place)
    result = stage.run({"type": "abort", "reason": "one"}, {"type": "abort", "reason": "two"})
    assert result.status == "aborted"
    events = journal(place, "w")
    assert_well_formed(events)
    assert types(events)[-1] == "workflow_aborted"
