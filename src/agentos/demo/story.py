"""The demonstration: which commands are typed, what is shown, and what has to be true for it to end with 0."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from agentos.client import Client
from agentos.demo.agent import transcript_of
from agentos.demo.shop import CART, EDITED, make_shop, move_in
from agentos.exceptions import AgentosError
from agentos.machine import events as ev


class ShownCommand:
    """`wait` gives the exit code once every line was shown."""

    def __init__(self, argv: Sequence[str], folder: Path, *, show: Callable[[str], None]) -> None:
        self._process = subprocess.Popen(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the demo, which ends this itself
            text=True,
            errors="replace",
        )
        self._show = show
        self._failed: BaseException | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def descendants(self) -> list[psutil.Process]:
        """What it has started, and what that has: an agent has a process group of its own."""
        with suppress(psutil.Error):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def wait(self, patience_s: float) -> int:
        """The exit code; minus the number of the signal that ended it. What showing a line raised is raised here."""
        code = self._process.wait(patience_s)
        self._reader.join(patience_s)
        if self._failed is not None:
            raise self._failed
        return code

    def kill(self) -> None:
        """End it with everything it has started. Does nothing if it has ended."""
        if self.alive:
            started = self.descendants()
            # First of all the process itself: it must not see, and write down, how the others end.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            for process in started:
                with suppress(psutil.Error):
                    process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._reader.join(5.0)
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._show(line.rstrip("\n"))
        except (OSError, ValueError) as error:
            self._failed = error


RUN = "demo"
PATIENCE_S = 60.0
"""A machine so slow that a part takes longer than this has something else to do."""
EXPECTED_EXECUTIONS = {"survey": 1, "baseline": 1, "commit": 1}
PLACES = CART.count(":.2f")
TOO_BUSY = "this machine is too busy to kill the agent in time. Try again."
HEADING, TYPED, GOOD, BAD = "1", "1;36", "32", "31"


class DemoFailed(Exception):
    """The demonstration cannot go on; the text says why."""


def main(*, keep: bool = False, then: Callable[[Path], None] | None = None) -> int:
    """The exit status: 0 if all was as promised, 1 if not, 128 + n where signal n ended it.

    With `then` it is told up to the kill alone, and `then` gets the repository, with two more runs in it. Leaves
    nothing behind, however it ends; with `keep` the folder stays.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    folder: Path | None = None
    story: Story | None = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="agentos-demo-")).resolve()
        move_in(folder)
        story = Story(folder, keep=keep)
        if then is not None:
            story.tell_to_the_kill()
            then(story.shop)
            return 0
        story.tell()
        return 0 if story.kept_all_promises() else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read has seen enough; without this Python complains once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (AgentosError, DemoFailed, OSError, subprocess.SubprocessError) as error:
        print(f"\nThe demo could not go on: {error}", file=sys.stderr)
        return 1
    finally:
        # Cleaning up takes a moment, and an impatient second Ctrl-C must not cut it short.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if story is not None:
            story.end_processes()
        if folder is not None and not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


