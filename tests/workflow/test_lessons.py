"""What the original got wrong: the 25 points of the research, one test each, or where that test stands."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from agentos import Context, Workflow
from agentos.exceptions import (
    AgentosError,
    LeaseHeldError,
    RunRefusedError,
    StateInvariantError,
    WorkflowDefinitionError,
)
from agentos.machine import events as ev
from agentos.machine.commands import ApprovalResponse
from agentos.machine.state import TaskEntry, WorkflowState, update_state
from agentos.workflow import ControlledExecutor
from agentos.workflow.checkpoint import Checkpoint, CheckpointManager
from agentos.workflow.drive.command_delivery import send
from agentos.workflow.place.place import Place
from tests.workflow.support import (
    Killer,
    adrive,
    ago_on,
    assert_well_formed,
    checkpoints,
    collected,
    drive,
    fork_off,
    go_on,
    journal,
    kill,
    python,
    sql,
    status,
    types,
)

HERE = Path(__file__).parent


def shown_by(**tests: str) -> None:
    """Each named test exists: `shown_by(test_gates="test_a, test_b")`."""
    for module, names in tests.items():
        text = (HERE / f"{module}.py").read_text()
        for name in names.split(", "):
            assert re.search(rf"^def {name}\(", text, flags=re.MULTILINE), f"{module} has no {name}"


def chain(length: int, ran: list[str], killer: Killer | None = None, at: str = "") -> Workflow:
    flow = Workflow("chain")

    async def work(ctx: Context) -> str:
        ran.append(ctx.task_id)
        if killer is not None and ctx.task_id == at:
            await killer.strike()
        return ctx.task_id

    for number in range(length):
        flow.add(f"t{number}", work, needs=[f"t{number - 1}"] if number else [])
    return flow


def say(place: Place, id: str, gate_id: str, approved: bool) -> None:
    store = place.open()
    send(store, id, ApprovalResponse(gate_id=gate_id, approved=approved))
    store.close()


# --- correctness of resume ----------------------------------------------------------------------------------------


def test_01_skipped_by_task_and_fingerprint_not_by_layer_and_a_difference_can_be_refused(place: Place) -> None:
    killer, ran = Killer(), list[str]()
    kill(place, chain(3, ran, killer, "t2"), killer, "w")
    del ran[:]
    shifted = Workflow("chain")
    source = chain(3, ran)
    shifted.add("new first", lambda: "new")
    for draft in source.drafts:
        if draft.function is not None:
            needs = [str(need) for need in draft.needs] or ["new first"]
            shifted.add(draft.id, draft.function, needs=needs)
    with pytest.raises(RunRefusedError, match="differs from the plan last accepted"):
        go_on(place, "w", shifted, strict=True)
    result = go_on(place, "w", shifted)
    assert result.status == "complete"
    assert ran == ["t2"], "every layer moved by one, and nothing finished ran again"
    assert result.outputs["new first"] == "new"


def test_02_the_plan_and_its_settings_are_stored_so_that_an_id_is_enough(place: Place) -> None:
    """The original rebuilt its executor without the configuration the run was begun with."""
    shown_by(
        test_loading="test_a_script_run_as_main_is_found_by_its_file, test_a_module_run_with_m_is_found_by_its_name"
    )
    flow = Workflow("f", decision_points="per_layer", max_concurrency=3)
    flow.add("a", lambda n: n)
    flow.add("b", lambda a: a)
    drive(place, flow, {"n": 5}, "w")
    store = place.open(readonly=True)
    from agentos.workflow.define.plans import decode_plan

    plan = decode_plan(store.read_plan(store.find_run("w").workflow_id))
    store.close()
    assert (plan.settings.decision_points, plan.settings.max_concurrency, dict(plan.params)) == (
        "per_layer",
        3,
        {"n": 5},
    )
    say(place, "w", "layer:1", True)
    assert go_on(place, "w", flow).outputs == {"a": 5, "b": 5}, "parameters need not be given again"


def test_03_a_crash_in_layer_0_is_resumable_and_finished_tasks_of_a_broken_layer_are_kept(place: Place) -> None:
    shown_by(
        test_resume="test_of_an_interrupted_run_it_keeps_finished_tasks_of_the_broken_layer",
        test_checkpoint="test_resume_chaos_real_crashes",
    )
    killer, ran = Killer(), list[str]()
    flow = chain(2, ran, killer, "t0")
    kill(place, flow, killer, "w")
    assert "checkpoint" not in types(journal(place, "w"))
    assert go_on(place, "w", flow).status == "complete"


def test_04_latest_goes_by_sequence_and_a_fork_is_a_run_of_its_own(place: Place) -> None:
    shown_by(test_checkpoint="test_get_latest_checkpoint_returns_most_recent")
    ran: list[str] = []
    flow = chain(3, ran)
    drive(place, flow, id="w")
    cuts = checkpoints(journal(place, "w"))
    fork_off(place, cuts[0], flow, "v")
    manager = CheckpointManager(place.database)
    latest = manager.get_latest_checkpoint("w")
    assert latest is not None
    assert latest.id == cuts[-1], "the fork's checkpoints are the fork's"
    sequences = [one.sequence for one in manager.list_checkpoints("w")]
    assert sequences == sorted(set(sequences))
    store = place.open(readonly=True)
    assert store.find_run("v").parent_id == "w"
    store.close()


def test_05_what_failed_is_tried_again_on_resume(place: Place) -> None:
    """In the original a resume after a transient failure ran nothing at all."""
    shown_by(test_resume="test_of_a_failed_run_it_runs_what_failed_and_what_depends_on_it")
    tries = [0]
    flow = Workflow("f")

    def transient() -> str:
        tries[0] += 1
        if tries[0] == 1:
            raise ConnectionError("try again")
        return "there"

    flow.add("transient", transient)
    flow.add("after", lambda transient: transient)
    assert drive(place, flow, id="w").status == "failed"
    assert go_on(place, "w", flow).outputs == {"transient": "there", "after": "there"}


def test_06_decisions_are_in_the_checkpoint_and_a_gate_that_was_refused_is_never_passed(place: Place) -> None:
    """The original lost the last layer's decisions, and resuming a rejected run ran the forbidden layer."""
    ran: list[str] = []
    flow = Workflow("f", decision_points="per_layer")

    async def work(ctx: Context) -> None:
        ran.append(ctx.task_id)

    for number in range(3):
        flow.add(f"t{number}", work, needs=[f"t{number - 1}"] if number else [])
    drive(place, flow, id="w")
    say(place, "w", "layer:1", True)
    go_on(place, "w", flow)
    manager = CheckpointManager(place.database)
    assert [len(one.state.decisions) for one in manager.list_checkpoints("w")] == [0, 1]
    say(place, "w", "layer:2", False)
    assert ran == ["t0", "t1"]
    for target in ("w", checkpoints(journal(place, "w"))[-1]):
        assert go_on(place, target, flow).status == "failed"
    assert ran == ["t0", "t1"]
    applied, made = (
        next(event.seq for event in journal(place, "w") if event.type == name)
        for name in ("command_applied", "decision_made")
    )
    assert made == applied + 1, "decided in the same batch, thus the same transaction"


