"""Real processes in real repositories, killed on purpose: starting them, waiting for them, telling what they said.

Used by the tests of this folder and by soak.py, which runs without pytest.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import agentos
from agentos.crashpoints import LOG, VARIABLE
from agentos.exceptions import NotFoundError
from agentos.machine.events import Event
from agentos.machine.facts.fold import Facts, fold
from agentos.store.port import RunRecord, StorePort
from agentos.store.postgres import database as opening
from agentos.store.sqlite.database import open_store
from tests.crash.children.schema import newer_postgres_schema, newer_schema
from tests.forks import STOP, shared_forks

T = TypeVar("T")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCENARIOS = HERE / "scenarios"
SOURCE = Path(agentos.__file__).parents[1]
PATIENCE_S = 100.0
"""For anything that must happen; generous, since other tests share the machine."""

WORKFLOW_ID = "run-1"
REFUSED = 10
"""As in children/witness.py."""
WAITING = 3
"""Exit code of the program where it waits for an answer."""
SAW = """printf '{"attempt_id": "%s"}\\n' "$AGENTOS_ATTEMPT_ID" >> "$CRASH_TRACE"\n"""
"""A script for shell tasks, which writes down that this attempt is being executed."""


class Ended(NamedTuple):
    """A process that is over."""

    what: str
    pid: int
    code: int
    stdout: str
    stderr: str

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def said(self) -> dict[str, Any]:
        """The last line of its stdout."""
        lines = self.stdout.splitlines()
        answer: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        return answer

    def __str__(self) -> str:
        said = "".join(f"\n    {line}" for line in (self.stdout + self.stderr).splitlines())
        return f"  {self.what}: process {self.pid} ended with {self.code}{said}"


class Theatre:
    """A repository, a trace beside it, and the processes that worked on it."""

    made: ClassVar[list[Theatre]] = []
    """Of the test under way, for its report."""
    stop_codes: tuple[int, ...] = ()
    """With which a process may end that stopped itself in order."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.repo = folder / "repo"
        self.trace_file = folder / "trace"
        self.ended: list[Ended] = []
        self.env: dict[str, str] = {}
        """For every process."""
        self.database = self.repo / ".agentos" / "issue_workflow.db"
        self.url = ""
        """Of the PostgreSQL schema that state is kept in instead."""
        self.migrates = False
        """From the second process on, the database is to have a newer schema."""
        self._allowed_s: float | None = None
        self._living: list[subprocess.Popen[bytes]] = []
        self.made.append(self)

    @classmethod
    def of_scenario(cls, folder: Path, scenario: str, name: str = "") -> Self:
        return cls.of_text(folder, (SCENARIOS / f"{scenario}.py").read_text(), name or scenario)

    @classmethod
    def of_text(cls, folder: Path, flow: str, name: str) -> Self:
        """A new repository with this workflow in it."""
        theatre = cls(folder, name)
        make_repository(theatre.repo)
        (theatre.repo / "flow.py").write_text(flow)
        theatre.trace_file.touch()
        return theatre

    # --- processes ------------------------------------------------------------------------------------------------

    def start(
        self,
        *arguments: str,
        at: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """A child of ours in the repository, armed with a crash point if one is given. `end` waits for it."""
        number = len(self.ended) + len(self._living)
        files = [self.folder / f"{number}.{end}" for end in ("stdout", "stderr")]
        with files[0].open("wb") as stdout, files[1].open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.repo,
                env=self._environment(at, env or {}),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=pass_fds,
            )
        process.crash_files = files  # type: ignore[attr-defined]
        process.crash_what = " ".join(arguments) + (f" [{at}]" if at else "")  # type: ignore[attr-defined]
        self._living.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes], *, deadline_s: float = PATIENCE_S) -> Ended:
        """Wait for a child; one that takes too long is killed, and that is a failure."""
        try:
            process.wait(deadline_s)
            late = False
        except subprocess.TimeoutExpired:
            late = True
            process.kill()
            process.wait()
        self._living.remove(process)
        stdout, stderr = (file.read_text(errors="replace") for file in process.crash_files)  # type: ignore[attr-defined]
        ended = Ended(process.crash_what, process.pid, process.returncode, stdout, stderr)  # type: ignore[attr-defined]
        self.ended.append(ended)
        assert not late, f"process {process.pid} did not end within {deadline_s:g} s"
        return ended

    def play(self, *arguments: str, at: str | None = None, env: Mapping[str, str] | None = None) -> Ended:
        """Start a child and wait for it. It ends in order or by the crash point it was armed with."""
        process = self.start(*arguments, at=at, env=env)
        if self._allowed_s is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(self._allowed_s)
            process.kill()
        ended = self.end(process)
        killable = at is not None or self._allowed_s is not None
        allowed = (0, REFUSED, -signal.SIGKILL) if killable else (0, REFUSED)
        assert ended.code in allowed, f"{ended.what} ended with {ended.code}"
        return ended

    def play_for(self, seconds: float, act: Callable[..., Ended]) -> Ended:
        """Play something, and kill it where it takes longer than this."""
        self._allowed_s = seconds
        try:
            return act()
        finally:
            self._allowed_s = None

    def run(self, *, at: str | None = None) -> Ended:
        return self.play(str(self.repo / "flow.py"), at=at)

    def resume(self, *, at: str | None = None) -> Ended:
        return self.play("-m", "tests.crash.children.witness", "resume", at=at)

    def drive(
        self, what: Literal["run", "resume"], *more: str, env: Mapping[str, str] | None = None, **options: Any
    ) -> Ended:
        """Begin or resume the run with options that users have no name for."""
        return self.play("-m", "tests.crash.children.driven", what, json.dumps(options), *more, env=env)

    def answer(self, *, at: str | None = None) -> Ended:
        return self.play("-m", "tests.crash.children.witness", "answer", at=at)

    def passes(self, act: Callable[..., Ended]) -> tuple[Ended, Counter[str]]:
        """Play something and count how often it passes each crash point."""
        log = self.folder / f"points.{len(self.ended)}"
        ended = act(at=f"{LOG}:{log}")
        return ended, Counter(log.read_text().split()) if log.exists() else Counter()

    def _environment(self, at: str | None, more: Mapping[str, str]) -> dict[str, str]:
        # Measuring coverage would cost each of a thousand processes as much again, and the killed ones tell nothing.
        env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        env["PYTHONPATH"] = os.pathsep.join((str(SOURCE), str(ROOT)))
        env["CRASH_TRACE"] = str(self.trace_file)
        if at is not None:
            env[VARIABLE] = at
        if self.migrates and self.ended:
            env["CRASH_MIGRATES"] = "1"
        return {**env, **self.env, **more}

    # --- what is there --------------------------------------------------------------------------------------------

    def trace(self) -> list[dict[str, Any]]:
        """What task bodies wrote down: task and attempt of each execution."""
        lines = [json.loads(line) for line in self.trace_file.read_text().splitlines()]
        for line in lines:
            if "attempt_id" in line:
                _, line["task"], attempt = line.pop("attempt_id").split("/")
                line["attempt"] = int(attempt)
        return lines

    def open(self) -> StorePort:
        """The store as somebody sees it who only looks."""
        if self.url:
            steps = newer_postgres_schema() if self.migrates else None
            return opening.open_store(self.url, readonly=True, scope=None, steps=steps)
        return open_store(self.database, readonly=True, steps=newer_schema() if self.migrates else None)

    def record(self, workflow_id: str = WORKFLOW_ID) -> RunRecord | None:
        """The run as listed; None where it was not made yet."""
        try:
            store = self.open()
        except NotFoundError:  # killed before it was made, or while it was
            return None
        try:
            return next((run for run in store.list_runs() if run.workflow_id == workflow_id), None)
        finally:
            store.close()

    def journal(self, workflow_id: str = WORKFLOW_ID) -> list[Event]:
        """The events, their digest chain checked."""
        store = self.open()
        try:
            return store.read_events(store.find_run(workflow_id).workflow_id)
        finally:
            store.close()

    def facts(self, workflow_id: str = WORKFLOW_ID) -> Facts:
        events = self.journal(workflow_id)
        return fold(events[0].workflow_id, events) if events else Facts(workflow_id=workflow_id)  # type: ignore[arg-type]

    def told(self) -> str:
        """All it takes to look into what went wrong."""
        return "\n".join((f"case: {self.name}", f"folder: {self.folder}", *map(str, self.ended)))

    def use_database(self, path: Path) -> None:
        """Keep state in this file, as AGENTOS_WORKFLOW_DB asks for."""
        self.database = path
        self.env["AGENTOS_WORKFLOW_DB"] = str(path)

    def use_server(self, url: str) -> None:
        """Keep state in this PostgreSQL schema, as AGENTOS_WORKFLOW_DB asks for."""
        self.url = url
        self.env["AGENTOS_WORKFLOW_DB"] = url

    def clear(self) -> None:
        """End children that are still there."""
        for process in list(self._living):
            process.kill()
            self.end(process)


