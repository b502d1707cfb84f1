"""A fork: a run of its own that needs its parent no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentos import Client, Context, Workflow, fork, resume, run
from agentos.exceptions import CheckpointNotFoundError, CommandRefusedError, RunRefusedError, WorkflowDefinitionError
from agentos.machine import events as ev
from agentos.machine.commands import Abort, ApprovalResponse, Pause
from agentos.workflow.drive.command_delivery import send
from agentos.workflow.place.place import Place
from agentos.workflow.start.new_run import fork_run
from agentos.workflow.start.ready_run import DriveOptions
from tests.conftest import git
from tests.workflow.support import (
    Killer,
    assert_well_formed,
    checkpoints,
    comparable,
    drive,
    fork_off,
    go_on,
    journal,
    kill,
    of_type,
    sql,
    status,
    types,
)


def chain(length: int, ran: list[str], **settings: Any) -> Workflow:
    flow = Workflow("chain")

    async def work(ctx: Context) -> dict[str, str]:
        ran.append(f"{ctx.workflow_id}:{ctx.task_id}")
        ctx.message("user", ctx.task_id)
        ctx.set(ctx.task_id, True)
        return {"of": ctx.task_id, "large": "x" * 1_100_000 if ctx.task_id == "t0" else ""}

    for number in range(length):
        flow.add(f"t{number}", work, needs=[f"t{number - 1}"] if number else [], **settings)
    return flow


def say(place: Place, id: str, gate_id: str, approved: bool = True) -> None:
    store = place.open()
    choice = "run-again" if approved and gate_id.startswith("ask:") else ""
    send(store, id, ApprovalResponse(gate_id=gate_id, approved=approved, choice=choice))
    store.close()


def test_a_fork_goes_on_after_the_checkpoint_in_a_new_run(place: Place) -> None:
    ran: list[str] = []
    flow = chain(4, ran)
    parent = drive(place, flow, id="w")
    before = journal(place, "w")
    del ran[:]

    result = fork_off(place, checkpoints(before)[1], flow, "v")

    assert ran == ["v:t2", "v:t3"]
    assert comparable(result.state) == comparable(parent.state)
    assert journal(place, "w") == before, "the parent is not touched"
    events = journal(place, "v")
    assert types(events)[:2] == ["run_forked", "workflow_start"]
    assert events[1].resumed_from == 1  # type: ignore[attr-defined]
    assert_well_formed(events)
    store = place.open(readonly=True)
    assert store.find_run("v").parent_id == "w"
    store.close()


def test_a_fork_needs_its_parent_no_more(place: Place) -> None:
    ran: list[str] = []
    killer = Killer()
    flow = chain(3, ran)

    async def dies(ctx: Context) -> str:
        if ctx.workflow_id == "v":
            await killer.strike()
        return "end"

    flow.add("end", dies, needs=["t2"])
    drive(place, flow, id="w")
    cut = checkpoints(journal(place, "w"))[1]

    import asyncio

    from agentos.workflow.drive.conductor import conduct

    async def killed() -> None:
        with pytest.raises(Exception, match="another process has taken"):
            await conduct(fork_run(place, cut, workflow=flow, workflow_id="v"), started=killer)

    asyncio.run(killed())
    store = place.open()
    store.delete_runs([store.find_run("w")])
    store.close()
    assert sql(place, "SELECT count(*) FROM run") == [(1,)]

    result = go_on(place, "v", flow)

    assert result.status == "complete"
    assert len(result.outputs["t0"]["large"]) == 1_100_000, "a blob it shared with its parent is still there"
    assert [message["content"] for message in result.state.messages] == ["t0", "t1", "t2"]


def test_external_effects_that_the_parent_had_started_ask(place: Place) -> None:
    ran: list[str] = []
    flow = chain(3, ran, effects="external")
    drive(place, flow, id="w")
    del ran[:]

    result = fork_off(place, checkpoints(journal(place, "w"))[0], flow, "v")

    assert (result.status, list(result.gates), ran) == ("waiting", ["ask:t1"], [])
    say(place, "v", "ask:t1")
    result = go_on(place, "v", flow)
    assert (ran, list(result.gates)) == (["v:t1"], ["ask:t2"])
    say(place, "v", "ask:t2", approved=False)
    assert go_on(place, "v", flow).status == "failed"


def test_an_effect_under_way_at_the_checkpoint_asks_too(place: Place) -> None:
    """`ready`: an external task that began before the cut and had not ended there."""
    import asyncio

    ran: list[str] = []
    flow = Workflow("f", schedule="ready")
    cut = asyncio.Event()

    async def effect(ctx: Context) -> str:
        ran.append(ctx.workflow_id)
        await cut.wait()
        return "done"

    async def last() -> None:
        cut.set()

    flow.add("first", lambda: 1)
    flow.add("effect", effect, effects="external", needs=["first"])
    flow.add("quick", lambda: 2, needs=["first"])
    flow.add("last", last, needs=["quick"])
    drive(place, flow, id="w")
    assert ran == ["w"]
    result = fork_off(place, checkpoints(journal(place, "w"))[0], flow, "v")
    assert (ran, list(result.gates)) == (["w"], ["ask:effect"])


def test_idempotent_effects_do_not_ask(place: Place) -> None:
    ran: list[str] = []
    flow = chain(2, ran, effects="external", idempotent=True)
    drive(place, flow, id="w")
    assert fork_off(place, checkpoints(journal(place, "w"))[0], flow, "v").status == "complete"
    assert ran == ["w:t0", "w:t1", "v:t1"]


def test_approvals_do_not_carry_over_and_neither_do_rejections(place: Place) -> None:
    ran: list[str] = []
    flow = Workflow("f")

    async def work(ctx: Context) -> str:
        ran.append(f"{ctx.workflow_id}:{ctx.task_id}")
        return ctx.task_id

    flow.add("first", work)
    flow.add("yes", work, needs=["first"], approve="Yes?")
    flow.add("no", work, needs=["first"], approve="No?")
    flow.add("after no", work, needs=["no"])
    drive(place, flow, id="w")
    say(place, "w", "approve:yes")
    say(place, "w", "approve:no", approved=False)
    assert go_on(place, "w", flow).status == "failed"
    first, *_, last = checkpoints(journal(place, "w"))

    early = fork_off(place, first, flow, "early")
    assert (early.status, list(early.gates)) == ("waiting", ["approve:no", "approve:yes"])

    late = fork_off(place, last, flow, "late")
    assert (late.status, list(late.gates)) == ("waiting", ["approve:no"]), (
        "what was done is kept, what was refused asks"
    )
    say(place, "late", "approve:no")
    result = go_on(place, "late", flow)
    assert result.status == "complete"
    assert ran == ["w:first", "w:yes", "late:no", "late:after no"], "also what was skipped for the rejection runs"


def test_a_layer_that_was_rejected_is_asked_about_again(place: Place) -> None:
    flow = Workflow("f", decision_points="per_layer")
    flow.add("a", lambda: 1)
    flow.add("b", lambda a: a + 1)
    drive(place, flow, id="w")
    say(place, "w", "layer:1", approved=False)
    assert go_on(place, "w", flow).status == "failed"
    result = fork_off(place, checkpoints(journal(place, "w"))[-1], flow, "v")
    assert (result.status, list(result.gates)) == ("waiting", ["layer:1"])
    say(place, "v", "layer:1")
    assert go_on(place, "v", flow).outputs == {"a": 1, "b": 2}


def test_what_failed_in_the_parent_runs_in_the_fork(place: Place) -> None:
    broken = [True]
    flow = Workflow("f")

    def bad() -> str:
        if broken[0]:
            raise ValueError("broken")
        return "mended"

    flow.add("good", lambda: "good")
    flow.add("bad", bad)
    flow.add("after", lambda bad: bad)
    drive(place, flow, id="w")
    broken[0] = False
    result = fork_off(place, checkpoints(journal(place, "w"))[-1], flow, "v")
    assert result.outputs == {"good": "good", "bad": "mended", "after": "mended"}
    assert status(place, "w") == "failed"


def test_a_fork_of_an_aborted_run_and_of_an_abandoned_checkpoint(place: Place) -> None:
    ran: list[str] = []
    killer = Killer()
    flow = chain(3, ran)

    async def dies() -> None:
        await killer.strike()

    flow.add("dies", dies, needs=["t2"])
    kill(place, flow, killer, "w")
    store = place.open()
    send(store, "w", Abort())
    store.close()
    assert fork_off(place, checkpoints(journal(place, "w"))[0], flow, "v").status == "complete"

    cuts = checkpoints(journal(place, "v"))
    go_on(place, cuts[0], flow)
    assert fork_off(place, cuts[1], flow, "u").status == "complete"


def test_a_fork_of_a_fork_and_of_a_changed_plan(place: Place) -> None:
    flow = Workflow("f")

    def injects(ctx: Context) -> list[int]:
        ctx.inject("grown", run="echo grown", effects="none")
        return [1, 2]

    flow.add("injects", injects)
    flow.add("each", lambda item: item * 2, for_each="${{ tasks.injects.output }}")
    flow.add("sum", lambda each: sum(each))
    drive(place, flow, id="a")
    fork_off(place, checkpoints(journal(place, "a"))[0], flow, "b")
    result = fork_off(place, checkpoints(journal(place, "b"))[-1], flow, "c")
    assert result.status == "complete"
    assert result.outputs["sum"] == 6
    assert result.outputs["grown"]["stdout"] == "grown"


def test_a_fork_has_its_own_idempotency_keys(place: Place) -> None:
    keys: dict[str, str] = {}
    flow = Workflow("f")
    flow.add("first", lambda: 1)

    def key(ctx: Context) -> None:
        keys[ctx.workflow_id] = ctx.idempotency_key

    flow.add("key", key, needs=["first"])
    drive(place, flow, id="w")
    fork_off(place, checkpoints(journal(place, "w"))[0], flow, "v")
    assert len(set(keys.values())) == 2


def test_a_fork_of_an_edited_workflow_says_what_changed(place: Place) -> None:
    ran: list[str] = []
    drive(place, chain(3, ran), id="w")
    result = fork_off(place, checkpoints(journal(place, "w"))[1], chain(5, ran), "v")
    assert (result.status, ran[-3:]) == ("complete", ["v:t2", "v:t3", "v:t4"])
    [plan] = of_type(journal(place, "v"), ev.ResumePlanned)
    assert [row.task_id for row in plan.verdicts if row.verdict == "new"] == ["t3", "t4"]


def test_a_fork_that_was_cut_off_before_it_began_is_told(place: Place) -> None:
    flow = chain(2, [])
    drive(place, flow, id="w")
    ready = fork_run(place, checkpoints(journal(place, "w"))[0], workflow=flow, workflow_id="v", options=DriveOptions())
    ready.release()  # as a process that died here
    with pytest.raises(RunRefusedError, match="fork v was interrupted before it began\nFork the checkpoint again"):
        go_on(place, "v", flow)
    store = place.open()
    with pytest.raises(CommandRefusedError, match="interrupted before it began"):
        send(store, "v", Pause())
    send(store, "v", Abort())
    assert store.find_run("v").status == "aborted"
    store.close()


def test_a_fork_of_nothing_and_onto_an_id_in_use(place: Place) -> None:
    flow = chain(1, [])
    drive(place, flow, id="w")
    with pytest.raises(CheckpointNotFoundError):
        fork_off(place, "00000000-0000-7000-8000-000000000000", flow)
    with pytest.raises(RunRefusedError, match="exists already"):
        fork_off(place, checkpoints(journal(place, "w"))[0], flow, "w")


def test_through_the_public_call(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_git_repo)
    ran: list[str] = []
    flow = chain(2, ran)
    run(flow, workflow_id="w")
    result = fork(Client().checkpoints("w")[0].id, workflow=flow, workflow_id="v")
    assert (result.status, result.workflow_id) == ("complete", "v")
    assert resume("v", workflow=flow).status == "complete"
    assert [record.parent_id for record in Client().list_runs()] == ["w", None]


def test_a_fork_in_a_worktree_of_its_own(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_git_repo)
    flow = Workflow("notes")
    flow.add("draft", "shell", run="echo draft >> notes.txt")
    flow.add("polish", "shell", run="echo polished >> notes.txt", needs=["draft"])
    assert run(flow, workflow_id="parent").status == "complete"
    first, _ = Client(tmp_git_repo).checkpoints("parent")
    aside = tmp_git_repo.parent / "aside"
    result = fork(str(first.id), workflow=flow, workflow_id="child", worktree=aside)
    assert (result.status, result.workflow_id) == ("complete", "child")
    assert (aside / "notes.txt").read_text() == "draft\npolished\n"
    assert (tmp_git_repo / "notes.txt").read_text() == "draft\npolished\n"
    assert [row.workflow_id for row in Client(aside).list_runs()] == ["child"]
    assert [row.workflow_id for row in Client(tmp_git_repo).list_runs()] == ["parent"]
    with pytest.raises(RunRefusedError, match="is there already"):
        fork(str(first.id), workflow=flow, worktree=aside)
    with pytest.raises(CheckpointNotFoundError):
        fork("0" * 36, workflow=flow, worktree=tmp_git_repo.parent / "other")
    bad = Workflow("notes", schedule="ready")
    bad.add("draft", "shell", run="true")
    with pytest.raises(WorkflowDefinitionError):
        fork(str(first.id), workflow=bad, worktree=tmp_git_repo.parent / "other")
    assert not (tmp_git_repo.parent / "other").exists()
    assert len(git("worktree", "list", cwd=tmp_git_repo).splitlines()) == 2
