"""The demonstration: which commands are typed, what is shown, and what has to be true for it to end with 0."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from agentos.client import Client
from agentos.demo.command import AgentosProcess
from agentos.exceptions import AgentosError
from agentos.machine import events as ev

RUN = "demo"
PATIENCE_S = 60.0
"""A machine so slow that a part takes longer than this has something else to do."""
EXPECTED_VERDICTS = {
    "fetch_code": "reuse",
    "fetch_chat": "reuse",
    "fetch_files": "reuse",
    "count": "reuse",
    "summarise": "rerun",
    "publish": "run",
}
EXPECTED_EXECUTIONS = {name: 2 if name == "summarise" else 1 for name in EXPECTED_VERDICTS}


class DemoFailed(Exception):
    """The demonstration cannot go on; the text says why."""


def main(*, keep: bool = False) -> int:
    """The exit status: 0 if all was as promised, 1 if not, 128 + n where signal n ended it.

    Leaves nothing behind, however it ends; with `keep` the folder stays.
    """
    # Whatever the shell around us says about databases and repositories is about others.
    for name in [name for name in os.environ if name.startswith(("AGENTOS_", "GIT_"))]:
        del os.environ[name]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    folder: Path | None = None
    story: Story | None = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="agentos-demo-")).resolve()
        story = Story(folder, keep=keep)
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
        self.keep = keep
        self.began = time.monotonic()
        self.commands: list[AgentosProcess] = []
        self.promises: list[tuple[bool, str]] = []

    def tell(self) -> None:
        self._introduce()
        self._start_and_kill()
        self._look()
        self._resume_to_the_gate()
        self._approve_and_finish()
        self._count_executions()

    def kept_all_promises(self) -> bool:
        kept = all(held for held, _ in self.promises)
        took = f"{time.monotonic() - self.began:.1f} s"
        self._say("\nWhat was promised:")
        for held, promise in self.promises:
            self._say(f"   {'held  ' if held else 'BROKEN'}  {promise}")
        self._say(f"\nEverything held, in {took}." if kept else f"\nNot everything held ({took}): that is a bug.")
        if self.keep:
            self._say(f"The folder is kept: cd {shlex.quote(str(self.folder))}")
        return kept

    def end_processes(self) -> None:
        for command in self.commands:
            command.kill()

    # --- the parts ------------------------------------------------------------------------------------------------

    def _introduce(self) -> None:
        self._say("AgentOS demo: a run is killed in the middle of a task, and resumed.")
        removed = "is kept" if self.keep else "is removed at the end"
        self._say(f"All of it happens in {self.folder}, which {removed}.\n")
        self._say("The workflow, release.py (sleeping stands for slow work):")
        self._say("   layer 0   fetch_code, fetch_chat, fetch_files   side by side, 1 s each")
        self._say("   layer 1   count, summarise                      summarise takes 3 s")
        self._say("   layer 2   publish                               asks before it starts")
        if shutil.which("git") is None:
            raise DemoFailed("git is not installed, or not on PATH (on Debian: apt-get install git)")
        subprocess.run(["git", "init", "--quiet", "--template=", str(self.folder)], check=True)
        shutil.copy(Path(__file__).with_name("release.py"), self.folder)

    def _start_and_kill(self) -> None:
        self._say("\n1. Start it")
        command = self._type("run", "release.py", "--id", RUN)
        self._wait(command, lambda: self._executions()["summarise"] == 1 and self._is_complete("count"))
        time.sleep(0.4)
        if not command.alive or self._is_complete("summarise"):
            raise DemoFailed("summarise was done before it could be killed: this machine is too busy. Try again.")
        self._say(f"\n2. Kill it, while summarise is at work\n\n$ kill -9 {command.pid}")
        os.kill(command.pid, signal.SIGKILL)
        code = command.wait(PATIENCE_S)
        self._promise(self._ran_in_parallel(), "three tasks of one layer ran at the same time")
        self._promise(code == -signal.SIGKILL, "the process was really killed with SIGKILL")

    def _look(self) -> None:
        self._say("\n3. Look at it: nobody drives the run, and it says so")
        self._type_and_wait("list")
        status = self._client().list_runs(limit=1)[0].status
        self._promise(status == "interrupted", "a run that nobody drives is shown as interrupted, not as running")
        self._say("\n4. Ask what a resume would do")
        self._type_and_wait("resume", RUN, "--dry-run")
        shown = msgspec.json.decode(self._data("resume", RUN, "--dry-run", "--json"))
        said = {row["id"]: row["verdict"] for row in shown["tasks"]}
        self._promise(
            said == EXPECTED_VERDICTS, "the dry run keeps what finished, and repeats only what was interrupted"
        )

    def _resume_to_the_gate(self) -> None:
        self._say("\n5. Resume it: no terminal can be asked here, so that it stops at the gate")
        before = len(self._events())
        code = self._type_and_wait("resume", RUN)
        self._say(f"   (exit code {code}: it waits for an answer, and no process has to wait with it)")
        started = [str(event.task_id) for event in self._events(before) if isinstance(event, ev.TaskStart)]
        self._promise(started == ["summarise"], "the resume did what the dry run said")
        closed = code == 3 and self._executions()["publish"] == 0
        self._promise(closed, "the guarded task did not begin before it was approved")

    def _approve_and_finish(self) -> None:
        self._say("\n6. Approve it; the run goes on")
        code = self._type_and_wait("approve", RUN, "--reason", "read it, liked it")
        result = self._client().show(RUN)
        done = code == 0 and result.status == "complete"
        self._promise(done, f"the run completed: {result.outputs.get('publish', 'no result')}")

    def _count_executions(self) -> None:
        self._say("\n7. Was anything done twice? executions.log has one line for each execution:")
        executions = self._executions()
        for name in EXPECTED_EXECUTIONS:
            why = "   interrupted once, so it had to" if executions[name] == 2 else ""
            self._say(f"   {name:<12} {executions[name]}{why}")
        self._promise(executions == EXPECTED_EXECUTIONS, "nothing that had finished was done twice")
        done = Counter(str(event.task_id) for event in self._events() if isinstance(event, ev.TaskComplete))
        self._promise(done == Counter(EXPECTED_VERDICTS.keys()), "the journal holds one result for each task")

    # --- commands, typed and waited for ---------------------------------------------------------------------------

    def _type(self, *arguments: str) -> AgentosProcess:
        self._say(f"\n$ agentos {shlex.join(arguments)}")
        command = AgentosProcess(arguments, self.folder, show=lambda line: self._say(f"   {line}"))
        self.commands.append(command)
        return command

    def _type_and_wait(self, *arguments: str) -> int:
        return self._type(*arguments).wait(PATIENCE_S)

    def _data(self, *arguments: str) -> str:
        lines: list[str] = []
        command = AgentosProcess(arguments, self.folder, show=lines.append, messages=False)
        self.commands.append(command)
        if command.wait(PATIENCE_S):
            raise DemoFailed(f"agentos {shlex.join(arguments)} failed")
        return "\n".join(lines)

    def _wait(self, command: AgentosProcess, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            if not command.alive:
                raise DemoFailed(f"the command ended with {command.wait(PATIENCE_S)}, before anybody killed it")
            if time.monotonic() > deadline:
                raise DemoFailed(f"it did not come that far within {PATIENCE_S:.0f} s")
            time.sleep(0.05)

    # --- the run, seen from outside -------------------------------------------------------------------------------

    def _client(self) -> Client:
        return Client(self.folder)

    def _events(self, after: int = 0) -> list[ev.Event]:
        with suppress(AgentosError):  # nothing is written yet
            return self._client().events(RUN, after=after)
        return []

    def _is_complete(self, task_id: str) -> bool:
        return any(isinstance(event, ev.TaskComplete) and event.task_id == task_id for event in self._events())

    def _executions(self) -> Counter[str]:
        try:
            return Counter((self.folder / "executions.log").read_text().split())
        except FileNotFoundError:
            return Counter()

    def _ran_in_parallel(self) -> bool:
        layer = [event for event in self._events() if getattr(event, "layer", None) == 0]
        begins = [event.at for event in layer if isinstance(event, ev.TaskStart)]
        ends = [event for event in layer if isinstance(event, ev.TaskComplete)]
        if len(ends) != 3:
            return False
        work_s = sum(event.execution_time_ms for event in ends) / 1000
        return (max(event.at for event in ends) - min(begins)).total_seconds() < 0.75 * work_s

    def _promise(self, held: bool, promise: str) -> None:
        self.promises.append((held, promise))

    @staticmethod
    def _say(line: str) -> None:
        print(line, flush=True)
