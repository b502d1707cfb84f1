"""The real agents: where `make agents` puts them, and what points them at the tests' model server."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".npm-agents" / "node_modules" / ".bin"
KEY = "key-for-these-tests"

MODELS: Mapping[str, str] = {
    "claude": "claude-sonnet-4-5",
    "codex": "gpt-5",
    "gemini": "gemini-2.5-pro",
    "opencode": "scripted/one",
    "copilot": "claude-sonnet-4",
}
"""A model that each of them believes in."""


def installed(agent: str) -> bool:
    return (FOLDER / agent).exists()


def environment(agent: str, url: str, home: Path) -> dict[str, str]:
    """What the agent needs to find its model at `url`; its settings are written to `home`."""
    inherited = _path_without_bubblewrap() if agent == "codex" else os.environ["PATH"]
    path = f"{FOLDER}{os.pathsep}{inherited}"
    return {"PATH": path, "HOME": str(home), **_SETTINGS[agent](url, home)}


@cache
def _path_without_bubblewrap() -> str:
    """PATH, but for a bubblewrap that is too old for codex: it takes the installed one, its own if there is none."""
    program = shutil.which("bwrap")
    if program is None:
        return os.environ["PATH"]
    if "--argv0" in subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout:
        return os.environ["PATH"]
    links = Path(tempfile.mkdtemp(prefix="path-"))
    atexit.register(shutil.rmtree, links, ignore_errors=True)
    links.chmod(0o755)
    folders = []
    for number, folder in enumerate(map(Path, os.environ["PATH"].split(os.pathsep))):
        if not (folder / "bwrap").exists():
            folders.append(str(folder))
            continue
        copy = links / str(number)
        copy.mkdir()
        for one in folder.iterdir():
            if one.name != "bwrap":
                (copy / one.name).symlink_to(one)
        folders.append(str(copy))
    return os.pathsep.join(folders)


def _claude(url: str, home: Path) -> dict[str, str]:
    # IS_SANDBOX: it refuses full permissions to root otherwise.
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1", "CLAUDE_CODE_MAX_RETRIES": "0"}
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": KEY, **quiet}


def _codex(url: str, home: Path) -> dict[str, str]:
    _write(
        home / ".codex" / "config.toml",
        f"""
        model_provider = "scripted"
        [model_providers.scripted]
        name = "scripted"
        base_url = "{url}/v1"
        env_key = "SCRIPTED_KEY"
        wire_api = "responses"
        request_max_retries = 0
        stream_max_retries = 0
        """,
    )
    return {"CODEX_HOME": str(home / ".codex"), "SCRIPTED_KEY": KEY}


def _gemini(url: str, home: Path) -> dict[str, str]:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"maxAttempts": 1, "enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
    }
    _write(home / ".gemini" / "settings.json", json.dumps(settings))
    return {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": KEY}


def _opencode(url: str, home: Path) -> dict[str, str]:
    model = {"name": "one", "tool_call": True, "limit": {"context": 100_000, "output": 1_000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
        "models": {"one": model},
    }
    settings = {"provider": {"scripted": provider}}
    quiet = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), "XDG_CONFIG_HOME": "", "XDG_DATA_HOME": "", **quiet}


def _copilot(url: str, home: Path) -> dict[str, str]:
    provider = {"COPILOT_PROVIDER_BASE_URL": f"{url}/v1", "COPILOT_PROVIDER_API_KEY": KEY}
    return {**provider, "COPILOT_OFFLINE": "true", "COPILOT_HOME": str(home / ".copilot")}


_SETTINGS = {"claude": _claude, "codex": _codex, "gemini": _gemini, "opencode": _opencode, "copilot": _copilot}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(line.strip() for line in text.splitlines()))
