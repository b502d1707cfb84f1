"""Secrets never reach what is stored or shown, whichever way a task lets them out."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from agentos import Client, Workflow
from agentos.exceptions import CommandRefusedError, RunRefusedError, WorkflowDefinitionError
from agentos.machine import events as ev
from agentos.machine.commands import Abort, InjectTasks
from agentos.workflow.drive.command_delivery import send
from agentos.workflow.drive.drive import Drive
from agentos.workflow.executor import ParallelExecutor
from agentos.workflow.place.place import Place
from tests.workflow.support import drive, go_on

SECRET = "Zx9\"q/7+Kw=mN4&v 'R2"
NAME = "DEPLOY_TOKEN"
MASK = f"[secret:{NAME}]"


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(NAME, SECRET)
    return SECRET


def ways(secret: str) -> list[str]:
    raw = secret.encode()
    aligned = [base64.b64encode(b"x" * pad + raw).decode() for pad in range(3)]
    return [secret, quote(secret, safe=""), json.dumps(secret), repr(secret), *aligned]


def let_out(secret: str, data: bytes) -> list[str]:
    """The ways of writing the secret that stand in the data; of base64 the part that the secret alone decides."""
    found = [way for way in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1]) if way.encode() in data]
    for pad in range(3):
        encoded = base64.b64encode(b"x" * pad + secret.encode())
        if encoded[(0, 2, 3)[pad] : (pad + len(secret)) * 8 // 6] in data:
            found.append(f"base64 {pad}")
    return found


def everything_kept(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file below the folder, and every value in its databases, unpacked."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield str(path), path.read_bytes()
            if path.suffix == ".db":
                yield from in_database(path)


def in_database(path: Path) -> Iterator[tuple[str, bytes]]:
    connection = sqlite3.connect(path)
    connection.text_factory = bytes  # a stored plan is compressed, and lies in a column of text
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        for row in connection.execute(f'SELECT * FROM "{table.decode()}"'):
            for value in row:
                if isinstance(value, bytes):
                    yield table.decode(), value
                    with suppress(zlib.error):
                        yield table.decode(), zlib.decompress(value)
    connection.close()


def assert_nothing_kept(folder: Path, secret: str = SECRET) -> None:
    leaks = [(where, way) for where, data in everything_kept(folder) for way in let_out(secret, data)]
    assert not leaks


# --- end to end ---------------------------------------------------------------------------------------------------


def apart(ctx: Any) -> Any:
    print(*ways(os.environ[NAME]), sep="\n")
    ctx.progress(os.environ[NAME])
    return os.environ[NAME].encode()


def loud_workflow(path: Path) -> Workflow:
    """Lets the secret out in every way there is."""
    flow = Workflow("loud", secrets=[NAME])
    script = path / "say.py"
    script.write_text(
        "import base64, json, os, sys, time\n"
        "from urllib.parse import quote\n"
        f"s = os.environ[{NAME!r}]\n"
        "ways = [s, quote(s, safe=''), json.dumps(s), repr(s)]\n"
        "ways += [base64.b64encode(b'x' * pad + s.encode()).decode() for pad in range(3)]\n"
        "for way in ways:\n"
        "    for stream in (sys.stdout, sys.stderr):\n"
        "        for sign in f'<{way}>\\n':\n"
        "            stream.write(sign); stream.flush()\n"
        "sys.stdout.buffer.write(b'\\xff' + s.encode() + b'\\n'); sys.stdout.flush()\n"
        "if len(sys.argv) > 1: open(os.environ['AGENTOS_OUTPUT'], 'w').write(json.dumps({'ways': ways, s: 1}))\n"
        "sys.exit(int(os.environ.get('STATUS', 0)))\n"
    )
    flow.add("prints", "shell", run=["python3", str(script), "and-writes"], effects="none")
    flow.add("fails", "shell", run=["python3", str(script)], env={"STATUS": "3"}, effects="none")
    flow.add(
        "document",
        "shell",
        run="python3 -c \"import json, os; print(json.dumps({1: os.environ['DEPLOY_TOKEN']}))\"",
        output="json",
        effects="none",
    )
    flow.add(
        "refers",
        "shell",
        run='echo ${{ secrets.DEPLOY_TOKEN }} "$MINE"',
        env={"MINE": "<${{ secrets.DEPLOY_TOKEN }}>"},
        effects="none",
    )

    @flow.task
    def returns() -> Any:
        return {"ways": ways(SECRET), "bytes": [way.encode() for way in ways(SECRET)], SECRET: (SECRET, "\0" + SECRET)}

    @flow.task
    def large() -> Any:
        return ["x" * 100_000, SECRET, "y" * 2_000_000, *ways(SECRET)]

    @flow.task
    def raises() -> Any:
        text = "".join(ways(SECRET))
        raise ValueError(f"{'x' * 7990}{SECRET}{'y' * 20_000}{text}")

    @flow.task
    def talks(ctx: Any) -> None:
        for way in ways(SECRET):
            ctx.message("assistant", f"it is {way}")
            ctx.set(f"key {way[:3]}", {"is": way})
            ctx.progress(f"using {way}")
        ctx.inject("more", run=["echo", SECRET], description=SECRET, effects="none")

    flow.add("apart", apart, isolation="process")

    @flow.task(if_="always()")
    def after(returns: Any) -> Any:
        return returns["ways"][0]

    flow.add("gate", "approval", question="Use ${{ tasks.after.output }}?")
    return flow


def test_nothing_that_tasks_let_out_is_stored_or_shown(place: Place, tmp_path: Path, secret: str) -> None:
    shown: list[bytes] = []

    def started(running: Drive) -> None:
        async def watch() -> None:
            async for event in running.stream.subscribe(0):
                shown.append(repr(event).encode())
                shown.append(str(getattr(event, "text", "")).encode())

        watching.append(asyncio.ensure_future(watch()))

    watching: list[asyncio.Future[None]] = []
    result = drive(place, loud_workflow(tmp_path), started=started)
    assert set(result.errors) == {"fails", "raises"}
    assert len(shown) > 50
    (tmp_path / "say.py").unlink()
    assert_nothing_kept(tmp_path)
    assert not [way for data in shown for way in let_out(SECRET, data)]
    assert "characters left out" in result.errors["raises"]
    assert SECRET[:8] not in result.errors["raises"]  # its text was cut in the middle of the secret
    outputs = result.outputs
    assert outputs["returns"]["ways"] == [MASK, MASK, f'"{MASK}"', f"'{MASK}'", *outputs["returns"]["ways"][4:]]
    assert MASK in outputs["returns"]["ways"][4]
    assert outputs["returns"]["bytes"][0] == MASK.encode()
    assert outputs["after"] == MASK  # what a dependant is given is what is stored
    assert outputs["refers"]["stdout"] == f"{MASK} <{MASK}>"
    assert outputs["document"] == {"1": MASK}
    assert outputs["apart"] == MASK.encode()
    assert outputs["prints"]["values"]["ways"][0] == MASK
    assert outputs["large"][1] == MASK
    assert MASK in result.state.messages[0]["content"]
    assert f"Use {MASK}?" in result.gates.values()


def test_a_result_that_was_masked_is_warned_about(place: Place, tmp_path: Path, secret: str) -> None:
    result = drive(place, loud_workflow(tmp_path))
    store = place.open(readonly=True)
    warned = [event for event in store.read_events(result.workflow_id) if isinstance(event, ev.TaskWarning)]
    store.close()
    about = {event.task_id for event in warned if NAME in event.message and "masked" in event.message}
    assert {"prints", "document", "refers", "returns", "large", "talks", "apart"} <= about
    assert "fails" not in about


def test_without_secrets_nothing_changes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Workflow("quiet")
    flow.add("says", "shell", run="echo $NOTHING", effects="none")
    flow.task(id="b")(lambda: {"a": b"\0", "b": float("inf")})
    result = drive(place, flow)
    assert result.outputs["b"] == {"a": b"\0", "b": float("inf")}
    assert result.outputs["says"]["stdout"] == ""


def test_names_given_with_the_drive_are_masked_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARMLESS", "fish and chips")
    flow = Workflow("dinner")
    flow.add("says", "shell", run='echo "$HARMLESS"', effects="none")
    assert drive(place, flow, secrets=("HARMLESS",)).outputs["says"]["stdout"] == "[secret:HARMLESS]"


def test_an_executor_in_memory_masks_as_well(tmp_path: Path, secret: str) -> None:
    flow = Workflow("memory")
    flow.task(id="a")(lambda: SECRET)
    assert asyncio.run(ParallelExecutor(root=tmp_path).execute(flow)).outputs["a"] == MASK


# --- declared secrets ---------------------------------------------------------------------------------------------


def test_a_declared_secret_that_is_not_set_stops_the_run_before_it_begins(place: Place) -> None:
    flow = Workflow("needs", secrets=["DEPLOY_TOKEN", "OTHER_THING"])
    flow.task(id="a")(lambda: (place.root / "ran").touch())
    with pytest.raises(RunRefusedError, match="DEPLOY_TOKEN, OTHER_THING") as told:
        drive(place, flow)
    assert "export DEPLOY_TOKEN=" in str(told.value)
    assert not (place.root / "ran").exists()
    assert not place.exists()


def test_a_resume_needs_them_as_well(place: Place, secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Workflow("needs", secrets=[NAME])
    flow.add("gate", "approval", question="Go?")
    result = drive(place, flow)
    monkeypatch.delenv(NAME)
    with pytest.raises(RunRefusedError, match=NAME):
        go_on(place, result.workflow_id, flow)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"run": "echo ${{ secrets.OTHER }}"}, "'OTHER' is not among the workflow's secrets"),
        ({"run": ["echo", "${{ secrets.DEPLOY_TOKEN }}"]}, "in env or in the text of run"),
        ({"run": "true", "if": "secrets.DEPLOY_TOKEN == 'x'"}, "in env or in the text of run"),
        ({"run": "true", "approve": "Use ${{ secrets.DEPLOY_TOKEN }}?"}, "in env or in the text of run"),
        ({"run": "echo ${{ secrets.DEPLOY_TOKEN || 'x' }}"}, "no default"),
        ({"run": "echo ${{ secrets }}"}, "secrets.NAME"),
    ],
)
def test_a_reference_to_a_secret_stands_only_where_nothing_stores_it(
    place: Place, secret: str, settings: Any, why: str
) -> None:
    flow = Workflow("refers", secrets=[NAME])
    flow.add("a", "shell", **settings)
    with pytest.raises(WorkflowDefinitionError, match=why):
        drive(place, flow)


def test_a_secret_in_the_environment_of_the_workflow(place: Place, secret: str) -> None:
    flow = Workflow("env", secrets=[NAME], env={"MINE": "${{ secrets.DEPLOY_TOKEN }}"})
    flow.add("a", "shell", run='test "$MINE" = "$DEPLOY_TOKEN" && echo same', effects="none")
    assert drive(place, flow).outputs["a"]["stdout"] == "same"
    assert_nothing_kept(place.root)


def test_an_approval_is_about_the_secrets_name_not_its_value(
    place: Place, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Workflow("asks", secrets=[NAME])
    flow.add("a", "shell", run="echo ${{ secrets.DEPLOY_TOKEN }}", approve="Really?", effects="none")
    result = drive(place, flow)
    store = place.open()
    [gate] = result.gates
    send(store, result.workflow_id, {"type": "approval_response", "gate_id": gate, "approved": True})
    store.close()
    monkeypatch.setenv(NAME, "another value")
    assert go_on(place, result.workflow_id, flow).status == "complete"


def test_the_value_of_a_declared_secret_is_refused_in_the_definition(place: Place, secret: str) -> None:
    flow = Workflow("literal", secrets=[NAME])
    flow.add("a", "shell", run=["echo", SECRET])
    with pytest.raises(WorkflowDefinitionError, match=r"secrets\.DEPLOY_TOKEN") as told:
        drive(place, flow)
    assert SECRET not in str(told.value)


def test_one_that_only_looks_secret_is_warned_about_and_hidden_from_questions(place: Place, secret: str) -> None:
    flow = Workflow("literal")
    flow.add("a", "approval", question=f"Use {SECRET}?")
    flow.add("b", "shell", run=["true", SECRET], effects="none")
    result = drive(place, flow)
    assert list(result.gates.values()) == [f"Use {MASK}?"]
    store = place.open(readonly=True)
    warned = [event.message for event in store.read_events(result.workflow_id) if isinstance(event, ev.TaskWarning)]
    store.close()
    assert any("'b' holds the value of DEPLOY_TOKEN" in message for message in warned)
    assert not any("'a' holds" in message for message in warned)


# --- parameters and commands --------------------------------------------------------------------------------------


def greeting() -> Workflow:
    flow = Workflow("greets", params={"token": "none", "nested": {}})

    @flow.task
    def length(token: str, nested: Any) -> Any:
        return [len(token), len(nested.get("deep", [""])[0])]

    flow.add("says", "shell", run="echo ${{ params.token }}", effects="none")
    return flow


def test_a_parameter_equal_to_a_secret_is_refused(place: Place, secret: str) -> None:
    for params in ({"token": SECRET}, {"nested": {"deep": [f"Bearer {SECRET}"]}}):
        with pytest.raises(RunRefusedError, match="holds the value of DEPLOY_TOKEN") as told:
            drive(place, greeting(), params)
        assert "env:DEPLOY_TOKEN" in str(told.value)
        assert SECRET not in str(told.value)
    assert not place.exists()


def test_a_parameter_names_the_variable_instead(place: Place, secret: str) -> None:
    named = f"env:{NAME}"
    result = drive(place, greeting(), {"token": named, "nested": {"deep": [named]}})
    assert result.outputs["length"] == [len(SECRET)] * 2
    assert result.outputs["says"]["stdout"] == MASK
    assert_nothing_kept(place.root)


def test_what_a_parameter_names_is_masked_whatever_it_is_called(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIN", "nobody knows")
    assert drive(place, greeting(), {"token": "env:PLAIN"}).outputs["says"]["stdout"] == "[secret:PLAIN]"
    with pytest.raises(RunRefusedError, match="NOT_THERE"):
        drive(place, greeting(), {"token": "env:NOT_THERE"})


def waiting(place: Place) -> str:
    flow = Workflow("waits", secrets=[NAME])
    flow.add("gate", "approval", question="Go?")
    return drive(place, flow).workflow_id


def test_a_reason_is_masked(place: Place, secret: str) -> None:
    workflow_id = waiting(place)
    store = place.open()
    send(store, workflow_id, Abort(reason=f"{SECRET} leaked"))
    store.close()
    assert_nothing_kept(place.root)


def test_a_command_that_would_bring_a_secret_in_is_refused(place: Place, secret: str) -> None:
    workflow_id = waiting(place)
    store = place.open()
    with pytest.raises(CommandRefusedError, match="DEPLOY_TOKEN"):
        send(store, workflow_id, InjectTasks(tasks={"a": {"run": f"echo {SECRET}"}}))
    store.close()
    assert_nothing_kept(place.root)


def test_a_drive_masks_commands_of_those_who_do_not_know_the_secret(
    place: Place, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Workflow("waits", secrets=[NAME])
    flow.add("gate", "approval", question="Go?")
    workflow_id = drive(place, flow).workflow_id
    monkeypatch.delenv(NAME)
    store = place.open()
    send(store, workflow_id, InjectTasks(tasks={"a": {"run": f"echo {SECRET}"}}, reason="x"))
    store.close()
    monkeypatch.setenv(NAME, SECRET)
    go_on(place, workflow_id, flow)
    store = place.open(readonly=True)
    refused = [event for event in store.read_events(workflow_id) if isinstance(event, ev.CommandRefused)]
    store.close()
    assert [event.command["tasks"] for event in refused] == [{"a": {"run": f"echo {MASK}"}}]


def test_inherited_variables_are_not_stored_at_all(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDINARY", "an-ordinary-but-private-value")
    flow = Workflow("inherits")
    flow.add("a", "shell", run="true", effects="none")
    drive(place, flow)
    assert not [where for where, data in everything_kept(place.root) if b"an-ordinary-but-private" in data]


def test_the_client_shows_what_is_stored(tmp_git_repo: Path, secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_git_repo)
    client = Client()
    flow = Workflow("shown")
    flow.task(id="a")(lambda: SECRET)
    result = drive(client.place, flow)
    assert client.show(result.workflow_id).outputs == {"a": MASK}
    assert_nothing_kept(tmp_git_repo / ".agentos")
