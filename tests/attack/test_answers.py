"""Who may answer a human's gate: everything that a task can do to look like somebody else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentos import Client, Workflow, resume, run
from tests.cli.conftest import SOURCES, Agentos
from tests.cli.conftest import agentos as agentos
from tests.cli.terminal import Terminal
from tests.marks import quick_first

pytestmark = pytest.mark.attack

VICTIM = """
name: victim
tasks:
  ship: {approve: "Ship it?", run: "touch shipped"}
"""
APPROVE = f"{sys.executable} -m agentos approve victim --author boss --no-resume --repo $VICTIM"
CLEAN = f"env -i PATH=$PATH PYTHONPATH=$PYTHONPATH HOME=/nowhere XDG_STATE_HOME=/nowhere {APPROVE}"
# The orphan answers once whoever started it has gone: its parent is then whoever the kernel gave it to.
ORPHAN = f"""
cat > orphan.sh <<'EOF'
while kill -0 $1 2>/dev/null; do sleep 0.01; done
{CLEAN} >orphan.log 2>&1
touch tried
EOF
setsid sh -c 'VICTIM='"$VICTIM"' sh orphan.sh $$ & exit 0'
while ! test -e tried; do sleep 0.02; done
cat orphan.log >&2
exit 7
"""
SHELLS = {
    "as it is": APPROVE,
    "without the variable": f"env -u AGENTOS_ATTEMPT_ID {APPROVE}",
    "with an empty variable": f"AGENTOS_ATTEMPT_ID= {APPROVE}",
    "without an environment": CLEAN,
    "in a session of its own": f"setsid --wait {CLEAN}",
    "as an orphan": ORPHAN,
    "rejecting": CLEAN.replace("approve victim", "reject victim").replace("--no-resume", ""),
    "by send": CLEAN.replace("approve victim", "send victim").replace(
        "--no-resume", "approval_response gate_id=approve:ship approved=true"
    ),
}
PYTHON = f"""
import asyncio, os, subprocess, sys, threading
from agentos import Client, Workflow

def answer():
    os.environ.pop("AGENTOS_ATTEMPT_ID", None)
    Client(repo=os.environ["VICTIM"]).approve("victim", author="boss")

def by_client():
    answer()

async def on_the_loop():
    answer()

async def from_a_thread_of_asyncio():
    await asyncio.to_thread(answer)

async def in_a_task_of_its_own():
    await asyncio.create_task(on_the_loop())

def by_a_program():
    done = subprocess.run({CLEAN.replace("$VICTIM", "{victim}")!r}.format(victim=os.environ["VICTIM"]),
                          shell=True, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)

def by_a_fork():
    pid = os.fork()
    if not pid:
        try:
            answer()
        except BaseException as error:
            os.write(2, str(error).encode())
            os._exit(9)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("is for a human")

flow = Workflow("attacker", max_concurrency=1)
for attack in (by_client, on_the_loop, from_a_thread_of_asyncio, in_a_task_of_its_own, by_a_program, by_a_fork):
    flow.add(attack.__name__, attack, isolation=os.environ["ISOLATION"])
