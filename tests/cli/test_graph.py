"""`agentos graph`"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pexpect
import pytest

from agentos import run
from agentos.workflow.define.workflow_source import find_workflow
from tests.cli.conftest import SOURCES, Agentos

FLOW = """\
name: shapes
params: {version: }
tasks:
  lint: {run: "true", effects: none}
  each: {for_each: [1, 2], run: [echo, "${{ item }}"], effects: none}
  ask: {approval: Go on?}
  ship: {needs: [lint, each, ask], approve: Ship?, run: "false", effects: none}
"""


def write(root: Path, text: str = FLOW, name: str = "flow") -> None:
    (root / "workflows").mkdir(exist_ok=True)
    (root / "workflows" / f"{name}.yaml").write_text(text)


def test_mermaid(agentos: Agentos, tmp_git_repo: Path) -> None:
    write(tmp_git_repo)
    done = agentos("graph", "flow", cwd=tmp_git_repo)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "flowchart TD\n"
        '  n0[["lint<br/><small>shell</small>"]]\n'
        '  n1[["each<br/><small>shell, for each</small>"]]\n'
        '  n2{{"ask<br/><small>approval</small>"}}\n'
        '  n3[["ship<br/><small>shell, asks first</small>"]]\n'
        "  n0 --> n3\n"
        "  n1 --> n3\n"
        "  n2 --> n3\n"
    )
    assert not (tmp_git_repo / ".agentos").exists()


def test_boxes(agentos: Agentos, tmp_git_repo: Path) -> None:
    write(tmp_git_repo)
    done = agentos("graph", "flow", "--format", "text", cwd=tmp_git_repo, env={"COLUMNS": "60"})
    assert done.out == (
        "┌─── layer 1 · 3 tasks ────────────────────────────────────┐\n"
        "│ lint  (shell)                                            │\n"
        "│ each  (shell for each)                                   │\n"
        "│ ask  (approval)  ? Go on?                                │\n"
        "└─┬────────────────────────────────────────────────────────┘\n"
        "┌─┴─ layer 2 · 1 task ─────────────────────────────────────┐\n"
        "│ ship  (shell)  ? Ship?  ← lint, each, ask                │\n"
        "└──────────────────────────────────────────────────────────┘\n"
    )


def test_a_picture_that_stands_alone(agentos: Agentos, tmp_git_repo: Path) -> None:
    write(tmp_git_repo)
    done = agentos("graph", "flow", "--svg", cwd=tmp_git_repo)
    assert (done.code, done.err) == (0, "")
    drawn = ElementTree.fromstring(done.out)
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    assert drawn.find("{*}style") is not None
    titles = [title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["lint: shell", "each: shell, for each", "ask: approval", "ship: shell, asks first"]
    assert agentos("graph", "flow", "--format", "svg", cwd=tmp_git_repo).out == done.out


def test_a_run_shows_how_its_tasks_stand(agentos: Agentos, tmp_git_repo: Path) -> None:
    text = "tasks:\n  good: {run: 'true', effects: none}\n  bad: {run: 'false', effects: none, needs: good}\n"
    text += "  each: {for_each: [a, b], key: item, run: [echo, '${{ item }}'], effects: none}\n"
    write(tmp_git_repo, f"{text}  end: {{needs: bad, run: ls}}\n")
    result = run(find_workflow("flow", tmp_git_repo), workflow_id="some-run", repo=tmp_git_repo, check=False)
    assert result.status == "failed"
    drawn = agentos("graph", "some-r", cwd=tmp_git_repo).out
    assert '"good<br/><small>shell</small>"]]:::complete' in drawn
    assert '"bad<br/><small>shell</small>"]]:::failed' in drawn
    assert '"end<br/><small>shell</small>"]]:::skipped' in drawn
    assert "each#91;a#93;" in drawn
    assert "classDef failed fill" in drawn
    boxes = agentos("graph", "some-run", "--format", "text", cwd=tmp_git_repo).out
    assert re.search(r"│ ✓ good  \(shell\)", boxes)
    picture = agentos("graph", "some-run", "--svg", cwd=tmp_git_repo).out
    assert "<title>bad: failed, shell</title>" in picture
    assert "<title>each: complete, shell, for each, 2 of 2 done</title>" in picture
    assert re.search(r"│ ✗ bad ", boxes)
    assert re.search(r"│ - end ", boxes)


HOSTILE = ['a"]; click n0 "javascript:alert(1)', "x --> y", "<script>alert(1)</script>", "`md`", "#35;", "end",
           "subgraph", "n1", "a]b", "tab %%{init}%%", "你好", "\u202eevil", "x" * 200]  # fmt: skip


def test_no_id_can_be_read_as_markup(agentos: Agentos, tmp_git_repo: Path) -> None:
    tasks = {task_id: {"run": "ls", "effects": "none", "approve": "\u202e[red]?"} for task_id in HOSTILE}
    write(tmp_git_repo, json.dumps({"tasks": tasks}))
    done = agentos("graph", "flow", cwd=tmp_git_repo)
    assert done.code == 0, done.err
    head, *lines = done.out.splitlines()
    assert head == "flowchart TD"
    assert len(lines) == len(HOSTILE)
    for line in lines:
        label = re.fullmatch(r'  n\d+\[\["(.*)<br/><small>shell, asks first</small>"\]\]', line)
        assert label, line
        assert not re.search(r"[\"<>`%{}\[\]\\]|#(?!\d+;)", label[1])
        assert label[1].isprintable()
    text = agentos("graph", "flow", "--format", "text", cwd=tmp_git_repo).out
    assert "\u202e" not in text
    assert len({len(line) for line in text.splitlines() if "你" not in line}) == 1


@pytest.mark.full
@pytest.mark.parametrize("form", ["mermaid", "text"])
def test_ten_thousand_tasks_do_not_hang(agentos: Agentos, tmp_git_repo: Path, form: str) -> None:
    tasks = "".join(f"  t{n}: {{run: ls, effects: none, needs: [t{n - 1}, t{n - 2}]}}\n" for n in range(2, 10_000))
    write(tmp_git_repo, f"tasks:\n  t0: {{run: ls}}\n  t1: {{run: ls}}\n{tasks}")
    began = time.monotonic()
    done = agentos("graph", "flow", "--format", form, cwd=tmp_git_repo)
    assert done.code == 0
    assert time.monotonic() - began < 40
    assert ("maxEdges" in done.err) == (form == "mermaid")


def test_what_is_neither_a_workflow_nor_a_run(agentos: Agentos, tmp_git_repo: Path, tmp_path: Path) -> None:
    done = agentos("graph", "none", cwd=tmp_git_repo)
    assert done.code == 2
    assert "there is no workflow 'none'" in done.err
    assert not (tmp_git_repo / ".agentos").exists()
    write(tmp_git_repo)
    run(find_workflow("flow", tmp_git_repo), {"version": 1}, repo=tmp_git_repo)
    done = agentos("graph", "none", cwd=tmp_git_repo)
    assert (done.code, "and there is no run 'none'" in done.err) == (2, True)
    assert agentos("graph", "none", cwd=tmp_path).code == 2  # outside of any repository


def test_a_workflow_with_problems_is_not_drawn(agentos: Agentos, tmp_git_repo: Path) -> None:
    write(tmp_git_repo, "tasks: {a: {needs: b, run: ls}}")
    done = agentos("graph", "flow", cwd=tmp_git_repo)
    assert (done.code, done.out) == (2, "")
    assert "there is no task 'b'" in done.err


def test_at_a_terminal_it_is_a_picture(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "flow.yaml").write_text("tasks: {one: {run: 'true'}}")
    drawn = pexpect.run(
        f"{shlex.quote(sys.executable)} -m agentos graph flow.yaml",
        cwd=str(tmp_git_repo),
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        encoding="utf-8",
    )
    assert "layer 1" in drawn
    assert "flowchart" not in drawn
