"""The benchmark runs. What it measures is judged by people, never by a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def bench(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments, "--folder", str(folder)]
    return subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)


def test_our_own_part_of_it_runs_and_prints_what_it_found(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    done = bench(
        "--quick", "--only", "chain,steps", "--contenders", "asyncio,raw,agentos", "--json", str(results),
        folder=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    for text in ("sqlite:", "load:", "python -m bench --quick", "| agentos ", "within 2× of raw SQLite"):
        assert text in done.stdout
    cases = json.loads(results.read_text())["cases"]
    case = cases["chain"]
    assert [sample["ms_per_task"] > 0 for sample in case["samples"]["agentos"]] == [True]
    assert {goal["what"]: goal["met"] for goal in case["goals"]}["at least 5× faster than DBOS"] is None
    assert {goal["what"]: goal["met"] is None for goal in cases["steps"]["goals"]} == {
        "within 1.2× of our own chain of tasks": False, "no slower than DBOS steps": True,
    }  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"], "it leaves nothing behind"


def test_a_case_that_does_not_exist_is_refused_with_the_list(tmp_path: Path) -> None:
    done = bench("--only", "chian", folder=tmp_path)

    assert done.returncode == 2
    assert "chian" in done.stderr
    assert "chain" in done.stderr


def test_results_of_a_part_never_reach_the_documentation(tmp_path: Path) -> None:
    done = bench("--quick", "--write-docs", folder=tmp_path)

    assert done.returncode == 2
    assert "whole run" in done.stderr
