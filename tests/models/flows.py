"""A workflow that asks models, in a real repository, run by the program against the tests' own server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from agentos import Client
from agentos.machine.events import TaskUsage
from tests.conftest import trust
from tests.forks import run_forked
from tests.models.replies import says, verdict
from tests.models.server import ModelServer

SOURCES = Path(__file__).parents[2] / "src"
FLOW = """
tasks:
  draft:
    llm: m1
    system: You write issues.
    prompt: "Draft: ${{ params.topic }}"
  review:
    llm: m2
    prompt: "Review: ${{ tasks.draft.output.text }}"
    retries: {retries: 1, backoff_s: 0.01}
    schema:
      type: object
      properties: {verdict: {enum: [approve, revise]}}
      required: [verdict]
  said:
    run: [echo, "${{ tasks.review.output.json.verdict }}"]
    effects: none
params: {topic: tests}
"""

CROWD = """
budget: {tokens: 150}
tasks:
  ask:
    for_each: ${{ params.numbers }}
    llm: m1
    prompt: "Say ${{ item }}"
params: {numbers: [%s]}
"""
"""Many calls at once, of which the budget pays for one and a half."""
ONE_AT_A_TIME = "[limits.OPENAI_API_KEY]\nslots = 1\n"


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Place(NamedTuple):
    """A repository with a workflow, a server, and the program."""

    root: Path
    server: ModelServer

    def env(self, **more: str) -> dict[str, str]:
        mine = {"OPENAI_BASE_URL": self.server.base_url, "OPENAI_API_KEY": "sk-of-this-test"}
        return {**os.environ, "PYTHONPATH": str(SOURCES), **mine, **more}

    def agentos(self, *argv: str, **more: str) -> Done:
        done = run_forked("-m", "agentos", *argv, cwd=self.root, env=self.env(**more))
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "agentos", *argv]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, cwd=self.root, env=self.env(), stdin=quiet, stdout=quiet, stderr=quiet)

    def write(self, text: str, settings: str = "") -> None:
        (self.root / "workflows").mkdir(exist_ok=True)
        (self.root / "workflows" / "flow.yaml").write_text(text)
        (self.root / "agentos.toml").write_text(settings)
        trust(self.root)

    def state(self) -> Any:
        return Client(self.root).show("r").state

    def usage(self) -> list[tuple[str, int, float]]:
        events = Client(self.root).events("r")
        return [(one.task_id, one.usage.calls, one.usage.cost_usd) for one in events if isinstance(one, TaskUsage)]


def keys(server: ModelServer, model: str) -> list[str]:
    return [one.headers["idempotency-key"] for one in server.requests if one.json["model"] == model]


def reviewing(root: Path, server: ModelServer) -> Place:
    """The workflow in this repository; the server drafts and approves."""
    server.choose(lambda request: verdict("approve") if request.json["model"] == "m2" else says("The draft."))
    place = Place(root, server)
    place.write(FLOW)
    return place


def crowd(root: Path, server: ModelServer, size: int) -> Place:
    """So many calls of a hundred tokens, one at a time, under a budget for one and a half."""
    server.otherwise = says("Yes.", input_tokens=60, output_tokens=40)
    place = Place(root, server)
    place.write(CROWD % ", ".join(map(str, range(size))), ONE_AT_A_TIME)
    return place
