"""A night of agents at work, and a hand of chaos: `python tests/agents/overnight.py --minutes 20`.

Several worktrees, in each one run after another; in each run real agents beside a program and a model, all answered by
a scripted one. Meanwhile drivers and agents are killed, stopped and sent away, and the machine is "rebooted". In the
morning the night is told as `agentos` tells it; then it is checked that every run is complete, that files are those of
a run that nobody disturbed, that what was paid is what the model has counted, and that nothing was left behind.

`--seed S` lets chance fall as before (when a strike comes still depends on the machine). A night that went wrong keeps
its folder.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from agentos.client import Client  # noqa: E402 (the path comes first)
from agentos.machine.events import TaskError, TaskRetry, TaskStart, TaskUsage  # noqa: E402
from tests.agents.overnight_model import PROGRAM, STEP, Job, NightModel, Paid  # noqa: E402
from tests.agents.programs import MODELS, environment, installed  # noqa: E402
from tests.conftest import git  # noqa: E402
from tests.crash.soak import leave_home  # noqa: E402
from tests.models.replies import Failure, server_error, too_many  # noqa: E402

WANTED = ("claude", "codex")
LEFT_OUT = ("gemini", "opencode", "copilot")
STEPS = 3
LEFT_IN_PEACE = 25
"""So many drives of one run are struck at. On a busy machine strikes come faster than a run gets on: from here on only
reboots and limits meet it."""
MAX_DRIVES = 40
"""Of one run: one that needs more, left in peace, does not come to its end."""
PATIENCE_S = 240.0
"""For one drive; a session limit that resets takes a minute of it."""
BEAT_S = (0.5, 4.5)
"""From one strike to the next, where a run that nobody disturbs takes CALM_S; on a slower machine longer."""
CALM_S = 18.0
REST_S = 75.0
"""From one "too many" for an agent to the next: it rests for 30 seconds then, in all worktrees."""
GRACE_S = 2.0
"""So long before a cut, an answer may not be on record yet."""
SHIP = "approve:ship"
CHOICES = {"ask": "run-again", "limit": "try-now"}
"""What is answered at gates that take no plain yes."""
CODES = (0, 1, 3, 75, 130, 143, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
"""How a drive may end; by the signal itself where it came before the program was ready for it."""
MORE = 2
"""Answers that one interrupted attempt may cost beyond what the work needs: the one that was on its way, and the one
whose files were not captured yet."""


class Strike(NamedTuple):
    """What was done to a run, from when to when it may have cut an answer off."""

    what: str
    run: str
    began: float
    ended: float


class Ran(NamedTuple):
    """A drive that is over."""

    code: int
    said: str


class Lane(NamedTuple):
    """A worktree, in which one run follows the other."""

    name: str
    root: Path


def flow(agents: Mapping[str, str]) -> str:
    """Two agents side by side, each in a worktree of its own; one after them, then a program; at last somebody is
    asked. The budget is used up on the way."""
    job = "JOB ${{ params.name }}/%s STEPS %d: do one step at a time, until none is left."
    tries = "retries: {retries: 4, backoff_s: 0.5}"

    def agent(task: str, needs: str, more: str) -> str:
        who = agents[task]
        program = "command: [python3, program.py]" if who == "command" else f"model: {MODELS[who]}"
        prompt = job % (task, STEPS)
        return f'  {task}: {{needs: {needs}, agent: {who}, {program}, permissions: full, prompt: "{prompt}", {more}}}\n'

    # Paid first: what is asked must be answered before anything else goes on.
    return (
        'name: night\nparams: {name: ""}\nbudget: {tokens: 350}\ntasks:\n'
        f'  plan: {{llm: scripted, prompt: "{job % ("plan", 0)}", {tries}}}\n'
        + agent("left", "plan", f"isolation: worktree, {tries}")
        + agent("right", "plan", f"isolation: worktree, {tries}")
        + agent("both", "[left, right]", f"{tries}, verify: 'test -e \"out/${{{{ params.name }}}}/both-{STEPS}\"'")
        + agent("program", "both", tries)
        + '  ship: {needs: program, approve: "Ship ${{ params.name }}?", '
        + "run: 'echo shipped > \"out/${{ params.name }}/shipped\"'}\n"
    )


class Night:
    """Lanes, a model, a hand of chaos, and all that was done."""

    def __init__(self, folder: Path, seed: int, agents: tuple[str, ...]) -> None:
        self.folder, self.seed = folder, seed
        self.chance = random.Random(seed)
        self.model = NightModel(random.Random(f"{seed}/model"))
        home = folder / "home"
        self.env = {**os.environ, "NO_COLOR": "1", "TMPDIR": str(folder / "tmp"), "HOME": str(home)}
        (folder / "tmp").mkdir()
        (folder / "said").mkdir()
        for agent in agents:
            self.env |= environment(agent, self.model.server.url, home)
        self.env |= {"OPENAI_BASE_URL": self.model.server.base_url, "OPENAI_API_KEY": "key-of-this-night"}
        self.env["PYTHONPATH"] = str(ROOT / "src")
        self.lanes: list[Lane] = []
        self.runs: dict[str, Lane] = {}
        self.strikes: list[Strike] = []
        self.drives: Counter[str] = Counter()
        self.going: dict[str, subprocess.Popen[bytes]] = {}
        """Drivers at work, by their run."""
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.asking: set[subprocess.Popen[bytes]] = set()
        """Commands at work that nobody disturbs."""
        self.machine = Machine(folder / "boot")
        self.pace = 1.0
        """How much longer a run takes here than CALM_S."""

    # --- the program -------------------------------------------------------------------------------------------------

    def start(
        self, root: Path, *arguments: str, on: tuple[str, ...] | None = None, stdout: Any = None
    ) -> subprocess.Popen[bytes]:
        """The program, on the machine that is rebooted, or with what `on` says before it."""
        return subprocess.Popen(
            [*(self.machine.wrapper() if on is None else on), sys.executable, "-m", "agentos", *arguments],
            cwd=root,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
        )

    def ask(self, *arguments: str, root: Path | None = None) -> Ran:
        """A command that nobody disturbs.

        Not on the machine that is rebooted: who answers there has this process above it, begun before the machine was,
        and what cannot be is not taken for a human.
        """
        with self.lock:
            process = self.start(root or self.lanes[0].root, *arguments, on=(), stdout=subprocess.PIPE)
            self.asking.add(process)
        said = process.communicate(timeout=PATIENCE_S)[0].decode(errors="replace")
        self.asking.discard(process)
        return Ran(process.returncode, said)

    def drive(self, run: str, *arguments: str) -> Ran:
        """A command that drives a run, which strikes may hit."""
        self.drives[run] += 1
        assert self.drives[run] <= MAX_DRIVES, f"run {run} does not come to its end"
        file = self.folder / "said" / f"{run}.{self.drives[run]}"
        with file.open("wb") as stdout:
            stdout.write(f"$ agentos {' '.join(arguments)}\n".encode())
            stdout.flush()
            with self.lock:
                self.going[run] = process = self.start(self.runs[run].root, *arguments, stdout=stdout)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"run {run} was driven for more than {PATIENCE_S:g} s: see {file}") from None
            finally:
                with self.lock:
                    del self.going[run]
        return Ran(process.returncode, file.read_text(errors="replace"))

    def shown(self, run: str) -> dict[str, Any]:
        ran = self.ask("show", run, "--json", root=self.runs[run].root)
        assert ran.code == 0, ran.said
        shown: dict[str, Any] = json.loads(ran.said[ran.said.index("{") :])
        return shown

    # --- one run -----------------------------------------------------------------------------------------------------

    def play(self, lane: Lane, run: str) -> None:
        """From its beginning until it waits for somebody in the morning, whatever comes in between."""
        self.runs[run] = lane
        self.go_on(run, self.drive(run, *_line(run)))

    def go_on(self, run: str, ran: Ran) -> None:
        """With a run whose last drive ended so, until it waits for somebody in the morning."""
        while not self._is_at_rest(run, ran):
            ran = self.drive(run, *self._next_command(run, ran))

    def _is_at_rest(self, run: str, ran: Ran) -> bool:
        if self.over.is_set() and ran.code == -signal.SIGKILL:
            return True  # the power failed: that is for the morning
        return ran.code == 0 or (ran.code == 3 and self.open_gates(run) == [SHIP])

    def open_gates(self, run: str) -> list[str]:
        return [gate["id"] for gate in self.shown(run)["gates"] if gate["answer"] is None]

    def _next_command(self, run: str, ran: Ran) -> tuple[str, ...]:
        """What a user would type now: the line of a cron job, or a resume."""
        if ran.code == 2 and f"no run '{run}'" in ran.said:
            return _line(run)  # killed before it was on record
        again = _line(run) if self.drives[run] % 2 else ("resume", run, "--gates", "stop")
        assert ran.code in CODES, f"run {run} ended with {ran.code}:\n{ran.said}"
        if ran.code == 75:
            time.sleep(0.5)
        if ran.code != 3:
            return again
        asked = [gate for gate in self.open_gates(run) if gate != SHIP]
        assert asked, f"run {run} waits, and asks nothing:\n{ran.said}"
        gate = asked[0]
        choice = CHOICES.get(gate.partition(":")[0])
        self.approve(run, gate, *(("--choose", choice) if choice else ()))
        return again

    def approve(self, run: str, gate: str, *more: str) -> None:
        ran = self.ask("approve", run, gate, *more, "--no-resume", root=self.runs[run].root)
        assert ran.code == 0, f"gate {gate} of run {run} was not answered:\n{ran.said}"

    def work(self, lane: Lane, until: float) -> None:
        """One run after the other, until it is time."""
        number = 0
        while time.monotonic() < until and not self.over.is_set():
            number += 1
            self.play(lane, f"{lane.name}-{number}")

    # --- the hand of chaos -------------------------------------------------------------------------------------------

    def trouble_all_night(self) -> None:
        """Strike by strike, until the night is over: each kind once, then as chance has it."""
        rested = time.monotonic()
        due = list(TROUBLE)
        while not self.over.wait(self.chance.uniform(*BEAT_S) * self.pace):
            with self.lock:
                going = sorted(run for run in self.going if self.drives[run] < LEFT_IN_PEACE)
            if not going:
                continue
            resting = time.monotonic() < rested + REST_S
            rows = [row for row in due if not (row.rests and resting)]
            rows = rows or [row for row in TROUBLE if not (row.rests and resting)]
            row = self.chance.choices(rows, [row.weight for row in rows])[0]
            due = [one for one in due if one is not row]
            rested = time.monotonic() if row.rests else rested
            row.do(self, self.chance.choice(going))

    def note(self, what: str, run: str, began: float, ended: float | None = None) -> None:
        self.strikes.append(Strike(what, run, began, time.monotonic() if ended is None else ended))

    def attempts(self, run: str) -> dict[str, list[int]]:
        """The processes of each attempt of a run, the eldest first."""
        found: dict[str, list[int]] = {}
        for pid, env in _environments():
            mark = env.get(b"AGENTOS_ATTEMPT_ID", b"").decode(errors="replace")
            if mark.startswith(f"{run}/"):
                found.setdefault(mark, []).append(pid)
        return {mark: sorted(pids) for mark, pids in found.items()}

    def kill_driver(self, run: str, *, what: str = "driver killed") -> None:
        with self.lock:
            process = self.going.get(run)
        if process is not None and process.poll() is None:
            began = time.monotonic()
            process.kill()
            # Until the next drive has ended what is left of it, an orphan may still be answered.
            self.note(what, run, began, began + 5.0)

    def kill_agent(self, run: str, *, whole: bool = True) -> None:
        attempts = self.attempts(run)
        if attempts:
            mark = self.chance.choice(sorted(attempts))
            _kill(attempts[mark] if whole else attempts[mark][:1])
            self.note("agent killed" if whole else "agent's own process killed", run, time.monotonic())

    def kill_both(self, run: str) -> None:
        attempts = self.attempts(run)
        self.kill_driver(run, what="driver and agents killed")
        _kill([pid for pids in attempts.values() for pid in pids])

    def stop(self, run: str, *signals: signal.Signals, what: str) -> None:
        with self.lock:
            process = self.going.get(run)
        if process is None:
            return
        began = time.monotonic()
        for number in signals:
            process.send_signal(number)
            self.over.wait(1.0 if len(signals) > 1 else 0)
        self.note(what, run, began, began + 8.0)  # it drains for five seconds

    def reboot(self, *_: str) -> None:
        """Everything of every run dies at once; nothing starts before the machine is up again."""
        with self.lock:
            for process in list(self.asking):
                process.wait()
            for process in self.going.values():
                process.kill()
            now = time.monotonic()
            for run in self.going:
                _kill([pid for pids in self.attempts(run).values() for pid in pids])
                self.note("rebooted while it ran", run, now, now + 2.0)
            self.machine.reboot(self.chance)


def _line(run: str) -> tuple[str, ...]:
    """Begins the run, or goes on with it."""
    return ("run", "night.yaml", "--id", run, "--param", f"name={run}", "--gates", "stop")


class Trouble(NamedTuple):
    """A row of the table: what may happen, how often."""

    what: str
    weight: int
    do: Callable[[Night, str], None]
    rests: bool = False
    """An agent rests after it, in all worktrees: not too often."""


def limit_session(night: Night, _: str) -> None:
    """Every call of claude's is refused until the next minute begins, as a subscription says it."""
    at = (datetime.now(UTC) + timedelta(minutes=1)).replace(second=0, microsecond=0)
    resets = f"{at:%I}:{at:%M}{at:%p}".lstrip("0").lower()
    refusal = Failure(status=429, message=f"You've hit your session limit · resets {resets} (UTC)")
    night.model.refuse(MESSAGES, refusal, until=at.timestamp())


