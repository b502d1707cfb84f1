"""The database under a live driver: read past SQLite, removed, replaced, cut short. Nothing acknowledged is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import SOURCES, Agentos
from tests.conftest import git
from tests.marks import quick_first

pytestmark = pytest.mark.attack

READ_ALL = """
import os, subprocess, sys
from pathlib import Path
from agentos import Workflow

flow = Workflow("flow")

@flow.task
def a() -> int:
    return sum(len(file.read_bytes()) for file in Path(".").rglob("*") if file.is_file())

@flow.task
def b(a) -> int:
    return subprocess.run([sys.executable, "-m", "agentos", "run", "other.yaml", "--id", "other"]).returncode

@flow.task
def c(b) -> str:
    return "finished"

@flow.task
def d(c) -> str:
    if not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), 9)
    return "done"
"""

ATTACKED = """
import os, shutil, subprocess, sys
from pathlib import Path
from agentos import Workflow

flow = Workflow("flow")
here = Path(".agentos")
database = here / "issue_workflow.db"

def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()

def cut(path, size):
    os.truncate(path, size)

@flow.task
def first() -> str:
    return "x" * 1000

@flow.task
def attack(first) -> str:
    {attack}
    return "attacked"

@flow.task
def after(attack) -> str:
    with open("after.log", "a") as file:
        file.write("ran\\n")
    return "after"
"""

OTHER = "name: other\ntasks:\n  one: {run: 'true', effects: none}\n"


def statuses(agentos: Agentos, root: Path, run: str = "run") -> dict[str, str]:
    shown = agentos("show", run, "--json", cwd=root)
    assert shown.code == 0, shown.err
    return {task["id"]: task["status"] for task in json.loads(shown.out)["tasks"]}


def test_finished_tasks_survive_a_task_that_reads_every_file(agentos: Agentos, tmp_git_repo: Path) -> None:
    """Reading drops the driver's locks, and the program that task b starts takes itself for the last one."""
    (tmp_git_repo / "flow.py").write_text(READ_ALL)
    (tmp_git_repo / "other.yaml").write_text(OTHER)
    assert agentos("run", "flow.py", "--id", "run", cwd=tmp_git_repo).code == -9
    assert statuses(agentos, tmp_git_repo) == {"a": "complete", "b": "complete", "c": "complete", "d": "running"}
    resumed = agentos("resume", "run", cwd=tmp_git_repo)
    assert resumed.code == 0, resumed.err
    events = json.loads(agentos("show", "run", "--json", cwd=tmp_git_repo).out)
    assert [task["attempts"] for task in events["tasks"]] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    "attack",
    quick_first(
        [
            "remove(here)",
            "remove(database)",
            "subprocess.run(['git', 'clean', '-ffdxq'], check=True)",
            "[remove(file) for file in here.glob('issue_workflow.db*')]",
            "here.rename('elsewhere')",
            "remove(here / 'issue_workflow.db-wal')",
            "remove(here / 'issue_workflow.db-shm')",
            "[remove(here / f'issue_workflow.db-{end}') for end in ('wal', 'shm')]",
        ]
    ),
)
def test_a_database_that_is_removed_is_put_back_whole(agentos: Agentos, tmp_git_repo: Path, attack: str) -> None:
    (tmp_git_repo / "flow.py").write_text(ATTACKED.format(attack=attack))
    git("add", "flow.py", cwd=tmp_git_repo)
    ran = agentos("run", "flow.py", "--id", "run", cwd=tmp_git_repo)
    assert ran.code == 0, ran.err
    assert statuses(agentos, tmp_git_repo) == {"first": "complete", "attack": "complete", "after": "complete"}
    assert agentos("doctor", cwd=tmp_git_repo).code == 0
    again = agentos("run", "flow.py", "--id", "run", cwd=tmp_git_repo)
    assert (tmp_git_repo / "after.log").read_text() == "ran\n", again.out + again.err
    assert git("status", "--porcelain", "--", ".agentos", cwd=tmp_git_repo) == ""
    modes = {file.name: file.stat().st_mode & 0o077 for file in (tmp_git_repo / ".agentos").rglob("*")}
    assert set(modes.values()) == {0}
    assert not any(".new-" in name for name in modes)


@pytest.mark.parametrize(
    "attack",
    quick_first(
        [
            "cut(database, 0)",
            "cut(database, 8192)",
            "cut(here / 'issue_workflow.db-wal', 0)",
            "(remove(here), here.mkdir(), database.touch())",
            "(remove(here), here.mkdir(), database.write_text('hello'))",
            "(remove(database), database.mkdir())",
            "(remove(here), here.touch())",
            "os.replace('prepared', database)",
            "([remove(file) for file in here.glob('*.db*')], os.link('prepared', database))",
            "shutil.copyfile('prepared', database)",
            "remove(Path('.git'))",
        ]
    ),
)
def test_a_driver_stops_where_its_database_cannot_be_put_back(
    agentos: Agentos, tmp_git_repo: Path, attack: str
) -> None:
    (tmp_git_repo / "flow.py").write_text(ATTACKED.format(attack=attack))
    (tmp_git_repo / "other.yaml").write_text(OTHER)
    if "prepared" in attack:
        assert agentos("run", "other.yaml", cwd=tmp_git_repo).code == 0
        (tmp_git_repo / ".agentos" / "issue_workflow.db").rename(tmp_git_repo / "prepared")
    ran = agentos("run", "flow.py", "--id", "run", cwd=tmp_git_repo)
    assert ran.code == 6, ran.out + ran.err
    assert "Traceback" not in ran.err
    assert "bug in AgentOS" not in ran.err
    assert not (tmp_git_repo / "after.log").exists()
    if "prepared" in attack and "copyfile" not in attack:  # the new database is as its own run left it
        listed = json.loads(agentos("list", "--json", cwd=tmp_git_repo).out)
        assert [(run["name"], run["status"]) for run in listed] == [("other", "complete")]
        assert agentos("doctor", cwd=tmp_git_repo).code == 0


