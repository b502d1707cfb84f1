"""Lines, reports and JSON made from events."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime

import pytest

from agentos.cli.boundary import Exit
from agentos.cli.terminal.feed import Amount, JsonLines, PlainLines
from agentos.cli.terminal.report import exit_of, report
from agentos.dag.define.workflow import Workflow
from agentos.ids import TaskId, WorkflowId
from agentos.machine import events as ev
from agentos.render.event_text import describe_event, resume_in_short, skipped_in_short
from tests.unit.machine.harness import Run, flow_of, nothing
from tests.unit.machine.test_walks import Walk

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


def output(text: str) -> ev.TaskOutput:
    return ev.TaskOutput(workflow_id=WorkflowId("run"), at=NOON, task_id=TaskId("a"), layer=0, attempt=1, text=text)


@pytest.mark.parametrize("seed", range(20))
def test_every_event_can_be_told_on_one_line_and_as_json(seed: int) -> None:
    walk = Walk(seed)
    walk.go()
    for event in walk.run.journal:
        assert "\n" not in describe_event(event, verbose=True)
    out = io.BytesIO()
    JsonLines(out).show(walk.run.journal)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert all(list(line)[:4] == ["type", "seq", "at", "workflow_id"] for line in lines)


def test_a_live_line_has_no_sequence_and_may_hold_anything() -> None:
    out = io.BytesIO()
    JsonLines(out).show([output("bad \udcff text\x1b")])
    (line,) = out.getvalue().splitlines()
    shown = json.loads(line)
    assert "seq" not in shown
    assert (shown["type"], shown["text"]) == ("task_output", "bad \\udcff text\x1b")


def test_files_put_back_are_counted_and_where_none_were_nothing_is_to_be_undone() -> None:
    none = ev.FilesRestored(snapshot="s", tree="t", undo="0123456789abcdef")
    assert describe_event(none) == "the files are as they were before: none had to be put back"
    one = ev.FilesRestored(snapshot="s", tree="t", undo="0123456789abcdef", paths=("a",), count=1)
    assert describe_event(one) == "1 path put back; what was there: agentos undo (0123456789ab)"


@pytest.mark.parametrize(
    ("amount", "wanted"),
    [
        ("quiet", ["a failed", "failed: 1 task"]),
        ("normal", ["run starts", "a starts", "a failed", "b is skipped", "failed: 1 task"]),
        ("verbose", ["driven by", "layer 1 begins", "a | hello"]),
    ],
)
def test_plain_lines(amount: Amount, wanted: list[str]) -> None:
    run = Run(flow_of({"a": [], "b": ["a"]})).begin()
    run.fail("a", "two\nlines")
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    PlainLines(out, amount).show([*run.journal[:4], output("hello"), *run.journal[4:]])
    out.seek(0)
    text = out.read()
    for words in wanted:
        assert words in text
    assert ("a | hello" in text) == (amount == "verbose")
    assert "starts" not in text or amount != "quiet"


def shown(amount: Amount, run: Run) -> list[str]:
    """The lines of a run whose events come one at a time."""
    out = io.StringIO()
    view = PlainLines(out, amount)
    for event in run.journal:
        view.show([event])
    view.close()
    return [line[9:] for line in out.getvalue().splitlines()]


CHAIN = {"a": [], **{f"b{n}": ["a" if n == 0 else f"b{n - 1}"] for n in range(5)}}


def test_what_an_early_failure_skips_has_one_line() -> None:
    flow = flow_of(CHAIN)
    for number in range(3):
        flow.add(f"c{number}", nothing, needs=["a"], if_="success()" if number else "not failure()")
    run = Run(flow).begin()
    run.fail("a")
    lines = shown("normal", run)
    [skips] = [line for line in lines if "skipped" in line]
    assert skips == "8 tasks are skipped: 7 because of a, 1 by a condition"
    # Of the layers in which nothing ran, the last.
    assert lines[-3:] == [skips, "layer 6 is done", "failed: 1 task failed"]
    assert len([line for line in shown("verbose", run) if "is skipped" in line]) == 8
    assert not [line for line in shown("quiet", run) if "skipped" in line]


def test_a_few_skipped_tasks_have_a_line_each_and_in_order() -> None:
    run = Run(flow_of({"a": [], "b": ["a"], "c": ["b"], "d": []})).begin()
    run.fail("a")
    run.ok("d")
    skips = [line for line in shown("normal", run) if "is skipped" in line or "is done" in line]
    assert [line.partition(",")[0] for line in skips] == [
        "layer 1 is done",
        "b is skipped because of a",
        "layer 2 is done",
        "c is skipped because of a",
        "layer 3 is done",
    ]


def skip(number: int, because: str) -> ev.TaskSkipped:
    task = TaskId(f"t{number}")
    return ev.TaskSkipped(workflow_id=WorkflowId("run"), at=NOON, task_id=task, layer=1, place="", because=because)


def test_reasons_for_skipping_are_named_only_while_they_are_few_and_conditions_last() -> None:
    assert skipped_in_short([skip(number, f"c{number // 2}") for number in range(12)]) == (
        "12 tasks are skipped: 2 because of c0, 2 because of c1, 2 because of c2, 6 because of others"
    )
    assert skipped_in_short([skip(number, "" if number > 1 else "c") for number in range(5)]) == (
        "5 tasks are skipped: 2 because of c, 3 by a condition"
    )
    assert skipped_in_short([skip(0, "c"), skip(1, "t0"), skip(2, "t1"), skip(3, "t2")]) == (
        "4 tasks are skipped because of c"
    )


def test_the_report_of_a_failed_run_says_what_failed_what_is_kept_and_what_to_type() -> None:
    run = Run(flow_of({"ok": [], "it's bad": ["ok"], "after": ["it's bad"]}), workflow_id="a b").begin()
    run.ok("ok")
    run.fail("it's bad", "first\n\x1b[31msecond")
    text = "\n".join(report(run.facts))
    assert "is failed: 1 complete, 1 failed, 1 skipped." in text
    assert "it's bad failed: Boom: first" in text
    assert "    \\x1b[31msecond" in text
    assert """agentos logs 'a b' 'it'"'"'s bad'""" in text
    assert "Kept: 1 finished task, checkpoint of layer 3\n" in text
    assert text.endswith("agentos resume 'a b'")
    assert exit_of(run.facts) == Exit.FAILED


def test_the_report_of_a_waiting_run_gives_the_exact_commands() -> None:
    flow = Workflow("flow")
    flow.add("ship it", nothing, approve="Ship?")
    run = Run(flow).begin()
    text = "\n".join(report(run.facts, asked=[*run.facts.open_gates]))
    assert "agentos approve run 'approve:ship it'" in text
    assert "agentos reject run 'approve:ship it' --reason TEXT" in text
    assert exit_of(run.facts) == Exit.WAITING


def test_the_report_says_when_a_task_may_be_tried_again() -> None:
    flow = Workflow("flow")
    flow.add("a", nothing, retries=2)
    run = Run(flow).begin()
    run.fail("a")
    not_before = run.facts.task(TaskId("a")).not_before
    assert not_before is not None
    run.say({"type": "pause"})
    clock = f"{not_before.astimezone():%Y-%m-%d %H:%M:%S}"
    assert f"Attempt 2 of a begins at {clock} at the earliest." in report(run.facts)


def test_a_resume_plan_in_one_line() -> None:
    rerun = [ev.PlannedVerdict(task_id=TaskId(name), verdict="rerun", reason="was interrupted") for name in "abcd"]
    assert resume_in_short({"reuse": 3, "rerun": 1}, rerun[:1]) == "3 reused · 1 reruns (a: was interrupted)"
    assert resume_in_short({"rerun": 4, "ask": 1}, rerun) == "4 rerun (a, b, c, …) · 1 asks"
    assert resume_in_short({}) == "nothing to do"
    assert resume_in_short({"reuse": 1, "reuse, changed": 2, "run": 4, "orphan": 5}) == (
        "1 reused · 2 reused though changed · 4 to run · 5 gone"
    )
