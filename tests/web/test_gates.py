"""Questions on the page: what they cover, and answers that hold for what was shown."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from agentos import Workflow, client
from agentos.client.places import find_run
from agentos.web.pages.gates import gate_cards
from agentos.web.site import Site
from tests.marks import quick_first
from tests.web.conftest import Answer, Serve, Visitor, let_in, wait_until

REVIEW = """
name: review
tasks:
  write: {run: "printf 'one\\ntwo\\n' > one.txt; echo written"}
  ship:
    needs: write
    approve: {question: "Ship it?", file: notes.md, timeout_s: 600}
    run: "cat one.txt > shipped.txt # ${{ tasks.write.output.stdout }}"
"""


def gate_url(run: str, gate: str, page: str = "gate") -> str:
    return Site().run_url(find_run(run), page, gate=gate)


def start(repo: Path, name: str, text: str, run: str) -> None:
    (repo / "workflows" / f"{name}.yaml").write_text(text)
    client.run(client.load(name), workflow_id=run)


def gate_of(run: str) -> client.GateView:
    return client.view(run).gates[-1]


def ended(run: str) -> str:
    """How the run ended, once somebody drove it on."""
    return wait_until(lambda: next((s for s in ("complete", "failed") if client.view(run).status == s), ""))


@pytest.fixture
def asked(repo: Path) -> str:
    """The address of an open question."""
    client.run(client.load("ask"), workflow_id="ask-1")
    return gate_url("ask-1", "approve:ship")


# --- what is shown --------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_question_is_shown_with_what_it_covers(repo: Path, visitor: Visitor) -> None:
    (repo / "notes.md").write_text("read me before\n")
    start(repo, "review", REVIEW, "review-1")
    page = visitor.get(gate_url("review-1", "approve:ship")).text
    for expected in (
        "Ship it?", "cat one.txt &gt; shipped.txt", "tasks.write.output.stdout = written",  # what would run
        "one.txt as of this question", "read me before", "rejected if nobody answers until",
        "+two", "Files changed since the run began",
    ):  # fmt: skip
        assert expected in page, expected
    assert "Ship it?" in visitor.get(gate_url("review-1", "approve:ship", "run").partition("?")[0]).text


AGENTS = """
name: agents
params: {what: the parser}
tasks:
  fix: {approve: "Begin?", agent: command, command: [sh, fix.sh], prompt: "Mend ${{ params.what }}", effects: none}
  look: {approval: "Which?", inputs: {seen: "${{ params.what }}, mended"}}
