"""`agentos fork`: a new run from a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Agentos

FLOW = """
from agentos import Workflow

flow = Workflow("forked")
flow.add("one", "shell", run="echo x >> one-ran", effects="none")
flow.add("two", "shell", run="echo x >> two-ran", needs=["one"], effects="none")
flow.add("ship", "shell", run="echo x >> shipped", needs=["two"], approve="Ship it?", effects="none")
"""


@pytest.fixture
def parent(agentos: Agentos, tmp_git_repo: Path, home: Path) -> Path:
    (tmp_git_repo / "flow.py").write_text(FLOW)
    assert agentos("run", "flow.py", "--id", "parent", cwd=tmp_git_repo).code == 3
    return tmp_git_repo


def checkpoint_of(agentos: Agentos, repo: Path, layer: int) -> str:
    shown = agentos("run", "flow.py", "--id", "parent", "--json", cwd=repo)
    assert shown.code == 3
    events = agentos("watch", "parent", "--json", cwd=repo).out
    return next(
        str(event["checkpoint_id"])
        for event in map(json.loads, events.splitlines())
        if event["type"] == "checkpoint" and event["layer"] == layer
    )


def test_a_fork_begins_with_what_was_finished_at_the_checkpoint(agentos: Agentos, parent: Path) -> None:
    checkpoint = checkpoint_of(agentos, parent, 0)
    done = agentos("fork", checkpoint, "--id", "child", cwd=parent)
    assert done.code == 3, done.err
    assert f"forked from run parent at checkpoint {checkpoint}" in done.out
    assert "agentos approve child approve:ship" in done.err
    assert (parent / "one-ran").read_text() == "x\n"
    assert (parent / "two-ran").read_text() == "x\nx\n"
    assert agentos("approve", "child", cwd=parent).code == 0
    assert (parent / "shipped").read_text() == "x\n"
    statuses = {run["workflow_id"]: run["status"] for run in json.loads(agentos("list", "--json", cwd=parent).out)}
    assert statuses == {"parent": "waiting", "child": "complete"}


def test_an_id_that_is_taken_and_a_checkpoint_that_is_not_there(agentos: Agentos, parent: Path) -> None:
    checkpoint = checkpoint_of(agentos, parent, 0)
    taken = agentos("fork", checkpoint, "--id", "parent", cwd=parent)
    assert taken.code == 2
    for name in ("nonesuch", "a/b", "a\nb", ""):
        unknown = agentos("fork", name, cwd=parent)
        assert unknown.code == 2
        assert "Traceback" not in unknown.err
    assert len(json.loads(agentos("list", "--json", cwd=parent).out)) == 1


def test_of_a_run_the_newest_checkpoint_is_meant(agentos: Agentos, parent: Path) -> None:
    newest = json.loads(agentos("checkpoints", "parent", "--json", cwd=parent).out)[-1]["id"]
    first = []
    for given, run in (("parent", "by-run"), (newest, "by-checkpoint")):
        agentos("fork", given, "--id", run, "--gates", "stop", cwd=parent)
        first.append(json.loads(agentos("events", run, "--json", cwd=parent).out.splitlines()[0]))
    assert [event["type"] for event in first] == ["run_forked", "run_forked"]
    assert [event["checkpoint_id"] for event in first] == [newest, newest]


def test_a_run_without_a_checkpoint_cannot_be_forked(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "flow.yaml").write_text("tasks:\n  a: {run: 'kill -9 $PPID; sleep 5', effects: none}\n")
    agentos("run", "flow.yaml", "--id", "young", cwd=tmp_git_repo)
    done = agentos("fork", "young", cwd=tmp_git_repo)
    assert done.code == 2
    assert "run young has no checkpoint:" in done.err
    assert "agentos resume young" in done.err
    agentos("abort", "young", cwd=tmp_git_repo)
    done = agentos("fork", "young", cwd=tmp_git_repo)
    assert "begin a new run" in done.err
    assert "agentos resume young" not in done.err, "an aborted run is not resumed"


def test_after_a_rejection_the_way_on_is_a_fork(agentos: Agentos, parent: Path) -> None:
    """No resume runs what was rejected: neither the report nor `show` may send anybody there."""
    assert agentos("reject", "parent", "--reason", "no", cwd=parent).code == 0
    assert agentos("show", "parent", cwd=parent).out.splitlines()[-1] == "Next: agentos fork parent"
    again = agentos("resume", "parent", cwd=parent)
    assert again.code == 1
    assert again.err.splitlines()[-1].endswith("Ask anew in a new run: agentos fork parent")
    assert agentos("fork", "parent", cwd=parent).code == 3


@pytest.mark.parametrize("effects", ["files", "external"])
def test_a_task_that_was_asked_for_again_asks_in_a_fork_as_in_its_parent(
    agentos: Agentos, tmp_git_repo: Path, home: Path, effects: str
) -> None:
    (tmp_git_repo / "flow.yaml").write_text(
        f"name: pays\ntasks: {{pay: {{run: 'echo x >> ../paid', effects: {effects}}}}}\n"
    )
    assert agentos("run", "flow.yaml", "--id", "mine", cwd=tmp_git_repo).code == 0
    forked = agentos("fork", "mine", "--id", "child", "--rerun", "pay", cwd=tmp_git_repo)
    resumed = agentos("resume", "mine", "--rerun", "pay", cwd=tmp_git_repo)
    assert (forked.code, resumed.code) == (3, 3), forked.err + resumed.err
    assert "ask:pay asks" in forked.err
    assert (tmp_git_repo.parent / "paid").read_text() == "x\n"
    assert agentos("fork", "mine", "--id", "other", cwd=tmp_git_repo).code == 0, "nobody asked for it there"


# --- other settings, and forks that do not start ------------------------------------------------------------------

SETTABLE = """\
name: set
params: {who: world}
tasks:
  greet: {run: "echo $WORD ${{ params.who }} >> ran", env: {WORD: hello}, effects: none}
  call: {needs: greet, python: "mod:shout", inputs: {text: hey, times: 1}}
  each.one: {needs: call, for_each: [a, b], run: "echo ${{ item }} >> ran", effects: none}
  last: {needs: each.one, run: "echo last >> ran", effects: none, timeout_s: 60}
