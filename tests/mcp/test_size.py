"""Answers stay short whatever a run holds: a model pays for each word."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentos import Workflow, run
from tests.mcp.conversation import Caller, converse_here

SHORT = 8_000
"""Characters; some two thousand tokens."""


def work() -> str:
    return "what it gives " * 20


def fail() -> None:
    raise ValueError("it does not go " * 200)


def test_a_run_of_a_thousand_tasks_is_told_in_few_words_with_what_failed_first(repo: Path) -> None:
    flow = Workflow("many")
    for number in range(1000):
        flow.add(f"task-with-quite-a-long-name-{number}", fail if number == 700 else work, effects="none")
    run(flow, workflow_id="many-1", repo=repo, check=False)

    async def talk(call: Caller) -> None:
        told = await call("run_show", run="many-1")
        assert call.length < SHORT
        assert told["counts"] == {"complete": 999, "failed": 1}
        assert told["tasks"][0]["task"] == "task-with-quite-a-long-name-700"
        assert (len(told["tasks"]), told["more_tasks"]) == (20, "980: offset=20")
        more = await call("run_show", run="many-1", limit=3, offset=20)
        assert [one["status"] for one in more["tasks"]] == ["complete"] * 3
        assert {one["task"] for one in more["tasks"]}.isdisjoint(one["task"] for one in told["tasks"])
        picked = await call("run_show", run="many-1", status=["failed"])
        assert [one["task"] for one in picked["tasks"]] == ["task-with-quite-a-long-name-700"]
        for tool, more_of_it in (("task_logs", {}), ("task_why", {"task": "task-with-quite-a-long-name-700"})):
            await call(tool, run="many-1", **more_of_it)
            assert call.length < SHORT

    converse_here(repo, talk)


@pytest.mark.full
def test_five_megabytes_of_output_files_and_error_are_shown_by_their_end_or_beginning(repo: Path) -> None:
    (repo / "workflows" / "loud.yaml").write_text(
        "name: loud\ntasks:\n"
        '  print: {run: \'seq -f "line %.0f of many" 280000; echo; head -c 20000 /dev/zero | tr "\\0" x\'}\n'
        "  write: {needs: print, run: 'seq 700000 > big.txt; for n in $(seq 300); do echo $n > file-$n; done'}\n"
        "  fail:  {needs: write, run: 'head -c 5000000 /dev/zero | tr \"\\0\" y >&2; echo the-last-word >&2; exit 1'}\n"
    )

    async def talk(call: Caller) -> None:
        told = await call("run_start", workflow="loud", run="loud-1", wait_s=100)
        assert (told["status"], call.length < SHORT) == ("failed", True)
        printed = await call("task_logs", run="loud-1", task="print")
        assert (printed["lines"] > 280_000, call.length < SHORT) == (True, True)
        assert "line 280000 of many" in printed["text"]
        back = await call("task_logs", run="loud-1", task="print", skip=1000, tail=2)
        assert [line.split("line ")[1] for line in back["text"].splitlines()] == ["279001 of many", "279002 of many"]
        found = await call("task_logs", run="loud-1", task="print", contains="line 12345 ")
        assert found["lines"] == 1
        await call("task_why", run="loud-1", task="print")
        assert call.length < SHORT
        why = await call("task_why", run="loud-1", task="fail")
        assert call.length < SHORT
        assert "the-last-word" in why["error"]
        changed = await call("task_diff", run="loud-1", task="write")
        assert call.length < SHORT
        assert (len(changed["files"]), changed["more_files"], changed["patch_chars"] > 4_000_000) == (40, 261, True)
        follows = await call("task_diff", run="loud-1", task="write", offset=changed["next_offset"], max_chars=100)
        assert (len(follows["patch"]), follows["next_offset"]) == (100, changed["next_offset"] + 100)
        names = await call("task_diff", run="loud-1", task="write", paths=["file-7"], max_chars=0)
        assert (names["files"], "patch" in names) == (["A  file-7"], False)

    converse_here(repo, talk)
