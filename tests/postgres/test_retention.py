"""Old runs are deleted from a server as they are from a file, by whoever has their logs and snapshots."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from agentos.store.port import HERE, Progress, Scope
from agentos.store.postgres.database import open_store
from agentos.workflow.place.place import find_place
from tests.cli.conftest import Agentos, agentos
from tests.contract.journals import NOON, Journal, create
from tests.marks import quick_first
from tests.postgres.server import fresh_url

__all__ = ["agentos"]

OLD = ("delete", "--older-than", "30d", "--status", "complete")


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    url = fresh_url()
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", url)
    return url


def fill(url: str, scope: Scope, root: Path, names: list[str], host: str = "") -> None:
    """Complete runs of long ago."""
    store = open_store(url, scope=scope, durability="process")
    for name in names:
        lease = create(store, name, root=str(root), host=host, created_at=NOON - timedelta(days=365))
        journal = Journal(name)
        journal.start("t")
        journal.complete("t")
        old = [msgspec.structs.replace(one, at=NOON - timedelta(days=365)) for one in journal.take()]
        store.append(lease, old, Progress(status="complete", layer=0, layers=1, epoch=0, asked=(), left=()))
        store.release_lease(lease)
    store.close()


@pytest.mark.parametrize("point", quick_first(["delete.after", "delete.inside:2", "delete.noted"]))
def test_one_that_is_killed_is_brought_to_its_end_and_other_worktrees_keep_theirs(
    url: str, tmp_git_repo: Path, agentos: Agentos, point: str
) -> None:
    env = {"AGENTOS_WORKFLOW_DB": url}
    scope = find_place(tmp_git_repo).scope or HERE
    fill(url, scope, tmp_git_repo, [f"run-{number:03d}" for number in range(205)])
    fill(url, scope, tmp_git_repo, ["of-another-host"], host="elsewhere")
    fill(url, Scope(repository="another"), tmp_git_repo, ["run-000"])
    logs = tmp_git_repo / ".agentos/logs"
    for name in ("run-000", "run-204", "of-another-host"):
        (logs / name).mkdir(parents=True)
        (logs / name / "t.1.log").write_text("said")
    assert agentos(*OLD, "--yes", cwd=tmp_git_repo, env={**env, "AGENTOS_CRASH_AT": point}).code == -9
    left = json.loads(agentos("list", "--json", "--limit", "1000", cwd=tmp_git_repo, env=env).out)
    assert len(left) in (206, 6)
    done = agentos(*OLD, "--yes", "--json", cwd=tmp_git_repo, env=env)
    assert done.code == 0, done.err
    store = open_store(url, scope=None, readonly=True)
    assert sorted((run.workflow_id, run.scope.repository) for run in store.list_runs()) == sorted(
        [("of-another-host", scope.repository), ("run-000", "another")]
    )
    store.close()
    assert [folder.name for folder in logs.iterdir()] == ["of-another-host"]
