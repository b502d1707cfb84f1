"""What is said about the store: damage is what is damaged, and nothing else is called so."""

from __future__ import annotations

import json
import resource
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agentos.exceptions import AgentosError, CheckpointCorruptedError, IntegrityError, TryAgainError
from agentos.store.sqlite.database import open_store
from agentos.store.sqlite.driver import DOUBTS, insist
from tests.cli import runs
from tests.cli.conftest import Agentos
from tests.contract.journals import RUNNING, Journal, create
from tests.marks import quick_first
from tests.workflow.support import environment

pytestmark = pytest.mark.attack


def test_a_refused_statement_is_our_fault_and_no_damage(tmp_path: Path) -> None:
    store = open_store(tmp_path / "x.db")
    lease, journal = create(store), Journal()
    journal.start("a")
    store._connection.execute("BEGIN")
    with pytest.raises(AgentosError, match="within a transaction") as raised:
        store.append(lease, journal.take(), RUNNING)
    assert not isinstance(raised.value, (IntegrityError, TryAgainError))
    assert "set-aside" not in str(raised.value)
    store.close()


@pytest.mark.parametrize("code", [sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR_SHORT_READ])
def test_one_read_that_goes_wrong_is_no_damage(tmp_path: Path, code: int) -> None:
    tried: list[int] = []

    def read(failing: int) -> str:
        tried.append(1)
        if len(tried) <= failing:
            error = sqlite3.DatabaseError("what SQLite says")
            error.sqlite_errorcode = code
            raise error
        return "read"

    assert insist(lambda: read(1), tmp_path, 0.0) == "read"
    tried.clear()
    with pytest.raises(AgentosError):
        insist(lambda: read(100), tmp_path, 0.0)
    assert len(tried) == DOUBTS + 1


def test_a_row_that_reads_wrong_once_is_read_again(tmp_path: Path) -> None:
    def read() -> str:
        if not seen:
            seen.append(1)
            raise CheckpointCorruptedError("event 1", "the digest differs")
        return "read"

    seen: list[int] = []
    assert insist(read, tmp_path, 0.0) == "read"


def test_a_program_that_is_older_than_the_schema_exits_6(agentos: Agentos, tmp_git_repo: Path) -> None:
    runs.waiting(tmp_git_repo)
    database = tmp_git_repo / ".agentos" / "issue_workflow.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA user_version = 99")
    content = database.read_bytes()
    (tmp_git_repo / "other.yaml").write_text("name: other\ntasks:\n  one: {run: 'true'}\n")
    for command in (
        ["list"],
        ["show", "ask-1"],
        ["resume", "ask-1"],
        ["run", "other.yaml"],
        ["approve", "ask-1", "approve:ship"],
        ["delete", "ask-1", "--yes"],
        ["export", "ask-1", "-o", "x.tar"],
        ["doctor"],
        ["doctor", "--set-aside"],
    ):
        done = agentos(*command, cwd=tmp_git_repo)
        assert (done.code, "schema 99" in done.out + done.err) == (6, True), (command, done)
    assert database.read_bytes() == content


DEEP = """
from agentos import Workflow

flow = Workflow("deep")

def nested(levels):
    value = "end"
    for _ in range(levels):
        value = [value]
    return value

def count(t):
    levels = 0
    while isinstance(t, list):
        t, levels = t[0], levels + 1
    return levels

flow.add("t", lambda: nested({levels}))
flow.add("here", count, inputs={{"t": "${{{{ tasks.t.output }}}}"}})
flow.add("process", count, inputs={{"t": "${{{{ tasks.t.output }}}}"}}, isolation="process")
flow.add("each", count, inputs={{"t": "${{{{ item }}}}"}}, for_each="${{{{ tasks.t.output }}}}", approve="Go on?")
"""


@pytest.mark.parametrize("levels", quick_first([197, 200]))
def test_what_can_be_stored_can_be_shown(agentos: Agentos, tmp_git_repo: Path, levels: int) -> None:
    (tmp_git_repo / "deep.py").write_text(DEEP.format(levels=levels))
    ran = agentos("run", "deep.py", "--id", "run", cwd=tmp_git_repo)
    assert ran.code == 3, ran.err
    for command in (["show"], ["show", "--json"], ["checkpoints"], ["events", "--json"], ["resume", "--dry-run"]):
        done = agentos(command[0], "run", *command[1:], cwd=tmp_git_repo)
        assert done.code in (0, 3), (command, done.err[-300:])
    tasks = {task["id"]: task for task in json.loads(agentos("show", "run", "--json", cwd=tmp_git_repo).out)["tasks"]}
    assert (tasks["here"]["output"], tasks["process"]["output"]) == (levels, levels)


def test_what_is_nested_too_deep_fails_its_task_and_says_where(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "deep.py").write_text(DEEP.format(levels=201))
    assert agentos("run", "deep.py", "--id", "run", cwd=tmp_git_repo).code == 1
    tasks = {task["id"]: task for task in json.loads(agentos("show", "run", "--json", cwd=tmp_git_repo).out)["tasks"]}
    assert tasks["t"]["status"] == "failed"
    assert "$[0][0]" in tasks["t"]["error"]["text"]
    assert "more than 200 levels" in tasks["t"]["error"]["text"]


@pytest.mark.parametrize("megabytes", quick_first([90, 110, 150, 220]))
def test_too_little_memory_is_told_as_that(tmp_git_repo: Path, megabytes: int) -> None:
    (tmp_git_repo / "big.py").write_text(
        "from agentos import Workflow\n"
        "flow = Workflow('big')\n"
        "flow.add('a', lambda: 'x' * 20_000_000)\n"
        "flow.add('b', lambda a: len(a), needs=['a'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "agentos", "run", "big.py"],
        cwd=tmp_git_repo,
        env={name: value for name, value in environment().items() if not name.startswith("COV")},
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20)),
    )
    assert "bug in AgentOS" not in done.stderr, done.stderr
    assert "damaged" not in done.stderr
