"""The program in a real terminal: the live view, questions, Ctrl-C, resizing, and terminals that can do little."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import SOURCES, Agentos
from tests.cli.terminal import Terminal
from tests.marks import quick_first

WAITS = """
from agentos import Workflow

flow = Workflow("waits")
flow.add("first", "shell", run="echo done", effects="none")
flow.add("nap", "shell", run="echo napping; while ! test -e wake; do sleep 0.05; done; touch slept",
         needs=["first"], effects="none")
flow.add("more", "shell", run="touch more", needs=["nap"], effects="none")
"""
GATED = """
from agentos import Workflow

flow = Workflow("gated")

@flow.task
def build() -> dict:
    return {"version": "1.2"}

flow.add("ship", "shell", run="touch shipped; echo ${{ tasks.build.output.version }}",
         needs=["build"], approve="Ship [bold]it[/bold]\\x1b[2J?", effects="none")
flow.add("after", "shell", run="touch after", needs=["ship"], effects="none")
"""
MERGE = """
from agentos import Workflow

flow = Workflow("merge")
flow.add("a", "shell", run="echo by a > shared.txt", isolation="worktree")
flow.add("b", "shell", run="echo by b > shared.txt", isolation="worktree")
"""
SHIP = "approve, reject or leave it? [a/r/l]"

Open = Callable[..., Terminal]


@pytest.fixture
def repo(tmp_git_repo: Path, home: Path) -> Path:
    (tmp_git_repo / "waits.py").write_text(WAITS)
    (tmp_git_repo / "gated.py").write_text(GATED)
    return tmp_git_repo


@pytest.fixture
def terminal(repo: Path) -> Iterator[Open]:
    opened: list[Terminal] = []

    def start(*arguments: str, **more: object) -> Terminal:
        env = {"PYTHONPATH": str(SOURCES), **more.pop("env", {})}  # type: ignore[dict-item]
        opened.append(Terminal(*arguments, cwd=repo, env=env, **more))  # type: ignore[arg-type]
        return opened[-1]

    yield start
    (repo / "wake").touch()
    for one in opened:
        one.close()


def status_of(agentos: Agentos, repo: Path, run: str = "mine") -> str:
    runs = {row["workflow_id"]: row["status"] for row in json.loads(agentos("list", "--json", cwd=repo).out)}
    return str(runs[run])


# --- the picture ------------------------------------------------------------------------------------------------


def test_it_shows_layers_tasks_and_what_a_task_prints(terminal: Open, repo: Path) -> None:
    screen = terminal("run", "waits.py", "--id", "mine")
    screen.until("napping")
    assert "waits  1/3 layers  1/3 tasks" in screen.shown
    assert "✓ layer 1  1 task" in screen.shown
    assert "▸ nap" in screen.shown
    assert "· layer 3  1 task" in screen.shown
    assert "Ctrl-C stops in order" in screen.shown
    assert not screen.cursor_is_visible
    (repo / "wake").touch()
    assert screen.end() == 0
    assert "waits (mine) is complete: 3 complete." in screen.shown
    assert "3/3 layers  3/3 tasks" in screen.shown
    assert "Ctrl-C" not in screen.shown
    assert screen.cursor_is_visible


def test_a_resume_says_what_it_compared_and_shows_each_task_once(terminal: Open, agentos: Agentos, repo: Path) -> None:
    flow = (
        "from agentos import Workflow\n"
        "flow = Workflow('edited')\n"
        "flow.add('lint', 'shell', run='echo one', effects='none')\n"
        "flow.add('check', 'shell', run='test -e wake', effects='none')\n"
    )
    (repo / "edited.py").write_text(flow)
    assert agentos("run", "edited.py", "--id", "mine", cwd=repo).code == 1
    assert agentos("resume", "mine", "--rerun", "lint", cwd=repo).code == 1
    flow = flow.replace("echo one", "echo two").replace("'check'", "'sign'").replace("test -e wake", "echo signed")
    (repo / "edited.py").write_text(
        f"{flow}flow.add('nap', 'shell', run='while ! test -e wake; do sleep 0.05; done')\n"
    )
    screen = terminal("resume", "mine", columns=240)
    screen.until("Run the changed ones again, and what used their results? [y/N]")
    assert screen.shown.startswith("changed: lint (kept) · new: sign, nap · gone: check\n")
    screen.type("\r")
    screen.until("▸ nap")
    screen.until("✓ sign")
    compared = next(line for line in screen.shown.splitlines() if "reused" in line)
    picture = screen.shown.partition(compared)[2]
    assert "1 reused though changed (lint: finished, but its definition changed since" in compared
    assert "2 new (sign, nap)" in compared
    assert "1 gone (check: no longer in the workflow; not run)" in compared
    assert picture.count("✓ sign") == 1
    (repo / "wake").touch()
    assert screen.end() == 0
    assert screen.shown.count("reused though changed") == 1
    assert screen.shown.count("changed: lint") == 1
    assert screen.shown.count("✓ lint") == 1


@pytest.mark.parametrize("typed", quick_first(["y", "n"]))
def test_the_changed_ones_are_run_again_only_after_a_yes(
    terminal: Open, agentos: Agentos, repo: Path, typed: str
) -> None:
    flow = (
        "from agentos import Workflow\n"
        "flow = Workflow('edited')\n"
        "flow.add('lint', 'shell', run='echo one >> ran', effects='none')\n"
        "flow.add('ship', 'shell', run='echo ship >> ran', needs=['lint'], approve='Ship?', effects='none')\n"
    )
    (repo / "edited.py").write_text(flow)
    assert agentos("run", "edited.py", "--id", "mine", cwd=repo).code == 3
    (repo / "edited.py").write_text(flow.replace("echo one", "echo two"))
    screen = terminal("approve", "mine", columns=120)
    screen.until("changed: lint (kept)")
    screen.until("[y/N]")
    screen.type(f"{typed}\r")
    assert screen.end() == 0
    ran = (repo / "ran").read_text().split()
    assert ran == (["one", "two", "ship"] if typed == "y" else ["one", "ship"])


def test_nobody_is_asked_about_what_changed_where_the_command_says_it(
    terminal: Open, agentos: Agentos, repo: Path
) -> None:
    flow = (
        "from agentos import Workflow\n"
        "flow = Workflow('edited')\n"
        "flow.add('lint', 'shell', run='echo one >> ran', effects='none')\n"
        "flow.add('last', 'shell', run='test -e wake', needs=['lint'], effects='none')\n"
    )
    (repo / "edited.py").write_text(flow)
    assert agentos("run", "edited.py", "--id", "mine", cwd=repo).code == 1
    (repo / "edited.py").write_text(flow.replace("echo one", "echo two"))
    (repo / "wake").touch()
    screen = terminal("resume", "mine", "--rerun", "changed")
    assert screen.end() == 0
    assert "[y/N]" not in screen.scrollback
    assert (repo / "ran").read_text().split() == ["one", "two"]


@pytest.mark.full
def test_the_clock_goes_on_while_nothing_happens(terminal: Open, repo: Path) -> None:
    screen = terminal("run", "waits.py")
    screen.until("napping")
    screen.until("2.", patience_s=15)


@pytest.mark.full
def test_how_long_to_go_is_known_from_an_earlier_run(terminal: Open, agentos: Agentos, repo: Path) -> None:
    (repo / "timed.py").write_text(
        "from agentos import Workflow\n"
        "flow = Workflow('timed')\n"
        "flow.add('nap', 'shell', run='sleep 2; while ! test -e wake; do sleep 0.05; done', effects='none')\n"
    )
    (repo / "wake").touch()
    assert agentos("run", "timed.py", cwd=repo).code == 0
    (repo / "wake").unlink()
    screen = terminal("run", "timed.py")
    screen.until("s to go")
    (repo / "wake").touch()
    assert screen.end() == 0


@pytest.mark.parametrize(("columns", "rows"), quick_first([(20, 5), (10, 2), (200, 60), (80, 3)]))
def test_terminals_of_any_size(terminal: Open, repo: Path, columns: int, rows: int) -> None:
    screen = terminal("run", "waits.py", "--id", "mine", columns=columns, rows=rows)
    screen.until("waits")
    (repo / "wake").touch()
    assert screen.end() == 0
    assert screen.cursor_is_visible


@pytest.mark.full
def test_it_survives_resizing(terminal: Open, repo: Path) -> None:
    screen = terminal("run", "waits.py", "--id", "mine", columns=100, rows=30)
    screen.until("napping")
    for columns, rows in ((60, 20), (30, 6), (120, 40), (20, 5), (100, 30)):
        screen.resize(columns, rows)
        screen.raw = b""
        screen.until(lambda: b"waits" in screen.raw)
    screen.until("napping")
    (repo / "wake").touch()
    assert screen.end() == 0
    assert screen.shown.count("3/3 tasks") == 1
    assert screen.cursor_is_visible


@pytest.mark.full
def test_no_color_means_no_colour_and_still_a_picture(terminal: Open, repo: Path) -> None:
    screen = terminal("run", "waits.py", env={"NO_COLOR": "1"})
    screen.until("napping")
    (repo / "wake").touch()
    assert screen.end() == 0
    assert not any(f"\x1b[{code}m".encode() in screen.raw for code in (31, 32, 33, 36))
    assert "✓ layer 3" in screen.shown


@pytest.mark.parametrize("kind", quick_first(["dumb", ""]))
def test_a_dumb_terminal_gets_plain_lines(terminal: Open, repo: Path, kind: str) -> None:
    screen = terminal("run", "waits.py", env={"TERM": kind})
    screen.until("nap starts")
    (repo / "wake").touch()
    assert screen.end() == 0
    assert b"\x1b" not in screen.raw


@pytest.mark.full
def test_verbose_and_quiet_at_a_terminal_are_lines_too(terminal: Open, repo: Path) -> None:
    screen = terminal("run", "waits.py", "--verbose")
    screen.until("nap | napping")
    (repo / "wake").touch()
    assert screen.end() == 0


def test_hostile_names_and_output_do_nothing_to_the_terminal(terminal: Open, repo: Path) -> None:
    (repo / "hostile.py").write_text(
        "from agentos import Workflow\n"
        "flow = Workflow('日本語 [red]markup[/red]')\n"
        "flow.add('[bold]x[/bold] 日本語日本語日本語日本語', 'shell', effects='none',\n"
        "         run=r\"printf '\\033[2J\\033]0;owned\\007\\033[?25h[link=evil]\\n'; "
        'while ! test -e wake; do sleep 0.05; done")\n'
    )
    screen = terminal("run", "hostile.py", columns=120)
    screen.until("[link=evil]")
    assert "日 本 語" in screen.shown or "日本語" in screen.shown
    assert "[bold]x[/bold]" in screen.shown
    assert "\\x1b[2J" in screen.shown
    assert b"\x1b[2J" not in screen.raw
    assert b"\x1b]0;" not in screen.raw
    (repo / "wake").touch()
    assert screen.end() == 0


@pytest.mark.full
def test_three_thousand_tasks(terminal: Open, repo: Path) -> None:
    (repo / "many.py").write_text(
        "from agentos import Workflow\n"
        "flow = Workflow('many', max_concurrency=64)\n"
        "async def nothing() -> None: ...\n"
        "for number in range(3000):\n"
        "    flow.add(f't{number}', nothing, needs=[f't{number - 1000}'] if number >= 1000 else [])\n"
    )
    screen = terminal("run", "many.py", "--id", "mine")
    screen.until("/3000 tasks")
    assert screen.end(patience_s=90) == 0
    assert "3/3 layers  3000/3000 tasks" in screen.shown
    assert "many (mine) is complete: 3000 complete." in screen.shown


# --- questions --------------------------------------------------------------------------------------------------


def test_a_gate_shows_what_an_agent_will_be_told(terminal: Open, repo: Path) -> None:
    (repo / "told.yaml").write_text(
        "tasks:\n  fix: {approve: Begin?, agent: command, command: [sh, fix.sh], prompt: Mend it, effects: none}\n"
        "  look: {needs: fix, approval: Fine?, inputs: {text: '${{ tasks.fix.output.text }}'}}\n"
    )
    (repo / "fix.sh").write_text("echo all mended\n")
    screen = terminal("run", "told.yaml", "--id", "mine")
    screen.until(SHIP)
    assert "prompt = Mend it" in screen.shown
    assert 'command = ["sh","fix.sh"]' in screen.shown
    screen.type("approve\n")
    screen.until("text = all mended")
    screen.type("approve\n")
    assert screen.end() == 0


def test_a_gate_shows_what_ran_and_what_will_run_and_takes_a_yes(terminal: Open, repo: Path) -> None:
    screen = terminal("run", "gated.py", "--id", "mine")
    screen.until(SHIP)
    assert "approve:ship asks: Ship [bold]it[/bold]\\x1b[2J?" in screen.shown
    assert 'ran before: build gave {"version":"1.2"}' in screen.shown
    assert "will run: touch shipped; echo ${{ tasks.build.output.version }}" in screen.shown
    assert "tasks.build.output.version = 1.2" in screen.shown
    assert screen.cursor_is_visible
    assert not (repo / "shipped").exists()
    screen.type("\n")
    screen.until("Please type one of: approve, reject, leave.")
    screen.type("yes\n")
    screen.until(lambda: screen.shown.count("Please type") == 2)
    assert not (repo / "shipped").exists()
    screen.type("approve\n")
    assert screen.end() == 0
    assert (repo / "after").exists()


@pytest.mark.full
def test_a_merge_is_shown_and_takes_a_version_for_each_path(terminal: Open, repo: Path) -> None:
    (repo / "merge.py").write_text(MERGE)
    screen = terminal("run", "merge.py", "--id", "mine")
    screen.until("choose versions, reject or leave it? [c/r/l]")
    assert "<<<<<<< worktree" in screen.shown
    screen.type("c\n")
    screen.until("shared.txt: worktree, task:a, task:b or file:PATH?")
    screen.type("task:c\n")
    screen.until("Please type one of: worktree, task:a, task:b, or file: and a file that is there.")
    screen.type("task:a\n")
    assert screen.end() == 0
    assert (repo / "shared.txt").read_text() == "by a\n"


def test_a_stale_question_is_not_asked_while_the_task_it_quotes_runs_again(
    terminal: Open, agentos: Agentos, repo: Path
) -> None:
    (repo / "stale.py").write_text(
        "from agentos import Workflow\n"
        "flow = Workflow('stale')\n"
        "flow.add('build', 'shell', run='cat version; while ! test -e wake; do sleep 0.05; done', effects='none')\n"
        "flow.add('ship', 'shell', run='touch shipped', needs=['build'], effects='none',\n"
        "         approve='Ship ${{ tasks.build.output.stdout }}?')\n"
    )
    (repo / "version").write_text("1.1\n")
    (repo / "wake").touch()
    assert agentos("run", "stale.py", "--id", "mine", cwd=repo).code == 3
    (repo / "version").write_text("1.2\n")
    (repo / "wake").unlink()
    screen = terminal("resume", "mine", "--rerun", "build")
    screen.until("▸ build")
    screen.until("1.2")
    assert "Ship 1.1?" not in screen.shown
    assert agentos("inbox", cwd=repo).out == ""
    assert "approve:ship  not asked while what it is about runs again" in agentos("show", "mine", cwd=repo).out
    why = agentos("why", "mine", "ship", cwd=repo).out
    assert "its question is not asked while what it is about runs again" in why
    assert "agentos approve" not in why
    for named in ((), ("approve:ship",)):
        early = agentos("approve", "mine", *named, cwd=repo)
        assert early.code == 2
        assert "is not asked now: what it is about runs again" in early.err
        assert early.err.rstrip().endswith("agentos watch mine")
    (repo / "wake").touch()
    screen.until(SHIP)
    assert "approve:ship#2 asks: Ship 1.2?" in screen.shown
    screen.type("a\n")
    assert screen.end() == 0


def test_a_gate_takes_a_no_with_its_reason(terminal: Open, repo: Path) -> None:
    screen = terminal("run", "gated.py", "--id", "mine")
    screen.until(SHIP)
    screen.type("r\n")
    screen.until("Reason:")
    screen.type("not on a Friday\n")
    assert screen.end() == 1
    assert "GateRejected" in screen.shown
    assert "not on a Friday" in screen.shown
    assert not (repo / "shipped").exists()


@pytest.mark.parametrize("typed", quick_first(["l\n", "\x04"]))
def test_a_gate_can_be_left(terminal: Open, agentos: Agentos, repo: Path, typed: str) -> None:
    screen = terminal("run", "gated.py", "--id", "mine")
    screen.until(SHIP)
    screen.type(typed)
    assert screen.end() == 3
    assert "Left open." in screen.shown
    assert "agentos approve mine approve:ship" in screen.shown
    assert status_of(agentos, repo) == "waiting"


def test_a_gate_is_asked_at_once_and_leaving_it_holds_up_nothing(terminal: Open, repo: Path) -> None:
    (repo / "both.py").write_text(
        "from agentos import Workflow\n"
        "flow = Workflow('both')\n"
        "flow.add('nap', 'shell', run='while ! test -e wake; do sleep 0.05; done; touch slept', effects='none')\n"
        "flow.add('ship', 'shell', run='touch shipped', approve='Ship?', effects='none')\n"
        "flow.add('more', 'shell', run='touch more', approve='And more?', effects='none')\n"
    )
    screen = terminal("run", "both.py", "--id", "mine")
    screen.until("approve:more asks: And more?")
    screen.until(SHIP)
    screen.type("l\n")
    screen.until(lambda: screen.shown.count(SHIP) == 2)
    assert "approve:ship asks: Ship?" in screen.shown
    screen.type("a\n")
    screen.until(lambda: (repo / "shipped").exists())
    screen.until("▸ nap")
    (repo / "wake").touch()
    assert screen.end() == 3
    assert (repo / "slept").exists()
    assert not (repo / "more").exists()
    assert "agentos approve mine approve:more" in screen.shown


def test_gates_wait_stays_until_somebody_answers_from_elsewhere(terminal: Open, agentos: Agentos, repo: Path) -> None:
    screen = terminal("run", "gated.py", "--id", "mine", "--gates", "wait")
    screen.until("? approve:ship")
    assert SHIP not in screen.shown
    assert agentos("approve", "mine", cwd=repo).code == 0
    assert screen.end() == 0


def test_an_answer_from_elsewhere_closes_the_question(terminal: Open, agentos: Agentos, repo: Path) -> None:
    screen = terminal("run", "gated.py", "--id", "mine")
    screen.until(SHIP)
    assert agentos("approve", "mine", "--reason", "seen", "--author", "somebody", cwd=repo).code == 0
    assert screen.end() == 0
    assert "Already approved by somebody: seen." in screen.shown
    assert (repo / "after").exists()


def test_what_was_typed_before_the_question_is_no_answer(terminal: Open, repo: Path) -> None:
    (repo / "late.py").write_text(
        "from agentos import Workflow\n"
        "flow = Workflow('late')\n"
        "flow.add('nap', 'shell', run='echo up; while ! test -e wake; do sleep 0.05; done', effects='none')\n"
        "flow.add('ship', 'shell', run='touch shipped', needs=['nap'], approve='Ship?', effects='none')\n"
    )
    screen = terminal("run", "late.py")
    screen.until("up")
    screen.type("a\na\napprove\n")
    screen.until(lambda: b"approve" in screen.raw)  # the terminal echoed it: it has arrived
    (repo / "wake").touch()
    screen.until(SHIP)
    assert not (repo / "shipped").exists()
    screen.type("l\n")
    assert screen.end() == 3


def test_ctrl_c_at_a_question_stops_in_order(terminal: Open, agentos: Agentos, repo: Path) -> None:
    screen = terminal("run", "gated.py", "--id", "mine")
    screen.until(SHIP)
    screen.type("\x03")
    assert screen.end() == 130
    assert status_of(agentos, repo) == "paused"
    again = terminal("resume")
    again.until(SHIP)
    again.type("a\n")
    assert again.end() == 0


def test_a_question_about_an_effect_that_was_cut_off(terminal: Open, repo: Path) -> None:
    (repo / "pays.py").write_text(
        "from agentos import Workflow\n"
        "flow = Workflow('pays')\n"
        "flow.add('pay', 'shell', run='echo paying; touch begun; sleep 60', effects='external')\n"
        "flow.add('after', 'shell', run='echo ${{ tasks.pay.output.stdout }} > receipt', effects='none')\n"
    )
    screen = terminal("run", "pays.py", "--id", "mine")
    screen.until("paying")
    screen.signal(signal.SIGKILL)
    assert screen.end() == -signal.SIGKILL
    again = terminal("resume", "mine")
    again.until("fail it, or leave it? [i/d/r/f/l]")
    assert "attempt 1 began 20" in again.shown
    assert "| paying" in again.shown
    assert "its command: echo paying" in again.shown
    again.type("approve\n")
    again.until("Please type one of: it-ran, did-not-run, run-again, fail, leave.")
    again.type("it-ran\n")
    again.until("What did it print?")
    again.type("receipt 17\n\n")
    again.until("Reason (may be empty):")
    again.type("the bank says so\n")
    assert again.end() == 0
    assert (repo / "receipt").read_text() == "receipt 17\n"


@pytest.mark.parametrize(
    ("answer", "ran"),
    quick_first([("did-not-run", "begun\nbegun\n"), ("run-again", "begun\nbegun\n"), ("fail", "begun\n")]),
)
def test_an_interrupted_task_is_started_repeated_or_failed(terminal: Open, repo: Path, answer: str, ran: str) -> None:
    (repo / "pays.py").write_text(
        "from agentos import Workflow\n"
        "flow = Workflow('pays')\n"
        "flow.add('pay', 'shell', effects='external', run='echo begun >> ledger; echo paying; [ -e go ] || sleep 60')\n"
    )
    screen = terminal("run", "pays.py", "--id", "mine")
    screen.until("paying")
    screen.signal(signal.SIGKILL)
    assert screen.end() == -signal.SIGKILL
    (repo / "go").touch()
    again = terminal("resume", "mine")
    again.until("[i/d/r/f/l]")
    again.type(f"{answer}\n")
    again.until("Reason (may be empty):")
    again.type("\n")
    assert again.end() == (1 if answer == "fail" else 0)
    assert (repo / "ledger").read_text() == ran


def test_an_agent_cannot_answer_for_a_human_through_a_terminal(terminal: Open, repo: Path) -> None:
    screen = terminal("run", "gated.py", env={"AGENTOS_ATTEMPT_ID": "a.b.1"})
    screen.until(SHIP)
    screen.type("a\n")
    assert screen.end() == 3
    assert "Left open." in screen.shown
    assert not (repo / "shipped").exists()


# --- stopping ---------------------------------------------------------------------------------------------------


def test_ctrl_c_drains_and_a_second_one_cancels(terminal: Open, agentos: Agentos, repo: Path) -> None:
    screen = terminal("run", "waits.py", "--id", "mine")
    screen.until("napping")
    screen.type("\x03")
    screen.until("1 task may end first. Ctrl-C again cancels at once.")
    screen.type("\x03")
    assert screen.end() == 130
    assert "Go on with: agentos resume mine" in screen.shown
    assert screen.cursor_is_visible
    assert not (repo / "slept").exists()
    assert status_of(agentos, repo) == "paused"


def test_one_ctrl_c_lets_the_task_end_and_keeps_it(terminal: Open, agentos: Agentos, repo: Path) -> None:
    screen = terminal("run", "waits.py", "--id", "mine")
    screen.until("napping")
    screen.type("\x03")
    screen.until("may end first")
    (repo / "wake").touch()
    assert screen.end() == 130
    assert (repo / "slept").exists()
    assert not (repo / "more").exists()
    plan = json.loads(agentos("resume", "mine", "--dry-run", "--json", cwd=repo).out)
    assert plan["counts"] == {"reuse": 2, "run": 1}


def test_sigterm_gives_the_cursor_back(terminal: Open, repo: Path) -> None:
    screen = terminal("run", "waits.py", "--id", "mine")
    screen.until("napping")
    screen.signal(signal.SIGTERM)
    assert screen.end() == 143
    assert "agentos resume mine" in screen.shown
    assert screen.cursor_is_visible


def test_a_closed_terminal_stops_the_run_in_order(terminal: Open, agentos: Agentos, repo: Path) -> None:
    screen = terminal("run", "waits.py", "--id", "mine")
    screen.until("napping")
    assert screen.hang_up() == 143
    assert status_of(agentos, repo) == "paused"


@pytest.mark.full
def test_an_abort_from_elsewhere_gives_the_cursor_back(terminal: Open, agentos: Agentos, repo: Path) -> None:
    screen = terminal("run", "waits.py", "--id", "mine")
    screen.until("napping")
    assert not screen.cursor_is_visible
    agentos("abort", "mine", cwd=repo)
    assert screen.end() == 4
    assert screen.cursor_is_visible
    assert "An aborted run is final." in screen.shown


# --- choices, and a file to look at ---------------------------------------------------------------------------------

CHOOSING = """
from pathlib import Path
from agentos import Workflow

