"""Files after a kill or a stop: exact, or asked about; never doubled, and never taken from the human."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentos import Client
from agentos.crashpoints import VARIABLE
from agentos.machine import events as ev
from tests.cli.conftest import SOURCES, Completed, call_agentos
from tests.conftest import git
from tests.crash import matrix
from tests.crash.harness import wait_for
from tests.marks import quick_first

pytestmark = pytest.mark.attack

AT_WORK = "echo half >> own.txt; [ -e ../go ] || (touch ../at-work; sleep 60); echo done >> own.txt"
"""At work is who lives on: the task's own shell ends with the driver, and `go` is there as soon as that is dead."""

FLOW = f"""
name: flow
tasks:
  y: {{run: "{AT_WORK}"}}
  z: {{needs: y, run: "cat own.txt >> z.txt"}}
"""
GATED = (
    FLOW
    + """
  x: {approve: "Go on?", run: "echo x >> x.txt", effects: none}
"""
)
MARGIN_S = 2.5
"""Later than any sign of life that the driver may have given at its end."""

AHEAD = """
import datetime, sys, time
hours, real, clock = datetime.timedelta(hours=1), datetime.datetime, time.time
class Ahead(real):
    @classmethod
    def now(cls, tz=None):
        return real.now(tz) + hours
datetime.datetime = Ahead
time.time = lambda: clock() + hours.total_seconds()
from agentos.cli.main import main
main()
"""
"""The program under a clock that is an hour ahead of the one there will be after it."""


class Place:
    """A repository with a workflow, and the program in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {**os.environ, "PYTHONPATH": str(SOURCES)}
        for name in ("own.txt", "other.txt"):
            (root / name).write_text(f"{name}\n")
        self.write(FLOW)
        git("add", "-A", cwd=root)
        git("commit", "--quiet", "-m", "files", cwd=root)

    def write(self, flow: str) -> None:
        (self.root / "flow.yaml").write_text(flow)

    def agentos(self, *arguments: str, at: str = "") -> Completed:
        return call_agentos(*arguments, cwd=self.root, env={VARIABLE: at})

    def stop_at_work(self, *signals: signal.Signals, code: str = "") -> int:
        """Run until the first task has done half of its edit, then send these to the driver. No later task waits."""
        how = ["-c", code] if code else ["-m", "agentos"]
        said = self.root.parent / "said"
        with said.open("w") as file:
            driver = subprocess.Popen(
                [sys.executable, *how, "run", "flow.yaml", "--id", "r"],
                cwd=self.root,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        try:
            wait_for((self.root.parent / "at-work").exists, "the task at work")
            driver.send_signal(signals[0])
            for number in signals[1:]:  # one that came before the first was looked at would be the same one
                wait_for(lambda: "Ctrl-C again" in said.read_text(), "the first to be heard")
                driver.send_signal(number)
            driver.wait(60)
        finally:
            driver.kill()
        (self.root.parent / "go").touch()
        return driver.returncode

    def read(self, name: str) -> str:
        return (self.root / name).read_text()

    def asked(self) -> list[str]:
        events = Client(self.root).events("r")
        return [event.gate_id for event in events if isinstance(event, ev.DecisionRequired) and event.kind == "ask"]

    def check_exact(self) -> None:
        """The tree is that of a run which nobody disturbed, and nobody was asked."""
        assert self.read("own.txt") == "own.txt\nhalf\ndone\n"
        assert self.read("z.txt") == "own.txt\nhalf\ndone\n"
        assert self.read("other.txt") == "other.txt\n"
        assert self.asked() == []

    def edit_by_hand(self) -> dict[str, str]:
        """A file of the task, one that it never touched, and a new one; well after the driver's last sign of life."""
        time.sleep(MARGIN_S)
        texts = {"own.txt": "by hand\n", "other.txt": "by hand, too\n", "new.txt": "new\n"}
        for name, text in texts.items():
            (self.root / name).write_text(text)
        return texts

    def check_refused(self, texts: dict[str, str], *more: str) -> None:
        """The preview says that it asks, the resume asks and touches nothing; both name the same paths."""
        told = self.agentos("resume", "r", "--dry-run", *more)
        done = self.agentos("resume", "r", *more)
        assert done.code == 3, done
        assert {name: self.read(name) for name in texts} == texts
        for name in texts:
            assert name in told.out + told.err, told
            assert name in done.out + done.err, done


