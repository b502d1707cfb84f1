"""What the page draws of a run: its timeline, and the whole of it as one file."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from agentos import Context, Workflow, client, run
from agentos.client.places import find_run
from agentos.client.views import AttemptSpan, DriveSpan, IdleSpan, Timeline, WaitSpan
from agentos.ids import TaskId, WorkflowId
from agentos.machine.state import TaskEntry, WorkflowState
from agentos.web.static_page import static_page
from agentos.web.timeline_svg import MOST_LISTED, MOST_ROWS, timeline_svg
from agentos.workflow.checkpoint import CheckpointManager
from tests.cli.runs import interrupted
from tests.web.conftest import Serve, aside
from tests.web.test_run_page import HOSTILE, SCRIPT, address
from tests.workflow.test_secrets import NAME, SECRET, let_out

BEGAN = datetime(2026, 11, 17, 22, 14, 3, tzinfo=UTC)
NIGHT_S = 8 * 3600


class Seen(HTMLParser):
    """The tags of a page, with what is in rows of its timeline."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def having(self, class_: str) -> list[dict[str, str]]:
        return [attributes for _, attributes in self.tags if class_ in attributes.get("class", "").split()]


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def attempt(task: str, start: float, stop: float | None, end: Any = "complete", number: int = 1) -> AttemptSpan:
    return AttemptSpan(
        task_id=task,
        layer=0,
        attempt=number,
        drive=1,
        started_at=at(start),
        ended_at=None if stop is None else at(stop),
        end=end,
    )


def drive(start: float, stop: float | None, end: str = "complete", number: int = 1) -> DriveSpan:
    stopped = None if stop is None else at(stop)
    return DriveSpan(drive=number, started_at=at(start), ended_at=stopped, end=end, holder="here:1")


def drawn(*attempts: AttemptSpan, now: float = 100, **other: Any) -> str:
    drives = other.pop("drives", [drive(0, now)])
    timeline = Timeline(
        workflow_id="run", drives=drives, attempts=[*attempts], waits=other.pop("waits", []), idle=other.pop("idle", [])
    )
    return timeline_svg(timeline, now=at(now), **other)


def rows(page: str) -> list[str]:
    return [re.sub("<[^>]*>", " ", one).strip() for one in re.findall(r'<th scope="row"><span.*?</th>', page)]


def percent(attributes: dict[str, str]) -> tuple[float, float]:
    return float(attributes["x"].rstrip("%")), float(attributes["width"].rstrip("%"))


# --- the timeline -----------------------------------------------------------------------------------------------------


def test_a_task_has_one_row_with_all_its_attempts() -> None:
    page = drawn(attempt("a", 0, 50), attempt("b", 50, 60, "retried"), attempt("b", 60, 100, "failed", 2))
    assert rows(page) == ["driven", "a", "b"]
    bars = Seen(page).having("bar")
    assert [bar["class"] for bar in bars] == ["bar s-complete", "bar s-complete", "bar s-retrying", "bar s-failed"]
    assert [percent(bar) for bar in bars[1:]] == [(0, 50), (50, 10), (60, 40)]
    assert re.findall(r'class="mark[^>]*>(.)<', page) == ["↻", "✗"]  # also without colour


def test_a_night_in_which_nobody_drove_it_is_folded_and_says_how_long_it_was() -> None:
    page = drawn(
        attempt("a", 0, 50),
        attempt("b", NIGHT_S, NIGHT_S + 50),
        drives=[drive(0, 50, "died"), drive(NIGHT_S, NIGHT_S + 50, number=2)],
        idle=[IdleSpan(from_at=at(50), until_at=at(NIGHT_S))],
        now=NIGHT_S + 50,
    )
    assert ">7h59m</text>" in page
    assert ">not driven</text>" in page
    (fold,) = Seen(page).having("fold")
    assert percent(fold)[1] < 12
    widths = [percent(bar)[1] for bar in Seen(page).having("bar")]
    assert all(width > 40 for width in widths)


