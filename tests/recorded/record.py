"""Records runs as this version of AgentOS stores them: `python -m tests.recorded.record NAME` fills the folder NAME.

Do it once for each release, with that release's own code, and never write a recording anew: it stands for data that
people have. test_recorded.py resumes every recording with every later build.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil

from tests.conftest import git
from tests.crash.harness import SOURCE, make_repository, wait_for
from tests.postgres.server import Server, own_server

HERE = Path(__file__).parent
SCHEMA = "agentos_recorded"
"""Stands in the dump wherever the schema is named; whoever lays it out puts another name in its place."""
RUNS = ("gate-1", "failed-1", "steps-1", "fork-1", "cut-1")
CHANGES_FILES = ("gate-1", "cut-1")
"""Runs with snapshots of files."""

# A task of these says "again" into .git, which no snapshot captures: a finished one that ran twice would show.
FLOWS = {
    "gate.yaml": """\
name: gate
tasks:
  build: {run: "echo build >> .git/trace; echo built", effects: none}
  ship: {needs: build, approve: "Ship it?", run: "echo ship >> .git/trace; echo shipped > shipped.txt"}
""",
    "failing.py": """\
import pathlib
from agentos import Context, Workflow

flow = Workflow("failing")


def note(task: str) -> None:
    with open(".git/trace", "a") as file:
        file.write(task + chr(10))


@flow.task
def price(ctx: Context) -> dict[str, int]:
    note("price")
    return {"cents": 1299}


@flow.task(retries={"retries": 1, "backoff_s": 0.01})
def charge(price: dict[str, int]) -> int:
    note("charge")
    if not pathlib.Path(".git/mended").exists():
        raise RuntimeError("the card was declined")
    return price["cents"]


@flow.task
def receipt(charge: int) -> str:
    note("receipt")
    return f"paid {charge}"
""",
    "steps.yaml": """\
name: steps
tasks:
  one: {run: "echo one >> .git/trace; echo first", effects: none}
  two: {needs: one, run: "echo two >> .git/trace; echo second", effects: none}
  three: {needs: two, run: "echo three >> .git/trace; echo third", effects: none}
""",
    "cut.yaml": """\
name: cut
tasks:
  write: {run: "echo write >> .git/trace; echo written >> notes.txt; echo gone > old.txt"}
  edit:
    needs: write
    run: |
      echo edit >> .git/trace
      echo edited >> notes.txt
      rm old.txt
      mkdir made
      echo new > made/new.txt
      chmod +x tool.sh
      echo half > half.txt
      until [ -e .git/go ]; do sleep 0.05; done
      mv half.txt whole.txt
  look: {needs: edit, run: "echo look >> .git/trace; cat notes.txt", effects: none}
