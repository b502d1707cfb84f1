"""`agentos approve`, `reject`, `abort`, `pause`, `send`, `inbox`: answers from another terminal."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos import Client
from tests.cli.conftest import SOURCES, Agentos
from tests.cli.sample import begin, write_flow

PATIENCE_S = 30.0

GATES = """
import sys
from pathlib import Path
import time
from agentos import Workflow, run

one = Workflow("one")
one.add("before", lambda: "before")
one.add("ship", lambda before: "shipped", needs=["before"], approve="Ship it?", effects="external")
one.add("after", lambda ship: "after", needs=["ship"])

two = Workflow("two")
two.add("left", lambda: 1, approve="Left?")
two.add("right", lambda: 2, approve="Right?")

pay = Workflow("pay")

@pay.task(effects="external")
def pays() -> dict:
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.02)
    return {"receipt": 1}

pay.add("thank", lambda pays: pays["receipt"], needs=["pays"])

if __name__ == "__main__":
    which, workflow_id, *more = sys.argv[1:]
    print(run(globals()[which], workflow_id=workflow_id, gates=more[0] if more else "stop", check=False).status)
"""


@pytest.fixture
def repo(tmp_git_repo: Path) -> Path:
    write_flow(tmp_git_repo, GATES, "gates.py")
    return tmp_git_repo


def wait_for(condition: Any) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def driven(repo: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A run that waits for its gate in a process that stays."""
    process = subprocess.Popen(
        [sys.executable, "gates.py", "one", "driven", "wait"],
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: any(Client(repo).show(run.workflow_id).gates for run in Client(repo).list_runs()))
        yield repo, process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def shown(agentos: Agentos, repo: Path, run: str) -> dict[str, Any]:
    view: dict[str, Any] = json.loads(agentos("show", run, "--json", cwd=repo).out)
    return view


def test_approve_goes_on_with_a_run_that_nobody_drives(agentos: Agentos, repo: Path) -> None:
    begin(repo, "one", "run", expected="waiting", name="gates.py")
    done = agentos("approve", "run", "--reason", "looks good", "--author", "ada", cwd=repo)
    assert done.code == 0, done.err
    view = shown(agentos, repo, "run")
    assert view["status"] == "complete"
    [decision] = view["state"]["decisions"]
    assert (decision["author"], decision["reason"], decision["answer"]) == ("ada", "looks good", "approved")


def test_no_resume_only_answers(agentos: Agentos, repo: Path) -> None:
    begin(repo, "one", "run", expected="waiting", name="gates.py")
    assert agentos("approve", "run", "--no-resume", cwd=repo).code == 0
    view = shown(agentos, repo, "run")
    assert view["status"] == "interrupted"
    [gate] = view["gates"]
    user, _, host = gate["author"].partition("@")
    assert (gate["answer"], bool(user), host) == ("approved", True, os.uname().nodename)


def test_without_a_gate_only_if_exactly_one_is_open(agentos: Agentos, repo: Path) -> None:
    begin(repo, "two", "run", expected="waiting", name="gates.py")
    for name in ("approve", "reject"):
        done = agentos(name, "run", cwd=repo)
        assert done.code == 2
        assert "approve:left: Left?" in done.err
        assert "approve:right: Right?" in done.err
    assert agentos("approve", "run", "left", cwd=repo).code == 3, "the other gate still waits"
    assert agentos("approve", "run", cwd=repo).code == 0
    assert shown(agentos, repo, "run")["status"] == "complete"


def test_an_answer_to_a_gate_that_is_not_open_is_refused_and_told(agentos: Agentos, repo: Path) -> None:
    begin(repo, "one", "run", expected="waiting", name="gates.py")
    for gate in ("nonsense", "", "approve:ship#2", "x\ny"):
        done = agentos("approve", "run", gate, cwd=repo)
        assert done.code == 2
        assert "approve:ship: Ship it?" in done.err
    assert agentos("approve", "run", cwd=repo).code == 0
    done = agentos("reject", "run", "approve:ship", cwd=repo)
    assert done.code == 2
    assert "was already answered: approved by" in done.err


