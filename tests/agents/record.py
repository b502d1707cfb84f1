"""Records what real agents say in each case: `python -m tests.agents.record [AGENT…]` writes tests/agents/streams anew.

So the adapters are tested where no agent can be installed, and a new version of an agent shows as a difference.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentos.tasks.agents.adapters.adapter import Ask
from agentos.tasks.agents.adapters.known import AGENTS
from tests.agents.programs import FOLDER, MODELS, environment
from tests.agents.script import PROTOCOLS, AgentScript, RunShell, Step, WriteFile
from tests.models.replies import Answer, garbage, says, server_error, too_many, unauthorised
from tests.models.server import ModelServer

STREAMS = Path(__file__).parent / "streams"
PROMPT = "Write a file, please."
LIMIT_S = 30

CASES: Mapping[str, tuple[Step, ...]] = {
    "edits": (WriteFile("REPO/new.txt", "hello"), says("All done.")),
    "denied": (RunShell("curl http://127.0.0.1:9"), says("I may not.")),
    "auth": (unauthorised(),) * 300,
    "rate": (too_many(1),) * 300,
    "server": (server_error(),) * 300,
    "garbage": (garbage(),) * 300,
    "cut_off": (Answer(text="half a sentence", cut_after=2),) * 300,
}


def main(agents: list[str]) -> None:
    for agent in agents or MODELS:
        for case, steps in CASES.items():
            recorded = record(agent, steps)
            print(agent, case, "did not end by itself" if recorded["status"] is None else recorded["status"])
            if recorded["status"] is not None:
                (STREAMS / agent).mkdir(parents=True, exist_ok=True)
                text = json.dumps(recorded, indent=1, ensure_ascii=False)
                (STREAMS / agent / f"{case}.json").write_text(f"{text}\n")


def record(agent: str, steps: tuple[Step, ...]) -> dict[str, Any]:
    """One attempt of the agent; no status where it had to be killed."""
    with tempfile.TemporaryDirectory() as folder, ModelServer(PROTOCOLS) as server:
        home, repo, private = (Path(folder) / name for name in ("home", "repo", "private"))
        for path in (home, repo, private):
            path.mkdir()
        subprocess.run(["git", "init", "--quiet", str(repo)], check=True)
        AgentScript(server, *(_placed(step, repo) for step in steps))
        ask = Ask(
            model=MODELS[agent], session=str(uuid.UUID(int=7, version=4)), folder=str(private), permissions="edit"
        )
        call = AGENTS[agent].call(ask)
        env = {**call.env, **environment(agent, server.url, home)}
        names = {str(home): "/home/user", str(repo): "/repo", str(private): "/private", server.url: "http://model"}
        names[str(FOLDER.parent)] = "/agents"
        names[home.name] = "user"
        try:
            done = subprocess.run(
                call.argv, cwd=repo, env=env, input=PROMPT, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            status, out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            status, out, err = None, _text(late.stdout), _text(late.stderr)
        left = {path.name: path.read_text() for path in private.iterdir()}
        return {
            "status": status,
            "lines": [_plain(line, names) for line in out.splitlines()],
            "stderr": _plain(err, names)[-2_000:],
            "left": {name: _plain(text, names) for name, text in left.items()},
        }


def _placed(step: Step, repo: Path) -> Step:
    return WriteFile(step.path.replace("REPO", str(repo)), step.content) if isinstance(step, WriteFile) else step


def _text(data: str | bytes | None) -> str:
    return data.decode() if isinstance(data, bytes) else data or ""


def _plain(text: str, names: Mapping[str, str]) -> str:
    for name, instead in names.items():
        text = text.replace(name, instead)
    return re.sub(r"/tmp/[^\s\"\\]*", "/tmp/…", text)


if __name__ == "__main__":
    main(sys.argv[1:])
