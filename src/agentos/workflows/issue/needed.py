"""What a role needs on this machine: a program, a key. Looked for before anything is spent."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from agentos.tasks.agents.adapters.known import AGENTS
from agentos.tasks.llm.endpoints import OPENAI_KEY_VARIABLE, OPENAI_URL_VARIABLE
from agentos.workflow.place.settings import load_settings
from agentos.workflows.issue.programs import is_there
from agentos.workflows.issue.roles import Filer, Role


class Need(NamedTuple):
    what: str
    is_there: bool


def need_of(role: Role | Filer, root: Path) -> Need | None:
    """What the role needs, and whether it is there; None where it needs nothing."""
    match role.kind:
        case "command":
            return Need(role.argv[0], is_there(role.argv[0], root))
        case "agent":
            program = AGENTS[role.name].TRAITS.program if role.name in AGENTS else ""
            return Need(program, is_there(program, root)) if program else None
        case "llm":
            variable = _key_variable(root)
            return Need(variable, bool(os.environ.get(variable, "").strip())) if variable else None
        case "gh":
            if not is_there("gh", root):
                return Need("gh", False)
            signed_in = not subprocess.run(
                ["gh", "auth", "status"], cwd=root, capture_output=True, check=False
            ).returncode
            return Need("gh" if signed_in else "gh is not signed in (gh auth login)", signed_in)
        case "none":
            return None


def _key_variable(root: Path) -> str:
    """The variable that must hold the key of a model; empty where it comes from elsewhere, or none is needed."""
    settings = load_settings(root).models.llm
    if settings.key_name or settings.key_command or settings.base_url:
        return settings.key_name
    return "" if os.environ.get(OPENAI_URL_VARIABLE, "").strip() else OPENAI_KEY_VARIABLE
