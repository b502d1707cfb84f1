"""What an approval is about: nothing else runs on the strength of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SOURCES, Agentos
from tests.cli.conftest import agentos as agentos
from tests.marks import quick_first

pytestmark = pytest.mark.attack

EVIL = "#!/bin/sh\ntouch evil\n"


@pytest.fixture
def repo(tmp_path: Path, home: Path) -> Path:
    root = tmp_path / "repo"
    subprocess.run(["git", "init", "-q", root], check=True)
    write_script(root / "ship.sh", "#!/bin/sh\ntouch shipped\n")
    return root


def write_script(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def write_flow(root: Path, tasks: Mapping[str, Any], **more: Any) -> None:
    (root / "flow.yaml").write_text(json.dumps({"name": "flow", "tasks": tasks, **more}))


def gates_of(agentos: Agentos, root: Path) -> dict[str, Any]:
    return {gate["id"]: gate for gate in json.loads(agentos("show", "r", "--json", cwd=root).out)["gates"]}


def change_content(root: Path) -> None:
    (root / "ship.sh").write_text(EVIL)


def change_mode(root: Path) -> None:
    (root / "ship.sh").chmod(0o700)


def change_by_rename(root: Path) -> None:
    write_script(root / "other.sh", EVIL)
    (root / "other.sh").rename(root / "ship.sh")


def change_into_link(root: Path) -> None:
    write_script(root / "other.sh", EVIL)
    (root / "ship.sh").unlink()
    (root / "ship.sh").symlink_to("other.sh")


def remove(root: Path) -> None:
    (root / "ship.sh").unlink()


@pytest.mark.parametrize(
    "change", quick_first([change_content, change_mode, change_by_rename, change_into_link, remove])
)
def test_a_script_that_changed_after_its_approval_is_asked_about_again(
    agentos: Agentos, repo: Path, change: Any
) -> None:
    write_flow(repo, {"ship": {"approve": "Ship it?", "run": "./ship.sh"}})
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 3
    assert gates_of(agentos, repo)["approve:ship"]["covers"] == ["ship.sh"]
    assert agentos("approve", "r", "--no-resume", cwd=repo).code == 0
    change(repo)
    done = agentos("resume", "r", cwd=repo)
    assert done.code == 3
    assert "ship.sh changed after approve:ship was asked" in done.err
    assert not (repo / "evil").exists()
    assert not (repo / "shipped").exists()
    again = gates_of(agentos, repo)["approve:ship#2"]
    assert again["open"]
    assert again["changed"] == ["ship.sh"]
    for command in (("show", "r"), ("inbox",)):
        assert "asks again: ship.sh changed" in agentos(*command, cwd=repo).out


def test_a_script_that_changed_while_its_gate_was_open_is_asked_about_again(agentos: Agentos, repo: Path) -> None:
    write_flow(repo, {"ship": {"approve": "Ship it?", "run": "./ship.sh"}})
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 3
    assert "covers ship.sh" in agentos("inbox", cwd=repo).out
    change_content(repo)
    assert agentos("approve", "r", "approve:ship", cwd=repo).code == 3
    assert not (repo / "evil").exists()
    assert agentos("approve", "r", "approve:ship#2", cwd=repo).code == 0  # the human has seen it now
    assert (repo / "evil").exists()


NAMES = {
    "a vector": ["bash", "deploy/go.sh"],
    "a script": "bash deploy/go.sh --now",
    "a folder before": "cd deploy && ./go.sh",
    "quotes": "echo ok;'./deploy/go.sh'",
    "a shell in a vector": ["bash", "-c", "true && ./deploy/go.sh"],
    "a reference": "cat ${{ params.script }}",
    "an option": "env --chdir=deploy bash go.sh",
    "an input": "bash < deploy/go.sh",
    "behind a variable": 'bash "$PWD/deploy/go.sh"',
    "blanks": "bash deploy/my\\ go.sh",
}


def test_every_way_to_name_a_file_counts(agentos: Agentos, repo: Path) -> None:
    for name in ("deploy/go.sh", "deploy/my go.sh"):
        write_script(repo / name, "#!/bin/sh\n")
    tasks = {name: {"approve": "Ship?", "run": command} for name, command in NAMES.items()}
    write_flow(repo, tasks, params={"script": "deploy/go.sh"})
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 3
    covered = {gate["task_id"]: gate["covers"] for gate in gates_of(agentos, repo).values()}
    assert covered == {name: ["deploy/my go.sh" if name == "blanks" else "deploy/go.sh"] for name in NAMES}


def test_what_a_task_of_the_run_changed_needs_no_new_approval(agentos: Agentos, repo: Path) -> None:
    """A sibling at work while the gate was open, and the task's own failed attempt."""
    (repo / "notes.txt").write_text("old\n")
    flaky = "echo again >> notes.txt; cat notes.txt > shipped; test -e tried || { touch tried; exit 1; }"
    write_flow(
        repo,
        {
            "other": {"run": "while ! test -e go; do sleep 0.02; done; echo new >> notes.txt"},
            "ship": {"approve": "Ship it?", "run": f"cat notes.txt; {flaky}"},
        },
    )
    driver = subprocess.Popen(
        [sys.executable, "-m", "agentos", "run", "flow.yaml", "--id", "r"],
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdin=subprocess.DEVNULL,
    )
    wait_for(lambda: (repo / ".agentos").exists() and "approve:ship" in agentos("show", "r", "--json", cwd=repo).out)
    (repo / "go").touch()
    assert driver.wait() == 3
    assert agentos("approve", "r", cwd=repo).code == 1  # it fails, after it has changed the file itself
    assert agentos("resume", "r", cwd=repo).code == 0
    assert list(gates_of(agentos, repo)) == ["approve:ship"]
    assert (repo / "shipped").read_text().startswith("old\nnew\n")


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_the_id_of_an_earlier_epoch_means_no_other_gate(agentos: Agentos, repo: Path) -> None:
    write_flow(
        repo,
        {
            "a": {"run": "true", "effects": "none"},
            "c": {"needs": "a", "approve": "Go?", "run": "touch shipped", "effects": "none"},
        },
    )
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 3
    [cut] = json.loads(agentos("checkpoints", "r", "--json", cwd=repo).out)
    assert agentos("send", "r", "rollback", f"checkpoint_id={cut['id']}", cwd=repo).code == 0
    assert agentos("resume", "r", cwd=repo).code == 3
    assert [gate for gate, shown in gates_of(agentos, repo).items() if shown["open"]] == ["approve:c~1"]
    for command in ("approve", "reject"):
        done = agentos(command, "r", "approve:c", cwd=repo)
        assert done.code == 2
        assert "'approve:c' is no longer open" in done.err
        assert "agentos approve r 'approve:c~1'" in done.err
    assert not (repo / "shipped").exists()
    assert agentos("approve", "r", "c", cwd=repo).code == 0  # by its task
    assert (repo / "shipped").exists()
