"""An approval is about the files that the command names: looked at when it asks, and when the task would start."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from agentos import Workflow
from agentos.ids import GateId, TaskId
from agentos.machine import events as ev
from agentos.machine.inputs import Begin, CoveredFilesChanged, FilesSeen
from agentos.machine.rules.gates import command_words, words_in
from tests.unit.machine.harness import Run


def shipping(**more: Any) -> Run:
    flow = Workflow("w")
    flow.add("ship", "shell", run="./ship.sh", approve="Ship?", effects="none", **more)
    run = Run(flow, gates="wait")
    run.files = {"ship.sh": "one"}
    return run.begin()


def test_nothing_is_asked_before_somebody_has_looked() -> None:
    run = shipping()
    machine = type(run.machine)(run.base, type(run.facts)(workflow_id=run.workflow_id))
    machine.step(Begin(holder="me", token=1), run.now)
    assert machine.looks_wanted == {"ship"}
    assert not machine.facts.open_gates
    assert not machine.over
    machine.step(FilesSeen(task_id=TaskId("ship"), files={}), run.now)
    assert not machine.looks_wanted
    assert machine.facts.open_gates


def test_a_drive_that_cannot_look_leaves_the_gate_to_another() -> None:
    run = shipping()
    machine = type(run.machine)(run.base, type(run.facts)(workflow_id=run.workflow_id), starts=False)
    machine.step(Begin(holder="me", token=1), run.now)
    events = machine.step(FilesSeen(task_id=TaskId("ship"), files=None), run.now)
    assert [event.type for event in events] == ["workflow_paused"]


def test_a_task_starts_where_its_files_are_as_they_were() -> None:
    run = shipping()
    assert run.gate("approve:ship").covers == {"ship.sh": "one"}
    run.answer("approve:ship")
    assert run.running == ["ship"]


@pytest.mark.parametrize("files", [{"ship.sh": "two"}, {}, {"ship.sh": "one", "new": "one"}])
def test_a_gate_reopens_where_they_are_not(files: dict[str, str]) -> None:
    run = shipping()
    run.files = files
    run.answer("approve:ship")
    assert run.running == []
    assert run.open_gates == ["approve:ship#2"]
    again = run.gate("approve:ship#2")
    assert again.covers == files
    assert again.changed == (("new",) if "new" in files else ("ship.sh",))
    assert "changed after approve:ship was asked" in again.again
    run.resume()
    run.answer("approve:ship#2")
    assert run.running == ["ship"]


def test_a_rejection_stays_one_whatever_became_of_the_files() -> None:
    run = shipping()
    run.files = {}
    run.answer("approve:ship", approved=False)
    assert run.status("ship") == "failed"
    assert run.open_gates == []


def test_what_a_task_of_the_run_changed_is_approved_too() -> None:
    run = shipping(retries={"retries": 1, "backoff_s": 1})
    run.answer("approve:ship")
    run.files = {"ship.sh": "two", "made": "one"}
    run.give(changed({"ship.sh": "one"}, run.files))
    run.fail("ship")
    run.resume()
    run.later(10)
    assert run.open_gates == []
    assert run.running == ["ship"]
    assert run.facts.gates[GateId("approve:ship")].covers == {"ship.sh": ("one", "two"), "made": ("", "one")}


def test_what_a_task_of_the_run_changed_may_be_undone() -> None:
    run = shipping(retries={"retries": 1, "backoff_s": 1})
    run.answer("approve:ship")
    run.give(changed({"ship.sh": "one"}, {"ship.sh": "two", "made": "one"}))
    run.fail("ship")
    run.later(10)  # by then its edits were taken back
    assert run.running == ["ship"]


def test_what_had_changed_before_a_task_began_is_not_its_doing() -> None:
    run = shipping()
    run.give(changed({"ship.sh": "evil"}, {"ship.sh": "three"}))
    assert not run.all(ev.CoverChanged)
    run.files = {"ship.sh": "three"}
    run.answer("approve:ship")
    assert run.open_gates == ["approve:ship#2"]


def changed(before: dict[str, str], after: dict[str, str]) -> CoveredFilesChanged:
    return CoveredFilesChanged(gate_id=GateId("approve:ship"), task_id=TaskId("other"), before=before, after=after)


def as_before_the_upgrade(run: Run) -> None:
    run.journal = [
        msgspec.structs.replace(event, covers=None) if isinstance(event, ev.DecisionRequired) else event
        for event in run.journal
    ]


def test_an_open_gate_of_an_earlier_version_is_asked_anew() -> None:
    run = shipping()
    as_before_the_upgrade(run)
    run.resume()
    assert run.open_gates == ["approve:ship#2"]
    assert "an earlier version" in run.gate("approve:ship#2").again
    run.answer("approve:ship#2")
    assert run.running == ["ship"]


def test_an_answer_to_a_gate_of_an_earlier_version_starts_nothing() -> None:
    run = shipping()
    as_before_the_upgrade(run)
    run.resume(starts=False, first=({"type": "approval_response", "gate_id": "approve:ship", "approved": True},))
    assert run.open_gates == ["approve:ship#2"]


def test_an_item_of_an_approved_fan_out_is_asked_about_where_its_file_changed() -> None:
    flow = Workflow("w", max_concurrency=1)
    flow.add("each", "shell", run="./ship.sh ${{ item }}", for_each=["a", "b"], approve="All?", effects="none")
    run = Run(flow, gates="wait")
    run.files = {"ship.sh": "one", "a": "one", "b": "one"}
    run.begin()
    run.answer("approve:each")
    assert run.running == ["each[0]"]
    run.files = {"ship.sh": "two", "b": "one"}
    run.ok("each[0]")
    assert run.open_gates == ["approve:each[1]"]
    assert run.gate("approve:each[1]").changed == ("ship.sh",)
    run.answer("approve:each[1]")
    assert run.running == ["each[1]"]


def test_words_of_a_command() -> None:
    flow = Workflow("w")
    flow.add("a", "shell", run="cd deploy && ./go.sh --conf=x.yml 2>err.log >> out.log < in.txt", approve="?")
    run = Run(flow).begin()
    named = command_words(run.base, run.facts, run.base.tasks[TaskId("a")]).words
    assert {"deploy", "./go.sh", "x.yml", "in.txt"} <= named
    assert not {"err.log", "out.log"} & named


def test_a_long_output_among_the_words_takes_no_time() -> None:
    text = '"' + "x " * 500_000 + '"\n./ship.sh "my conf.yml"'
    begun = time.process_time()
    assert {"./ship.sh", "my conf.yml"} <= set(words_in(text))
    assert time.process_time() - begun < 5  # by shlex alone it would be minutes
