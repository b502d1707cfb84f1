"""Many workers on the same schedules, in linked worktrees, with clocks that differ, killed again and again.

While they fire, runs are deleted; and every slot is fired once.
The witness is the database itself: a trigger writes down each run that is ever made.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from agentos.crashpoints import SCHEDULE_POINTS, VARIABLE
from agentos.dag.define.cron import slots_between
from agentos.machine.slots import slot_id, waiting_slots
from agentos.store.port import ScheduleRecord
from agentos.store.postgres.address import read_address
from agentos.workflow.place.place import find_place
from tests.conftest import git
from tests.marks import only_in_matrix
from tests.postgres.server import fresh_url, shared_url

ROOT = Path(__file__).parents[2]
FLOW = 'cron: {every: 1m, catch_up: all}\ntasks: {a: {run: "true", effects: none}}\n'
WITNESS_SQLITE = (
    "CREATE TABLE IF NOT EXISTS witness (id TEXT NOT NULL)",
    "CREATE TRIGGER IF NOT EXISTS witness_run AFTER INSERT ON run BEGIN INSERT INTO witness VALUES (NEW.id); END",
)
WITNESS_POSTGRES = (
    "CREATE TABLE witness (id text NOT NULL)",
    "CREATE FUNCTION note_run() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN EXECUTE format('INSERT INTO %I.witness VALUES ($1)', TG_TABLE_SCHEMA) USING NEW.id; RETURN NEW; END $$",
    "CREATE TRIGGER witness_run AFTER INSERT ON run FOR EACH ROW EXECUTE FUNCTION note_run()",
)
pytestmark = only_in_matrix

MODERATE = {"workers": 6, "schedules": 3, "slots": 20, "kills": 12}
LARGE = {"workers": 20, "schedules": 10, "slots": 100, "kills": 150}
SKEWS = (-300, -120, 0, 0, 60, 300)
"""Seconds by which the clocks of workers are off."""


class Crowd:
    """Worktrees of one repository, and the processes that fire their schedules."""

    def __init__(self, folder: Path, url: str) -> None:
        self.repo = folder / "repo"
        self.url = url
        self.worktrees = [self.repo, folder / "one", folder / "two"]
        self.since = datetime.now(UTC).replace(second=0, microsecond=0)
        self.living: list[subprocess.Popen[bytes]] = []

    def query(self, root: Path, *statements: str) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        if self.url:
            with psycopg.connect(shared_url(), autocommit=True) as connection:
                connection.execute("SELECT set_config('search_path', %s, false)", [read_address(self.url).search_path])
                for statement in statements:
                    cursor = connection.execute(statement)
                    rows = cursor.fetchall() if cursor.description else []
            return rows
        with closing(sqlite3.connect(find_place(root).database, timeout=60)) as database, database:
            for statement in statements:
                rows = database.execute(statement).fetchall()
        return rows

    def start(self, chance: random.Random, names: list[str], *, dies: bool) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        if dies and chance.random() < 0.7:
            env[VARIABLE] = f"{chance.choice([*SCHEDULE_POINTS])}:{chance.randint(1, 6)}"
        words = (chance.choice(self.worktrees), chance.choice(SKEWS), chance.random(), self.since.isoformat(), *names)
        argv = [sys.executable, "-m", "tests.crash.children.firing", *map(str, words)]
        self.living.append(subprocess.Popen(argv, cwd=ROOT, env=env))

    def reap(self) -> int:
        """How many were killed since; nobody may have ended in another way."""
        gone = [process for process in self.living if process.poll() is not None]
        assert {process.returncode for process in gone} <= {-9}, [process.returncode for process in gone]
        self.living = [process for process in self.living if process.poll() is None]
        return len(gone)

    def is_done(self, names: list[str], upto: datetime) -> bool:
        """Every schedule has come so far, and nothing of it waits."""
        found = {
            one.name: one for root in ([self.repo] if self.url else self.worktrees) for one in self.schedules(root)
        }
        states = [found[name].state for name in names if name in found]
        crons = [found[name].cron for name in names if name in found]
        return len(states) == len(names) and all(
            state.upto >= upto and not [slot for slot in waiting_slots(cron, state) if slot <= upto]
            for cron, state in zip(crons, states, strict=True)
        )

    def schedules(self, root: Path) -> list[ScheduleRecord]:
        store = find_place(root).open(readonly=True)
        try:
            return store.read_schedules()
        finally:
            store.close()


@pytest.fixture(params=["sqlite", "postgres"])
def crowd(request: pytest.FixtureRequest, tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Crowd:
    url = fresh_url() if request.param == "postgres" else ""
    if url:
        monkeypatch.setenv("AGENTOS_WORKFLOW_DB", url)
    (tmp_git_repo / "every.yaml").write_text(FLOW)
    git("add", "-A", cwd=tmp_git_repo)
    git("commit", "--quiet", "-m", "flow", cwd=tmp_git_repo)
    crowd = Crowd(tmp_git_repo.parent, url)
    crowd.repo = tmp_git_repo
    crowd.worktrees[0] = tmp_git_repo
    for path in crowd.worktrees[1:]:
        git("worktree", "add", "--quiet", str(path), cwd=tmp_git_repo)
    for root in [tmp_git_repo] if url else crowd.worktrees:
        find_place(root).open(create=True).close()
        crowd.query(root, *(WITNESS_POSTGRES if url else WITNESS_SQLITE))
    return crowd


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [MODERATE, pytest.param(LARGE, marks=pytest.mark.full)], ids=["moderate", "large"])
def test_every_slot_is_fired_once_whoever_fires_and_dies(crowd: Crowd, size: dict[str, int]) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    names = [f"every-{number}" for number in range(size["schedules"])]
    upto = crowd.since
    crowd.since -= timedelta(minutes=size["slots"])
    killed = 0
    try:
        while not crowd.is_done(names, upto):
            killed += crowd.reap()
            while len(crowd.living) < size["workers"]:
                crowd.start(chance, names, dies=killed < size["kills"])
            if killed < size["kills"] and chance.random() < 0.2:
                chance.choice(crowd.living).kill()
            time.sleep(0.1)
    finally:
        (crowd.repo.parent / "stop").touch()
        for process in crowd.living:
            process.wait(60)
    owned = Counter[str]()
    for root in [crowd.repo] if crowd.url else crowd.worktrees:
        made = Counter(id_ for (id_,) in crowd.query(root, "SELECT id FROM witness"))
        assert {id_: times for id_, times in made.items() if times != 1} == {}
        for schedule in crowd.schedules(root):
            state = schedule.state
            assert schedule.run.root in map(str, crowd.worktrees)
            waiting = waiting_slots(schedule.cron, state)
            every = [slot for slot in slots_between(schedule.cron, crowd.since, state.upto) if slot not in waiting]
            assert {slot_id(schedule.name, slot) for slot in every} == {
                id_ for id_ in made if id_.startswith(f"{schedule.name}@")
            }
            assert len(every) >= size["slots"]
            owned[schedule.name] += 1
    assert owned == dict.fromkeys(names, 1)
    print(f"{killed} killed, {sum(owned.values())} schedules")
