"""The page for who reads it with a screen reader, with a keyboard alone, on a phone, in the dark, or without script."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Locator, Page

from agentos import client
from agentos.client.places import find_run
from agentos.web.server import Server
from agentos.web.site import Site
from agentos.web.static_page import static_page
from tests.conftest import git
from tests.web.conftest import Serve, aside, wait_until

NewPage = Callable[..., Page]

WORKFLOWS = {
    "draft": "tasks:\n  look: {approval: {question: 'What now?', choices: [publish, revise]}}\n",
    "both": "tasks:\n  a: {run: 'echo a > shared.txt', isolation: worktree}\n"
    "  b: {run: 'echo b > shared.txt', isolation: worktree}\n",
    "sign": "tasks:\n  a: {approve: {question: 'Sure?', by: signed}, run: 'true'}\n",
    "bot": "tasks:\n  a: {approval: {question: 'Sure?', by: agent}}\n",
    "fail": "tasks:\n  bad: {run: 'echo out; echo err >&2; exit 3', retries: 1}\n  after: {needs: bad, run: 'true'}\n",
    "pay": "tasks:\n  pay: {run: 'echo paid >> ran; kill -9 $PPID; sleep 60', effects: external}\n",
    "fan": "tasks:\n  items: {run: 'echo \"[1,2,3]\"', output: json}\n"
    "  each: {for_each: '${{ tasks.items.output }}', run: 'echo ${{ item }}'}\n",
}


class Runs(NamedTuple):
    """Addresses of every kind of page, by what it is, and a server that has them."""

    server: Server
    pages: dict[str, str]


def address(run: str, page: str = "run", **query: Any) -> str:
    return Site().run_url(find_run(run), page, **query)


@pytest.fixture
def runs(repo: Path, serve: Serve) -> Iterator[Runs]:
    for name, text in WORKFLOWS.items():
        (repo / "workflows" / f"{name}.yaml").write_text(f"name: {name}\nparams: {{word: hello}}\n{text}")
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGQm8vBLmK2l8iF3PcLCbPYQ1iG0nCY0S4S7Jx4tqHoU"
    (repo / ".agentos-signers").write_text(f"ada@example.org {key}\n")
    git("add", ".", cwd=repo)
    git("commit", "--quiet", "--message", "more", cwd=repo)
    client.start_detached("pay", workflow_id="pay-1")
    wait_until(lambda: (repo / "ran").exists() and client.view("pay-1").driver is None)
    for name in ("pay", "edit", "ask", "fail", "draft", "sign", "bot", "fan", "both"):
        if name == "pay":
            client.resume("pay-1")
        else:
            client.run(client.load(name), workflow_id=f"{name}-1", check=False)
    client.reject("ask-1", reason="not yet")
    client.run(client.load("ask"), workflow_id="ask-2")
    cuts = [str(one.id) for one in client.Client().checkpoints("edit-1")]
    client.start_detached("slow", workflow_id="slow-1")
    try:
        wait_until(lambda: (repo / "begun").exists())
        pages = {
            "list": "/",
            "list, filtered": "/?status=failed&label=a&q=fail",
            "list, nothing found": "/?q=nothing",
            "complete, with a task": address("edit-1", task="more"),
            "failed, with a task": address("fail-1", task="bad"),
            "running, with a task": address("slow-1", task="long"),
            "waiting": address("ask-2"),
            "items unfolded": address("fan-1", unfold="each", task="each"),
            "as of an event": address("edit-1", at=4, events="all"),
            "question": address("ask-2", "gate", gate="approve:ship"),
            "question, answered": address("ask-1", "gate", gate="approve:ship"),
            "question, choices": address("draft-1", "gate", gate="approval:look"),
            "question, merge": address("both-1", "gate", gate="merge:0"),
            "question, signed": address("sign-1", "gate", gate="approve:a"),
            "question, for an agent": address("bot-1", "gate", gate="approval:a"),
            "question, effect": address("pay-1", "gate", gate="ask:pay"),
            "compare": address("edit-1", "compare", a=cuts[0], b=cuts[-1]),
            "restore": address("edit-1", "restore", checkpoint=cuts[0]),
            "fork": address("edit-1", "fork", checkpoint=cuts[0]),
            "resume": address("fail-1", "resume"),
            "resume, driven": address("slow-1", "resume"),
            "run again": address("edit-1", "resume", rerun="more"),
            "problem": "/run/x/y",
        }
        yield Runs(serve(), pages)
    finally:
        (repo / "go").touch()
        wait_until(lambda: client.view("slow-1").driver is None)


# --- what a machine can tell ----------------------------------------------------------------------------------------


@cache
def axe() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text()


def violations(page: Page, *rules: str) -> list[str]:
    """What axe complains about, with everything unfolded."""
    page.evaluate("document.querySelectorAll('main details').forEach((one) => { one.open = true; })")
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe())
    only = {"runOnly": {"type": "rule", "values": list(rules)}} if rules else {}
    found = page.evaluate("(only) => axe.run(document, {resultTypes: ['violations'], ...only})", only)["violations"]
    return [f"{one['id']} ({one['impact']}): {node['html'][:200]}" for one in found for node in one["nodes"]]


@pytest.mark.full
def test_axe_finds_nothing_on_any_page_light_or_dark(
    runs: Runs, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    (tmp_path / "run.html").write_text(static_page(find_run("fail-1")))
    page: Page = request.getfixturevalue("new_page")(runs.server)
    base = page.url.rstrip("/")
    found: list[str] = []
    for name, path in [*runs.pages.items(), ("a file", (tmp_path / "run.html").as_uri())]:
        page.emulate_media(color_scheme="light")
        answer = page.goto(path if "://" in path else base + path)
        assert answer is None or answer.status == (404 if name == "problem" else 200), name
        found += [f"{name}: {one}" for one in violations(page)]
        page.emulate_media(color_scheme="dark")
        found += [f"{name}, dark: {one}" for one in violations(page, "color-contrast", "link-in-text-block")]
    page.goto(base)
    page.keyboard.press("?")
    page.get_by_role("heading", name="Keys").wait_for()
    found += [f"keys: {one}" for one in violations(page)]
    page.context.clear_cookies()
    page.goto(base)
    found += [f"not let in: {one}" for one in violations(page)]
    assert not found, "\n".join(found)


@pytest.mark.full
def test_on_a_phone_no_page_scrolls_sideways(runs: Runs, request: pytest.FixtureRequest) -> None:
    page: Page = request.getfixturevalue("new_page")(runs.server, width=400, height=800)
    base = page.url.rstrip("/")
    widths, found = {}, []
    for name, path in runs.pages.items():
        page.goto(base + path)
        found += [f"{name}: {one}" for one in violations(page, "scrollable-region-focusable", "target-size")]
        widths[name] = page.evaluate("document.scrollingElement.scrollWidth")
    assert {name: width for name, width in widths.items() if width > 400} == {}
    assert not found, "\n".join(found)


@pytest.mark.full
def test_on_a_phone_the_list_has_what_a_run_took_and_cost(repo: Path, serve: Serve, new_page: NewPage) -> None:
    from tests.web.test_run_list import add, open_store

    store = open_store(repo)
    add(store, "run-1", spent=1.25)
    store.close()
    page = new_page(serve(), width=400)
    row = page.locator(".run-table tbody tr").inner_text()
    assert re.search(r"[0-9.]+s · \$1\.25", row), row


@pytest.mark.full
def test_the_empty_list_reads_well(serve: Serve, new_page: NewPage) -> None:
    page = new_page(serve(), width=400)
    page.get_by_text("There is no run yet").wait_for()
    assert violations(page) == []
    assert page.evaluate("document.scrollingElement.scrollWidth") == 400


# --- a keyboard alone -----------------------------------------------------------------------------------------------

REACHABLE = """() => [...document.querySelectorAll(
  "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")]
  .filter((one) => one.tabIndex >= 0 && !one.disabled && one.checkVisibility({visibilityProperty: true})
    && (one.type !== "radio" || one.checked || !document.querySelector(`input[name="${one.name}"]:checked`)))
  .map((one, number) => { (window.order ??= new Map()).set(one, number); return one.outerHTML.slice(0, 120); })"""
FOCUSED = """() => {
  const one = document.activeElement, style = getComputedStyle(one), inner = one.querySelector("rect");
  const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
  const box = one.getBoundingClientRect();
  return {number: window.order.get(one) ?? -1, is_seen: ring || Boolean(inner && one.matches("a")
    && getComputedStyle(inner).strokeWidth === "3.5px"), is_there: box.right > 0 && box.bottom > 0};
}"""


@pytest.mark.full
@pytest.mark.parametrize("which", ["list", "run", "gate", "resume", "fork"])
def test_tab_reaches_everything_in_order_and_shows_where_it_is(
    asked: str, serve: Serve, new_page: NewPage, which: str
) -> None:
    to = {"list": "/", "run": f"{asked}?task=before"}.get(which) or asked.replace("/run/", f"/{which}/")
    page = new_page(serve(), to)
    wanted = page.evaluate(REACHABLE)
    assert len(wanted) > 5
    reached: list[int] = []
    for _ in wanted:
        page.keyboard.press("Tab")
        at = page.evaluate(FOCUSED)
        assert at["is_seen"], f"no focus to be seen: {wanted[at['number']]}"
        assert at["is_there"], f"focus out of sight: {wanted[at['number']]}"
        reached.append(at["number"])
    assert [wanted[one] for one in range(len(wanted)) if one not in reached] == []
    assert reached == sorted(reached), "as it stands on the page"


@pytest.fixture
def asked(repo: Path) -> str:
    client.run(client.load("ask"), workflow_id="ask-1")
    return address("ask-1")


def tab_to(page: Page, what: Locator) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if what.evaluate("(one) => one === document.activeElement"):
            return
    raise AssertionError(f"Tab does not lead to {what}")


@pytest.mark.full
def test_a_question_is_found_and_answered_without_a_mouse(asked: str, serve: Serve, new_page: NewPage) -> None:
    page = new_page(serve())
    tab_to(page, page.get_by_role("link", name="Skip to the content"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("link", name="Ship it?"))
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Ship it?", level=1).wait_for()
    tab_to(page, page.get_by_label("Reason"))
    page.keyboard.type("looks good, j k ? a /")
    tab_to(page, page.get_by_role("checkbox"))
    page.keyboard.press("Space")
    tab_to(page, page.get_by_role("button", name="Approve"))
    page.keyboard.press("Enter")
    page.get_by_role("status").filter(has_text="approve:ship approved").wait_for()
    [gate] = client.view("ask-1").gates
    assert (gate.answer, gate.reason) == ("approved", "looks good, j k ? a /")


# --- no script ------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_without_script_all_but_live_updates_works(asked: str, repo: Path, serve: Serve, new_page: NewPage) -> None:
    page = new_page(serve(), java_script_enabled=False)
    page.get_by_role("link", name="ask-1").first.click()
    page.get_by_role("link", name="Ship it?").click()
    page.get_by_label("Reason").fill("no script")
    page.get_by_role("button", name="Approve").click()
    page.get_by_text("approve:ship approved. The run goes on.").wait_for()
    wait_until(lambda: aside(lambda: client.view("ask-1").status) == "complete")
    page.reload()
    page.get_by_role("link", name="ship", exact=True).first.click()
    page.get_by_role("heading", name="ship", exact=True).wait_for()
    page.get_by_role("link", name="Close the task").click()
    page.get_by_label("Go back in time").evaluate("(one) => { one.value = 3; }")
    page.get_by_role("button", name="Show").click()
    page.get_by_text("This is the past.").wait_for()
    page.get_by_role("link", name="Back to now").click()
    page.get_by_role("link", name="Compare any two").click()
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("heading", name="What changed").wait_for()
    page.go_back()
    page.go_back()
    page.get_by_role("link", name="Restore…").last.click()
    page.get_by_role("button", name="Restore").click()
    page.get_by_role("link", name="Undo this…").click()
    page.get_by_role("button", name="Bring back").click()
    page.get_by_text("brought back").wait_for()
    page.get_by_role("link", name="Run again…").click()
    page.get_by_role("checkbox", name="run ship again").check()
    page.get_by_role("button", name="Show the plan").click()
    page.get_by_role("button", name="Resume").click()
    page.get_by_text("drives this run").first.wait_for()
    wait_until(lambda: aside(lambda: client.view("ask-1").driver) is None)
    page.get_by_role("link", name="Runs").click()
    page.get_by_label("Id or name").fill("nothing like it")
    page.get_by_role("button", name="Filter").click()
    page.get_by_text("No run is like that").wait_for()