""",
}
OWN = {"notes.txt": "mine\n", "tool.sh": "#!/bin/sh\n"}
"""Files that the user had before."""

# The name of the machine is nobody's business.
_PROGRAM = "import platform; platform.node = lambda: 'recorder'; from agentos.cli.main import main; main()"


def main(name: str) -> None:
    folder = HERE / name
    folder.mkdir()  # not over another recording
    with tempfile.TemporaryDirectory(prefix="agentos-recorded-") as scratch, own_server() as server:
        repo = Path(scratch) / "sqlite"
        record_runs(repo, {})
        for run in RUNS:
            files = ["--files"] if run in CHANGES_FILES else []
            agentos(repo, "export", run, *files, "-o", str(folder / f"{run}.jsonl"))
        copy_database(repo / ".agentos" / "issue_workflow.db", folder / "sqlite.db.gz")
        pack(repo, folder / "sqlite-repo.tar.gz")
        repo = Path(scratch) / "postgres"
        record_runs(repo, {"AGENTOS_WORKFLOW_DB": f"{server.url}&schema={SCHEMA}"})
        (folder / "postgres.sql").write_text(dump(server))
        pack(repo, folder / "postgres-repo.tar.gz")
    for file in sorted(folder.iterdir()):
        print(f"{file.stat().st_size:8,}  {file.name}")


def record_runs(repo: Path, env: dict[str, str]) -> None:
    """A gate that is open, a failed run, a complete one with a fork that was killed, and a file task cut off."""
    make_repository(repo)
    for setting, value in {
        "user.name": "Recorder",
        "user.email": "recorder@example.invalid",
        "commit.gpgsign": "false",
        "remote.origin.url": "https://example.invalid/recorded.git",
    }.items():
        git("config", setting, value, cwd=repo)
    for name, text in {**FLOWS, **OWN}.items():
        (repo / name).write_text(text)
    git("add", ".", cwd=repo)
    git("commit", "--quiet", "--message", "what the user had", cwd=repo)
    agentos(repo, "run", "gate.yaml", "--id", "gate-1", env=env, code=3)
    agentos(repo, "run", "failing.py", "--id", "failed-1", env=env, code=1)
    agentos(repo, "run", "steps.yaml", "--id", "steps-1", env=env)
    first = agentos(repo, "checkpoints", "steps-1", env=env).split()
    [cut] = [word for word in first if re.fullmatch(r"[0-9a-f-]{36}", word)][:1]
    killed = {**env, "AGENTOS_CRASH_AT": "attempt.after"}
    agentos(repo, "fork", cut, "--id", "fork-1", env=killed, code=-signal.SIGKILL)
    cut_off(repo, env)


def cut_off(repo: Path, env: dict[str, str]) -> None:
    """Kill the driver while its task is in the middle of an edit, and then what the task had started."""
    driver = subprocess.Popen(command("run", "cut.yaml", "--id", "cut-1"), cwd=repo, env=environment(repo, env))
    try:
        wait_for(lambda: (repo / "half.txt").exists(), "the task at work")
        children = psutil.Process(driver.pid).children(recursive=True)
    finally:
        driver.kill()
        driver.wait()
    for child in children:
        child.kill()
    psutil.wait_procs(children, timeout=10)


def agentos(repo: Path, *words: str, env: dict[str, str] | None = None, code: int = 0) -> str:
    done = subprocess.run(command(*words), cwd=repo, env=environment(repo, env or {}), capture_output=True, text=True)
    if done.returncode != code:
        raise RuntimeError(f"agentos {' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", _PROGRAM, *words]


def environment(repo: Path, more: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTOS_", "GIT_", "XDG_"))}
    ours = {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1", "XDG_STATE_HOME": str(repo.parent / "state")}
    return {**kept, **ours, **more}


def copy_database(database: Path, copy: Path) -> None:
    """One file, with what the killed driver left in the log folded into it."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    copy.write_bytes(gzip.compress(database.read_bytes(), mtime=0))


def dump(server: Server) -> str:
    """The schema as plain statements, for any client; settings of the dumping session are left out."""
    argv: list[str | Path] = [
        server.binaries / "pg_dump",
        "--inserts",
        "--no-owner",
        "--no-privileges",
        f"--schema={SCHEMA}",
        server.url,
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    lines = (
        line for line in done.stdout.splitlines() if not re.match(r"\\|--|SET |SELECT pg_catalog\.set_config", line)
    )
    return re.sub(r"\n{2,}", "\n", "\n".join(lines)).lstrip("\n") + "\n"


def pack(repo: Path, archive: Path) -> None:
    """The repository and the files of its worktree, times and modes included; not its database."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in needed(repo):
            tar.add(path, arcname=str(path.relative_to(repo)), recursive=False, filter=of_nobody)
    archive.write_bytes(gzip.compress(buffer.getvalue(), mtime=0))


def needed(repo: Path) -> Iterator[Path]:
    for path in sorted(repo.rglob("*")):
        parts = path.relative_to(repo).parts
        if (
            parts[0] != ".agentos"
            and parts[:2] not in ((".git", "hooks"), (".git", "logs"))
            and parts[-1] != "__pycache__"
        ):
            yield path


def of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(*sys.argv[1:])
