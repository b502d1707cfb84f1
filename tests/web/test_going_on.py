"""Going on from the page: the plan first, then a driver of its own; pause and abort of a run that is driven."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page

from agentos import client
from agentos.client.detached import preview_detached
from tests.client.conftest import EDIT
from tests.conftest import git
from tests.web.conftest import Answer, Serve, Visitor, hidden_fields, let_in, wait_until
from tests.web.test_rail import address
from tests.workflow.support import soon

TWO = """
name: two
tasks:
  first:  {run: "echo 1", effects: none}
  second: {needs: first, run: "[ -e go ]", effects: none}
  third:  {needs: second, run: "echo 3", effects: none}
"""
THEN = """
name: then
tasks:
  long: {run: "touch begun; until [ -e go ]; do sleep 0.05; done", effects: none}
  more: {needs: long, run: "true", effects: none}
"""
CUT = """
name: cut
tasks:
  cut: {run: "echo half >> half.txt; touch begun; until [ -e go ]; do sleep 0.05; done"}
"""


@pytest.fixture
def failed(repo: Path) -> str:
    """A run whose second task failed; with the file `go` there it would not."""
    (repo / "workflows" / "two.yaml").write_text(TWO)
    client.run(client.load("two"), workflow_id="two-1", check=False)
    (repo / "go").touch()
    return "two-1"


@contextmanager
def driven(repo: Path, run: str = "slow-1", flow: str = "slow") -> Iterator[int]:
    """A run that another process drives meanwhile; its pid."""
    begun = client.start_detached(flow, workflow_id=run)
    assert begun.pid is not None
    try:
        asyncio.run(soon(lambda: (repo / "begun").exists()))
        yield begun.pid
    finally:
        (repo / "go").touch()
        wait_until(lambda: client.view(run).driver is None)


def killed(repo: Path, run: str = "slow-1", flow: str = "slow") -> None:
    """A run whose driver was killed in the middle."""
    pid = client.start_detached(flow, workflow_id=run).pid
    assert pid is not None
    wait_until(lambda: (repo / "begun").exists())
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: client.view(run).status == "interrupted")
    (repo / "go").touch()


def told(visitor: Visitor, answer: Answer) -> str:
    """The page that an answer leads to."""
    return visitor.follow(answer).text


@pytest.mark.full
def test_the_plan_is_shown_first_and_nothing_is_started(visitor: Visitor, failed: str) -> None:
    page = visitor.get(address("resume", failed))
    assert page.status == 200
    assert "1 reused · 1 reruns · 1 to run" in page.text
    assert "failed" in page.text
    assert client.view(failed).status == "failed"


def test_a_run_whose_driver_was_killed_completes_while_nobody_looks(repo: Path, visitor: Visitor) -> None:
    killed(repo)
    page = visitor.get(address("resume", "slow-1"))
    assert "interrupted" in page.text
    answer = visitor.submit(page, "resume")
    assert answer.status == 303
    wait_until(lambda: client.view("slow-1").status == "complete")


def test_a_plan_that_has_changed_is_refused_and_shown_anew(repo: Path, visitor: Visitor, failed: str) -> None:
    page = visitor.get(address("resume", failed))
    file = repo / "workflows" / "two.yaml"
    file.write_text(TWO.replace("echo 3", "echo 4"))
    again = visitor.submit(page, "resume")
    text = visitor.follow(again)
    assert "another one by now" in text.text
    assert "changed: third" in text.text
    assert client.view(failed).status == "failed"
    visitor.submit(text, "resume")
    wait_until(lambda: client.view(failed).status == "complete")


@pytest.mark.full
def test_what_is_chosen_is_shown_before_it_is_done(visitor: Visitor, failed: str) -> None:
    page = visitor.get(address("resume", failed))
    again = visitor.submit(page, "resume", rerun="first")
    assert "rerun=first" in again.headers["location"]
    shown = visitor.follow(again)
    assert "You have chosen something else since" in shown.text
    assert "2 rerun" in shown.text
    assert client.view(failed).status == "failed"
    preview = visitor.submit(shown, "resume", preview="1")
    assert preview.headers["location"] == address("resume", failed)
    visitor.submit(shown, "resume", rerun="first")
    wait_until(lambda: client.view(failed).status == "complete")
    assert client.view(failed).tasks[0].attempts == 2


@pytest.mark.full
def test_a_complete_run_runs_again_what_is_chosen(visitor: Visitor, failed: str) -> None:
    client.resume(failed)
    page = visitor.get(address("resume", failed))
    assert "Nothing is left to do" in page.text
    assert ">Resume</button>" not in page.text
    shown = visitor.follow(visitor.submit(page, "resume", rerun="second", preview="1"))
    visitor.submit(shown, "resume", rerun="second")
    wait_until(lambda: [task.attempts for task in client.view(failed).tasks[:2]] == [1, 3])
    wait_until(lambda: client.view(failed).status == "complete")


@pytest.mark.full
def test_a_python_workflow_is_read_anew_however_long_the_server_runs(repo: Path) -> None:
    file = repo / "flow.py"
    text = "from agentos import Workflow\nflow = Workflow('py')\nflow.add('one', 'shell', run='false')\n"
    file.write_text(text)
    client.run(client.load("flow.py"), workflow_id="py-1", check=False)
    found = client.find_run("py-1")
    assert preview_detached(found).compared.changed == {}
    file.write_text(text.replace("'false'", "'true'"))
    assert list(preview_detached(found).compared.changed) == ["one"]


@pytest.mark.full
def test_files_that_were_changed_since_need_a_choice(repo: Path, visitor: Visitor) -> None:
    (repo / "workflows" / "cut.yaml").write_text(CUT)
    killed(repo, "cut-1", "cut")
    (repo / "half.txt").write_text("mine\n")
    os.utime(repo / "half.txt", (4_000_000_000, 4_000_000_000))
    page = visitor.get(address("resume", "cut-1"))
    assert "Your choice: " in page.text
    assert "half.txt" in page.text
    assert ">Resume</button>" not in page.text
    shown = visitor.follow(visitor.submit(page, "resume", preview="1", files="keep"))
    assert ">Resume</button>" in shown.text
    visitor.submit(shown, "resume", files="keep")
    wait_until(lambda: client.view("cut-1").driver is None and client.view("cut-1").status != "interrupted")
    assert (repo / "half.txt").read_text() == "mine\nhalf\n", "it ran on them as they were"


@pytest.mark.full
def test_a_driven_run_is_not_resumed_and_says_who_drives_it(repo: Path, visitor: Visitor) -> None:
    with driven(repo) as pid:
        page = visitor.get(address("resume", "slow-1"))
    assert f"process {pid}" in page.text
    assert "/do/resume" not in page.text


@pytest.mark.full
def test_a_run_that_somebody_else_resumed_meanwhile_is_left_to_them(repo: Path, visitor: Visitor) -> None:
    killed(repo)
    (repo / "go").unlink()
    where = address("resume", "slow-1")
    page = visitor.get(where)
    pid = client.resume_detached("slow-1").pid
    try:
        fields = hidden_fields(page, "resume")
        refused = visitor.post("/do/resume", fields, referer=f"http://{visitor.host}{where}")
        assert f"process {pid}" in told(visitor, refused)
    finally:
        (repo / "go").touch()
        wait_until(lambda: client.view("slow-1").status == "complete")


@pytest.mark.full
def test_settings_that_nobody_trusts_are_told_with_what_to_type(repo: Path, visitor: Visitor, failed: str) -> None:
    (repo / "agentos.toml").write_text('on_wait = ["echo"]\n')
    page = visitor.get(address("resume", failed))
    assert page.status >= 400
    assert "agentos trust" in page.text


@pytest.mark.full
def test_a_run_of_another_worktree_goes_on_there(repo: Path, tmp_path: Path, serve: Serve) -> None:
    other = tmp_path / "other"
    git("worktree", "add", "--quiet", str(other), cwd=repo)
    client.run(client.load("edit", repo=other), workflow_id="there-1", repo=other)
    (other / "workflows" / "edit.yaml").write_text(EDIT.replace("tasks:", "tasks:\n  last: {run: 'echo 3 > 3.txt'}"))
    visitor = let_in(serve(everywhere=True))
    first = client.Client(other).checkpoints("there-1")[0].id
    shown = visitor.get(address("restore", "there-1", checkpoint=first))
    assert str(other) in shown.text
    visitor.submit(shown, "restore")
    assert (other / "one.txt").read_text() == "one\n"
    visitor.submit(visitor.get(address("resume", "there-1")), "resume")
    wait_until(lambda: (other / "3.txt").exists() and client.view("there-1").status == "complete")
    assert not (repo / "3.txt").exists()
    assert not (repo / "one.txt").exists()


@pytest.mark.full
def test_a_driven_run_is_paused(repo: Path, visitor: Visitor) -> None:
    (repo / "workflows" / "then.yaml").write_text(THEN)
    with driven(repo, "then-1", "then"):
        page = visitor.get(address("run", "then-1"))
        assert "Asked to pause" in told(visitor, visitor.submit(page, "pause"))
    assert client.view("then-1").status == "paused"
    assert 'href="' + address("resume", "then-1") + '"' in visitor.get(address("run", "then-1")).text


@pytest.mark.full
def test_an_abort_wants_a_second_press_and_ends_the_run_with_its_reason(repo: Path, visitor: Visitor) -> None:
    with driven(repo):
        page = visitor.get(address("run", "slow-1"))
        visitor.submit(page, "abort", reason="wrong <branch>")
        wait_until(lambda: client.view("slow-1").status == "aborted")
    after = visitor.get(address("run", "slow-1"))
    assert "/do/abort" not in after.text
    assert "Fork from the newest checkpoint" in after.text
    reasons = [getattr(one, "reason", "") for one in client.Client().events("slow-1")]
    assert "wrong <branch>" in reasons


@pytest.mark.full
def test_without_script_an_abort_is_asked_twice(repo: Path, serve: Serve, new_page: Callable[..., Page]) -> None:
    killed(repo)
    page: Page = new_page(serve(), address("run", "slow-1"), java_script_enabled=False)
    button = page.get_by_role("button", name="Abort the run")
    assert not button.is_visible()
    page.get_by_text("Abort…").click()
    page.get_by_label("Reason").fill("enough")
    button.click()
    page.get_by_text("Aborted.").wait_for()
    assert client.view("slow-1").status == "aborted"