def test_a_long_wait_with_a_driver_is_folded_too() -> None:
    page = drawn(
        attempt("a", 0, 10),
        attempt("ship", 3600, 3610),
        waits=[
            WaitSpan(gate_id="approve:ship", task_id="ship", opened_at=at(10), closed_at=at(3600), answer="approved")
        ],
        now=3610,
    )
    assert ">nothing ran</text>" in page
    (wait,) = Seen(page).having("wait")
    assert wait["fill"] == "url(#t-hatch)"
    assert "gate approve:ship waited for an answer" in page
    assert rows(page) == ["driven", "a", "ship"]


def test_what_goes_on_ends_now_and_a_question_still_waits() -> None:
    page = drawn(
        attempt("a", 0, None, "running"),
        drives=[drive(0, None, "running")],
        waits=[WaitSpan(gate_id="point:2", task_id=None, opened_at=at(50))],
        now=100,
        link=lambda task: f"/?task={task}",
    )
    assert percent(Seen(page).having("s-running")[0]) == (0, 100)
    assert percent(Seen(page).having("wait")[0]) == (50, 50)
    assert 'href="/?task=a"' in page
    assert "point:2" in rows(page)[2]
    assert "task=point" not in page  # a decision point is no task


def test_times_on_the_axis_are_round_and_keep_apart() -> None:
    for length in (0.05, 0.9, 7, 61, 599, 4_000, 90_000, 900_000):
        page = drawn(attempt("a", 0, length), now=length)
        axis = re.search(r'<svg class="axis".*?</svg>', page)
        assert axis is not None
        places = [float(found) for found in re.findall(r'<text x="([\d.]+)%"', axis[0])]
        assert 1 <= len(places) <= 9
        assert all(later - before >= 10.9 for before, later in pairwise(places))


def test_items_share_a_row_once_there_are_many() -> None:
    few = [attempt(f"fix[{number}]", number, number + 1) for number in range(20)]
    assert "fix[7]" in rows(drawn(*few))
    many = [attempt(f"fix[{n}]", n / 10, n / 10 + 1, "failed" if n == 500 else "complete") for n in range(1000)]
    page = drawn(attempt("list", 0, 1), *many, attempt("draft", 1, 2), attempt("draft@2", 2, 3), link=lambda one: one)
    assert [row.split()[0] for row in rows(page)] == ["driven", "list", "fix", "draft"]
    assert "999 complete, 1 failed" in page
    assert "s-failed" in page
    assert len(re.findall("<rect", page)) < 200


def test_of_very_many_tasks_those_that_failed_have_a_row() -> None:
    many = [attempt(f"t{n}", n / 10, n / 10 + 1, "failed" if n == 900 else "complete") for n in range(1000)]
    page = drawn(*many)
    assert len(rows(page)) == MOST_ROWS + 1
    assert "t900" in rows(page)
    assert "… 941 more tasks" in rows(page)[-1]
    assert f"… and {1001 - MOST_LISTED:,} more" in page
    assert len(page) < 80_000


def test_what_ran_at_the_same_time_is_counted_once() -> None:
    items = [attempt(f"each[{number}]", 10, 20 + number / 10) for number in range(100)]
    page = drawn(attempt("a", 0, 10), *items, now=30)
    times = re.findall(r'<td class="number quiet small">([^<]*)</td>', page)
    assert times == ["30s", "10s", "19s"], "of the clock on the wall, as the bars are"


def test_the_same_stands_there_as_a_table() -> None:
    page = drawn(
        attempt("a", 0, 50, "cut off"),
        drives=[drive(0, 50, "died")],
        idle=[IdleSpan(from_at=at(50), until_at=None)],
        waits=[WaitSpan(gate_id="g", task_id="a", opened_at=at(10), closed_at=at(20))],
    )
    table = page.partition("<details")[2]
    cells = [re.findall(r">([^<]*)</t[hd]>", row) for row in re.findall("<tr><t[hd].*?</tr>", table)[1:]]
    assert [(row[0], row[1], row[4]) for row in cells] == [
        ("", "drive 1 by here:1", "died"),
        ("a", "attempt 1", "cut off"),
        ("a", "gate g waited for an answer", "no longer asked"),
        ("", "not driven", ""),
    ]


