"""The agents that are known by name; which of them this machine has, where, and in which version."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agentos.tasks.agents.adapters import claude, codex, command, copilot, gemini, opencode
from agentos.tasks.agents.adapters.adapter import Agent, Traits

VERSION_S = 20.0
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?[\w.+-]*")

AGENTS: Mapping[str, Agent] = {
    "claude": claude,
    "codex": codex,
    "gemini": gemini,
    "opencode": opencode,
    "copilot": copilot,
    "command": command,
}


class InstalledAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's program; `path` is empty where it is not in PATH."""

    agent: str
    path: str = ""
    version: str = ""


def installed_agents() -> list[InstalledAgent]:
    """Every agent that is known by name, installed or not. Blocks, for seconds: call it from a thread."""
    found = []
    for name, agent in AGENTS.items():
        if program := agent.TRAITS.program:
            path = shutil.which(program) or ""
            found.append(InstalledAgent(agent=name, path=path, version=version_of(path) if path else ""))
    return found


def seems_signed_in(traits: Traits, env: Mapping[str, str]) -> bool:
    """Whether anything speaks for it. Elsewhere than on Linux keys may lie in a keychain, and nothing is said."""
    sign_in, kept = traits.sign_in, traits.transcript
    if sign_in is None or kept is None or sys.platform != "linux" or any(env.get(name) for name in sign_in.variables):
        return True
    return Path(env.get(kept.variable) or Path.home() / kept.folder, sign_in.file).exists()


def version_of(path: str) -> str:
    """Its version, from the package it came in where there is one: asking the program takes seconds. Empty: unknown."""
    real = os.path.realpath(path)
    try:
        return _version(real, os.stat(real).st_mtime_ns)
    except OSError:
        return ""


@functools.lru_cache(maxsize=64)
def _version(real: str, changed_ns: int) -> str:
    for folder in list(Path(real).parents)[:4]:
        try:
            package = json.loads((folder / "package.json").read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(package, dict) and "bin" in package:
            if version := str(package.get("version") or ""):
                return version
            break
    try:
        done = subprocess.run(
            [real, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=VERSION_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = _VERSION.search(done.stdout.decode(errors="replace"))
    return found[0] if found else ""