def test_07_a_run_that_has_ended_says_how_and_resuming_a_rejected_or_aborted_one_does_not_run_it(place: Place) -> None:
    shown_by(
        test_resume="test_of_an_aborted_run_it_refuses_and_names_fork, test_of_a_complete_run_it_does_nothing",
        test_gates="test_reject_fails_the_task_and_no_resume_runs_it",
        test_fork="test_approvals_do_not_carry_over_and_neither_do_rejections",
    )
    drive(place, chain(1, []), id="w")
    assert status(place, "w") == "complete"


def test_08_two_processes_cannot_drive_one_run(place: Place) -> None:
    shown_by(test_driving="test_a_driver_that_lost_its_lease_stops_its_attempts_and_writes_nothing")
    flow = Workflow("f")
    inside, release = asyncio.Event(), asyncio.Event()

    async def works() -> None:
        inside.set()
        await release.wait()

    flow.add("works", works)

    async def scenario() -> None:
        first = asyncio.ensure_future(adrive(place, flow, id="w"))
        await inside.wait()
        with pytest.raises(LeaseHeldError):
            await ago_on(place, "w", flow)
        release.set()
        assert (await first).status == "complete"

    asyncio.run(scenario())


# --- integrity ----------------------------------------------------------------------------------------------------


def test_09_rows_agree_or_the_error_says_which_does_not(place: Place) -> None:
    """In the original a row that said workflow w, layer 3 over a blob of another workflow, layer 0, was accepted."""
    shown_by(
        test_checkpoint="test_a_changed_byte_is_told, test_load_checkpoint_rejects_invalid_workflow_id, "
        "test_load_checkpoint_rejects_corrupted_state_missing_field"
    )
    drive(place, chain(2, []), id="w")
    cut = checkpoints(journal(place, "w"))[0]
    for damage in ("layer = 1", "at = at + 1", "digest = zeroblob(16)", "sequence = sequence + 1"):
        column = damage.partition(" ")[0]
        [(kept,)] = sql(place, f"SELECT {column} FROM checkpoint WHERE id = ?", cut)  # noqa: S608
        sql(place, f"UPDATE checkpoint SET {damage} WHERE id = ?", cut)  # noqa: S608
        with pytest.raises(AgentosError, match=f"checkpoint {cut} of run w is damaged"):
            CheckpointManager(place.database).load_checkpoint(cut)
        sql(place, f"UPDATE checkpoint SET {column} = ? WHERE id = ?", kept, cut)  # noqa: S608
    assert CheckpointManager(place.database).load_checkpoint(cut) is not None
    assert sql(place, "SELECT count(*) FROM event WHERE version < 1") == [(0,)], "every record has a version"