@pytest.fixture
def place(tmp_git_repo: Path) -> Place:
    return Place(tmp_git_repo)


# --- the window between the capture of what an attempt did and its completion ----------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("scenario", ["files", "retry"])
def test_a_file_task_killed_after_any_commit_ends_with_each_edit_once(scenario: str) -> None:
    kills = [kill for kill in matrix.reference("sqlite", scenario).first if kill.point == "commit.after"]
    wrong = matrix.play_cases([matrix.Case("sqlite", scenario, (kill,)) for kill in kills])
    assert not wrong, "\n".join(wrong)


# --- 1: a process that outlives the driver is no sign of its life ----------------------------------------------------


def test_edits_after_a_kill_are_asked_about_though_a_process_of_the_task_lives_on(place: Place) -> None:
    assert place.stop_at_work(signal.SIGKILL) == -signal.SIGKILL
    place.check_refused(place.edit_by_hand())


def test_without_an_edit_the_leftover_process_is_ended_and_its_files_are_put_back_unasked(place: Place) -> None:
    assert place.stop_at_work(signal.SIGKILL) == -signal.SIGKILL
    time.sleep(MARGIN_S)
    done = place.agentos("resume", "r")
    assert done.code == 0, done
    place.check_exact()


@pytest.mark.full
def test_what_a_leftover_process_wrote_after_the_driver_died_is_asked_about(place: Place) -> None:
    """It cannot be told from the human's hand."""
    late = "sleep 4; echo late >> other.txt; touch ../late; sleep 60"
    place.write(FLOW.replace("sleep 60", late))
    assert place.stop_at_work(signal.SIGKILL) == -signal.SIGKILL
    wait_for((place.root.parent / "late").exists, "the leftover process to write")
    place.check_refused({"other.txt": "other.txt\nlate\n"})


# --- 4: the wall clock -----------------------------------------------------------------------------------------------


@pytest.mark.full
def test_an_edit_is_asked_about_though_the_clock_was_set_back_since_the_crash(place: Place) -> None:
    assert place.stop_at_work(signal.SIGKILL, code=AHEAD) == -signal.SIGKILL
    hour = time.time() + 3600
    for path in (place.root / ".git" / "agentos").rglob("alive"):
        os.utime(path, (hour, hour))  # as it would be, had the kernel's clock been ahead, too
    place.check_refused(place.edit_by_hand())


# --- 10: an answer between kill and resume ---------------------------------------------------------------------------


YES = ["approve", "r", "approve:x"]


@pytest.mark.parametrize("answer", quick_first([YES, [*YES, "--no-resume"], ["pause", "r"]]), ids=" ".join)
def test_an_answer_after_a_kill_decides_nothing_about_what_was_cut_off(place: Place, answer: list[str]) -> None:
    place.write(GATED)
    assert place.stop_at_work(signal.SIGKILL) == -signal.SIGKILL
    told = place.agentos(*answer)
    if "approve" not in answer:
        assert place.agentos(*YES, "--no-resume").code in (0, 3)
    done = place.agentos("resume", "r")
    assert done.code == 0, (told, done)
    place.check_exact()
    assert place.read("x.txt") == "x\n"


@pytest.mark.full
def test_a_no_after_a_kill_decides_nothing_about_what_was_cut_off(place: Place) -> None:
    place.write(GATED)
    assert place.stop_at_work(signal.SIGKILL) == -signal.SIGKILL
    told = place.agentos("reject", "r", "approve:x")
    done = place.agentos("resume", "r")
    assert done.code in (0, 1), (told, done)
    place.check_exact()
    assert not (place.root / "x.txt").exists()


@pytest.mark.full
def test_an_answer_after_a_kill_leaves_edits_by_hand_to_be_asked_about(place: Place) -> None:
    place.write(GATED)
    assert place.stop_at_work(signal.SIGKILL) == -signal.SIGKILL
    texts = place.edit_by_hand()
    place.agentos(*YES, "--no-resume")
    place.check_refused(texts)


# --- 11: orderly stops -----------------------------------------------------------------------------------------------

STOPS = {"Ctrl-C twice": (signal.SIGINT, signal.SIGINT), "SIGTERM": (signal.SIGTERM,)}


