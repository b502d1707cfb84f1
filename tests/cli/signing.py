"""Real keys, real signers, and runs that wait for a signed answer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cli.conftest import Agentos

SHIP = {"ship": {"approve": {"question": "Ship it?", "by": "signed"}, "run": "./ship.sh"}}


def make_key(folder: Path, name: str) -> Path:
    """A key without a passphrase; its public half is beside it."""
    key = folder / f"key-{name}"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", key], check=True)
    return key


def public_half(key: Path) -> str:
    return " ".join(key.with_name(f"{key.name}.pub").read_text().split()[:2])


def commit_all(root: Path, message: str = "more") -> str:
    for command in (["add", "-A"], ["commit", "-q", "--allow-empty", "-m", message]):
        subprocess.run(["git", "-C", root, "-c", "user.name=t", "-c", "user.email=t@t", *command], check=True)
    done = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def make_repository(root: Path, signers: Mapping[str, Path], tasks: Mapping[str, Any] = SHIP, options: str = "") -> str:
    """A repository with a workflow and a script, whose only commit names these signers."""
    subprocess.run(["git", "init", "-q", root], check=True)
    write_flow(root, tasks)
    (root / ".gitignore").write_text(".agentos/\n")
    (root / "ship.sh").write_text("#!/bin/sh\necho shipped >> shipped\n")
    (root / "ship.sh").chmod(0o755)
    name_signers(root, signers, options)
    return commit_all(root)


def write_flow(root: Path, tasks: Mapping[str, Any]) -> None:
    (root / "flow.yaml").write_text(json.dumps({"name": "flow", "tasks": tasks}))


def name_signers(root: Path, signers: Mapping[str, Path], options: str = "") -> None:
    lines = [f"{name} {options}{public_half(key)}\n" for name, key in signers.items()]
    (root / ".agentos-signers").write_text("# who may sign\n" + "".join(lines))


def text_to_sign(agentos: Agentos, root: Path, *arguments: str, run: str = "r") -> str:
    done = agentos("approve", run, *arguments, "--print-to-sign", cwd=root)
    assert done.code == 0, done.err
    return str(done.out)


def sign_text(text: str, key: Path, folder: Path, namespace: str = "agentos-gate") -> Path:
    """A signature made by ssh-keygen itself, as somebody would on another machine."""
    written = folder / f"{key.name}-{abs(hash((text, namespace)))}"
    written.write_text(text)
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", namespace, written], check=True)
    return written.with_name(f"{written.name}.sig")


def shown_gates(agentos: Agentos, root: Path, run: str = "r") -> dict[str, Any]:
    return {gate["id"]: gate for gate in json.loads(agentos("show", run, "--json", cwd=root).out)["gates"]}