def test_10_the_newest_sound_checkpoint_is_named_and_can_be_forked(place: Place) -> None:
    shown_by(test_checkpoint="test_resume_with_corrupted_state_raises_checkpoint_corrupted_error")
    killer, ran = Killer(), list[str]()
    flow = chain(4, ran, killer, "t3")
    kill(place, flow, killer, "w")
    sound = CheckpointManager(place.database).list_checkpoints("w")[1]
    sql(place, "UPDATE event SET body = body || ' ' WHERE seq = ?", sound.sequence + 2)
    with pytest.raises(AgentosError, match=f"newest sound checkpoint is {sound.id}"):
        go_on(place, "w", flow)
    del ran[:]
    assert fork_off(place, sound.id, flow, "v").status == "complete"
    assert ran == ["t2", "t3"]


def test_11_each_value_has_a_stored_form_or_fails_its_task_alone(place: Place) -> None:
    """In the original an output of None or a large integer killed the whole run."""
    shown_by(
        test_driving="test_a_result_without_a_stored_form_fails_only_its_task_and_says_where, "
        "test_large_outputs_go_to_a_blob_and_come_back",
        test_manager="test_a_round_trip_gives_an_equal_state_whatever_was_saved_before",
    )
    flow = Workflow("f")
    cycle: list[Any] = []
    cycle.append(cycle)
    for name, value in {"none": None, "big": 10**400, "cycle": cycle, "nan": float("nan")}.items():
        flow.add(name, lambda value=value: value, inputs={})
    result = drive(place, flow)
    assert {entry.task_id: entry.status for entry in result.state.tasks} == {
        "none": "complete",
        "big": "complete",
        "cycle": "failed",
        "nan": "complete",
    }
    assert result.outputs["big"] == 10**400


