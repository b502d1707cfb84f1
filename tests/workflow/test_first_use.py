"""What threads of a fresh process do first, all of them at once: a worker that adopts many runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHILD = """
import sys, threading
from agentos.dag.define.workflow import Workflow
from agentos.workflow.define.plans import decode_plan, encode_plan, plan_for_now

flow = Workflow("many")
flow.add("say", "shell", run="true", effects="none")
stored = encode_plan(plan_for_now(flow, {}))
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(8)

def read():
    barrier.wait()
    decode_plan(stored)

threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_plans_are_read_by_many_threads_at_once() -> None:
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", CHILD], env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
