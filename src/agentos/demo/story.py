"""The demonstration: what is shown, and what has to be true for it to end with 0."""

from __future__ import annotations

import os
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

from agentos.client import Client
from agentos.exceptions import AgentosError, NotFoundError
from agentos.run import events as ev

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


def main() -> int:
    """The exit status: 0 if all was as promised, 1 if not, 128 + n where signal n ended it. Leaves nothing behind."""
    # Whatever the shell around us says about databases and repositories is about others.
    for name in [name for name in os.environ if name.startswith(("AGENTOS_", "GIT_"))]:
        del os.environ[name]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    folder: Path | None = None
    story: Story | None = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="agentos-demo-")).resolve()
        story = Story(folder)
        story.tell()
        return 0 if story.kept_all_promises() else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read has seen enough; without this Python complains once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (AgentosError, DemoFailed, OSError, subprocess.CalledProcessError) as error:
        print(f"\nThe demo could not go on: {error}", file=sys.stderr)
        return 1
    finally:
        # Cleaning up takes a moment, and an impatient second Ctrl-C must not cut it short.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if story is not None:
            story.end_processes()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


class Story:
    """One run, from its start to its end, with a death in between."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.began = time.monotonic()
        self.shown = 0
        """Sequence of the last event that was shown."""
        self.drive_began = 0.0
        self.processes: list[subprocess.Popen[bytes]] = []
        self.promises: list[tuple[bool, str]] = []

    def tell(self) -> None:
        self._introduce()
        self._start_and_kill()
        self._preview()
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
        return kept

    def end_processes(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                _kill_group(process.pid)
                process.wait()

    # --- the parts ------------------------------------------------------------------------------------------------

    def _introduce(self) -> None:
        self._say("AgentOS demo: a run is killed in the middle of a task, and resumed.")
        self._say(f"All of it happens in {self.folder}, which is removed at the end.\n")
        self._say("The workflow, release.py (sleeping stands for slow work):")
        self._say("   layer 0   fetch_code, fetch_chat, fetch_files   side by side, 1 s each")
        self._say("   layer 1   count, summarise                      summarise takes 3 s")
        self._say("   layer 2   publish                               asks somebody before it starts")
        if shutil.which("git") is None:
            raise DemoFailed("git is not installed, or not on PATH (on Debian: apt-get install git)")
        subprocess.run(["git", "init", "--quiet", "--template=", str(self.folder)], check=True)
        shutil.copy(Path(__file__).with_name("release.py"), self.folder)

    def _start_and_kill(self) -> None:
        process = self._start("1. Start it")
        self._follow(process, until=lambda: self._executions()["summarise"] == 1 and self._is_complete("count"))
        time.sleep(0.4)
        self._show_new_events()
        if process.poll() is not None or self._is_complete("summarise"):
            raise DemoFailed("summarise was done before it could be killed: this machine is too busy. Try again.")
        self._say(f"\n2. Kill it: kill -9 {process.pid}, while summarise is at work")
        os.kill(process.pid, signal.SIGKILL)
        code = process.wait()
        status = self._client().list_runs()[0].status
        self._say(f"   process {process.pid} is gone, without a chance to say anything; the run is {status!r}")
        self._promise(self._ran_in_parallel(), "three tasks of one layer ran at the same time")
        self._promise(code == -signal.SIGKILL, "the process was really killed with SIGKILL")
        self._promise(status == "interrupted", "a run that nobody drives is shown as interrupted, not as running")

    def _preview(self) -> None:
        self._say('\n3. Ask what a resume would do: Client().preview_resume("demo")')
        verdicts = self._client().preview_resume(RUN).verdicts
        for row in verdicts:
            self._say(f"   {row.task_id:<12} {row.verdict:<6} {row.reason}")
        said = {str(row.task_id): str(row.verdict) for row in verdicts}
        self._promise(said == EXPECTED_VERDICTS, "the preview keeps what finished, and repeats only what was cut off")

    def _resume_to_the_gate(self) -> None:
        before = self.shown
        process = self._start("4. Resume it, with the same command")
        self._follow(process, until=lambda: process.poll() is not None)
        result = self._client().show(RUN)
        self._say(f"   process {process.pid} has ended; the run is {result.status!r}, and nothing has to wait with it")
        started = [str(event.task_id) for event in self._events(before) if isinstance(event, ev.TaskStart)]
        self._promise(started == ["summarise"], "the resume did what the preview said")
        closed = result.status == "waiting" and self._executions()["publish"] == 0
        self._promise(closed, "the guarded task did not begin before somebody approved")

    def _approve_and_finish(self) -> None:
        self._say('\n5. Approve it: Client().approve("demo")')
        self._client().approve(RUN, reason="read it, liked it", author="you")
        for event in self._events(self.shown):
            self.shown = event.seq
            if isinstance(event, ev.DecisionMade):
                self._say(f"   {event.gate_id}: {event.answer} by {event.author}, {event.reason!r}")
        process = self._start("6. Resume it once more")
        self._follow(process, until=lambda: process.poll() is not None)
        result = self._client().show(RUN)
        self._promise(result.status == "complete", f"the run completed: {result.outputs.get('publish', 'no result')}")

    def _count_executions(self) -> None:
        self._say("\n7. Was anything done twice? executions.log has one line for each execution:")
        executions = self._executions()
        for name in EXPECTED_EXECUTIONS:
            why = "   cut off once, so it had to" if executions[name] == 2 else ""
            self._say(f"   {name:<12} {executions[name]}{why}")
        self._promise(executions == EXPECTED_EXECUTIONS, "nothing that had finished was done twice")
        done = Counter(str(event.task_id) for event in self._events() if isinstance(event, ev.TaskComplete))
        self._promise(done == Counter(EXPECTED_VERDICTS.keys()), "the journal holds one result for each task")

    # --- the run, seen from outside -------------------------------------------------------------------------------

    def _client(self) -> Client:
        return Client(self.folder)

    def _events(self, after: int = 0) -> list[ev.Event]:
        return self._client().events(RUN, after=after)

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

    def _start(self, headline: str) -> subprocess.Popen[bytes]:
        with (self.folder / "complaints.log").open("ab") as complaints:
            process = subprocess.Popen(
                [sys.executable, "release.py"],
                cwd=self.folder,
                env=os.environ | {"TMPDIR": str(self.folder)},  # what a killed process leaves there goes with the rest
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                start_new_session=True,  # Ctrl-C is for us, and we end it ourselves
            )
        self.processes.append(process)
        self._say(f"\n{headline}: python release.py (process {process.pid})")
        return process

    def _follow(self, process: subprocess.Popen[bytes], *, until: Callable[[], bool]) -> None:
        """Show what the process writes into the journal, until the moment has come."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            code = process.poll()
            self._show_new_events()
            if not code and until():
                return
            if code is not None:
                complaints = (self.folder / "complaints.log").read_text(errors="replace").strip()
                raise DemoFailed(f"release.py ended with {code}. {complaints}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"release.py did not come that far within {PATIENCE_S:.0f} s")
            time.sleep(0.05)

    def _show_new_events(self) -> None:
        try:
            new = self._events(self.shown)
        except NotFoundError:  # the process has not written anything yet
            return
        for event in new:
            self.shown = event.seq
            if isinstance(event, ev.WorkflowStart):
                self.drive_began = event.at.timestamp()
            if line := _line(event):
                self._say(f"   {event.at.timestamp() - self.drive_began:4.1f} s  {line}")

    def _promise(self, held: bool, promise: str) -> None:
        self.promises.append((held, promise))

    @staticmethod
    def _say(line: str) -> None:
        print(line, flush=True)


def _line(event: ev.Event) -> str:
    """An event as people want to read it; nothing for those that say little here."""
    match event:
        case ev.WorkflowStart(resumed_from=layer):
            return "the run starts" if layer is None else f"the run goes on after layer {layer}"
        case ev.LeaseTaken(taken_from=before) if before:
            return f"taken over from {before}, which is dead"
        case ev.TaskStart(task_id=task_id, attempt=attempt):
            return f"{task_id} starts" + (f" (attempt {attempt})" if attempt > 1 else "")
        case ev.TaskComplete(task_id=task_id):
            return f"{task_id} is complete"
        case ev.TaskError(task_id=task_id, error=error):
            return f"{task_id} failed: {error.type}: {error.text}"
        case ev.Checkpointed(layer=layer):
            return f"checkpoint after layer {layer}"
        case ev.DecisionRequired(task_id=task_id, question=question):
            return f"{task_id} waits at its gate: {question}"
        case ev.WorkflowComplete():
            return "the run is complete"
        case ev.WorkflowFailed(reason=reason):
            return f"the run failed: {reason}"
    return ""


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
