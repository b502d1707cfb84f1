"""What runs inside the children of the crash tests: bodies leave a trace, and a process goes, resumes or answers.

A trace is a line in a file beside the repository, appended with one write: it survives the SIGKILL of the process that
wrote it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentos import Context, Workflow, fork, resume, run
from agentos.client import Client
from agentos.exceptions import AgentosError
from agentos.ids import WorkflowId
from agentos.machine.commands import ApprovalResponse
from agentos.machine.events import DecisionMade, DecisionRequired, Event, FilesMerged
from agentos.store.port import PostedCommand
from agentos.workflow.drive.mailbox import utc_now
from agentos.workflow.place.place import find_place

WORKFLOW_ID = "run-1"
AUTHOR = "harness"
REFUSED = 10
"""Exit code of a process that ended with an error of ours; stdout says which."""

EFFECTS = ("charge", "ship", "deliver", "effect")
"""How the names of tasks begin that have an effect of which it can be told, by looking, whether it took place."""

_TRACE = os.environ.get("CRASH_TRACE", "")


if os.environ.get("CRASH_MIGRATES"):
    from agentos.store.postgres import migrations
    from agentos.store.sqlite import database
    from tests.crash.children.schema import newer_postgres_schema, newer_schema

    _patched: Any = database
    _patched.migrations = newer_schema
    _patched = migrations
    _patched.known_migrations = newer_postgres_schema


# --- for task bodies ----------------------------------------------------------------------------------------------


def saw(ctx: Context, **more: Any) -> None:
    """Write down that this attempt is being executed."""
    who = {"run": ctx.workflow_id, "task": ctx.task_id, "attempt": ctx.attempt, "key": ctx.idempotency_key}
    leave_trace({**who, **more})


def leave_trace(line: Mapping[str, Any]) -> None:
    file = os.open(_TRACE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, json.dumps({**line, "pid": os.getpid()}).encode() + b"\n")
    finally:
        os.close(file)


def executions(task_id: str) -> int:
    """How often a task was executed so far, in this process or an earlier one."""
    return len(_lines_of(task_id))


def _lines_of(task_id: str) -> list[dict[str, Any]]:
    lines = map(json.loads, Path(_TRACE).read_text().splitlines())
    return [line for line in lines if task_id == (line.get("task") or line["attempt_id"].split("/")[1])]


def take_effect(task_id: str, number: int) -> str:
    """What a step with an external effect does: a line in a file of its own."""
    file = os.open(f"{_TRACE}.steps", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{task_id}/{number}\n".encode())
    finally:
        os.close(file)
    return f"{task_id}/{number}"


def step_effects() -> list[str]:
    """Every effect of a step that ever took place."""
    path = Path(f"{_TRACE}.steps")
    return sorted(path.read_text().split()) if path.exists() else []


def is_approved(ctx: Context, gate_id: str) -> bool:
    """Whether the approval is durable, asked from the store itself."""
    made = [event for event in _stored(ctx) if isinstance(event, DecisionMade)]
    return any(event.gate_id == gate_id and event.answer == "approved" for event in made)


def send_as_another_process(ctx: Context, command_id: str, command: Mapping[str, Any]) -> None:
    """Post a command to our own run, as somebody else would, and wait until the driver has it on the record.

    The id is given, so that an attempt that is repeated asks for the same thing once.
    """
    store = find_place().open()
    try:
        posted = PostedCommand(id=command_id, author=AUTHOR, posted_at=utc_now(), command=dict(command))
        store.post_command(ctx.workflow_id, posted)
    finally:
        store.close()
    wait_until(
        lambda: any(getattr(event, "command_id", None) == command_id for event in _stored(ctx)),
        f"command {command_id} on the record",
    )


def wait_until(done: Callable[[], Any], what: str, *, deadline_s: float = 60.0) -> None:
    until = time.monotonic() + deadline_s
    while not done():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {deadline_s:g} s for {what}")
        time.sleep(0.005)


def _stored(ctx: Context) -> list[Event]:
    store = find_place(make=False).open(readonly=True)
    try:
        return store.read_events(WorkflowId(ctx.workflow_id))
    finally:
        store.close()


# --- the process ---------------------------------------------------------------------------------------------------


def main(flow: Workflow) -> None:
    """`python flow.py`: run the workflow, or go on with it."""
    if line := os.environ.get("CRASH_LINE"):
        ready, go = map(int, line.split(","))
        os.write(ready, b".")
        os.read(go, 1)  # until the other end is closed
    report(lambda: run(flow, workflow_id=os.environ.get("CRASH_RUN", WORKFLOW_ID)))


def report(act: Callable[[], Any]) -> None:
    """Do it and say on stdout how it ended."""
    try:
        result = act()
    except AgentosError as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)
        sys.exit(REFUSED)
    print(json.dumps({"status": getattr(result, "status", "")}), flush=True)


def answer(workflow_id: str = WORKFLOW_ID) -> None:
    """Answer every open gate as an honest human would, who looks whether an effect took place before answering."""
    client = Client()
    for gate_id in sorted(client.show(workflow_id).gates):
        client.send(workflow_id, _answer(client, workflow_id, gate_id), author=AUTHOR)


def _answer(client: Client, workflow_id: str, gate_id: str) -> ApprovalResponse:
    kind, _, rest = gate_id.partition(":")
    task_id = rest.partition("#")[0]
    if kind == "merge":
        merges = [event for event in client.events(workflow_id) if isinstance(event, FilesMerged)]
        chosen = {conflict.path: conflict.sides[-1] for conflict in merges[-1].conflicts}
        return ApprovalResponse(gate_id=gate_id, approved=True, output=chosen)
    opened = next(one for one in _opened(client, workflow_id) if one.gate_id == gate_id)
    if opened.kind == "ask" and opened.step is not None:
        effect = f"{opened.task_id}/{opened.step}"
        if effect not in step_effects():
            return ApprovalResponse(gate_id=gate_id, approved=True, choice="did-not-run")
        return ApprovalResponse(gate_id=gate_id, approved=True, choice="it-ran", output=effect)
    if kind != "ask":
        return ApprovalResponse(gate_id=gate_id, approved=True)
    if not task_id.startswith(EFFECTS):
        return ApprovalResponse(gate_id=gate_id, approved=True, choice="run-again")
    if not executions(task_id):
        return ApprovalResponse(gate_id=gate_id, approved=True, choice="did-not-run")
    return ApprovalResponse(gate_id=gate_id, approved=True, choice="it-ran", output=effect_of(task_id))


def _opened(client: Client, workflow_id: str) -> list[DecisionRequired]:
    return [event for event in client.events(workflow_id) if isinstance(event, DecisionRequired)]


def checkpoint_of_layer(layer: int) -> str:
    return next(cut.id for cut in Client().checkpoints(WORKFLOW_ID) if cut.layer == layer and not cut.abandoned)


def effect_of(task_id: str) -> Any:
    """What a task with an external effect returns: known to whoever looks at the effect itself.

    A command leaves only the id of its attempt in the trace, and returns what it printed: nothing.
    """
    of_a_command = any("task" not in line for line in _lines_of(task_id))
    return "" if of_a_command else {"done": task_id}


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    acts: dict[str, Callable[[], Any]] = {
        "resume": lambda: resume(WORKFLOW_ID),
        "answer": answer,
        "list": lambda: Client().list_runs(),
        "rollback": lambda: resume(checkpoint_of_layer(int(sys.argv[2]))),
        "fork": lambda: fork(checkpoint_of_layer(int(sys.argv[2])), workflow_id="fork-1"),
    }
    report(acts[sys.argv[1]])
