"""Python as an equal of the command line: a run is shown on request, and Ctrl-C ends a script in order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import agentos
from agentos import Client, RunPaused, Workflow, client, fork, resume, run
from agentos.exceptions import RunRefusedError
from tests.cli.terminal import Terminal

SOURCES = Path(agentos.__file__).parents[1]
PATIENCE_S = 30.0
FLOW = """
from agentos import Workflow, fork, resume, run

flow = Workflow("naps")
flow.add("first", "shell", run="echo done", effects="none")
flow.add("nap", "shell", run="touch begun; until [ -e go ]; do sleep 0.05; done; touch slept",
         needs=["first"], effects="none")
flow.add("more", "shell", run="touch more", needs=["nap"], effects="none")

if __name__ == "__main__":
"""
STOPPING = "Stopping: 1 task may end first. Ctrl-C again cancels at once."
PAUSED = "Paused. Go on with: agentos resume mine (or resume('mine'))"


@pytest.fixture
def here(tmp_git_repo: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, in which the test is; programs it starts find the package."""
    monkeypatch.chdir(tmp_git_repo)
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    return tmp_git_repo


def write_program(root: Path, *lines: str) -> str:
    """A script that does this with `flow`; its path."""
    (root / "flow.py").write_text(FLOW + "".join(f"    {line}\n" for line in lines))
    return str(root / "flow.py")


def start(program: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, program], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not file.exists():
        assert time.monotonic() < deadline, f"{file.name} is not there"
        time.sleep(0.02)


def interrupt(process: subprocess.Popen[str], root: Path) -> str:
    """Send SIGINT while the first task runs; what it says to that."""
    wait_for(root / "begun")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    return process.stderr.readline().rstrip("\n")


def status(root: Path) -> str:
    return Client(root).show("mine").status


# --- Ctrl-C -------------------------------------------------------------------------------------------------------


def test_ctrl_c_lets_tasks_end_and_ends_the_script_with_the_command_that_goes_on(here: Path) -> None:
    process = start(write_program(here, 'run(flow, workflow_id="mine")', 'print("not reached")'))
    assert interrupt(process, here) == STOPPING
    (here / "go").touch()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (out, err) == ("", f"{PAUSED}\n")
    assert process.returncode == -signal.SIGINT  # what a shell calls 130
    assert (here / "slept").exists()
    assert not (here / "more").exists()
    assert status(here) == "paused"
    assert client.resume("mine").status == "complete"
    assert (here / "more").exists()


def test_a_second_ctrl_c_cancels_at_once(here: Path) -> None:
    process = start(write_program(here, 'run(flow, workflow_id="mine")'))
    interrupt(process, here)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert err == f"Cancelling what runs.\n{PAUSED}\n"
    assert process.returncode == -signal.SIGINT
    assert not (here / "slept").exists()
    assert status(here) == "paused"


@pytest.mark.parametrize(
    ("call", "run"), [('resume("mine")', "mine"), ('fork("mine", workflow_id="second")', "second")]
)
def test_resume_and_fork_end_like_that_too(here: Path, call: str, run: str) -> None:
    process = start(write_program(here, 'run(flow, workflow_id="mine")'))
    interrupt(process, here)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    (here / "begun").unlink()
    process = start(write_program(here, call))
    interrupt(process, here)
    (here / "go").touch()
    _, err = process.communicate(timeout=PATIENCE_S)
    assert err == PAUSED.replace("mine", run) + "\n"
    assert process.returncode == -signal.SIGINT


def test_a_run_elsewhere_is_named_with_its_repository(here: Path, tmp_path: Path) -> None:
    process = start(write_program(here, f'run(flow, workflow_id="mine", repo={str(here)!r})'), cwd=tmp_path)
    interrupt(process, here)
    (here / "go").touch()
    _, err = process.communicate(timeout=PATIENCE_S)
    assert err == f"Paused. Go on with: agentos resume mine --repo {here} (or resume('mine', repo={str(here)!r}))\n"


def test_whoever_catches_it_can_read_how_to_go_on_and_later_errors_look_as_ever(here: Path) -> None:
    process = start(
        write_program(
            here,
            "try:",
            '    run(flow, workflow_id="mine")',
            "except KeyboardInterrupt as stopped:",
            "    assert (stopped.__cause__, stopped.__context__) == (None, None)",
            "    print(stopped)",
            "raise ValueError('of my own')",
        )
    )
    interrupt(process, here)
    (here / "go").touch()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert out == f"{PAUSED}\n"
    assert process.returncode == 1
    assert err.startswith("Traceback")
    assert err.endswith("ValueError: of my own\n")
    assert "Paused" not in err


