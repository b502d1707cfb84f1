"""Real agents as candidates for one task, killed with SIGKILL in the middle of it and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentos.client import views
from tests.agents.programs import MODELS
from tests.agents.script import WriteFile
from tests.agents.support import scripted
from tests.agents.test_kills import Runs
from tests.models.replies import Hang, says

pytestmark = pytest.mark.full  # real agents, from npm

FLOW = """
name: flow
tasks:
  work:
    prompt: THE TASK
    verify: test -e made
    candidates:
      - {{agent: claude, model: {claude}}}
      - {{agent: codex, model: {codex}}}
    judge: {{run: 'grep -l codex "$AGENTOS_CANDIDATES"/*.patch; echo codex'}}
"""


def test_killed_in_their_second_turn_both_go_on_and_no_turn_is_paid_twice(tmp_git_repo: Path, home: Path) -> None:
    with (
        scripted("claude", home, WriteFile("made", "by claude"), Hang()) as claude,
        scripted("codex", home, WriteFile("made", "by codex"), Hang()) as codex,
    ):
        (tmp_git_repo / "flow.yaml").write_text(FLOW.format(**MODELS))
        run = Runs(tmp_git_repo, claude)
        run.env.update(codex.env)
        scripts = (claude.script, codex.script)
        run.killed_when(
            lambda: (
                all(len(script.calls) == 2 for script in scripts)
                and run.turns() >= 2
                and run.remembers("claude", "by claude")
                and run.remembers("codex", "by codex")
                and run.paid_tokens() >= 20
            )
        )
        for script in scripts:
            script.then(says("All done."))
        run.finish("resume", "r1")

        assert run.tree() == {"made": "by codex"}
        assert [len(script.calls) for script in scripts] == [3, 3], "nothing that was paid for is asked again"
        for script, agent in zip(scripts, ("claude", "codex"), strict=True):
            assert f"by {agent}" in script.calls[2].text, "its session went on"
        assert run.paid_tokens() == 40
        rows = {row.candidate: row for row in views.why("r1", "work", tmp_git_repo).candidates}
        assert [(row.verify, row.winner, row.tokens) for row in rows.values()] == [
            ("passed", False, rows["claude"].tokens),
            ("passed", True, rows["claude"].tokens),
        ]