def test_nothing_of_a_timeline_can_be_markup() -> None:
    page = drawn(
        attempt(HOSTILE, 0, 1, "failed"),
        attempt('" onload="alert(1)', 0, 1),
        waits=[WaitSpan(gate_id=HOSTILE, task_id=None, opened_at=at(0), answer=SCRIPT)],
        drives=[DriveSpan(drive=1, started_at=at(0), ended_at=at(1), end="complete", holder=HOSTILE)],
        link=lambda task: f'/"><script>{task}',
    )
    seen = Seen(page)
    assert "script" not in {tag for tag, _ in seen.tags}
    assert not any(name.startswith("on") or name == "style" for _, attributes in seen.tags for name in attributes)
    assert not re.search("[\x1b\u202e]", page)


def test_a_run_that_nobody_has_driven_has_no_timeline() -> None:
    assert drawn(drives=[]) == ""
    assert "driven" in drawn(drives=[drive(0, 0)], now=0)  # and one that ended at once has one


def test_a_thousand_attempts_are_drawn_quickly() -> None:
    many = [attempt(f"fix[{n}]", n * 5, n * 5 + 1) for n in range(1000)]
    took = []
    for _ in range(3):
        began = time.process_time()
        drawn(*many, now=5000)
        took.append(time.process_time() - began)
    assert min(took) < 0.2


# --- both in a browser ------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_browser_draws_both_and_a_click_leads_to_the_task(
    repo: Path, serve: Serve, new_page: Callable[..., Page]
) -> None:
    flow = Workflow("drawn")
    flow.add("list", "shell", run="true", effects="none")
    flow.add("each", "shell", run="true", for_each=["a", "b", "c"], needs=["list"], effects="none")
    aside(lambda: run(flow, workflow_id="drawn", repo=repo))
    page = new_page(serve(), address("drawn"))
    box = page.locator("svg.plan a.n", has_text="each").locator("rect").bounding_box()
    assert box is not None
    assert box["width"] > 100
    bar = page.locator("svg.bars rect.bar").first
    assert bar.bounding_box() is not None
    assert bar.evaluate("one => getComputedStyle(one).fill") != "rgb(0, 0, 0)"
    page.locator("svg.plan a.badge").click()
    page.wait_for_url("**unfold=each**")
    assert page.locator("svg.plan a.n").count() == 5
    page.locator("svg.plan a.n", has_text="list").click()
    page.wait_for_url("**task=list**")
    assert page.locator("svg.plan a.current").text_content() is not None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.full
def test_names_stay_while_the_bars_of_a_narrow_timeline_scroll(
    repo: Path, serve: Serve, new_page: Callable[..., Page]
) -> None:
    flow = Workflow("flow")
    flow.add("only", "shell", run="true", effects="none")
    aside(lambda: run(flow, workflow_id="narrow", repo=repo))
    page = new_page(serve(), address("narrow"), width=400)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    name = page.locator(".timeline-rows tbody th", has_text="only")
    before = name.bounding_box()
    page.locator("#timeline-scroll").evaluate("one => one.scrollLeft = 300")
    assert page.locator("#timeline-scroll").evaluate("one => one.scrollLeft") > 100
    assert name.bounding_box() == before


# --- the whole run as a file ------------------------------------------------------------------------------------------


def story(repo: Path) -> None:
    """A run with a question that was answered, files that were changed, and a failure."""
    flow = Workflow(f"story {SCRIPT}")
    flow.add("build", "shell", run="echo built; echo one > made.txt")
    flow.add("ship", "shell", run="echo two > shipped.txt", needs=["build"], approve=f"Ship it? {SCRIPT}")

    @flow.task(needs=["ship"])
    def broken(ctx: Context) -> None:
        ctx.progress(f"about to break {HOSTILE}")
        raise RuntimeError(f"disk is full {HOSTILE}")

    flow.add("after", "shell", run="true", needs=["broken"])
    run(flow, workflow_id="story", repo=repo)
    client.approve("story", repo=repo, reason=f"looks good {SCRIPT}")
    client.resume("story", workflow=flow, repo=repo, check=False)