def test_a_hook_of_the_program_is_given_the_line(here: Path) -> None:
    hook = 'sys.excepthook = lambda kind, error, raised: print("hook:", error)'
    process = start(write_program(here, "import sys", hook, 'run(flow, workflow_id="mine")'))
    interrupt(process, here)
    (here / "go").touch()
    assert process.communicate(timeout=PATIENCE_S) == (f"hook: {PAUSED}\n", "")
    assert process.returncode == -signal.SIGINT


def test_a_run_whose_last_task_was_running_is_complete_and_the_script_ends_all_the_same(here: Path) -> None:
    process = start(write_program(here, 'only = Workflow("only")',
        'only.add("nap", "shell", run="touch begun; until [ -e go ]; do sleep 0.05; done", effects="none")',
        'run(only, workflow_id="mine")'))  # fmt: skip
    interrupt(process, here)
    (here / "go").touch()
    _, err = process.communicate(timeout=PATIENCE_S)
    assert err == "Run mine is complete: agentos show mine\n"
    assert process.returncode == -signal.SIGINT


def test_ctrl_c_before_a_run_begins(here: Path) -> None:
    process = start(
        write_program(
            here,
            "import os, signal, time",
            "from agentos.client import runs",
            "def slow(*_, **__):",
            "    os.kill(os.getpid(), signal.SIGINT)",
            "    time.sleep(0.3)",
            "    return None",
            "runs.begin_run = slow",
            "run(flow)",
        )
    )
    _, err = process.communicate(timeout=PATIENCE_S)
    assert err == "Stopped before the run began.\n"
    assert process.returncode == -signal.SIGINT


def test_ctrl_c_in_an_event_loop_of_the_program_pauses_the_run_too(here: Path) -> None:
    arun = "from agentos import arun"
    process = start(write_program(here, "import asyncio", arun, 'asyncio.run(arun(flow, workflow_id="mine"))'))
    wait_for(here / "begun")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGINT
    assert status(here) == "paused"


def test_a_program_that_treats_ctrl_c_itself_goes_on_doing_so(here: Path) -> None:
    process = start(
        write_program(
            here,
            "import signal, sys",
            'signal.signal(signal.SIGINT, lambda *_: print("mine to treat", file=sys.stderr, flush=True))',
            'print(run(flow, workflow_id="mine").status)',
        )
    )
    assert interrupt(process, here) == "mine to treat"
    (here / "go").touch()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (out, err, process.returncode) == ("complete\n", "", 0)


# --- show=True ----------------------------------------------------------------------------------------------------


def without_times(text: str) -> str:
    text = re.sub(r"^\d\d:\d\d:\d\d", "TIME", text, flags=re.MULTILINE)
    return re.sub(r"\(\d+\.\d+s\)|checkpoint \S+|layer 1: \S+", "…", text)


def test_it_prints_what_the_command_line_prints(here: Path) -> None:
    (here / "go").touch()
    program = write_program(here, 'run(flow, workflow_id="mine", show=True)')
    shown = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    asked = [sys.executable, "-m", "agentos", "run", "flow.py", "--id", "typed"]
    typed = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert "TIME nap is complete" in without_times(shown.stdout)
    assert "naps (mine) is complete: 3 complete." in shown.stderr
    assert without_times(shown.stdout).replace("mine", "typed") == without_times(typed.stdout)
    assert shown.stderr.replace("mine", "typed") == typed.stderr


