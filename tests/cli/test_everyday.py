"""What people read every day: layers counted from one, long names by both ends, waits with their time."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.conftest import Agentos

FLOW = """
tasks:
  names: {run: "echo '[\\"packages/billing/invoices/one.py\\", \\"packages/billing/invoices/two.py\\"]'",
          output: json, effects: none}
  each: {needs: names, for_each: "${{ tasks.names.output }}", key: item, run: "echo ${{ item }}", effects: none}
  flaky: {needs: names, run: "test -e again || { touch again; exit 1; }", effects: none,
          retries: {retries: 1, backoff_s: 0.2, jitter: 0}}
"""


def test_layers_are_counted_from_one_wherever_people_look(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "flow.yaml").write_text(FLOW)
    ran = agentos("run", "flow.yaml", "--id", "r", cwd=tmp_git_repo)
    assert ran.code == 0, ran.err

    assert re.findall("layer ([0-9]+) is done", ran.out) == ["1", "2"]
    assert "2/2" in agentos("list", cwd=tmp_git_repo).out
    assert re.findall("^Layer ([0-9]+)", agentos("show", "r", cwd=tmp_git_repo).out, re.MULTILINE) == ["1", "2"]
    assert "each of run r: complete, layer 2" in agentos("why", "r", "each", cwd=tmp_git_repo).out
    rows = agentos("checkpoints", "r", cwd=tmp_git_repo).out.splitlines()[1:]
    assert [row.split()[1] for row in rows] == ["1", "2"]
    assert re.findall("layer ([0-9]+) begins", agentos("events", "r", cwd=tmp_git_repo).out) == ["1", "2"]


def test_a_wait_for_the_next_attempt_is_told_with_its_time(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "flow.yaml").write_text(FLOW)
    ran = agentos("run", "flow.yaml", "--id", "r", cwd=tmp_git_repo)
    assert re.search(r"flaky failed \(attempt 1\), again in 0\.\ds, at \d\d:\d\d:\d\d: ", ran.out), ran.out


def test_long_names_keep_both_ends(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "flow.yaml").write_text(FLOW)
    agentos("run", "flow.yaml", "--id", "r", cwd=tmp_git_repo)
    shown = agentos("show", "r", cwd=tmp_git_repo, env={"COLUMNS": "60"}).out
    names = re.findall(r"each\[\S+\]", shown)
    assert [name[-8:] for name in names] == ["/one.py]", "/two.py]"]


def test_an_aborted_run_asks_nothing_and_names_the_fork(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "flow.yaml").write_text(
        "tasks:\n  a: {run: 'true', effects: none}\n  b: {needs: a, run: 'true', approve: Go?, effects: none}\n"
    )
    assert agentos("run", "flow.yaml", "--id", "r", cwd=tmp_git_repo).code == 3
    assert agentos("abort", "r", cwd=tmp_git_repo).code == 0
    looks = (("watch", "r"), ("show", "r"), ("why", "r", "b"), ("inbox",), ("resume", "r"))
    told = [agentos(*words, cwd=tmp_git_repo) for words in looks]
    assert [done for done in told if "agentos approve" in done.out + done.err] == []
    assert told[-1].err.endswith("agentos fork r\n")
    forked = agentos("fork", "r", "--gates", "reject", cwd=tmp_git_repo)
    assert forked.code == 1, forked.err