def test_reject_fails_the_task_and_no_resume_runs_it(agentos: Agentos, repo: Path) -> None:
    begin(repo, "one", "run", expected="waiting", name="gates.py")
    assert agentos("reject", "run", "ship", "--reason", "no\x1b[31m", cwd=repo).code == 0
    view = shown(agentos, repo, "run")
    tasks = {task["id"]: task["status"] for task in view["tasks"]}
    assert (view["status"], tasks) == ("failed", {"before": "complete", "ship": "failed", "after": "skipped"})
    why = json.loads(agentos("why", "run", "ship", "--json", cwd=repo).out)
    assert why["why"].startswith("not run: rejected by")
    assert why["command"] == ""


def test_a_driven_run_takes_the_answer_where_it_is_driven(
    agentos: Agentos, driven: tuple[Path, subprocess.Popen[str]]
) -> None:
    repo, process = driven
    done = agentos("approve", "driven", cwd=repo)
    assert (done.code, done.err) == (0, "approve:ship approved: run driven.\n")
    assert process.communicate(timeout=PATIENCE_S)[0] == "complete\n"


def test_pause_stops_a_driven_run_in_order(agentos: Agentos, driven: tuple[Path, subprocess.Popen[str]]) -> None:
    repo, process = driven
    assert agentos("pause", "driven", cwd=repo).code == 0
    assert process.communicate(timeout=PATIENCE_S)[0] == "paused\n"


def test_abort_is_final_whoever_drives(agentos: Agentos, driven: tuple[Path, subprocess.Popen[str]]) -> None:
    repo, process = driven
    assert agentos("abort", "driven", "--reason", "wrong branch", cwd=repo).code == 0
    assert process.communicate(timeout=PATIENCE_S)[0] == "aborted\n"
    done = agentos("approve", "driven", "approve:ship", cwd=repo)
    assert done.code == 2
    assert agentos("abort", "driven", cwd=repo).code == 2


def test_a_command_that_waits_for_the_layer_is_told_as_received(
    agentos: Agentos, driven: tuple[Path, subprocess.Popen[str]]
) -> None:
    repo, process = driven
    done = agentos("send", "driven", "inject_tasks", 'tasks={"extra": {"run": ["true"], "effects": "none"}}', cwd=repo)
    assert done.code == 0, done.err
    assert agentos("approve", "driven", cwd=repo).code == 0
    assert process.communicate(timeout=PATIENCE_S)[0] == "complete\n"
    assert "extra" in {task["id"] for task in shown(agentos, repo, "driven")["tasks"]}


def test_a_refusal_of_the_driver_is_told(agentos: Agentos, driven: tuple[Path, subprocess.Popen[str]]) -> None:
    repo, _ = driven
    done = agentos("send", "driven", "skip_layer", "layer=99", cwd=repo)
    assert done.code == 2
    assert "there is no layer 99" in done.err


def test_an_attempt_of_ours_may_not_answer_for_a_human(agentos: Agentos, repo: Path) -> None:
    begin(repo, "one", "run", expected="waiting", name="gates.py")
    inside = {"AGENTOS_ATTEMPT_ID": "run/agent/1"}
    for arguments in (
        ("approve", "run"),
        ("reject", "run"),
        ("send", "run", "approval_response", "gate_id=approve:ship", "approved=true"),
    ):
        done = agentos(*arguments, cwd=repo, env=inside)
        assert done.code == 2
        assert "is for a human" in done.err
    refused = [
        json.loads(line)
        for line in agentos("events", "run", "--json", "--type", "command_refused", cwd=repo).out.splitlines()
    ]
    assert len(refused) == 3
    assert shown(agentos, repo, "run")["gates"][0]["open"]