def test_resume_and_fork_can_be_shown(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flow = Workflow("steps")
    flow.add("one", "shell", run="echo 1", effects="none")
    flow.add("two", "shell", run="test -e mended", needs=["one"], effects="none")
    with pytest.raises(agentos.RunFailedError):
        client.run(flow, workflow_id="mine", show=True)
    out, err = capfd.readouterr()
    assert "two failed" in out
    assert "Mend what failed, then go on with: agentos resume mine" in err
    (here / "mended").touch()
    assert client.resume("mine", workflow=flow, show=True).status == "complete"
    out, err = capfd.readouterr()
    assert "two is complete" in out
    assert "steps (mine) is complete: 2 complete." in err
    assert client.resume("mine", workflow=flow, show=True).status == "complete"
    assert "Nothing is left to do: run mine is complete." in capfd.readouterr().err
    assert client.fork("mine", workflow=flow, workflow_id="second", show=True).status == "complete"
    assert "steps (second) is complete: 2 complete." in capfd.readouterr().err


def test_nothing_is_shown_and_no_surface_loaded_unless_asked_for(here: Path) -> None:
    (here / "go").touch()
    program = write_program(
        here, "import sys", "run(flow)", 'print([m for m in sys.modules if m.startswith("agentos.cli.")])'
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_gate_that_stops_the_run_is_reported_with_the_command_that_answers(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flow = Workflow("ask")
    flow.add("ship", "shell", run="true", approve="Ship it?", effects="none")
    assert isinstance(client.run(flow, workflow_id="mine", show=True), agentos.RunWaiting)
    assert "agentos approve mine approve:ship" in capfd.readouterr().err


def test_where_nobody_can_look_it_runs_all_the_same(here: Path) -> None:
    (here / "go").touch()
    program = write_program(here, 'run(flow, workflow_id="mine", show=True)')
    subprocess.run(["bash", "-c", f"{sys.executable} {program} >&- 2>&-"], check=True)
    assert status(here) == "complete"


def test_one_run_at_a_time_is_shown_in_a_process(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flow, inner = Workflow("outer"), Workflow("inner")
    inner.add("one", lambda: 1)
    refused: list[str] = []

    @flow.task
    def nested() -> None:
        with pytest.raises(RunRefusedError, match="shows a run already") as error:
            client.run(inner, workflow_id="inner", show=True)
        refused.append(str(error.value))

    before = sys.stdout, sys.stderr
    assert client.run(flow, workflow_id="mine", show=True).status == "complete"
    assert (sys.stdout, sys.stderr) == before
    assert len(refused) == 1
    assert [record.workflow_id for record in Client(here).list_runs()] == ["mine"]


def test_it_can_be_shown_from_a_thread_where_signals_are_nobody_s(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flow = Workflow("one")
    flow.add("one", lambda: 1)
    thread = threading.Thread(target=lambda: client.run(flow, workflow_id="mine", show=True))
    thread.start()
    thread.join(PATIENCE_S)
    assert "one (mine) is complete: 1 complete." in capfd.readouterr().err


@pytest.fixture
def terminal(here: Path) -> Iterator[Callable[..., Terminal]]:
    """A shell that runs a script and says its exit code, as a person at a terminal would see it."""
    opened: list[Terminal] = []

    def open_terminal(*lines: str) -> Terminal:
        typed = f'trap : INT; {sys.executable} {write_program(here, *lines)}; echo "code $?"'
        opened.append(Terminal("-c", typed, cwd=here, env=dict(os.environ), program=("bash",)))
        return opened[-1]

    yield open_terminal
    (here / "go").touch()
    for one in opened:
        one.close()


def test_on_a_terminal_it_is_painted_and_ctrl_c_ends_it_with_130(terminal: Callable[..., Terminal], here: Path) -> None:
    screen = terminal('run(flow, workflow_id="mine", show=True)')
    screen.until("naps  1/3 layers  1/3 tasks")
    screen.until("    ▸ nap")
    wait_for(here / "begun")
    screen.type("\x03")
    screen.until("Ctrl-C again cancels at once.")
    (here / "go").touch()
    screen.until("code 130")
    *_, last, code = screen.shown.splitlines()
    assert (last, code) == ("Paused. Go on with: agentos resume mine", "code 130")
    assert "Traceback" not in screen.scrollback
    assert screen.cursor_is_visible
    assert screen.end() == 0
    assert status(here) == "paused"


def test_a_gate_is_answered_elsewhere_and_never_asked_about_at_the_terminal(
    terminal: Callable[..., Terminal], here: Path
) -> None:
    screen = terminal(
        'asks = Workflow("asks")',
        'asks.add("ship", "shell", run="true", approve="Ship it?", effects="none")',
        'run(asks, workflow_id="mine", gates="wait", show=True)',
    )
    screen.until("Ship it?")
    client.approve("mine")
    screen.until("code 0")
    assert "[a/r/l]" not in screen.scrollback
    assert screen.end() == 0


# --- some of the tasks, and forks that do not start ---------------------------------------------------------------


def test_until_runs_some_tasks_and_all_tasks_the_rest(tmp_git_repo: Path) -> None:
    flow = Workflow("some")
    flow.add("a", lambda: 1)
    flow.add("b", lambda: 2, needs=["a"])
    result = run(flow, workflow_id="x", repo=tmp_git_repo, until="a")
    assert (result.status, result.outputs) == ("complete", {"a": 1})
    assert resume("x", workflow=flow, repo=tmp_git_repo).outputs == {"a": 1}
    assert resume("x", workflow=flow, repo=tmp_git_repo, all_tasks=True).outputs == {"a": 1, "b": 2}
    with pytest.raises(RunRefusedError, match="there is no task 'c'"):
        run(flow, workflow_id="y", repo=tmp_git_repo, until=["c"])


def test_a_fork_with_other_settings_that_is_started_later(tmp_git_repo: Path) -> None:
    flow = Workflow("sets")
    flow.add("double", lambda number: number * 2, inputs={"number": 1})
    run(flow, workflow_id="x", repo=tmp_git_repo)
    made = fork("x", workflow=flow, workflow_id="y", settings={"double.number": 21}, start=False, repo=tmp_git_repo)
    assert isinstance(made, RunPaused)
    assert made.outputs == {}
    assert resume("y", workflow=flow, repo=tmp_git_repo).outputs == {"double": 42}
    assert Client(tmp_git_repo).show("x").outputs == {"double": 2}