class ForkedTheatre(Theatre):
    """A theatre in a copy of a repository, whose processes are forks of one that has imported everything.

    A workflow in YAML is run and resumed by the program `agentos`, one in Python by itself and by `resume`.
    """

    stop = ""
    """Signals with which an armed process stops itself in order, instead of being killed: `INT INT`, say."""

    def __init__(self, folder: Path, name: str, flow: str, template: Path) -> None:
        super().__init__(folder, name)
        shutil.copytree(template, folder, symlinks=True, dirs_exist_ok=True)
        self.flow = flow
        self.trace_file.touch()
        self.env = {"SAW": str(folder / "saw.sh")}

    @property
    def stop_codes(self) -> tuple[int, ...]:  # type: ignore[override]
        return (130, 143) if self.stop else ()

    def play(self, *arguments: str, at: str | None = None, env: Mapping[str, str] | None = None) -> Ended:
        files = [self.folder / f"{len(self.ended)}.{end}" for end in ("stdout", "stderr")]
        stop = {STOP: self.stop} if at else {}
        environment = self._environment(at, {**stop, **(env or {})})
        process = shared_forks().start_into(arguments, cwd=self.repo, env=environment, files=files)
        code = process.wait(PATIENCE_S)
        if code is None:
            process.kill()
            process.wait(PATIENCE_S)
        stdout, stderr = (file.read_text(errors="replace") for file in files)
        what = " ".join(arguments) + (f" [{at}{self.stop and ' ' + self.stop}]" if at else "")
        ended = Ended(what, process.pid, process.returncode or 0, stdout, stderr)
        self.ended.append(ended)
        assert code is not None, f"{ended.what} did not end within {PATIENCE_S:g} s"
        return ended

    def run(self, *, at: str | None = None) -> Ended:
        if self.flow == "flow.yaml":
            return self.play("-m", "agentos", "run", self.flow, "--id", WORKFLOW_ID, at=at)
        return super().run(at=at)

    def resume(self, *, at: str | None = None) -> Ended:
        if self.flow == "flow.yaml":
            return self.play("-m", "agentos", "resume", WORKFLOW_ID, at=at)
        return super().resume(at=at)


