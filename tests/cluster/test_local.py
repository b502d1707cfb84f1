"""`agentos cluster local`: one to try things out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import psutil
import pytest

from agentos.cli.json_shapes import output_schema
from tests.cluster.conftest import JOBS
from tests.cluster.dask_cluster import wait_until
from tests.forks import SOURCE


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_starts_says_what_to_export_and_ends_with_everything(tmp_git_repo: Path, number: signal.Signals) -> None:
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "agentos", "cluster", "local", "1", "--resource", "GPU=1", "--json"]
    cluster = subprocess.Popen(command, cwd=tmp_git_repo, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert cluster.stdout is not None
        shown, _ = json.JSONDecoder().raw_decode(_document(cluster))
        jsonschema.Draft202012Validator(output_schema("cluster local")).validate(shown)
        variables = shown["variables"]
        assert shown["scheduler"].startswith("tls://127.0.0.1:")
        key = Path(variables["DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY"])
        assert key.stat().st_mode & 0o777 == 0o600
        assert key.parent.stat().st_mode & 0o777 == 0o700
        (tmp_git_repo / "jobs.py").write_text(JOBS)
        task = {"python": "jobs:double", "inputs": {"x": 21}, "runner": "dask", "resources": {"GPU": 1}}
        (tmp_git_repo / "flow.yaml").write_text(json.dumps({"name": "flow", "tasks": {"a": task}}))
        run = [sys.executable, "-m", "agentos", "run", "flow.yaml"]
        done = subprocess.run(run, cwd=tmp_git_repo, env={**env, **variables}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        family = psutil.Process(cluster.pid).children(recursive=True)
        cluster.send_signal(number)
        assert cluster.wait(60) == 0
        wait_until(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family))
        assert not key.parent.exists()
    finally:
        cluster.kill()
        cluster.communicate()


def _document(process: subprocess.Popen[str]) -> str:
    """Its first JSON document."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        try:
            json.loads(text)
        except ValueError:
            continue
        return text
    raise AssertionError(text)