"""


@pytest.fixture
def settable(agentos: Agentos, tmp_git_repo: Path, home: Path) -> Path:
    (tmp_git_repo / "mod.py").write_text(
        "def shout(text, times):\n    print(text.upper() * times, file=open('ran', 'a'))\n    return text * times\n"
    )
    (tmp_git_repo / "flow.yaml").write_text(SETTABLE)
    done = agentos("run", "flow.yaml", "--id", "parent", cwd=tmp_git_repo)
    assert done.code == 0, done.err
    assert sorted(_ran(tmp_git_repo)) == ["HEY", "a", "b", "hello world", "last"]
    (tmp_git_repo / "ran").unlink()
    return tmp_git_repo


def _ran(repo: Path) -> list[str]:
    return (repo / "ran").read_text().splitlines() if (repo / "ran").exists() else []


@pytest.mark.parametrize(
    ("set_", "ran"),
    [
        (("greet.env.WORD=bye",), ["bye world"]),
        (("call.times=2",), ["HEYHEY"]),
        (("call.inputs.text=ho",), ["HO"]),
        (("last.run=echo end >> ran",), ["end"]),
        (("each.one.run=echo item ${{ item }} >> ran",), ["item a", "item b"]),
        (("last.timeout_s=5", "greet.retries=2"), ["hello world", "last"]),
    ],
)
def test_a_fork_runs_tasks_with_other_settings_and_keeps_the_rest(
    agentos: Agentos, settable: Path, set_: tuple[str, ...], ran: list[str]
) -> None:
    words = [word for one in set_ for word in ("--set", one)]
    done = agentos("fork", "parent", "--id", "child", *words, cwd=settable)
    assert done.code == 0, done.err
    assert sorted(_ran(settable))[: len(ran)] == ran
    assert not {"hello world", "HEY"} & set(_ran(settable)) - set(ran)
    # It is the run's own: a later resume sees no difference, and the parent knows nothing of it.
    again = json.loads(agentos("resume", "child", "--dry-run", "--json", cwd=settable).out)
    assert set(again["counts"]) == {"reuse"}
    assert set(json.loads(agentos("resume", "parent", "--dry-run", "--json", cwd=settable).out)["counts"]) == {"reuse"}


@pytest.mark.parametrize(
    ("set_", "why"),
    [
        ("grete.env.WORD=bye", "(did you mean 'greet'?)"),
        ("greet=bye", "names no task and setting of it"),
        ("last.timeuot_s=5", "it has no argument or setting 'timeuot_s' (did you mean 'timeout_s'?)"),
        ("call.tmies=2", "(did you mean 'times'?)"),
        ("call.run=x", "it has no argument or setting 'run'"),
        ("last.timeout_s=soon", "timeout_s"),
        ("last.needs=greet", "edit the workflow instead"),
        ("last.run=echo ${{ tasks.nonesuch.output }}", "nonesuch"),
        ("each.one[0].run=x", "follows from 'each.one': set it there"),
        ("greet.env.WORD", "is not TASK.KEY=VALUE\nNothing was run; give each once, as --set TASK.KEY=VALUE."),
        ("greet.env.WORD=s3cret-value-of-it", "a setting holds the value of DEPLOY_TOKEN"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_before_anything_is_made(
    agentos: Agentos, settable: Path, set_: str, why: str
) -> None:
    env = {"DEPLOY_TOKEN": "s3cret-value-of-it"}
    refused = agentos("fork", "parent", "--id", "child", "--set", set_, cwd=settable, env=env)
    assert refused.code == 2, refused.err
    assert why in refused.err
    assert "Traceback" not in refused.err
    assert [run["workflow_id"] for run in json.loads(agentos("list", "--json", cwd=settable).out)] == ["parent"]


def test_a_fork_that_does_not_start_is_paused_until_somebody_resumes_it(agentos: Agentos, settable: Path) -> None:
    made = agentos("fork", "parent", "--id", "child", "--set", "greet.env.WORD=bye", "--no-start", cwd=settable)
    assert (made.code, made.out) == (0, "child\n"), made.err
    assert "Start it with: agentos resume child" in made.err
    assert _ran(settable) == []
    shown = json.loads(agentos("show", "child", "--json", cwd=settable).out)
    assert shown["status"] == "paused"
    assert {task["id"]: task["status"] for task in shown["tasks"]}["greet"] == "pending"
    idle = agentos("worker", "--once", cwd=settable)
    assert (idle.code, idle.out) == (0, ""), "it was made to wait for a person"
    assert _ran(settable) == []
    done = agentos("resume", "child", cwd=settable)
    assert done.code == 0, done.err
    assert _ran(settable) == ["bye world"], "the rest gets what it got before"


def test_a_fork_that_does_not_start_tells_programs_how_it_began(agentos: Agentos, settable: Path) -> None:
    made = agentos("fork", "parent", "--rerun", "greet", "--no-start", "--json", cwd=settable)
    events = [json.loads(line) for line in made.out.splitlines()]
    assert [events[0]["type"], events[-1]["type"]] == ["run_forked", "workflow_paused"]
    assert agentos("resume", events[0]["workflow_id"], cwd=settable).code == 0
    assert _ran(settable) == ["hello world"]


def test_a_fork_in_a_worktree_that_does_not_start(agentos: Agentos, settable: Path) -> None:
    at = settable.parent / "aside"
    made = agentos("fork", "parent", "--id", "c", "--worktree", at, "--rerun", "last", "--no-start", cwd=settable)
    assert made.code == 0, made.err
    assert f"agentos resume c --repo {at}" in made.err
    assert agentos("resume", "c", "--repo", at, cwd=settable).code == 0
    assert _ran(at) == ["last"]
    assert _ran(settable) == []
