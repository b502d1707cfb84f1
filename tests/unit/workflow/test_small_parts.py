"""Small parts: stored plans, places, who asks, and what an attempt is given."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Any

import pytest

from agentos import Workflow
from agentos.dag.plan.plan import compile_plan
from agentos.exceptions import CheckpointCorruptedError, WorkflowConfigurationError
from agentos.extras import install_command
from agentos.ids import TaskId, WorkflowId
from agentos.machine.facts.fold import Facts
from agentos.tasks.attempt import AttemptSpec
from agentos.workflow.define.plans import decode_plan, encode_plan
from agentos.workflow.drive.attempt_specs import attempt_spec, idempotency_key
from agentos.workflow.drive.command_delivery import current_author
from agentos.workflow.place.place import Place


def a_flow() -> Workflow:
    flow = Workflow("f", env={"ALL": "1"}, max_concurrency=3, schedule="ready", decision_points="never")
    flow.add("a", lambda n: n)
    flow.add("b", "shell", run="echo ${{ tasks.a.output }}", effects="none", env={"OWN": "${{ params.n }}"}, cwd="sub")
    return flow


def test_a_stored_plan_comes_back_equal() -> None:
    plan = compile_plan(a_flow(), {"n": 2**70})
    again = decode_plan(encode_plan(plan))
    assert again.fingerprint == plan.fingerprint
    assert again.layers == plan.layers
    assert again.params == plan.params
    assert again.settings == plan.settings
    assert dict(again.tasks) == dict(plan.tasks)


@pytest.mark.parametrize("damaged", [b"", b"nonsense", b"{}", b"\x00\xff"])
def test_a_damaged_plan_is_told(damaged: bytes) -> None:
    with pytest.raises(CheckpointCorruptedError, match="a stored plan"):
        decode_plan(damaged)


def test_a_plan_cut_short_or_changed_inside_is_told() -> None:
    stored = encode_plan(compile_plan(a_flow(), {"n": 1}))
    with pytest.raises(CheckpointCorruptedError):
        decode_plan(stored[: len(stored) // 2])


def test_a_driver_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = Place(database="postgresql://ada:secret@host/db", root=tmp_path)
    assert place.exists()
    for module in [name for name in sys.modules if name.startswith("agentos.store.postgres.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(WorkflowConfigurationError, match="driver is not installed") as told:
        place.open()
    assert "secret" not in str(told.value)
    assert install_command("postgres") in told.value.next_step


def test_the_author_is_the_user_and_else_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert current_author() == getpass.getuser()

    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert current_author().startswith("uid ")


def test_an_attempt_is_given_its_values_its_variables_and_its_folder(tmp_path: Path) -> None:
    import msgspec

    from agentos.machine import events as ev
    from agentos.machine.facts.fold import reduce

    flow = a_flow()
    plan = compile_plan(flow, {"n": 7})
    facts = Facts(workflow_id=WorkflowId("w"))
    done: dict[str, Any] = {"task_id": TaskId("a"), "layer": 0, "place": "000000", "attempt": 1}
    facts = reduce(facts, ev.TaskComplete(seq=1, output=msgspec.Raw(b'"it\'s"'), **done))
    spec = attempt_spec(plan, facts, plan.tasks[TaskId("b")], 2, flow.functions, tmp_path)
    assert spec.cwd == tmp_path / "sub"
    assert spec.root == tmp_path
    assert spec.attempt_id == "w/b/2"
    assert spec.env["ALL"] == "1"
    assert spec.env["OWN"] == "7"
    assert "it's" in spec.env.values(), "a value travels as a variable"
    assert "it's" not in spec.command
    assert spec.function is None
    first = attempt_spec(plan, facts, plan.tasks[TaskId("a")], 1, flow.functions, tmp_path)
    assert (first.arguments, first.function) == ({"n": 7}, flow.functions[TaskId("a")])


def test_agents_and_models_are_given_values_in_lists_too(tmp_path: Path) -> None:
    flow = Workflow("f")
    command = ["review", "--of=${{ params.who }}", "${{ params.files }}", "$${{ as it is }}"]
    flow.add("a", "agent", agent="command", command=command, prompt="p")
    flow.add("m", "llm", model="m", messages=[{"role": "user", "content": "Greet ${{ params.who }}."}])
    plan = compile_plan(flow, {"who": "ada; rm", "files": ["a b", "c"]})

    def spec_of(task_id: str) -> AttemptSpec:
        return attempt_spec(plan, Facts(workflow_id=WorkflowId("w")), plan.tasks[TaskId(task_id)], 1, {}, tmp_path)

    agent, llm = spec_of("a").agent, spec_of("m").llm
    assert agent is not None
    assert agent.command == ("review", "--of=ada; rm", "a b", "c", "${{ as it is }}")
    assert llm is not None
    assert llm.messages == ({"role": "user", "content": "Greet ada; rm."},)


def test_the_key_is_the_same_over_attempts_and_new_in_another_run_or_epoch() -> None:
    import msgspec

    one, task = Facts(workflow_id=WorkflowId("w")), TaskId("t")
    key = idempotency_key(one, task)
    assert key == idempotency_key(msgspec.structs.replace(one, sequence=9, drives=3), task)
    others = [
        idempotency_key(msgspec.structs.replace(one, epoch=1), task),
        idempotency_key(Facts(workflow_id=WorkflowId("v")), task),
        idempotency_key(one, TaskId("t[1]")),
    ]
    assert len({key, *others}) == 4
