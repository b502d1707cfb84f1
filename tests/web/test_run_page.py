"""The page of one run: what is where, folded or not, now and in the past, whatever the run holds."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page

from agentos import Workflow, client
from agentos.client.diffs import TaskDiff, task_diff
from agentos.client.places import FoundRun, find_place, find_run
from agentos.client.task_logs import LogEnd
from agentos.client.types import events as ev
from agentos.client.views import StoredRun, read_run
from agentos.ids import TaskId, WorkflowId
from agentos.machine.state import TaskEntry, WorkflowState
from agentos.store.holder import current_holder
from agentos.store.port import Progress
from agentos.web.site import key_of
from agentos.workflow.checkpoint import CheckpointManager
from tests.cli.runs import driven, interrupted
from tests.cli.test_agent_output import CLAUDE
from tests.web.conftest import Answer, Serve, Visitor, aside, wait_until
from tests.workflow.test_candidates import AGENT, FLOW, JUDGE, SHORTEST

SCRIPT = "<script>alert(1)</script>"
HOSTILE = f"{SCRIPT}\x1b[2J\u202egnp.exe"


def address(run: str, page: str = "run", **query: object) -> str:
    found = find_run(run)
    asked = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
    return f"/{page}/{key_of(found.place)}/{found.record.workflow_id}?{asked}"


def words(page: Answer | str) -> str:
    """What is read of a page, in one line."""
    text = page.text if isinstance(page, Answer) else page
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text)).split())


def link(found: str) -> str:
    """The address that a page has, without the place on it."""
    return unescape(found).partition("#")[0]


def drawer(page: Answer) -> str:
    assert page.status == 200, page.text
    return page.text.partition('<aside class="drawer"')[2].partition("</aside>")[0]


def rows(page: Answer) -> list[str]:
    """The lines of the table of tasks."""
    assert page.status == 200, page.text
    table = page.text.partition('id="tasks-title"')[2].partition("</table>")[0]
    return [words(row) for row in re.findall(r"<tr\b.*?</tr>", table, re.DOTALL)[1:]]


# --- what is where --------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_head_tells_how_the_run_stands_and_what_to_type_next(repo: Path, visitor: Visitor) -> None:
    client.run(client.load("ask"), workflow_id="ask-1", labels=["nightly"])
    page = visitor.get(address("ask-1"))
    head = words(page.text.partition('<header class="run-head">')[2].partition("</header>")[0])
    assert "ask ? waiting" in head
    assert "Run ask-1" in head
    assert re.search(rf"Worktree \S*{re.escape(str(repo)[-30:])} ", head)
    assert "Labels nightly" in head
    assert "agentos approve ask-1 approve:ship" in head
    assert page.text.index("Ship it?") < page.text.index('id="graph-title"') < page.text.index('id="tasks-title"')


@pytest.mark.full
def test_a_submitted_run_says_what_it_waits_for(repo: Path, visitor: Visitor) -> None:
    (repo / "waits.yaml").write_text("tasks: {a: {run: 'true', effects: none}}")
    client.submit(str(repo / "waits.yaml"), None, "waits", repo=repo, queue="gpu", priority=3)
    said = words(visitor.get(address("waits")))
    assert "pending" in said
    assert "Waits for a worker of queue gpu, from" in said
    assert "priority 3" in said
    assert "agentos worker --queue gpu" in said
    assert "Run it here…" in said


def test_a_fork_leads_to_the_run_it_came_from(repo: Path, visitor: Visitor) -> None:
    client.run(client.load("edit"), workflow_id="edit-1")
    [cut, *_] = read_run("edit-1").checkpoints
    client.fork(cut.id, workflow_id="edit-2")
    page = visitor.get(address("edit-2"))
    [parent] = re.findall(r'Forked from</dt><dd><a class="mono" href="([^"]+)"', page.text)
    assert "Run edit-1" in words(visitor.get(parent))


def test_tasks_stand_by_layer_counted_from_one(repo: Path, visitor: Visitor) -> None:
    client.run(client.load("edit"), workflow_id="edit-1")
    first, second = rows(visitor.get(address("edit-1")))
    assert re.fullmatch(r'Layer 1 ✓ complete write shell 1 \d\.\ds "written"', first)
    assert re.fullmatch(r"Layer 2 ✓ complete more shell 1 \d\.\ds", second)


@pytest.mark.full
def test_a_fan_out_is_one_row_until_it_is_unfolded_but_its_failures_are_seen(repo: Path, visitor: Visitor) -> None:
    flow = Workflow("fan", params={"many": list(range(7))})
    flow.add("each", lambda item: 1 / (item - 3), for_each="${{ params.many }}", continue_on_error=True)
    client.run(flow, workflow_id="fan-1")
    folded = rows(visitor.get(address("fan-1")))
    assert len(folded) == 1 or "each[3]" in folded[1]
    assert "7 items: ✓ 6 complete ✗ 1 failed safe unfold" in folded[0]
    page = visitor.get(address("fan-1", unfold="each"))
    assert [f"each[{number}]" in row for number, row in enumerate(rows(page)[1:])] == [True] * 7
    [fold] = re.findall(r'href="([^"]+)" aria-label="Fold each"', page.text)
    assert rows(visitor.get(link(fold))) == folded


@pytest.mark.full
def test_a_thousand_tasks_make_a_small_page(repo: Path, visitor: Visitor) -> None:
    flow = Workflow("wide")
    for number in range(1000):
        flow.add(f"t{number}", (lambda: 1 / 0) if number == 900 else (lambda: "done"), continue_on_error=True)
    client.run(flow, workflow_id="wide-1")
    page = visitor.get(address("wide-1"))
    shown = rows(page)
    assert len(shown) == 51
    assert "1,000 tasks in this layer: ✓ 999 complete ✗ 1 failed safe show all" in shown[-1]
    assert len(gzip.compress(page.text.encode())) < 20_000
    every = visitor.get(address("wide-1", unfold="layer 1"))
    assert len(rows(every)) == 1000
    assert len(gzip.compress(every.text.encode())) < 100_000


@pytest.mark.full
def test_events_are_told_newest_first_and_all_of_them_if_asked(repo: Path, visitor: Visitor) -> None:
    flow = Workflow("many")
    for number in range(40):
        flow.add(f"t{number}", lambda: None)
    client.run(flow, workflow_id="many-1")
    head = find_run("many-1").record.sequence

    def told(page: Answer) -> list[int]:
        return [int(number) for number in re.findall(r'<td class="number"><a href="[^"]*">(\d+)</a>', page.text)]

    page = visitor.get(address("many-1"))
    assert told(page) == list(range(head, head - 50, -1))
    assert f"{head - 50} earlier events" in words(page)
    assert told(visitor.get(address("many-1", events="all"))) == list(range(head, 0, -1))


# --- one task -------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_drawer_of_a_task_has_all_there_is_about_it(repo: Path, visitor: Visitor) -> None:
    client.run(client.load("edit"), workflow_id="edit-1")
    page = visitor.get(address("edit-1", task="more"))
    told = drawer(page)
    text = words(told)
    assert "more ✓ complete Close complete: attempt 1 succeeded" in text
    assert re.search(r'Needs</dt><dd><a class="name" href="[^"]*task=write#task">write</a>', told)
    assert "Files it changed one.txt +1 −0" in text
    assert '<span class="add">+two</span>' in told
    assert '<span class="role">stderr</span><pre>bad' in told
    assert "run = echo two >> one.txt; echo bad >&2" in text
    assert "Output written" in words(drawer(visitor.get(address("edit-1", task="write"))))
    [close] = re.findall(r'class="close" href="([^"]+)"', told)
    assert "<aside" not in visitor.get(link(close)).text


def test_a_failed_task_shows_where_in_our_code_it_was_raised(repo: Path, visitor: Visitor) -> None:
    (repo / "boom.py").write_text(
        "import json\nfrom agentos import Workflow\nflow = Workflow('boom')\n"
        "@flow.task(retries=1)\ndef parse():\n    return json.loads('{')\n"
        "@flow.task\ndef after(parse):\n    return 1\n"
    )
    client.run(client.load(str(repo / "boom.py")), workflow_id="boom-1", check=False)
    page = visitor.get(address("boom-1", task="parse"))
    text = words(drawer(page).partition('id="log"')[0])
    assert 'File "boom.py", line 6, in parse return json.loads' in text
    assert "frames of libraries" in text
    assert "/json/decoder.py" not in text
    assert text.count("Traceback") == 1, "the second attempt failed as the first did"
    failed, skipped = rows(page)
    assert "✗ failed parse python 2" in failed
    assert "(boom.py:6)" in failed
    assert "– skipped after python because of parse" in skipped
    assert visitor.get(address("boom-1", "output", task="parse")).status == 404


@pytest.mark.full
def test_what_an_agent_did_reads_as_a_conversation(
    repo: Path, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = repo.parent / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(CLAUDE)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    (repo / "a.yaml").write_text("name: a\ntasks:\n  fix: {agent: claude, prompt: mend it, verify: 'echo verified'}\n")
    client.run(client.load(str(repo / "a.yaml")), workflow_id="a-1")
    page = visitor.get(address("a-1", task="fix"))
    told = drawer(page)
    said = [
        (role, words(text)) for role, text in re.findall(r'<div class="said-(\w+)">.*?<pre>(.*?)</pre>', told, re.S)
    ]
    assert [role for role, _ in said] == ["progress", "agent", "tool", "agent", "progress", "verify"]
    assert said[1:4] == [("agent", "I look at it."), ("tool", "[Edit] src/app.py"), ("agent", "All done.")]
    assert said[4][1] == "claude ended: ok, 2 turns, 2,000 tokens in, 20 out, $0.2500"
    assert said[5] == ("verify", "verified")
    assert "Paid $0.25" in words(told)
    assert "1 of 1 verified" in rows(page)[0]
    assert "Models were paid $0.25" in words(page)


@pytest.mark.full
def test_candidates_have_their_table(repo: Path, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "kept.txt": "kept\n",
        "agent.sh": AGENT,
        "shortest.sh": JUDGE,
        "best.yaml": FLOW % SHORTEST,
    }.items():
        (repo / name).write_text(text)
    monkeypatch.setenv("PAID", str(repo.parent / "paid"))
    client.run(client.load(str(repo / "best.yaml")), workflow_id="best-1")
    page = visitor.get(address("best-1", task="fix"))
    table = drawer(page).partition("<h3>Candidates</h3>")[2].partition("</table>")[0]
    told = [words(row) for row in re.findall(r"<tr>.*?</tr>", table, re.DOTALL)[1:]]
    assert re.fullmatch(r"1 passed passed 1 \+3 −0 1 – \d\.\ds", told[0])
    assert re.fullmatch(r"2 won passed 1 \+1 −0 1 – \d\.\ds", told[1])
    assert told[2] == "the least lines"
    assert re.match(r"3 failed failed 1 \+9 −0", told[3])
    assert "2 won: the least lines" in rows(page)[0]
    assert "3 candidates: ✓ 2 complete ✗ 1 failed" in rows(page)[0]


@pytest.mark.full
def test_a_diff_is_asked_of_git_once_for_each_attempt(
    repo: Path, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def count(found: FoundRun, task: str, *, journal: StoredRun) -> tuple[TaskDiff, bytes]:
        asked.append(task)
        return task_diff(found, task, journal=journal)

    monkeypatch.setattr("agentos.web.task_reads.task_diff", count)
    client.run(client.load("edit"), workflow_id="edit-1")
    first, second = (drawer(visitor.get(address("edit-1", task="write"))) for _ in range(2))
    assert "+one" in first
    assert "+one" in second
    assert asked == ["write"]


@pytest.mark.full
def test_a_log_that_is_looked_at_again_has_what_came_since(repo: Path) -> None:
    with driven(repo):
        found = find_run("busy")
        end = LogEnd(found, "long", most=2)
        wait_until((repo / "begun").exists)
        path = repo / ".agentos" / "logs" / "busy" / "long.1.log"
        line = "2026-01-01T00:00:0{}.000Z out line {}\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(line.format(1, 1))
        assert [one.text for one in end.read(["long"])][-1] == "line 1"
        with path.open("a") as file:
            file.write(line.format(2, 2) + line.format(3, 3))
        assert [one.text for one in end.read(["long"])] == ["line 2", "line 3"]


# --- what is too long for it ----------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_large_output_is_cut_and_can_be_had_whole_as_a_file(repo: Path, visitor: Visitor) -> None:
    flow = Workflow("large")
    flow.add("big", lambda: "x" * 5_000_000)
    flow.add("rows", lambda: {"rows": [1, 2]})
    client.run(flow, workflow_id="large-1")
    page = visitor.get(address("large-1", task="big"))
    assert len(page.text) < 60_000
    [whole] = re.findall(r'href="(/output/[^"]+)"', drawer(page))
    whole = visitor.get(link(whole))
    assert whole.text == "x" * 5_000_000
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert whole.headers["content-disposition"] == 'attachment; filename="output.txt"'
    small = visitor.get(address("large-1", "output", task="rows"))
    assert small.text == '{\n  "rows": [\n    1,\n    2\n  ]\n}'
    assert "content-disposition" not in small.headers


@pytest.mark.full
def test_a_long_log_shows_its_end_and_can_be_had_whole(repo: Path, visitor: Visitor) -> None:
    (repo / "long.sh").write_text("seq 1 3000; printf '\\033[31mred\\n'; head -c 3000000 /dev/zero | tr '\\0' y\n")
    (repo / "long.yaml").write_text("name: long\ntasks:\n  count: {run: sh long.sh, effects: none}\n")
    client.run(client.load(str(repo / "long.yaml")), workflow_id="long-1")
    page = visitor.get(address("long-1", task="count"))
    assert len(page.text) < 60_000
    log = drawer(page).partition('id="log"')[2]
    assert "2999\n3000\n\\x1b[31mred\n" in log
    assert "\n2700\n" not in log
    whole = visitor.get(address("long-1", "log", task="count", attempt=1))
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    lines = whole.text.splitlines()
    assert [line.rpartition(" ")[2] for line in lines[:3000]] == [str(number) for number in range(1, 3001)]
    assert visitor.get(address("long-1", "log", task="count", attempt=7)).text == ""
    assert visitor.get(address("long-1", "log", task="nothing")).status == 404


# --- the past -------------------------------------------------------------------------------------------------------


def test_at_an_event_the_whole_page_is_as_it_was(repo: Path, visitor: Visitor) -> None:
    client.run(client.load("edit"), workflow_id="edit-1")
    events = read_run("edit-1").events
    begun = next(event.seq for event in events if isinstance(event, ev.TaskStart) and event.task_id == "write")
    page = visitor.get(address("edit-1", at=begun, task="write"))
    text = words(page)
    assert f"The run as it stood at event {begun} of {len(events)}" in text
    assert "write starts" in text
    assert [row.split()[2:5] for row in rows(page)] == [["▶", "running", "write"], ["·", "pending", "more"]]
    assert "its attempt is under way" in drawer(page)
    assert "Output" not in words(drawer(page)).partition("Definition")[0]
    assert "written" not in drawer(page).partition('id="log"')[2].partition("</div>")[0]
    assert "/do/" not in page.text
    assert "data-live" not in page.text
    assert f'href="{address("edit-1", at=begun + 1, task="write").replace("&", "&amp;")}" rel="next"' in page.text
    assert "This is the past" not in words(visitor.get(address("edit-1")))


def test_before_an_item_was_there_the_page_is_shown_without_it(repo: Path, visitor: Visitor) -> None:
    flow = Workflow("spread")
    flow.add("each", "shell", run="echo ${{ item }}", for_each=["a", "b"], effects="none")
    client.run(flow, workflow_id="spread-1")
    assert "each[1]" in drawer(visitor.get(address("spread-1", task="each[1]")))
    page = visitor.get(address("spread-1", at=1, task="each[1]"))
    assert (page.status, drawer(page)) == (200, "")
    assert unescape(address("spread-1", at=2, task="each[1]")) in unescape(page.text), "it comes back when it is there"
    assert visitor.get(address("spread-1", at=1, task="other")).status == 404


@pytest.mark.full
def test_an_event_that_is_not_there_is_refused(repo: Path, visitor: Visitor) -> None:
    client.run(client.load("edit"), workflow_id="edit-1")
    for at in ("0", "-1", "x", "9999999", "1e3", "\N{ARABIC-INDIC DIGIT ONE}", "9" * 500):
        page = visitor.get(address("edit-1", at=at))
        assert page.status == 404
        assert "has no event" in words(page)
        assert "Its events are 1 to" in words(page)


@pytest.mark.full
def test_a_task_that_is_not_there_is_refused(repo: Path, visitor: Visitor) -> None:
    client.run(client.load("edit"), workflow_id="edit-1")
    page = visitor.get(address("edit-1", task=HOSTILE))
    assert page.status == 404
    assert "has no task" in words(page)
    assert SCRIPT not in page.text


# --- runs of every sort ---------------------------------------------------------------------------------------------


def test_nothing_that_a_run_holds_is_more_than_text(repo: Path, visitor: Visitor) -> None:
    flow = Workflow(HOSTILE[:40], params={"many": [SCRIPT, "b"]})
    flow.add("each", lambda item: f"{item}\n</pre>{HOSTILE}", for_each="${{ params.many }}", key="item")

    @flow.task
    def fail(each: object) -> None:
        raise RuntimeError(HOSTILE)

    client.run(flow, workflow_id="hostile-1", check=False)
    ids = [task.id for task in client.view("hostile-1").tasks]
    pages = [visitor.get(address("hostile-1", unfold="each")), visitor.get(address("hostile-1", at=3, unfold=SCRIPT))]
    pages += [visitor.get(address("hostile-1", task=task_id, events="all")) for task_id in ids]
    for page in pages:
        assert page.status == 200
        assert SCRIPT not in page.text
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page.text)
    assert any("each[" in task_id and "script" in task_id for task_id in ids)


@pytest.mark.full
def test_a_run_of_saved_states_has_a_page(repo: Path, visitor: Visitor) -> None:
    (repo / ".agentos").mkdir(exist_ok=True)
    manager = CheckpointManager(repo / ".agentos" / "issue_workflow.db")
    tasks = (TaskEntry(task_id=TaskId("a"), status="complete", output={"n": 1}),)
    for layer in range(2):
        state = WorkflowState(workflow_id=WorkflowId("states-1"), current_layer=layer, tasks=tasks)
        manager.save_checkpoint("states-1", layer, state)
    manager.close()
    page = visitor.get(address("states-1"))
    [row] = rows(page)
    assert '✓ complete a {"n":1}' in row
    assert visitor.get(address("states-1", at=1)).status == 200
    assert visitor.get(address("states-1", task="a")).status == 404


@pytest.mark.full
def test_a_run_whose_driver_was_killed_reads_interrupted_and_so_does_its_task(repo: Path, visitor: Visitor) -> None:
    interrupted(repo)
    page = visitor.get(address("cut-1", task="strike"))
    assert "cut ! interrupted" in words(page)
    assert "! interrupted strike" in rows(page)[0]
    text = words(drawer(page))
    assert "its attempt was interrupted" in text
    assert re.search(r"Attempts 1 .* interrupted", text)
    assert "agentos resume cut-1" in text


@pytest.mark.full
def test_a_run_that_is_driven_names_its_driver_and_is_live(repo: Path, visitor: Visitor) -> None:
    with driven(repo) as pid:
        page = visitor.get(address("busy", task="long"))
        assert f"Driven by process {pid}" in words(page)
        assert "▶ running long" in rows(page)[0]
        assert re.search(r'<body data-live="/live\?run=[0-9a-f]+%2Fbusy\b', page.text)
        assert re.search(r'id="log" data-follow|It printed nothing', page.text)


# --- in a browser ---------------------------------------------------------------------------------------------------

MOST_ELEMENTS = 5_000
"""A page of that many is laid out in a blink; a row of each of 20,000 events would be twenty times as many."""


def more_events(many: int) -> None:
    """Add events to a run that has ended, as if its first task had called a model so often."""
    found = find_run("wide-1")
    with closing(find_place().open()) as store:
        lease = store.take_lease(found.record.workflow_id, current_holder(), 60, drives=False)
        seq, now = found.record.sequence, datetime.now(UTC)
        used = [
            ev.TaskUsage(
                seq=seq + number, at=now, workflow_id=lease.workflow_id, task_id=TaskId("t0"), layer=0, attempt=1,
                usage=ev.Usage(calls=1, input_tokens=1),
            )
            for number in range(1, many + 1)
        ]  # fmt: skip
        store.append(lease, used, Progress(status="complete", layer=0, layers=1, epoch=0))
        store.release_lease(lease)


@pytest.mark.full
def test_a_thousand_tasks_and_twenty_thousand_events_leave_a_browser_at_ease(
    repo: Path, serve: Serve, new_page: Callable[..., Page]
) -> None:
    flow = Workflow("wide")
    for number in range(1000):
        flow.add(f"t{number}", lambda: "done")
    client.run(flow, workflow_id="wide-1")
    more_events(20_000 - find_run("wide-1").record.sequence)
    page = new_page(serve(), address("wide-1"))
    elements = "document.querySelectorAll('*').length"
    page.get_by_text("live", exact=True).wait_for()
    assert page.evaluate(elements) < MOST_ELEMENTS
    aside(lambda: more_events(1))
    page.locator(".events").get_by_role("link", name="20001", exact=True).wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.get_by_role("complementary", name="t0").wait_for()
    assert page.evaluate(elements) < MOST_ELEMENTS
    page.get_by_role("slider", name="Go back in time").evaluate(
        "slider => { slider.value = 10000; slider.dispatchEvent(new Event('change', { bubbles: true })); }"
    )
    page.get_by_text("This is the past.").wait_for()
    assert page.evaluate(elements) < MOST_ELEMENTS
    page.get_by_role("link", name="earlier events").click()
    page.wait_for_url("**events=all**")
    assert page.locator(".events tbody tr").count() == 1000, "and no more, however many there are"


@pytest.mark.full
def test_lines_of_five_megabytes_are_cut_before_they_reach_a_browser(
    repo: Path, serve: Serve, new_page: Callable[..., Page]
) -> None:
    (repo / "print.sh").write_text("head -c 5000000 /dev/zero | tr '\\0' x; echo; echo end >&2; exit 3\n")
    (repo / "wide.yaml").write_text("name: wide\ntasks:\n  print: {run: sh print.sh, effects: none}\n")
    aside(lambda: client.run(client.load(str(repo / "wide.yaml")), workflow_id="wide-1", check=False))
    sizes: list[int] = []
    page = new_page(serve())
    page.on("response", lambda answer: sizes.append(len(answer.body())) if "/run/" in answer.url else None)
    page.goto(page.url.rstrip("/") + address("wide-1", task="print"))
    page.locator("#log").get_by_text("end", exact=True).wait_for()
    assert max(sizes) < 100_000
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


@pytest.mark.full
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_window_and_the_drawer_is_seen(
    repo: Path, serve: Serve, new_page: Callable[..., Page], width: int
) -> None:
    aside(lambda: client.run(client.load("edit"), workflow_id="edit-1"))
    page = new_page(serve(), address("edit-1"), width=width)
    page.locator(".tasks").get_by_role("link", name="more").click()
    page.wait_for_url("**task=more*")
    assert page.get_by_role("complementary", name="more").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".said-err").is_visible()


@pytest.mark.full
def test_the_slider_goes_back_in_time_also_without_script(
    repo: Path, serve: Serve, new_page: Callable[..., Page]
) -> None:
    aside(lambda: client.run(client.load("edit"), workflow_id="edit-1"))
    page = new_page(serve(), address("edit-1", task="more"), java_script_enabled=False)
    slider = page.get_by_role("slider", name="Go back in time")
    slider.focus()
    page.keyboard.press("Home")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**at=1**")
    assert "This is the past" in page.inner_text("main")
    assert page.get_by_role("complementary", name="more").is_visible()
    page.get_by_role("link", name="Back to now").click()
    assert "This is the past" not in page.inner_text("main")
