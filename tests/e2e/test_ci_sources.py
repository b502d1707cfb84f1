"""A Python project with a CI workflow of five tasks and `sources`: what is unchanged is reused, and said so."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.conftest import git
from tests.forks import ROOT, run_forked

PROJECT = {
    "shop/__init__.py": "",
    "shop/prices.py": "def total(prices):\n    return sum(prices)\n",
    "shop/names.py": "def shout(name):\n    return name.upper()\n",
    "tests/__init__.py": "",
    "tests/test_prices.py": (
        "import unittest\nfrom shop.prices import total\n\n\nclass Prices(unittest.TestCase):\n"
        "    def test_total(self):\n        self.assertEqual(total([1, 2]), 3)\n"
    ),
    "docs/index.md": "# Shop\n",
    "pyproject.toml": '[project]\nname = "shop"\nversion = "1"\n',
    ".gitignore": "__pycache__/\nran\ndist/\n",
    "workflows/ci.yaml": """\
name: ci
defaults: {effects: none}
tasks:
  lint:
    run: echo lint >> ran; python -m compileall -q shop
    sources: ["shop/**"]
  test:
    needs: lint
    run: echo test >> ran; python -m unittest discover 2>&1 | tail -n 1
    sources: ["shop/**", "tests/**"]
  docs:
    run: echo docs >> ran; wc -w docs/*.md
    sources: ["docs/**"]
  version:
    run: echo version >> ran; grep version pyproject.toml
    sources: [pyproject.toml, {env: CHANNEL}]
  pack:
    needs: [test, docs, version]
    run: "echo pack >> ran; echo packed ${{ tasks.version.output.stdout }}"
    sources: ["shop/**", pyproject.toml]
""",
}

OURS = f"""\
name: ci
defaults: {{effects: none}}
tasks:
  style:
    run: echo style >> ran; {sys.executable} -m tabnanny src/agentos/dag tests/unit/dag
    sources: ["src/agentos/dag/**", "tests/unit/dag/**", pyproject.toml]
  unit:
    needs: style
    run: |
      echo unit >> ran
      {sys.executable} -m pytest -q -p no:cacheprovider tests/unit/dag/test_selection.py | grep -o "[0-9]* passed"
    sources: ["src/agentos/**", "tests/unit/dag/**", "tests/*.py", pyproject.toml]
  docs:
    run: echo docs >> ran; grep -c "" docs/*.md
    sources: ["docs/**"]
  locks:
    run: echo locks >> ran; grep -c "==" requirements/lock.txt
    sources: ["requirements/*.txt"]
  release:
    needs: [unit, docs, locks]
    run: echo release >> ran; grep "^name = " pyproject.toml; head -n 5 CHANGELOG.md
    sources: [pyproject.toml, CHANGELOG.md]
"""


@pytest.fixture
def project(tmp_git_repo: Path) -> Path:
    for name, text in PROJECT.items():
        path = tmp_git_repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git("add", ".", cwd=tmp_git_repo)
    git("commit", "--quiet", "--message", "shop", cwd=tmp_git_repo)
    return tmp_git_repo


def agentos(project: Path, *words: str, **variables: str) -> tuple[str, str]:
    done = run_forked("-m", "agentos", *words, cwd=project, input=b"", env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def ci(project: Path, **variables: str) -> tuple[set[str], str, str]:
    """Which tasks `agentos run ci --id x` ran, and what it said."""
    (project / "ran").write_text("")
    out, err = agentos(project, "run", "ci", "--id", "x", **variables)
    return set((project / "ran").read_text().split()), out, err


def foreseen(project: Path, **variables: str) -> dict[str, str]:
    out, _ = agentos(project, "resume", "x", "--dry-run", "--json", **variables)
    return {row["id"]: f"{row['verdict']}: {row['reason']}" for row in json.loads(out)["tasks"]}


def test_the_second_run_reuses_everything_and_an_edit_runs_what_depends_on_it_alone(project: Path) -> None:
    assert ci(project)[0] == {"lint", "test", "docs", "version", "pack"}

    ran, out, err = ci(project)
    assert (ran, out) == (set(), "")
    assert "5 reused (lint, docs, version, test, pack)" in err
    assert "Nothing is left to do: run x is complete." in err

    (project / "docs/index.md").write_text("# Shop\n\nBuy things.\n")
    assert foreseen(project)["docs"] == "rerun: sources changed: docs/index.md"
    ran, out, _ = ci(project)
    assert ran == {"docs", "pack"}, "pack uses what docs printed, and that is another text now"
    assert "4 reused · 1 reruns (docs: sources changed: docs/index.md)" in out

    (project / "tests/test_prices.py").write_text(PROJECT["tests/test_prices.py"] + "\n# more to come\n")
    said = foreseen(project)
    assert {task: one for task, one in said.items() if not one.startswith("reuse")} == {
        "test": "rerun: sources changed: tests/test_prices.py"
    }
    assert ci(project)[0] == {"test"}, "it still says OK: what needs it is reused"

    assert foreseen(project, CHANNEL="beta")["version"] == "rerun: sources changed: $CHANNEL"
    assert ci(project, CHANNEL="beta")[0] == {"version"}, "it gave the same result: nothing else runs"
    assert ci(project, CHANNEL="beta")[0] == set()

    git("checkout", "--quiet", "-b", "other", cwd=project)
    git("commit", "--quiet", "--all", "--message", "the same content, committed", cwd=project)
    assert ci(project, CHANNEL="beta")[0] == set()


def test_a_task_that_is_added_to_the_complete_run_runs_when_it_is_resumed(project: Path) -> None:
    ci(project)
    with (project / "workflows/ci.yaml").open("a") as file:
        file.write('  sign: {needs: pack, run: "echo sign >> ran"}\n')
    (project / "ran").write_text("")
    out, _ = agentos(project, "resume", "x")
    assert "5 reused · 1 new (sign: added to the workflow since)" in out
    assert (project / "ran").read_text().split() == ["sign"]
    assert "6 reused" in agentos(project, "resume", "x")[1]


@pytest.mark.full
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="these sources are no clone")
def test_in_a_clone_of_this_project_an_edit_runs_what_depends_on_it_alone(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git("clone", "--quiet", str(ROOT), str(clone), cwd=tmp_path)
    (clone / "workflows").mkdir()
    (clone / "workflows/ci.yaml").write_text(OURS)
    assert ci(clone)[0] == {"style", "unit", "docs", "locks", "release"}

    ran, out, err = ci(clone)
    assert (ran, out) == (set(), "")
    assert "5 reused (" in err

    with (clone / "src/agentos/dag/plan/selection.py").open("a") as file:
        file.write("\n# An edit that changes no result.\n")
    ran, out, _ = ci(clone)
    assert ran == {"style", "unit"}, "they say the same as before: the release is as it was"
    assert "3 reused · 2 rerun (style, unit)" in out

    with (clone / "docs/queue.md").open("a") as file:
        file.write("\nOne more line.\n")
    assert ci(clone)[0] == {"docs", "release"}

    git("checkout", "--quiet", ".", cwd=clone)
    assert ci(clone)[0] == {"style", "unit", "docs", "release"}, "what an edit was undone of is another content again"
    assert ci(clone)[0] == set()
