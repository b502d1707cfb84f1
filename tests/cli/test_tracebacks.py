"""Where a task's own code raised is shown wherever people look."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Agentos

FLOW = """
import json
from agentos import Workflow

flow = Workflow("sums")

def read(text):
    try:
        return json.loads(text)
    except ValueError as error:
        raise RuntimeError("no \\x1b[2J numbers") from error

@flow.task
def total():
    return read("{nope")
"""
PLACE = 'File "flow.py", line 15, in total'
SOURCE = 'return read("{nope")'


def test_a_failure_is_shown_with_its_place(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "flow.py").write_text(FLOW)

    ran = agentos("run", "flow.py", "--id", "r", cwd=tmp_git_repo)
    assert ran.code == 1
    assert "total failed: RuntimeError: no \\x1b[2J numbers (flow.py:11)\n" in ran.out
    for said in (ran.err, agentos("show", "r", cwd=tmp_git_repo).out):
        assert PLACE in said
        assert SOURCE in said
        assert "after json.decoder.JSONDecodeError: Expecting property name" in said
        assert "json/decoder.py" not in said
        assert "\x1b[2J" not in said

    why = agentos("why", "r", "total", cwd=tmp_git_repo).out
    assert PLACE in why
    assert "… 3 frames of libraries\n" in why
    assert "The above exception was the direct cause" in why
    assert "json/decoder.py" not in why
    assert "json/decoder.py" in agentos("why", "r", "total", "--verbose", cwd=tmp_git_repo).out

    logs = agentos("logs", "r", "total", cwd=tmp_git_repo).out
    assert logs.startswith("Traceback (most recent call last):\n")
    assert logs.rstrip().endswith("RuntimeError: no \\x1b[2J numbers")
    assert "agentos/tasks" not in logs, "frames of ours say nothing to users"


def test_a_secret_in_a_traceback_is_masked_in_the_log(
    agentos: Agentos, tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "hush-hush-12345")
    (tmp_git_repo / "flow.py").write_text(
        "import os\nfrom agentos import Workflow\nflow = Workflow('f', secrets=['SHOP_TOKEN'])\n"
        "@flow.task\ndef ship():\n    raise ValueError(os.environ['SHOP_TOKEN'])\n"
    )
    assert agentos("run", "flow.py", "--id", "r", cwd=tmp_git_repo).code == 1
    for command in (("logs", "r"), ("why", "r", "ship"), ("show", "r")):
        said = agentos(*command, cwd=tmp_git_repo)
        assert "ValueError: [secret:SHOP_TOKEN]" in said.out, said
        assert "hush-hush" not in said.out + said.err


def test_a_deep_one_keeps_the_tasks_own_frame_and_show_begins_with_a_frame(
    agentos: Agentos, tmp_git_repo: Path
) -> None:
    (tmp_git_repo / "flow.py").write_text(
        "from agentos import Workflow\nflow = Workflow('f')\n"
        "def down(n):\n    if n:\n        down(n - 1)\n    raise ValueError('at the bottom')\n"
        "@flow.task\ndef deep():\n    down(300)\n@flow.task\ndef low():\n    down(4)\n"
        "@flow.task\ndef bare():\n    raise LookupError\n"
    )
    ran = agentos("run", "flow.py", "--id", "r", cwd=tmp_git_repo)
    assert "bare failed: LookupError (flow.py:15)\n" in ran.out, "without a colon, where it says nothing"
    assert "bare failed: LookupError\n" in ran.err
    assert 'File "flow.py", line 9, in deep\n        down(300)' in ran.err
    assert "[Previous line repeated 297 more times]" in ran.err
    lines = agentos("show", "r", cwd=tmp_git_repo).out.splitlines()
    after = [lines[index + 1] for index, line in enumerate(lines) if line.strip() == "ValueError: at the bottom"]
    assert len(after) == 2
    assert all('File "flow.py", line ' in line for line in after), after


def test_what_fails_while_a_file_is_imported_is_shown_with_its_place(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "flow.py").write_text("from agentos import Workflow\nimport settings_of_it\n")
    (tmp_git_repo / "settings_of_it.py").write_text("PORT = {}['port']\n")
    for said in (
        agentos("run", "flow.py", cwd=tmp_git_repo).err,
        agentos("check", "flow.py", cwd=tmp_git_repo).out,
    ):
        assert "flow.py: cannot be imported: KeyError: 'port'\n" in said
        assert 'flow.py", line 2, in <module>\n    import settings_of_it\n' in said
        assert "settings_of_it.py\", line 1, in <module>\n    PORT = {}['port']\n" in said
        assert "importlib" not in said
    (tmp_git_repo / "settings_of_it.py").write_text("def port(:\n")
    said = agentos("run", "flow.py", cwd=tmp_git_repo).err
    assert 'settings_of_it.py", line 1\n    def port(:\n' in said
    (tmp_git_repo / "flow.yaml").write_text("tasks: {a: {python: 'settings_of_it:port'}}")
    assert 'settings_of_it.py", line 1\n    def port(:\n' in agentos("run", "flow.yaml", cwd=tmp_git_repo).err