"""


def test_a_question_before_an_agent_has_what_it_will_be_told(repo: Path, visitor: Visitor) -> None:
    start(repo, "agents", AGENTS, "agents-1")
    page = visitor.get(gate_url("agents-1", "approve:fix")).text
    for expected in ("prompt = Mend ${{ params.what }}", "params.what = the parser", "fix.sh"):
        assert expected in page, expected
    assert "seen = the parser, mended" in visitor.get(gate_url("agents-1", "approval:look")).text


@pytest.mark.full
def test_a_question_about_a_large_output_has_what_it_needs_of_it(repo: Path, visitor: Visitor) -> None:
    flow = Workflow("big")
    flow.add("a", lambda: {"n": 7, "text": "x" * 3_000_000})
    run = "echo ${{ tasks.a.output.n }} ${{ tasks.a.output.text }}"
    flow.add("b", "shell", needs=["a"], approve="Ship?", run=run)
    client.run(flow, workflow_id="big-1")
    page = visitor.get(gate_url("big-1", "approve:b"))
    assert "tasks.a.output.n = 7" in page.text
    assert f"tasks.a.output.text = {'x' * 200}" in page.text
    assert len(page.text) < 50_000
    assert visitor.submit(page, "answer", say="no").status == 303


def test_questions_cannot_forge_the_page(repo: Path, visitor: Visitor) -> None:
    question = "</h1><script>alert(1)</script>\\u001b[2JSure\\u202e?\\nApprove \\u0007"
    start(
        repo,
        "bad",
        f'name: bad\ntasks:\n  "a\\"><b>": {{run: "echo \'<i>\'"}}\n'
        f'  ship: {{needs: "a\\"><b>", approve: "{question}", '
        'run: "echo ${{ tasks[\'a\\"><b>\'].output.stdout }}"}\n',
        "bad-1",
    )
    for page in (visitor.get(gate_url("bad-1", "approve:ship")), visitor.get(gate_url("bad-1", "approve:ship", "run"))):
        assert page.status == 200
        for raw in ("<script>alert", "\x1b", "\u202e", "\x07", "<b>", "<i>"):
            assert raw not in page.text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2JSure\\u202e?" in page.text


@pytest.mark.full
@pytest.mark.parametrize("file", ["../secret.txt", "/etc/passwd", "link", "workflows", "gone.md"])
def test_a_question_shows_no_file_outside_of_its_worktree(repo: Path, visitor: Visitor, file: str) -> None:
    (repo.parent / "secret.txt").write_text("secret words root:")
    (repo / "link").symlink_to("../secret.txt")
    start(repo, "peek", f"name: peek\ntasks:\n  a: {{approval: {{question: 'Look?', file: '{file}'}}}}\n", "peek-1")
    page = visitor.get(gate_url("peek-1", "approval:a")).text
    assert "It is not there, or no file of this worktree." in page
    assert "secret words" not in page
    assert "root:" not in page


@pytest.mark.full
def test_of_many_questions_the_first_are_whole_and_all_are_listed(repo: Path, visitor: Visitor) -> None:
    tasks = "".join(f"  t{n:02}: {{approve: 'Number {n}?', run: 'true'}}\n" for n in range(30))
    start(repo, "many", f"name: many\ntasks:\n{tasks}", "many-1")
    page = visitor.get(gate_url("many-1", "x", "run")).text
    assert page.count('action="/do/answer"') == 5
    assert all(f"Number {n}?" in page for n in range(30))


@pytest.mark.full
def test_a_closed_question_says_who_answered_it_and_another_that_it_never_was(asked: str, visitor: Visitor) -> None:
    client.reject("ask-1", reason="too <early>", author="ada")
    page = visitor.get(asked).text
    assert "rejected" in page
    assert "ada" in page
    assert "too &lt;early&gt;" in page
    assert "/do/answer" not in page
    assert visitor.get(gate_url("ask-1", "approve:else")).status == 404


@pytest.mark.full
def test_in_the_past_nothing_is_answered(asked: str, visitor: Visitor) -> None:
    site, found = Site(), find_run("ask-1")
    opened = gate_cards(site, found, site.read(found))[0].gate.opened.seq
    [card] = gate_cards(site, found, site.read(found, opened))
    assert card.answers == ""
    assert gate_cards(site, found, site.read(found, opened - 1)) == []
    page = visitor.get(site.run_url(found, at=opened)).text
    assert "Ship it?" in page
    assert "/do/answer" not in page


# --- answers --------------------------------------------------------------------------------------------------------


def test_after_a_yes_the_run_goes_on_to_its_end(asked: str, repo: Path, visitor: Visitor) -> None:
    told = visitor.follow(visitor.submit(visitor.get(asked), "answer", say="yes", go_on="on", reason="tested\r\ntwice"))
    assert "approve:ship approved. The run goes on." in told.text
    assert ended("ask-1") == "complete"
    assert (repo / "shipped.txt").read_text() == "hello\n"
    assert (gate_of("ask-1").answer, gate_of("ask-1").reason) == ("approved", "tested\ntwice")


@pytest.mark.full
def test_a_yes_alone_lets_the_run_wait(asked: str, repo: Path, visitor: Visitor) -> None:
    assert "approve:ship approved." in visitor.follow(visitor.submit(visitor.get(asked), "answer", say="yes")).text
    assert gate_of("ask-1").answer == "approved"
    assert client.view("ask-1").driver is None
    assert not (repo / "shipped.txt").exists()


@pytest.mark.full
def test_a_no_ends_what_stands_behind(asked: str, repo: Path, visitor: Visitor) -> None:
    visitor.submit(visitor.get(asked), "answer", say="no", go_on="on", reason="not today")
    assert (gate_of("ask-1").answer, gate_of("ask-1").reason) == ("rejected", "not today")
    assert client.view("ask-1").status == "failed"
    assert not (repo / "shipped.txt").exists()


@pytest.mark.full
def test_nothing_but_an_explicit_yes_is_one(asked: str, visitor: Visitor) -> None:
    page = visitor.get(asked)
    typed: Any
    for typed in ({}, {"go_on": "on"}, {"say": ""}, {"say": "YES"}, {"choice": "yes"}, {"reason": "yes"}):
        answer = visitor.submit(page, "answer", **typed)
        assert answer.status == 409, typed
        assert "no answer was chosen" in answer.text
    assert gate_of("ask-1").open


@pytest.mark.full
def test_a_run_that_is_driven_goes_on_by_itself(repo: Path, visitor: Visitor) -> None:
    client.start_detached("ask", workflow_id="ask-2", gates="wait")
    wait_until(lambda: client.view("ask-2").gates)
    page = visitor.get(gate_url("ask-2", "approve:ship"))
    assert "Go on with the run" not in page.text
    visitor.submit(page, "answer", say="yes")
    assert ended("ask-2") == "complete"


@pytest.mark.full
def test_a_yes_goes_on_where_the_driver_of_the_run_is_gone_since_it_was_shown(repo: Path, visitor: Visitor) -> None:
    client.start_detached("ask", workflow_id="ask-2", gates="wait")
    wait_until(lambda: client.view("ask-2").gates)
    page = visitor.get(gate_url("ask-2", "approve:ship"))
    driver = find_run("ask-2").record.holder
    assert driver is not None
    os.kill(driver.pid, signal.SIGKILL)
    wait_until(lambda: find_run("ask-2").record.holder is None)
    assert "The run goes on." in visitor.follow(visitor.submit(page, "answer", say="yes")).text
    assert ended("ask-2") == "complete"


CHOICES = """
name: draft
tasks:
  look: {approval: {question: "What now?", choices: [publish, revise]}}
  told: {needs: look, run: "echo ${{ tasks.look.output.choice }} > told.txt"}