flow = Workflow("choosing")

@flow.task
def draft() -> str:
    Path("draft.md").write_text("a draft\\n")
    return "draft.md"

flow.add("look", "approval", needs=["draft"],
         question={"question": "Good?", "choices": ["send", "revise"], "file": "${{ tasks.draft.output }}"})

@flow.task
def told(look) -> str:
    return f"{look['choice']}: {look['reason']}: {Path('draft.md').read_text()}"
"""
CHOOSE = "edit, send, revise, reject or leave it? [e/s/rev/rej/l]"
EDITOR = """#!/bin/sh
test -t 0 && test -t 1 || exit 9
echo "by hand" >> "$2"
"""


def test_a_file_is_edited_before_a_choice_with_several_lines_of_reason(
    terminal: Open, agentos: Agentos, repo: Path
) -> None:
    (repo / "choosing.py").write_text(CHOOSING)
    editor = repo / "editor"
    editor.write_text(EDITOR)
    editor.chmod(0o755)
    screen = terminal("run", "choosing.py", "--id", "mine", env={"VISUAL": f"{editor} --wait", "EDITOR": "false"})
    screen.until(CHOOSE)
    assert "about the file draft.md" in screen.shown
    screen.type("e\n")
    screen.until("Edited.")
    screen.until(lambda: screen.shown.count(CHOOSE) == 2)
    screen.type("re\n")
    screen.until("Please type one of: edit, send, revise, reject, leave.")
    screen.type("rev\n")
    screen.until("an empty one ends it")
    screen.type("shorter\nand friendlier\n\n")
    assert screen.end() == 0
    view = json.loads(agentos("show", "mine", "--json", cwd=repo).out)
    [told] = [task for task in view["tasks"] if task["id"] == "told"]
    assert told["output"] == "revise: shorter\nand friendlier: a draft\nby hand\n"


def test_an_editor_that_cannot_be_started_is_said_and_asked_again(terminal: Open, repo: Path) -> None:
    (repo / "choosing.py").write_text(CHOOSING)
    screen = terminal("run", "choosing.py", "--id", "mine", env={"VISUAL": "no-such-editor", "EDITOR": ""})
    screen.until(CHOOSE)
    screen.type("edit\n")
    screen.until("no-such-editor cannot be started")
    screen.type("l\n")
    assert screen.end() == 3