def test_an_effect_that_was_cut_off_can_be_said_to_have_happened(agentos: Agentos, repo: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "gates.py", "pay", "paid"], cwd=repo, env={**os.environ, "PYTHONPATH": str(SOURCES)}
    )
    wait_for((repo / "begun").exists)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert subprocess.run(
        [sys.executable, "-c", "import agentos; print(agentos.resume('paid', check=False).status)"],
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
    ).stdout.startswith("waiting")
    bad = agentos("approve", "paid", "--output", "{no json", cwd=repo)
    assert (bad.code, "is given as JSON, and this is none" in bad.err) == (2, True)
    done = agentos("approve", "paid", "--output", '{"receipt": 17}', cwd=repo)
    assert done.code == 0, done.err
    outputs = {task["id"]: task["output"] for task in shown(agentos, repo, "paid")["tasks"]}
    assert outputs == {"pays": {"receipt": 17}, "thank": 17}


def test_the_inbox_shows_every_open_gate_with_what_to_type(agentos: Agentos, repo: Path) -> None:
    begin(repo, "one", "older", expected="waiting", name="gates.py")
    begin(repo, "two", "newer", expected="waiting", name="gates.py")
    gates = json.loads(agentos("inbox", "--json", cwd=repo).out)
    assert [gate["workflow_id"] for gate in gates] == ["newer", "newer", "older"]
    for gate in gates:
        program, *arguments = shlex.split(gate["approve"])
        assert program == "agentos"
        assert agentos(*arguments, "--no-resume", cwd=repo).code == 0
    said = agentos("inbox", cwd=repo)
    assert (said.code, said.out, said.err) == (0, "", "Nothing waits for an answer.\n")