def test_a_run_is_told_whole_in_one_file(repo: Path) -> None:
    story(repo)
    page = static_page(find_run("story", repo))
    words = " ".join(re.sub("<[^>]*>", " ", page.partition("<main")[2]).split())
    for told in (
        "What went wrong",
        "RuntimeError: disk is full",
        "Traceback (most recent call last):",
        "approved",
        "looks good",
        "The last it printed:",
        "about to break",
        "A made.txt",
        "A shipped.txt",
        "It gave: built",
        "because of broken",
        "layer 1 begins: 1 task",
    ):
        assert told in words, told
    seen = Seen(page)
    assert {"plan", "timeline-rows"} <= {attributes.get("class") for _, attributes in seen.tags}
    anchors = {attributes["id"] for _, attributes in seen.tags if "id" in attributes}
    leads = [attributes["href"] for tag, attributes in seen.tags if tag == "a"]
    assert leads
    assert {one.removeprefix("#") for one in leads} <= anchors  # nothing leads out of the file


@pytest.mark.full
def test_the_file_has_no_script_and_asks_for_nothing(
    repo: Path, tmp_path: Path, serve: Serve, new_page: Callable[..., Page]
) -> None:
    story(repo)
    page = static_page(find_run("story", repo))
    seen = Seen(page)
    assert not {"script", "link", "img", "iframe", "form", "button", "base"} & {tag for tag, _ in seen.tags}
    assert not any(name.startswith("on") or name in ("src", "style") for _, found in seen.tags for name in found)
    assert not re.search("[\x1b\u202e]", page)
    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    (tmp_path / "run.html").write_text(page)
    window = new_page(serve(), width=400)
    asked: list[str] = []
    complaints: list[str] = []
    window.on("request", lambda request: asked.append(request.url))
    window.on("console", lambda line: complaints.append(line.text))
    window.goto(f"file://{tmp_path}/run.html")
    assert [one for one in asked if not one.startswith("http://127")] == [f"file://{tmp_path}/run.html"]
    assert complaints == []
    assert window.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert window.locator("svg.plan a.n").count() == 4


def test_secrets_are_masked_in_the_file(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, SECRET)
    flow = Workflow("loud", secrets=[NAME])
    flow.add("says", "shell", run=f"echo said: ${{{{ secrets.{NAME} }}}}", effects="none")

    @flow.task
    def raises() -> None:
        print(SECRET)
        raise ValueError(SECRET)

    run(flow, workflow_id="loud", repo=repo, check=False)
    page = static_page(find_run("loud", repo))
    assert "said:" in page
    assert "ValueError" in page
    assert let_out(SECRET, page.encode()) == []


def test_a_run_that_was_cut_off_and_one_of_saved_states_are_told_too(repo: Path) -> None:
    interrupted(repo)
    page = static_page(find_run("cut-1", repo))
    assert "interrupted" in page
    assert "strike" in page
    entry = TaskEntry(task_id=TaskId(HOSTILE), status="complete", output=SCRIPT)
    manager = CheckpointManager(repo / ".agentos" / "issue_workflow.db")
    manager.save_checkpoint("states", 0, WorkflowState(workflow_id=WorkflowId("states"), tasks=(entry,)))
    manager.close()
    page = static_page(find_run("states", repo))
    assert escape(SCRIPT) in page
    assert SCRIPT not in page


@pytest.mark.full
def test_two_hundred_tasks_make_a_small_file(repo: Path) -> None:
    flow = Workflow("big")
    for number in range(200):
        flow.add(f"task-{number}", lambda: "x" * 3000, needs=[f"task-{number - 20}"] if number >= 20 else [])
    run(flow, workflow_id="big", repo=repo)
    page = static_page(find_run("big", repo))
    assert len(page.encode()) < 300_000
    assert "of 3,002 bytes" in page
