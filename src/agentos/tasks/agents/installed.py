"""Which agents this machine has, where, and in which version. Blocks: call it from a thread."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agentos.tasks.agents.adapters.known import AGENTS

VERSION_S = 20.0
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?[\w.+-]*")


class InstalledAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's program; `path` is empty where it is not in PATH."""

    agent: str
    path: str = ""
    version: str = ""


def installed_agents(environment: Mapping[str, str]) -> list[InstalledAgent]:
    """Every agent that is known by name, installed or not."""
    found = []
    for name, agent in AGENTS.items():
        if program := agent.TRAITS.program:
            path = shutil.which(program, path=environment.get("PATH", os.defpath)) or ""
            found.append(InstalledAgent(agent=name, path=path, version=version_of(path) if path else ""))
    return found


def version_of(path: str) -> str:
    """Its version, from the package it came in where there is one: asking the program takes seconds. Empty: unknown."""
    real = os.path.realpath(path)
    try:
        return _version(real, os.stat(real).st_mtime_ns)
    except OSError:
        return ""


@functools.lru_cache(maxsize=64)
def _version(real: str, changed_ns: int) -> str:
    return _version_from_package(Path(real)) or _version_from_program(real)


def _version_from_package(program: Path) -> str:
    for folder in list(program.parents)[:4]:
        try:
            package = json.loads((folder / "package.json").read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(package, dict) and "bin" in package:
            return str(package.get("version") or "")
    return ""


def _version_from_program(path: str) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=VERSION_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = _VERSION.search(done.stdout.decode(errors="replace"))
    return found[0] if found else ""
