"""A repository with real programs in every role, each of which writes down what it was asked.

stage.reviewer("revise", "approve")     says so, one after the other; the last one again and again
stage.issue("--brief", "idea.md")       the real program
stage.calls("drafter")                  the prompts it was given
stage.filed                             the issues that exist
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentos import Client
from tests.cli.conftest import SOURCES, Completed, call_agentos

ROLE = """#!/bin/sh
# A drafter or reviewer: keeps the prompt, and answers what is next in line.
here={here}
number=1
while ! mkdir "$here/$number" 2>/dev/null; do number=$((number + 1)); done
cat > "$here/$number/prompt"
test -e "$here/answer.$number" || number=last
test -e "$here/answer.$number.code" && exit "$(cat "$here/answer.$number.code")"
cat "$here/answer.$number"
"""
FILER = """#!/bin/sh
# Keeps issues as files, and each call as a line.
here={here}
echo "$*" >> "$here/calls"
case $1 in
find)
    found=$(grep -l -F -- "$3" "$here"/*.issue 2>/dev/null) || exit 0
    echo "https://tracker.invalid/issues/$(basename "$found" .issue)" ;;
create)
    number=1
    while ! mkdir "$here/$number.made" 2>/dev/null; do number=$((number + 1)); done
    {{ echo "$*"; cat; }} > "$here/$number.half"
    mv "$here/$number.half" "$here/$number.issue"
    echo "https://tracker.invalid/issues/$number" ;;
esac
"""
VERDICTS: dict[str, Any] = {
    "approve": {"verdict": "approve", "summary": "It is good.", "changes": []},
    "revise": {"verdict": "revise", "summary": "Nearly.", "changes": ["Name the user."]},
    "revise again": {"verdict": "revise", "summary": "Still not.", "changes": ["  name the USER! "]},
    "revise more": {"verdict": "revise", "summary": "Closer.", "changes": ["Say when it is done."]},
    "discuss": {"verdict": "discuss", "summary": "Two aims in one.", "changes": []},
}
BRIEF = "People who work at night want a dark mode. It should follow the system.\n"


class Stage:
    """One repository, and the programs beside it."""

    def __init__(self, repo: Path, beside: Path) -> None:
        self.repo = repo
        self.beside = beside
        self.env: dict[str, str] = {}
        for name in ("drafter", "reviewer", "filer"):
            (beside / name).mkdir(parents=True)
            self._program(name, FILER if name == "filer" else ROLE)
        self.drafts("# Dark mode\n\nFirst text.\n\nLabels: ui, `night`\n")
        self.reviewer("approve")
        self.brief()

    def _program(self, name: str, text: str) -> None:
        program = self.beside / f"{name}.sh"
        program.write_text(text.format(here=self.beside / name))
        program.chmod(0o755)

    # --- what they answer -------------------------------------------------------------------------------------------

    def drafts(self, *answers: str | int) -> None:
        self._answers("drafter", answers)

    def reviewer(self, *answers: str | int) -> None:
        """Verdicts by name, other text as it is, and exit codes."""
        texts = [json.dumps(VERDICTS[answer]) if answer in VERDICTS else answer for answer in answers]
        self._answers("reviewer", texts)

    def _answers(self, role: str, answers: Sequence[str | int]) -> None:
        for number, answer in [*enumerate(answers, 1), ("last", answers[-1])]:
            kind = ".code" if isinstance(answer, int) else ""
            for old in self.beside.joinpath(role).glob(f"answer.{number}*"):
                old.unlink()
            (self.beside / role / f"answer.{number}{kind}").write_text(str(answer))
            (self.beside / role / f"answer.{number}").touch()

    def brief(self, text: str = BRIEF, name: str = "dark-mode.md") -> Path:
        path = self.repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    # --- the program --------------------------------------------------------------------------------------------

    @property
    def roles(self) -> list[str]:
        drafter, reviewer, filer = (f"command:{self.beside / name}.sh" for name in ("drafter", "reviewer", "filer"))
        return ["--drafter", drafter, "--reviewer", reviewer, "--file-with", filer]

    def issue(self, *arguments: str, gates: str = "none", env: Mapping[str, str] | None = None) -> Completed:
        return self.agentos("issue", *arguments, *self.roles, "--gates", gates, env=env)

    def start(self, *arguments: str, env: Mapping[str, str] | None = None, **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "agentos", *arguments],
            cwd=self.repo,
            env={**os.environ, "PYTHONPATH": str(SOURCES), **self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    def agentos(self, *arguments: str, env: Mapping[str, str] | None = None) -> Completed:
        return call_agentos(*arguments, cwd=self.repo, env={**self.env, **(env or {})}, timeout_s=100)

    # --- what became of it ------------------------------------------------------------------------------------------

    def calls(self, role: str) -> list[str]:
        """The prompts a role was given, in order."""
        folders = sorted((path for path in (self.beside / role).iterdir() if path.is_dir()), key=lambda p: int(p.name))
        return [(folder / "prompt").read_text() for folder in folders]

    @property
    def filed(self) -> list[str]:
        """The issues that exist: how each was asked for, and its text."""
        return [file.read_text() for file in sorted((self.beside / "filer").glob("*.issue"))]

    def artefacts(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.repo / "docs" / "lineage" / folder).iterdir())

    def artefact(self, name: str) -> str:
        return (self.repo / "docs" / "lineage" / name).read_text()

    def status(self, run: str = "issue-dark-mode") -> str:
        return Client(self.repo).find(run).status

    def gates(self, run: str = "issue-dark-mode") -> dict[str, str]:
        return dict(Client(self.repo).show(run).gates)
