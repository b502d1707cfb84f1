"""Real agents as candidates for one task, killed with SIGKILL in the middle of it and resumed."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from agentos.client import Client, views
from agentos.machine.events import TaskError, TaskRetry, TaskStart, TaskUsage
from tests.agents.overnight import GRACE_S, STEPS, check_job, files_of
from tests.agents.overnight_model import STEP, Job, NightModel
from tests.agents.programs import MODELS, environment
from tests.agents.script import WriteFile
from tests.agents.support import need, scripted
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


KILLS = 20
MOST_DRIVES = 12
"""Of one run, before it is left in peace."""
WHO = {
    "claude": ("/messages", "work", STEPS + 1),
    "codex": ("/responses", "work", STEPS + 1),
    "llm": ("/chat/completions", "say", 1),
}
"""How its calls are told from others', by path and job, and how many of them the work needs."""
BEST = """
name: best
params: {{name: ""}}
tasks:
  work:
    prompt: "JOB ${{{{ params.name }}}}/work STEPS {steps}: do one step at a time, until none is left."
    retries: {{retries: 4, backoff_s: 0.2}}
    candidates:
      - {{agent: claude, model: {claude}, permissions: full}}
      - {{agent: codex, model: {codex}, permissions: full}}
      - {{llm: scripted, prompt: "JOB ${{{{ params.name }}}}/say STEPS 0"}}
    judge: {{run: 'grep -l "step {steps}" "$AGENTOS_CANDIDATES"/*.patch; echo codex'}}
"""


class Contests(NamedTuple):
    """Runs of one task with three candidates, and the model that all of them pay."""

    root: Path
    model: NightModel
    env: dict[str, str]

    def drive(self, *arguments: str, for_s: float | None = None) -> tuple[float, int]:
        """When it ended, and how: killed after so long, should it last until then."""
        process = subprocess.Popen(
            [sys.executable, "-m", "agentos", *arguments],
            cwd=self.root,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(for_s or 120.0)
        except subprocess.TimeoutExpired:
            assert for_s is not None, f"{arguments} is not done after two minutes"
            process.kill()
        return time.monotonic(), process.wait()

    def play(self, run: str, chance: random.Random, kills: int) -> list[float]:
        """From the beginning to the end; when it was killed."""
        killed: list[float] = []
        for drive in range(60):
            strike = len(killed) < kills and drive < MOST_DRIVES
            line = ("run", "best.yaml", "--id", run, "--param", f"name={run}", "--gates", "stop")
            ended, code = self.drive(*line, for_s=chance.uniform(0.3, 4.0) if strike else None)
            if code == -9:
                killed.append(ended)
            elif code == 0:
                return killed
            assert code in (0, 3, 75, -9), code
            if code == 3:  # cut off three times in a row: somebody is asked whether to try again
                for gate in views.view(run, self.root).gates:
                    if gate.answer is None:
                        self.drive("approve", run, gate.id, "--choose", "run-again", "--no-resume")
        raise AssertionError(f"{run} does not come to its end")


@pytest.mark.timeout(900)  # some twenty starts of real agents for each run, on a machine that may be busy
def test_the_best_of_three_killed_at_random_twenty_times_is_one_and_each_is_paid_once(
    tmp_git_repo: Path, home: Path
) -> None:
    """One payment each: beyond what the work needs only answers that a kill met on their way."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    model = NightModel(random.Random(seed))
    (tmp_git_repo / "step.sh").write_text(STEP)
    (tmp_git_repo / "best.yaml").write_text(BEST.format(steps=STEPS, **MODELS))
    own = {"PYTHONPATH": os.pathsep.join(sys.path), "NO_COLOR": "1", "OPENAI_API_KEY": "key-of-this-test"}
    with model.server:
        for agent in ("claude", "codex"):
            need(agent)
            own |= environment(agent, model.server.url, home)
        own["OPENAI_BASE_URL"] = model.server.base_url
        contests = Contests(tmp_git_repo, model, {**os.environ, **own})
        missing = KILLS
        for number in itertools.count(1):
            killed = contests.play(run := f"best-{number}", chance, missing)
            missing -= len(killed)
            check_contest(contests, run, killed)
            if not missing:
                break


def check_contest(contests: Contests, run: str, killed: list[float]) -> None:
    """One winner, whose files are there; each candidate's answers bought once, and on record to the token."""
    why = views.why(run, "work", contests.root)
    assert [row.candidate for row in why.candidates if row.winner] == ["codex"]
    assert files_of(contests.root, run) == {f"work-{step}": f"step {step} of work\n" for step in range(1, STEPS + 1)}
    events = list(Client(contests.root).events(run))
    offset = time.time() - time.monotonic()
    cuts = [(moment - GRACE_S, moment) for moment in killed]
    for event in events:
        if isinstance(event, TaskRetry | TaskError) and event.at is not None:
            cuts.append((event.at.timestamp() - offset,) * 2)
    for who, (path, job, needed) in WHO.items():
        task = f"work[{who}]"
        paid = [one for one in contests.model.book[Job(run, job)] if path in one.request.path]
        starts = sum(isinstance(event, TaskStart) and event.task_id == task for event in events)
        used = [event.usage for event in events if isinstance(event, TaskUsage) and event.task_id == task]
        told = (sum(one.input_tokens for one in used), sum(one.output_tokens for one in used))
        assert check_job(Job(run, task), paid, needed, starts, told, cuts).wrong == ()