def test_12_durability_is_chosen_and_survives_a_kill(tmp_git_repo: Path) -> None:
    """The kill matrix (tests/crash) kills at every write; this one shows the two levels and a plain SIGKILL."""
    shown_by(test_checkpoint="test_resume_chaos_real_crashes")
    assert (HERE.parent / "crash").is_dir()
    for durability in ("full", "process"):
        script = (
            "import os, signal\nfrom agentos import Workflow, run\nflow = Workflow('f')\n"
            "flow.add('a', lambda: 1)\nflow.add('b', lambda a: os.kill(os.getpid(), signal.SIGKILL))\n"
            f"run(flow, workflow_id={durability!r}, durability={durability!r})"
        )
        assert python("-c", script, cwd=tmp_git_repo).returncode == -9
        from agentos import Client

        assert Client(tmp_git_repo).show(durability).outputs == {"a": 1}


def test_13_prune_counts_what_it_deletes_and_never_deletes_all(place: Place) -> None:
    shown_by(
        test_checkpoint="test_prune_checkpoints_keeps_n_most_recent, test_prune_checkpoints_of_all_is_an_error, "
        "test_pruning_integration_keeps_only_the_five_most_recent"
    )
    drive(place, chain(7, []), id="w", keep=0)
    manager = CheckpointManager(place.database)
    assert manager.prune_checkpoints("w", keep=1) == 6
    assert manager.prune_checkpoints("w", keep=1) == 0
    latest = manager.get_latest_checkpoint("w")
    assert latest is not None
    assert latest.layer == 6, "the head stays"


def test_14_a_failed_save_has_its_own_event_and_no_made_up_id(place: Place) -> None:
    shown_by(
        test_checkpoint="test_checkpoint_save_failure_does_not_stop_execution, "
        "test_checkpoint_save_failure_stops_if_strict, test_checkpoint_save_failure_in_the_database_itself"
    )
    assert "checkpoint_id" not in ev.CheckpointFailed.__struct_fields__


# --- control ------------------------------------------------------------------------------------------------------


def test_15_only_an_explicit_approval_of_the_open_gate_passes(place: Place) -> None:
    """In the original any other command counted as approval, and `approved: false` still executed the tool."""
    shown_by(
        test_gates="test_nothing_but_an_approval_passes_a_gate, test_an_answer_must_name_a_gate_that_is_open, "
        "test_abort_works_at_a_gate, test_a_timeout_acts_as_the_gate_says, "
        "test_a_process_that_carries_an_attempt_cannot_answer_a_human_gate"
    )
    ran: list[str] = []
    flow = Workflow("f")
    flow.add("deploy", lambda: ran.append("deploy"), approve="Deploy?")
    drive(place, flow, id="w")
    say(place, "w", "approve:deploy", False)
    go_on(place, "w", flow)
    assert ran == []


def test_16_no_command_is_lost_and_each_kind_has_a_handler(place: Place) -> None:
    """In the original a wait that timed out swallowed the next command, and six kinds had no handler."""
    shown_by(
        test_commands="test_what_was_sent_is_durable_and_survives_the_driver, "
        "test_a_malformed_command_is_refused_where_it_is_sent, "
        "test_a_command_is_dealt_with_once_however_often_it_is_posted_and_delivered, "
        "test_a_command_that_came_too_late_is_refused_on_the_record",
        test_gates="test_abort_works_at_a_gate",
    )
    from typing import get_args

    from agentos.machine.commands import Command

    kinds = {kind.__struct_config__.tag for kind in get_args(Command)}
    assert kinds == {
        "continue",
        "abort",
        "pause",
        "approval_response",
        "inject_tasks",
        "skip_layer",
        "modify_args",
        "replan_dag",
        "rollback",
    }
    flow = Workflow("f")
    flow.add("first", lambda: 1)
    flow.add("gate", lambda first: first, approve="Go?")
    drive(place, flow, id="w")
    commands: list[dict[str, Any]] = [
        {"type": "modify_args", "task_id": "gate", "updates": {"first": 2}},
        {"type": "inject_tasks", "tasks": {"new": {"run": "true", "effects": "none"}}},
        {"type": "replan_dag", "remove": ["nobody"]},
        {"type": "skip_layer", "layer": 0},
        {"type": "rollback", "checkpoint_id": "nothing"},
    ]
    store = place.open()
    sent = [send(store, "w", command).command_id for command in commands]
    store.close()
    go_on(place, "w", flow)
    settled = [
        event.command_id for event in journal(place, "w") if isinstance(event, (ev.CommandApplied, ev.CommandRefused))
    ]
    assert sorted(settled) == sorted(sent), "each ends applied or refused, once"