MESSAGES, RESPONSES, CHAT = "/messages", "/responses", "/chat/completions"
TROUBLE = (
    Trouble("driver killed", 6, Night.kill_driver),
    Trouble("agent killed", 4, Night.kill_agent),
    Trouble("agent's own process killed", 2, lambda night, run: night.kill_agent(run, whole=False)),
    Trouble("driver and agents killed", 4, Night.kill_both),
    Trouble("SIGTERM", 3, lambda night, run: night.stop(run, signal.SIGTERM, what="SIGTERM")),
    Trouble("Ctrl-C", 1, lambda night, run: night.stop(run, signal.SIGINT, what="Ctrl-C")),
    Trouble("Ctrl-C twice", 3, lambda night, run: night.stop(run, signal.SIGINT, signal.SIGINT, what="Ctrl-C twice")),
    Trouble("reboot", 2, Night.reboot),
    Trouble("429 for the model", 3, lambda night, _: night.model.make_trouble(CHAT, too_many(1.0))),
    Trouble("5xx for the model", 2, lambda night, _: night.model.make_trouble(CHAT, server_error(503))),
    Trouble("5xx for claude", 2, lambda night, _: night.model.make_trouble(MESSAGES, server_error(529))),
    Trouble("5xx for codex", 2, lambda night, _: night.model.make_trouble(RESPONSES, server_error(500))),
    Trouble("429 for claude", 4, lambda night, _: night.model.make_trouble(MESSAGES, too_many(1.0)), rests=True),
    Trouble("429 for codex", 4, lambda night, _: night.model.make_trouble(RESPONSES, too_many(1.0)), rests=True),
    Trouble("session limit", 4, limit_session, rests=True),
)


