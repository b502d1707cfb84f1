"""The draft gate at a real terminal, with a real editor: edit, send on, have it revised, leave it, choose a brief."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cli.conftest import SOURCES
from tests.cli.terminal import Terminal
from tests.issue.stage import Stage

EDITOR = """#!/bin/sh
test -t 0 && test -t 1 || exit 9
printf '# Dark mode by hand\\n\\nBetter.\\n' > "$1"
"""
ASK = "edit, send, revise, reject or leave it? [e/s/rev/rej/l]"
DECIDE = "edit, accept, revise, reject or leave it? [e/a/rev/rej/l]"

Open = Callable[..., Terminal]


@pytest.fixture
def terminal(stage: Stage, home: object) -> Iterator[Open]:
    opened: list[Terminal] = []
    editor = stage.beside / "editor"
    editor.write_text(EDITOR)
    editor.chmod(0o755)

    def start(*arguments: str, **env: str) -> Terminal:
        given = {"PYTHONPATH": str(SOURCES), "VISUAL": "", "EDITOR": str(editor), **env}
        opened.append(Terminal("issue", *arguments, *stage.roles, cwd=stage.repo, env=given, columns=120))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_a_draft_is_revised_then_edited_and_sent_on(terminal: Open, stage: Stage) -> None:
    screen = terminal("--brief", "dark-mode.md")
    screen.until(ASK)
    assert "Draft 1 of dark-mode: send it to the reviewer?" in screen.shown
    screen.type("revise\n")
    screen.until("an empty one ends it")
    screen.type("Shorter, please.\n\n")
    # The answer to the first question may still be on the screen: this one's prompt comes last on it.
    screen.until(lambda: "look@2 asks: Draft 2 of dark-mode" in screen.scrollback and screen.shown.endswith(ASK))
    assert "Shorter, please." in stage.calls("drafter")[1]
    screen.type("e\n")
    screen.until("Edited.")
    screen.type("send\n")
    screen.until("an empty one ends it")
    screen.type("\n")
    screen.until(DECIDE)
    assert "The reviewer says approve. It is good." in screen.scrollback
    screen.type("accept\n")
    screen.until(lambda: screen.shown.count("an empty one ends it") >= 1)
    screen.type("\n")
    assert screen.end() == 0
    assert "By hand" not in stage.calls("drafter")[1]
    assert "# Dark mode by hand" in stage.calls("reviewer")[0]
    assert stage.filed[0].startswith("create --title Dark mode by hand\nBetter.\n")
    assert "https://tracker.invalid/issues/1" in screen.shown


def test_an_editor_may_have_arguments_and_one_that_fails_loses_nothing(terminal: Open, stage: Stage) -> None:
    folder = stage.beside / "my editors"
    folder.mkdir()
    editor = folder / "ed it"
    editor.write_text(
        '#!/bin/sh\ntest "$1" = --wait || exit 9\ntest -e "$(dirname "$0")/works" || exit 7\necho "# $3" > "$4"\n'
    )
    editor.chmod(0o755)
    screen = terminal("--brief", "dark-mode.md", "--gates", "draft", VISUAL=f"'{editor}' --wait --title 'By hand'")
    screen.until(ASK)
    screen.type("edit\n")
    screen.until("The editor ended with 7.")
    assert stage.artefact("active/dark-mode/002-draft.md").startswith("# Dark mode\n")
    (folder / "works").touch()
    screen.type("edit\n")
    screen.until("Edited.")
    screen.type("send\n")
    screen.until("an empty one ends it")
    screen.type("\n")
    assert screen.end() == 0
    assert "# By hand" in stage.calls("reviewer")[0]


@pytest.mark.parametrize(
    ("editor", "said"),
    [("", "No editor is set: export EDITOR=…"), ("no-such-editor -x", "no-such-editor -x cannot be started")],
)
def test_without_an_editor_it_is_asked_again(terminal: Open, stage: Stage, editor: str, said: str) -> None:
    screen = terminal("--brief", "dark-mode.md", EDITOR=editor)
    screen.until(ASK)
    screen.type("edit\n")
    screen.until(said)
    screen.until(lambda: screen.shown.endswith(ASK))
    screen.type("\x04")
    assert screen.end() == 3
    assert stage.status() == "waiting"


def test_a_draft_that_is_left_waits_and_ctrl_c_stops_in_order(terminal: Open, stage: Stage) -> None:
    screen = terminal("--brief", "dark-mode.md")
    screen.until(ASK)
    screen.type("leave\n")
    assert screen.end() == 3
    assert "agentos approve issue-dark-mode approval:look --choose send" in screen.scrollback
    assert stage.status() == "waiting"
    again = terminal("--resume", "dark-mode")
    again.until(ASK)
    again.type("\x03")
    assert again.end() == 130
    assert stage.calls("reviewer") == []
    assert len(stage.calls("drafter")) == 1


def test_briefs_are_chosen_by_number_and_a_change_is_asked_about(terminal: Open, stage: Stage) -> None:
    for name in ("one", "two"):
        stage.brief(name=f"ideas/active/{name}.md")
    screen = terminal("--select", "--gates", "none")
    screen.until("Which?")
    screen.type("7\n")
    screen.until(lambda: screen.shown.count("Which?") == 2)
    screen.type("2\n")
    assert screen.end() == 0
    assert stage.status("issue-two") == "complete"
    stage.brief("Something else now, and long enough to say so.\n", "ideas/active/two.md")
    changed = terminal("--brief", "ideas/active/two.md", "--gates", "none")
    changed.until("Go on as it began, begin anew, or leave it?")
    assert "the brief ideas/active/two.md" in changed.shown
    changed.type("anew\n")
    assert changed.end() == 0
    assert stage.status("issue-two-2") == "complete"
    assert len(stage.filed) == 2
