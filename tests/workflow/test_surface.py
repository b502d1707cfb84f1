"""The names users need: few, documented, importable from where the contract says, and quiet on import."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import agentos
import agentos.workflow
from tests.workflow.support import environment

NAMES = {
    "agentos": ["Workflow", "run", "arun", "resume", "aresume"],
    "agentos.workflow": ["ParallelExecutor", "ControlledExecutor", "EventStream", "CommandQueue"],
    "agentos.workflow.checkpoint": [
        "get_repo_root",
        "ensure_agentos_dir",
        "get_checkpoint_db_path",
        "CheckpointManager",
        "Checkpoint",
    ],
    "agentos.machine.state": ["WorkflowState", "update_state", "validate_state_invariants"],
    "agentos.exceptions": [
        "AgentosError",
        "WorkflowConfigurationError",
        "CheckpointNotFoundError",
        "CheckpointCorruptedError",
        "StateInvariantError",
        "LeaseLostError",
    ],
}


def test_the_package_has_at_most_fifteen_names() -> None:
    assert len(agentos.__all__) <= 15
    assert agentos.__all__ == sorted(agentos.__all__)
    for name in agentos.__all__:
        assert hasattr(agentos, name)


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in NAMES.items() for name in names])
def test_a_name_of_the_contract_is_where_it_says(module: str, name: str) -> None:
    found = getattr(importlib.import_module(module), name)
    assert inspect.getdoc(found)


def test_a_name_that_the_workflow_package_has_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        agentos.workflow.Nonsense  # noqa: B018
    assert sorted(agentos.workflow.__all__) == agentos.workflow.__all__


def test_the_signatures_of_the_contract() -> None:
    from agentos.workflow.checkpoint import CheckpointManager

    def parameters(function: Any) -> list[str]:
        return [name for name in inspect.signature(function).parameters if name != "self"]

    assert parameters(CheckpointManager) == ["path", "auto_prune"]
    assert parameters(CheckpointManager.save_checkpoint) == ["workflow_id", "layer", "state"]
    assert inspect.signature(CheckpointManager.prune_checkpoints).parameters["keep"].default == 5
    assert parameters(agentos.workflow.ControlledExecutor.resume_from_checkpoint) == ["checkpoint_id", "dag"]
    assert parameters(agentos.workflow.ControlledExecutor.execute_stream)[0] == "dag"
    assert parameters(agentos.run)[:3] == ["workflow", "params", "workflow_id"]
    assert inspect.isasyncgenfunction(agentos.workflow.ControlledExecutor.execute_stream)
    assert inspect.isasyncgenfunction(agentos.workflow.ControlledExecutor.resume_from_checkpoint)


def test_the_configuration_error_is_a_runtime_error_too() -> None:
    from agentos import exceptions

    assert issubclass(exceptions.WorkflowConfigurationError, RuntimeError)
    for name, found in vars(exceptions).items():
        if inspect.isclass(found) and issubclass(found, Exception):
            assert issubclass(found, exceptions.AgentosError), name
            assert name in (exceptions.__doc__ or ""), f"{name} stands in the tree"


def modules_of(package: str) -> list[str]:
    path = importlib.import_module(package).__path__
    return [f"{package}.{found.name}" for found in pkgutil.iter_modules(path)]


@pytest.mark.parametrize("name", ["agentos.client", *modules_of("agentos.client"), *modules_of("agentos.workflow")])
def test_every_public_name_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    missing = []
    for found_name, found in vars(module).items():
        if found_name.startswith("_") or getattr(found, "__module__", None) != name:
            continue
        if inspect.isclass(found):
            missing += [f"{found_name}"] if not inspect.getdoc(found) else []
            for verb, member in vars(found).items():
                public = not verb.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
                inherited = any(verb in vars(base) for base in found.__mro__[1:])
                if public and not inherited and not inspect.getdoc(member) and verb not in UNDERSTOOD:
                    missing.append(f"{found_name}.{verb}")
        elif inspect.isfunction(found) and not inspect.getdoc(found) and found_name not in UNDERSTOOD:
            missing.append(found_name)
    assert missing == []


UNDERSTOOD = {"close", "start", "utc_now", "put", "facts", "release", "encode_plan", "decode_plan"} | {
    "append",
    "read",
}
"""Names that say all there is to say, or whose protocol says it."""


QUIET = """
import sys, threading
before = set(sys.modules)
import agentos
import json
loaded = set(sys.modules) - before
print(json.dumps({"threads": threading.active_count(), "modules": sorted(loaded)}))
"""


def test_importing_starts_no_thread_and_leaves_for_later_what_it_can(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", QUIET], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    assert told["threads"] == 1
    for late in ("sqlite3", "agentos.workflow.executor", "agentos.store.sqlite.store", "psutil", "multiprocessing"):
        assert late not in told["modules"], late
    assert list(tmp_path.iterdir()) == []


def test_the_lazy_names_are_the_real_ones() -> None:
    from agentos.workflow import executor
    from agentos.workflow.drive import command_delivery, event_stream

    assert agentos.workflow.ParallelExecutor is executor.ParallelExecutor
    assert agentos.workflow.ControlledExecutor is executor.ControlledExecutor
    assert agentos.workflow.EventStream is event_stream.EventStream
    assert agentos.workflow.CommandQueue is command_delivery.CommandQueue