def _environments() -> Iterator[tuple[int, dict[bytes, bytes]]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                lines = (folder / "environ").read_bytes().split(b"\0")
                yield int(folder.name), dict(line.partition(b"=")[::2] for line in lines)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Machine:
    """What programs take for the machine: its boot id, and the time since it was booted.

    Both are as they are where the system does not allow anything else.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._up_s = 0
        file.write_text(Path("/proc/sys/kernel/random/boot_id").read_text())
        self.can_reboot = True
        with suppress(OSError):
            self.can_reboot = (
                subprocess.run([*self.wrapper(), "true"], capture_output=True, check=False).returncode == 0
            )

    def wrapper(self) -> list[str]:
        """What a command begins with, to run on this machine; its process stays the same."""
        if not self.can_reboot:
            return []
        user = [] if os.geteuid() == 0 else ["--map-current-user"]
        script = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
        clock = ["--time", "--boottime", str(-self._up_s)]
        return ["unshare", *user, "--mount", *clock, "sh", "-c", script, str(self._file)]

    def reboot(self, chance: random.Random) -> None:
        time.sleep(1.1)  # the clock can be set by whole seconds: it must not say that it was booted before the end
        self._up_s = int(time.clock_gettime(time.CLOCK_BOOTTIME))
        self._file.write_text(f"{uuid.UUID(int=chance.getrandbits(128), version=4)}\n")


# --- in the morning ---------------------------------------------------------------------------------------------------


class Ledger(NamedTuple):
    """What was paid, by the model's book and by the journals."""

    answers: int = 0
    needed: int = 0
    tokens: int = 0
    """Of those that tell them."""
    told: int = 0
    cut: int = 0
    """Answers around a cut, of which nobody can know whether they were told."""
    wrong: tuple[str, ...] = ()

    def __add__(self, other: Ledger) -> Ledger:  # type: ignore[override]
        return Ledger(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))  # type: ignore[operator]