"""


@pytest.mark.full
def test_a_yes_with_choices_takes_one_of_them(repo: Path, visitor: Visitor) -> None:
    start(repo, "draft", CHOICES, "draft-1")
    page = visitor.get(gate_url("draft-1", "approval:look"))
    assert visitor.submit(page, "answer", say="yes").status == 409
    refused = visitor.submit(page, "answer", choice="burn")
    assert "none of the choices" in refused.text
    visitor.submit(page, "answer", choice="revise", go_on="on")
    assert ended("draft-1") == "complete"
    assert (repo / "told.txt").read_text() == "revise\n"


@pytest.mark.full
def test_decision_points_are_answered_too(repo: Path, visitor: Visitor) -> None:
    start(
        repo,
        "step",
        "name: step\ndecision_points: per_layer\ntasks:\n  a: {run: 'true'}\n  b: {needs: a, run: 'true'}\n",
        "s-1",
    )
    assert client.view("s-1").status == "waiting"
    for gate in client.view("s-1").gates:
        visitor.submit(visitor.get(gate_url("s-1", gate.id)), "answer", say="yes", go_on="on")
    assert ended("s-1") == "complete"


PAY = "name: pay\ntasks:\n  pay: {run: 'echo paid >> ran; kill -9 $PPID; sleep 60', effects: external}\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("choice", "output", "status"),
    quick_first([("it-ran", "receipt 17", "complete"), ("did-not-run", "", ""), ("run-again", "", "")]),
)
def test_an_interrupted_task_is_answered_by_what_became_of_it(
    repo: Path, visitor: Visitor, choice: str, output: str, status: str
) -> None:
    (repo / "workflows" / "pay.yaml").write_text(PAY)
    client.start_detached("pay", workflow_id="pay-1")
    wait_until(lambda: (repo / "ran").exists() and client.view("pay-1").driver is None)
    client.resume("pay-1")
    page = visitor.get(gate_url("pay-1", "ask:pay"))
    assert "What is known of it" in page.text
    assert "What it printed" in page.text
    assert visitor.submit(page, "answer", say="yes").status == 409, "three answers, and none is chosen"
    more: Any = {"go_on": "on"} if status else {}
    visitor.submit(page, "answer", say="yes", choice=choice, output=output, **more)
    if status:
        assert ended("pay-1") == status
        assert client.view("pay-1").tasks[0].output["stdout"] == "receipt 17"
    else:
        assert gate_of("pay-1").choice == choice


MERGE = """
name: both
tasks:
  a: {run: "echo by a > shared.txt", isolation: worktree}
  b: {run: "echo by b > shared.txt", isolation: worktree}