def test_17_what_a_replan_adds_runs_wherever_the_run_stands(place: Place) -> None:
    """In the original new tasks landed in a layer already passed and never ran."""
    shown_by(
        test_commands="test_injected_tasks_always_run_wherever_the_run_stands, test_rollback_while_it_is_driven, "
        "test_a_replanned_task_runs_what_the_command_says_and_not_the_function_of_the_same_name"
    )
    flow = Workflow("f", decision_points="on_error")
    flow.add("bad", lambda: 1 / 0)
    flow.add("other", lambda: 1)
    flow.add("last", lambda other: other)
    assert drive(place, flow, id="w").status == "waiting"
    store = place.open()
    send(store, "w", {"type": "inject_tasks", "tasks": {"fix": {"run": "echo fixed", "effects": "none"}}})
    store.close()
    say(place, "w", "error:1", True)
    result = go_on(place, "w", flow)
    assert result.outputs["fix"]["stdout"] == "fixed"
    assert [task.definition.id for task in _grown(place, flow)] == ["fix"], "and it is part of the plan for good"


def _grown(place: Place, flow: Workflow) -> list[Any]:
    from agentos.dag.plan.plan import compile_plan
    from agentos.machine.facts.fold import fold
    from agentos.machine.rules.plan_changes import current_plan

    facts = fold("w", journal(place, "w"))  # type: ignore[arg-type]
    plan, problems = current_plan(compile_plan(flow), facts.changes)
    assert problems == []
    return [task for task in plan.tasks.values() if task.origin == "inject"]


def test_18_the_gate_stands_before_the_dangerous_task(place: Place) -> None:
    shown_by(test_gates="test_the_gate_stands_before_what_it_guards_and_the_rest_goes_on")
    flow = Workflow("f")
    flow.add("danger", lambda: "done", approve="Dangerous?", effects="external")
    drive(place, flow, id="w")
    events = types(journal(place, "w"))
    assert "decision_required" in events
    assert "task_start" not in events


def test_19_exactly_one_terminal_event_and_every_stream_closes(place: Place) -> None:
    """The original left streams open after an exception, and completed twice."""
    shown_by(
        test_executor="test_every_subscriber_ends_when_the_drive_raises, "
        "test_a_stream_can_be_read_long_after_the_drive",
        test_driving="test_a_quick_task_is_reported_while_a_slow_one_of_its_layer_still_runs",
    )
    flow = Workflow("f")
    flow.add("bad", lambda: 1 / 0)
    events = asyncio.run(collected(ControlledExecutor().execute_stream(flow)))
    assert_well_formed(events)
    assert types(events)[-1] == "workflow_failed"


# --- execution ----------------------------------------------------------------------------------------------------


def test_20_definition_errors_are_told_apart_and_all_at_once() -> None:
    flow = Workflow("f")
    flow.add("unknown", lambda: 1, needs=["missing"])
    flow.add("twice", lambda: 1)
    flow.add("twice", lambda: 2)
    flow.add("itself", lambda: 1, needs=["itself"])
    flow.add("a", lambda: 1, needs=["b"])
    flow.add("b", lambda: 1, needs=["a"])
    from agentos.dag.plan.plan import compile_plan

    with pytest.raises(WorkflowDefinitionError) as caught:
        compile_plan(flow)
    problems = {finding.problem for finding in caught.value.findings}  # type: ignore[attr-defined]
    assert {"unknown need", "duplicate id", "self-loop", "cycle"} <= problems
    assert re.search("a.*b.*a|b.*a.*b", str(caught.value)), "the cycle is shown with its path"