@pytest.mark.parametrize("signals", quick_first((stop,) for stop in STOPS.values()), ids=STOPS)
def test_what_an_orderly_stop_cut_off_is_put_back_as_after_a_kill(
    place: Place, signals: tuple[signal.Signals, ...]
) -> None:
    assert place.stop_at_work(*signals) in (130, 143)
    assert _verdict(place, "y") == "rerun"
    done = place.agentos("resume", "r")
    assert done.code == 0, done
    place.check_exact()


@pytest.mark.full
@pytest.mark.parametrize("signals", quick_first((stop,) for stop in STOPS.values()), ids=STOPS)
def test_an_answer_after_an_orderly_stop_decides_nothing_about_what_was_cut_off(
    place: Place, signals: tuple[signal.Signals, ...]
) -> None:
    place.write(GATED)
    assert place.stop_at_work(*signals) in (130, 143)
    told = place.agentos(*YES, "--no-resume")
    assert json.loads(place.agentos("show", "r", "--json").out)["status"] == "paused", told
    done = place.agentos("resume", "r")
    assert done.code == 0, (told, done)
    place.check_exact()
    assert place.read("x.txt") == "x\n"


@pytest.mark.full
def test_edits_after_an_orderly_stop_are_shown_and_the_user_chooses(place: Place) -> None:
    assert place.stop_at_work(signal.SIGINT, signal.SIGINT) == 130
    texts = place.edit_by_hand()
    place.check_refused(texts)
    done = place.agentos("resume", "r", "--files", "restore")
    assert done.code == 0, done
    place.check_exact()


@pytest.mark.full
def test_an_edit_right_after_an_orderly_stop_counts_as_one(place: Place) -> None:
    """The stop's snapshot decides, and no clock."""
    assert place.stop_at_work(signal.SIGINT, signal.SIGINT) == 130
    (place.root / "other.txt").write_text("by hand\n")
    place.check_refused({"other.txt": "by hand\n"})


@pytest.mark.full
def test_files_that_are_kept_after_an_orderly_stop_stay(place: Place) -> None:
    assert place.stop_at_work(signal.SIGINT, signal.SIGINT) == 130
    (place.root / "other.txt").write_text("by hand\n")
    done = place.agentos("resume", "r", "--files", "keep")
    assert done.code == 0, done
    assert place.read("own.txt") == "own.txt\nhalf\nhalf\ndone\n"
    assert place.read("other.txt") == "by hand\n"


def _verdict(place: Place, task: str) -> str:
    told = place.agentos("resume", "r", "--dry-run", "--json")
    assert told.code == 0, told
    return next(str(row["verdict"]) for row in json.loads(told.out)["tasks"] if row["id"] == task)


# --- the resume's own restore ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", quick_first(["restore.inside", "restore.intent", "restore.before_clear"]))
def test_a_resume_killed_while_it_puts_files_back_is_finished_by_the_next(place: Place, point: str) -> None:
    assert place.stop_at_work(signal.SIGKILL) == -signal.SIGKILL
    assert place.agentos("resume", "r", at=point).code == -signal.SIGKILL
    done = place.agentos("resume", "r")
    assert done.code == 0, done
    place.check_exact()


@pytest.mark.full
@pytest.mark.parametrize("point", quick_first(["restore.inside", "restore.intent", "restore.before_clear"]))
def test_edits_after_a_kill_inside_a_restore_are_asked_about(place: Place, point: str) -> None:
    assert place.stop_at_work(signal.SIGKILL) == -signal.SIGKILL
    assert place.agentos("resume", "r", at=point).code == -signal.SIGKILL
    time.sleep(MARGIN_S)
    (place.root / "other.txt").write_text("by hand\n")
    place.check_refused({"other.txt": "by hand\n"})


@pytest.mark.parametrize("point", quick_first(["commit.before:1", "commit.after:1", "resume.started"]))
def test_a_resume_killed_after_it_put_files_back_knows_that_they_are(place: Place, point: str) -> None:
    assert place.stop_at_work(signal.SIGKILL) == -signal.SIGKILL
    assert place.agentos("resume", "r", at=point).code == -signal.SIGKILL
    done = place.agentos("resume", "r")
    assert done.code == 0, done
    place.check_exact()