class Story:
    """One run, from its start to its end, with a death in between."""

    def __init__(self, folder: Path, *, keep: bool = False) -> None:
        self.folder = folder
        self.shop = folder / "shop"
        self.keep = keep
        self.began = time.monotonic()
        self.commands: list[ShownCommand] = []
        self.promises: list[tuple[bool, str]] = []
        terminal = sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self.colours = terminal and not os.environ.get("NO_COLOR")

    def tell(self) -> None:
        self._introduce()
        self._start_and_kill()
        self._resume_to_the_gate()
        self._approve_and_finish()
        self._look_for_repeats()

    def tell_to_the_kill(self) -> None:
        """And leave the rest to somebody at a page. Enter kills whatever drives a run then."""
        self._introduce()
        self._type_and_wait("agentos", "run", "menu.yaml", "--id", "menu")
        self._type_and_wait("agentos", "run", "print.yaml", "--id", "print", "--gates", "stop")
        self._start_and_kill()
        self._say("\n3. Resume it on the page, and approve there. Enter here kills again what works then.\n", HEADING)
        threading.Thread(target=self._kill_at_enter, daemon=True).start()

    def kept_all_promises(self) -> bool:
        kept = all(held for held, _ in self.promises)
        took = f"{time.monotonic() - self.began:.1f} s"
        self._say("\nWhat was promised:", HEADING)
        for held, promise in self.promises:
            self._say(f"   {'held  ' if held else 'BROKEN'}  {promise}", GOOD if held else BAD)
        self._say(f"\nEverything held, in {took}." if kept else f"\nNot everything held ({took}): that is a bug.")
        if self.keep:
            self._say(f"The folder is kept: cd {shlex.quote(str(self.shop))}")
        return kept

    def end_processes(self) -> None:
        for command in self.commands:
            command.kill()
        self._kill_drivers()

    # --- the parts ------------------------------------------------------------------------------------------------

    def _introduce(self) -> None:
        self._say("An agent is killed in the middle of an edit, and goes on where it was.", HEADING)
        removed = "is kept" if self.keep else "is removed at the end"
        self._say(f"Scripted: no key, no network. It works in {self.shop}, which {removed}.")
        if shutil.which("git") is None:
            raise DemoFailed("git is not installed, or not on PATH (on Debian: apt-get install git)")
        make_shop(self.folder)

    def _start_and_kill(self) -> None:
        self._say("\n1. Start it: two tasks, then the agent, which edits prices.py and then cart.py", HEADING)
        command = self._type("agentos", "run", "cents.yaml", "--id", RUN)
        self._wait(command, lambda: any(isinstance(e, ev.FilesCaptured) and e.why == "turn" for e in self._events()))
        if self._places():
            raise DemoFailed(TOO_BUSY)
        self._wait(command, lambda: self._places() > 0)
        agents = [process for process in command.descendants() if _is_agent(process)]
        command.kill()
        self._say("\n2. Kill both, the agent in the middle of its second edit", HEADING)
        self._say(f"\n$ kill -9 {' '.join(str(pid) for pid in (command.pid, *(one.pid for one in agents)))}", TYPED)
        killed = command.wait(PATIENCE_S) == -signal.SIGKILL and len(agents) == 1 and all(map(_has_ended, agents))
        self._promise(killed, "AgentOS and its agent were killed with SIGKILL")
        if self._places() == PLACES:
            raise DemoFailed(TOO_BUSY)
        self._type_and_wait("git", "diff", "cart.py")
        edited = f"{self._places()} of {PLACES} places"
        self._say(f"   (half-edited: {edited} that print a price)")
        self._promise(0 < self._places() < PLACES, f"cart.py was left half-edited: {edited}")

    def _resume_to_the_gate(self) -> None:
        self._say("\n3. Resume: the file is put back, the agent goes on in its session, the gate asks", HEADING)
        before = len(self._events())
        code = self._type_and_wait("agentos", "resume", RUN)
        since = self._events(before)
        started = [str(event.task_id) for event in since if isinstance(event, ev.TaskStart)]
        self._promise(started == ["edit"], "the resume started what was interrupted, and nothing that had finished")
        restored = any(isinstance(event, ev.FilesRestored) for event in since)
        found = [note["found"] for note in self._transcript() if note["type"] == "tool_use"][-1]
        self._promise(
            restored and found == hashlib.sha256(CART.encode()).hexdigest(),
            "cart.py was put back, byte for byte, before the agent went on",
        )
        self._promise(
            code == 3 and self._executions()["commit"] == 0, "the guarded task did not begin before it was approved"
        )

    def _approve_and_finish(self) -> None:
        self._say("\n4. It waits for an answer, and no process has to wait with it: approve", HEADING)
        code = self._type_and_wait("agentos", "approve", RUN, "--reason", "read it, liked it")
        asked = sum(isinstance(event, ev.DecisionRequired) for event in self._events())
        complete = code == 0 and self._client().show(RUN).status == "complete"
        self._promise(complete and asked == 1, "the approval was asked for once, and the run completed")

    def _look_for_repeats(self) -> None:
        self._say("\n5. Was anything done twice? What tasks and agent wrote down themselves:", HEADING)
        executions = self._executions()
        self._say(f"\n   {', '.join(f'{task} ran {executions[task]}×' for task in EXPECTED_EXECUTIONS)}")
        self._promise(executions == EXPECTED_EXECUTIONS, "what had finished was not done again")
        sessions = [str(event.session.id) for event in self._events() if isinstance(event, ev.TaskSession)]
        notes = self._transcript()
        self._say(f"   the agent's session {sessions[0]}:")
        for note, following in zip(notes, [*notes[1:], {}], strict=True):
            if note["type"] == "user":
                self._say(f"      asked   {textwrap.shorten(note['content'], 76, placeholder=' …')}")
            elif note["type"] == "tool_use":
                done = following.get("type") == "tool_result"
                self._say(f"      turn {note['turn']}  {note['file']:<10} {'done' if done else 'killed'}")
        told = {note["session"] for note in notes if note["type"] == "user"}
        made = [note["turn"] for note in notes if note["type"] == "tool_result"]
        self._promise(
            {*sessions} == told and len(told) == 1 and len(sessions) == 2 and made == [1, 2],
            "the agent went on in the same session, and made no turn again",
        )
        committed = {name: self._git("show", f"HEAD:{name}") for name in EDITED}
        self._promise(committed == EDITED, "each edit is in the commit, and none twice")

    # --- those that others have started ---------------------------------------------------------------------------

    def _kill_at_enter(self) -> None:
        for _ in sys.stdin:
            killed = self._kill_drivers()
            self._say(f"$ kill -9 {' '.join(map(str, killed))}" if killed else "Nothing is at work now.", TYPED)

    def _kill_drivers(self) -> list[int]:
        """Kill, as a crash would, the drivers that a page started, and what they have started."""
        holders = []
        with suppress(AgentosError):  # nothing is kept yet
            holders = [run.holder for run in self._client().list_runs() if run.holder is not None]
        killed = []
        for holder in holders:
            with suppress(psutil.Error):
                driver = psutil.Process(holder.pid)
                for process in (driver, *driver.children(recursive=True)):
                    process.kill()
                    killed.append(process.pid)
        return killed

    # --- commands, typed and waited for ---------------------------------------------------------------------------

    def _type(self, *typed: str) -> ShownCommand:
        self._say(f"\n$ {shlex.join(typed)}", TYPED)
        argv = [sys.executable, "-m", *typed] if typed[0] == "agentos" else typed
        command = ShownCommand(argv, self.shop, show=self._show)
        self.commands.append(command)
        return command

    def _type_and_wait(self, *typed: str) -> int:
        return self._type(*typed).wait(PATIENCE_S)

    def _wait(self, command: ShownCommand, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            if not command.alive:
                raise DemoFailed(f"the command ended with {command.wait(PATIENCE_S)}, before anybody killed it")
            if time.monotonic() > deadline:
                raise DemoFailed(f"it did not come that far within {PATIENCE_S:.0f} s")
            time.sleep(0.02)

    def _git(self, *arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=self.shop, check=True, capture_output=True, text=True).stdout

    # --- the run, seen from outside -------------------------------------------------------------------------------

    def _client(self) -> Client:
        return Client(self.shop)

    def _events(self, after: int = 0) -> list[ev.Event]:
        with suppress(AgentosError):  # nothing is written yet
            return self._client().events(RUN, after=after)
        return []

    def _places(self) -> int:
        """How many of them the agent has edited in cart.py."""
        return (self.shop / "cart.py").read_text().count(" / 100:.2f")

    def _transcript(self) -> list[dict[str, Any]]:
        """What the agent has noted of its session: of the first, should there be another."""
        session = next(event.session.id for event in self._events() if isinstance(event, ev.TaskSession))
        return [json.loads(line) for line in transcript_of(self.folder / "agent", session).read_text().splitlines()]

    def _executions(self) -> Counter[str]:
        try:
            return Counter((self.folder / "executions.log").read_text().split())
        except FileNotFoundError:
            return Counter()

    def _promise(self, held: bool, promise: str) -> None:
        self.promises.append((held, promise))

    # --- what is shown --------------------------------------------------------------------------------------------

    def _show(self, line: str) -> None:
        self._say(f"   {line}", {"-": BAD, "+": GOOD}.get(line[:1], ""))

    def _say(self, line: str, style: str = "") -> None:
        print(f"\x1b[{style}m{line}\x1b[m" if style and self.colours else line, flush=True)


def _is_agent(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return any(word.endswith("agent.py") for word in process.cmdline())
    return False


def _has_ended(process: psutil.Process) -> bool:
    """Within a moment. A zombie has, too: only nobody has asked yet how."""
    until = time.monotonic() + PATIENCE_S
    with suppress(psutil.Error):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
    return True
