"""The workflow of the demo. It is copied into a throw-away repository and run there with `agentos run release.py`.

Sleeping stands for slow work. Each execution of a task leaves one line in executions.log, a witness outside of AgentOS.
"""

from __future__ import annotations

import time
from pathlib import Path

from agentos import Workflow

flow = Workflow("release")


def witness(task: str) -> None:
    with Path("executions.log").open("a") as log:
        log.write(f"{task}\n")


@flow.task
def fetch_code() -> list[str]:
    witness("fetch_code")
    time.sleep(1)
    return ["parser", "printer"]


@flow.task
def fetch_chat() -> list[str]:
    witness("fetch_chat")
    time.sleep(1)
    return ["faster, please", "it prints too much"]


flow.add("fetch_files", "shell", run="echo fetch_files >> executions.log; sleep 1; ls *.py", effects="none")


@flow.task
def count(fetch_code: list[str], fetch_chat: list[str]) -> int:
    witness("count")
    return len(fetch_code) + len(fetch_chat)


@flow.task(inputs={"files": "${{ tasks.fetch_files.output.stdout }}"})
def summarise(fetch_code: list[str], fetch_chat: list[str], files: str) -> str:
    witness("summarise")
    time.sleep(3)
    return f"{', '.join(fetch_code)} in {files}: {'; '.join(fetch_chat)}"


@flow.task(approve="Publish the summary?", effects="external")
def publish(summarise: str, count: int) -> str:
    witness("publish")
    return f"{count} notes published"
