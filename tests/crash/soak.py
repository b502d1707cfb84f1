"""Random workflows, killed at random moments and resumed until they end: `python tests/crash/soak.py --minutes 5`.

Each case runs a workflow made by chance once undisturbed and once with SIGKILLs, not only at the named points, and
compares how the two ended. Every fourth is a crowd: several processes on one database. A case that went wrong keeps
its folder, and `--seed S --only N` makes its workflow again.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.crash import checks  # noqa: E402 (the path comes first)
from tests.crash.crowd import play_crowd  # noqa: E402
from tests.crash.harness import Theatre  # noqa: E402
from tests.crash.playing import check_after_kill, check_end, next_act, state_of  # noqa: E402
from tests.crash.random_flows import random_flow  # noqa: E402

MAX_STEPS = 60
MAX_KILLS = 6
CROWD_EVERY = 4
"""Every so many cases one is of several processes on one database."""


class Played(NamedTuple):
    """What became of a case."""

    number: int
    kills: int = 0
    drives: int = 0
    wrong: str = ""


def play_case(folder: Path, seed: int, number: int) -> Played:
    """One workflow, undisturbed and disturbed, or a crowd. What goes wrong comes back as text; its folder is kept."""
    chance = random.Random(f"{seed}/{number}")
    name = f"soak --seed {seed} --only {number}"
    if number % CROWD_EVERY == CROWD_EVERY - 1:
        return play_crowd_case(folder, chance, number, name)
    flow = random_flow(name, chance)
    theatres = [Theatre.of_text(folder / part, flow, f"{name} ({part})") for part in ("undisturbed", "disturbed")]
    try:
        seconds = play_to_the_end(theatres[0])
        kills = play_disturbed(theatres[1], chance, seconds)
        ended, disturbed = (state_of(theatre) for theatre in theatres)
        assert disturbed == ended, f"the two ended differently:\n  {disturbed}\n  {ended}"
    except Exception:
        told = "\n".join(theatre.told() for theatre in theatres)
        return Played(number, wrong=f"{traceback.format_exc()}\n{told}")
    finally:
        for theatre in theatres:
            theatre.clear()
            Theatre.made.remove(theatre)
    drives = len(theatres[1].ended)
    shutil.rmtree(folder)
    return Played(number, kills, drives)


def play_crowd_case(folder: Path, chance: random.Random, number: int, name: str) -> Played:
    """Several processes on one database."""
    try:
        theatre, kills = play_crowd(folder, chance, name)
    except Exception:
        told = "\n".join(theatre.told() for theatre in Theatre.made if theatre.folder == folder)
        return Played(number, wrong=f"{traceback.format_exc()}\n{told}")
    finally:
        for theatre in [theatre for theatre in Theatre.made if theatre.folder == folder]:
            theatre.clear()
            Theatre.made.remove(theatre)
    shutil.rmtree(folder)
    return Played(number, kills, len(theatre.ended))


def play_to_the_end(theatre: Theatre) -> list[float]:
    """How long each step took."""
    seconds: list[float] = []
    while (act := next_act(theatre, played=len(seconds))) is not None:
        began = time.monotonic()
        act()
        seconds.append(time.monotonic() - began)
        assert len(seconds) < MAX_STEPS, "the run does not come to an end"
    check_end(theatre, killed=[])
    return seconds


def play_disturbed(theatre: Theatre, chance: random.Random, seconds: list[float]) -> int:
    """Kill whatever runs after a time drawn by lot, some times over, then let it come to its end."""
    killed: list[int] = []
    wanted = chance.randint(1, MAX_KILLS)
    step = 0
    while (act := next_act(theatre, played=step)) is not None:
        if len(killed) < wanted:
            ended = theatre.play_for(chance.uniform(0.05, 1.1 * max(seconds)), act)
            if ended.killed:
                killed.append(ended.pid)
                check_after_kill(theatre)
        else:
            act()
        step += 1
        assert step < MAX_STEPS, "the run does not come to an end"
    check_end(theatre, killed)
    effects = {line["task"] for line in theatre.trace() if line["task"].startswith("effect")}
    checks.check_at_most_once(theatre.trace(), effects)
    return len(killed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", type=int, default=None, help="the number of one case")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    asked = parser.parse_args()
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(10**9)
    folder = Path(tempfile.mkdtemp(prefix="agentos-soak-"))
    leave_home(folder / "home")
    print(f"soak: seed {seed}, in {folder}", flush=True)
    played = play_all(folder, seed, asked.minutes * 60, asked.jobs, asked.only)
    wrong = [case for case in played if case.wrong]
    for case in wrong:
        print(f"\n=== case {case.number} of seed {seed}, kept in {folder / str(case.number)} ===\n{case.wrong}")
    if not wrong:
        shutil.rmtree(folder)
    kills, drives = sum(case.kills for case in played), sum(case.drives for case in played)
    verdict = f"{len(wrong)} WENT WRONG" if wrong else "all ended as if nobody had disturbed them"
    print(f"soak: seed {seed}: {len(played)} workflows, {kills} kills, {drives} processes: {verdict}")
    return 1 if wrong else 0


def play_all(folder: Path, seed: int, seconds: float, jobs: int, only: int | None) -> list[Played]:
    """Cases until the time is over; the first that goes wrong ends it."""
    until = time.monotonic() + seconds
    played: list[Played] = []
    running: set[Future[Played]] = set()
    number = 0 if only is None else only
    with ThreadPoolExecutor(jobs) as pool:
        while running or number == (only or 0):
            going_on = time.monotonic() < until and not any(case.wrong for case in played)
            while going_on and len(running) < jobs and (only is None or number == only):
                running.add(pool.submit(play_case, folder / str(number), seed, number))
                number += 1
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            played += [case.result() for case in done]
    return played


def leave_home(home: Path) -> None:
    """Nothing of the developer's settings counts here, and nothing of theirs is touched."""
    home.mkdir(parents=True)
    for name in [name for name in os.environ if name.startswith(("AGENTOS_", "GIT_", "XDG_"))]:
        del os.environ[name]
    os.environ["HOME"] = str(home)


if __name__ == "__main__":
    sys.exit(main())