class QueuedTheatre(ForkedTheatre):
    """A run is submitted, and a worker takes it."""

    def run(self, *, at: str | None = None) -> Ended:
        return self.play("-m", "agentos", "submit", self.flow, "--id", WORKFLOW_ID, at=at)

    def resume(self, *, at: str | None = None) -> Ended:
        if self.record() is None:  # whoever submitted it was killed before it was written down
            return self.run(at=at)
        return self.play("-m", "agentos", "worker", "--once", at=at)


def make_repository(root: Path) -> None:
    """What `git init` makes and git needs, without the price of a process."""
    git = root / ".git"
    for folder in (git / "objects", git / "refs" / "heads"):
        folder.mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = false\n")


def wait_for(look: Callable[[], T], what: str, *, deadline_s: float = PATIENCE_S) -> T:
    """Look again and again until there is something; what was seen comes back."""
    until = time.monotonic() + deadline_s
    pause = 0.002
    while not (seen := look()):
        if time.monotonic() > until:
            raise TimeoutError(f"waited {deadline_s:g} s for {what}")
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return seen


def bytes_on_disk(database: Path) -> dict[str, bytes]:
    """Every file of a database but the shared memory, an index of the others, and a log that holds nothing."""
    files = {
        file.name: file.read_bytes()
        for file in sorted(database.parent.glob(f"{database.name}*"))
        if not file.name.endswith("-shm")
    }
    return {name: content for name, content in files.items() if content or not name.endswith("-wal")}


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
