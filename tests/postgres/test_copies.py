"""A schema is copied and put back by PostgreSQL's own tools: `db backup` and `db restore` name the very command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from agentos import Client
from tests.cli.conftest import Agentos, agentos
from tests.cli.runs import complete
from tests.postgres.server import PASSWORD, Server

__all__ = ["agentos"]

pytestmark = pytest.mark.full


@pytest.mark.parametrize("schema", ["plain_copies", "Odd 'copies\"$%41"])
def test_the_commands_that_are_named_copy_a_schema_and_put_it_back(
    tmp_git_repo: Path, server: Server, agentos: Agentos, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, schema: str
) -> None:
    quoted = schema.replace("%", "%25").replace(" ", "%20").replace('"', "%22")
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", f"{server.tcp_url}?schema={quoted}&application_name=a%20b")
    complete(tmp_git_repo, "before")
    file = tmp_path / "my runs.dump"
    tools = {**os.environ, "PATH": f"{server.binaries}:{os.environ['PATH']}", "PGPASSWORD": PASSWORD}

    def type_what_is_named(*argv: str | Path) -> None:
        done = agentos("db", *argv, cwd=tmp_git_repo)
        assert done.code == 2, done.err
        assert PASSWORD not in done.err
        assert PASSWORD.replace(" ", "%20") not in done.err
        command = done.err.splitlines()[-1]
        typed = subprocess.run(["sh", "-c", command], env=tools, capture_output=True, text=True, check=False)
        assert typed.returncode == 0, f"{command}\n{typed.stderr}"

    type_what_is_named("backup", file)
    assert file.stat().st_mode & 0o777 == 0o600
    complete(tmp_git_repo, "after")
    type_what_is_named("restore", file)
    assert [record.workflow_id for record in Client(tmp_git_repo).list_runs()] == ["before"]
    complete(tmp_git_repo, "later")
    assert agentos("doctor", "--deep", cwd=tmp_git_repo).code == 0
