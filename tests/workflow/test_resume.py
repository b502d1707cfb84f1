"""Going on with a run: complete, failed, aborted, waiting, rejected, edited, again and again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentos import Client, Context, Workflow, aresume, arun, fork, resume, run
from agentos.exceptions import AgentosError, RunNotFoundError, RunRefusedError, WorkflowDefinitionError
from agentos.machine import events as ev
from agentos.machine.commands import Abort, ApprovalResponse
from agentos.tasks.process import sandbox
from agentos.workflow.checkpoint import CheckpointManager
from agentos.workflow.drive.command_delivery import send
from agentos.workflow.place.place import Place
from agentos.workflow.start.resume import preview_resume
from tests.workflow.support import (
    Killer,
    assert_well_formed,
    checkpoints,
    comparable,
    drive,
    drives,
    go_on,
    journal,
    kill,
    of_type,
    status,
    types,
)


def chain(length: int, ran: list[str], killer: Killer | None = None, at: str = "", **settings: Any) -> Workflow:
    flow = Workflow("chain")

    async def work(ctx: Context) -> str:
        ran.append(ctx.task_id)
        if killer is not None and ctx.task_id == at:
            await killer.strike()
        return f"{ctx.task_id}!"

    for number in range(length):
        flow.add(f"t{number}", work, needs=[f"t{number - 1}"] if number else [], **settings)
    return flow


# --- by how the run stands ----------------------------------------------------------------------------------------


def test_of_a_complete_run_it_does_nothing(place: Place) -> None:
    ran: list[str] = []
    flow = chain(2, ran)
    drive(place, flow, id="w")
    before = len(journal(place, "w"))
    for _ in range(3):
        result = go_on(place, "w", flow)
        assert (result.status, result.outputs) == ("complete", {"t0": "t0!", "t1": "t1!"})
    assert ran == ["t0", "t1"]
    assert len(journal(place, "w")) == before


def test_of_a_complete_run_no_connection_is_left_open(place: Place) -> None:
    import os

    flow = chain(1, [])
    drive(place, flow, id="w")

    def open_files() -> int:
        return sum(place.database in os.readlink(f"/proc/self/fd/{fd}") for fd in _fds())

    def _fds() -> list[str]:
        return [fd for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]

    before = open_files()
    for _ in range(5):
        go_on(place, "w", flow)
        drive(place, flow, id="w")
    assert open_files() == before


def test_of_a_failed_run_it_runs_what_failed_and_what_depends_on_it(place: Place) -> None:
    ran: list[str] = []
    broken = [True]
    flow = Workflow("f")

    async def work(ctx: Context) -> str:
        ran.append(ctx.task_id)
        if ctx.task_id == "bad" and broken[0]:
            raise ValueError("not yet")
        return ctx.task_id

    flow.add("good", work)
    flow.add("bad", work)
    flow.add("after good", work, needs=["good"])
    flow.add("after bad", work, needs=["bad"])
    assert drive(place, flow, id="w").status == "failed"
    assert go_on(place, "w", flow).status == "failed", "it fails again"
    broken[0] = False
    del ran[:]
    result = go_on(place, "w", flow)
    assert result.status == "complete"
    assert ran == ["bad", "after bad"]
    assert len(drives(journal(place, "w"))) == 3
    assert_well_formed(journal(place, "w"))


def test_of_an_aborted_run_it_refuses_and_names_fork(place: Place) -> None:
    ran: list[str] = []
    killer = Killer()
    flow = chain(2, ran, killer, "t1")
    kill(place, flow, killer, "w")
    store = place.open()
    send(store, "w", Abort())
    store.close()
    before = len(journal(place, "w"))
    with pytest.raises(RunRefusedError, match="aborted, which is final\nGo on in a new run: agentos fork w"):
        go_on(place, "w", flow)
    with pytest.raises(RunRefusedError, match="aborted"):
        drive(place, flow, id="w")
    assert len(journal(place, "w")) == before


def test_of_a_waiting_run_it_waits_again_and_of_an_answered_one_it_goes_on(place: Place) -> None:
    flow = Workflow("f")
    flow.add("ship", lambda: "shipped", approve="Ship?")
    assert drive(place, flow, id="w").status == "waiting"
    for _ in range(2):
        assert go_on(place, "w", flow).status == "waiting"
    assert types(journal(place, "w")).count("decision_required") == 1
    store = place.open()
    send(store, "w", ApprovalResponse(gate_id="approve:ship", approved=True))
    store.close()
    assert go_on(place, "w", flow).outputs == {"ship": "shipped"}


def test_of_an_interrupted_run_it_keeps_finished_tasks_of_the_broken_layer(place: Place) -> None:
    ran: list[str] = []
    killer = Killer()
    flow = Workflow("f")
    done = asyncio.Event()

    async def quick() -> str:
        ran.append("quick")
        done.set()
        return "quick"

    async def dies() -> str:
        ran.append("dies")
        await done.wait()
        assert killer.drive is not None
        drive_ = killer.drive
        while drive_.facts.task("quick").status != "complete":  # type: ignore[arg-type]
            await asyncio.sleep(0)
        await killer.strike()
        return "lived"

    flow.add("quick", quick)
    flow.add("dies", dies)
    kill(place, flow, killer, "w")
    assert status(place, "w") == "interrupted"
    assert go_on(place, "w", flow).status == "complete"
    assert sorted(ran) == ["dies", "dies", "quick"]


def test_repeated_crashes_and_resumes_end_in_the_state_of_a_run_without_them(place: Place) -> None:
    whole = drive(place, chain(5, []), id="whole").state
    ran: list[str] = []
    for number in range(5):
        killer = Killer()
        flow = chain(5, ran, killer, f"t{number}")
        if number == 0:
            kill(place, flow, killer, "w")
        else:
            with pytest.raises(Exception, match="another process has taken"):
                go_on(place, "w", flow, started=killer)
    state = go_on(place, "w", chain(5, ran)).state
    assert comparable(state) == comparable(whole)
    assert ran == ["t0", "t0", "t1", "t1", "t2", "t2", "t3", "t3", "t4", "t4"]
    starts = of_type(journal(place, "w"), ev.WorkflowStart)
    assert [start.drive for start in starts] == [1, 2, 3, 4, 5, 6]
    assert [start.resumed_from for start in starts] == [None, None, 0, 1, 2, 3]


# --- by what was asked --------------------------------------------------------------------------------------------


def test_rerun_runs_a_finished_task_again_and_its_dependants_if_the_result_differs(place: Place) -> None:
    ran: list[str] = []
    number = [1]
    flow = Workflow("f")

    async def gives(ctx: Context) -> int:
        ran.append(ctx.task_id)
        return number[0]

    async def uses(gives: int, ctx: Context) -> int:
        ran.append(ctx.task_id)
        return gives * 10

    flow.add("gives", gives)
    flow.add("uses", uses)
    drive(place, flow, id="w")
    del ran[:]
    assert go_on(place, "w", flow, rerun=["gives"]).outputs["uses"] == 10
    assert ran == ["gives"], "the same result: nobody else needs to run"
    del ran[:]
    number[0] = 2
    assert go_on(place, "w", flow, rerun=["gives"]).outputs["uses"] == 20
    assert ran == ["gives", "uses"]


def test_rerun_of_what_does_not_exist_is_refused_and_the_lease_let_go(place: Place) -> None:
    flow = chain(1, [])
    drive(place, flow, id="w")
    with pytest.raises(RunRefusedError, match="nobody"):
        go_on(place, "w", flow, rerun=["nobody"])
    store = place.open(readonly=True)
    assert store.find_run("w").holder is None
    store.close()


def test_produces_that_are_gone_make_a_finished_task_run_again(place: Place) -> None:
    ran: list[str] = []
    killer = Killer()
    flow = Workflow("f")

    async def makes() -> None:
        ran.append("makes")
        (place.root / "made").write_text("x")

    async def dies() -> None:
        await killer.strike()

    flow.add("makes", makes, produces="made")
    flow.add("dies", dies, needs=["makes"])
    kill(place, flow, killer, "w")
    (place.root / "made").unlink()
    assert go_on(place, "w", flow).status == "complete"
    assert ran == ["makes", "makes"]


def test_an_edited_task_is_kept_with_a_warning_unless_asked_for(place: Place) -> None:
    killer = Killer()

    async def dies() -> None:
        await killer.strike()

    def version(number: int) -> Workflow:
        flow = Workflow("f")
        flow.add("edited", lambda n: n, inputs={"n": number})
        flow.add("dies", dies, needs=["edited"])
        return flow

    kill(place, version(1), killer, "w")
    previewed = preview_resume(place, "w", workflow=version(2))
    record, plan = previewed.record, previewed.plan
    assert record.workflow_id == "w"
    assert {row.task_id: row.verdict for row in plan.verdicts} == {"edited": "reuse, changed", "dies": "rerun"}
    assert go_on(place, "w", version(2)).outputs["edited"] == 1
    assert go_on(place, "w", version(2), rerun=["changed"]).outputs["edited"] == 1, "accepted by the last resume"
    assert go_on(place, "w", version(3), rerun=["changed"]).outputs["edited"] == 3


def test_a_preview_writes_nothing_and_says_what_the_resume_does(place: Place) -> None:
    killer = Killer()
    flow = chain(3, [], killer, "t1")
    kill(place, flow, killer, "w")
    before = len(journal(place, "w"))
    plan = preview_resume(place, "w", workflow=flow).plan
    assert len(journal(place, "w")) == before
    assert [(row.task_id, row.verdict) for row in plan.verdicts] == [("t0", "reuse"), ("t1", "rerun"), ("t2", "run")]
    go_on(place, "w", flow)
    [planned] = of_type(journal(place, "w"), ev.ResumePlanned)
    assert planned.counts == plan.counts
    assert planned.verdicts == plan.noteworthy


def test_a_preview_of_going_back_says_what_going_back_asks(place: Place) -> None:
    ran: list[str] = []
    flow = chain(3, ran, effects="external")
    drive(place, flow, id="w")
    older = checkpoints(journal(place, "w"))[0]
    plan = preview_resume(place, older, workflow=flow).plan
    result = go_on(place, older, flow)
    assert result.status == "waiting"
    planned = of_type(journal(place, "w"), ev.ResumePlanned)[-1]
    assert planned.counts == plan.counts
    assert {row.task_id: row.verdict for row in plan.verdicts} == {"t0": "reuse", "t1": "ask", "t2": "ask"}
    assert ran == ["t0", "t1", "t2"], "no external effect is repeated unasked"


def test_a_preview_refuses_what_the_resume_would_refuse(place: Place) -> None:
    killer = Killer()
    flow = chain(2, [], killer, "t1")
    kill(place, flow, killer, "w")
    store = place.open()
    send(store, "w", Abort())
    store.close()
    with pytest.raises(RunRefusedError, match="aborted"):
        preview_resume(place, "w", workflow=flow)


# --- ids ----------------------------------------------------------------------------------------------------------


def test_run_with_an_existing_id_resumes_the_same_definition(place: Place) -> None:
    ran: list[str] = []
    killer = Killer()
    kill(place, chain(3, ran, killer, "t1"), killer, "w")
    del ran[:]
    result = drive(place, chain(3, ran), id="w")
    assert (result.status, ran) == ("complete", ["t1", "t2"])
    assert drive(place, chain(3, ran), id="w").status == "complete"
    assert ran == ["t1", "t2"]


def test_run_with_an_existing_id_and_another_definition_or_parameters_is_refused(place: Place) -> None:
    flow = Workflow("f")
    flow.add("a", lambda n: n)
    drive(place, flow, {"n": 1}, "w")
    before = len(journal(place, "w"))
    with pytest.raises(RunRefusedError, match="exists already, with other parameters"):
        drive(place, flow, {"n": 2}, "w")
    with pytest.raises(RunRefusedError, match="exists already"):
        drive(place, chain(2, []), id="w")
    assert len(journal(place, "w")) == before
    assert drive(place, flow, {"n": 1}, "w").status == "complete"


def test_run_with_an_existing_id_counts_the_definition_last_accepted(place: Place) -> None:
    killer = Killer()
    kill(place, chain(3, [], killer, "t1"), killer, "w")
    assert go_on(place, "w", chain(4, [])).status == "complete", "an edited workflow, taken up by a resume"
    assert drive(place, chain(4, []), id="w").status == "complete"
    with pytest.raises(RunRefusedError, match="exists already"):
        drive(place, chain(3, []), id="w")


def test_an_id_that_others_begin_with_is_free(place: Place) -> None:
    for id in ("nightly-1", "nightly-2", "nightly"):
        assert drive(place, chain(1, []), id=id).workflow_id == id


def test_a_run_is_found_by_a_unique_prefix(place: Place) -> None:
    flow = chain(1, [])
    drive(place, flow, id="alpha")
    drive(place, flow, id="alpine")
    assert go_on(place, "alpha", flow).workflow_id == "alpha"
    assert go_on(place, "alpi", flow).workflow_id == "alpine"
    with pytest.raises(RunRefusedError, match="several runs begin with 'al'"):
        go_on(place, "al", flow)
    with pytest.raises(RunNotFoundError):
        go_on(place, "beta", flow)


def test_without_an_id_the_newest_unfinished_run_of_this_worktree_is_meant(tmp_git_repo: Path) -> None:
    ran: list[str] = []
    broken = [True]
    flow = Workflow("f")

    async def work(ctx: Context) -> None:
        ran.append(ctx.workflow_id)
        if broken[0]:
            raise ValueError("broken")

    flow.add("work", work)
    for id in ("one", "two"):
        run(flow, workflow_id=id, repo=tmp_git_repo, check=False)
    broken[0] = False
    run(flow, workflow_id="three", repo=tmp_git_repo)
    assert resume(workflow=flow, repo=tmp_git_repo).workflow_id == "two"
    assert resume(workflow=flow, repo=tmp_git_repo).workflow_id == "one"
    with pytest.raises(RunRefusedError, match="no unfinished run here"):
        resume(workflow=flow, repo=tmp_git_repo)


def test_without_an_id_a_run_that_was_only_rejected_is_not_meant(tmp_git_repo: Path) -> None:
    """A resume of it would run nothing: what is left of it, somebody has said no to."""
    flow = Workflow("f")
    flow.add("ask", "approval", question="Go on?")
    run(flow, workflow_id="waits", repo=tmp_git_repo, gates="stop")
    run(flow, workflow_id="refused", repo=tmp_git_repo, gates="reject", check=False)
    assert resume(workflow=flow, repo=tmp_git_repo, gates="stop").workflow_id == "waits"
    Client(tmp_git_repo).reject("waits")
    with pytest.raises(RunRefusedError, match="no unfinished run here"):
        resume(workflow=flow, repo=tmp_git_repo)


def test_a_checkpoint_of_an_abandoned_epoch_is_refused_and_fork_named(place: Place) -> None:
    flow = chain(4, [])
    drive(place, flow, id="w", keep=0)
    cuts = checkpoints(journal(place, "w"))
    go_on(place, cuts[0], flow, keep=0)
    with pytest.raises(RunRefusedError, match="belongs to an epoch that was rolled back\nFork it"):
        go_on(place, cuts[2], flow)
    kept = CheckpointManager(place.database).load_checkpoint(cuts[2])
    assert kept is not None, "and it can still be looked at"
    assert len(kept.state.tasks) == 3


def test_going_back_has_new_idempotency_keys_and_drops_approvals(place: Place) -> None:
    keys: list[str] = []
    flow = Workflow("f")
    flow.add("first", lambda: 1)

    async def ship(ctx: Context) -> None:
        keys.append(ctx.idempotency_key)

    flow.add("ship", ship, needs=["first"], approve="Ship?")
    drive(place, flow, id="w")
    store = place.open()
    send(store, "w", ApprovalResponse(gate_id="approve:ship", approved=True))
    store.close()
    go_on(place, "w", flow)
    result = go_on(place, checkpoints(journal(place, "w"))[0], flow)
    assert (result.status, list(result.gates)) == ("waiting", ["approve:ship~1"])
    store = place.open()
    send(store, "w", ApprovalResponse(gate_id="approve:ship~1", approved=True))
    store.close()
    assert go_on(place, "w", flow).status == "complete"
    assert len(set(keys)) == len(keys) == 2


# --- the blocking calls and their asynchronous forms --------------------------------------------------------------


def test_the_public_calls(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_git_repo)
    flow = Workflow("f")
    flow.add("twice", lambda n: n * 2)
    result = run(flow, params={"n": 4})
    assert (result.status, result.outputs) == ("complete", {"twice": 8})
    assert repr(result) == f"<RunResult {result.workflow_id} complete>"
    assert resume(result.workflow_id, workflow=flow).outputs == {"twice": 8}

    async def inside() -> None:
        again = await arun(flow, {"n": 5})
        assert again.outputs == {"twice": 10}
        assert (await aresume(again.workflow_id, workflow=flow)).status == "complete"
        with pytest.raises(AgentosError, match=r"`await arun\(\.\.\.\)`"):
            run(flow)
        with pytest.raises(AgentosError, match=r"`await aresume\(\.\.\.\)`"):
            resume(again.workflow_id, workflow=flow)

    asyncio.run(inside())
    assert len(Client().list_runs()) == 2


def test_a_blocking_fork_inside_a_loop_is_refused_and_begins_nothing(tmp_git_repo: Path) -> None:
    from agentos import fork

    flow = chain(2, [])
    run(flow, workflow_id="w", repo=tmp_git_repo)
    client = Client(tmp_git_repo)
    cut = client.checkpoints("w")[0].id

    async def inside() -> None:
        with pytest.raises(AgentosError, match="an event loop is running here"):
            fork(cut, workflow=flow, repo=tmp_git_repo)
        result = await asyncio.to_thread(fork, cut, workflow=flow, repo=tmp_git_repo, workflow_id="v")
        assert result.status == "complete"

    asyncio.run(inside())
    assert sorted(record.workflow_id for record in client.list_runs()) == ["v", "w"]


def test_a_negative_number_of_checkpoints_is_refused_before_anything_runs(tmp_git_repo: Path) -> None:
    ran: list[str] = []
    with pytest.raises(AgentosError, match="cannot keep -1 checkpoints"):
        run(chain(1, ran), repo=tmp_git_repo, keep=-1)
    assert ran == []


def test_preview_through_the_client(tmp_git_repo: Path) -> None:
    flow = Workflow("f")
    flow.add("bad", lambda: 1 / 0)
    run(flow, workflow_id="w", repo=tmp_git_repo, check=False)
    plan = Client(tmp_git_repo).preview_resume("w", workflow=flow)
    assert [(row.task_id, row.verdict) for row in plan.verdicts] == [("bad", "rerun")]


def test_delete_and_prune_through_the_client(tmp_git_repo: Path) -> None:
    client = Client(tmp_git_repo)
    run(chain(4, []), workflow_id="w", repo=tmp_git_repo, keep=0)
    assert client.prune("w", keep=2) == 2
    assert len(client.checkpoints("w")) == 2
    client.delete("w")
    assert client.list_runs() == []
    with pytest.raises(RunNotFoundError):
        client.show("w")


def test_a_gate_must_be_named_where_several_are_open(tmp_git_repo: Path) -> None:
    flow = Workflow("f")
    flow.add("a", lambda: 1, approve="A?")
    flow.add("b", lambda: 2, approve="B?")
    run(flow, workflow_id="w", repo=tmp_git_repo)
    client = Client(tmp_git_repo)
    with pytest.raises(AgentosError, match="2 gates are open, so that one must be named:\n  approve:a: A"):
        client.approve("w")
    client.approve("w", "approve:a")
    client.reject("w")
    assert resume("w", workflow=flow, repo=tmp_git_repo, check=False).outputs == {"a": 1}
    with pytest.raises(AgentosError, match="0 gates are open"):
        client.approve("w")


def test_other_parameters_from_python(tmp_git_repo: Path) -> None:
    given: list[int] = []
    flow = Workflow("f", params={"n": {"type": "integer", "default": 1}})
    flow.add("a", lambda n: given.append(n))
    run(flow, workflow_id="w", repo=tmp_git_repo)
    with pytest.raises(RunRefusedError, match="other parameters change nothing"):
        resume("w", workflow=flow, params={"n": 2}, repo=tmp_git_repo)
    with pytest.raises(RunRefusedError, match="takes no other parameters"):
        resume("w", as_stored=True, params={"n": 2}, rerun=["changed"], repo=tmp_git_repo)
    with pytest.raises(WorkflowDefinitionError, match="takes an integer, not '2'"):
        resume("w", workflow=flow, params={"n": "2"}, rerun=["changed"], repo=tmp_git_repo)
    resume("w", workflow=flow, params={"n": 2}, rerun=["changed"], repo=tmp_git_repo)
    fork("w", workflow=flow, params={"n": 3}, rerun=["a"], repo=tmp_git_repo)
    assert given == [1, 2, 3]


def test_without_the_sandbox_that_a_task_asks_for_nothing_is_begun(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("not yet")

    flow = Workflow("walled")
    flow.add("first", fail)
    flow.add("then", "shell", run="true", sandbox="worktree", effects="none", needs=["first"])
    monkeypatch.setattr(sandbox, "sandbox_ability", lambda: sandbox.SandboxAbility(program="/usr/bin/bwrap"))
    assert drive(place, flow, id="w").status == "failed"
    before = len(journal(place, "w"))
    monkeypatch.setattr(sandbox, "sandbox_ability", lambda: sandbox.SandboxAbility(problem="there is none"))
    for look in (lambda: go_on(place, "w", flow), lambda: preview_resume(place, "w", workflow=flow)):
        with pytest.raises(RunRefusedError, match="there is none"):
            look()
    assert len(journal(place, "w")) == before