def check_payments(night: Night, run: str) -> Ledger:
    """Each answer but those around a cut is on record, to the token; no more was bought than interruptions cost."""
    events = list(Client(night.runs[run].root).events(run))
    offset = time.time() - time.monotonic()
    cuts = [(strike.began, strike.ended) for strike in night.strikes if strike.run == run]
    for event in events:
        if isinstance(event, TaskRetry | TaskError) and event.at is not None:
            cuts.append((event.at.timestamp() - offset,) * 2)
    ledger = Ledger()
    for job, answers in night.model.book.items():
        if job.run != run:
            continue
        starts = sum(isinstance(event, TaskStart) and event.task_id == job.task for event in events)
        used = [event.usage for event in events if isinstance(event, TaskUsage) and event.task_id == job.task]
        told = (sum(one.input_tokens for one in used), sum(one.output_tokens for one in used))
        ledger += check_job(job, answers, 1 if job.task == "plan" else STEPS + 1, starts, told, cuts)
    return ledger


def check_job(
    job: Job, answers: list[Paid], needed: int, starts: int, told: tuple[int, int], cuts: list[tuple[float, float]]
) -> Ledger:
    most = needed * starts if job.task == "program" else needed + MORE * (starts - 1)
    wrong = []
    if not needed <= len(answers) <= most:
        wrong.append(f"{job}: {len(answers)} answers were bought in {starts} attempts; {needed} do")
    sums = Ledger(answers=len(answers), needed=needed)
    if told == (0, 0) and job.task == "program":  # a program of one's own does not tell
        return sums._replace(wrong=tuple(wrong))
    sure = [one for one in answers if not _is_near_cut(one, cuts)]
    cut = [one.tokens for one in answers if _is_near_cut(one, cuts)]
    rest = (told[0] - sum(one.tokens[0] for one in sure), told[1] - sum(one.tokens[1] for one in sure))
    subsets = (subset for size in range(len(cut) + 1) for subset in combinations(cut, size))
    if not any((sum(one[0] for one in subset), sum(one[1] for one in subset)) == rest for subset in subsets):
        wrong.append(
            f"{job}: the journal has {told} tokens (in, out); the model counted {[one.tokens for one in sure]} "
            f"and, around a cut, {cut}"
        )
    return sums._replace(
        tokens=sum(map(sum, (one.tokens for one in answers))), told=sum(told), cut=len(cut), wrong=tuple(wrong)
    )


