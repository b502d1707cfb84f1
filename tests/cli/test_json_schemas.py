"""What each command prints with --json is what `agentos schema` says, for real runs in many states.

A command with --json must be in CALLS: whoever adds one adds how to call it here. CUT stands for a checkpoint, FILES
for one with a snapshot of files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from agentos import Client
from agentos.cli.json_shapes import commands, output_schema, prints_json
from agentos.client.upkeep import back_up_database
from agentos.workflow.checkpoint import CheckpointManager
from agentos.workflow.files.restore import restore_files
from tests.cli.conftest import Agentos
from tests.cli.sample import begin, make_repository, write_flow
from tests.conftest import git

APPROVES = """command:echo '{"verdict": "approve", "summary": "", "changes": []}'"""
ROLES = ["--drafter", "command:cat", "--reviewer", APPROVES, "--gates", "none", "--file-with", "none"]
CALLS: dict[str, list[list[str]]] = {
    "check": [["flow.py:good"]],
    "init": [["--list"], ["first", "--from", "review"]],
    "prove": [["flow.py:good"]],
    "run": [["flow.py:good", "--id", "fresh"]],
    "issue": [["--brief", "flow.py", *ROLES, "--dry-run"], ["--brief", "flow.py", *ROLES]],
    "resume": [["waits", "--dry-run"]],
    "fork": [["CUT"]],
    "watch": [["ended"]],
    "submit": [["flow.py:good", "--id", "submitted", "--queue", "gpu"]],
    "worker": [["--once"]],
    "worker install": [["--yes"], ["--yes", "--remove"]],
    "schedule add": [["nightly.yaml"]],
    "schedule list": [[]],
    "trust": [[], ["--list"], ["--revoke"]],
    "logs": [["waits"], ["waits", "lint"], ["ended", "--follow"]],
    "list": [[], ["--all"]],
    "inbox": [[]],
    "show": [["waits"], ["ended"], ["states"]],
    "events": [["waits"], ["ended", "--follow"], ["states"]],
    "why": [["waits", task] for task in ("lint", "never", "broken", "after", "ship", "tell")],
    "checkpoints": [["waits"], ["states"]],
    "diff": [["waits", "ended"], ["states", "ended"], ["edits", "write"], ["CUT", "CUT", "--patch"]],
    "restore": [["FILES", "--dry-run"], ["FILES"]],
    "undo": [["--list"], ["--dry-run"], []],
    "purge": [["made.txt", "--yes"]],
    "send": [["--list"]],
    "db path": [[]],
    "db stats": [[]],
    "db migrate": [["--dry-run"]],
    "db backup": [["copy.db"]],
    "db restore": [["kept.db"]],
    "prune": [["--all"], ["ended"]],
    "delete": [["gone", "--yes"]],
    "export": [["ended", "-o", "again.jsonl"]],
    "trace": [["ended", "--otlp", "spans.jsonl"]],
    "import": [["ended.jsonl", "--id", "copied"]],
    "doctor": [[], ["--deep"]],
}
LINES = {"events", "fork", "logs", "run", "watch", "worker"}
"""Commands that print one JSON object per line."""


EDITS = """
import sys
from agentos import Workflow, run

edits = Workflow("edits")
edits.add("write", "shell", run="echo made > made.txt")
edits.add("again", "shell", run="echo more >> made.txt", needs=["write"])

if __name__ == "__main__":
    print(run(edits, workflow_id=sys.argv[2], check=False).status)
"""


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_repository(tmp_path_factory.mktemp("schemas") / "repo")
    who = ("-c", "user.name=Test", "-c", "user.email=test@example.invalid")
    git(*who, "commit", "--quiet", "--allow-empty", "--message", "first", cwd=root)
    begin(root, "flow", "waits", expected="waiting")
    begin(root, "good", "ended", expected="complete")
    begin(root, "good", "gone", expected="complete")
    write_flow(root, EDITS, "edits.py")
    begin(root, "edits", "edits", expected="complete", name="edits.py")
    restore_files(str(Client(root).checkpoints("edits")[0].id), root)
    save_states(root)
    (root / "nightly.yaml").write_text('cron: "0 3 * * *"\ntasks: {lint: {run: ls, effects: none}}\n')
    (root / "ended.jsonl").write_bytes(b"".join(Client(root).export("ended")))
    back_up_database(root / "kept.db", root)
    return root


def save_states(root: Path) -> None:
    manager = CheckpointManager(root / ".agentos" / "issue_workflow.db")
    task = {"task_id": "a", "status": "complete", "output": {"x": b"bytes"}, "error": None, "layer": 0}
    failed = {"task_id": "b", "status": "failed", "error": {"type": "E", "text": "t", "traceback": ""}, "layer": 0}
    from agentos.machine.state import WorkflowState, update_state

    state = update_state(WorkflowState(workflow_id="states"), {"tasks": [task, failed], "decisions": ["any", {"x": 1}]})  # type: ignore[arg-type]
    manager.save_checkpoint("states", 0, state)
    manager.close()


def printed(name: str, out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()] if name in LINES else [json.loads(out)]


SERVES = ("ui", "cluster local")
"""Commands that go on until they are stopped; tests of their own hold what they print to its schema."""


@pytest.mark.parametrize("name", [name for name, command in commands() if prints_json(command) and name not in SERVES])
def test_json_is_as_documented(agentos: Agentos, repo: Path, tmp_path: Path, name: str) -> None:
    assert name in CALLS, f"say in CALLS how to call agentos {name} --json"
    validator = jsonschema.Draft202012Validator(output_schema(name))
    cut = json.loads(agentos("checkpoints", "ended", "--json", cwd=repo).out)[-1]["id"]
    files = json.loads(agentos("checkpoints", "edits", "--json", cwd=repo).out)[-1]["id"]
    for arguments in CALLS[name]:
        given = [{"CUT": cut, "FILES": files}.get(word, word) for word in arguments]
        done = agentos(*name.split(), *given, "--json", cwd=repo, env={"XDG_CONFIG_HOME": str(tmp_path)})
        assert done.code == 0, done.err
        for document in printed(name, done.out):
            validator.validate(document)


def test_a_wrong_document_does_not_pass(agentos: Agentos, repo: Path) -> None:
    """The schemas say something: without a field, or with a wrong type, they refuse."""
    validator = jsonschema.Draft202012Validator(output_schema("show"))
    document = json.loads(agentos("show", "waits", "--json", cwd=repo).out)
    assert validator.is_valid(document)
    assert not validator.is_valid({key: value for key, value in document.items() if key != "status"})
    assert not validator.is_valid({**document, "tasks": [{"id": 1}]})