def test_every_command_can_be_sent_and_is_listed(agentos: Agentos, repo: Path) -> None:
    from typing import get_args

    from agentos.machine.commands import Command

    listed = json.loads(agentos("send", "--list", "--json", cwd=repo).out)
    assert [row["name"] for row in listed] == [kind.__struct_config__.tag for kind in get_args(Command)]
    begin(repo, "one", "run", expected="waiting", name="gates.py")
    by_words = agentos("send", "run", "skip_layer", "layer=2", "reason=not today", cwd=repo)
    assert (by_words.code, "kept for run run" in by_words.err) == (0, True)
    by_json = agentos(
        "send", "run", '{"type": "approval_response", "gate_id": "approve:ship", "approved": true}', cwd=repo
    )
    assert by_json.code == 0
    by_stdin = agentos("send", "run", "-", cwd=repo, input='{"type": "pause"}')
    assert by_stdin.code == 0


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nonsense",),
        ("skip_layer",),
        ("skip_layer", "layer=two"),
        ("skip_layer", "layer"),
        ("skip_layer", "floor=1"),
        ("skip_layer", "layer=-1"),
        ("[1]",),
        ("{",),
        ('{"type": "nonsense"}',),
        ('{"type": "pause"}', "reason=x"),
        ('{"type": "pause", "more": 1}',),
        ("\udcff",),
    ],
)
def test_a_malformed_command_is_refused_before_anything_is_sent(
    agentos: Agentos, tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = agentos("send", "run", *words, cwd=tmp_path)
    assert done.code == 2
    assert "Traceback" not in done.err


MERGE = """
tasks:
  a: {run: "echo by a > shared.txt; echo a > a.txt", isolation: worktree}
  b: {run: "echo by b > shared.txt", isolation: worktree}
  after: {run: cat shared.txt, needs: [a, b], effects: none}
"""


@pytest.fixture
def conflict(agentos: Agentos, tmp_git_repo: Path) -> Path:
    """A run that waits for somebody to choose."""
    (tmp_git_repo / "workflows").mkdir()
    (tmp_git_repo / "workflows" / "flow.yaml").write_text(MERGE)
    waits = agentos("run", "flow", "--id", "m", cwd=tmp_git_repo)
    assert waits.code == 3, waits.err
    assert "agentos approve m merge:0 --use shared.txt=task:b" in waits.err
    assert "<<<<<<< worktree" in waits.err
    assert "agentos approve m merge:0 --use shared.txt=task:b" in agentos("inbox", cwd=tmp_git_repo).out
    return tmp_git_repo


def test_a_merge_takes_a_version_for_each_path(agentos: Agentos, conflict: Path) -> None:
    done = agentos("approve", "m", "--use", "shared.txt=task:a", cwd=conflict)
    assert done.code == 0, done.err
    assert (conflict / "shared.txt").read_text() == "by a\n"
    assert (conflict / "a.txt").exists()


def test_a_merge_takes_a_file_as_it_is_named_from_here(agentos: Agentos, conflict: Path, tmp_path: Path) -> None:
    (tmp_path / "merged.txt").write_text("by both\n")
    done = agentos("approve", "m", "--use", "shared.txt=file:merged.txt", "--repo", conflict, cwd=tmp_path)
    assert done.code == 0, done.err
    assert (conflict / "shared.txt").read_text() == "by both\n"


def test_a_merge_without_a_choice_is_refused(agentos: Agentos, conflict: Path) -> None:
    for arguments, why in (
        ((), "which version to take"),
        (("--use", "shared.txt=task:c"), "is no version of"),
        (("--use", "shared.txt"), "is not PATH=worktree"),
        (("--use", "shared.txt=task:a", "--output", "1"), "give one of them"),
        (("--use", "shared.txt=task:a", "--use", "shared.txt=task:b"), "names a path twice"),
        (("--use", "shared.txt=task:a", "--resolve-with", "agent:claude"), "give one of them"),
        (("--resolve-with", "claude"), "is not agent:NAME"),
        (("--resolve-with", "agent:cladue"), "did you mean 'claude'"),
    ):
        done = agentos("approve", "m", *arguments, cwd=conflict)
        assert (done.code, why in done.err) == (2, True), done.err
    assert agentos("reject", "m", cwd=conflict).code in (0, 1)
    assert not (conflict / "a.txt").exists()


CLAUDE = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "2.0.0 (Claude Code)"; exit; fi
cat > prompt.txt
sed -i -e 's/^main$/fish and meat/' -e 's/^bread$/toast/' menu.txt
echo more > more.txt
echo '{"type":"result","subtype":"success","is_error":false,"result":"Both.","num_turns":1}'
"""
MENU = """
tasks:
  fish: {run: "sed -i s/main/fish/ menu.txt", isolation: worktree}
  meat: {run: "sed -i -e s/main/meat/ -e s/wine/red/ menu.txt", isolation: worktree}
"""


@pytest.mark.parametrize(
    ("chosen", "menu"),
    [
        ("task:merge-0", "fish and meat,salt,toast,oil,red"),
        ("task:fish", "fish,salt,bread,oil,red"),
        ("worktree", "main,salt,bread,oil,red"),
    ],
)
@pytest.mark.parametrize("schedule", ["layers", "ready"])
def test_an_agent_proposes_and_what_is_not_chosen_is_not_taken(
    agentos: Agentos, tmp_git_repo: Path, tmp_path: Path, schedule: str, chosen: str, menu: str
) -> None:
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(CLAUDE)
    program.chmod(0o755)
    env = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    (tmp_git_repo / "menu.txt").write_text("main\nsalt\nbread\noil\nwine\n")
    (tmp_git_repo / "flow.yaml").write_text(f"schedule: {schedule}\n{MENU}")
    assert agentos("run", "flow.yaml", "--id", "m", cwd=tmp_git_repo).code == 3
    asks = agentos("approve", "m", "--resolve-with", "agent:claude", cwd=tmp_git_repo, env=env)
    assert asks.code == 3, asks.err
    assert "agentos approve m 'merge:0#2' --use menu.txt=task:merge-0" in asks.err
    assert (tmp_git_repo / "menu.txt").read_text() == "main\nsalt\nbread\noil\nwine\n"
    assert "toast" in agentos("diff", "m", "merge-0", "--patch", cwd=tmp_git_repo).out
    done = agentos("approve", "m", "merge:0#2", "--use", f"menu.txt={chosen}", cwd=tmp_git_repo)
    assert done.code == 0, done.err
    assert ",".join((tmp_git_repo / "menu.txt").read_text().splitlines()) == menu
    assert not (tmp_git_repo / "more.txt").exists(), "nothing but what was in conflict is taken from the agent"


def test_what_is_suggested_can_be_typed_as_it_is(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "workflows").mkdir()
    names = "\"it's.txt\" one.txt 'two words.txt'"
    tasks = [
        f'  {name}:\n    run: |\n      for f in {names}; do echo {name} > "$f"; done\n    isolation: worktree\n'
        for name in "ab"
    ]
    (tmp_git_repo / "workflows" / "flow.yaml").write_text(
        f"tasks:\n{''.join(tasks)}  c: {{run: echo c > c.txt, isolation: worktree}}\n"
    )
    assert agentos("run", "flow", "--id", "m", cwd=tmp_git_repo).code == 3
    [gate] = json.loads(agentos("show", "m", "--json", cwd=tmp_git_repo).out)["gates"]
    assert "…" not in gate["command"]
    program, *arguments = shlex.split(gate["command"])
    assert program == "agentos"
    done = agentos(*arguments, cwd=tmp_git_repo)
    assert done.code == 0, done.err
    assert {(tmp_git_repo / name).read_text() for name in shlex.split(names)} == {"b\n"}
    assert (tmp_git_repo / "c.txt").exists()


# --- gates with choices ---------------------------------------------------------------------------------------------

CHOICES = """
from agentos import Workflow

flow = Workflow("choices")
flow.add("draft", lambda: "a draft")
flow.add("look", "approval", needs=["draft"],
         question={"question": "Good?", "choices": ["send", "revise"], "file": "draft.md"})
flow.add("told", lambda look: f"{look['choice']}: {look['reason']}", needs=["look"])
"""


@pytest.fixture
def choosing(agentos: Agentos, repo: Path) -> Path:
    write_flow(repo, CHOICES, "choices.py")
    done = agentos("run", "choices.py", "--id", "run", cwd=repo)
    assert done.code == 3
    assert "about the file draft.md" in done.err
    for choice in ("send", "revise"):
        assert f"agentos approve run approval:look --choose {choice}\n" in done.err
    return repo


def test_a_choice_and_its_reason_from_a_file_reach_what_depends_on_it(agentos: Agentos, choosing: Path) -> None:
    (choosing / "notes.md").write_text("shorter\nand friendlier\n")
    done = agentos("approve", "run", "--choose", "revise", "--reason-file", "notes.md", cwd=choosing)
    assert done.code == 0, done.err
    assert "approval:look answered with revise" in done.err
    view = shown(agentos, choosing, "run")
    [gate] = view["gates"]
    assert (gate["choices"], gate["choice"], gate["file"]) == (["send", "revise"], "revise", "draft.md")
    assert view["state"]["decisions"][0]["choice"] == "revise"
    [told] = [task for task in view["tasks"] if task["id"] == "told"]
    assert told["output"] == "revise: shorter\nand friendlier"
    assert "approval:look  revise by" in agentos("show", "run", cwd=choosing).out


def test_a_plain_yes_at_choices_is_refused_and_tells_them(agentos: Agentos, choosing: Path) -> None:
    for more in ((), ("--choose", "ship")):
        done = agentos("approve", "run", *more, cwd=choosing)
        assert done.code == 2
        assert "send, revise" in done.err
        assert "--choose send" in done.err
    assert shown(agentos, choosing, "run")["status"] == "waiting"


def test_send_and_inbox_know_choices(agentos: Agentos, choosing: Path) -> None:
    [gate] = json.loads(agentos("inbox", "--json", cwd=choosing).out)
    assert (gate["choices"], gate["file"]) == (["send", "revise"], "draft.md")
    assert gate["approve"].endswith(" --choose send")
    assert "or --choose revise" in agentos("inbox", cwd=choosing).out
    sent = ("send", "run", "approval_response", "gate_id=approval:look", "approved=true", "choice=send")
    assert agentos(*sent, cwd=choosing).code == 0
    assert shown(agentos, choosing, "run")["gates"][0]["choice"] == "send"


def test_a_reason_is_given_once(agentos: Agentos, choosing: Path) -> None:
    (choosing / "notes.md").write_text("x")
    for name in ("approve", "reject"):
        done = agentos(name, "run", "--reason", "y", "--reason-file", "notes.md", cwd=choosing)
        assert (done.code, "exclude each other" in done.err) == (2, True)
        assert agentos(name, "run", "--reason-file", "gone.md", cwd=choosing).code == 2