"""


def _use(version: str) -> Any:
    return {"use:0": version}


@pytest.mark.full
def test_conflicts_are_settled_by_choosing_versions(repo: Path, visitor: Visitor) -> None:
    start(repo, "both", MERGE, "both-1")
    page = visitor.get(gate_url("both-1", "merge:0"))
    assert "task:a" in page.text
    assert "--use shared.txt=file:PATH" in page.text
    assert visitor.submit(page, "answer", say="yes").status == 409
    assert "no version" in visitor.submit(page, "answer", say="yes", **_use("task:c")).text
    visitor.submit(page, "answer", say="yes", go_on="on", **_use("task:b"))
    assert ended("both-1") == "complete"
    assert (repo / "shared.txt").read_text() == "by b\n"


@pytest.mark.full
def test_a_question_for_an_agent_is_shown_and_not_answered_here(repo: Path, visitor: Visitor) -> None:
    start(repo, "bot", "name: bot\ntasks:\n  a: {approval: {question: 'Sure?', by: agent}}\n", "bot-1")
    page = visitor.get(gate_url("bot-1", "approval:a")).text
    assert "meant for an agent" in page
    assert "agentos approve bot-1 approval:a" in page
    assert "/do/answer" not in page


@pytest.mark.full
def test_a_signed_yes_is_typed_and_a_no_is_not(repo: Path, visitor: Visitor) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGQm8vBLmK2l8iF3PcLCbPYQ1iG0nCY0S4S7Jx4tqHoU"
    (repo / ".agentos-signers").write_text(f"ada@example.org {key}\n")
    from tests.conftest import git

    git("add", ".", cwd=repo)
    git("commit", "--quiet", "--message", "signers", cwd=repo)
    start(repo, "sign", "name: sign\ntasks:\n  a: {approve: {question: 'Sure?', by: signed}, run: 'true'}\n", "sign-1")
    page = visitor.get(gate_url("sign-1", "approve:a"))
    assert "agentos approve sign-1 approve:a --sign" in page.text
    assert 'value="yes"' not in page.text
    assert "is not given here" in visitor.submit(page, "answer", say="yes").text
    assert gate_of("sign-1").open
    visitor.submit(page, "answer", say="no")
    assert gate_of("sign-1").answer == "rejected"


# --- bound to what was shown ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [("one.txt", "changed since it asked. A yes does not hold for that"), ("notes.md", "new notes")],
)
def test_an_answer_to_what_has_changed_since_is_refused_and_shown_anew(
    repo: Path, visitor: Visitor, path: str, expected: str
) -> None:
    (repo / "notes.md").write_text("read me before\n")
    start(repo, "review", REVIEW, "review-1")
    page = visitor.get(gate_url("review-1", "approve:ship"))
    (repo / path).write_text("new notes\n")
    anew = visitor.submit(page, "answer", say="yes", go_on="on", reason="my <long> reason")
    assert anew.status == 409
    assert "changed after you were shown it" in anew.text
    assert expected in anew.text
    assert "my &lt;long&gt; reason" in anew.text, "what was typed is kept"
    assert gate_of("review-1").open
    assert visitor.submit(anew, "answer", say="no").status == 303, "what is shown anew can be answered"
    assert gate_of("review-1").answer == "rejected"


@pytest.mark.full
def test_a_yes_to_changed_files_asks_again_before_anything_runs(repo: Path, visitor: Visitor) -> None:
    start(repo, "review", REVIEW, "review-1")
    (repo / "one.txt").write_text("other\n")
    visitor.submit(visitor.get(gate_url("review-1", "approve:ship")), "answer", say="yes", go_on="on")
    wait_until(lambda: gate_of("review-1").id == "approve:ship#2" and gate_of("review-1").open)
    assert "one.txt changed after approve:ship was asked" in visitor.get(gate_url("review-1", "approve:ship#2")).text
    assert not (repo / "shipped.txt").exists()


@pytest.mark.full
def test_of_two_answers_at_once_one_counts(asked: str, serve: Serve) -> None:
    server = serve()
    visitors = [let_in(server), let_in(server)]
    pages = [visitor.get(asked) for visitor in visitors]
    answers: list[tuple[Answer, Visitor]] = []
    threads = [
        threading.Thread(target=lambda v=v, p=p, say=say: answers.append((v.submit(p, "answer", say=say), v)))
        for v, p, say in zip(visitors, pages, ("yes", "no"), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = [answer.text if answer.status != 303 else visitor.follow(answer).text for answer, visitor in answers]
    late = [text for text in told if "approve:ship approved." not in text and "approve:ship rejected." not in text]
    # The other one came too late, or at the very moment: then it is for the next driver, who refuses it.
    assert len(late) == 1, told
    assert "already answered" in late[0] or "that is kept" in late[0], late
    decided = [event for event in client.Client().events("ask-1") if event.type == "decision_made"]
    assert len(decided) == 1


# --- in a browser ---------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_keys_lead_to_the_question_and_enter_is_no_yes(asked: str, serve: Serve, new_page: Callable[..., Page]) -> None:
    page = new_page(serve(), asked.replace("/gate/", "/run/").partition("?")[0])
    page.keyboard.press("a")
    page.get_by_role("heading", name="Ship it?", level=1).wait_for()
    for field in (page.get_by_role("checkbox"), page.get_by_label("Reason")):
        field.focus()
        page.keyboard.press("Enter")
    assert page.url.endswith("gate=approve%3Aship")
    assert gate_of("ask-1").open
    page.get_by_label("Reason").fill("looks good")
    page.get_by_role("button", name="Approve").click()
    page.get_by_text("approve:ship approved").wait_for()
    assert ended("ask-1") == "complete"


@pytest.mark.full
def test_what_changes_while_somebody_reads_is_not_swapped_under_their_eyes(
    repo: Path, serve: Serve, new_page: Callable[..., Page]
) -> None:
    (repo / "notes.md").write_text("read me before\n")
    (repo / "workflows" / "review.yaml").write_text(REVIEW)
    client.start_detached("review", workflow_id="review-1")
    wait_until(lambda: client.view("review-1").status == "waiting" and client.view("review-1").driver is None)
    page = new_page(serve(), gate_url("review-1", "approve:ship"))
    page.get_by_text("read me before").wait_for()
    page.get_by_text("live", exact=True).wait_for()
    (repo / "notes.md").write_text("new notes\n")
    client.deliver("review-1", client.types.Pause())  # something happens, and the page looks again
    page.get_by_text("This changed since you were shown it.").wait_for()
    assert page.get_by_text("read me before").is_visible()
    assert page.get_by_role("button", name="Approve").count() == 0
    page.get_by_role("link", name="Show it anew").click()
    page.get_by_text("new notes").wait_for()
    page.get_by_role("button", name="Reject").click()
    page.get_by_text("approve:ship rejected").wait_for()
