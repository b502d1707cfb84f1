"""`agentos schedule`: workflows that run by themselves, and the worker that fires them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentos.client import add_schedule
from agentos.machine.slots import slot_id
from tests.cli.conftest import Agentos

FLOW = """
params: {target: src}
cron: {every: 1h, catch_up: all}
tasks: {a: {run: "echo ${{ params.target }}", effects: none}}
"""
HOUR = timedelta(hours=1)


@pytest.fixture
def repo(tmp_git_repo: Path) -> Path:
    (tmp_git_repo / "nightly.yaml").write_text(FLOW)
    return tmp_git_repo


def last_hour() -> datetime:
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


def due(repo: Path, hours: int = 1, **more: object) -> list[str]:
    """Add it with slots to make up for; the runs it is to have."""
    add_schedule("nightly.yaml", since=last_hour() - hours * HOUR, repo=repo, **more)  # type: ignore[arg-type]
    return [slot_id(str(more.get("name", "nightly")), last_hour() - ago * HOUR) for ago in reversed(range(hours))]


def test_it_is_added_listed_and_removed(repo: Path, agentos: Agentos) -> None:
    added = agentos("schedule", "add", "nightly.yaml", "-p", "target=docs", "--queue", "slow", cwd=repo)
    assert (added.code, added.err) == (0, "A worker fires it: agentos worker --queue slow\n")
    assert added.out.startswith("nightly runs at every 1h; next: ")
    [row] = json.loads(agentos("schedule", "list", "--json", cwd=repo).out)
    assert (row["name"], row["every"], row["queue"], row["overlap"]) == ("nightly", "1h", "slow", "queue")
    assert row["next_slot"] == (last_hour() + HOUR).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert agentos("schedule", "remove", "nightly", cwd=repo).code == 0
    gone = agentos("schedule", "remove", "nightly", cwd=repo)
    assert (gone.code, gone.err.splitlines()[0]) == (2, "there is no schedule 'nightly'")
    listed = agentos("schedule", "list", cwd=repo)
    assert (listed.out, listed.err) == ("", "No schedules here yet: agentos schedule add FILE\n")


def test_what_says_no_times_or_cannot_run_is_refused(repo: Path, agentos: Agentos) -> None:
    (repo / "plain.yaml").write_text("tasks: {a: {run: ls}}\n")
    refused = agentos("schedule", "add", "plain.yaml", cwd=repo)
    assert (refused.code, refused.err.splitlines()) == (
        2,
        ["workflow 'plain' does not say when it runs", 'Say so in it: cron: "0 3 * * 1-5"'],
    )
    (repo / "never.yaml").write_text('cron: "0 0 30 2 *"\ntasks: {a: {run: ls}}\n')
    assert "no such month has that day" in agentos("schedule", "add", "never.yaml", cwd=repo).err
    (repo / "asks.yaml").write_text('params: [who]\ncron: "0 3 * * *"\ntasks: {a: {run: "echo ${{ params.who }}"}}\n')
    assert agentos("schedule", "add", "asks.yaml", cwd=repo).code == 2
    assert agentos("schedule", "list", "--json", cwd=repo).out == "[]\n"


def test_a_worker_fires_and_drives_what_is_due(repo: Path, agentos: Agentos) -> None:
    first, second = due(repo, hours=2)
    listed = agentos("schedule", "list", cwd=repo)
    assert "missed since" in listed.err
    done = agentos("worker", "--once", cwd=repo)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"nightly ({run}) {what}" for run in (first, second) for what in ("is due", "taken", "is complete")
    ]
    assert f"{second}  complete" in agentos("schedule", "list", cwd=repo).out
    assert agentos("worker", "--once", cwd=repo).out == ""


def test_an_edited_file_is_run_as_it_is_and_that_is_told(repo: Path, agentos: Agentos) -> None:
    [run] = due(repo)
    (repo / "nightly.yaml").write_text(FLOW.replace("echo $", "echo edited $"))
    assert "nightly: nightly.yaml was changed since it was added" in agentos("schedule", "list", cwd=repo).err
    done = agentos("worker", "--once", cwd=repo)
    assert f"nightly ({run}) is complete" in done.out
    assert "changed: a" in done.err
    assert agentos("logs", run, cwd=repo).out.endswith("edited src\n")


def test_a_file_that_is_gone_is_told_and_its_run_is_left(repo: Path, agentos: Agentos) -> None:
    [run] = due(repo)
    (repo / "nightly.yaml").unlink()
    assert "its file nightly.yaml is gone" in agentos("schedule", "list", cwd=repo).err
    done = agentos("worker", "--once", cwd=repo)
    assert f"nightly ({run}) is left as it is" in done.err


def test_a_worker_fires_only_what_it_would_take(repo: Path, agentos: Agentos) -> None:
    plain, slow, labelled = due(repo), due(repo, name="slow", queue="slow"), due(repo, name="night", labels=["night"])
    assert agentos("worker", "--once", "--workflow", "other", cwd=repo).out == ""
    for words, runs in (
        (["--queue", "slow"], slow),
        (["--label", "night"], labelled),
        ([], plain),
    ):
        said = agentos("worker", "--once", *words, "--json", cwd=repo).out.splitlines()
        assert [one["workflow_id"] for one in map(json.loads, said) if one["what"] == "fired"] == runs


def test_trouble_with_schedules_holds_no_run_up(repo: Path, agentos: Agentos) -> None:
    due(repo)
    (repo / ".git" / "agentos" / "schedules.json").write_text("{")
    (repo / "plain.yaml").write_text("tasks: {a: {run: ls, effects: none}}\n")
    assert agentos("submit", "plain.yaml", "--id", "plain", cwd=repo).code == 0
    done = agentos("worker", "--once", cwd=repo)
    assert "plain (plain) is complete" in done.out
    assert "schedules.json" in done.err
