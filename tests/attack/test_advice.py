"""What an error advises is typed, and does what it says."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from pathlib import Path

import pytest

from agentos.machine import events as ev
from agentos.store.codec import CODES
from tests.cli.conftest import Agentos, Completed, agentos
from tests.marks import quick_first

__all__ = ["agentos"]

pytestmark = pytest.mark.attack

FLOW = """
name: flow
params: {size: small}
tasks:
  a: {run: "echo a >> trace; echo a", effects: none}
  b: {needs: a, run: "echo b >> trace; echo b", effects: none}
  c: {needs: b, run: "echo c >> trace; [ ! -e broken ]", effects: none}
"""


@pytest.fixture
def repo(tmp_git_repo: Path) -> Path:
    (tmp_git_repo / "flow.yaml").write_text(FLOW)
    return tmp_git_repo


def advised(said: str) -> list[list[str]]:
    """Every command that a text tells to type."""
    return [shlex.split(command)[1:] for command in re.findall(r"`(agentos [^`]+)`", said)]


def damage(repo: Path, kind: type[ev.Event], which: int) -> None:
    """Change a stored row of the run, behind everybody's back."""
    database = sqlite3.connect(repo / ".agentos" / "issue_workflow.db")
    rows = [row for (row,) in database.execute("SELECT no FROM event WHERE type = ? ORDER BY no", (CODES[kind],))]
    with database:
        database.execute("UPDATE event SET body = replace(body, '\"layer\"', '\"later\"') WHERE no = ?", (rows[which],))
    database.close()


@pytest.mark.parametrize(
    "command", quick_first(["show r", "why r a", "events r", "logs r a", "watch r", "resume r", "run flow.yaml --id r"])
)
def test_what_a_damaged_run_advises_leads_on(agentos: Agentos, repo: Path, command: str) -> None:
    (repo / "broken").touch()
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 1
    damage(repo, ev.TaskComplete, 1)
    told = agentos(*command.split(), cwd=repo)
    assert told.code == 6
    (repo / "broken").unlink()
    assert goes_on(agentos, repo, told), told.err


def goes_on(agentos: Agentos, repo: Path, told: Completed) -> bool:
    """Follow the first command that is advised, and what it advises in its turn, to a run that is complete."""
    first, *_ = advised(told.err)
    followed = agentos(*first, cwd=repo)
    if first[0] == "doctor":
        (fork,) = re.findall(r"agentos (fork [0-9a-f-]+)", followed.out)
        followed = agentos(*fork.split(), cwd=repo)
    return followed.code == 0 and "is complete" in followed.err


def test_where_nothing_is_sound_the_doctor_sends_nobody_round_in_circles(agentos: Agentos, repo: Path) -> None:
    agentos("run", "flow.yaml", "--id", "r", cwd=repo)
    damage(repo, ev.TaskStart, 0)
    examined = agentos("doctor", "--deep", cwd=repo)
    assert examined.code == 6
    assert "under another id" in examined.out
    assert "doctor --deep" not in examined.out
    assert agentos("run", "flow.yaml", "--id", "other", cwd=repo).code == 0


@pytest.mark.parametrize("edit", ["changed", "added"])
def test_a_complete_run_that_was_edited_since(agentos: Agentos, repo: Path, edit: str) -> None:
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 0
    more = FLOW.replace("echo a >>", "echo A >>") if edit == "changed" else f'{FLOW}  d: {{run: "echo A >> trace"}}\n'
    (repo / "flow.yaml").write_text(more)
    told = agentos("run", "flow.yaml", "--id", "r", cwd=repo)
    assert told.code == 2
    (command,) = advised(told.err)
    followed = agentos(*command, cwd=repo)
    assert followed.code == 0, followed.err
    assert (repo / "trace").read_text().splitlines()[3] == "A", "what was edited has run"
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 0, "and now it is the same run"


def test_a_failed_run_that_was_edited_since(agentos: Agentos, repo: Path) -> None:
    (repo / "broken").touch()
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 1
    (repo / "flow.yaml").write_text(FLOW.replace("[ ! -e broken ]", "true"))
    told = agentos("run", "flow.yaml", "--id", "r", cwd=repo)
    (command,) = advised(told.err)
    assert agentos(*command, cwd=repo).code == 0


def test_other_parameters_take_another_id(agentos: Agentos, repo: Path) -> None:
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 0
    told = agentos("run", "flow.yaml", "--id", "r", "-p", "size=large", cwd=repo)
    assert (told.code, advised(told.err)) == (2, [])
    assert "another id" in told.err


def test_a_run_that_failed_can_go_on_with_other_parameters(agentos: Agentos, repo: Path) -> None:
    (repo / "broken").touch()
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 1
    (repo / "broken").unlink()
    told = agentos("run", "flow.yaml", "--id", "r", "-p", "size=very large", cwd=repo)
    (command,) = advised(told.err)
    assert agentos(*command, cwd=repo).code == 0
    assert agentos("run", "flow.yaml", "--id", "r", "-p", "size=very large", cwd=repo).code == 0, "the same run now"


# --- and what else was said wrong -------------------------------------------------------------------------------


def test_send_prints_json(agentos: Agentos, repo: Path) -> None:
    (repo / "flow.yaml").write_text(FLOW + '  d: {needs: c, approve: "Go on?", run: "true"}\n')
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 3
    sent = agentos("send", "r", "pause", "--json", "--author", "me", cwd=repo)
    assert (sent.code, sent.err) == (0, "")
    assert json.loads(sent.out) == {"workflow_id": "r", "command": "pause", "author": "me", "became": "applied"}


def test_why_knows_a_task_that_is_gone_and_never_ran(agentos: Agentos, repo: Path) -> None:
    asks = FLOW + '  d: {needs: c, approve: "Go on?", run: "true"}\n'
    (repo / "flow.yaml").write_text(asks + '  never: {needs: d, run: "true"}\n')
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 3
    (repo / "flow.yaml").write_text(asks)
    assert agentos("resume", "r", cwd=repo).code == 3
    assert agentos("resume", "r", cwd=repo).code == 3
    told = json.loads(agentos("why", "r", "never", "--json", cwd=repo).out)
    assert told["resume"]["verdict"] == "orphan"
    assert (told["layer"], told["command"]) == (4, "")
    assert "no longer in the workflow" in agentos("why", "r", "never", cwd=repo).out
