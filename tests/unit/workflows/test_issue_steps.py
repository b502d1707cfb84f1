"""What follows from drafts, verdicts and answers: the steps of the issue workflow, with nobody called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentos import Context
from agentos.exceptions import AttemptError
from agentos.ids import TaskId, WorkflowId
from agentos.workflows.issue import steps

DRAFT = {"text": "# T\n\nText.", "file": "docs/lineage/active/x/002-draft.md", "round": 1, "number": 2}
SENT = {"send": True, "text": "# T\n\nText.", "said": "", "prompt": "…", "edited": False}


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(
        workflow_id=WorkflowId("issue-x"),
        task_id=TaskId("t"),
        attempt=1,
        idempotency_key="k",
        root=tmp_path,
        show=lambda line: None,
    )


def read(verdict: str, *changes: str, summary: str = "So.") -> dict[str, Any]:
    return steps.read_review({"verdict": verdict, "summary": summary, "changes": list(changes)})


def judged(ctx: Context, first: dict[str, Any], **more: Any) -> dict[str, Any]:
    given = {"again": None, "draft": DRAFT, "last": None, "max_rounds": 5, "always_ask": False, **more}
    return steps.judge(first, name="x", ctx=ctx, **given)


# --- the verdict ----------------------------------------------------------------------------------------------------


def test_approve_and_revise_ask_nobody(ctx: Context) -> None:
    assert judged(ctx, read("approve"))["ask"] == ""
    assert judged(ctx, read("revise", "More."))["ask"] == ""


@pytest.mark.parametrize(
    ("first", "more", "why"),
    [
        (read("discuss"), {}, "wants a human to decide"),
        (steps.read_review("APPROVED"), {"again": "yes"}, "no readable verdict, twice"),
        (steps.read_review(""), {"again": None}, "no readable verdict, twice"),
        (read("revise", "more!"), {"last": {"complaint": "more"}}, "the same as in the round before"),
        (read("revise", "More."), {"draft": {**DRAFT, "round": 5}}, "not content after 5 rounds."),
        (read("revise", "More."), {"draft": {**DRAFT, "round": 7}}, "not content after 7 rounds."),
        (read("approve"), {"always_ask": True}, "The reviewer says approve"),
    ],
)
def test_a_human_is_asked(ctx: Context, first: dict[str, Any], more: dict[str, Any], why: str) -> None:
    assert why in judged(ctx, first, **more)["ask"]


def test_an_approval_in_the_last_round_needs_nobody(ctx: Context) -> None:
    assert judged(ctx, read("approve"), draft={**DRAFT, "round": 5}, last={"complaint": ""})["ask"] == ""


def test_the_second_answer_counts_where_the_first_says_nothing(ctx: Context) -> None:
    again = {"text": '{"verdict": "approve", "summary": "ok", "changes": []}', "usage": {}}
    assert judged(ctx, steps.read_review("hm"), again=again)["verdict"] == "approve"
    stale = {"verdict": "revise", "summary": "", "changes": ["x"]}
    assert judged(ctx, read("approve"), again=stale)["verdict"] == "approve", "of a round before"


def test_an_answer_by_schema_is_read_as_it_is() -> None:
    assert steps.read_review({"text": "…", "json": {"verdict": "approve", "summary": "", "changes": []}})["readable"]
    assert not steps.read_review({"text": "approve", "usage": {}})["readable"]


# --- how a round ends -----------------------------------------------------------------------------------------------


def concluded(ctx: Context, verdict: Any, decided: Any = None, taken: Any = SENT) -> Any:
    return steps.conclude(DRAFT, taken, verdict, decided, "x", ctx)


def test_only_an_approval_or_an_accept_is_done(ctx: Context) -> None:
    approve, revise = judged(ctx, read("approve")), judged(ctx, read("revise", "More."))
    discuss = judged(ctx, read("discuss"))
    accept, again = ({"choice": choice, "reason": "because"} for choice in ("accept", "revise"))
    assert concluded(ctx, approve)["done"]
    assert not concluded(ctx, revise)["done"]
    assert not concluded(ctx, None)["done"]
    assert concluded(ctx, discuss, accept)["done"]
    assert not concluded(ctx, discuss, again)["done"]
    asked = judged(ctx, read("approve"), always_ask=True)
    assert not concluded(ctx, asked, again)["done"], "the human has the last word"


def test_what_was_decided_in_a_round_before_counts_for_nothing(ctx: Context) -> None:
    accept = {"choice": "accept", "reason": ""}
    assert not concluded(ctx, judged(ctx, read("revise", "More.")), accept)["done"]
    unsent = {**SENT, "send": False, "said": "Shorter."}
    left = concluded(ctx, judged(ctx, read("approve")), accept, unsent)
    assert (left["done"], left["feedback"]) == (False, "Shorter.")


def test_the_human_is_heard_before_the_reviewer(ctx: Context) -> None:
    verdict = judged(ctx, read("discuss", "One.", summary="Hm."))
    left = concluded(ctx, verdict, {"choice": "revise", "reason": "Split it."})
    assert left["feedback"] == "Split it.\n\nHm.\n- One."
    assert left["number"] == 4
    assert (ctx.root / "docs/lineage/active/x/004-feedback.md").read_text() == "Split it.\n"


# --- drafts ---------------------------------------------------------------------------------------------------------


def test_a_draft_that_was_emptied_by_hand_is_written_anew(ctx: Context) -> None:
    kept = steps.keep_draft({"text": "Well: \n# T\n\nText."}, {"number": 1, "round": 1}, "x", ctx)
    assert kept["text"] == "# T\n\nText."
    (ctx.root / kept["file"]).write_text("\n")
    taken = steps.take_draft(kept, "brief", {"choice": "send", "reason": ""}, ctx)
    assert (taken["send"], taken["said"]) == (False, "The draft was emptied by hand: write it anew.")


def test_without_a_gate_a_draft_is_sent(ctx: Context) -> None:
    taken = steps.take_draft(DRAFT, "the brief", None, ctx)
    assert (taken["send"], taken["edited"]) == (True, False)
    assert "the brief" in taken["prompt"]
    assert "Text." in taken["prompt"]


def test_a_brief_that_changed_meanwhile_is_not_loaded(ctx: Context) -> None:
    (ctx.root / "b.md").write_text("new")
    with pytest.raises(AttemptError, match="changed while"):
        steps.load("b.md", steps.digest_of(b"old"), "x", ctx)