def _is_near_cut(paid: Paid, cuts: list[tuple[float, float]]) -> bool:
    request = paid.request
    if request.client_left or request.ended is None:
        return True
    return any(request.at <= ended and began <= request.ended + GRACE_S for began, ended in cuts)


def files_of(root: Path, run: str) -> dict[str, str]:
    folder = root / "out" / run
    return {path.name: path.read_text() for path in sorted(folder.iterdir())} if folder.is_dir() else {}


def check_leftovers(night: Night) -> list[str]:
    """Processes, worktrees, folders, refs that should be gone."""
    wrong = []
    mark = str(night.folder).encode()
    until = time.monotonic() + 10.0
    while left := [
        pid for pid, env in _environments() if env.get(b"HOME", b"").startswith(mark) and pid != os.getpid()
    ]:
        if time.monotonic() > until:
            wrong.append(f"processes are left: {left}")
            break
        time.sleep(0.2)
    if folders := [path.name for path in (night.folder / "tmp").glob("agentos-*")]:
        wrong.append(f"folders are left: {folders}")
    known = sorted(str(lane.root) for lane in night.lanes)
    for lane in night.lanes:
        listed = git("worktree", "list", "--porcelain", cwd=lane.root)
        paths = [line.removeprefix("worktree ") for line in listed.splitlines() if line.startswith("worktree ")]
        if stray := [path for path in paths if path not in known]:
            wrong.append(f"worktrees are left: {stray}")
        changed = git("status", "--porcelain", cwd=lane.root).splitlines()
        if sorted(changed) != ["?? night.yaml", "?? out/"]:
            wrong.append(f"{lane.root}: {changed}")
        if refs := git("for-each-ref", "--format=%(refname)", "refs/stash", "refs/agentos", cwd=lane.root):
            wrong.append(f"{lane.root} has {refs}")
    return wrong


