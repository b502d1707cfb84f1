"""`agentos db`: where state lives, how large it is, and its schema brought up to date."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentos import Client, Workflow, run
from agentos.cli.main import program
from agentos.store.sqlfiles import Migration, migrations
from agentos.store.sqlite import database as sqlite_open
from agentos.store.sqlite import stats
from tests.cli.conftest import Agentos
from tests.cli.runs import complete, driven, interrupted


def database(root: Path) -> Path:
    return root / ".agentos" / "issue_workflow.db"


def test_stats_tell_sizes_by_table_and_run(tmp_git_repo: Path, agentos: Agentos) -> None:
    flow = Workflow("large")
    flow.add("much", lambda: "y" * 2_000_000)
    run(flow, workflow_id="large", repo=tmp_git_repo)
    complete(tmp_git_repo, "small")
    interrupted(tmp_git_repo)
    logs = tmp_git_repo / ".agentos" / "logs" / "large"
    logs.mkdir(parents=True)
    (logs / "much.1.log").write_bytes(b"x" * 1234)
    done = agentos("db", "stats", "--json", cwd=tmp_git_repo)
    found = json.loads(done.out)
    assert [(row["workflow_id"], row["status"]) for row in found["runs"]] == [
        ("large", "complete"),
        ("small", "complete"),
        ("cut-1", "interrupted"),
    ]
    assert found["blobs"] == 1
    assert 2_000_000 <= found["blob_bytes"] < 2_000_100
    assert found["runs"][0]["bytes"] > 2_000_000 > found["runs"][1]["bytes"] > 700
    assert found["bytes"] > 2_000_000
    assert found["task_log_bytes"] == 1234
    assert (found["prunable"], found["runs"][1]["prunable"]) == (2, 2)
    assert set(found["tables"]) >= {"event", "blob", "run"}
    shown = agentos("db", "stats", cwd=tmp_git_repo)
    assert shown.code == 0
    assert "large outputs" in shown.out
    assert agentos("prune", "--all", cwd=tmp_git_repo).code == 0
    assert json.loads(agentos("db", "stats", "--json", cwd=tmp_git_repo).out)["prunable"] == 0


def test_stats_change_nothing_and_want_a_database(tmp_git_repo: Path, agentos: Agentos, tmp_path: Path) -> None:
    assert agentos("db", "stats", cwd=tmp_git_repo).code == 2
    assert not (tmp_git_repo / ".agentos").exists()
    assert agentos("db", "stats", cwd=tmp_path).code == 1
    env = {"AGENTOS_WORKFLOW_DB": "postgresql://ada:secret@host/db"}
    done = agentos("db", "stats", cwd=tmp_git_repo, env=env)
    assert (done.code, "secret" in done.err) == (1, False)  # there is no such host: waiting would not help


def test_migrate_says_what_it_would_do_then_does_it_after_a_copy(
    tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(tmp_git_repo)
    step = Migration(len(migrations()) + 1, "add_a_word", "ALTER TABLE meta ADD COLUMN word TEXT;")
    for module in (sqlite_open, stats):  # a version of tomorrow
        monkeypatch.setattr(module, "migrations", lambda: (*migrations(), step))

    def migrate(*argv: str) -> Any:
        done = CliRunner().invoke(program, ["db", "migrate", "--repo", str(tmp_git_repo), "--json", *argv])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    before = database(tmp_git_repo).read_bytes()
    planned = migrate("--dry-run")
    assert (planned["after"], planned["done"], planned["steps"]) == (planned["before"] + 1, False, ["add_a_word"])
    assert database(tmp_git_repo).read_bytes() == before
    assert not Path(planned["backup"]).exists()
    assert migrate() == planned | {"done": True}
    assert Path(planned["backup"]).exists()
    assert [record.workflow_id for record in Client(tmp_git_repo).list_runs()] == ["run-1"]
    assert migrate()["steps"] == []


def test_a_newer_schema_is_refused_and_left_alone(tmp_git_repo: Path, agentos: Agentos) -> None:
    complete(tmp_git_repo)
    with closing(sqlite3.connect(database(tmp_git_repo))) as connection:
        connection.execute("PRAGMA user_version = 999")
    for argv in (("db", "migrate"), ("db", "stats"), ("prune", "--all"), ("delete", "run-1", "--yes")):
        done = agentos(*argv, cwd=tmp_git_repo)
        assert done.code == 6
        assert "999" in done.err


def test_a_live_run_does_not_stop_a_look(tmp_git_repo: Path, agentos: Agentos) -> None:
    with driven(tmp_git_repo):
        assert "nothing to do" in agentos("db", "migrate", cwd=tmp_git_repo).out
        assert json.loads(agentos("db", "stats", "--json", cwd=tmp_git_repo).out)["runs"][0]["status"] == "running"


def test_path(tmp_git_repo: Path, agentos: Agentos) -> None:
    done = agentos("db", "path", "--json", cwd=tmp_git_repo)
    assert json.loads(done.out) == {"path": str(database(tmp_git_repo)), "source": "repository"}