# --- nothing but SQLite opens it ------------------------------------------------------------------------------------

WATCH = """
import os, sys

def look(event, arguments):
    if event != "open" or not isinstance(arguments[0], (str, bytes)):
        return
    path = os.fsdecode(arguments[0])
    if os.path.basename(path) in NAMES and not INSIDE:
        INSIDE.append(path)
        with open(os.environ["OPENED"], "a") as file:
            file.write(f"{sys.argv} opens {path}\\\\n")
        INSIDE.clear()

NAMES = {"issue_workflow.db" + end for end in ("", "-wal", "-shm", "-journal")}
INSIDE = []
sys.addaudithook(look)
"""


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every process of the program writes to this file which of the database's files it opens past SQLite."""
    folder = tmp_path / "hooks"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WATCH)
    monkeypatch.setenv("OPENED", str(tmp_path / "opened"))
    return folder


BUSY = """
import threading
from agentos import Workflow, run

def flow():
    flow = Workflow("busy")
    for number in range(6):
        flow.add(f"t{number}", lambda: "x" * 2000, needs=[f"t{number - 1}"] if number else [])
    return flow

if __name__ == "__main__":
    import sys
    for number in range(int(sys.argv[2])):
        assert run(flow(), workflow_id=f"{sys.argv[1]}-{number}").status == "complete"
"""


@pytest.mark.full
def test_nothing_but_sqlite_opens_a_live_database(agentos: Agentos, tmp_git_repo: Path, opened: Path) -> None:
    (tmp_git_repo / "busy.py").write_text(BUSY)
    (tmp_git_repo / "flow.py").write_text(ATTACKED.format(attack="pass"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(opened), str(SOURCES)))}
    writers = [
        subprocess.Popen([sys.executable, "busy.py", str(number), "4"], cwd=tmp_git_repo, env=env) for number in "ab"
    ]
    commands = [
        ["run", "flow.py", "--id", "r"],
        ["list"],
        ["show", "r"],
        ["doctor"],
        ["db", "stats"],
        ["db", "migrate", "--dry-run"],
        ["export", "r", "-o", "r.tar"],
        ["import", "r.tar", "--id", "copy"],
        ["checkpoints", "r"],
        ["events", "r"],
        ["fork", "r", "--id", "fork"],
        ["doctor", "--set-aside"],
        ["delete", "copy", "--yes"],
        ["inbox"],
    ]
    for command in commands:
        done = agentos(*command, cwd=tmp_git_repo, env={"PYTHONPATH": env["PYTHONPATH"]})
        assert "Traceback" not in done.err, done.err
    assert [writer.wait() for writer in writers] == [0, 0]
    log = opened.parent / "opened"
    assert not log.exists(), log.read_text()
    (tmp_git_repo / "seen.py").write_text("open('.agentos/issue_workflow.db', 'rb').close()")
    subprocess.run([sys.executable, "seen.py"], cwd=tmp_git_repo, env=env, check=True)
    assert log.exists()  # the hook does see


READERS = """
import sys, threading
from pathlib import Path
from agentos import Workflow, run
from busy import flow

def read(ended):
    while not ended.is_set():
        for file in Path(".agentos").glob("issue_workflow.db*"):
            try:
                file.read_bytes()
            except FileNotFoundError:
                pass

if __name__ == "__main__":
    ended = threading.Event()
    reader = threading.Thread(target=read, args=(ended,))
    reader.start()
    try:
        for number in range(int(sys.argv[2])):
            assert run(flow(), workflow_id=f"{sys.argv[1]}-{number}").status == "complete"
    finally:
        ended.set()
        reader.join()
"""


@pytest.mark.full
def test_processes_that_read_the_database_all_the_time_lose_nothing(agentos: Agentos, tmp_git_repo: Path) -> None:
    """Each of them drops its own locks again and again, also in the middle of its transactions."""
    (tmp_git_repo / "busy.py").write_text(BUSY)
    (tmp_git_repo / "reader.py").write_text(READERS)
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    crowd = [
        subprocess.Popen([sys.executable, program, name, "5"], cwd=tmp_git_repo, env=env)
        for name, program in {"a": "reader.py", "b": "reader.py", "c": "busy.py", "d": "busy.py"}.items()
    ]
    assert [process.wait() for process in crowd] == [0, 0, 0, 0]
    listed = json.loads(agentos("list", "--all", "--json", cwd=tmp_git_repo).out)
    assert sorted((run["workflow_id"], run["status"]) for run in listed) == sorted(
        (f"{name}-{number}", "complete") for name in "abcd" for number in range(5)
    )
    doctor = agentos("doctor", cwd=tmp_git_repo)
    assert doctor.code == 0, doctor.out + doctor.err
