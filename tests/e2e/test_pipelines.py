"""What other people's pipelines use of this repository: the hook for pre-commit and the GitHub Action.

Neither service can be had here. The action's own steps are shell: they are run as the service would run them, each in
a bash of its own with its variables, in a second clone when the first machine is gone.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROGRAMS = str(Path(sys.executable).parent)
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
FLOW = """\
name: release
params: {who: nobody}
tasks:
  build: {run: 'echo built >> build.log; echo "for ${{ params.who }}"', effects: files}
  test: {needs: [build], run: 'echo tried >> tries; test -e ../allowed || sleep 600', effects: files}
"""


def step(name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in ACTION["runs"]["steps"] if each.get("name") == name)
    return found


def perform(name: str, repo: Path, temp: Path, **inputs: str) -> subprocess.Popen[bytes]:
    """Start one of the action's shell steps, with its expressions filled in as the service does it."""
    values = {f"inputs.{key.replace('_', '-')}": value for key, value in inputs.items()} | {"runner.temp": str(temp)}
    variables = {
        key: re.sub(r"\$\{\{ (.+?) \}\}", lambda found: values[found[1]], text)
        for key, text in step(name)["env"].items()
    }
    script = step(name)["run"]
    assert "${{" not in script, "text of an input in a script would be run"
    environ = {**os.environ, **variables, "GITHUB_OUTPUT": str(temp / "output")}
    environ["PATH"] = f"{PROGRAMS}{os.pathsep}{environ['PATH']}"
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.Popen(command, cwd=repo, env=environ, start_new_session=True)


def clone(origin: Path, into: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", str(origin), str(into)], check=True)
    return into


def test_the_action_goes_on_where_the_machine_before_was_lost(tmp_path: Path, tmp_git_repo: Path, home: Path) -> None:
    (tmp_git_repo / "workflows").mkdir()
    (tmp_git_repo / "workflows" / "release.yaml").write_text(FLOW)
    subprocess.run(["git", "-C", str(tmp_git_repo), "add", "-A"], check=True)
    subprocess.run(["git", "-C", str(tmp_git_repo), "commit", "--quiet", "-m", "flow"], check=True)
    inputs = {"workflow": "release", "id": "ci-7", "params": "who=$(touch pwned) all", "gates": "stop"}
    temp = tmp_path / "runner"
    temp.mkdir()

    first = clone(tmp_git_repo, tmp_path / "first")
    running = perform("Run or go on", first, temp, **inputs)
    try:
        while not (first / "tries").exists():
            assert running.poll() is None
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    assert perform("Export the run", first, temp, id="ci-7").wait() == 0
    assert (temp / "output").read_text() == "status=interrupted\n"

    second = clone(tmp_git_repo, tmp_path / "second")
    (tmp_path / "allowed").touch()
    assert perform("Run or go on", second, temp, **inputs).wait() == 0
    assert perform("Export the run", second, temp, id="ci-7").wait() == 0
    assert (temp / "output").read_text().endswith("status=complete\n")
    assert (second / "build.log").read_text() == "built\n"
    assert (second / "tries").read_text() == "tried\n"
    assert not (second / "pwned").exists()
    assert not (first / "pwned").exists()


def test_the_hook_names_a_wrong_workflow_and_lets_a_right_one_pass(
    tmp_path: Path, tmp_git_repo: Path, home: Path
) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    folder = tmp_git_repo / "workflows"
    folder.mkdir()
    (folder / "right.yaml").write_text(FLOW)
    (folder / "wrong.yaml").write_text("tasks: {a: {needs: [b], run: 'true'}}")
    (tmp_git_repo / "other.yaml").write_text("tasks: 5")
    committed = ["workflows/right.yaml", "workflows/wrong.yaml", "other.yaml"]
    chosen = [name for name in committed if re.search(hook["files"], name)]
    assert chosen == committed[:2]
    program, *arguments = shlex.split(hook["entry"])
    checked = subprocess.run(
        [Path(PROGRAMS) / program, *arguments, *chosen], cwd=tmp_git_repo, capture_output=True, text=True
    )
    assert checked.returncode == 2
    assert "wrong.yaml" in checked.stdout + checked.stderr
    assert "right.yaml" not in checked.stdout + checked.stderr
    assert subprocess.run([Path(PROGRAMS) / program, *arguments, chosen[0]], cwd=tmp_git_repo).returncode == 0


@pytest.mark.parametrize("file", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda file: str(file.name))
def test_what_the_service_reads_is_yaml(file: Path) -> None:
    assert yaml.safe_load(file.read_text())