"""


def make_repo(path: Path) -> Path:
    subprocess.run(["git", "init", "-q", path], check=True)
    return path


@pytest.fixture
def victim(tmp_path: Path, home: Path, agentos: Agentos) -> Path:
    """A repository with a run that waits for a human. Nobody drives it."""
    root = make_repo(tmp_path / "victim")
    (root / "victim.yaml").write_text(VICTIM)
    assert agentos("run", "victim.yaml", "--id", "victim", cwd=root).code == 3
    return root


@pytest.fixture(params=quick_first(["the same database", "another database"]))
def attacker(request: pytest.FixtureRequest, tmp_path: Path, victim: Path) -> Path:
    return victim if request.param == "the same database" else make_repo(tmp_path / "attacker")


def write_attack(root: Path, commands: dict[str, str]) -> None:
    tasks = {name: {"run": command, "effects": "none"} for name, command in commands.items()}
    # One after the other: an answer that finds the run taken for a moment would wait in its inbox.
    (root / "attack.yaml").write_text(json.dumps({"name": "attacker", "max_concurrency": 1, "tasks": tasks}))


def state_of(agentos: Agentos, victim: Path) -> tuple[str, list[str]]:
    """Status, and why answers were refused."""
    shown = json.loads(agentos("show", "victim", "--json", cwd=victim).out)
    lines = agentos("events", "victim", "--json", "--type", "command_refused", cwd=victim).out.splitlines()
    return shown["status"], [json.loads(line)["why"] for line in lines]


def test_a_command_of_a_task_does_not_answer_for_a_human(agentos: Agentos, victim: Path, attacker: Path) -> None:
    write_attack(attacker, SHELLS)
    done = agentos("run", "attack.yaml", "--id", "attack", cwd=attacker, env={"VICTIM": str(victim)})
    assert done.code == 1
    for task in json.loads(agentos("show", "attack", "--json", cwd=attacker).out)["tasks"]:
        assert "is for a human" in task["error"]["text"], task
    status, refused = state_of(agentos, victim)
    assert status == "waiting"
    assert len(refused) == len(SHELLS)
    assert all("is for a human" in why for why in refused)
    assert agentos("approve", "victim", cwd=victim).code == 0  # a person still can
    assert (victim / "shipped").exists()


@pytest.mark.parametrize("isolation", quick_first(["", "process"]))
def test_a_python_task_does_not_answer_for_a_human(
    agentos: Agentos, victim: Path, tmp_path: Path, isolation: str
) -> None:
    attacker = make_repo(tmp_path / "attacker")
    (attacker / "attack.py").write_text(PYTHON)
    env = {"VICTIM": str(victim), "ISOLATION": isolation}
    done = agentos("run", "attack.py", "--id", "attack", cwd=attacker, env=env)
    assert done.code == 1, done.err
    tasks = json.loads(agentos("show", "attack", "--json", cwd=attacker).out)["tasks"]
    for task in tasks:
        assert "is for a human" in task["error"]["text"], task
    status, refused = state_of(agentos, victim)
    assert status == "waiting"
    assert len(refused) == len(tasks)
    assert all("is for a human" in why for why in refused)


def test_a_task_of_the_run_itself_does_not_pass_its_gate(agentos: Agentos, tmp_path: Path, home: Path) -> None:
    """The driver lives and reads its inbox: the answer is handed over, and refused there."""
    root = make_repo(tmp_path / "repo")
    attack = CLEAN.replace("$VICTIM", str(root))
    tasks = {
        "agent": {
            "run": f"while ! {sys.executable} -m agentos show victim --json | grep -q '\"open\": *true'; do :; done\n"
            f"{attack} && exit 0\n{attack} 2>&1 | grep 'is for a human' || true",
            "effects": "none",
        },
        "ship": {"approve": "Ship it?", "run": "touch shipped", "effects": "none"},
    }
    (root / "flow.yaml").write_text(json.dumps({"name": "victim", "tasks": tasks}))
    assert agentos("run", "flow.yaml", "--id", "victim", cwd=root).code == 3
    assert not (root / "shipped").exists()
    status, refused = state_of(agentos, root)
    assert status == "waiting"
    assert refused
    assert all("is for a human" in why for why in refused)


def test_a_program_that_runs_a_workflow_is_a_driver_too(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` in somebody's program: what its tasks start is below a driver; the program itself may answer."""
    monkeypatch.chdir(tmp_git_repo)
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    victim = Workflow("victim")
    victim.add("ship", lambda: "shipped", approve="Ship it?")
    assert run(victim, workflow_id="victim").status == "waiting"
    command = CLEAN.replace("$VICTIM", str(tmp_git_repo))
    attacker = Workflow("attacker")
    attacker.add("attack", lambda: subprocess.run(command, shell=True, capture_output=True, text=True).stderr)
    assert "is for a human; the answer came from a process below driver" in run(attacker).outputs["attack"]
    Client().approve("victim", author="boss")
    assert resume("victim", workflow=victim).status == "complete"


def test_a_hook_of_a_repository_does_not_answer(agentos: Agentos, tmp_path: Path, home: Path) -> None:
    root = make_repo(tmp_path / "repo")
    (root / "hook.sh").write_text(f"#!/bin/sh\nVICTIM={root}\n{CLEAN} 2>hook.log\n")
    (root / "hook.sh").chmod(0o755)
    (root / "agentos.toml").write_text('on_wait = ["./hook.sh"]\n')
    (root / "victim.yaml").write_text(VICTIM)
    agentos("trust", "--yes", cwd=root)  # where settings need it
    assert agentos("run", "victim.yaml", "--id", "victim", cwd=root).code == 3
    assert "is for a human" in (root / "hook.log").read_text()
    assert state_of(agentos, root)[0] == "waiting"