def finish(night: Night) -> None:
    """What a user does who comes back to a machine that was rebooted: one line, then answers."""
    say("--- five o'clock: the power failed. $ agentos resume --all --gates stop")
    process = night.start(night.folder, "resume", "--all", "--gates", "stop", stdout=subprocess.PIPE)
    said = process.communicate(timeout=len(night.runs) * PATIENCE_S)[0].decode(errors="replace")
    (night.folder / "said" / "resume-all").write_text(said)
    for run in night.runs:
        night.go_on(run, night.drive(run, *_line(run)))


def report(night: Night) -> None:
    """The night as the product tells it."""
    longest = max(night.runs, key=lambda run: night.drives[run])
    for arguments in (("list", "--all", "--limit", "0"), ("inbox",), ("show", longest)):
        root = night.runs[longest].root
        say(f"\n$ agentos {' '.join(arguments)}\n{night.ask(*arguments, root=root).said.rstrip()}")


def ship(night: Night) -> None:
    """Answer what waits: again where it asks again, since another run has changed files of its worktree meanwhile."""
    for run in night.runs:
        ran = Ran(3, "")
        for _ in range(2):
            for gate in night.open_gates(run):
                night.approve(run, gate, "--reason", "seen in the morning")
            ran = night.drive(run, *_line(run))
            if ran.code != 3:
                break
        assert ran.code == 0, f"run {run} did not end well ({ran.code}):\n{ran.said}"


def check(night: Night, expected: Mapping[str, str]) -> tuple[Ledger, list[str]]:
    ledger, wrong = Ledger(), []
    for run, lane in night.runs.items():
        if (status := night.shown(run)["status"]) != "complete":
            wrong.append(f"run {run} is {status}")
        if (files := files_of(lane.root, run)) != expected:
            wrong.append(f"files of run {run}: {files}")
        ledger += check_payments(night, run)
    if night.model.strangers:
        wrong.append(f"{len(night.model.strangers)} calls belong to no job")
    return ledger, [*wrong, *ledger.wrong, *check_leftovers(night)]


# --- the whole --------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    print(text, flush=True)


def make_lanes(night: Night, count: int, agents: tuple[str, ...]) -> None:
    """Every second one is a linked worktree of the one before."""
    one, other = (agents * 2)[:2] if agents else ("command", "command")
    for number in range(count):
        name = "abcdefghij"[number]
        root = night.folder / f"repo-{name}"
        if number % 2:
            git("worktree", "add", "--quiet", "-b", name, str(root), cwd=night.lanes[-1].root)
        else:
            root.mkdir()
            git("init", "--quiet", "--initial-branch=main", cwd=root)
            for key, value in {"user.name": "night", "user.email": "night@example.com", "gc.auto": "0"}.items():
                git("config", key, value, cwd=root)
            (root / "step.sh").write_text(STEP)
            (root / "program.py").write_text(PROGRAM)
            git("add", ".", cwd=root)
            git("commit", "--quiet", "-m", "What agents work with", cwd=root)
        swapped = number % 2 == 1
        who = {"left": other if swapped else one, "right": one if swapped else other, "both": other if swapped else one}
        (root / "night.yaml").write_text(flow({**who, "program": "command"}))
        night.lanes.append(Lane(name, root))


