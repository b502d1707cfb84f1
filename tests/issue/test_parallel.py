"""Several briefs at once: a process each, and one limit for all of them."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from agentos import Client
from tests.conftest import trust
from tests.issue.stage import Stage
from tests.issue.test_models import KEY, TOML, answer
from tests.models.server import ModelServer

FAILS = """#!/bin/sh
if grep -q "idea two"; then exit 9; fi
echo "# Fine"
"""
WAITS = """#!/bin/sh
cat > /dev/null
touch {here}/begun.$$
while ! test -e {here}/go; do sleep 0.02; done
echo "# Fine"
"""


def ideas(stage: Stage, *names: str) -> None:
    for name in names:
        stage.brief(f"This is idea {name}, in enough words to be one.\n", f"ideas/active/{name}.md")


def replace_drafter(stage: Stage, text: str) -> None:
    program = stage.beside / "drafter.sh"
    program.write_text(text)
    program.chmod(0o755)


EVENTS = 5
"""Of the stream of an answer in one piece; the server pauses before each."""


def all_at_once(stage: Stage, briefs: int, parallel: int, call_s: float) -> float:
    """Make issues of so many briefs with a server that takes two calls at a time; how long that took."""
    names = [f"idea-{number:02}" for number in range(briefs)]
    ideas(stage, *names)
    stage.env[KEY] = "k-1234567890"
    with ModelServer(key="k-1234567890", at_most=2) as server:
        server.choose(lambda request: answer(request, pieces=1, pause_s=call_s / EVENTS))
        (stage.repo / "agentos.toml").write_text(TOML.format(url=server.base_url))
        trust(stage.repo)
        roles = ("--drafter", "llm:writer", "--reviewer", "llm:critic", "--gates", "none", *stage.roles[4:])
        began = time.monotonic()
        done = stage.agentos("issue", "--all", "--parallel", str(parallel), "--json", *roles)
        took_s = time.monotonic() - began
    assert done.code == 0, done.err[-3000:]
    rows = json.loads(done.out)
    assert sorted(row["name"] for row in rows) == names
    assert {row["status"] for row in rows} == {"complete"}
    assert len(stage.filed) == len({row["url"] for row in rows}) == briefs
    assert server.most_at_once == 2
    assert len(server.answered) == 2 * briefs
    assert len(server.requests) - len(server.answered) <= 2, "no storm of 429s"
    return took_s


def test_briefs_share_two_calls_at_a_time(stage: Stage) -> None:
    all_at_once(stage, 6, 3, 0.3)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_twenty_briefs_five_at_once_are_all_filed_and_the_time_they_took_is_shown(stage: Stage) -> None:
    if os.environ.get("AGENTOS_MATRIX") != "full":
        pytest.skip(
            "20 briefs with --parallel 5: played with AGENTOS_MATRIX=full (6 with --parallel 3 are played here)"
        )
    took_s, ideal_s = all_at_once(stage, 20, 5, 1.0), 20 * 2 * 1.0 / 2
    print(f"20 briefs took {took_s:.1f} s; {ideal_s:.1f} s are ideal")


@pytest.mark.full
def test_one_that_fails_does_not_stop_the_others(stage: Stage) -> None:
    ideas(stage, "one", "two", "three")
    replace_drafter(stage, FAILS)
    done = stage.issue("--all", "--parallel", "2")
    assert done.code == 1
    assert len(stage.filed) == 2
    lines = done.out.splitlines()
    assert any(line.startswith("[two] ") and "drafter.sh ended with 9" in line for line in lines)
    table = {line.split()[1]: line.split()[2] for line in lines[-3:]}
    assert table == {"issue-one": "complete", "issue-three": "complete", "issue-two": "failed"}
    logs = stage.repo / ".agentos" / "issues"
    assert sorted(path.name for path in logs.iterdir()) == ["one.log", "three.log", "two.log"]
    assert "ended with 9" in (logs / "two.log").read_text()
    assert (logs / "two.log").stat().st_mode & 0o777 == 0o600


@pytest.mark.full
def test_briefs_that_would_have_one_name_get_two(stage: Stage) -> None:
    ideas(stage, "My Idea", "my-idea")
    done = stage.issue("--all", "--parallel", "2", "--json")
    assert done.code == 0, done.err
    names = sorted(row["name"] for row in json.loads(done.out))
    assert names[0] == "my-idea"
    assert names[1].startswith("my-idea-")
    assert len(stage.filed) == 2


@pytest.mark.full
def test_what_became_of_each_is_told_though_one_was_dropped_or_is_gone(stage: Stage) -> None:
    ideas(stage, "one", "two", "three")
    replace_drafter(stage, WAITS.format(here=stage.beside))
    process = stage.start("issue", "--all", "--parallel", "3", "--json", *stage.roles, "--gates", "none")
    wait_until(lambda: len(list(stage.beside.glob("begun.*"))) == 3)
    assert stage.agentos("abort", "issue-three").code == 0
    (stage.repo / "ideas/active/two.md").unlink()
    (stage.beside / "go").touch()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    rows = {row["name"]: (row["status"], row["exit_code"]) for row in json.loads(out)}
    assert rows == {"one": ("complete", 0), "two": ("complete", 0), "three": ("aborted", 4)}


@pytest.mark.full
def test_the_first_ctrl_c_lets_what_runs_end_and_begins_no_more(stage: Stage) -> None:
    ideas(stage, "one", "two", "three")
    replace_drafter(stage, WAITS.format(here=stage.beside))
    process = stage.start("issue", "--all", "--parallel", "2", *stage.roles, "--gates", "none")
    wait_until(lambda: len(list(stage.beside.glob("begun.*"))) == 2)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: _stopping(stage.repo))
    (stage.beside / "go").touch()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Not begun: ideas/active/two.md" in err
    runs = {run.workflow_id: run.status for run in Client(stage.repo).list_runs()}
    assert runs == {"issue-one": "paused", "issue-three": "paused"}
    assert all("draft" in Client(stage.repo).show(run).outputs for run in runs), "what was under way ended, and counts"
    assert stage.issue("--all", "--parallel", "3").code == 0
    assert len(stage.filed) == 3
    assert len(list(stage.beside.glob("begun.*"))) == 3, "no draft was made twice"


def _stopping(repo: Path) -> bool:
    """Both children have been told to stop: they say so in their logs."""
    logs = [path.read_text() for path in (repo / ".agentos" / "issues").glob("*.log")]
    return len(logs) == 2 and all("Stopping" in text for text in logs)


def wait_until(holds: object, patience_s: float = 60.0) -> None:
    until = time.monotonic() + patience_s
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.02)
