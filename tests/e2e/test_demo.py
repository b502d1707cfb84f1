"""`agentos demo` shows what it promises, and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

import agentos
from agentos.demo import agent
from agentos.demo.story import Story

PACKAGE = Path(agentos.__file__).parent
RECORDING = Path(__file__).parents[2] / "docs" / "demo.svg"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of everything that is started here; empty, and to be left empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE.parent))
    monkeypatch.chdir(tmp_path)
    return folder


def start(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "agentos", "demo", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def read_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    pytest.fail(f"the demo ended without {words!r}")


def processes_in(folder: Path) -> list[str]:
    """What still runs there, after a moment of grace for those that are just ending."""
    until = time.monotonic() + 5
    while (found := _at_work_in(folder)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def _at_work_in(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(folder):
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return found


def typed_in(shown: str) -> list[str]:
    """The commands, without what differs from run to run."""
    return [re.sub(r"\d+", "N", command) for command in re.findall(r"^\$ (.*)$", shown, flags=re.MULTILINE)]


def promises_in(shown: str) -> list[str]:
    return re.findall(r"^   (?:held  |BROKEN)  (.*?) *$", shown, flags=re.MULTILINE)


def test_an_agent_is_killed_in_the_middle_of_an_edit_and_goes_on(elsewhere: Path) -> None:
    began = time.monotonic()
    process = start()
    out, err = process.communicate(timeout=90)
    assert (process.returncode, err) == (0, ""), out
    assert time.monotonic() - began < 60
    assert typed_in(out) == [
        "agentos run cents.yaml --id demo",
        "kill -N N N",
        "git diff cart.py",
        "agentos resume demo",
        "agentos approve demo --reason 'read it, liked it'",
    ]
    _, killed, resumed, approved, counted = re.split(r"^[2-5]\. .*$", out, flags=re.MULTILINE)
    assert '-    return f"{item} {PRICES[item]:.2f}"' in killed
    assert '+    return f"{item} {PRICES[item] / 100:.2f}"' in killed
    assert 'items)):.2f}"' in killed, "another place, as it was: half of the file is edited"
    assert re.findall(r"(\w+) starts", resumed) == ["edit"]
    assert "1 path put back" in resumed
    assert "its agent goes on in its session, from the files of its last turn" in resumed
    assert "approve:commit asks: Commit what the agent changed?" in resumed
    assert re.findall(r"(\w+) starts", approved) == ["commit"]
    assert "survey ran 1×, baseline ran 1×, commit ran 1×" in counted
    turns = [line.split() for line in counted.splitlines() if line.startswith("      ")]
    assert [words[0] if words[0] == "asked" else " ".join(words) for words in turns] == [
        "asked",
        "turn 1 prices.py done",
        "turn 2 cart.py killed",
        "asked",
        "turn 2 cart.py done",
    ]
    assert "Everything held" in out
    assert "BROKEN" not in out
    assert "\x1b" not in out
    assert list(elsewhere.iterdir()) == []
    assert processes_in(elsewhere) == []
    shown = recorded()
    assert (typed_in(shown), promises_in(shown)) == (typed_in(out), promises_in(out)), "`make recording` is due"


def recorded() -> str:
    """What docs/demo.svg shows."""
    rows: dict[float, dict[float, str]] = {}
    for text in ElementTree.parse(RECORDING).iter("{http://www.w3.org/2000/svg}text"):
        rows.setdefault(float(text.attrib["y"]), {})[float(text.attrib["x"])] = text.text or ""
    lines = ["".join(text for _, text in sorted(row.items())) for _, row in sorted(rows.items())]
    return "\n".join(lines).replace("\xa0", " ")


def test_the_recording_is_small_and_fetches_nothing() -> None:
    text = RECORDING.read_text()
    assert len(text) < 60_000
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]
    assert "Everything held" in recorded()


def test_the_agent_begins_no_session_that_it_was_to_go_on_with(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, agent.__file__, "--resume", "of-another-day"],
        env={**os.environ, "GEMINI_CLI_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 42
    assert "Invalid session identifier" in done.stderr


@pytest.mark.parametrize("words", ["1. Start it", "survey starts", "edit starts", "3. Resume"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.full
def test_it_cleans_up_when_it_is_interrupted(elsewhere: Path, number: signal.Signals, words: str) -> None:
    process = start()
    read_until(process, words)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (128 + number, "")
    assert list(elsewhere.iterdir()) == []
    assert processes_in(elsewhere) == []


@pytest.mark.full
def test_it_can_keep_its_folder(elsewhere: Path) -> None:
    process = start("--keep")
    out, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    (folder,) = elsewhere.iterdir()
    assert f"cd {folder}" in out
    assert (folder / "executions.log").exists()
    done = subprocess.run(
        ["git", "log", "--format=%s"], cwd=folder / "shop", capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["Keep prices as whole cents", "A shop"]
    assert processes_in(elsewhere) == []


def test_it_ends_quietly_when_nobody_reads_on(elsewhere: Path) -> None:
    process = start()
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    assert (process.wait(timeout=30), err) == (128 + signal.SIGPIPE, "")
    process.stderr.close()
    assert list(elsewhere.iterdir()) == []


def test_it_says_so_where_git_is_missing(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(elsewhere))
    process = start()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "git is not installed" in err
    assert list(elsewhere.iterdir()) == []


def test_it_pays_no_heed_to_the_database_of_somebody_else(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", str(tmp_path / "theirs.db"))
    process = start()
    read_until(process, "survey starts")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert not (tmp_path / "theirs.db").exists()


def test_a_broken_promise_is_not_a_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = Story(tmp_path)
    story.promises = [(True, "this held"), (False, "that did not")]
    assert not story.kept_all_promises()
    assert "BROKEN  that did not" in capsys.readouterr().out


@pytest.mark.full
def test_a_session_that_does_not_go_on_is_noticed(elsewhere: Path) -> None:
    anew = "shop.FILES['cents.yaml'] = shop.WORKFLOW.replace('agent: gemini', 'agent: gemini\\n    on_resume: restart')"
    code = f"from agentos.demo import shop, story; {anew}; raise SystemExit(story.main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "BROKEN  the agent went on in the same session, and made no turn again" in done.stdout
    assert "held    each edit is in the commit, and none twice" in done.stdout


def test_it_costs_those_nothing_who_only_import_the_package(elsewhere: Path) -> None:
    code = "import agentos, sys; print([name for name in sys.modules if 'demo' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