def test_21_references_work_in_lists_and_text_with_brackets_and_a_missing_path_is_an_error(place: Place) -> None:
    flow = Workflow("f")
    flow.add("source", lambda: {"list": [{"x": 1}, {"x": 2}], "text": "T"})
    reference = "${{ tasks.source.output"
    flow.add(
        "uses",
        lambda **given: given,
        inputs={
            "in_list": [f"{reference}.list[1].x }}}}", {"deep": f"{reference}.list }}}}"}],
            "in_text": f"<{reference}.text }}}}>",
            "missing": f"{reference}.nothing || 'default' }}}}",
            "literal": "$${{ not a reference }}",
        },
    )
    flow.add("broken", lambda x: x, inputs={"x": f"{reference}.nothing }}}}"})
    result = drive(place, flow)
    assert result.outputs["uses"] == {
        "in_list": [2, {"deep": [{"x": 1}, {"x": 2}]}],
        "in_text": "<T>",
        "missing": "default",
        "literal": "${{ not a reference }}",
    }
    assert "nothing" in result.errors["broken"]


def test_22_timeouts_cancel_concurrency_is_honoured_and_retries_are_wired_in(place: Place) -> None:
    shown_by(
        test_driving="test_a_timeout_really_cancels_an_async_task, "
        "test_a_timeout_really_ends_a_command_and_its_children, "
        "test_max_concurrency_is_honoured, test_retries_are_counted_over_drives, "
        "test_abort_cancels_what_runs_and_is_final"
    )
    tries = [0]
    flow = Workflow("f")

    def flaky() -> int:
        tries[0] += 1
        if tries[0] < 3:
            raise ValueError("again")
        return tries[0]

    flow.add("flaky", flaky, retries={"retries": 2, "backoff_s": 0})
    assert drive(place, flow).outputs == {"flaky": 3}


def test_23_idempotence_is_data_and_an_unsafe_task_that_had_started_asks(place: Place) -> None:
    shown_by(
        test_gates="test_an_effect_that_was_cut_off_is_asked_about_and_run_again_only_if_told, "
        "test_an_idempotent_effect_is_repeated_unasked_with_its_key"
    )
    killer, seen = Killer(), list[str]()
    flow = Workflow("f")

    async def effect(ctx: Context) -> None:
        seen.append("started" if "task_start" in types(journal(place, "w")) else "not on record")
        await killer.strike()

    flow.add("effect", effect, effects="external")
    kill(place, flow, killer, "w")
    assert seen == ["started"], "on the record before the effect"
    assert go_on(place, "w", flow).status == "waiting"


def test_24_a_checkpoint_has_room_for_a_snapshot_of_the_files() -> None:
    """The files themselves come with a later issue; the checkpoint, its event and its row name the tree already."""
    assert "snapshot" in Checkpoint.__struct_fields__
    assert "snapshot" in ev.Checkpointed.__struct_fields__


def test_25_the_invariants_are_those_that_hold() -> None:
    """Unique tasks, layers in range; not «as many tasks as decisions»."""
    shown_by(test_gates="test_two_decisions_for_one_task_break_no_invariant")
    entry = TaskEntry(task_id="a", status="complete")  # type: ignore[arg-type]
    state = WorkflowState(workflow_id="w")  # type: ignore[arg-type]
    assert len(update_state(state, {"decisions": [{"n": 1}, {"n": 2}, {"n": 3}]}).decisions) == 3
    with pytest.raises(StateInvariantError):
        update_state(WorkflowState(workflow_id="w", tasks=(entry, entry)), {"current_layer": 1})  # type: ignore[arg-type]
    ran_again = update_state(update_state(state, {"tasks": [entry]}), {"tasks": [entry]})
    assert len(ran_again.tasks) == 1, "a task that ran again has one entry"
    frozen = update_state(state, {"messages": [1]})
    with pytest.raises(AttributeError):
        frozen.messages = ()  # type: ignore[misc]
    assert isinstance(frozen.messages, tuple), "nobody can push to a snapshot"


def test_no_point_is_missing() -> None:
    numbers = [int(name[5:7]) for name in globals() if re.match(r"test_\d\d_", name)]
    assert numbers == list(range(1, 26))
