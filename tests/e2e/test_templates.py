"""What `agentos init --from` writes, each workflow run to its end with a scripted agent in place of a real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

AGENTOS = Path(sys.executable).with_name("agentos")
AGENT = """\
import pathlib, sys, time
prompt = sys.stdin.read()
here = pathlib.Path()
with open(sys.argv[1], "a") as calls:
    calls.write(prompt.splitlines()[0] + "\\n")
if "Make `make test` succeed" in prompt:
    here.joinpath("half").write_text("begun")
    if not pathlib.Path(sys.argv[1] + ".go").exists():
        time.sleep(600)
    here.joinpath("half").unlink(missing_ok=True)
    here.joinpath("works").touch()
elif prompt.startswith("In the file "):
    file = here / prompt.split()[3].rstrip(",")
    file.write_text(file.read_text().upper())
elif "Keep the change small" in prompt:
    here.joinpath("chore-" + str(len(prompt.splitlines()[0]))).write_text("done")
print("said: " + prompt.splitlines()[0])
"""


class Place:
    """A repository with tests, a remote, and a template in which a script stands for the agent."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls = root, root.parent / "calls"
        (root / "Makefile").write_text("test:\n\ttest -e works\nbuild:\n\techo built > built\n")
        (root / ".gitignore").write_text("built\n")
        (root / "src").mkdir()
        for name in ("one.txt", "two.txt"):
            (root / "src" / name).write_text(name)
        (root.parent / "agent.py").write_text(AGENT)
        self.git("init", "--quiet", "--bare", str(root.parent / "remote"))
        self.git("remote", "add", "origin", str(root.parent / "remote"))

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.root, check=True, capture_output=True, text=True)
        return done.stdout

    def agentos(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([AGENTOS, *arguments], cwd=self.root, capture_output=True, text=True)

    def begin(self, template: str, *, works: bool = True) -> None:
        assert self.agentos("init", "--from", template).returncode == 0
        file = self.root / "workflows" / f"{template}.yaml"
        text, agent = file.read_text(), [sys.executable, str(self.root.parent / "agent.py"), str(self.calls)]
        # A limit in dollars needs an agent that says what it costs, and this one says nothing.
        text = text.replace("budget: ", "# budget: ").replace("agent: claude", f"agent: command\n    command: {agent}")
        file.write_text(text.replace("    # budget: 1 ", "    # "))
        if works:
            (self.root / "works").touch()
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "begin")

    def status(self, run: str) -> str:
        shown: str = json.loads(self.agentos("show", run, "--json").stdout)["status"]
        return shown

    def heard(self) -> list[str]:
        return sorted(self.calls.read_text().splitlines())


@pytest.fixture
def place(tmp_git_repo: Path, home: Path) -> Place:
    return Place(tmp_git_repo)


def test_fix_tests_killed_in_the_middle_of_an_edit_goes_on_and_asks(place: Place) -> None:
    place.begin("fix-tests", works=False)
    running = subprocess.Popen(
        [AGENTOS, "run", "fix-tests", "--id", "f", "--quiet"],
        cwd=place.root,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    while not (place.root / "half").exists():
        assert running.poll() is None
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    Path(f"{place.calls}.go").touch()
    resumed = place.agentos("resume", "f", "--gates", "stop")
    assert (resumed.returncode, place.status("f")) == (3, "waiting"), resumed.stderr
    assert not (place.root / "half").exists()
    assert "begin" in place.git("log", "-1", "--format=%s"), "nothing is committed unasked"
    approved = place.agentos("approve", "f")
    assert place.status("f") == "complete", approved.stderr
    assert place.git("log", "-1", "--format=%s").strip() == "Make the tests pass"
    assert place.git("show", "--name-only", "--format=").split() == ["works"]


def test_review_reads_side_by_side_and_changes_one_page(place: Place) -> None:
    place.begin("review")
    place.git("switch", "--quiet", "--create", "change")
    (place.root / "src" / "one.txt").write_text("changed")
    place.git("commit", "--quiet", "--all", "--message", "change")
    done = place.agentos("run", "review", "--id", "r")
    assert done.returncode == 0, done.stderr
    assert (place.root / "review.md").read_text().startswith("said: Make one short page")
    assert [line.split()[4] for line in place.heard()[1:]] == ["mistakes", "readability", "security"]
    assert place.git("status", "--porcelain") == "?? review.md\n"


def test_release_tags_and_pushes_once_after_a_yes(place: Place) -> None:
    place.begin("release")
    line = ("run", "release", "--param", "version=1.4.0", "--id", "release-1.4.0", "--gates", "stop")
    assert place.agentos(*line).returncode == 3
    assert place.git("tag") == ""
    assert place.agentos("approve", "release-1.4.0").returncode == 0
    assert place.agentos(*line).returncode == 0, "the same line again finds it done"
    assert place.git("ls-remote", "--tags", "origin").count("refs/tags/v1.4.0") >= 1
    assert "said: Write release notes for 1.4.0" in place.git("tag", "--list", "--format=%(contents)")
    assert len(place.heard()) == 1


def test_nightly_does_each_chore_in_its_own_worktree_and_waits(place: Place) -> None:
    place.begin("nightly")
    done = place.agentos("run", "nightly", "--id", "n", "--gates", "stop")
    assert (done.returncode, place.status("n")) == (3, "waiting"), done.stderr
    assert len(list(place.root.glob("chore-*"))) == len(place.heard()) == 3
    assert place.agentos("approve", "n").returncode == 0
    assert place.git("status", "--porcelain") == ""


def test_migrate_changes_each_file_and_nothing_else(place: Place) -> None:
    place.begin("migrate")
    change = ("--param", "pattern=src/*.txt", "--param", "change=Write it in capitals.")
    done = place.agentos("run", "migrate", *change, "--id", "m", "--gates", "stop")
    assert (done.returncode, place.status("m")) == (3, "waiting"), done.stderr
    assert place.agentos("approve", "m").returncode == 0
    assert [path.read_text() for path in sorted((place.root / "src").iterdir())] == ["ONE.TXT", "TWO.TXT"]
    assert place.git("show", "--name-only", "--format=%s").split("\n\n") == [
        "Write it in capitals.",
        "src/one.txt\nsrc/two.txt\n",
    ]