@contextmanager
def disturbed(night: Night) -> Iterator[None]:
    hand = threading.Thread(target=night.trouble_all_night)
    hand.start()
    try:
        yield
    finally:
        night.over.set()
        hand.join()
        night.model.clear()


def spend_night(night: Night, minutes: float) -> list[str]:
    """Lanes at work, and the hand of chaos; what went wrong in them."""
    until = time.monotonic() + minutes * 60
    wrong = []
    with ThreadPoolExecutor(len(night.lanes)) as pool:
        with disturbed(night):
            working = [pool.submit(night.work, lane, until) for lane in night.lanes]
            while time.monotonic() < until and not any(one.done() for one in working):
                time.sleep(0.2)
        night.reboot()
        for one in working:
            try:
                one.result()
            except Exception as error:
                wrong.append(f"{type(error).__name__}: {error}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--lanes", type=int, default=3, help="worktrees in which runs go on at the same time")
    asked = parser.parse_args()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job in the background: its children would ignore it, too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(10**9)
    folder = Path(tempfile.mkdtemp(prefix="agentos-overnight-")).resolve()
    leave_home(folder / "home")
    agents = tuple(agent for agent in WANTED if installed(agent))
    say(f"overnight: seed {seed}, in {folder}")
    night = Night(folder, seed, agents)
    for line in foreword(night, agents):
        say(f"overnight: {line}")
    try:
        with night.model.server:
            wrong = whole_night(night, asked.minutes, asked.lanes, agents)
    except Exception as error:
        wrong = [f"{type(error).__name__}: {error}"]
    finally:
        _kill([pid for pid, env in _environments() if env.get(b"HOME", b"").startswith(str(folder).encode())])
    for one in wrong:
        say(f"WRONG: {one}")
    if not wrong:
        shutil.rmtree(folder)
    verdict = f"{len(wrong)} THINGS WENT WRONG, kept in {folder}" if wrong else "as if nobody had disturbed them"
    done = f"{len(night.runs)} runs, {sum(night.drives.values())} drives, {len(night.strikes)} strikes"
    say(f"overnight: seed {seed}: {done}: {verdict}")
    return 1 if wrong else 0


def foreword(night: Night, agents: tuple[str, ...]) -> list[str]:
    """What takes part, and what does not."""
    lines = [f"real agents: {', '.join(agents) or 'NONE'}; beside them a program (agent: command) and a model (llm)"]
    if missing := [agent for agent in WANTED if agent not in agents]:
        lines.append(f"NOT INSTALLED, so that a program stands in: {', '.join(missing)} (`make agents`)")
    lines.append(f"LEFT OUT: {', '.join(LEFT_OUT)} (`make matrix` kills them)")
    if not night.machine.can_reboot:
        lines.append(
            "A REBOOT KEEPS ITS BOOT ID AND CLOCK HERE: this user may not have others (`unshare --mount --time`)"
        )
    return lines


def whole_night(night: Night, minutes: float, lanes: int, agents: tuple[str, ...]) -> list[str]:
    make_lanes(night, lanes, agents)
    calm = night.lanes[0]
    began = time.monotonic()
    night.play(calm, "calm")
    took = time.monotonic() - began
    night.pace = max(1.0, took / CALM_S)
    say(f"overnight: one run that nobody disturbs took {took:.0f} s; the night begins")
    if wrong := spend_night(night, minutes):
        return wrong
    finish(night)
    report(night)
    ship(night)
    ledger, wrong = check(night, files_of(calm.root, "calm"))
    struck = Counter(strike.what for strike in night.strikes) + Counter(
        "call refused by a session limit" if "session limit" in failure.message else f"HTTP {failure.status}"
        for failure in night.model.failed
    )
    say("\novernight: " + ", ".join(f"{count} × {what}" for what, count in struck.most_common()))
    say(
        f"overnight: {ledger.answers} answers were bought where {ledger.needed} do; of {ledger.tokens} tokens that the "
        f"model counted the journals have {ledger.told}; {ledger.cut} answers were near a cut"
    )
    return wrong


if __name__ == "__main__":
    sys.exit(main())