def test_a_gate_for_agents_takes_the_answer_of_a_task(agentos: Agentos, tmp_path: Path, home: Path) -> None:
    root = make_repo(tmp_path / "repo")
    (root / "victim.yaml").write_text(VICTIM.replace('"Ship it?"', '{question: "Ship it?", by: agent}'))
    assert agentos("run", "victim.yaml", "--id", "victim", cwd=root).code == 3
    write_attack(root, {"attack": CLEAN})
    assert agentos("run", "attack.yaml", cwd=root, env={"VICTIM": str(root)}).code == 0
    assert state_of(agentos, root)[0] != "waiting"


def test_an_agent_does_not_replace_what_stands_behind_a_human(agentos: Agentos, tmp_path: Path, home: Path) -> None:
    root = make_repo(tmp_path / "repo")
    tasks: dict[str, Any] = {
        "look": {"approval": "Go on?"},
        "ship": {"needs": "look", "run": "touch shipped", "effects": "none"},
    }
    (root / "flow.yaml").write_text(json.dumps({"name": "victim", "tasks": tasks}))
    assert agentos("run", "flow.yaml", "--id", "victim", cwd=root).code == 3
    replan = json.dumps({"type": "replan_dag", "tasks": {"ship": {"run": "touch shipped", "effects": "none"}}})
    sending = CLEAN.replace("approve victim --author boss --no-resume", f"send victim '{replan}'")
    write_attack(root, {"attack": sending})
    agentos("run", "attack.yaml", cwd=root, env={"VICTIM": str(root)})
    assert agentos("resume", "victim", cwd=root).code == 3
    assert not (root / "shipped").exists()
    assert any("waits for a human" in why for why in state_of(agentos, root)[1])


# --- who answered ---------------------------------------------------------------------------------------------------


def test_who_really_answered_stands_beside_the_name_that_was_given(agentos: Agentos, victim: Path) -> None:
    env = {"USER": "somebody", "LOGNAME": "somebody"}
    assert agentos("approve", "victim", "--author", "the boss", "--no-resume", cwd=victim, env=env).code == 0
    [gate] = json.loads(agentos("show", "victim", "--json", cwd=victim).out)["gates"]
    assert gate["author"] == "the boss"
    assert gate["sender"]["uid"] == os.getuid()
    assert gate["sender"]["user"] not in ("the boss", "somebody")
    assert any(name.endswith(f" {os.getpid()}") for name in gate["sender"]["processes"])
    for command in (("show", "victim"), ("why", "victim", "ship")):
        text = agentos(*command, cwd=victim).out
        assert "by the boss" in text
        assert f"sent by {gate['sender']['user']}@" in text


def test_the_prompt_of_a_driver_answers_and_says_who(victim: Path, agentos: Agentos) -> None:
    screen = Terminal("resume", "victim", cwd=victim, env={"PYTHONPATH": str(SOURCES)})
    screen.until("approve, reject or leave it?")
    screen.type("a\n")
    assert screen.end() == 0
    [gate] = json.loads(agentos("show", "victim", "--json", cwd=victim).out)["gates"]
    assert gate["answer"] == "approved"
    assert gate["sender"]["uid"] == os.getuid()


# --- orphans --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux")
def test_adopted_orphans_are_reaped_and_no_other_status_is_taken(agentos: Agentos, tmp_path: Path, home: Path) -> None:
    """A task leaves orphans behind; the driver's own children keep their status, also those of its tasks."""
    root = make_repo(tmp_path / "repo")
    (root / "flow.py").write_text(
        "import asyncio, os, pathlib, subprocess, sys\n"
        "from agentos import Workflow\n"
        "flow = Workflow('flow')\n"
        "leave = 'for n in 1 2 3; do (setsid sleep 0.3 & sleep 0.1 & exit 0); done'\n"
        "flow.add('orphans', 'shell', run=leave, effects='none')\n"
        "@flow.task\n"
        "async def own(orphans):\n"
        "    codes = []\n"
        "    for more in ({}, {'start_new_session': True}):\n"
        "        child = subprocess.Popen(['sh', '-c', 'exit 5'], **more)\n"
        "        await asyncio.sleep(0.5)\n"
        "        codes.append(child.wait())\n"
        "    main = f'/proc/{os.getpid()}/task/{os.getpid()}/children'\n"
        "    left = [pid for pid in pathlib.Path(main).read_text().split()]\n"
        "    return {'codes': codes, 'left': left}\n"
    )
    done = agentos("run", "flow.py", "--id", "r", cwd=root)
    assert done.code == 0, done.err
    tasks = json.loads(agentos("show", "r", "--json", cwd=root).out)["tasks"]
    assert next(task for task in tasks if task["id"] == "own")["output"] == {"codes": [5, 5], "left": []}
